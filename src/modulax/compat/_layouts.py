"""How the state of a transform is laid out in optax: `to_optax` and `from_optax` convert one into the other.

A rule has one NamedTuple, whose fields `optax_fields` gives; a container one with the states of its parts. Whatever is
another thing in optax has functions of its own, in `_rule_layouts.py`, `_container_layouts.py` and
`_optimizer_layouts.py`, which `lays_out` registers.

Both directions walk the transform. They need no parameters but for their structure: leaves that are masked out are None
here, and `MaskedNode()` in optax. A `Form` holds a tree like the parameters, in which these are marked.
"""

import contextlib
import dataclasses
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import PyTree

from .. import AbstractStatelessTransform, Part
from .._plugin.arrays import is_typed_key, no_steps
from .._plugin.states import AbstractStackedState, kind_of, with_fields
from .._plugin.transforms import has_schedule, is_empty, part_fields
from ..authoring import (
    AbstractContainer,
    AbstractLeafwise,
    AbstractState,
    AbstractTransform,
    EmptyState as OurEmptyState,
)
from ._states import OTHER_COUNTS, TWINS, EmptyState, MaskedNode, class_of, is_named, is_state

Theirs = Any
"""A state in the form of optax."""


def _is_masked(x: Any) -> bool:
    return is_named(x, "MaskedNode")


def _as_given(tree: PyTree) -> PyTree:
    return tree


class Form(NamedTuple):
    """How trees like the parameters differ between the two states, and what the optimizer around a transform is.

    Attributes:
        like: a tree like the parameters of the transform, with None for leaves that are masked out.
        full: a tree like the parameters around all masks.
        marks: a tree like that one, with `MaskedNode()` where optax has it; None without a mask.
        outward: function that further converts a tree here into one of optax.
        inward: its inverse.
        owner: the name of the optimizer of which a chain is made; "" for any other chain.
        count: the step count of the optimizer, if optax keeps it in the place of the learning rate; inward, a step
            count in the chain.
        counts: whether step counts are kept that no schedule follows.
    """

    like: PyTree
    full: PyTree = None
    marks: PyTree = None
    outward: Callable[[PyTree], PyTree] = _as_given
    inward: Callable[[PyTree], PyTree] = _as_given
    owner: str = ""
    count: Any = None
    counts: bool = False

    def out(self, tree: PyTree) -> PyTree:
        """Convert a tree here into one of optax."""
        return _marked(self.marks, self.outward(tree))

    def back(self, tree: PyTree) -> PyTree:
        """Convert a tree of optax into one here."""
        if self.marks is None and any(map(_is_masked, jtu.tree_leaves(self.like, is_leaf=_is_masked))):
            return self.inward(tree)  # what is masked out was already in the caller's parameters
        return self.inward(_unmarked(self.marks, self.full, tree))

    def chosen(self, part: Part, given: PyTree = None, is_chosen: Callable[[Any], bool] = bool) -> "Form":
        """Return the form of a part of a container that receives some of the leaves only.

        Args:
            part: the part.
            given: the mask or the labels as they were given, if they are a tree, which may be a prefix.
            is_chosen: function of a leaf of this tree that says whether the part receives what is there.
        """
        if part.receives is None:
            return self
        leaves, treedef = jtu.tree_flatten(self.like)
        mask = part.receives(self.like)
        like = treedef.unflatten([x if is_in else None for x, is_in in zip(leaves, mask, strict=True)])
        full = self.like if self.marks is None else self.full
        marks = jtu.tree_map(lambda _: True, self.like) if self.marks is None else self.marks
        return self._replace(like=like, full=full, marks=_with_marks(marks, mask, given, is_chosen))


def _with_marks(marks: PyTree, mask: Sequence[bool], given: PyTree, is_chosen: Callable[[Any], bool]) -> PyTree:
    """Further marks: for the nodes of a tree as it was given, or for leaves."""
    if given is not None:
        try:
            return jtu.tree_map(lambda label, below: below if is_chosen(label) else MaskedNode(), given, marks)
        except ValueError:  # other containers, such as a dict for a FrozenDict, which are paired by name here
            pass
    treedef = jtu.tree_structure(marks)
    return treedef.unflatten([True if is_in else MaskedNode() for is_in in mask])


def _marked(marks: PyTree, tree: PyTree) -> PyTree:
    """A tree with `MaskedNode()` in the places in which the marks have it."""
    if marks is None:
        return tree
    try:
        return jtu.tree_map(lambda mark, x: mark if _is_masked(mark) else x, marks, tree, is_leaf=_is_masked)
    except ValueError:  # a tree of the transform's own kind
        return tree


def _unmarked(marks: PyTree, full: PyTree, tree: PyTree) -> PyTree:
    """A tree with None for each leaf that is masked out."""

    def unmarked(mark: Any, below: PyTree, x: PyTree) -> PyTree:
        return jtu.tree_map(lambda _: None, below) if _is_masked(mark) else x

    if marks is not None:
        with contextlib.suppress(ValueError):
            return jtu.tree_map(unmarked, marks, full, tree, is_leaf=_is_masked)
    return jtu.tree_map(lambda x: None if _is_masked(x) else x, tree, is_leaf=_is_masked)


class Layout(NamedTuple):
    """The two directions: functions of a transform, of its state on one side, and of the `Form`."""

    out: Callable[[Any, Any, Form], Theirs]
    back: Callable[[Any, Theirs, Form], Any]


_LAYOUTS: dict[type, Layout] = {}


def lays_out(classes: Sequence[type], out: Callable[..., Theirs], back: Callable[..., Any]) -> None:
    """Register the layout of the states of some transforms and of their subclasses.

    Args:
        classes: classes of transforms.
        out: see `Layout`.
        back: see `Layout`.
    """
    _LAYOUTS.update(dict.fromkeys(classes, Layout(out, back)))


def _layout(transform: AbstractTransform) -> Layout:
    return next(_LAYOUTS[cls] for cls in type(transform).__mro__ if cls in _LAYOUTS)


def to_optax(transform: AbstractTransform, state: Any, form: Form) -> Theirs:
    """Convert a state of a transform to that of optax.

    Args:
        transform: the transform.
        state: its state.
        form: how trees like the parameters differ.
    """
    return _layout(transform).out(transform, state, form)


def from_optax(transform: AbstractTransform, theirs: Theirs, form: Form) -> Any:
    """Convert a state of optax to that of a transform here: the inverse of `to_optax`.

    Args:
        transform: the transform.
        theirs: the state of optax; one of ours is returned as it is, but for what is of optax inside.
        form: how trees like the parameters differ.

    Raises:
        ValueError: if it is not the state of this transform.
    """
    back = _layout(transform).back
    is_ours = isinstance(theirs, AbstractState) and back is not container_from_optax
    return theirs if is_ours else back(transform, theirs, form)


# --- Rules ----------------------------------------------------------------------------------------------------------


def rule_to_optax(t: Any, state: Any, form: Form) -> Theirs:
    """Convert the state of a rule to the NamedTuple with its fields."""
    if is_empty(state):
        return EmptyState()
    is_counted = form.counts or (t is not None and (getattr(t, "bias_correction", False) or has_schedules(t)))
    cls = class_of(state, counted=is_counted) if isinstance(state, AbstractState) else None
    if cls is None:  # of a transform that optax does not have
        return state
    return cls(**{name: _value(t, state, name, own, form) for name, own in TWINS[cls.__name__].fields.items()})


def _value(t: Any, state: Any, name: str, own: str, form: Form) -> Any:
    """The value of a field of optax's state."""
    if name == "is_initial_step":
        return state.count == 0
    if name == "rng_key":
        return jax.random.wrap_key_data(state.rng_key)
    fields = {field.name: field for field in dataclasses.fields(state)}
    if own not in fields:  # a hyperparameter
        number = getattr(t, own)
        number = jnp.asarray(getattr(t.at(state), own) if has_schedule(number) else number)
        return number[0] if own == "ns_coeffs" and len(number) == 1 else number  # one step's coefficients for all
    return _out(fields[own], getattr(state, own), form)


def rule_from_optax(t: Any, theirs: Theirs, form: Form) -> Any:
    """Convert the NamedTuple of a rule to its state."""
    if has_no_state(theirs) or (is_named(theirs, *COUNTS) and not has_schedules(t)):
        return OurEmptyState()
    if not is_state(theirs):
        if t is not None and _is_stateless(t):  # optax returns what it is given
            return OurEmptyState()
        raise misfit(t, theirs)
    ours = _state_class(t) or TWINS[type(theirs).__name__].ours
    named = dict(zip(type(theirs)._fields, theirs, strict=True))
    fields = TWINS[type(theirs).__name__].fields
    names = {own: name for name, own in reversed(fields.items())}  # the first of several
    fields = dataclasses.fields(ours)
    return ours(**{x.name: _back(x, _given(x.name, named, names.get(x.name, ""), form), form) for x in fields})


def _given(own: str, named: Mapping[str, Any], name: str, form: Form) -> Any:
    """The value of a field in optax's state, where it may have another name."""
    value = named.get(name)
    if own == "count" and "is_initial_step" in named:
        # optax only knows whether it is 0.
        return jnp.where(named["is_initial_step"], 0, 1 if form.count is None else form.count).astype(jnp.int32)
    if own in ("count", "skipped"):  # which optax may not count, and counts with floats in MADGRAD
        return no_steps() if value is None else as_count(value)
    return value


# States that hold the step count of a schedule, which an optimizer here counts itself.
COUNTS = ("ScaleByScheduleState", "WeightDecaySchedule")


def as_count(x: Any) -> Any:
    """Return a step count as an integer; that of MADGRAD is a float in optax."""
    return x.astype(jnp.int32) if jnp.issubdtype(jnp.result_type(x), jnp.inexact) else x


def step_count_in(theirs: Theirs) -> Any:
    """The step count in a state of optax: that of a schedule, or else any other; None if there is none."""
    nodes = [x for x in _rules_in(theirs) if not is_named(x, *OTHER_COUNTS)]
    schedules = [x.count for x in nodes if is_named(x, *COUNTS)]
    counts = [getattr(x, name) for x in nodes for name in ("count", "t") if name in getattr(x, "_fields", ())]
    found = next(iter([*schedules, *counts]), None)
    return None if found is None else as_count(found)


def _rules_in(theirs: Theirs) -> Iterator[Theirs]:
    """The states in one that take every step with it."""
    if type(theirs) in (tuple, list):
        for x in theirs:
            yield from _rules_in(x)
    elif is_named(theirs, "PartitionState"):
        for x in theirs.inner_states.values():
            yield from _rules_in(x.inner_state)
    elif is_named(theirs, "ScheduleFreeState"):
        yield from _rules_in(theirs.base_optimizer_state)
    else:
        yield theirs


def has_no_state(theirs: Theirs) -> bool:
    """Whether this is the state of a transformation without one."""
    return isinstance(theirs, tuple) and not theirs


def _out(field: dataclasses.Field, value: Any, form: Form) -> Any:
    if kind_of(field) == "params":
        return None if value is None else form.out(value)
    return _shared_to_optax(value, form)


def _back(field: dataclasses.Field, value: Any, form: Form) -> Any:
    return form.back(value) if kind_of(field) == "params" else _shared_from_optax(value, form)


def _shared_to_optax(value: Any, form: Form) -> Any:
    """Convert a value that does not depend on the parameters: a number, or the state of a measure or of a search."""
    if is_empty(value) or (isinstance(value, AbstractState) and class_of(value) is not None):
        return rule_to_optax(None, value, form)
    return tuple(_shared_to_optax(x, form) for x in value) if type(value) is tuple else value


def _shared_from_optax(value: Any, form: Form) -> Any:
    if is_named(value, "EmptyState") or is_state(value):
        return rule_from_optax(None, value, form)
    if type(value) is tuple:
        return tuple(_shared_from_optax(x, form) for x in value)
    return jax.random.key_data(value) if is_typed_key(value) else value


def has_schedules(t: AbstractTransform | None) -> bool:
    """Whether a field of a transform, but for its parts, holds a schedule."""
    fields = () if t is None else dataclasses.fields(t)
    return any(has_schedule(getattr(t, field.name)) for field in fields if "part" not in field.metadata)


def misfit(t: Any, theirs: Theirs) -> ValueError:
    """The error for what is not the state of a transform."""
    given = "None" if theirs is None else f"a `{type(theirs).__name__}`"
    if type(theirs) is tuple:
        given = f"a tuple of {len(theirs)}"
    return ValueError(
        f"`{type(t).__name__}.update` was given {given} as its state, which must come from its `init(params)`."
    )


def attribute(t: AbstractTransform, theirs: Theirs, name: str) -> Any:
    """A field of a state of optax.

    Raises:
        ValueError: if it is not the state of this transform.
    """
    if not hasattr(theirs, name):
        raise misfit(t, theirs)
    return getattr(theirs, name)


def _is_stateless(t: AbstractTransform) -> bool:
    is_rule = isinstance(t, AbstractLeafwise) and _state_class(t) is None
    return is_rule or isinstance(t, AbstractStatelessTransform)


def _state_class(t: Any) -> type | None:
    """The class of the states of a rule, since several have one class in optax; None if it has none."""
    for base in type(t).__mro__:
        for generic in vars(base).get("__orig_bases__", ()):
            origin, given = typing.get_origin(generic), typing.get_args(generic)
            if isinstance(origin, type) and issubclass(origin, AbstractLeafwise) and isinstance(given[0], type):
                return None if given[0] is OurEmptyState else given[0]
    return None


# --- Containers -----------------------------------------------------------------------------------------------------


def container_to_optax(t: Any, state: Any, form: Form) -> Theirs:
    """Convert the state of a container to the NamedTuple with the states of its parts, or these parts alone."""
    if isinstance(state, AbstractStackedState) and state.together():
        return state  # its trees are not like the parameters
    parts = {own: x for own, x in _transforms(t).items() if hasattr(state, own)}
    theirs = rule_to_optax(t, with_fields(state, **dict.fromkeys(parts, OurEmptyState())), form)
    converted = {own: to_optax(x, getattr(state, own), form) for own, x in parts.items()}
    if not is_state(theirs):  # of a container that optax does not have
        return with_fields(state, **converted)
    names = {own: name for name, own in TWINS[type(theirs).__name__].fields.items()}
    return theirs._replace(**{names[own]: x for own, x in converted.items()})


def container_from_optax(t: Any, theirs: Theirs, form: Form) -> Any:
    """Convert the NamedTuple of a container to its state."""
    if not is_state(theirs) and not isinstance(theirs, AbstractState):
        raise misfit(t, theirs)
    parts = _parts(t, theirs)
    if isinstance(theirs, AbstractState):
        return with_fields(theirs, **{own: from_optax(x, getattr(theirs, own), form) for _, own, x in parts})
    state = rule_from_optax(t, theirs._replace(**{name: EmptyState() for name, _, _ in parts}), form)
    return with_fields(state, **{own: from_optax(x, getattr(theirs, name), form) for name, own, x in parts})


def _parts(t: Any, theirs: Theirs) -> list[tuple[str, str, AbstractTransform]]:
    """The parts of a container, with the fields of their states in optax and here."""
    found = _transforms(t)
    is_ours = isinstance(theirs, AbstractState)
    fields = {name: name for name in vars(theirs)} if is_ours else TWINS[type(theirs).__name__].fields
    return [(name, own, found[own]) for name, own in fields.items() if own in found]


def _transforms(t: Any) -> dict[str, AbstractTransform]:
    """The parts of a container by the fields of their states."""
    found = {field.metadata["part"]: getattr(t, field.name) for field in part_fields(t)}
    return {own: x for own, x in found.items() if isinstance(own, str) and x is not None}


lays_out([AbstractTransform], rule_to_optax, rule_from_optax)
lays_out([AbstractContainer], container_to_optax, container_from_optax)
