"""Matrices of many arrays, joined in one batch for each shape.

Many small decompositions are computed as one: QR of twelve matrices with 256 rows takes a third of the time that it
takes one by one, on a CPU.
"""

import collections
import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._support.arithmetic import at_least_float32, depend_on, in_dtype
from .spread import number_of_devices


def in_batches(
    function: Callable[..., Sequence[Array]],
    *lists: Sequence[Array | np.ndarray],
    is_flat: bool = False,
) -> list[tuple[Array, ...]]:
    """Apply a function to corresponding arrays of lists, with all matrices of one shape and dtype joined in one batch.

    Args:
        function: of one array of each list, with one batch axis, which returns arrays with that axis first. What it
            decomposes or divides by triangular matrices depends on its first argument, and its first result on that.
        lists: arrays of matrices on the last two axes, with the same axes before these at one place.
        is_flat: whether results have one batch axis each, which costs less to trace than the axes of the arrays.
    """
    kinds: dict[Hashable, list[int]] = collections.defaultdict(list)
    for i, x in enumerate(lists[0]):
        kinds[x.shape[-2:], x.dtype].append(i)
    out: list[tuple[Array, ...]] = [()] * len(lists[0])
    after: Sequence[Array] = ()
    for places in kinds.values():
        batches = [lists[0][i].shape[:-2] for i in places]
        first, *others = (joined([xs[i] for i in places], batches) for xs in lists)
        results = function(computed_after(after, first), *others)
        after = results[:1]
        for i, *parts in zip(places, *(separate(y, batches, is_flat) for y in results), strict=True):
            out[i] = tuple(parts)
    return out


def joined(xs: Sequence[Any], batches: Sequence[tuple[int, ...]]) -> Array:
    """Return what belongs to the matrices of several arrays, with these batch axes, in one batch."""
    shape = xs[0].shape[len(batches[0]) :]
    if isinstance(xs[0], np.ndarray):  # known when the program is made
        return jnp.asarray(np.concatenate([x.reshape(-1, *shape) for x in xs]))
    # On one device by rows, where what belongs to a single matrix has its shape already; a mesh may divide the rows.
    inner = shape[1:] if number_of_devices(xs[0]) == 1 else shape
    flat = [_reshaped(x, (math.prod(x.shape[: x.ndim - len(inner)]), *inner)) for x in xs]
    return _reshaped(jax.lax.concatenate(flat, 0), (sum(map(math.prod, batches)), *shape))


def separate(y: Array, batches: Sequence[tuple[int, ...]], is_flat: bool = False) -> Sequence[Array]:
    """Return the entries of a batch for each of several arrays, with these batch axes, or with one."""
    # Not by rows: a TPU would store the parts of rows, and not of a batch.
    parts = jax.lax.split(y, list(map(math.prod, batches)))
    return parts if is_flat else [_reshaped(part, (*b, *y.shape[1:])) for part, b in zip(parts, batches, strict=True)]


def _reshaped(x: Array, shape: tuple[int, ...]) -> Array:
    # By `lax`: hundreds of calls of `jnp` take longer to trace than what is computed.
    return x if x.shape == shape else jax.lax.reshape(x, shape)


def computed_after(before: Sequence[Array], x: Array) -> Array:
    """Return the same array, which a program has only once it has others.

    XLA for CPU calls LAPACK for the matrices of a batch in the threads that also run the batches, and waits for them:
    several batches at once may wait for each other forever. It drops optimization barriers.
    """
    for other in before:
        x = depend_on(x, jax.lax.reduce_sum(jax.lax.abs(other), range(other.ndim)))
    return x


def in_float32(function: Callable[..., Sequence[Array]]) -> Callable[..., tuple[Array, ...]]:
    """Return a function of matrices in one dtype, computed in at least float32; its results have that dtype again."""

    def computed(*xs: Array) -> tuple[Array, ...]:
        dtype, wide = xs[0].dtype, at_least_float32(xs[0].dtype)
        results = function(*(in_dtype(x, wide) if x.dtype == dtype else x for x in xs))
        return tuple(in_dtype(y, dtype) if y.dtype == wide else y for y in results)

    return computed
