"""How a state of each transform is laid out in optax: `to_optax` and `from_optax` convert one into the other.

A rule has one NamedTuple, whose fields `optax_fields` gives. A chain is a tuple of the states of its parts. A named
optimizer has the state of its chain; its step count is that of its scheduled learning rate, where optax keeps it too.
`_rule_layouts.py`, `_container_layouts.py` and `_optimizer_layouts.py` have the layouts of what is another thing in
optax.

Both functions walk the transform, and need no parameters, except that leaves which are masked out are None here, and
`MaskedNode()` in optax: a `Form` holds a tree like the parameters, in which those are marked.
"""

import dataclasses
import typing
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import PyTree

from .._protocol.container import AbstractContainer, part_fields
from .._protocol.leafwise import AbstractLeafwise
from .._protocol.schedule import has_schedule
from .._protocol.transform import AbstractTransform, EmptyState as OurEmptyState, Part
from .._support.arithmetic import no_steps
from .._support.keys import is_typed_key
from .._support.module import AbstractState, kind_of
from ._states import TWINS, EmptyState, MaskedNode, class_of, is_state

Theirs = Any
"""A state in the form of optax."""


def is_masked(x: Any) -> bool:
    return type(x).__name__ == "MaskedNode"


def bare(tree: PyTree) -> PyTree:
    """A tree with None in the place of what is masked out."""
    return jtu.tree_map(lambda x: None if is_masked(x) else x, tree, is_leaf=is_masked)


class Form(NamedTuple):
    """How trees like the parameters differ between the two states.

    Args:
        like: a tree like the parameters of the transform, with `MaskedNode()` where optax has it.
        out: function that converts a tree here into one of optax.
        back: its inverse.
    """

    like: PyTree
    out: Callable[[PyTree], PyTree] = lambda tree: tree
    back: Callable[[PyTree], PyTree] = bare

    @classmethod
    def of(cls, like: PyTree) -> "Form":
        """The form of trees like this one."""
        return cls(like)

    def chosen(self, receives: Callable[[PyTree], Sequence[bool]]) -> "Form":
        """The form of a part that receives some of the leaves only."""
        leaves, treedef = jtu.tree_flatten(self.like)
        mask = receives(bare(self.like))
        like = treedef.unflatten([x if is_in else MaskedNode() for x, is_in in zip(leaves, mask, strict=True)])

        def out(tree: PyTree) -> PyTree:
            return tree if tree is None else _marked(like, self.out(tree))

        return Form(like, out, self.back)


def received(part: Part) -> Callable[[PyTree], Sequence[bool]]:
    """The function that says which leaves a part of a partition receives."""
    assert part.receives is not None
    return part.receives


def _marked(like: PyTree, tree: PyTree) -> PyTree:
    """A tree like another one, with `MaskedNode()` in the places in which that has it."""
    try:
        return jtu.tree_map(lambda x, y: x if is_masked(x) else y, like, tree, is_leaf=is_masked)
    except ValueError:  # a tree of the transform's own kind
        return tree


_LAYOUTS: dict[type, "Layout"] = {}
L = TypeVar("L", bound="type[Layout]")


def lays_out(*classes: type) -> Callable[[L], L]:
    """Make a class the layout of the states of these transforms and of their subclasses.

    Args:
        classes: classes of transforms.
    """

    def register(cls: L) -> L:
        _LAYOUTS.update(dict.fromkeys(classes, cls()))
        return cls

    return register


def layout(transform: AbstractTransform) -> "Layout":
    """The layout of the states of a transform."""
    return next(_LAYOUTS[cls] for cls in type(transform).__mro__ if cls in _LAYOUTS)


def to_optax(transform: AbstractTransform, state: Any, form: Form) -> Theirs:
    """Convert a state of a transform to that of optax.

    Args:
        transform: the transform.
        state: its state.
        form: how trees like the parameters differ.
    """
    return layout(transform).out(transform, state, form)


def from_optax(transform: AbstractTransform, theirs: Theirs, form: Form) -> Any:
    """Convert a state of optax to that of a transform here: the inverse of `to_optax`.

    Raises:
        ValueError: if it is not the state of this transform.
    """
    return theirs if isinstance(theirs, AbstractState) else layout(transform).back(transform, theirs, form)


@lays_out(AbstractTransform)
class Layout:
    """The layout of a rule: one NamedTuple, or none."""

    def out(self, t: Any, state: Any, form: Form) -> Theirs:
        """Convert a state of a transform to that of optax."""
        if isinstance(state, OurEmptyState):
            return EmptyState()
        is_counted = t is not None and (getattr(t, "bias_correction", False) or has_schedules(t))
        cls = class_of(state, counted=is_counted) if isinstance(state, AbstractState) else None
        if cls is None:  # of a transform that optax does not have
            return state
        values = {}
        for name, own in TWINS[cls.__name__].fields.items():
            values[name] = self.field(t, state, name, own, form)
        return cls(**values)

    def field(self, t: Any, state: Any, name: str, own: str, form: Form) -> Any:
        """The value of a field of optax's state."""
        if name == "is_initial_step":
            return state.count == 0
        if name == "rng_key":
            return jax.random.wrap_key_data(state.rng_key)
        fields = {field.name: field for field in dataclasses.fields(state)}
        if own not in fields:  # a hyperparameter
            now = t.at(state) if has_schedules(t) else t
            number = jnp.asarray(getattr(now, own))
            return number[0] if own == "ns_coeffs" and len(number) == 1 else number  # one step's coefficients for all
        value = getattr(state, own)
        if kind_of(fields[own]) == "params":
            return None if value is None else form.out(value)
        return _shared_out(value, form)

    def back(self, t: Any, theirs: Theirs, form: Form) -> Any:
        """Convert a state of optax to that of a transform."""
        if _is_empty(theirs):
            return OurEmptyState()
        if not is_state(theirs):
            raise misfit(t, theirs)
        ours = _state_class(t) or TWINS[type(theirs).__name__].ours
        values = {}
        named = dict(zip(type(theirs)._fields, theirs, strict=True))
        names = {own: name for name, own in TWINS[type(theirs).__name__].fields.items()}
        for field in dataclasses.fields(ours):
            name = names.get(field.name)
            if "is_initial_step" in named and field.name == "count":
                values["count"] = 1 - jnp.asarray(named["is_initial_step"]).astype(jnp.int32)
            elif name is None or (name in ("skipped",) and named.get(name) is None):
                values[field.name] = no_steps()
            else:
                value = named.get(name)
                is_tree = kind_of(field) == "params"
                values[field.name] = form.back(value) if is_tree else _shared_back(value, form)
        return ours(**values)


def has_schedules(t: AbstractTransform) -> bool:
    return any(has_schedule(getattr(t, field.name)) for field in dataclasses.fields(t) if "part" not in field.metadata)


def _is_empty(theirs: Theirs) -> bool:
    return theirs == () or isinstance(theirs, OurEmptyState)


def misfit(t: AbstractTransform, theirs: Theirs) -> ValueError:
    return ValueError(
        f"`{type(t).__name__}.update` was given {_described(theirs)} as its state, which must come from its "
        f"`init(params)`."
    )


def _described(x: Any) -> str:
    if isinstance(x, tuple) and not hasattr(x, "_fields"):
        return f"a tuple of {len(x)}"
    return "None" if x is None else f"a `{type(x).__name__}`"


def _shared_out(value: Any, form: Form) -> Any:
    """What is no tree like the parameters: a number, or the state of a measure or of a search."""
    if isinstance(value, OurEmptyState):
        return EmptyState()
    if isinstance(value, AbstractState) and class_of(value) is not None:
        return Layout().out(None, value, form)
    return tuple(_shared_out(x, form) for x in value) if type(value) is tuple else value


def _shared_back(value: Any, form: Form) -> Any:
    if type(value).__name__ == "EmptyState":
        return OurEmptyState()
    if is_state(value):
        return Layout().back(None, value, form)
    if type(value) is tuple:
        return tuple(_shared_back(x, form) for x in value)
    return jax.random.key_data(value) if is_typed_key(value) else value


def _state_class(t: Any) -> type | None:
    """The class of the states of a rule, of those for which several have one class in optax."""
    for base in type(t).__mro__:
        for generic in vars(base).get("__orig_bases__", ()):
            if typing.get_origin(generic) is AbstractLeafwise:
                (found,) = typing.get_args(generic)
                return found if isinstance(found, type) and found is not OurEmptyState else None
    return None


@lays_out(AbstractContainer)
class ContainerLayout(Layout):
    """The layout of a container: one NamedTuple with the states of its parts."""

    def inner_form(self, t: Any, form: Form) -> Form:
        """The form of the parts of a container."""
        del t
        return form

    def _parts(self, t: Any) -> dict[str, AbstractTransform]:
        found = ((field.metadata["part"], getattr(t, field.name)) for field in part_fields(t))
        return {name: x for name, x in found if isinstance(name, str) and isinstance(x, AbstractTransform)}

    def field(self, t: Any, state: Any, name: str, own: str, form: Form) -> Any:
        """The value of a field of optax's state: the state of a part, or anything else."""
        if own in (parts := self._parts(t)):
            return to_optax(parts[own], getattr(state, own), self.inner_form(t, form))
        return super().field(t, state, name, own, form)

    def back(self, t: Any, theirs: Theirs, form: Form) -> Any:
        """Convert the states of the parts, and everything else."""
        parts = self._parts(t)
        if not is_state(theirs):
            return super().back(t, theirs, form)
        twin, values = TWINS[type(theirs).__name__], {}
        for name, value in zip(type(theirs)._fields, theirs, strict=True):
            own = twin.fields.get(name)
            if own in parts:
                values[own] = from_optax(parts[own], value, self.inner_form(t, form))
        kinds = {field.name: kind_of(field) for field in dataclasses.fields(twin.ours)}
        values |= {name: None for name, kind in kinds.items() if kind == "params" and name not in twin.fields.values()}
        for name, own in twin.fields.items():
            if own not in values and own in kinds:
                value = getattr(theirs, name, None)
                values[own] = form.back(value) if kinds[own] == "params" else _shared_back(value, form)
        return twin.ours(**values)
