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
    after: Sequence[Array] = (),
    is_flat: bool = False,
) -> list[tuple[Array, ...]]:
    """Apply a function to corresponding arrays of lists, with all matrices of one shape and dtype joined in one batch.

    Args:
        function: of one array of each list, with one batch axis, which returns arrays with that axis first. What it
            decomposes or divides by triangular matrices depends on its first argument, and its first result on that.
        lists: arrays of matrices on the last two axes, with the same axes before these at one place.
        after: results of other batches in the same program, for which the first one waits.
        is_flat: whether results have one batch axis each, which costs less to trace than the axes of the arrays.
    """
    kinds: dict[Hashable, list[int]] = collections.defaultdict(list)
    for i, x in enumerate(lists[0]):
        kinds[x.shape[-2:], x.dtype].append(i)
    out: list[tuple[Array, ...]] = [()] * len(lists[0])
    for places in kinds.values():
        batches = [lists[0][i].shape[:-2] for i in places]
        first, *others = (_joined([xs[i] for i in places]) for xs in lists)
        results = function(computed_after(after, first), *others)
        after = results[:1]
        for i, *parts in zip(places, *(_separate(y, batches, is_flat) for y in results), strict=True):
            out[i] = tuple(parts)
    return out


def _joined(xs: Sequence[Any]) -> Array:
    """Arrays of matrices as one batch."""
    if isinstance(xs[0], np.ndarray):  # known when the program is made
        return jnp.asarray(np.concatenate([x.reshape(-1, *x.shape[-2:]) for x in xs]))
    # `lax`, because hundreds of calls of `jnp` take longer to trace than what is computed. On one device by rows, where
    # single matrices have their shape already; a mesh may divide the rows.
    axes = 1 if number_of_devices(xs[0]) == 1 else 2
    shapes = [(math.prod(x.shape[:-axes]), *x.shape[-axes:]) for x in xs]
    flat = [x if x.shape == shape else jax.lax.reshape(x, shape) for x, shape in zip(xs, shapes, strict=True)]
    count = sum(math.prod(x.shape[:-2]) for x in xs)
    return jax.lax.reshape(jax.lax.concatenate(flat, 0), (count, *xs[0].shape[-2:]))


def _separate(y: Array, batches: Sequence[tuple[int, ...]], is_flat: bool) -> Sequence[Array]:
    """The entries of a batch for each array of matrices, with these batch axes."""
    # Not by rows: a TPU would store the parts of rows, and not of a batch.
    parts = jax.lax.split(y, [math.prod(batch) for batch in batches])
    if is_flat:
        return parts
    return [jax.lax.reshape(part, (*batch, *y.shape[1:])) for part, batch in zip(parts, batches, strict=True)]


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
