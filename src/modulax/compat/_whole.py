"""The state of an optimizer beside its parameters in the form of optax, and which arrays each array is made from.

`checkpoint` converts both, since optax keeps the slow parameters of `lookahead` among the parameters, and computes the
average of `schedule_free` from them.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.tree_util as jtu
from jaxtyping import PyTree

from .._plugin.arguments import any_range
from .._plugin.arrays import sources_of
from .._plugin.containers import is_pair
from .._plugin.trees import named_leaves
from ..authoring import AbstractTransform
from . import _layouts
from ._states import CLASSES, LookaheadParams
from ._transformations import transformation as _transformation

_REGISTERED = _transformation  # whose module registers all layouts


_FAST, _SLOW = CLASSES["LookaheadState"], CLASSES["LookaheadWithSlowState"]


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
    theirs = _layouts.to_optax(optimizer, ours.state, form)
    slow = [x.slow for x in jtu.tree_leaves(theirs, is_leaf=lambda x: isinstance(x, _SLOW)) if isinstance(x, _SLOW)]
    theirs = jtu.tree_map(
        lambda x: _FAST(*x[:-1]) if isinstance(x, _SLOW) else x, theirs, is_leaf=lambda x: isinstance(x, _SLOW)
    )
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
        state = jtu.tree_map(
            lambda x: _SLOW(*x, slow) if isinstance(x, _FAST) else x, state, is_leaf=lambda x: isinstance(x, _FAST)
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
        depends: for the names of each leaf of it, those of the leaves of the argument that it is made from.
    """

    def __init__(self, function: Callable[[Whole], Whole], given: Whole):
        self.function, self.given = function, given
        program, self.made = jax.make_jaxpr(function, return_shape=True)(given)
        names = [name for name, _ in named_leaves(given)]
        made = zip(named_leaves(self.made), sources_of(program.jaxpr), strict=True)
        self.depends = {name: [names[i] for i in sorted(sources)] for (name, _), sources in made}
