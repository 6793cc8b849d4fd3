"""The codes of entries in 8 or 4 bits: the rounded roots of their ratios to the largest absolute value of a block.

There are two ways to compute the same codes: by bit patterns for XLA's CPU backend, and by floats for the others.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.layout import Layout, with_layout_constraint
from jaxtyping import Array, Float, Int32, UInt32

from .._support.placement import shape_on_device
from ._nibbles import rows_apart

_TINY = float(np.finfo(np.float32).tiny)
_LANES = 32  # XLA's CPU backend splits the maximum over more entries, and stores them in between
_ROUND = 1.5 * 2**23
_TILE = 128  # lanes of a TPU


class Form(NamedTuple):
    """How an array is stored: bits of an entry, entries of a block, and whether entries have a sign."""

    bits: int
    block: int
    is_signed: bool

    @property
    def dtype(self) -> Any:
        """The dtype of the codes."""
        return jnp.int8 if self.is_signed else jnp.uint8

    @property
    def most(self) -> int:
        """The largest code with a sign."""
        return 2 ** (self.bits - 1) - 1


class Rows(NamedTuple):
    """Rows of blocks, the draws of their rounding, or None to round to the nearest code, and the form of the codes."""

    entries: Float[Array, "... rows entries"]
    draws: Float[Array, "... rows entries"] | None
    form: Form


def by_patterns(arrays: Sequence[Rows]) -> list[tuple[Array, Array]]:
    """Integers whose lowest bits are the codes, and the scales, of each array.

    The bit patterns of nonnegative numbers are in the order of the numbers, and NaN is above all. XLA's CPU backend
    fuses a maximum of integers with what computes them. For one of floats, it would store all of them first.
    """
    found = []
    for rows in arrays:
        pattern = jax.lax.bitcast_convert_type(rows.entries, jnp.int32)
        absolute = pattern & 0x7FFFFFFF
        largest = _largest(_in_blocks(absolute, rows.form.block))
        scales = jax.lax.bitcast_convert_type(largest, jnp.float32).reshape(*pattern.shape[:-1], -1)
        ratio = _ratio(jax.lax.bitcast_convert_type(absolute, jnp.float32), scales, rows.form.block)
        codes = jax.lax.bitcast_convert_type(_code(ratio, rows, _with_lowest_bits), jnp.int32)
        if rows.form.is_signed:
            sign = pattern >> 31
            codes = (codes ^ sign) - sign
        found.append((codes, scales))
    return found


def by_floats(arrays: Sequence[Rows], *, on_tpu: bool = False) -> list[tuple[Array, Array]]:
    """Codes and scales in the form that XLA's TPU backend computes in one kernel with the step.

    An integer of 32 bits between the arithmetic and the codes would make it two kernels. Each number of a block takes
    16 times its bytes while it is broadcast to the entries, so the scales are the only ones.

    Args:
        arrays: arrays of one shape, with blocks of one length.
        on_tpu: whether to find the scales of all arrays by one reduction, for which XLA's TPU backend makes one kernel.
    """
    block = arrays[0].form.block
    # Of patterns here too: a maximum of floats may lose a NaN.
    patterns = [jax.lax.bitcast_convert_type(jnp.abs(x.entries), jnp.int32) for x in arrays]
    maxima = _maxima_on_tpu(patterns, block) if on_tpu else [jnp.max(_in_blocks(x, block), -1) for x in patterns]
    found = []
    for rows, largest in zip(arrays, maxima, strict=True):
        absolute = jnp.abs(rows.entries)
        scales = jax.lax.bitcast_convert_type(largest.reshape(*absolute.shape[:-1], -1), jnp.float32)
        ratio = jnp.where(absolute >= _TINY, absolute / of_entries(scales, block), 0)
        codes = _code(ratio, rows, _to_integer)
        codes = jnp.where(rows.entries < 0, -codes, codes).astype(rows.form.dtype).astype(jnp.int32)
        found.append((codes, scales))
    return found


def _ratio(x: Float[Array, "... block"], scales: Float[Array, "..."], block: int) -> Float[Array, "... block"]:
    """Nonnegative entries as parts of the largest of their block; 0 where it is zero or denormal.

    The reciprocal of a scale above 2^126 would be denormal, and XLA makes those zero. So large blocks are scaled first.
    """
    unit = jnp.where(scales > 1, 0.125, 1)
    inverse = jnp.where(scales >= _TINY, 1 / (scales * unit), 0)
    return (x * of_entries(unit, block)) * of_entries(inverse, block)


def of_entries(x: Array, block: int) -> Array:
    """A number of every block, for every entry."""
    if block > _TILE and block % _TILE == 0:
        parts = block // _TILE
        x, block = jnp.broadcast_to(x[..., None], (*x.shape, parts)).reshape(*x.shape[:-1], -1), _TILE
    tiles = _tiles(x)
    entries = jnp.broadcast_to(tiles[..., None], (*tiles.shape, block))
    # In two steps: on explicit axes, JAX merges one pair of axes at a time.
    return entries.reshape(*tiles.shape[:-1], -1).reshape(*x.shape[:-1], -1)


def _maxima_on_tpu(rows: Sequence[Int32[Array, "... rows entries"]], block: int) -> list[Int32[Array, "..."]]:
    """The maxima over every block of nonnegative integers, after those of the parts of a block that fill the lanes."""
    length = _TILE if block % _TILE == 0 else block
    maxima = [
        x.reshape(*row.shape[:-1], -1)
        for x, row in zip(_maxima([_in_blocks(x, length) for x in rows]), rows, strict=True)
    ]
    if block > length:
        maxima = [jnp.max(x.reshape(*x.shape[:-1], -1, block // length), -1) for x in maxima]
    return list(map(_compact, maxima))


def _maxima(xs: Sequence[Array]) -> Sequence[Array]:
    """The maxima over the last axis of nonnegative integers, by one reduction of all arrays that are divided alike."""
    if len({jax.typeof(x) for x in xs}) > 1:  # on explicit axes, with other groups of rows
        return [_maxima([x])[0] for x in xs]

    def largest(a: Sequence[Array], b: Sequence[Array]) -> list[Array]:
        return [jnp.maximum(x, y) for x, y in zip(a, b, strict=True)]

    return jax.lax.reduce(xs, [np.int32(0)] * len(xs), largest, [xs[0].ndim - 1])


def _compact(scales: Array) -> Array:
    """Scales that a TPU stores with the rows in lanes.

    To broadcast scales to entries, a TPU stores those of eight rows in 128 lanes: 16 times their bytes. The new scales
    would be kept in that form until the end of the program, those of all arrays at once.
    """
    n = scales.ndim
    return with_layout_constraint(scales, Layout((*range(n - 2), n - 1, n - 2)))


def _in_blocks(x: Array, block: int) -> Array:
    """The rows in blocks, and in tiles of a TPU."""
    x = _tiles(x)
    return x.reshape(*x.shape[:-1], -1, block)


def _tiles(x: Array) -> Array:
    """Rows in groups of eight, if all devices have whole groups.

    A TPU stores arrays in tiles of 8 rows and 128 lanes. A reshape that splits tiles, or groups of more rows, would
    move all entries.
    """
    if x.shape[-2] % 8 or shape_on_device(x)[-2] % 8:
        return x
    return x.reshape(*x.shape[:-2], -1, 8, x.shape[-1])


def _largest(x: Int32[Array, "... block"]) -> Int32[Array, "..."]:
    """The maximum over every block, after that of its halves."""
    while x.shape[-1] > _LANES and x.shape[-1] % 2 == 0:
        half = x.shape[-1] // 2
        x = jnp.maximum(x[..., :half], x[..., half:])
    return jnp.max(x, -1)


# A number from 0 to 2^22 is rounded by adding 1.5 * 2^23: the lowest bits of the sum are those of the nearest integer.
# Only the lowest 4 or 8 are used on a CPU, where a conversion would take several instructions more, because of NaN and
# infinity.


def level(code: Array, form: Form) -> Array:
    """The ratio that a code stands for."""
    if form.is_signed:
        c = code * (1 / form.most)
        return c * jnp.abs(c)
    c = (code + 1) * (0.5**form.bits)
    return (c * c) * (c * c)


def _with_lowest_bits(x: Array, more: Any) -> Array:
    """The nearest integer and another, in the lowest bits of the sum."""
    return x + (more + _ROUND)


def _to_integer(x: Array, more: Any) -> Array:
    """The nearest integer and another. XLA would simplify the sum minus the same constant to the number itself."""
    return jax.lax.round(x, jax.lax.RoundingMethod.TO_NEAREST_EVEN) + more


def _code(ratio: Array, rows: Rows, rounded: Callable[..., Array]) -> Array:
    """The code of a ratio, in one of the two forms of rounded numbers."""
    if rows.draws is None:
        return _nearest(ratio, rows.form, rounded)
    return _stochastic(ratio, rows.draws, rows.form, rounded)


def _nearest(ratio: Array, form: Form, rounded: Callable[..., Array]) -> Array:
    """The nearest code."""
    root = jnp.sqrt(ratio)
    if form.is_signed:
        return rounded(root * form.most, 0)
    return rounded(jnp.maximum(jnp.sqrt(root) * 2.0**form.bits, 1), -1)


def _stochastic(ratio: Array, draws: Array, form: Form, rounded: Callable[..., Array]) -> Array:
    r"""The code below or above, so that an expectation is right.

    With a sign, that of the level: with a draw $u$ from 0 to 1, the code above $c$ is chosen where
    $t > c^2 + u ((c + 1)^2 - c^2)$. That is $\sqrt{t - u (1 - u)} > c + u$. Without, that of the reciprocal of the root
    of the level, which a step is multiplied by: where $1 / \sqrt t < 1 / c^2 - u (1 / c^2 - 1 / (c + 1)^2)$.
    """
    if form.is_signed:
        w = draws - 1.5
        return rounded(jnp.sqrt(jnp.maximum(w * w + (ratio * form.most**2 - 0.25), 0)) - w, 0)
    root = jnp.maximum(jnp.sqrt(ratio) * 4.0**form.bits, 1)
    c = jnp.floor(jnp.sqrt(root))
    is_above = (root - c * c) * (c + 1) ** 2 > (draws - 1) * (root * (2 * c + 1))
    return rounded(c, jnp.where(is_above, 0.0, -1.0))


def draws_of(seeds: UInt32[Array, "2"], rows: Array, bits: int) -> Float[Array, "..."]:
    r"""Numbers from 1 to 2 that are spread evenly over the steps: a hash of the place in the array, plus a phase.

    The hash is the finalizer of MurmurHash3, of the place and the first seed. The second seed is the phase, which grows
    by a constant from step to step. In a step of AdamW, the generator of JAX would take more time than all the
    rest. In 4 bits, the two entries of a byte share a hash, and each has half of its bits. The draws keep a distance of
    2^-15 from both ends, or 2^-17 in 4 bits, which is so large that an error of rounding changes no entry that is
    exactly what a code stands for.
    """
    like = jax.typeof(rows)
    shape = like.shape
    # On explicit axes, numbers of no sharding would be computed whole on each device.
    indices = functools.partial(
        jax.lax.broadcasted_iota, jnp.uint32, shape, out_sharding=like.sharding if any(like.sharding.spec) else None
    )
    place: Any = np.uint32(0)
    half: Any = None
    for axis in range(len(shape)):
        index = indices(axis)
        if bits == 4 and axis == len(shape) - 2:
            apart = rows_apart(shape[axis])
            low, bit = np.uint32(apart - 1), np.uint32(apart.bit_length() - 1)
            half = index >> bit & np.uint32(1)
            index = index >> np.uint32(bit + 1) << bit | index & low
        place = place * np.uint32(shape[axis]) + index
    h = place + seeds[0] * np.uint32(0x9E3779B1)
    h = (h ^ h >> np.uint32(16)) * np.uint32(0x85EBCA6B)
    h = (h ^ h >> np.uint32(13)) * np.uint32(0xC2B2AE35)
    if bits == 4:
        h = (h ^ h >> np.uint32(16)) << (half << np.uint32(4))
    h = h + seeds[1]
    kept, least = (0x7FFE00, 0x100) if bits == 8 else (0x7FFF80, 0x40)
    mantissa = h >> np.uint32(9) & np.uint32(kept) | np.uint32(0x3F800000 + least)
    return jax.lax.bitcast_convert_type(mantissa, jnp.float32)
