r"""Arrays in 8 or 4 bits an entry, in blocks with a scale each: what `LowBit` puts into states.

An entry is stored as the root of its ratio to the largest absolute value of its block: the square root of entries with
a sign, the fourth root of those without. The codes of equal distance between the roots are closer together where the
entries are small, in the same way for a first moment $m$ and the root of a second moment, $\sqrt v$. Both ways take a
few instructions of an entry, and no table.
"""

import abc
import functools
import math
from collections.abc import Callable, Iterable
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Inexact, Int8, Int32, UInt8, UInt32

from .._support.module import AbstractModule

_TINY = float(np.finfo(np.float32).tiny)
_LANES = 32  # XLA's CPU backend splits the maximum over more entries, and stores them in between
_ROUND = 1.5 * 2**23


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
    r"""An array in 8 or 4 bits an entry, as the moments in the state of `LowBit`.

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
            byte holds those of two neighboring rows, and the last axis is that within a block.
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

    def dequantize(self) -> Inexact[Array, "..."]:
        """Return the array that is stored, in its own dtype."""
        is_signed = self.codes.dtype == jnp.int8
        codes = self.codes.astype(jnp.int32)  # also without sign: a CPU converts it to floats faster than uint32
        rows = _unpacked(codes, is_signed) if self.bits == 4 else _in_rows(codes, self.bits, self.block)
        x = _level(rows.astype(jnp.float32), is_signed, self.bits) * _of_entries(self.scales, self.block)
        x = x if _is_by_rows(self.shape, self.bits, self.block) else x.reshape(-1)[: math.prod(self.shape)]
        return x.reshape(self.shape).astype(self.dtype)

    def quantize(self, x: Inexact[Array, "..."], seeds: UInt32[Array, "2"] | None = None) -> Self:
        """Return another array of the same shape and dtype in the form of this one.

        Args:
            x: the array to store.
            seeds: a seed and a phase for stochastic rounding; by default, entries are rounded to the nearest code.
        """
        codes, scales = _encode(x, self.bits, self.block, self.codes.dtype == jnp.int8, seeds)
        return type(self)(codes, scales, self.shape, self.dtype, self.bits, self.block)


def quantized(x: Inexact[Array, "..."], bits: int, block: int, nonnegative: bool) -> Quantized:
    """Store an array in fewer bits.

    Args:
        x: a real array of at least two entries.
        bits: 8 or 4.
        block: entries of a block, a power of two; a smaller array is a single block.
        nonnegative: whether no entry is negative.
    """
    block = _block_for(x.shape, bits, block)
    codes, scales = _encode(x, bits, block, not nonnegative, None)
    return Quantized(codes, scales, x.shape, np.dtype(x.dtype), bits, block)


def form_of(shape: tuple[int, ...], codes: Any, scales: Any) -> tuple[int, int] | None:
    """Return the bits and the block with which an array of a shape has such codes and scales; None if it can't.

    Args:
        shape: the shape of the array.
        codes: the codes, or their shape and dtype.
        scales: the scales, or their shape and dtype.
    """
    size, counts = math.prod(shape), scales.shape
    if size < 2 or len(counts) < 2 or 0 in counts:
        return None
    of_flat = 2 ** max(math.ceil(math.log2(size / counts[0])), 0)
    for bits, block in ((8, shape[-1] // counts[-1]), (8, of_flat), (4, codes.shape[-1])):
        if block > 0 and (tuple(codes.shape), tuple(counts)) == _layout(shape, bits, block):
            return bits, block
    return None


def _layout(shape: tuple[int, ...], bits: int, block: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shapes of the codes and of the scales of an array."""
    rows = shape if _is_by_rows(shape, bits, block) else (_number_of_blocks(math.prod(shape), bits, block), block)
    scales = (*rows[:-1], rows[-1] // block)
    return shape if bits == 8 else (*rows[:-2], rows[-2] // 2, rows[-1] // block, block), scales


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
    if _is_by_rows(x.shape, bits, block):
        return x
    blocks = _number_of_blocks(x.size, bits, block)
    whole = block if bits == 8 else 2 * block
    shard = jax.typeof(x).sharding.shard_shape(x.shape)
    if shard[1:] != x.shape[1:] or math.prod(shard) % whole:
        x = _undivided(x, range(x.ndim))
    return jnp.pad(x.reshape(-1), (0, blocks * block - x.size)).reshape(blocks, block)


def _in_blocks(x: Array, block: int) -> Array:
    """The rows in blocks, and in tiles of a TPU."""
    x = _tiles(x)
    return x.reshape(*x.shape[:-1], -1, block)


def _tiles(x: Array) -> Array:
    """Rows in groups of eight, if all devices have whole groups.

    A TPU stores arrays in tiles of 8 rows and 128 lanes. A reshape that splits tiles, or groups of more rows, would
    move all entries.
    """
    if x.shape[-2] % 8 or jax.typeof(x).sharding.shard_shape(x.shape)[-2] % 8:
        return x
    return x.reshape(*x.shape[:-2], -1, 8, x.shape[-1])


def _undivided(x: Array, axes: Iterable[int]) -> Array:
    """The array with these axes whole on every device of a mesh: on explicit axes, JAX doesn't gather them itself."""
    sharding = jax.typeof(x).sharding
    spec = [None if axis in axes else names for axis, names in enumerate(sharding.spec)]
    return x if spec == list(sharding.spec) else jax.sharding.reshard(x, PartitionSpec(*spec))


def _encode(x: Array, bits: int, block: int, is_signed: bool, seeds: Array | None) -> tuple[Array, Array]:
    """The codes and scales of an array."""
    if jax.typeof(x).memory_space == jax.memory.Space.Host:  # of an `Offload` inside
        x = jax.device_put(x, jax.memory.Space.Device)
    rows = _in_rows(x.astype(jnp.float32), bits, block)
    draws = None if seeds is None else _draws(seeds, rows, bits, block)
    form = {"bits": bits, "block": block, "is_signed": is_signed}
    codes, scales = jax.lax.platform_dependent(
        rows, draws, cpu=functools.partial(_by_patterns, **form), default=functools.partial(_by_floats, **form)
    )
    if bits == 4:
        codes = _packed(codes.reshape(*rows.shape[:-1], -1, block))
    codes = codes.astype(jnp.int8 if is_signed else jnp.uint8)
    if bits == 8:
        codes = codes.reshape(x.shape) if rows.shape == x.shape else codes.reshape(-1)[: x.size].reshape(x.shape)
    return codes, scales


def _by_patterns(rows: Array, draws: Array | None, *, bits: int, block: int, is_signed: bool) -> tuple[Array, Array]:
    """Integers whose lowest bits are the codes, and the scales.

    The bit patterns of nonnegative numbers are in the order of the numbers, and NaN is above all. XLA's CPU backend
    fuses a maximum of integers with what computes them. For one of floats, it would store all of them first.
    """
    pattern = jax.lax.bitcast_convert_type(rows, jnp.int32)
    absolute = pattern & 0x7FFFFFFF
    scales = jax.lax.bitcast_convert_type(_largest(_in_blocks(absolute, block)), jnp.float32)
    scales = scales.reshape(*rows.shape[:-1], -1)
    ratio = _ratio(jax.lax.bitcast_convert_type(absolute, jnp.float32), scales, block)
    codes = jax.lax.bitcast_convert_type(_code(ratio, draws, is_signed, bits, _with_lowest_bits), jnp.int32)
    if is_signed:
        sign = pattern >> 31
        codes = (codes ^ sign) - sign
    return codes, scales


def _by_floats(rows: Array, draws: Array | None, *, bits: int, block: int, is_signed: bool) -> tuple[Array, Array]:
    """Codes and scales in the form that XLA's TPU backend computes in one kernel with the step.

    An integer of 32 bits between the arithmetic and the codes would make it two kernels. Each number of a block takes
    16 times its bytes while it is broadcast to the entries, so the scales are the only ones.
    """
    absolute = jnp.abs(rows)
    # Of patterns here too: a maximum of floats may lose a NaN.
    pattern = jax.lax.bitcast_convert_type(absolute, jnp.int32)
    scales = jax.lax.bitcast_convert_type(jnp.max(_in_blocks(pattern, block), -1), jnp.float32)
    scales = scales.reshape(*rows.shape[:-1], -1)
    ratio = jnp.where(absolute >= _TINY, absolute / _of_entries(scales, block), 0)
    codes = _code(ratio, draws, is_signed, bits, _to_integer)
    codes = jnp.where(rows < 0, -codes, codes).astype(jnp.int8 if is_signed else jnp.uint8)
    return codes.astype(jnp.int32), scales


def _ratio(x: Float[Array, "... block"], scales: Float[Array, "..."], block: int) -> Float[Array, "... block"]:
    """Nonnegative entries as parts of the largest of their block; 0 where it is zero or denormal.

    The reciprocal of a scale above 2^126 would be denormal, and XLA makes those zero. So large blocks are scaled first.
    """
    unit = jnp.where(scales > 1, 0.125, 1)
    inverse = jnp.where(scales >= _TINY, 1 / (scales * unit), 0)
    return (x * _of_entries(unit, block)) * _of_entries(inverse, block)


def _of_entries(x: Array, block: int) -> Array:
    """A number of every block, for every entry."""
    tiles = _tiles(x)
    entries = jnp.broadcast_to(tiles[..., None], (*tiles.shape, block))
    # In two steps: on explicit axes, JAX merges one pair of axes at a time.
    return entries.reshape(*tiles.shape[:-1], -1).reshape(*x.shape[:-1], -1)


def _largest(x: Int32[Array, "... block"]) -> Int32[Array, "..."]:
    """The maximum over every block, after that of its halves."""
    while x.shape[-1] > _LANES and x.shape[-1] % 2 == 0:
        half = x.shape[-1] // 2
        x = jnp.maximum(x[..., :half], x[..., half:])
    return jnp.max(x, -1)


def _packed(codes: Int32[Array, "..."]) -> Int32[Array, "..."]:
    """Integers whose lowest 8 bits hold the lowest 4 of two neighboring rows of blocks."""
    if jax.typeof(codes).sharding.shard_shape(codes.shape)[-3] % 2:
        codes = _undivided(codes, [codes.ndim - 3])
    pairs = codes.reshape(*codes.shape[:-3], -1, 2, *codes.shape[-2:])
    return pairs[..., 1, :, :] << 4 | pairs[..., 0, :, :] & 15


def _unpacked(codes: Int32[Array, "..."], is_signed: bool) -> Int32[Array, "..."]:
    """The rows of codes that bytes hold."""
    *outer, rows, blocks, block = codes.shape
    codes, last = codes.reshape(*outer, rows, blocks * block), blocks * block
    pairs = jnp.broadcast_to(codes[..., None, :], (*outer, rows, 2, last))
    shift = jax.lax.broadcasted_iota(jnp.int32, pairs.shape, len(outer) + 1) * 4
    pairs = pairs << (28 - shift) >> 28 if is_signed else pairs >> shift & 15
    return pairs.reshape(*outer, 2 * rows, last)


# --- Ratios to the largest absolute value, and codes ------------------------------------------------
# A number from 0 to 2^22 is rounded by adding 1.5 * 2^23: the lowest bits of the sum are those of the nearest integer.
# Only the lowest 4 or 8 are used on a CPU, where a conversion would take several instructions more, because of NaN and
# infinity.


def _level(code: Array, is_signed: bool, bits: int) -> Array:
    """The ratio that a code stands for."""
    if is_signed:
        c = code * (1 / _most(bits))
        return c * jnp.abs(c)
    c = (code + 1) * (0.5**bits)
    return (c * c) * (c * c)


def _with_lowest_bits(x: Array, more: Any) -> Array:
    """The nearest integer and another, in the lowest bits of the sum."""
    return x + (more + _ROUND)


def _to_integer(x: Array, more: Any) -> Array:
    """The nearest integer and another. XLA would simplify the sum minus the same constant to the number itself."""
    return jax.lax.round(x, jax.lax.RoundingMethod.TO_NEAREST_EVEN) + more


def _code(ratio: Array, draws: Array | None, is_signed: bool, bits: int, rounded: Callable[..., Array]) -> Array:
    """The code of a ratio, in one of the two forms of rounded numbers."""
    if draws is None:
        return _nearest(ratio, is_signed, bits, rounded)
    return _stochastic(ratio, draws, is_signed, bits, rounded)


def _nearest(ratio: Array, is_signed: bool, bits: int, rounded: Callable[..., Array]) -> Array:
    """The nearest code."""
    root = jnp.sqrt(ratio)
    if is_signed:
        return rounded(root * _most(bits), 0)
    return rounded(jnp.maximum(jnp.sqrt(root) * 2.0**bits, 1), -1)


def _stochastic(ratio: Array, draws: Array, is_signed: bool, bits: int, rounded: Callable[..., Array]) -> Array:
    r"""The code below or above, so that an expectation is right.

    With a sign, that of the level: with a draw $u$ from 0 to 1, the code above $c$ is chosen where
    $t > c^2 + u ((c + 1)^2 - c^2)$. That is $\sqrt{t - u (1 - u)} > c + u$. Without, that of the reciprocal of the root
    of the level, which a step is multiplied by: where $1 / \sqrt t < 1 / c^2 - u (1 / c^2 - 1 / (c + 1)^2)$.
    """
    if is_signed:
        w = draws - 1.5
        return rounded(jnp.sqrt(jnp.maximum(w * w + (ratio * _most(bits) ** 2 - 0.25), 0)) - w, 0)
    root = jnp.maximum(jnp.sqrt(ratio) * 4.0**bits, 1)
    c = jnp.floor(jnp.sqrt(root))
    is_above = (root - c * c) * (c + 1) ** 2 > (draws - 1) * (root * (2 * c + 1))
    return rounded(c, jnp.where(is_above, 0.0, -1.0))


def _draws(seeds: UInt32[Array, "2"], rows: Array, bits: int, block: int) -> Float[Array, "..."]:
    r"""Numbers from 1 to 2 that are spread evenly over the steps: a hash of the place in the array, plus a phase.

    The hash is the finalizer of MurmurHash3, of the place and the first seed. The second seed is the phase, which grows
    by a constant from step to step. In a step of AdamW, the generator of JAX would take more time than all the
    rest. In 4 bits, the two entries of a byte share a hash, and each has half of its bits. The draws keep a distance of
    2^-15 from both ends, or 2^-17 in 4 bits, which is so large that an error of rounding changes no entry that is
    exactly what a code stands for.
    """
    # XLA's CPU backend vectorizes what has the shape of the codes.
    like = jax.typeof(rows if bits == 8 else rows.reshape(*rows.shape[:-1], -1, block))
    shape = like.shape
    # On explicit axes, numbers of no sharding would be computed whole on each device.
    indices = functools.partial(
        jax.lax.broadcasted_iota, jnp.uint32, shape, out_sharding=like.sharding if any(like.sharding.spec) else None
    )
    place: Any = np.uint32(0)
    for axis in range(len(shape)):
        index = indices(axis)
        is_of_pairs = bits == 4 and axis == rows.ndim - 2
        place = place * np.uint32(shape[axis]) + (index >> np.uint32(1) if is_of_pairs else index)
    h = place + seeds[0] * np.uint32(0x9E3779B1)
    h = (h ^ h >> np.uint32(16)) * np.uint32(0x85EBCA6B)
    h = (h ^ h >> np.uint32(13)) * np.uint32(0xC2B2AE35)
    if bits == 4:
        half = indices(rows.ndim - 2) & np.uint32(1)
        h = (h ^ h >> np.uint32(16)) << (half << np.uint32(4))
    h = h + seeds[1]
    kept, least = (0x7FFE00, 0x100) if bits == 8 else (0x7FFF80, 0x40)
    mantissa = h >> np.uint32(9) & np.uint32(kept) | np.uint32(0x3F800000 + least)
    return jax.lax.bitcast_convert_type(mantissa, jnp.float32).reshape(rows.shape)


def _most(bits: int) -> int:
    """The largest code with a sign."""
    return 2 ** (bits - 1) - 1
