"""`jax.lax.cond` under `jax.vmap`, and `cond` and loops inside `jax.shard_map`.

`jax.vmap` turns a `jax.lax.cond` whose predicate is batched into a selection: both branches are computed in every step.
The counts of an ensemble or a sweep are batched, so each step would compute all that is meant for one step in a
hundred. `cond` asks whether any entry of the batch needs the first branch, and selects within it.

Inside `jax.shard_map`, the type of an array names the mesh axes over which it varies. Both branches of a `cond` must
vary over the same axes, and so must the carry of a loop before and after a round. Zeros made in one branch vary over
none, which must not be an error: `cond` and `varying_like` declare such results as varying too. Outside of a
`shard_map` they do nothing and cost nothing.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jax.custom_batching import custom_vmap
from jax.sharding import AxisType
from jaxtyping import Array, Bool, PyTree

from .placement import typed_like

T = TypeVar("T")


def cond(is_true: Bool[Array, ""], yes: Callable[[], T], no: Callable[[], T]) -> T:
    """`jax.lax.cond` that stays one under `jax.vmap`, for branches that may vary over different axes of a `shard_map`.

    In a batch, the first branch is computed if it is true for any entry, and both are then: the first is to be the one
    that is rare, or costs more. On explicit axes of a mesh, its results get the shardings of those of the second.
    """
    is_any, is_own = _of_batch(is_true)

    def chosen() -> T:
        new, old = yes(), no()
        new = jtu.tree_map(typed_like, new, old) if _is_explicit(is_true) else new
        # Without a batch, `is_own` is a constant, and XLA computes `yes` alone.
        return jtu.tree_map(lambda x, y: x if x is y else jax.lax.select_n(is_own, y, x), new, old)

    if not _is_manual():
        return jax.lax.cond(is_any, chosen, no)
    # Only the types of the results are needed, and `eval_shape` computes nothing.
    of_chosen, of_no = jax.eval_shape(chosen), jax.eval_shape(no)
    return jax.lax.cond(is_any, lambda: varying_like(of_no, chosen()), lambda: varying_like(of_chosen, no()))


@custom_vmap
def _of_batch(is_true: Array) -> tuple[Array, Array]:
    """Whether it is true anywhere in the batch, and where; without a batch, what is given, and true."""
    return is_true, jnp.ones_like(is_true)


@_of_batch.def_vmap
def _of_batch_within(
    size: int, is_batched: list[bool], is_true: Array
) -> tuple[tuple[Array, Array], tuple[bool, bool]]:
    del size, is_batched
    is_any, _ = _of_batch(jnp.any(is_true, axis=0))
    return (is_any, is_true), (False, True)


def carried(body: Callable[[T], T], start: T) -> T:
    """The start of a loop, varying over all axes over which the carry does after some rounds of `body`."""
    if not _is_manual():
        return start
    while True:  # each time more axes, of which there are few
        wider = varying_like(jax.eval_shape(body, start), start)
        if _axes(wider) == _axes(start):
            return start
        start = wider


def varying_like(like: PyTree, tree: T) -> T:
    """The tree, with each array varying at least over the axes over which that of `like` does."""
    return jtu.tree_map(lambda x, of: _varying(x, _axes_of(of) - _axes_of(x)), tree, like)


def _is_manual() -> bool:
    return bool(jax.sharding.get_abstract_mesh().manual_axes)


def _is_explicit(x: Any) -> bool:
    """Whether there may be arrays on explicit axes, as far as the mesh in use and the type of an array tell."""
    mesh = jax.sharding.get_abstract_mesh()
    mesh = jax.typeof(x).sharding.mesh if mesh.empty else mesh
    return AxisType.Explicit in mesh.axis_types and not _is_manual()


def _axes_of(x: Any) -> frozenset[str]:
    kind: Any = jax.typeof(x)
    return kind.manual_axis_type.varying if hasattr(kind, "manual_axis_type") else kind.vma  # in JAX 0.7 to 0.9


def _axes(tree: PyTree) -> list[frozenset[str]]:
    return [_axes_of(x) for x in jtu.tree_leaves(tree)]


def _varying(x: Any, axes: frozenset[str]) -> Any:
    return jax.lax.pcast(x, tuple(sorted(axes)), to="varying") if axes else x
