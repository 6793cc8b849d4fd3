"""`jax.lax.cond` under `jax.vmap`, and `cond` and loops inside `jax.shard_map`.

`jax.vmap` turns a `jax.lax.cond` whose predicate is batched into a selection: both branches are computed in every step.
The counts of an ensemble or a sweep are batched, so each step would compute all that is meant for one step in a
hundred. `cond` asks whether any entry of the batch needs the first branch, and selects within it.

Inside `jax.shard_map`, the type of an array names the mesh axes over which it varies. Both branches of a `cond` must
vary over the same axes, and so must the carry of a loop before and after a round. Zeros made in one branch vary over
none, which must not be an error: `cond` and `varying_like` declare such results as varying too. Outside of a
`shard_map` they do nothing and cost nothing.
"""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jax.custom_batching import custom_vmap
from jax.sharding import AxisType
from jaxtyping import Array, ArrayLike, PyTree

from .placement import typed_like

T = TypeVar("T")


def cond(is_true: ArrayLike, yes: Callable[[], T], no: Callable[[], T]) -> T:
    """Compute one of two branches, and in a batch the first one only if an entry needs it.

    It is `jax.lax.cond(is_true, yes, no)`, except under `jax.vmap`. There, the counts of an ensemble or a sweep are
    batched, and JAX computes both branches in every step. `cond` computes `yes` in the steps in which `is_true` holds
    for any entry of the batch. So `yes` is to be the branch that is rare, or costs more.

    The branches may vary over different axes of a `jax.shard_map`, and on explicit axes of a mesh the results of `yes`
    get the shardings of those of `no`.

    Args:
        is_true: whether to compute `yes`.
        yes: function without arguments.
        no: function without arguments, whose result has the structure, shapes and dtypes of that of `yes`.
    """
    is_any, is_own = _of_batch(jnp.asarray(is_true))

    @functools.wraps(yes)  # which JAX names in its messages
    def chosen() -> T:
        new, old = yes(), no()
        if jtu.tree_structure(new) != jtu.tree_structure(old):
            return new  # JAX says what differs
        new = jtu.tree_map(typed_like, new, old) if _is_explicit(is_true) else new
        # Without a batch, `is_own` is a constant, and XLA computes `yes` alone.
        return jtu.tree_map(functools.partial(_selected, is_own), new, old)

    if not _is_manual():
        return jax.lax.cond(is_any, chosen, no)
    # Only the types of the results are needed, and `eval_shape` computes nothing.
    of_chosen, of_no = jax.eval_shape(chosen), jax.eval_shape(no)
    return jax.lax.cond(is_any, lambda: varying_like(of_no, chosen()), lambda: varying_like(of_chosen, no()))


def _selected(is_first: ArrayLike, x: Any, y: Any) -> Any:
    """One of two values that branches may return: of one shape, and of one dtype if no number of Python is among them.

    Of others, the first one, so that JAX says what differs.
    """
    of_x, of_y = jax.typeof(x), jax.typeof(y)
    if x is y or of_x.shape != of_y.shape:
        return x
    if of_x.dtype == of_y.dtype:
        return jax.lax.select_n(is_first, y, x)
    return jnp.where(is_first, x, y) if of_x.weak_type or of_y.weak_type else x


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
