"""Restore quantized moments from moments in full precision, and the other way round.

`LowBit` stores an array as its `codes` and `scales`. Where the other side of a restore, the template or the checkpoint,
has no such pair for it, the pair is treated as one array under their common names. Whatever is matched with an array of
the other side is converted. Of all arrays and pairs of the other side, the one whose names have the longest end in
common tells which it is: a pair, so that codes and scales are restored as they are, or an array, whose shape the pair
then has.

The phase of stochastic rounding, which checkpoints in 8 bits had none of at first, may be on one side only.
"""

import itertools
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import PyTree

from .._plugin.arrays import form_of, quantized
from .._plugin.states import is_quantized
from .._plugin.trees import Names
from ..states import Quantized


def widened(tree: PyTree) -> PyTree:
    """Return a tree with the shape and dtype of every array in fewer bits in its place."""

    def wide(x: Any) -> Any:
        return jax.eval_shape(lambda q: q.dequantize(), x) if is_quantized(x) else x

    return jtu.tree_map(wide, tree, is_leaf=is_quantized)


class QuantizedPair(NamedTuple):
    """A quantized array: the array that it stands for, and its form."""

    array: jax.ShapeDtypeStruct
    bits: int
    block: int
    nonnegative: bool

    def quantize(self, x: Any) -> tuple[Any, Any]:
        """Return the codes and scales of an array in this form."""
        new = quantized(jnp.asarray(x), self.bits, self.block, self.nonnegative)
        return new.codes, new.scales

    def dequantize(self, codes: Any, scales: Any) -> Any:
        """Return the array that codes and scales of this form stand for."""
        arrays = jnp.asarray(codes), jnp.asarray(scales)
        return Quantized(*arrays, self.array.shape, np.dtype(self.array.dtype), self.bits, self.block).dequantize()


class Side:
    """The arrays of the template or of the checkpoint, where a quantized array counts as one.

    Args:
        stored: the arrays by names, as they are stored.
        others: those of the other side; an array that is quantized on both sides is left as it is.

    Attributes:
        phases: the data of stochastic rounding that the other side has none of, which is neither missing nor unused.
    """

    def __init__(self, stored: Mapping[Names, Any], others: Mapping[Names, Any]):
        self.stored = stored
        self._pairs = _pairs(stored, others)
        self.phases = _phases_without_counterpart(stored, others)
        hidden = {part for name in self._pairs for part in self.parts(name)} | self.phases
        self.arrays = {name: x for name, x in stored.items() if name not in hidden}
        self.arrays |= {name: pair.array for name, pair in self._pairs.items()}

    @classmethod
    def beside_wide(cls, stored: Mapping[Names, Any], wide: Mapping[Names, Any]) -> "Side":
        """The side of a state that is converted to or from its arrays in full precision, which have no phases."""
        own = phases(stored)
        return cls(stored, {name: x for name, x in wide.items() if name not in own})

    def parts(self, name: Names) -> tuple[Names, ...]:
        """The names under which an array is stored."""
        return _parts_of(name) if name in self._pairs else (name,)

    def expanded(self, names: Iterable[Names]) -> list[Names]:
        """The names under which several arrays are stored."""
        return [part for name in names for part in self.parts(name)]

    def wanted(self, name: Names, leaf: Any) -> dict[Names, Any]:
        """What to read in place of a leaf."""
        if name not in self._pairs:
            return {name: leaf}
        return {x: jax.ShapeDtypeStruct(self.stored[x].shape, self.stored[x].dtype) for x in self.parts(name)}

    def read(self, name: Names, values: Mapping[Names, Any]) -> Any:
        """The value of an array, from what was read."""
        parts = [values[part] for part in self.parts(name)]
        return self._pairs[name].dequantize(*parts) if name in self._pairs else parts[0]

    def written(self, name: Names, value: Any) -> dict[Names, Any]:
        """A value as it is stored."""
        values = self._pairs[name].quantize(value) if name in self._pairs else (value,)
        return dict(zip(self.parts(name), values, strict=True))


def _parts_of(name: Names) -> tuple[Names, Names]:
    """The names of the codes and of the scales of a quantized array."""
    return (*name, "codes"), (*name, "scales")


def _pairs(arrays: Mapping[Names, Any], others: Mapping[Names, Any]) -> dict[Names, QuantizedPair]:
    """The arrays that are quantized on this side only, by the names that they would have in full precision."""
    names, found = _quantized_names(arrays), dict[Names, QuantizedPair]()
    if not names:
        return found
    floats = by_end(name for name, x in others.items() if jnp.issubdtype(getattr(x, "dtype", int), jnp.floating))
    both = by_end(_quantized_names(others))
    for name in names:
        codes, scales = (arrays[part] for part in _parts_of(name))
        for end in itertools.takewhile(lambda end: end not in both, _ends(name)):
            fitting = [(x, form_of(tuple(others[x].shape), codes, scales)) for x in floats.get(end, ())]
            if fitting := [(x, form) for x, form in fitting if form]:
                like, (bits, block) = max(fitting)
                array = jax.ShapeDtypeStruct(tuple(others[like].shape), others[like].dtype)
                found[name] = QuantizedPair(array, bits, block, np.dtype(codes.dtype) == np.uint8)
                break
    return found


def _ends(name: Names) -> list[Names]:
    """The ends of a name, from the longest one on."""
    return [name[start:] for start in range(len(name) + 1)]


def by_end(names: Iterable[Names]) -> dict[Names, list[Names]]:
    """Names by each of their ends."""
    found: dict[Names, list[Names]] = {}
    for name in names:
        for end in _ends(name):
            found.setdefault(end, []).append(name)
    return found


def _phases_without_counterpart(arrays: Mapping[Names, Any], others: Mapping[Names, Any]) -> set[Names]:
    """The phases of one side only; none if the other side too has some of its own, which may have been renamed."""
    own, other = phases(arrays), phases(others)
    return set() if other - own else own - others.keys()


def phases(arrays: Mapping[Names, Any]) -> set[Names]:
    """The names of the fields `rng_key` of `LowBit`, which are beside an inner state with codes."""
    inner = {x[:i] for x in _quantized_names(arrays) for i, part in enumerate(x) if part == "inner_state"}
    return {name for x in inner if (name := (*x, "rng_key")) in arrays}


def _quantized_names(arrays: Mapping[Names, Any]) -> list[Names]:
    """The names at which there are codes and scales."""
    codes = [x for x in arrays if x[-1] == "codes" and getattr(arrays[x], "dtype", None) in (np.int8, np.uint8)]
    return [names[:-1] for names in codes if (*names[:-1], "scales") in arrays]
