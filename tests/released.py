"""The trajectories of released code that are frozen in `tests/oracles`, and how far ours are from them."""

import contextlib
import functools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from .oracles.ledger import Released
from .oracles.problem import SAMPLED, SMALL, STEPS, Problem

Inputs = tuple[Any, dict[str, Any]]


def gradients(problem: Problem, params: Any, now: Any) -> Any:
    return {n: problem.gradient(n, w, now["noise"][n]) for n, w in params.items()}


def without_extra(problem: Problem, params: Any, now: Any) -> Inputs:
    return gradients(problem, params, now), {}


def with_previous(problem: Problem, params: Any, now: Any) -> Inputs:
    """Beside the gradients, those at the parameters of the step before."""
    return gradients(problem, params, now), {"previous_grad": gradients(problem, now["last"], now)}


class Case(NamedTuple):
    """Ours for a frozen trajectory.

    Attributes:
        make: the transform.
        problem: what it minimizes.
        inputs: the gradients and the extra arguments, from the problem, the parameters, and what is known of the step.
        is_evaluated: whether the evaluation parameters are compared, and not those that are trained.
        updates_per_step: how often the transform is called in each step of theirs.
    """

    make: Callable[[], Any]
    problem: Problem = SMALL
    inputs: Callable[[Problem, Any, Any], Inputs] = without_extra
    is_evaluated: bool = False
    updates_per_step: int = 1


def trajectory(
    case: Case,
    transform: Any,
    noise: Any = None,
    init: Callable[[Any], Any] | None = None,
    given: Callable[[Any], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
) -> Any:
    """The parameters after each step.

    Args:
        case: what is trained, and how.
        transform: the transform of the case, as an argument of a program.
        noise: in place of that of the problem.
        init: makes the first state; by default, that of the transform.
        given: what surrounds an update, from what is known of the step: random numbers in place of drawn ones.
    """

    def body(carry: Any, now: Any) -> Any:
        last, params, state = carry
        new, now = params, now | {"last": last}
        for _ in range(case.updates_per_step):
            grads, extra = case.inputs(case.problem, new, now)
            with given(now):
                updates, state = transform.update(grads, state, new, **extra)
            new = jtu.tree_map(jnp.add, new, updates)
        return (params, new, state), transform.eval_params(state, new) if case.is_evaluated else new

    start = jtu.tree_map(jnp.asarray, case.problem.start)
    steps = {"step": np.arange(STEPS), "sampled": SAMPLED, "noise": case.problem.noise if noise is None else noise}
    return jax.lax.scan(body, (start, start, (init or transform.init)(start)), steps)[1]


@functools.cache
def frozen(name: str) -> dict[str, Any]:
    """The arrays of `tests/oracles/NAME.npz`: trajectories by `algorithm/setting/array`, and draws."""
    with np.load(Path(__file__).parent / "oracles" / f"{name}.npz") as data:
        return dict(data)


def distances(name: str, ours: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """The largest distance of each of our trajectories, as a fraction of the largest entry of the array.

    Args:
        name: the name of the file.
        ours: the points of each array, by `algorithm/setting`.
    """
    found = {}
    for case, points in ours.items():
        theirs = {n: frozen(name)[f"{case}/{n}"] for n in points}
        each = [np.max(np.abs(points[n] - x)) / np.max(np.abs(x)) for n, x in theirs.items()]
        found[case] = float(np.max(each))
    return found


def distances_of(
    name: str, cases: Mapping[str, Case], run: Callable[[str, Case, Any], Any] = lambda _, case, t: trajectory(case, t)
) -> dict[str, float]:
    """The largest distances of some cases, in one program; `run` makes the points of a case with its transform."""
    transforms = {key: case.make() for key, case in cases.items()}
    ours = jax.jit(lambda ts: {key: run(key, case, ts[key]) for key, case in cases.items()})(transforms)
    return distances(name, ours)


def assert_near(found: Mapping[str, float], limit: float = 1e-12) -> None:
    """No distance exceeds the limit, and none is NaN."""
    assert {name: f"{distance:.2g}" for name, distance in found.items() if not distance <= limit} == {}


def assert_complete(name: str, groups: Mapping[str, Iterable[str]], rows: Iterable[Released] = ()) -> None:
    """Every frozen setting of a compared algorithm is compared; if rows of the ledger are given, they have them all."""
    compared = {case for cases in groups.values() for case in cases}
    algorithms = {case.partition("/")[0] for case in compared}
    assert compared == {key.rpartition("/")[0] for key in frozen(name) if key.partition("/")[0] in algorithms}
    if rows:
        assert algorithms == {x for row in rows for x in row.names.split(", ")}
