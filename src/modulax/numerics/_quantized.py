r"""Arrays in 8 or 4 bits an entry, in blocks with a scale each: what `LowBit` puts into states.

An entry is stored as the root of its ratio to the largest absolute value of its block: the square root of entries with
a sign, the fourth root of those without. The codes of equal distance between the roots are closer together where the
entries are small, in the same way for a first moment $m$ and the root of a second moment, $\sqrt v$. Both ways take a
few instructions of an entry, and no table.
"""

import abc
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, Self, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Inexact, Int8, UInt8, UInt32

from .._support.module import AbstractModule
from .._support.placement import shape_on_device, undivided
from ._codes import Form, Rows, by_floats, by_patterns, draws_of, level, of_entries
from ._nibbles import packed, unpacked

Q = TypeVar("Q", bound="Quantized")


class AbstractQuantized(AbstractModule):
    """An array in fewer bits, at the place of the array in a state."""

    @abc.abstractmethod
    def dequantize(self) -> Inexact[Array, "..."]:
        """Return the array that is stored."""

    @abc.abstractmethod
    def quantize(self, x: Inexact[Array, "..."], seeds: UInt32[Array, "2"] | None = None) -> Self:
        """Return another array of the same shape and dtype in the form of this one.

        Args:
            x: the array to store.
            seeds: a seed and a phase for stochastic rounding; by default, entries are rounded to the nearest value.
        """


class Quantized(AbstractQuantized):
    r"""An array in 8 or 4 bits per entry, such as a moment in the state of `LowBit`.

        mu = tree.get(state, "mu")["kernel"].dequantize()

    A block is a run of `block` entries along the last axis, if its length is a multiple of `block`, and else of the
    flattened array. In 4 bits, the length of the axis before the last must be even too. With $s$ the largest absolute
    value of the block, a code $c$ stands for

    $$
    x = s \cdot \frac{c\,|c|}{L^2}, \quad L = 2^{bits - 1} - 1, \qquad \text{or} \qquad
    x = s \cdot \Big(\frac{c + 1}{2^{bits}}\Big)^4
    $$

    if the entries have no sign. A block of zeros is stored exactly; in any other block without signs, no entry is zero.
    A NaN or an infinity makes its whole block NaN or infinite.

    Args:
        codes: int8, or uint8 for entries without sign. In 8 bits, they have the shape of the array. In 4 bits, each
            byte holds those of two rows, eight apart if their number is a multiple of 16.
        scales: the largest absolute value of every block, in float32.
        shape: the shape of the array.
        dtype: the dtype of the array.
        bits: bits of an entry.
        block: entries of a block.
    """

    codes: Int8[Array, "..."] | UInt8[Array, "..."]
    scales: Float[Array, "..."]
    shape: tuple[int, ...] = eqx.field(static=True)
    dtype: np.dtype = eqx.field(static=True)
    bits: int = eqx.field(static=True)
    block: int = eqx.field(static=True)

    @property
    def _form(self) -> Form:
        """How the array is stored."""
        return Form(self.bits, self.block, self.codes.dtype == jnp.int8)

    def dequantize(self) -> Inexact[Array, "..."]:
        """Return the array that is stored, in its own dtype."""
        codes = self.codes.astype(jnp.int32)  # also without sign: a CPU converts it to floats faster than uint32
        rows = unpacked(codes, self._form.is_signed) if self.bits == 4 else _in_rows(codes, self.bits, self.block)
        x = level(rows.astype(jnp.float32), self._form) * of_entries(self.scales, self.block)
        x = x if _is_by_rows(self.shape, self.bits, self.block) else x.reshape(-1)[: math.prod(self.shape)]
        return x.reshape(self.shape).astype(self.dtype)

    def quantize(self, x: Inexact[Array, "..."], seeds: UInt32[Array, "2"] | None = None) -> Self:
        """Return another array of the same shape and dtype in the form of this one.

        Args:
            x: the array to store.
            seeds: a seed and a phase for stochastic rounding; by default, entries are rounded to the nearest code.
        """
        return quantize_together([self], [x], None if seeds is None else [seeds])[0]


def quantize_together(
    forms: Sequence[Q], xs: Sequence[Inexact[Array, "..."]], seeds: Sequence[UInt32[Array, "2"]] | None
) -> list[Q]:
    """Quantize arrays of one shape, such as all moments of a parameter, in the form of others.

    A TPU then finds the scales of all in one kernel, and reads the gradient that they are computed from once.
    """
    pairs = _encode(xs, [x._form for x in forms], seeds)
    return [type(x)(*pair, x.shape, x.dtype, x.bits, x.block) for x, pair in zip(forms, pairs, strict=True)]


def quantized(x: Inexact[Array, "..."], bits: int, block: int, nonnegative: bool) -> Quantized:
    """Store an array in fewer bits.

    Args:
        x: a real array of at least two entries.
        bits: 8 or 4.
        block: entries of a block, a power of two; a smaller array is a single block.
        nonnegative: whether no entry is negative.
    """
    block = _block_for(x.shape, bits, block)
    ((codes, scales),) = _encode([x], [Form(bits, block, not nonnegative)], None)
    return Quantized(codes, scales, x.shape, np.dtype(x.dtype), bits, block)


def form_of(shape: tuple[int, ...], codes: Any, scales: Any) -> tuple[int, int] | None:
    """Return the bits and the block with which an array of a shape has such codes and scales; None if it can't.

    Args:
        shape: the shape of the array.
        codes: the codes, or their shape and dtype.
        scales: the scales, or their shape and dtype.
    """
    size, counts = math.prod(shape), tuple(scales.shape)
    if size < 2 or len(counts) < 2 or 0 in counts:
        return None
    # In 8 bits, a flattened array has the shape of its codes; in 4 bits, a row of them is a block.
    of_flat = 2 ** math.ceil(math.log2(max(size / counts[0], 1)))
    blocks = shape[-1] // counts[-1], of_flat, *codes.shape[-1:]
    forms = [
        x for x in itertools.product((8, 4), blocks) if x[1] and (tuple(codes.shape), counts) == _layout(shape, *x)
    ]
    # Rows of seven entries have no blocks of their own.
    return next((x for x in forms if _block_for(shape, x[0], 2 ** math.ceil(math.log2(x[1]))) == x[1]), None)


def _layout(shape: tuple[int, ...], bits: int, block: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shapes of the codes and of the scales of an array."""
    rows = shape if _is_by_rows(shape, bits, block) else (_number_of_blocks(math.prod(shape), bits, block), block)
    scales = (*rows[:-1], rows[-1] // block)
    return shape if bits == 8 else (*rows[:-2], rows[-2] // 2, rows[-1]), scales


def _block_for(shape: tuple[int, ...], bits: int, block: int) -> int:
    """The length of the blocks of an array: a divisor of its last axis, if there is one that is not much smaller."""
    for length in range(block, 3 * block // 4 - 1, -2):
        if _is_by_rows(shape, bits, length):
            return length
    return min(block, 2 ** math.ceil(math.log2(math.prod(shape))))


def _is_by_rows(shape: tuple[int, ...], bits: int, block: int) -> bool:
    """Whether the blocks are along the last axis, so that codes and scales can be sharded as the array is."""
    return len(shape) > 1 and shape[-1] % block == 0 and (bits == 8 or shape[-2] % 2 == 0)


def _number_of_blocks(size: int, bits: int, block: int) -> int:
    """The number of blocks of a flattened array; in 4 bits, a byte holds entries of two blocks."""
    blocks = -(-size // block)
    return blocks if bits == 8 else blocks + blocks % 2


def _in_rows(x: Array, bits: int, block: int) -> Array:
    """The array, or the flattened array as rows of a block each."""
    shard = shape_on_device(x)
    if _is_by_rows(x.shape, bits, block):
        return undivided(x, [x.ndim - 1]) if shard[-1] % block else x
    blocks = _number_of_blocks(x.size, bits, block)
    whole = block if bits == 8 else 2 * block
    if shard[1:] != x.shape[1:] or math.prod(shard) % whole:
        x = undivided(x, range(x.ndim))
    return jnp.pad(x.reshape(-1), (0, blocks * block - x.size)).reshape(blocks, block)


def _encode(xs: Sequence[Array], forms: Sequence[Form], seeds: Sequence[Array] | None) -> list[tuple[Array, Array]]:
    """The codes and scales of arrays of one shape, with blocks of one length."""
    entries = [
        _in_rows(_on_device(x).astype(jnp.float32), form.bits, form.block) for x, form in zip(xs, forms, strict=True)
    ]
    draws: list[Array | None] = [None] * len(xs)
    if seeds is not None:
        draws = [draws_of(seed, x, form.bits) for seed, x, form in zip(seeds, entries, forms, strict=True)]

    def by(way: Callable[..., list[tuple[Array, Array]]]) -> Callable[..., list[tuple[Array, Array]]]:
        return lambda entries, draws: way([Rows(*x) for x in zip(entries, draws, forms, strict=True)])

    found = jax.lax.platform_dependent(
        entries, draws, cpu=by(by_patterns), tpu=by(functools.partial(by_floats, on_tpu=True)), default=by(by_floats)
    )
    word = None if seeds is None else seeds[0][1]
    columns = zip(found, xs, forms, strict=True)
    return [(_stored(codes, x.shape, form, word), scales) for (codes, scales), x, form in columns]


def _on_device(x: Array) -> Array:
    is_on_host = jax.typeof(x).memory_space == jax.memory.Space.Host  # of an `Offload` inside
    return jax.device_put(x, jax.memory.Space.Device) if is_on_host else x


def _stored(codes: Array, shape: tuple[int, ...], form: Form, word: Any) -> Array:
    """The codes in the bytes and the shape in which they are stored."""
    if form.bits == 4:
        return packed(codes, form.is_signed, form.block, word)
    codes = codes.astype(form.dtype)
    return codes if codes.shape == shape else codes.reshape(-1)[: math.prod(shape)].reshape(shape)
