"""Layouts of rules whose state has another form in optax, and of functions of the caller."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import PyTree

from .._containers.optax_adapters import FromFunctions, FromFunctionsState, FromOptax, FromOptaxState
from .._protocol.transform import EmptyState as OurEmptyState
from .._transforms.adafactor import ScaleByFactoredRMS
from .._transforms.distance_over_gradients import ScaleByDistanceOverGradients
from .._transforms.galore import ScaleByGaLore
from .._transforms.regularization import AddDecayedWeights
from ..aggregate import AverageIncrementallyUpdates
from ._layouts import ContainerLayout, Form, Layout, Theirs, bare, is_masked, lays_out
from ._pairs import Pair
from ._states import CLASSES, EmptyState


@lays_out(ScaleByFactoredRMS)
class FactoredLayout(Layout):
    """Factors and whole moments, of which optax has an array of one element where the other is used."""

    def out(self, t: Any, state: Any, form: Form) -> Theirs:
        """Convert the state, and fill up what is absent."""

        def filled(tree: PyTree) -> PyTree:
            one = jtu.tree_map(lambda p, x: jnp.zeros((1,), p.dtype) if x is None else x, bare(form.like), tree)
            return form.out(one)

        theirs = super().out(t, state, form)
        return theirs._replace(v_row=filled(state.v_row), v_col=filled(state.v_col), v=filled(state.v))

    def back(self, t: Any, theirs: Theirs, form: Form) -> Any:
        """Convert the state, and leave out what is filled up."""
        state = super().back(t, theirs, form)
        is_whole = jtu.tree_map(lambda p, v: v.shape == p.shape, bare(form.like), state.v)

        def kept(tree: PyTree, if_whole: bool) -> PyTree:
            return jtu.tree_map(lambda whole, x: x if whole == if_whole else None, is_whole, tree)

        v_row, v_col, v = kept(state.v_row, False), kept(state.v_col, False), kept(state.v, True)
        return dataclasses.replace(state, v_row=v_row, v_col=v_col, v=v)


@lays_out(ScaleByDistanceOverGradients)
class DistanceLayout(Layout):
    """The sums, which optax has as arrays of one element."""

    def out(self, t: Any, state: Any, form: Form) -> Theirs:
        """Convert the state."""
        theirs = super().out(t, state, form)
        sums = jtu.tree_map(lambda x: x[None], theirs.grad_sum_of_squares)
        return theirs._replace(grad_sum_of_squares=sums)

    def back(self, t: Any, theirs: Theirs, form: Form) -> Any:
        """Convert the state."""
        state = super().back(t, theirs, form)
        return dataclasses.replace(state, grad_sum_of_squares=jtu.tree_map(jnp.squeeze, state.grad_sum_of_squares))


@lays_out(ScaleByGaLore)
class GaLoreLayout(ContainerLayout):
    """The projectors, of which optax has an array without elements where nothing is projected."""

    def out(self, t: Any, state: Any, form: Form) -> Theirs:
        """Convert the state, and fill up what is absent."""

        def filled(p: Any, x: Any) -> Any:
            return jnp.zeros((0, 0), p.dtype) if x is None else x

        theirs = super().out(t, state, form)
        return theirs._replace(projector=form.out(jtu.tree_map(filled, bare(form.like), state.projector)))

    def back(self, t: Any, theirs: Theirs, form: Form) -> Any:
        """Convert the state, and leave out what is filled up."""
        state = super().back(t, theirs, form)
        return dataclasses.replace(state, projector=jtu.tree_map(lambda x: x if x.size else None, state.projector))


@lays_out(AverageIncrementallyUpdates)
class AfterMeanLayout(Layout):
    """The state after that of the mean over examples, which has none."""

    def out(self, t: Any, state: Any, form: Form) -> Theirs:
        """Convert the state."""
        return (EmptyState(), super().out(t, state, form))

    def back(self, t: Any, theirs: Theirs, form: Form) -> Any:
        """Convert the state."""
        return super().back(t, theirs[1], form)


@lays_out(AddDecayedWeights)
class AddDecayedWeightsLayout(Layout):
    """No state; with a mask, that of a masked transform without one."""

    def out(self, t: Any, state: Any, form: Form) -> Theirs:
        """Return the empty state."""
        del state, form
        return EmptyState() if t.mask is None else CLASSES["MaskedState"](EmptyState())

    def back(self, t: Any, theirs: Theirs, form: Form) -> Any:
        """Return the empty state."""
        del t, theirs, form
        return OurEmptyState()


@lays_out(FromFunctions, FromOptax)
class FunctionsLayout(Layout):
    """The state of a function of the caller, as it is."""

    def out(self, t: Any, state: Any, form: Form) -> Theirs:
        """Return the state of the function."""
        del t, form
        return state.inner_state

    def back(self, t: Any, theirs: Theirs, form: Form) -> Any:
        """Return the state here."""
        del form
        return (FromOptaxState if isinstance(t, FromOptax) else FromFunctionsState)(theirs)


@lays_out(Pair)
class PairLayout(Layout):
    """The state of a pair of functions, as it is but for the leaves that are masked out."""

    def out(self, t: Any, state: Any, form: Form) -> Theirs:
        """Return the state, with `MaskedNode()` in trees like the parameters."""
        del t
        return _with_each(bare(form.like), form.out, state) if _has_masked(form.like) else state

    def back(self, t: Any, theirs: Theirs, form: Form) -> Any:
        """Return the state, without `MaskedNode()` in trees like the parameters."""
        del t
        return _with_each(form.like, form.back, theirs) if _has_masked(form.like) else theirs


def _has_masked(tree: PyTree) -> bool:
    return any(map(is_masked, jtu.tree_leaves(tree, is_leaf=is_masked)))


def _with_each(like: PyTree, convert: Callable[[PyTree], PyTree], state: Any) -> Any:
    """The state with each subtree converted that has the structure of another tree with leaves."""
    wanted = jtu.tree_structure(like)

    def is_like(x: Any) -> bool:
        return jtu.tree_structure(x) == wanted

    if not wanted.num_leaves:
        return state
    return jtu.tree_map(lambda x: convert(x) if is_like(x) else x, state, is_leaf=is_like)
