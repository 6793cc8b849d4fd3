"""Optimizers against the trajectories of released code that are frozen in `tests/oracles/first_order.npz`.

Those that store few numbers in place of a second moment, or estimate the curvature.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest

import modulax as mx
from modulax._transforms import hessian_diagonal

from .oracles.first_order_problem import CONVOLUTION, LAYERS, Problem, coupled_loss
from .oracles.ledger import CURVATURE
from .oracles.problem import SAMPLED
from .test_released_first_order import SMALL, frozen

pytestmark = pytest.mark.usefixtures("x64")


class Case(NamedTuple):
    """Ours for a frozen trajectory, the problem, and what makes the gradients and the extra arguments of a step."""

    make: Callable[[], Any]
    problem: Problem = SMALL
    inputs: Callable[[Problem, Any, Any], tuple[Any, dict[str, Any]]] = lambda problem, params, now: (
        {n: problem.gradient(n, w, now["noise"][n]) for n, w in params.items()},
        {},
    )


def came(**more: Any) -> Any:
    return mx.CAME(0.05, 0.8, 0.95, 0.9, 1e-3, 1e-2, 0.5, weight_decay=0.1, **more)


def adam_mini(rate: float, query: int, key: int, **more: Any) -> Any:
    """Adam-mini with the roles of the parameters whose names its released code knows, for numbers of heads."""
    given = {"embed": mx.Embedding(), "wq": mx.Attention("query", heads=query), "wk": mx.Attention("key", heads=key),
             "wv": mx.Attention("value"), "wo": mx.Attention("out"), "other": mx.Other(), "output": mx.Head(),
             "mlp_bias": mx.Bias(), "norm": mx.Gain()}  # fmt: skip
    return mx.AdamMini(rate, **more, mask=mx.by_path({"mlp_bias": False, "norm": False, "*": True}), roles=given)


# --- Estimates of the curvature ---------------------------------------------------------------------


def with_hessian(problem: Problem, params: Any, now: Any) -> Any:
    """Gradients of a loss whose Hessian is not diagonal."""

    def loss(w: Any) -> Any:
        return coupled_loss(problem, w, now["noise"])

    return jax.grad(loss)(params), {"obj_fn": loss}


def with_sampled(problem: Problem, params: Any, now: Any) -> Any:
    """An objective whose gradient is the one that was sampled."""
    grads = {n: problem.gradient(n, w, now["noise"][n]) for n, w in params.items()}
    return grads, {"obj_fn": lambda w: sum(jnp.vdot(now["sampled"][n], w[n]) for n in w)}


def signs_of(table: Any, raw: Any, leaves: Sequence[Any]) -> Any:
    """The signs that the released code was given, in place of drawn ones."""
    ends = list(itertools.accumulate(w.size for w in leaves))
    rows = jnp.split(table[: ends[-1]], ends[:-1])
    return raw, [row.reshape(w.shape) for row, w in zip(rows, leaves, strict=True)]


class BlockMeans(mx.AbstractStatelessTransform):
    """Means of the absolute values of neighbouring entries in memory, 4 of the kernel and 3 of other arrays."""

    def apply(self, updates: Any, params: Any, **extra: Any) -> Any:
        del params, extra

        def averaged(x: Any) -> Any:
            blocks = jnp.abs(x).reshape(-1, 4 if x.ndim == 4 else 3)
            return jnp.broadcast_to(jnp.mean(blocks, axis=1, keepdims=True), blocks.shape).reshape(x.shape)

        return jtu.tree_map(averaged, updates)


def adahessian(**more: Any) -> Any:
    return mx.AdaHessian(0.1, 0.8, 0.95, 1e-2, 0.1, hessian_power=0.5, **more)


GROUPS: dict[str, dict[str, Case]] = {
    "AdaHessian": {
        "AdaHessian/default": Case(mx.AdaHessian, inputs=with_hessian),
        "AdaHessian/all": Case(adahessian, inputs=with_hessian),
        "AdaHessian/convolution": Case(
            lambda: adahessian(roles={"kernel": mx.Convolution(fan_in=(1, 2, 3), fan_out=0)}), CONVOLUTION, with_hessian
        ),
        "AdaHessian/rows": Case(lambda: adahessian(per_output=True), inputs=with_hessian),
        "AdaHessian/blocks": Case(
            lambda: adahessian(
                hessian_diagonal_fn=mx.Chain(mx.HutchinsonDiagonal(), BlockMeans()), roles={"kernel": mx.Other()}
            ),
            CONVOLUTION,
            with_hessian,
        ),
    },
    "AdamMini": {
        "AdamMini/default": Case(lambda: adam_mini(0.05, 2, 1), LAYERS),
        "AdamMini/all": Case(lambda: adam_mini(0.1, 4, 2, b1=0.8, b2=0.95, eps=1e-3, weight_decay=0.2), LAYERS),
    },
    "CAME": {
        "CAME/default": Case(lambda: mx.CAME(0.02)),
        "CAME/all": Case(came),
        "CAME/convolution": Case(came, CONVOLUTION),
    },
    "SophiaG": {
        "SophiaG/default": Case(lambda: mx.SophiaG(0.02, batch_size=2500), inputs=with_sampled),
        "SophiaG/all": Case(
            lambda: mx.SophiaG(0.05, 0.8, 0.9, 0.05, 0.3, batch_size=100, update_interval=3), inputs=with_sampled
        ),
    },
}


def trajectory(case: Case, transform: Any) -> Any:
    """The parameters after each step."""

    def body(carry: Any, now: Any) -> Any:
        params, state = carry
        grads, extra = case.inputs(case.problem, params, now)
        with mock.patch.object(hessian_diagonal, "random_signs", functools.partial(signs_of, now["signs"])):
            updates, state = transform.update(grads, state, params, **extra)
        params = jtu.tree_map(jnp.add, params, updates)
        return (params, state), params

    start = jtu.tree_map(jnp.asarray, case.problem.start)
    steps = {"noise": case.problem.noise, "sampled": SAMPLED, "signs": frozen()["draws/AdaHessian"]}
    return jax.lax.scan(body, (start, transform.init(start)), steps)[1]


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
