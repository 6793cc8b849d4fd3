"""The trajectories of released code of first-order optimizers, frozen in `tests/oracles/first_order.npz`, and ours.

`GROUPS` has the cases of each algorithm, by the names in that file.
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest

import modulax as mx

from .oracles import problem
from .oracles.first_order_problem import STEPS, Problem
from .oracles.ledger import FIRST_ORDER

FROZEN = Path(__file__).parent / "oracles" / "first_order.npz"
SMALL = Problem(problem.START, problem.CURVATURE, problem.MINIMUM, problem.NOISE)
pytestmark = pytest.mark.usefixtures("x64")


class Case(NamedTuple):
    """Ours for a frozen trajectory, and its problem."""

    make: Callable[[], Any]
    problem: Problem = SMALL
    is_evaluated: bool = False


def cosine(peak: float) -> Any:
    """The rate that falls to zero in the frozen runs."""
    return mx.schedules.CosineDecay(peak, STEPS)


def decayed_after(direction: Any, rate: Any, decay: float) -> Any:
    """A step, after which the parameters decay, with the rate."""
    return mx.Chain(
        direction,
        mx.ScaleByLearningRate(rate),
        mx.ScaleBySchedule(1 - decay * rate),
        mx.Scheduled(mx.AddDecayedWeights(-decay * rate)),
    )


ALL: dict[str, Any] = {"b1": 0.8, "b2": 0.95, "eps": 1e-3}
GROUPS: dict[str, dict[str, Case]] = {
    "LaProp": {
        "LaProp/default": Case(lambda: mx.LaProp(0.02)),
        "LaProp/all": Case(lambda: mx.LaProp(0.1, **ALL, weight_decay=0.01, amsgrad=True)),
        "LaProp/decay": Case(lambda: mx.LaProp(0.1, **ALL, weight_decay=0.01)),
        "LaProp/centered": Case(lambda: mx.LaProp(0.02, centered=True)),
        "LaProp/centered_all": Case(lambda: mx.LaProp(0.1, **ALL, weight_decay=0.01, centered=True, amsgrad=True)),
        "LaProp/scheduled": Case(lambda: mx.LaProp(cosine(0.1), **ALL, weight_decay=0.01)),
        # timm multiplies the decay by the rate.
        "LaProp/timm": Case(lambda: decayed_after(mx.ScaleByLaProp(cosine(0.1), **ALL), cosine(0.1), 0.3)),
    },
}


def trajectory(case: Case, transform: Any) -> Any:
    """The parameters after each step."""

    def body(carry: Any, noise: Any) -> Any:
        params, state = carry
        grads = {n: case.problem.gradient(n, w, noise[n]) for n, w in params.items()}
        updates, state = transform.update(grads, state, params)
        params = jtu.tree_map(jnp.add, params, updates)
        return (params, state), transform.eval_params(state, params) if case.is_evaluated else params

    start = jtu.tree_map(jnp.asarray, case.problem.start)
    return jax.lax.scan(body, (start, transform.init(start)), case.problem.noise)[1]


@functools.cache
def frozen() -> dict[str, Any]:
    with np.load(FROZEN) as data:
        return dict(data)


def distances(cases: dict[str, Case]) -> dict[str, float]:
    """The largest distances from the frozen trajectories, as fractions of the largest entry of the array."""
    transforms = {name: case.make() for name, case in cases.items()}
    ours = jax.jit(lambda ts: {name: trajectory(case, ts[name]) for name, case in cases.items()})(transforms)
    found = {}
    for name, trajectories in ours.items():
        theirs = {n: frozen()[f"{name}/{n}"] for n in trajectories}
        each = [np.max(np.abs(points - theirs[n])) / np.max(np.abs(theirs[n])) for n, points in trajectories.items()]
        found[name] = float(np.max(each))
    return found


@pytest.mark.parametrize("group", GROUPS)
def test_as_in_the_released_code(group: str):
    found = distances(GROUPS[group])
    assert {name: distance for name, distance in found.items() if not distance <= 1e-12} == {}


def test_no_setting_is_left_out():
    """Every setting of a compared algorithm is compared, and the algorithm has a row in the ledger."""
    compared = {name for cases in GROUPS.values() for name in cases}
    algorithms = {name.partition("/")[0] for name in compared}
    assert compared == {key.rpartition("/")[0] for key in frozen() if key.partition("/")[0] in algorithms}
    assert algorithms == {name for row in FIRST_ORDER for name in row.names.split(", ")}
