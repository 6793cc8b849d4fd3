"""`jax.lax.cond` and loops inside `jax.shard_map`, where the type of an array names the mesh axes over which it varies.

Both branches of a `cond` must vary over the same axes, and so must the carry of a loop before and after a round. Zeros
made in one branch vary over none, which must not be an error: `cond` and `varying_like` declare such results as varying
too. Outside of a `shard_map` they do nothing and cost nothing.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.tree_util as jtu
from jax.sharding import AxisType
from jaxtyping import Array, Bool, Int, PyTree

from .placement import typed_like

T = TypeVar("T")


def cond(is_true: Bool[Array, ""], yes: Callable[[], T], no: Callable[[], T]) -> T:
    """`jax.lax.cond` for branches whose results may vary over different axes of a `shard_map`.

    On explicit axes of a mesh, results of the first branch get the shardings of those of the second.
    """
    return jax.lax.cond(is_true, *_of_one_type(is_true, (yes, no)))


def switch(index: Int[Array, ""], branches: Sequence[Callable[[], T]]) -> T:
    """`jax.lax.switch`, in the same way; on explicit axes, results get the shardings of those of the last branch."""
    return jax.lax.switch(index, _of_one_type(index, branches))


def _of_one_type(index: Array, branches: Sequence[Callable[[], T]]) -> Sequence[Callable[[], T]]:
    *others, last = branches
    if _is_explicit(index):
        shapes = jax.eval_shape(last)
        return [*(_then(branch, lambda x: jtu.tree_map(typed_like, x, shapes)) for branch in others), last]
    if not _is_manual():
        return branches
    # Only the types of the results are needed, and `eval_shape` computes nothing.
    shapes = [jax.eval_shape(branch) for branch in branches]
    return [_then(branch, lambda x: functools.reduce(_varying_also_like, shapes, x)) for branch in branches]


def _varying_also_like(tree: T, like: PyTree) -> T:
    return varying_like(like, tree)


def _then(branch: Callable[[], T], function: Callable[[T], T]) -> Callable[[], T]:
    return lambda: function(branch())


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
