"""Layouts of containers whose state has another form in optax."""

import collections
import dataclasses
from typing import Any

import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import PyTree

from .._containers.chain import Chain, ChainState
from .._containers.injected import Injected, InjectedState, with_hyperparams
from .._containers.masked import Masked, MaskedState
from .._containers.partition import Partition, PartitionState
from .._containers.reshaping import Flatten, FlattenState, RealAndImaginary, SplitRealAndImaginary
from .._containers.schedule_free import ScheduleFree
from .._protocol.schedule import is_schedule
from .._protocol.schedule_values import schedule_states, with_current_values
from .._protocol.transform import AbstractTransform
from .._support.arithmetic import no_steps
from ..aggregate import AddMeanVarianceToOpt, Process
from ..aggregate._process import ProcessState
from ._layouts import ContainerLayout, Form, Layout, Theirs, bare, from_optax, lays_out, misfit, received, to_optax
from ._states import CLASSES, EmptyState, SplitRealAndImaginaryArrays, WrappedScheduleState


@lays_out(ScheduleFree)
class ScheduleFreeLayout(ContainerLayout):
    """optax keeps no average `x`; it is missing in states that were made by its classes."""

    def back(self, t: ScheduleFree, theirs: Theirs, form: Form) -> Any:
        """Convert the state; without an average, it is that of the parameters, `form.like`."""
        state = super().back(t, theirs, form)
        if state.x is not None:
            return state
        b1 = jnp.asarray(theirs.b1)
        y = bare(form.like)
        x = jtu.tree_map(lambda y, z: ((y - (1 - b1) * z) / b1).astype(z.dtype), y, state.z)
        return dataclasses.replace(state, x=x)


@lays_out(SplitRealAndImaginary)
class SplitLayout(ContainerLayout):
    """The trees of the inner transform have pairs of real arrays in the place of complex ones."""

    def inner_form(self, t: Any, form: Form) -> Form:
        """The form with pairs of optax's class."""
        del t

        def is_ours(x: Any) -> bool:
            return isinstance(x, RealAndImaginary)

        def is_theirs(x: Any) -> bool:
            return type(x).__name__ == "SplitRealAndImaginaryArrays"

        def out(tree: PyTree) -> PyTree:
            pairs = jtu.tree_map(
                lambda x: SplitRealAndImaginaryArrays(x.real, x.imaginary) if is_ours(x) else x, tree, is_leaf=is_ours
            )
            return form.out(pairs)

        def back(tree: PyTree) -> PyTree:
            pairs = jtu.tree_map(lambda x: RealAndImaginary(*x) if is_theirs(x) else x, tree, is_leaf=is_theirs)
            return form.back(pairs)

        return Form(form.like, out, back)


@lays_out(Flatten)
class FlattenLayout(Layout):
    """The state of the inner transform, whose trees are one vector, or vectors by dtype if there are several."""

    def _inner_form(self, form: Form) -> Form:
        names = sorted({jnp.result_type(x).name for x in jtu.tree_leaves(form.like) if jnp.size(x)})
        if len(names) != 1:
            return Form(None)
        return Form(None, lambda tree: tree[names[0]], lambda x: {names[0]: x})

    def out(self, t: Any, state: Any, form: Form) -> Theirs:
        """Convert the state of the inner transform."""
        return to_optax(t.inner, state.inner_state, self._inner_form(form))

    def back(self, t: Any, theirs: Theirs, form: Form) -> Any:
        """Convert the state of the inner transform."""
        return FlattenState(from_optax(t.inner, theirs, self._inner_form(form)))


@lays_out(Masked)
class MaskedLayout(Layout):
    """`MaskedState`, or for `selective_transform` a partition into what is trained and what is frozen."""

    def out(self, t: Masked, state: MaskedState, form: Form) -> Theirs:
        """Convert the state of the inner transform, for the leaves that it receives."""
        inner = CLASSES["MaskedState"](to_optax(t.inner, state.inner_state, form.chosen(t.chosen)))
        if t.otherwise == "keep":
            return inner
        return CLASSES["PartitionState"]({"freeze": CLASSES["MaskedState"](EmptyState()), "train": inner})

    def back(self, t: Masked, theirs: Theirs, form: Form) -> Any:
        """Convert the state of the inner transform."""
        if t.otherwise == "zero":
            theirs = attribute(t, theirs, "inner_states").get("train")
        return MaskedState(from_optax(t.inner, attribute(t, theirs, "inner_state"), form.chosen(t.chosen)))


def attribute(t: AbstractTransform, theirs: Theirs, name: str) -> Any:
    if not hasattr(theirs, name):
        raise misfit(t, theirs)
    return getattr(theirs, name)


@lays_out(Partition)
class PartitionLayout(Layout):
    """The states by label, each that of a masked transform."""

    def out(self, t: Partition, state: PartitionState, form: Form) -> Theirs:
        """Convert the states of all groups."""
        found = {}
        for part in t.each_part(state):
            inner = to_optax(part.transform, part.state, form.chosen(received(part)))
            found[part.key] = CLASSES["MaskedState"](inner)
        return CLASSES["PartitionState"](found)

    def back(self, t: Partition, theirs: Theirs, form: Form) -> Any:
        """Convert the states of all groups."""
        states, found = attribute(t, theirs, "inner_states"), {}
        for part in t.each_part():
            if part.key not in states:
                raise misfit(t, theirs)
            inner = attribute(t, states[part.key], "inner_state")
            found[part.key] = from_optax(part.transform, inner, form.chosen(received(part)))
        return PartitionState(type(t.transforms)(found))


@lays_out(Chain)
class ChainLayout(Layout):
    """A tuple of the states of the parts."""

    def out(self, t: Chain, state: ChainState, form: Form) -> Theirs:
        """Convert the states of all parts."""
        return tuple(to_optax(x, state[name], form) for name, x in t.parts.items())

    def back(self, t: Chain, theirs: Theirs, form: Form) -> Any:
        """Convert the states of all parts."""
        parts = list(theirs.values()) if isinstance(theirs, dict) else theirs
        if not isinstance(parts, (tuple, list)) or len(parts) != len(t.parts):
            raise misfit(t, theirs)
        pairs = zip(t.parts.items(), parts, strict=True)
        return ChainState({name: from_optax(part, x, form) for (name, part), x in pairs})


class NamedChain(Chain):
    """A chain whose state is a dict by name in optax."""


@lays_out(NamedChain)
class NamedChainLayout(ChainLayout):
    """A dict of the states of the parts, in the order of `named_chain`."""

    def out(self, t: Chain, state: ChainState, form: Form) -> Theirs:
        """Convert the states of all parts."""
        return collections.OrderedDict(zip(t.parts, super().out(t, state, form), strict=True))

    def back(self, t: Chain, theirs: Theirs, form: Form) -> Any:
        """Convert the states of all parts."""
        if not isinstance(theirs, dict) or theirs.keys() != t.parts.keys():
            raise misfit(t, theirs)
        return super().back(t, {name: theirs[name] for name in t.parts}, form)


@lays_out(AddMeanVarianceToOpt, Process)
class ProcessLayout(Layout):
    """A tuple of the states of the three parts."""

    def out(self, t: Any, state: Any, form: Form) -> Theirs:
        """Convert the states of the parts."""
        whole = t if isinstance(t, Process) else t.transform()
        return tuple(to_optax(part.transform, part.state, form) for part in whole.each_part(state))

    def back(self, t: Any, theirs: Theirs, form: Form) -> Any:
        """Convert the states of the parts."""
        if not isinstance(theirs, tuple) or len(theirs) != 3:
            raise misfit(t, theirs)
        whole = t if isinstance(t, Process) else t.transform()
        return ProcessState(
            *(from_optax(part.transform, x, form) for part, x in zip(whole.each_part(), theirs, strict=True))
        )


@lays_out(Injected)
class InjectedLayout(Layout):
    """Step count, hyperparameters by name, the counts of schedules, and the state of the inner transform."""

    def _inner(self, t: Injected) -> AbstractTransform:
        """The inner transform without schedules, as it is called."""
        return with_current_values(t.inner, no_steps(), schedule_states(t.inner))

    def out(self, t: Injected, state: InjectedState, form: Form) -> Theirs:
        """Convert the hyperparameters and the inner state."""
        inner = to_optax(self._inner(t), state.inner_state, form)
        accessors = state.hyperparams.accessors()
        states: dict[str, Any] = {}
        for name, accessor in accessors.items():
            try:
                is_scheduled = is_schedule(accessor(t.inner))
            except (AttributeError, KeyError):
                is_scheduled = False
            if is_scheduled:
                states[name] = WrappedScheduleState(state.count)
        for path, x in (state.schedule_states or {}).items():
            states[path] = x
        cls = CLASSES["InjectStatefulHyperparamsState"]
        return cls(state.count, dict(state.hyperparams), states, inner)

    def back(self, t: Injected, theirs: Theirs, form: Form) -> Any:
        """Convert the hyperparameters and the inner state."""
        inner = from_optax(self._inner(t), attribute(t, theirs, "inner_state"), form)
        own = schedule_states(t.inner)
        kept = t._kept(self._inner(t))
        stateful = None if own is None else {path: theirs.hyperparams_states[path] for path in own}
        blank = InjectedState(theirs.count, jtu.tree_map(jnp.asarray, kept), inner, schedule_states=stateful)
        known = blank.hyperparams.accessors().keys()
        found = theirs.hyperparams
        if unknown := [name for name in found if name not in known]:
            raise ValueError(f"`hyperparams` has no `{unknown[0]}`; it has {', '.join(f'`{x}`' for x in known)}.")
        return with_hyperparams(blank, {"hyperparams": {name: jnp.asarray(x) for name, x in found.items()}})
