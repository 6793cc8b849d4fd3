"""Layouts of containers whose state has another form in optax."""

import dataclasses
import functools
import operator
from collections import OrderedDict
from typing import Any

import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import PyTree

from .. import Flatten, Injected, Masked, Partition, RealAndImaginary, ScheduleFree, SplitRealAndImaginary
from .._plugin.arrays import no_steps, real_dtype
from .._plugin.containers import is_complex_pair, with_hyperparams
from .._plugin.transforms import is_schedule, schedule_states, with_current_values
from ..aggregate import AddMeanVarianceToOpt, Process, ProcessState
from ..authoring import AbstractTransform, Chain
from ..numerics import at_least_float32
from ..states import ChainState, FlattenState, InjectedState, MaskedState, PartitionState, ScheduleFreeState
from ._around_pairs import AsArrays, AsPython
from ._layouts import (
    Form,
    Theirs,
    attribute,
    container_from_optax,
    container_to_optax,
    from_optax,
    lays_out,
    misfit,
    step_count_in,
    to_optax,
)
from ._masks import given_for
from ._named_chain import NamedChain
from ._slots import filled, read
from ._states import CLASSES, EmptyState, SplitRealAndImaginaryArrays, WrappedScheduleState, is_named

_MASKED, _PARTITION = CLASSES["MaskedState"], CLASSES["PartitionState"]


def chain_to_optax(t: Chain, state: ChainState, form: Form) -> Theirs:
    """Convert the states of the parts to a tuple; the chain of an optimizer has the places that it has in optax."""
    inside = form._replace(owner="")
    states = {name: to_optax(x, state[name], inside) for name, x in t.parts.items()}
    return filled(form, states)


def chain_from_optax(t: Chain, theirs: Theirs, form: Form) -> ChainState:
    """Convert a tuple of the states of the parts."""
    found = read(form, theirs, list(t.parts))
    if found is None:
        raise misfit(t, theirs)
    count = step_count_in(theirs)
    inside = form._replace(owner="", count=form.count if count is None else count)
    return ChainState({name: from_optax(x, found[name], inside) for name, x in t.parts.items()})


def named_chain_to_optax(t: NamedChain, state: ChainState, form: Form) -> Theirs:
    """Convert the states of the parts to a dict."""
    return OrderedDict((name, to_optax(x, state[name], form)) for name, x in t.inner.parts.items())


def named_chain_from_optax(t: NamedChain, theirs: Theirs, form: Form) -> Any:
    """Convert a dict of the states of the parts."""
    if not isinstance(theirs, dict) or theirs.keys() != t.inner.parts.keys():
        raise misfit(t, theirs)
    return ChainState({name: from_optax(x, theirs[name], form) for name, x in t.inner.parts.items()})


def masked_to_optax(t: Masked, state: MaskedState, form: Form) -> Theirs:
    """Convert to `MaskedState`; for `selective_transform`, to a partition into what is trained and what is frozen."""
    inner = _MASKED(to_optax(t.inner, state.inner_state, _masked_form(t, form)))
    return inner if t.otherwise == "keep" else _PARTITION({"freeze": _MASKED(EmptyState()), "train": inner})


def masked_from_optax(t: Masked, theirs: Theirs, form: Form) -> Any:
    """Convert the state of the inner transform."""
    if t.otherwise == "zero":
        theirs = attribute(t, theirs, "inner_states").get("train")
    return MaskedState(from_optax(t.inner, attribute(t, theirs, "inner_state"), _masked_form(t, form)))


def _masked_form(t: Masked, form: Form) -> Form:
    (part,) = t.each_part()
    is_chosen = bool if t.otherwise == "keep" else operator.not_
    return form.chosen(part, given_for(t.mask, form.like), is_chosen)


def partition_to_optax(t: Partition, state: PartitionState, form: Form) -> Theirs:
    """Convert the states of all groups, each to that of a masked transformation."""
    forms = _group_forms(t, form)
    parts = {part.key: part for part in t.each_part(state)}
    return _PARTITION({key: _MASKED(to_optax(x.transform, x.state, forms[key])) for key, x in parts.items()})


def partition_from_optax(t: Partition, theirs: Theirs, form: Form) -> Any:
    """Convert the states of all groups."""
    states, forms = attribute(t, theirs, "inner_states"), _group_forms(t, form)
    if states.keys() != forms.keys():
        raise misfit(t, theirs)
    inner = {key: attribute(t, x, "inner_state") for key, x in states.items()}
    return PartitionState(OrderedDict((key, from_optax(x, inner[key], forms[key])) for key, x in t.transforms.items()))


def _group_forms(t: Partition, form: Form) -> dict[Any, Form]:
    given = given_for(t.labels, form.like)
    return {part.key: form.chosen(part, given, functools.partial(operator.eq, part.key)) for part in t.each_part()}


def process_to_optax(t: Any, state: Any, form: Form) -> Theirs:
    """Convert the states of the three parts to a tuple."""
    return tuple(to_optax(part.transform, part.state, form) for part in _process(t).each_part(state))


def process_from_optax(t: Any, theirs: Theirs, form: Form) -> Any:
    """Convert a tuple of the states of the three parts."""
    parts = list(_process(t).each_part())
    if not isinstance(theirs, tuple) or len(theirs) != len(parts):
        raise misfit(t, theirs)
    return ProcessState(*(from_optax(part.transform, x, form) for part, x in zip(parts, theirs, strict=True)))


def _process(t: Any) -> AbstractTransform:
    """The `Process`, of which `AddMeanVarianceToOpt` is made."""
    return t.transform() if hasattr(t, "transform") else t


def schedule_free_to_optax(t: ScheduleFree, state: ScheduleFreeState, form: Form) -> Theirs:
    """Convert the state, with the step count from 1 on."""
    theirs = container_to_optax(t, state, form)
    return theirs._replace(step_count=theirs.step_count + _steps_ahead(t))


def schedule_free_from_optax(t: ScheduleFree, theirs: Theirs, form: Form) -> Any:
    """Convert the state, with the average `x` of the parameters, which optax does not keep."""
    state = container_from_optax(t, theirs, form)
    b1 = jnp.asarray(theirs.b1)
    x = jtu.tree_map(lambda y, z: ((y - (1 - b1) * z) / b1).astype(z.dtype), form.like, state.z)
    return dataclasses.replace(state, x=x, step_count=state.step_count - _steps_ahead(t))


def _steps_ahead(t: ScheduleFree) -> int:
    """By how many steps the count of optax is ahead of the one here."""
    return int(t.follow != "optax")


def _of_pairs(form: Form) -> Form:
    """The form of trees with pairs of real arrays in the place of complex ones, which are of optax's class there."""

    def out(tree: PyTree) -> PyTree:
        pairs = jtu.tree_map(
            lambda x: SplitRealAndImaginaryArrays(x.real, x.imaginary) if is_complex_pair(x) else x,
            tree,
            is_leaf=is_complex_pair,
        )
        return form.outward(pairs)

    def back(tree: PyTree) -> PyTree:
        def is_pair(x: Any) -> bool:
            return is_named(x, "SplitRealAndImaginaryArrays")

        return form.inward(jtu.tree_map(lambda x: RealAndImaginary(*x) if is_pair(x) else x, tree, is_leaf=is_pair))

    return form._replace(outward=out, inward=back)


def _of_vectors(form: Form) -> Form:
    """The form of trees of vectors by dtype: in optax, one vector is not in a dict."""
    names = sorted({jnp.result_type(x).name for x in jtu.tree_leaves(form.like) if jnp.size(x)})
    if len(names) != 1:
        return Form(None)
    return Form(None, outward=lambda tree: tree[names[0]], inward=lambda x: {names[0]: x})


def injected_to_optax(t: Injected, state: InjectedState, form: Form) -> Theirs:
    """Convert the hyperparameters by name, the counts of schedules, and the state of the inner transform."""
    inner = to_optax(_without_schedules(t), state.inner_state, form)
    states = {name: WrappedScheduleState(state.count) for name in _scheduled(t, state)}
    states |= state.schedule_states or {}
    numbers = dict(state.hyperparams)
    if t.hyperparam_dtype is None and (dtype := _widest(form.like)) is not None:
        is_float = lambda x: jnp.issubdtype(jnp.result_type(x), jnp.floating)  # noqa: E731
        numbers = {name: jnp.asarray(x, dtype) if is_float(x) else x for name, x in numbers.items()}
    return CLASSES["InjectStatefulHyperparamsState"](state.count, numbers, states, inner)


def _widest(params: PyTree) -> Any:
    """The dtype of hyperparameters beside parameters: the widest of theirs, but at least float32; None without any."""
    dtypes = [x.dtype for x in jtu.tree_leaves(params) if hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.inexact)]
    return real_dtype(at_least_float32(*dtypes)) if dtypes else None


def injected_from_optax(t: Injected, theirs: Theirs, form: Form) -> Any:
    """Convert the hyperparameters and the state of the inner transform."""
    inner = from_optax(_without_schedules(t), attribute(t, theirs, "inner_state"), form)
    own = schedule_states(t.inner)
    stateful = None if own is None else {path: theirs.hyperparams_states[path] for path in own}
    kept = jtu.tree_map(jnp.asarray, t._kept(_without_schedules(t)))
    state = InjectedState(theirs.count, kept, inner, schedule_states=stateful)
    known = state.hyperparams.accessors()
    if unknown := [name for name in theirs.hyperparams if name not in known]:
        raise ValueError(f"`hyperparams` has no `{unknown[0]}`; it has {', '.join(f'`{x}`' for x in known)}.")
    numbers = {name: jnp.asarray(x) for name, x in theirs.hyperparams.items()}
    return with_hyperparams(state, {"hyperparams": numbers})


def _without_schedules(t: Injected) -> AbstractTransform:
    """The inner transform as it is called."""
    return with_current_values(t.inner, no_steps(), schedule_states(t.inner))


def _scheduled(t: Injected, state: InjectedState) -> list[str]:
    """The names of the hyperparameters that follow a schedule."""
    found = []
    for name, accessor in state.hyperparams.accessors().items():
        try:
            if is_schedule(accessor(t.inner)):
                found.append(name)
        except (AttributeError, KeyError):  # a hyperparameter of a schedule
            continue
    return found


lays_out([Chain], chain_to_optax, chain_from_optax)
lays_out([NamedChain], named_chain_to_optax, named_chain_from_optax)
lays_out([Masked], masked_to_optax, masked_from_optax)
lays_out([Partition], partition_to_optax, partition_from_optax)
lays_out([AddMeanVarianceToOpt, Process], process_to_optax, process_from_optax)
lays_out([ScheduleFree], schedule_free_to_optax, schedule_free_from_optax)
lays_out(
    [SplitRealAndImaginary],
    lambda t, state, form: container_to_optax(t, state, _of_pairs(form)),
    lambda t, theirs, form: container_from_optax(t, theirs, _of_pairs(form)),
)
lays_out(
    [Flatten],
    lambda t, state, form: to_optax(t.inner, state.inner_state, _of_vectors(form)),
    lambda t, theirs, form: FlattenState(from_optax(t.inner, theirs, _of_vectors(form))),
)
lays_out([Injected], injected_to_optax, injected_from_optax)
lays_out(
    [AsArrays, AsPython],
    lambda t, state, form: to_optax(t.inner, state, form),
    lambda t, theirs, form: from_optax(t.inner, theirs, form),
)
