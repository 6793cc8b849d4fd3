"""Restore quantized moments from moments in full precision, and the other way round.

`LowBit` stores an array as its `codes` and `scales`. Where only one side of a restore has such pairs, the template or
the checkpoint, each pair is treated as one array under their common name. Whatever is matched with an array of the
other side is converted. The shape of a pair is that of an array of the other side, the one whose name has the longest
end in common.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..numerics._quantized import Quantized, form_of, quantized
from ..tree._paths import join, split


class Pair(NamedTuple):
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


def parts_of(name: str) -> tuple[str, str]:
    """The names of the codes and of the scales of a quantized array."""
    names = split(name)
    return join((*names, "codes")), join((*names, "scales"))


def pairs(arrays: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Pair]:
    """Find the quantized arrays, by the names that they would have in full precision; nothing if both sides have some.

    Args:
        arrays: the arrays of the template or of the checkpoint, by name.
        others: those of the other side.
    """
    names = _quantized_names(arrays)
    if not names or _quantized_names(others):
        return {}
    found = {}
    for name in names:
        codes, scales = (arrays[part] for part in parts_of(name))
        fitting = [
            (_in_common(split(name), split(other)), other, form)
            for other, x in others.items()
            if jnp.issubdtype(x.dtype, jnp.floating) and (form := form_of(tuple(x.shape), codes, scales))
        ]
        if fitting:
            _, like, (bits, block) = max(fitting)
            array = jax.ShapeDtypeStruct(tuple(others[like].shape), others[like].dtype)
            found[name] = Pair(array, bits, block, np.dtype(codes.dtype) == np.uint8)
    return found


def collapsed(arrays: Mapping[str, Any], found: Mapping[str, Pair]) -> dict[str, Any]:
    """Replace the codes and scales of quantized arrays by the arrays that they stand for."""
    hidden = {part for name in found for part in parts_of(name)}
    return {name: x for name, x in arrays.items() if name not in hidden} | {n: p.array for n, p in found.items()}


def expanded(names: Iterable[str], found: Mapping[str, Pair]) -> tuple[str, ...]:
    """Replace the names of quantized arrays by those of their codes and scales."""
    return tuple(part for name in names for part in (parts_of(name) if name in found else (name,)))


def _quantized_names(arrays: Mapping[str, Any]) -> list[str]:
    """The names at which there are codes and scales."""
    out = []
    for name, x in arrays.items():
        *rest, last = split(name)
        is_code = last == "codes" and getattr(x, "dtype", None) in (np.int8, np.uint8)
        if is_code and join((*rest, "scales")) in arrays:
            out.append(join(tuple(rest)))
    return out


def _in_common(a: tuple[str, ...], b: tuple[str, ...]) -> int:
    """How many names at the end are equal."""
    at_the_end = enumerate(zip(reversed(a), reversed(b), strict=False))
    return next((i for i, (x, y) in at_the_end if x != y), min(len(a), len(b)))
