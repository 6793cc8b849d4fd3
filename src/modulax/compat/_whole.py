"""The state of an optimizer beside its parameters in the form of optax, and which arrays each array is made from.

`checkpoint` converts both, since optax keeps the slow parameters of `lookahead` among the parameters, and computes the
average of `schedule_free` from them.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import PyTree

from .._containers.lookahead import is_pair
from .._protocol.transform import AbstractTransform
from .._support.checks import any_range
from .._support.module import kind_of
from ..tree._state import nesting_fields
from . import _layouts
from ._states import CLASSES, EXTRA_FIELDS, TWINS, LookaheadParams, counts_steps, is_named
from ._transformations import transformation as _transformation

_REGISTERED = _transformation  # whose module registers all layouts


class Whole(NamedTuple):
    """Parameters and the state of their optimizer, on one side."""

    params: PyTree
    state: Any


@any_range()
def whole_to_optax(optimizer: AbstractTransform, ours: Whole) -> Whole:
    """Convert a state to that of optax, with the step counts that no schedule follows.

    Args:
        optimizer: the optimizer.
        ours: the parameters, and its state.
    """
    params = ours.params
    form = _layouts.Form(params.fast if is_pair(params) else params, counts=True)
    theirs, slow = _layouts.to_optax(optimizer, ours.state, form), list[PyTree]()

    def without_slow(x: Any) -> Any:
        if not is_named(x, "LookaheadWithSlowState"):
            return x
        slow.append(x.slow)
        return CLASSES["LookaheadState"](*x[:-1])

    theirs = jtu.tree_map(without_slow, theirs, is_leaf=lambda x: is_named(x, "LookaheadWithSlowState"))
    return Whole(LookaheadParams(params, slow[0]) if slow else params, theirs)


@any_range()
def whole_from_optax(optimizer: AbstractTransform, theirs: Whole) -> Whole:
    """Convert a state of optax: the inverse of `whole_to_optax`.

    Args:
        optimizer: the optimizer.
        theirs: the parameters, and the state of optax.
    """
    params, state = theirs
    if type(params) is LookaheadParams:
        params, slow = params
        with_slow = CLASSES["LookaheadWithSlowState"]
        state = jtu.tree_map(
            lambda x: with_slow(*x, slow) if is_named(x, "LookaheadState") else x,
            state,
            is_leaf=lambda x: is_named(x, "LookaheadState"),
        )
    form = _layouts.Form(params.fast if is_pair(params) else params, counts=True)
    return Whole(params, _layouts.from_optax(optimizer, state, form))


class Traced:
    """A conversion of a whole state, and the arrays that each array of its result is made from.

    Args:
        function: the conversion.
        given: its argument, or the shapes and dtypes of it.

    Attributes:
        made: the shapes and dtypes of the result.
        depends: for each leaf of it, the indices of the leaves of the argument that it is made from.
        copies: for each leaf of it, the index of the leaf of the argument that it is; None if it is computed.
    """

    def __init__(self, function: Callable[[Whole], Whole], given: Whole):
        self.function, self.given = function, given
        program, self.made = jax.make_jaxpr(function, return_shape=True)(given)
        index = {x: i for i, x in enumerate(program.jaxpr.invars)}
        sources = {x: frozenset({i}) for x, i in index.items()}

        def sources_of(x: Any) -> frozenset[int]:
            return frozenset() if hasattr(x, "val") else sources.get(x, frozenset())  # a constant has a value

        for equation in program.jaxpr.eqns:
            sources |= dict.fromkeys(equation.outvars, frozenset().union(*map(sources_of, equation.invars)))
        self.depends = list(map(sources_of, program.jaxpr.outvars))
        self.copies = [None if hasattr(x, "val") else index.get(x) for x in program.jaxpr.outvars]

    def compute(self, places: list[int], arrays: dict[int, Any]) -> list[Any]:
        """Return some leaves of the result.

        Args:
            places: their indices.
            arrays: the leaves of the argument that they are made from, by index.
        """
        specs, treedef = jtu.tree_flatten(self.given)

        def computed(arrays: dict[int, Any]) -> list[Any]:
            leaves = [arrays[i] if i in arrays else jnp.empty(x.shape, x.dtype) for i, x in enumerate(specs)]
            found = jtu.tree_leaves(self.function(treedef.unflatten(leaves)))
            return [found[i] for i in places]

        return jax.jit(computed)(arrays)


FIELDS = {name for cls in CLASSES.values() for name in cls._fields}
"""The fields of all states of optax."""

OPTIONAL = EXTRA_FIELDS | {"skip_state"}
"""The fields that only some states of a class have."""

OTHER_COUNTS = {frozenset(twin.fields) for twin in TWINS.values() if not counts_steps(twin)}
"""The fields of each state whose `count` is not one of steps."""

NESTING = nesting_fields()[0] | {
    name
    for twin in TWINS.values()
    for name, own in twin.fields.items()
    for field in dataclasses.fields(twin.ours)
    if field.name == own and kind_of(field) == "states"
}
"""The fields that hold states of other transforms, in optax and here."""
