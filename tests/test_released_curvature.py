"""Optimizers against the trajectories of released code that are frozen in `tests/oracles/first_order.npz`.

Those that store few numbers in place of a second moment, or estimate the curvature.
"""

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest

import modulax as mx
from modulax._transforms import apollo, hessian_diagonal

from .oracles.first_order_problem import CONVOLUTION, LAYERS, MATRICES, STEPS, Problem, coupled_loss
from .oracles.ledger import CURVATURE
from .oracles.problem import SAMPLED
from .released import algorithms_of, distances, frozen, settings_of
from .test_released_first_order import SMALL

pytestmark = pytest.mark.usefixtures("x64")


class Case(NamedTuple):
    """Ours for a frozen trajectory, the problem, what makes gradients and extra arguments, and the steps per draw."""

    make: Callable[[], Any]
    problem: Problem = SMALL
    inputs: Callable[[Problem, Any, Any], tuple[Any, dict[str, Any]]] = lambda problem, params, now: (
        {n: problem.gradient(n, w, now["noise"][n]) for n, w in params.items()},
        {},
    )
    gap: int = STEPS


def amos(rate: Any, *numbers: Any, **more: Any) -> Any:
    return mx.Amos(rate, {"vector": 0.5, "*": 1.0}, *numbers, **more)


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


# --- Projections ------------------------------------------------------------------------------------


def projections_of(refresh: Any, raw: Any, like: Sequence[Any]) -> Any:
    """The numbers that the released code was given in place of drawn ones, by array in the order of JAX."""
    tables = [jnp.asarray(frozen("first_order")[f"draws/Apollo/{n}"])[refresh] for n in ("square", "tall", "wide")]
    return raw, [table[:, : x.shape[1]] for table, x in zip(tables, like, strict=True)]


MORE: dict[str, Any] = {"b1": 0.8, "b2": 0.95, "eps": 1e-3, "weight_decay": 0.1}


def some_apollo(rank: int = 3, gap: int = 9, scale: float = 4.0, **more: Any) -> Any:
    return mx.Apollo(0.1, rank, gap, scale, **MORE, **more)


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
    "Amos": {
        "Amos/default": Case(lambda: amos(0.1)),
        "Amos/all": Case(lambda: amos(0.2, 0.9, 0.8, 1.0, 1e-2, 0.5, 0.4, 0.1, per_output=True)),
        "Amos/reduced": Case(lambda: amos(0.1, per_output=True)),
        # Theirs counts from 1.
        "Amos/scheduled": Case(lambda: amos(lambda count: 0.5 / (count.astype(float) + 5))),
    },
    "Apollo": {
        "Apollo/default": Case(lambda: mx.Apollo(0.05, 2), MATRICES),
        "Apollo/all": Case(some_apollo, MATRICES, gap=9),
        "Apollo/front": Case(lambda: some_apollo(scale_front=True), MATRICES, gap=9),
        "Apollo/unlimited": Case(lambda: some_apollo(2, max_growth=None), MATRICES, gap=9),
        "Apollo/uncorrected": Case(lambda: some_apollo(2, correct_bias=False), MATRICES, gap=9),
        "Apollo/tensor": Case(lambda: some_apollo(2, scale_type="tensor"), MATRICES, gap=9),
        "Apollo/svd": Case(lambda: some_apollo(2, 200, 1.0, method="svd"), MATRICES),
        "ApolloMini/default": Case(lambda: mx.ApolloMini(0.01), MATRICES),
        "ApolloMini/all": Case(lambda: mx.ApolloMini(0.1, 9, 4.0, **MORE, scale_front=True), MATRICES, gap=9),
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
        signs, projections = partial(signs_of, now["signs"]), partial(projections_of, now["step"] // case.gap)
        with (
            mock.patch.object(hessian_diagonal, "random_signs", signs),
            mock.patch.object(apollo, "standard_normal", projections),
        ):
            updates, state = transform.update(grads, state, params, **extra)
        params = jtu.tree_map(jnp.add, params, updates)
        return (params, state), params

    start = jtu.tree_map(jnp.asarray, case.problem.start)
    steps = {
        "step": np.arange(STEPS),
        "noise": case.problem.noise,
        "sampled": SAMPLED,
        "signs": frozen("first_order")["draws/AdaHessian"],
    }
    return jax.lax.scan(body, (start, transform.init(start)), steps)[1]


@pytest.mark.parametrize("group", GROUPS)
def test_as_in_the_released_code(group: str):
    cases = GROUPS[group]
    transforms = {name: case.make() for name, case in cases.items()}
    ours = jax.jit(lambda ts: {name: trajectory(case, ts[name]) for name, case in cases.items()})(transforms)
    found = distances("first_order", ours)
    assert {name: distance for name, distance in found.items() if not distance <= 1e-12} == {}


def test_no_setting_is_left_out():
    """Every setting of a compared algorithm is compared, and the algorithm has a row in the ledger."""
    compared = {name for cases in GROUPS.values() for name in cases}
    algorithms = algorithms_of(compared)
    assert compared == settings_of("first_order", algorithms)
    assert algorithms == {name for row in CURVATURE for name in row.names.split(", ")}
