"""SOAP and Shampoo against trajectories of released code, frozen in `tests/oracles/matrices.npz`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest

import modulax as mx

from .oracles.matrix_problem import NOISE, START, STEPS, gradient

pytestmark = pytest.mark.usefixtures("x64")
FROZEN = np.load(Path(__file__).with_name("oracles") / "matrices.npz")


class FilteredAdam(mx.AbstractLeafwise[mx.states.ScaleByAdamState]):
    """The grafting of Distributed Shampoo: the average of momentum and gradient over the root of the second moment."""

    b1: mx.Number = mx.number(0.8)
    b2: mx.Number = mx.number(0.9)
    b3: mx.Number = mx.number(0.7)
    eps: mx.Number = mx.number(1e-3)

    def init_leaf(self, p: Any) -> Any:
        return mx.states.ScaleByAdamState(mu=jnp.zeros_like(p), nu=jnp.zeros_like(p))

    def prepare(self, count: Any) -> Any:
        return 1 - self.b3 * self.b1**count, 1 - self.b2 ** (count + 1)

    def update_leaf(self, now: Any, g: Any, s: Any, p: Any) -> Any:
        of_first, of_second = now
        filtered = (self.b3 * s.mu + (1 - self.b3) * g) / of_first
        mu, nu = self.b1 * s.mu + (1 - self.b1) * g, self.b2 * s.nu + (1 - self.b2) * g**2
        return filtered / (jnp.sqrt(nu / of_second) + self.eps), mx.states.ScaleByAdamState(mu=mu, nu=nu)


CASES: dict[str, Callable[[], Any]] = {
    "SOAP/default": lambda: mx.SOAP(0.05),
    "SOAP/all": lambda: mx.SOAP(0.1, 0.8, 0.9, 0.7, 1e-3, 0.1, 3, normalize_grads=True, correct_bias=False),
    "SOAP/some": lambda: mx.SOAP(0.02, 0.9, 0.99, weight_decay=0.0, precondition_frequency=1, max_precond_dim=4),
    "Shampoo/default": lambda: mx.Shampoo(0.1, eps=1e-8),
    "Shampoo/all": lambda: mx.Shampoo(0.1, 0.8, 0.95, 0.7, 1e-4, 0.1, 3, 5, 1000, grafting=FilteredAdam()),
    "Shampoo/blocks": lambda: mx.Shampoo(0.1, 0.9, 0.95, eps=1e-2, block_size=3),
    "Shampoo/graft_sgd": lambda: mx.Shampoo(0.05, 0.9, 0.95, eps=1e-6, grafting=mx.Ema(0.9)),
    "KLShampoo/default": lambda: mx.KLShampoo(0.1, eps=1e-4),
    "KLShampoo/all": lambda: mx.Chain(
        mx.ScaleByShampoo(0.8, 0.95, 0.7, 1e-4, 3, 5, grafting=FilteredAdam(), kl=True),
        mx.AddDecayedWeights(0.1),
        mx.ScaleByLearningRate(0.1),
    ),
    "KLShampoo/paper": lambda: mx.KLShampoo(0.05, 0.9, 0.95, eps=1e-4, exponent=0.5),
}


def trajectory(optimizer: Any) -> Any:
    """The parameters after every step."""

    def body(carry: Any, noise: Any) -> Any:
        params, state = carry
        grads = {name: gradient(name, w, noise[name]) for name, w in params.items()}
        updates, state = optimizer.update(grads, state, params)
        params = jtu.tree_map(jnp.add, params, updates)
        return (params, state), params

    params = jtu.tree_map(jnp.asarray, START)
    return jax.lax.scan(body, (params, optimizer.init(params)), NOISE, length=STEPS)[1]


@pytest.mark.parametrize("name", CASES)
def test_trajectories_are_those_of_released_code(name: str):
    points = jax.jit(lambda: trajectory(CASES[name]()))()
    for array, found in points.items():
        np.testing.assert_allclose(found, FROZEN[f"{name}/{array}"], rtol=1e-9, atol=1e-10, err_msg=array)
