"""What all containers of one transform have in common, and how extra arguments reach a part of the parameters."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self

import equinox as eqx
import jax.tree_util as jtu
from jaxtyping import PyTree

from .._support.types import Params, State, Updates
from ..tree._align import align, paired
from ..tree._math import trainable
from .masks import merge, select
from .transform import AbstractTransform


def check_part(what: str, part: Any) -> None:
    """Refuses a part of a container that is no transform of ours, and says how it becomes one."""
    if isinstance(part, AbstractTransform):
        return
    if callable(getattr(part, "update", None)):
        remedy = "One of optax's becomes one with `from_optax(...)`."
    else:
        remedy = "A function of the updates becomes one with `Stateless(function)`."
    raise ValueError(f"{what} is no transform of modulax: {part!r}. {remedy}")


class AbstractWrapper(AbstractTransform):
    """A container of one transform: write `init` and `update`, and hand `extra` on.

    The numbers in force, and the parameters to evaluate, are asked of the transform inside.
    """

    holds: ClassVar[tuple[str, str]] = ("inner", "inner_state")
    """The field with the transform, and the field of the state with its state."""

    def __check_init__(self) -> None:
        field, _ = self.holds
        check_part(f"`{type(self).__name__}({field}=...)`", getattr(self, field))

    def at(self, state: State) -> Self:
        """This transform with every schedule replaced by its number for the next step."""
        field, field_of_state = self.holds
        return dataclasses.replace(self, **{field: getattr(self, field).at(getattr(state, field_of_state))})

    def eval_params(self, state: State, params: Params) -> Params:
        """Those of the transform inside."""
        field, field_of_state = self.holds
        inner: AbstractTransform = getattr(self.at(state), field)
        return inner.eval_params(getattr(state, field_of_state), params)


def in_dtypes_of(params: Params, tree: PyTree, owner: str) -> Params:
    """A tree from a state in the structure and the dtypes of the parameters."""
    leaves, treedef = jtu.tree_flatten(params)
    values, _ = align(tree, params, owner)
    return treedef.unflatten([x.astype(p.dtype) for x, p in zip(values, leaves, strict=True)])


# Extra arguments that are trees like the parameters, whatever they are made of, and functions of the parameters.
TREES = ("grad",)


FUNCTIONS = ("value_fn", "obj_fn", "grad_fn")


def extra_inside(
    extra: Mapping[str, Any],
    updates: Updates,
    down: Callable[[PyTree], PyTree],
    up: Callable[[PyTree], PyTree],
) -> dict[str, Any]:
    """The extra arguments as a transform needs them that sees the parameters in another form.

    Trees of the updates' structure and shapes are brought into that form too, whatever they are called.

    Args:
        extra: the extra arguments as they were given.
        updates: the updates as they were given.
        down: maps a tree like the parameters to the form inside.
        up: maps parameters in the form inside to those that a caller's function takes.
    """

    def of_inner(function: Callable[..., Any], is_gradient: bool) -> Callable[..., Any]:
        @functools.wraps(function, updated=())
        def call(params: Params, *args: Any, **kwargs: Any) -> Any:
            out = function(up(params), *args, **kwargs)
            return down(out) if is_gradient else out

        return call

    seen = dict(extra)
    for name, value in extra.items():
        if value is not None and (name in TREES or _is_like(value, updates)):
            seen[name] = down(value)
    for name in FUNCTIONS:
        if seen.get(name) is not None:
            seen[name] = of_inner(seen[name], name == "grad_fn")
    return seen


def _is_like(tree: PyTree, updates: Updates) -> bool:
    """Whether it is a tree, no single array, of floating or complex arrays of the shapes of the updates."""
    leaves, treedef = jtu.tree_flatten(updates)
    return (
        not jtu.treedef_is_leaf(treedef)
        and jtu.tree_structure(tree) == treedef
        and all(
            eqx.is_inexact_array(x) and x.shape == u.shape for x, u in zip(jtu.tree_leaves(tree), leaves, strict=True)
        )
    )


def extra_for(
    extra: Mapping[str, Any], chosen: Sequence[bool], updates: Updates, params: Params | None, owner: str
) -> dict[str, Any]:
    """The extra arguments for a transform that sees the chosen leaves alone; the others are held as they are."""

    def down(tree: PyTree) -> PyTree:
        return select(paired(trainable(tree), updates, owner), chosen)

    def up(part: PyTree) -> PyTree:
        return part if params is None else merge(params, part, chosen)

    return extra_inside(extra, updates, down, up)
