r"""Arrays in 8 or 4 bits an entry, in blocks with a scale each: what `LowBit` puts into states.

An entry is stored as the root of its ratio to the largest absolute value of its block: the square root of entries with
a sign, the fourth root of those without. The codes of equal distance between the roots are closer together where the
entries are small, in the same way for a first moment $m$ and the root of a second moment, $\sqrt v$. Both ways take a
few instructions of an entry, and no table.
"""

import math
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Inexact, Int8, UInt8, UInt32

from .._support.quantized import AbstractQuantized

_TINY = float(np.finfo(np.float32).tiny)
_LANES = 32  # XLA's CPU backend fuses and vectorizes a maximum over so many entries


class Quantized(AbstractQuantized):
    r"""An array in 8 or 4 bits an entry, as the moments in the state of `LowBit`.

        mu = tree.get(state, "mu")["kernel"].dequantize()

    A block is a run of `block` entries along the last axis, if its length is a multiple of `block`, and else of the
    flattened array. With $s$ the largest absolute value of the block, a code $c$ stands for

    $$
    x = s \cdot \frac{c\,|c|}{L^2}, \quad L = 2^{bits - 1} - 1, \qquad \text{or} \qquad
    x = s \cdot \Big(\frac{c + 1}{2^{bits}}\Big)^4
    $$

    if the entries have no sign. A block of zeros is stored exactly; in any other block without signs, no entry is zero.
    A NaN or an infinity makes its whole block NaN or infinite.

    Args:
        codes: int8, or uint8 for entries without sign. In 8 bits, they have the shape of the array. In 4 bits, each
            byte holds two of a block, one from each half, and the last axis is that within a block.
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
        is_by_rows = _is_by_rows(self.shape, self.block)
        codes = self.codes
        is_signed = _is_signed(codes)
        if self.bits == 8:
            codes = _in_rows(codes, self.block) if is_by_rows else _in_blocks(codes.reshape(-1), self.block)
        codes = codes.astype(jnp.int32)  # also without sign: a CPU converts it to floats faster than uint32
        if self.bits == 4:
            codes = jnp.broadcast_to(codes[..., None, :], (*codes.shape[:-1], 2, codes.shape[-1]))
            half = jax.lax.broadcasted_iota(jnp.int32, codes.shape, codes.ndim - 2)
            codes = jnp.where(half == 0, codes << 28 >> 28 if is_signed else codes & 15, codes >> 4)
            codes = codes.reshape(*codes.shape[:-2], -1)
        levels = _level(codes.astype(jnp.float32), is_signed, self.bits)
        x = levels * self.scales[..., None]
        if is_by_rows:
            x = x.reshape(*x.shape[:-2], -1)
        else:
            x = x.reshape(-1)[: math.prod(self.shape)].reshape(self.shape)
        return x.astype(self.dtype)

    def quantize(self, x: Inexact[Array, "..."], seeds: UInt32[Array, "2"] | None = None) -> Self:
        """Return another array of the same shape and dtype in the form of this one.

        Args:
            x: the array to store.
            seeds: random bits for stochastic rounding; by default, entries are rounded to the nearest code.
        """
        codes, scales = _encode(x, self.bits, self.block, _is_signed(self.codes), seeds)
        return type(self)(codes, scales, self.shape, self.dtype, self.bits, self.block)


def quantized(x: Inexact[Array, "..."], bits: int, block: int, nonnegative: bool) -> Quantized:
    """Store an array in fewer bits.

    Args:
        x: a real array of at least two entries.
        bits: 8 or 4.
        block: entries of a block, a power of two; a smaller array is a single block.
        nonnegative: whether no entry is negative.
    """
    block = _block_for(x.shape, block)
    codes, scales = _encode(x, bits, block, not nonnegative, None)
    return Quantized(codes, scales, x.shape, np.dtype(x.dtype), bits, block)


def form_of(shape: tuple[int, ...], codes: Any, scales: Any) -> tuple[int, int] | None:
    """Return the bits and the block with which an array of a shape has such codes and scales; None if it can't.

    Args:
        shape: the shape of the array.
        codes: the codes, or their shape and dtype.
        scales: the scales, or their shape and dtype.
    """
    size = math.prod(shape)
    if size < 2 or not scales.shape:
        return None
    *outer, last = shape
    bits = 8 if tuple(codes.shape) == shape else 4
    if bits == 4 and tuple(codes.shape[:-1]) != tuple(scales.shape):
        return None
    if bits == 4:
        block = 2 * codes.shape[-1]
    elif outer and list(scales.shape[:-1]) == outer:
        block = last // scales.shape[-1]
    else:
        block = 2 ** math.ceil(math.log2(size / scales.shape[0]))
    blocks = [*outer, last // block] if _is_by_rows(shape, block) else [-(-size // block)]
    return (bits, block) if list(scales.shape) == blocks else None


def _block_for(shape: tuple[int, ...], block: int) -> int:
    """The length of the blocks of an array: a divisor of its last axis, if there is one that is not much smaller."""
    if len(shape) > 1:
        for length in range(block, 3 * block // 4 - 1, -2):
            if shape[-1] % length == 0:
                return length
    return min(block, 2 ** math.ceil(math.log2(math.prod(shape))))


def _encode(x: Array, bits: int, block: int, is_signed: bool, seeds: Array | None) -> tuple[Array, Array]:
    """The codes and scales of an array."""
    is_by_rows = _is_by_rows(x.shape, block)
    if jax.typeof(x).memory_space == jax.memory.Space.Host:  # of an `Offload` inside
        x = jax.device_put(x, jax.memory.Space.Device)
    blocks = x.astype(jnp.float32)
    blocks = _in_rows(blocks, block) if is_by_rows else _in_blocks(blocks.reshape(-1), block)
    size = jnp.abs(blocks)
    scales = _largest(size)
    ratio = size * jnp.where(scales >= _TINY, 1 / scales, 0)[..., None]
    root = _root(ratio, is_signed, bits)
    if seeds is None:
        codes = jnp.round(root)
    else:
        most = _most(is_signed, bits)
        low = jnp.minimum(jnp.floor(root), most - 1)
        below, above = _level(low, is_signed, bits), _level(low + 1, is_signed, bits)
        codes = jnp.floor(low + (ratio - below) / (above - below) + _draws(seeds, root.shape))
        codes = jnp.minimum(codes, most)  # the sum can be rounded up
    codes = jnp.copysign(codes, blocks) if is_signed else codes
    codes = codes.astype(jnp.int32)
    if bits == 4:
        codes = codes[..., block // 2 :] << 4 | codes[..., : block // 2] & 15
    codes = codes.astype(jnp.int8 if is_signed else jnp.uint8)
    if bits == 8:
        codes = codes.reshape(x.shape) if is_by_rows else codes.reshape(-1)[: x.size].reshape(x.shape)
    return codes, scales


def _draws(seeds: Array, shape: tuple[int, ...]) -> Float[Array, "..."]:
    """Numbers between 0 and 1: a hash of the seeds and of the place in the array.

    It is the finalizer of MurmurHash3. In a step of AdamW, the generator of JAX would take more time than all the rest.
    """
    place = jnp.zeros(shape, jnp.uint32)
    for axis in range(len(shape)):
        place = place * np.uint32(shape[axis]) + jax.lax.broadcasted_iota(jnp.uint32, shape, axis)
    h = (place ^ seeds[0] * np.uint32(0x85EBCA6B)) * np.uint32(0x9E3779B1) + seeds[1]
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        h = (h ^ h >> np.uint32(shift)) * np.uint32(factor) ^ seeds[1]
    return (h >> np.uint32(8)).astype(jnp.float32) * 2**-24


def _most(is_signed: bool, bits: int) -> int:
    """The largest code."""
    return 2 ** (bits - 1) - 1 if is_signed else 2**bits - 1


def _level(code: Array, is_signed: bool, bits: int) -> Array:
    """The ratio to the largest absolute value that a code stands for."""
    if is_signed:
        c = code * (1 / _most(is_signed, bits))
        return c * jnp.abs(c)
    c = (code + 1) * (0.5**bits)
    return (c * c) * (c * c)


def _root(ratio: Array, is_signed: bool, bits: int) -> Array:
    """The inverse of `_level` for ratios from 0 to 1: a code that is not rounded yet."""
    if is_signed:
        return jnp.sqrt(ratio) * _most(is_signed, bits)
    return jnp.maximum(jnp.sqrt(jnp.sqrt(ratio)) * 2**bits - 1, 0)


def _is_signed(codes: Array) -> bool:
    return codes.dtype == jnp.int8


def _is_by_rows(shape: tuple[int, ...], block: int) -> bool:
    """Whether the blocks are along the last axis, so that codes and scales can be sharded as the array is."""
    return len(shape) > 1 and shape[-1] % block == 0


def _in_rows(x: Array, block: int) -> Array:
    return x.reshape(*x.shape[:-1], -1, block)


def _in_blocks(flat: Array, block: int) -> Array:
    return jnp.pad(flat, (0, -flat.size % block)).reshape(-1, block)


def _largest(size: Float[Array, "... block"]) -> Float[Array, "..."]:
    """The largest entry of every block.

    The halves are compared first: XLA then computes the entries again for the codes, instead of storing all of them in
    float32, and is three times as fast.
    """
    while size.shape[-1] > _LANES and size.shape[-1] % 2 == 0:
        half = size.shape[-1] // 2
        size = jnp.maximum(size[..., :half], size[..., half:])
    return jnp.max(size, -1)
