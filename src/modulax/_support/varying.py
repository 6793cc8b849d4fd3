"""`jax.lax.cond` and loops inside `jax.shard_map`, where the type of an array names the mesh axes over which it varies.

Both branches of a `cond` must vary over the same axes, and so must the carry of a loop before and after a round. Zeros
made in one branch vary over none, which must not be an error: `cond` and `varying_like` declare such results as varying
too. Outside of a `shard_map` they do nothing and cost nothing.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.tree_util as jtu
from jax.sharding import AxisType
from jaxtyping import Array, Bool, PyTree

from .placement import typed_like

T = TypeVar("T")


def cond(is_true: Bool[Array, ""], yes: Callable[[], T], no: Callable[[], T]) -> T:
    """`jax.lax.cond` for branches whose results may vary over different axes of a `shard_map`.

    On explicit axes of a mesh, results of the first branch get the shardings of those of the second.
    """
    if _is_explicit(is_true):
        like = jax.eval_shape(no)
        return jax.lax.cond(is_true, lambda: jtu.tree_map(typed_like, yes(), like), no)
    if not _is_manual():
        return jax.lax.cond(is_true, yes, no)
    # Only the types of the results are needed, and `eval_shape` computes nothing.
    of_yes, of_no = jax.eval_shape(yes), jax.eval_shape(no)
    return jax.lax.cond(is_true, lambda: varying_like(of_no, yes()), lambda: varying_like(of_yes, no()))


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
