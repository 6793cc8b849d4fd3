"""Copies of parameters in a state that a lenient restore leaves fresh, next to the parameters that it restores."""

import collections
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from .._plugin.messages import listing
from .._plugin.trees import Names, join
from ._low_bit import by_end
from ._nesting import Nesting, Place
from ._stored import is_key


def remarks_on_copies(nesting: Nesting, leaves: Mapping[Names, Any], restored: Collection[Names]) -> list[str]:
    """What to say of fresh copies, such as the slow weights of `Lookahead`: they draw parameters to the template's.

    Args:
        nesting: how the states in the template are nested.
        leaves: the leaves of the template.
        restored: the names of those that are restored.
    """
    places = {name: nesting.place(name) for name in leaves}
    ends = by_end(name for name in restored if not places[name].rest)
    fields = collections.defaultdict[Names, list[tuple[Names, list[Any]]]](list)
    for name in _of_copies(nesting, places, leaves):
        place = places[name]
        if name not in restored and (others := ends.get(place.rest[1:])):
            fields[(*place.state, place.rest[0])].append((name, [leaves[other] for other in others]))
    copied = (pairs for pairs in fields.values() if all(_is_one_of(leaves[name], others) for name, others in pairs))
    found = [join(name) for pairs in copied for name, _ in pairs]
    if not found:
        return []
    return [
        f"Fresh copies of restored parameters: {listing(found)}. They have the values that the template has for these. "
        f"Restore the model first, and call `init` with it for the template of the state."
    ]


def _of_copies(nesting: Nesting, places: Mapping[Names, Place], leaves: Mapping[Names, Any]) -> Iterator[Names]:
    """The leaves of fields that begin as copies of the parameters, and count from the first step on."""
    for name, place in places.items():
        weight = leaves.get((*place.state, "weight_sum")) if place.rest[:1] == ("ema",) else None
        has_no_weight = _is_here(weight) and not np.any(weight)  # an average with `debias`
        if nesting.is_copy(place) and not has_no_weight:
            yield name


def _is_one_of(x: Any, others: list[Any]) -> bool:
    """Whether an array equals one of several, as far as their values are here."""
    if not _is_here(x):
        return False
    fitting = (other for other in others if _is_here(other) and other.shape == x.shape)
    return any(np.array_equal(np.asarray(x), np.asarray(other).astype(x.dtype)) for other in fitting)


def _is_here(x: Any) -> bool:
    if isinstance(x, jax.Array):
        return x.is_fully_addressable and not x.is_deleted() and not is_key(x)
    return isinstance(x, np.ndarray)
