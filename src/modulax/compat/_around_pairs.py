"""Containers of optax around pairs of functions of the caller, which get trees as optax gives them.

The containers of modulax leave out what is masked, and compile. A pair of functions gets `MaskedNode()` instead, the
caller's own leaves, and numbers that are not traced, so around pairs the containers are pairs of functions themselves.
"""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax
import jax.flatten_util
import jax.tree_util as jtu

from .._plugin.arguments import any_range
from .._plugin.arrays import tracing
from .._plugin.transforms import everything_in
from ..authoring import AbstractContainer, AbstractTransform, required_part
from ._helpers import is_function
from ._pairs import Pair, is_pair, without_boundary
from ._states import CLASSES, MaskedNode
from ._trees import as_arrays


class AsArrays(AbstractContainer):
    """A transform beside a pair of functions, which gets arrays in the place of numbers and of the caller's leaves.

    Args:
        inner: the transform.
    """

    inner: AbstractTransform = required_part(state=lambda state: state)

    def init(self, params: Any) -> Any:
        """Return the initial state of the transform."""
        return self.inner.init(as_arrays(params))

    def update(self, updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        """Run a step of the transform."""
        return self.inner.update(as_arrays(updates), state, as_arrays(params), **extra)


class AsPython(AbstractContainer):
    """A transform whose function makes a pair of functions, so that it is compiled under the caller's `jit` only.

    Args:
        inner: the transform.
    """

    runs_as_python: ClassVar[bool] = True

    inner: AbstractTransform = required_part(state=lambda state: state)

    def init(self, params: Any) -> Any:
        """Return the initial state of the transform."""
        with tracing():  # the functions within are called as they are
            return self.inner.init(params)

    def update(self, updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        """Run a step of the transform."""
        with tracing():
            return self.inner.update(updates, state, params, **extra)


for _cls in (AsArrays, AsPython):
    without_boundary(_cls)


@any_range()
def holds_pair(transform: Any) -> bool:
    """Whether a pair of functions is in a transform."""
    return isinstance(transform, AbstractTransform) and any(map(is_pair, everything_in(transform)))


def _beside(transform: Any) -> Any:
    if is_pair(transform):
        return transform
    return AsPython(transform) if holds_pair(transform) else AsArrays(transform)


def beside_pairs(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a chain, with arrays for the transforms beside a pair of functions, and not for its own."""
    if not any(map(holds_pair, parts.values())):
        return dict(parts)
    return {name: _beside(x) for name, x in parts.items()}


def masked_pair(inner: Any, mask: Any, masks_extra: bool) -> Pair:
    """Return `masked` around a pair of functions.

    Args:
        inner: the transformation, a pair of functions that takes extra arguments.
        mask: a tree, or a function that returns one.
        masks_extra: whether extra arguments that are like the updates are masked too.
    """
    state_class = CLASSES["MaskedState"]

    def chosen(tree: Any) -> Any:
        return mask(tree) if is_function(mask) else mask

    def marked(tree: Any, of: Any) -> Any:
        return jtu.tree_map(lambda is_in, x: x if is_in else MaskedNode(), of, tree)

    def init(params: Any) -> Any:
        if not jtu.tree_leaves(params) and not isinstance(params, (dict, list, tuple)):
            return state_class(inner.init(params))  # what `tree_map_params` gives in the place of parameters
        return state_class(inner.init(marked(params, chosen(params))))

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        of, structure = chosen(updates), jtu.tree_structure(updates)
        if masks_extra:
            is_like = {key: jtu.tree_structure(x) == structure for key, x in extra.items()}
            extra = {key: marked(x, of) if is_like[key] else x for key, x in extra.items()}
        params = None if params is None else marked(params, of)
        new, inner_state = inner.update(marked(updates, of), state.inner_state, params, **extra)
        return jtu.tree_map(lambda is_in, x, u: x if is_in else u, of, new, updates), state_class(inner_state)

    return Pair(init, update, takes_extra=True)


def partition_pair(inner: Mapping[Any, Any], labels: Any, masks_extra: bool) -> Pair:
    """Return `partition` around pairs of functions.

    Args:
        inner: the transformations by label, which take extra arguments.
        labels: a tree, or a function that returns one.
        masks_extra: whether extra arguments that are like the updates are masked too.
    """

    def mask_for(label: Any) -> Callable[[Any], Any]:
        return lambda tree: jtu.tree_map(lambda x: x == label, labels(tree) if is_function(labels) else labels)

    groups = {label: masked_pair(tx, mask_for(label), masks_extra) for label, tx in inner.items()}

    def init(params: Any) -> Any:
        return CLASSES["PartitionState"]({label: tx.init(params) for label, tx in groups.items()})

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        states = {}
        for label, tx in groups.items():
            updates, states[label] = tx.update(updates, state.inner_states[label], params, **extra)
        return updates, CLASSES["PartitionState"](states)

    return Pair(init, update, takes_extra=True)


def flattened_pair(inner: Any) -> Pair:
    """Return `flatten` around a pair of functions.

    Args:
        inner: the transformation, a pair of functions that takes extra arguments.
    """

    def flat(tree: Any) -> jax.Array:
        return jax.flatten_util.ravel_pytree(tree)[0]

    def init(params: Any) -> Any:
        return inner.init(flat(params))

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        vector, unflatten = jax.flatten_util.ravel_pytree(updates)
        new, state = inner.update(vector, state, None if params is None else flat(params), **extra)
        return unflatten(new), state

    return Pair(init, update, takes_extra=True)
