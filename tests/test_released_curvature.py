"""Optimizers against the trajectories of released code that are frozen in `tests/oracles/first_order.npz`.

These are the ones with fewer numbers than Adam's second moment, or with estimates of the curvature: CAME.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest

import modulax as mx

from .oracles.first_order_problem import CONVOLUTION, LAYERS, Problem
from .oracles.ledger import CURVATURE
from .test_released_first_order import SMALL, frozen

pytestmark = pytest.mark.usefixtures("x64")


class Case(NamedTuple):
    """Ours for a frozen trajectory, and the problem."""

    make: Callable[[], Any]
    problem: Problem = SMALL


def came(**more: Any) -> Any:
    return mx.CAME(0.05, 0.8, 0.95, 0.9, 1e-3, 1e-2, 0.5, weight_decay=0.1, **more)


def adam_mini(rate: float, query: int, key: int, **more: Any) -> Any:
    """Adam-mini with the roles of the parameters whose names its released code knows, for numbers of heads."""
    given = {"embed": mx.Embedding(), "wq": mx.Attention("query", heads=query), "wk": mx.Attention("key", heads=key),
             "wv": mx.Attention("value"), "wo": mx.Attention("out"), "other": mx.Other(), "output": mx.Head(),
             "mlp_bias": mx.Bias(), "norm": mx.Gain()}  # fmt: skip
    return mx.AdamMini(rate, **more, mask=mx.by_path({"mlp_bias": False, "norm": False, "*": True}), roles=given)


GROUPS: dict[str, dict[str, Case]] = {
    "AdamMini": {
        "AdamMini/default": Case(lambda: adam_mini(0.05, 2, 1), LAYERS),
        "AdamMini/all": Case(lambda: adam_mini(0.1, 4, 2, b1=0.8, b2=0.95, eps=1e-3, weight_decay=0.2), LAYERS),
    },
    "CAME": {
        "CAME/default": Case(lambda: mx.CAME(0.02)),
        "CAME/all": Case(came),
        "CAME/convolution": Case(came, CONVOLUTION),
    },
}


def trajectory(case: Case, transform: Any) -> Any:
    """The parameters after each step."""

    def body(carry: Any, noise: Any) -> Any:
        params, state = carry
        grads = {n: case.problem.gradient(n, w, noise[n]) for n, w in params.items()}
        updates, state = transform.update(grads, state, params)
        params = jtu.tree_map(jnp.add, params, updates)
        return (params, state), params

    start = jtu.tree_map(jnp.asarray, case.problem.start)
    return jax.lax.scan(body, (start, transform.init(start)), case.problem.noise)[1]


@pytest.mark.parametrize("group", GROUPS)
def test_as_in_the_released_code(group: str):
    cases = GROUPS[group]
    transforms = {name: case.make() for name, case in cases.items()}
    ours = jax.jit(lambda ts: {name: trajectory(case, ts[name]) for name, case in cases.items()})(transforms)
    for name, case in cases.items():
        for n in case.problem.start:
            theirs = frozen()[f"{name}/{n}"]
            distance = np.max(np.abs(ours[name][n] - theirs)) / np.max(np.abs(theirs))
            assert distance <= 1e-12, f"{name}, {n}: {distance:.2g}"


def test_no_setting_is_left_out():
    """Every setting of a compared algorithm is compared, and the algorithm has a row in the ledger."""
    compared = {name for cases in GROUPS.values() for name in cases}
    algorithms = {name.partition("/")[0] for name in compared}
    assert compared == {key.rpartition("/")[0] for key in frozen() if key.partition("/")[0] in algorithms}
    assert algorithms == {name for row in CURVATURE for name in row.names.split(", ")}
