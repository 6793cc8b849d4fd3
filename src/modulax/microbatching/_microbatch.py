"""Evaluate a function of a batch one microbatch at a time, to save memory.

How the pieces meet: `_batch_axis.py` checks the example axes, counts the microbatches (`number_of_parts`) and selects
one of them (`part_of`). Here, `microbatch` and `micro_vmap` turn the call into a function `part(i)`, the result of
microbatch `i`; `micro_vmap` maps over its examples. `_accumulated` runs all parts in a `jax.lax.scan`, with one carry
for the combined result, by the `init`, `update` and `finalize` of an `Accumulator` (`_accumulators.py`). `micro_grad`
is `micro_vmap` of a per-example gradient.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import PyTree

from ._accumulators import AccumulationType, accumulator_of
from ._batch_axis import arguments, is_array, number_of_examples, number_of_parts, part_of


def microbatch(
    fun: Callable[..., Any],
    argnums: int | Sequence[int],
    microbatch_size: int | None,
    accumulator: PyTree = AccumulationType.SUM,
    *,
    argnames: str | Sequence[str] = (),
    in_axes: int | Sequence[int] = 0,
    num_real_microbatches: Any = None,
) -> Callable[..., Any]:
    r"""Evaluate a function of a batch one microbatch at a time, within the memory of one microbatch.

        loss = microbatch(sum_of_losses, argnums=1, microbatch_size=32)
        value, grads = jax.value_and_grad(loss)(params, batch)

    This is gradient accumulation for any function. The results of the microbatches are combined by `accumulator`. The
    function can be differentiated: the backward pass recomputes each microbatch, so memory stays that of one
    microbatch. Call it inside `jax.jit`.

    The first of $n$ microbatches has the examples $0, n, 2n, \dots$, see `reshape_batch_axis`.

    Args:
        fun: a function that returns a tree of arrays.
        argnums: positions of the arguments with examples. Other arguments may be anything.
        microbatch_size: number of examples per microbatch; must divide the number of examples. None returns `fun`.
        accumulator: how to combine the results: an `AccumulationType` or an `Accumulator`, or a tree of them with the
            structure of the result or a prefix of it.
        argnames: names of keyword arguments with examples.
        in_axes: example axis: one for all arguments, or one for each of `argnums` and then `argnames`.
        num_real_microbatches: number of microbatches to compute, for batches that are only partly filled. It may be
            traced, so a different number recompiles nothing. The others count as zero; their rows are zero with
            `CONCAT`.

    Returns:
        A function with the arguments of `fun`. It raises a ValueError if an argument with examples is missing, the
        examples don't match, or `microbatch_size` doesn't divide their number.

    Raises:
        ValueError: if `in_axes` doesn't fit `argnums` and `argnames`.
    """
    if microbatch_size is None:
        return fun
    nums = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    names = (argnames,) if isinstance(argnames, str) else tuple(argnames)
    axes = (in_axes,) * (len(nums) + len(names)) if isinstance(in_axes, int) else tuple(in_axes)
    if len(axes) != len(nums) + len(names):
        raise ValueError(
            f"`microbatch(in_axes=...)` has {len(axes)} axes for the {len(nums)} arguments of `argnums` and the "
            f"{len(names)} of `argnames`. Pass one axis for each, or one integer for all."
        )

    def microbatched(*args: Any, **kwargs: Any) -> Any:
        batch = arguments("microbatch", fun, args, kwargs, nums, names, axes)
        n = number_of_parts("microbatch", batch, microbatch_size)

        def part(i: Any) -> Any:
            values = [part_of(value, i, microbatch_size, axis) for _, value, axis in batch]
            positional = list(args)
            for j, value in zip(nums, values[: len(nums)], strict=True):
                positional[j] = value
            return fun(*positional, **(kwargs | dict(zip(names, values[len(nums) :], strict=True))))

        return _accumulated("microbatch", part, n, accumulator, num_real_microbatches)

    return microbatched


def micro_vmap(
    fun: Callable[..., Any],
    in_axes: int | Sequence[int | None] | None = 0,
    out_axes: Any = 0,
    *,
    microbatch_size: int | None = None,
    vmap_fn: Callable[..., Any] = jax.vmap,
    accumulator: PyTree = AccumulationType.CONCAT,
    num_real_microbatches: Any = None,
) -> Callable[..., Any]:
    """Apply `jax.vmap` one microbatch at a time, and optionally reduce the results on the fly.

        squares = micro_vmap(jnp.square, microbatch_size=4)(jnp.arange(8))

    With `AccumulationType.SUM` or `MEAN`, the results of all examples, such as their gradients, are never in memory
    together. Keyword arguments have their examples on the first axis, as in `jax.vmap`.

    Args:
        fun: a function of one example.
        in_axes: example axis of each argument, None for an argument that all examples share; an integer for all
            arguments. Unlike in `jax.vmap`, all arrays of an argument have one axis. Values in an argument that are not
            arrays are shared.
        out_axes: must be 0, the example axis of the results.
        microbatch_size: number of examples to process at once; must divide the number of examples. None processes all
            at once.
        vmap_fn: function that maps over the examples of a microbatch, called like `jax.vmap`.
        accumulator: how to combine the results: an `AccumulationType` or an `Accumulator`, or a tree of them with the
            structure of the result or a prefix of it.
        num_real_microbatches: number of microbatches to compute, see `microbatch`.

    Returns:
        A function with the arguments of `fun` plus example axes. It raises a ValueError if the examples don't match
        `in_axes`, or `microbatch_size` doesn't divide their number.

    Raises:
        ValueError: if `out_axes` is not 0.
    """
    if not isinstance(out_axes, int) or out_axes != 0:
        raise ValueError(
            f"`micro_vmap(out_axes=...)` must be 0, got {out_axes!r}. Move the axis of the results instead."
        )

    def mapped(*args: Any, **kwargs: Any) -> Any:
        axes = (in_axes,) * len(args) if in_axes is None or isinstance(in_axes, int) else tuple(in_axes)
        if len(axes) != len(args):
            raise ValueError(
                f"`micro_vmap(in_axes=...)` has {len(axes)} axes, but the call passes {len(args)} positional arguments."
            )
        everything = [*args, kwargs] if kwargs else list(args)
        axes = (*axes, 0) if kwargs else axes
        names = [*(f"args[{i}]" for i in range(len(args))), "kwargs"]
        batch = [(name, x, axis) for name, x, axis in zip(names, everything, axes, strict=False) if axis is not None]
        size = number_of_examples("micro_vmap", batch) if microbatch_size is None else microbatch_size
        n = number_of_parts("micro_vmap", batch, size)

        def of_one(*values: Any) -> Any:
            return fun(*values[: len(args)], **(values[-1] if kwargs else {}))

        def part(i: Any) -> Any:
            values = [
                x if axis is None else part_of(x, i, size, axis) for x, axis in zip(everything, axes, strict=True)
            ]
            return vmap_fn(of_one, tuple(map(_axes_of, values, axes)), 0)(*values)

        return _accumulated("micro_vmap", part, n, accumulator, num_real_microbatches, of_examples=True)

    return mapped


def _axes_of(value: PyTree, axis: int | None) -> PyTree:
    """The example axis of every array, and None for other leaves; the plain axis if all leaves are arrays."""
    leaves, treedef = jtu.tree_flatten(value)
    if all(map(is_array, leaves)):
        return axis
    return treedef.unflatten([axis if is_array(x) else None for x in leaves])


def _accumulated(
    owner: str,
    part: Callable[[Any], PyTree],
    n: int,
    accumulator: PyTree,
    num_real: Any,
    *,
    of_examples: bool = False,
) -> PyTree:
    """Combine the results of `n` microbatches; with `of_examples`, first combine the examples of each."""
    results = jax.eval_shape(part, 0)
    whole = accumulator_of(owner, accumulator, results, n)
    # Recompute each part in the backward pass: otherwise the residuals of all parts would be in memory together.
    part = jax.checkpoint(part, prevent_cse=False)

    def result(i: Any) -> PyTree:
        return whole.aggregate(part(i)) if of_examples else part(i)

    carry = whole.init(jax.eval_shape(result, 0))
    if n == 1 and num_real is None:
        return whole.finalize(whole.update(carry, result(0), jnp.zeros((), jnp.int32)))
    is_known = isinstance(num_real, int)

    def body(carry: PyTree, i: Any) -> tuple[PyTree, None]:
        def go_on() -> PyTree:
            return whole.update(carry, result(i), i)

        return go_on() if num_real is None or is_known else jax.lax.cond(i < num_real, go_on, lambda: carry), None

    length = min(n, num_real) if is_known else n
    carry, _ = jax.lax.scan(body, carry, jnp.arange(length, dtype=jnp.int32))
    return whole.finalize(carry)
