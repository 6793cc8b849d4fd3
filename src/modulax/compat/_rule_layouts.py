"""Layouts of rules whose state has another form in optax, and of functions of the caller."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import PyTree

from .. import FromFunctions, FromOptax, ScaleByDistanceOverGradients, ScaleByFactoredRMS, ScaleByGaLore, ScaleByLBFGS
from .._plugin.states import with_fields
from ..aggregate import AverageIncrementallyUpdates
from ..authoring import AddDecayedWeights, EmptyState as OurEmptyState
from ..states import FromFunctionsState, FromOptaxState
from ._layouts import (
    Form,
    Theirs,
    container_from_optax,
    container_to_optax,
    lays_out,
    misfit,
    rule_from_optax,
    rule_to_optax,
)
from ._pairs import Pair
from ._states import CLASSES, EmptyState


def factored_to_optax(t: Any, state: Any, form: Form) -> Theirs:
    """Convert factors and whole moments; where one is used, optax has an array of one element for the other."""

    def filled(tree: PyTree) -> PyTree:
        one = jtu.tree_map(lambda p, x: jnp.zeros((1,), p.dtype) if x is None else x, form.like, tree)
        return form.out(one)

    theirs = rule_to_optax(t, state, form)
    return theirs._replace(v_row=filled(state.v_row), v_col=filled(state.v_col), v=filled(state.v))


def factored_from_optax(t: Any, theirs: Theirs, form: Form) -> Any:
    """Convert factors and whole moments: a moment is whole if it has the shape of the parameter."""
    state = rule_from_optax(t, theirs, form)
    is_whole = jtu.tree_map(lambda p, v: v.shape == p.shape, form.like, state.v)

    def kept(tree: PyTree, if_whole: bool) -> PyTree:
        return jtu.tree_map(lambda whole, x: x if whole == if_whole else None, is_whole, tree)

    v_row, v_col, v = kept(state.v_row, False), kept(state.v_col, False), kept(state.v, True)
    return dataclasses.replace(state, v_row=v_row, v_col=v_col, v=v)


def distance_to_optax(t: Any, state: Any, form: Form) -> Theirs:
    """Convert the state; optax has its sums as arrays of one element."""
    theirs = rule_to_optax(t, state, form)
    return theirs._replace(grad_sum_of_squares=jtu.tree_map(lambda x: x[None], theirs.grad_sum_of_squares))


def distance_from_optax(t: Any, theirs: Theirs, form: Form) -> Any:
    """Convert the state, with its sums as numbers."""
    state = rule_from_optax(t, theirs, form)
    return dataclasses.replace(state, grad_sum_of_squares=jtu.tree_map(jnp.squeeze, state.grad_sum_of_squares))


def galore_to_optax(t: Any, state: Any, form: Form) -> Theirs:
    """Convert the state; optax has an array without elements where nothing is projected."""

    def filled(p: Any, x: Any) -> Any:
        return jnp.zeros((0, 0), p.dtype) if x is None else x

    theirs = container_to_optax(t, state, form)
    return theirs._replace(projector=form.out(jtu.tree_map(filled, form.like, state.projector)))


def galore_from_optax(t: Any, theirs: Theirs, form: Form) -> Any:
    """Convert the state, with None where nothing is projected."""
    state = container_from_optax(t, theirs, form)
    return dataclasses.replace(state, projector=jtu.tree_map(lambda x: x if x.size else None, state.projector))


def lbfgs_to_optax(t: Any, state: Any, form: Form) -> Theirs:
    """Convert the state; what optax counts as steps are the pairs that were kept."""
    return rule_to_optax(t, with_fields(state, count=state.count - state.skipped), form)


def mean_to_optax(t: Any, state: Any, form: Form) -> Theirs:
    """Convert the state, after that of the mean over the examples, which has none."""
    return (EmptyState(), rule_to_optax(t, state, form))


def mean_from_optax(t: Any, theirs: Theirs, form: Form) -> Any:
    """Convert the second of two states."""
    if not isinstance(theirs, tuple) or len(theirs) != 2:
        raise misfit(t, theirs)
    return rule_from_optax(t, theirs[1], form)


lays_out([ScaleByFactoredRMS], factored_to_optax, factored_from_optax)
lays_out([ScaleByDistanceOverGradients], distance_to_optax, distance_from_optax)
lays_out([ScaleByGaLore], galore_to_optax, galore_from_optax)
lays_out([ScaleByLBFGS], lbfgs_to_optax, rule_from_optax)
lays_out([AverageIncrementallyUpdates], mean_to_optax, mean_from_optax)
lays_out(
    [AddDecayedWeights],
    lambda t, state, form: EmptyState() if t.mask is None else CLASSES["MaskedState"](EmptyState()),
    lambda t, theirs, form: OurEmptyState(),
)
lays_out([FromFunctions], lambda t, state, form: state.inner_state, lambda t, theirs, form: FromFunctionsState(theirs))
lays_out([FromOptax], lambda t, state, form: state.inner_state, lambda t, theirs, form: FromOptaxState(theirs))
lays_out([Pair], lambda t, state, form: state, lambda t, theirs, form: theirs)
