"""SOAP, Shampoo and EShampoo against trajectories of released code, frozen in `tests/oracles/matrices.npz`."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest

import modulax as mx
from modulax.linalg import inverse_root

from .oracles.problem import TWO_LAYERS
from .released import Case, assert_near, distances_of

pytestmark = pytest.mark.usefixtures("x64")


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


SETTINGS: dict[str, Callable[[], Any]] = {
    "SOAP/default": lambda: mx.SOAP(0.05),
    "SOAP/all": lambda: mx.SOAP(0.1, 0.8, 0.9, 0.7, 1e-3, 0.1, 3, normalize_grads=True, correct_bias=False),
    "SOAP/some": lambda: mx.SOAP(0.02, 0.9, 0.99, weight_decay=0.0, precondition_frequency=1, max_precond_dim=4),
    "Shampoo/default": lambda: mx.Shampoo(0.1, eps=1e-8),
    "Shampoo/all": lambda: mx.Shampoo(0.1, 0.8, 0.95, 0.7, 1e-4, 0.1, 3, 5, 1000, grafting=FilteredAdam()),
    "Shampoo/blocks": lambda: mx.Shampoo(0.1, 0.9, 0.95, eps=1e-2, block_size=3),
    "Shampoo/graft_sgd": lambda: mx.Shampoo(0.05, 0.9, 0.95, eps=1e-6, grafting=mx.Ema(0.9)),
    "Shampoo/graft_blocks": lambda: mx.Shampoo(0.05, 0.9, 0.95, eps=1e-2, block_size=3, grafting=mx.Ema(0.9)),
    "Shampoo/graft_blocks_all": lambda: mx.Shampoo(0.1, 0.8, 0.95, 0.7, 1e-4, 0.1, 3, 5, 2, grafting=FilteredAdam()),
    "Shampoo/merged": lambda: mx.Shampoo(0.1, 0.9, 0.95, eps=1e-2, weight_dimension_numbers=mx.by_path({"*": None})),
    "KLShampoo/default": lambda: mx.KLShampoo(0.1, eps=1e-4),
    "KLShampoo/all": lambda: mx.Chain(
        mx.ScaleByShampoo(0.8, 0.95, 0.7, 1e-4, 3, 5, grafting=FilteredAdam(), kl=True),
        mx.AddDecayedWeights(0.1),
        mx.ScaleByLearningRate(0.1),
    ),
    "KLShampoo/paper": lambda: mx.KLShampoo(0.05, 0.9, 0.95, eps=1e-4, exponent=0.5),
    "SOAP.meta/default": lambda: mx.EShampoo(0.05, 0.9, 0.95, None, 1e-3, 0.0, 1),
    "SOAP.meta/all": lambda: mx.EShampoo(0.1, 0.8, 0.95, 0.7, 1e-3, 0.1, 3, 5, 1000),
    "SOAP.meta/qr": lambda: mx.EShampoo(0.05, 0.9, 0.95, None, 1e-4, 0.0, 1, qr_iterations=1),
    # Theirs would stop at a tolerance that it never reaches.
    "SOAP.meta/qr_thrice": lambda: mx.EShampoo(0.05, 0.9, 0.95, None, 1e-6, 0.0, 3, qr_iterations=3),
}
CASES = {name: Case(make, TWO_LAYERS) for name, make in SETTINGS.items()}


@pytest.mark.parametrize("algorithm", ["SOAP", "Shampoo", "KLShampoo", "SOAP.meta"])
def test_as_in_the_released_code(algorithm: str):
    cases = {name: case for name, case in CASES.items() if name.startswith(f"{algorithm}/")}
    assert_near(distances_of("matrices", cases), 1e-10)


LOW_RANK = {
    "sum": mx.Shampoo(1.0),
    "grafted": mx.Shampoo(1.0, b2=0.99, grafting=mx.ScaleByAdam()),
    "kl": mx.KLShampoo(1.0, b2=0.99, exponent=0.5),
}


def test_roots_amplify_no_rounding_errors():
    """In exact arithmetic, gradients have no part along the eigenvectors of zero; in any other one they have."""
    rng = np.random.default_rng(0)
    a, b, c, d, e = (rng.integers(-2, 3, shape) for shape in ((6, 2), (4, 2, 2), (2, 9), (4, 2), (2, 16)))
    grads = {"w": a @ b @ c / 8, "b": d @ e / 8}  # exact in bfloat16

    def updates(optimizer: Any, dtype: Any) -> Any:
        steps = {name: jnp.asarray(g, dtype) for name, g in grads.items()}
        zeros = jtu.tree_map(lambda g: jnp.zeros_like(g[0]), steps)
        return jax.lax.scan(lambda s, g: optimizer.update(g, s, zeros)[::-1], optimizer.init(zeros), steps)[1]

    @jax.jit
    def found() -> Any:
        double, half = ({x: updates(o, dtype) for x, o in LOW_RANK.items()} for dtype in (jnp.float64, jnp.bfloat16))
        bits = {x: updates(mx.LowBit(o, min_size=1), jnp.float32) for x, o in LOW_RANK.items() if x != "grafted"}
        return double, half, bits

    double, *others = found()
    for other, tolerance in zip(others, (1e-2, 1e-3), strict=True):
        for name, array in [(name, array) for name in other for array in grads]:
            u, v = (np.asarray(x[name][array], np.float64) for x in (double, other))
            errors = [np.linalg.norm(x - y) / np.linalg.norm(x) for x, y in zip(u, v, strict=True)]
            assert max(errors) < tolerance, (name, array, errors)


def test_roots_that_exist_are_used_at_another_frequency():
    """As after `replace(precondition_frequency=...)`. Where there are none, and `start` is past, they come at once."""
    grads = jnp.asarray(np.random.default_rng(0).normal(size=(8, 3, 3)))

    def updates(frequencies: Any, start: int | None = None) -> Any:
        def step(state: Any, now: Any) -> Any:
            g, k = now
            return mx.ScaleByShampoo(0.0, precondition_frequency=k, start=start).update(g, state)[::-1]

        return jax.lax.scan(step, mx.ScaleByShampoo().init(grads[0]), (grads, frequencies))[1]

    raised, lowered, always = np.asarray([[1] * 3 + [10] * 5, [10] * 4 + [3] * 4, [1] * 8], float)
    found = jax.jit(jax.vmap(updates))(jnp.stack([raised, lowered, always]))
    np.testing.assert_allclose(found[0], jax.jit(lambda k: updates(k, 1))(raised), rtol=1e-10)
    np.testing.assert_allclose(found[1, :4], grads[:4], rtol=1e-10)
    np.testing.assert_allclose(found[1, 4:6], found[2, 4:6], rtol=1e-10)


def test_the_derivative_of_a_root_of_low_rank():
    """The root of a multiple is a multiple, whatever eigenvalues are raised to a fraction of the largest one."""

    def root(x: Any, p: Any = 0.3) -> Any:
        return inverse_root(x, jnp.asarray(p), jnp.asarray(0.0), 1)

    x = np.random.default_rng(0).normal(size=(5, 2))
    x = jnp.asarray(x @ x.T)
    y, dy = jax.jvp(root, (x,), (x,))
    np.testing.assert_allclose(dy, -0.3 * y, rtol=1e-6)
    full, step = x + jnp.eye(5), 1e-5
    _, dy = jax.jvp(root, (full, 0.3), (x, 1.0))
    expected = (root(full + step * x, 0.3 + step) - root(full - step * x, 0.3 - step)) / (2 * step)
    np.testing.assert_allclose(dy, expected, atol=1e-8)
