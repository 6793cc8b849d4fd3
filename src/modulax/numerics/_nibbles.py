"""Pairs of rows in bytes, 4 bits an entry.

A byte holds the entries of two rows that lie eight apart, since a TPU stores arrays in tiles of eight rows: to take
neighboring rows apart, it would move all entries. If the number of rows is not a multiple of 16, they lie nearer.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int32

from .._support.placement import shape_on_device, undivided


def rows_apart(rows: int) -> int:
    """How many rows lie between the two whose entries share a byte: those of a tile of a TPU, where it can be."""
    return math.gcd(rows // 2, 8)


def packed(codes: Int32[Array, "..."], is_signed: bool, block: int, word: Any) -> Array:
    """Bytes that hold the lowest 4 bits of two rows. The word is any number, which is the same on all devices."""
    *outer, rows, last = codes.shape
    apart, dtype = rows_apart(rows), jnp.int8 if is_signed else jnp.uint8
    if shape_on_device(codes)[-2] % (2 * apart):
        codes = undivided(codes, [codes.ndim - 2])

    def together(low: Array, high: Array) -> Array:
        return (high.astype(jnp.int32) << 4 | low.astype(jnp.int32) & 15).astype(dtype)

    def flat(x: Array) -> Array:
        return x.reshape(*outer, rows // 2, *x.shape[len(outer) + 2 :]).reshape(*outer, rows // 2, last)

    def pack(codes: Array) -> Array:
        pairs = codes.reshape(*outer, -1, 2, apart, last)
        return flat(together(pairs[..., 0, :, :], pairs[..., 1, :, :]))

    def pack_on_tpu(codes: Array) -> Array:
        pairs = _int4(codes, is_signed).reshape(*outer, -1, 2, apart, last)
        return flat(together(*(_int4(pairs[..., i, :, :], is_signed) for i in (0, 1))))

    def pack_on_cpu(codes: Array) -> Array:
        # On explicit axes, JAX splits one axis at a time.
        pairs = codes.reshape(*outer, rows, -1, block).reshape(*outer, -1, 2, apart, last // block, block)
        found = together(pairs[..., 0, :, :, :], pairs[..., 1, :, :, :])
        # XLA vectorizes a loop over the entries of a block. It would fuse the reshape with the loop, but for a branch.
        return flat(found) if word is None else jax.lax.cond(word < np.uint32(2**31), flat, flat, found)

    return jax.lax.platform_dependent(codes, cpu=pack_on_cpu, tpu=pack_on_tpu, default=pack)


def unpacked(codes: Int32[Array, "..."], is_signed: bool) -> Int32[Array, "..."]:
    """The rows of codes that bytes hold."""
    *outer, rows, last = codes.shape
    apart = rows_apart(2 * rows)
    if shape_on_device(codes)[-2] % apart:
        codes = undivided(codes, [codes.ndim - 2])

    def unpack(codes: Array) -> Array:
        groups = codes.reshape(*outer, -1, 1, apart, last)
        pairs = jnp.broadcast_to(groups, (*outer, rows // apart, 2, apart, last))
        shift = jax.lax.broadcasted_iota(jnp.int32, pairs.shape, len(outer) + 1) * 4
        pairs = pairs << (28 - shift) >> 28 if is_signed else pairs >> shift & 15
        return pairs.reshape(*outer, 2 * rows, last)

    def unpack_on_tpu(codes: Array) -> Array:
        groups = codes.reshape(*outer, -1, apart, last)
        pairs = (groups << 28 >> 28, groups << 24 >> 28) if is_signed else (groups & 15, groups >> 4 & 15)
        narrow = jnp.stack([x.astype(jnp.int4 if is_signed else jnp.uint4) for x in pairs], -3)
        return _int4(narrow.reshape(*outer, 2 * rows, last), is_signed).astype(jnp.int32)

    return jax.lax.platform_dependent(codes, tpu=unpack_on_tpu, default=unpack)


def _int4(codes: Array, is_signed: bool) -> Array:
    """An array of 4 bits an entry.

    XLA's TPU backend would store all rows in 32 bits wherever two of them share a byte.
    """
    return jax.lax.optimization_barrier(codes.astype(jnp.int4 if is_signed else jnp.uint4))
