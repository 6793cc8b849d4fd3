"""Optimizers against the trajectories of released code that are frozen in `tests/oracles/first_order.npz`.

Those that store few numbers in place of a second moment, or estimate the curvature.
"""

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import pytest

import modulax as mx
from modulax._rules import apollo
from modulax._transforms import hessian_diagonal

from .oracles.ledger import CURVATURE
from .oracles.problem import CONVOLUTION, LAYERS, MATRICES, STEPS, Problem, coupled_loss
from .released import Case, Inputs, assert_complete, assert_near, distances_of, frozen, gradients, trajectory

pytestmark = pytest.mark.usefixtures("x64")


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


def with_hessian(problem: Problem, params: Any, now: Any) -> Inputs:
    """Gradients of a loss whose Hessian is not diagonal."""

    def loss(w: Any) -> Any:
        return coupled_loss(problem, w, now["noise"])

    return jax.grad(loss)(params), {"obj_fn": loss}


def with_sampled(problem: Problem, params: Any, now: Any) -> Inputs:
    """An objective whose gradient is the one that was sampled."""
    return gradients(problem, params, now), {"obj_fn": lambda w: sum(jnp.vdot(now["sampled"][n], w[n]) for n in w)}


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


# Whose projections are drawn again every nine steps.
REFRESHED = [f"Apollo/{name}" for name in ("all", "front", "unlimited", "uncorrected", "tensor")] + ["ApolloMini/all"]


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
        "Apollo/all": Case(some_apollo, MATRICES),
        "Apollo/front": Case(lambda: some_apollo(scale_front=True), MATRICES),
        "Apollo/unlimited": Case(lambda: some_apollo(2, max_growth=None), MATRICES),
        "Apollo/uncorrected": Case(lambda: some_apollo(2, correct_bias=False), MATRICES),
        "Apollo/tensor": Case(lambda: some_apollo(2, scale_type="tensor"), MATRICES),
        "Apollo/svd": Case(lambda: some_apollo(2, 200, 1.0, method="svd"), MATRICES),
        "ApolloMini/default": Case(lambda: mx.ApolloMini(0.01), MATRICES),
        "ApolloMini/all": Case(lambda: mx.ApolloMini(0.1, 9, 4.0, **MORE, scale_front=True), MATRICES),
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


@contextlib.contextmanager
def drawn(gap: int, now: Any) -> Iterator[None]:
    """The random numbers of a step, if projections are drawn every so many steps."""
    signs = partial(signs_of, jnp.asarray(frozen("first_order")["draws/AdaHessian"])[now["step"]])
    with (
        mock.patch.object(hessian_diagonal, "random_signs", signs),
        mock.patch.object(apollo, "standard_normal", partial(projections_of, now["step"] // gap)),
    ):
        yield


def points_of(name: str, case: Case, transform: Any) -> Any:
    return trajectory(case, transform, given=partial(drawn, 9 if name in REFRESHED else STEPS))


@pytest.mark.parametrize("group", GROUPS)
def test_as_in_the_released_code(group: str):
    assert_near(distances_of("first_order", GROUPS[group], points_of))


def test_no_setting_is_left_out():
    assert_complete("first_order", GROUPS, CURVATURE)
