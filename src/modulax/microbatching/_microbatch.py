"""Functions of a batch, evaluated part by part."""

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
    r"""A function of a batch, evaluated on one part of it after the other, so that it needs the memory of one part.

        loss = microbatch(sum_of_losses, argnums=1, microbatch_size=32)
        value, grads = jax.value_and_grad(loss)(params, batch)

    What it returns for the parts is put together as `accumulator` says. It may be differentiated: each part is then
    computed a second time on the way back, and the memory stays that of one part. Call it inside of `jax.jit`.

    Of $n$ microbatches the first has the examples $0, n, 2n, \dots$, see `reshape_batch_axis`.

    Args:
        fun: the function. What it returns consists of arrays.
        argnums: which of its arguments have examples, by position. Other arguments may be anything.
        microbatch_size: how many examples a part has; it divides the number of all. None for the function as it is.
        accumulator: an `AccumulationType` or an `Accumulator`, or a tree of them, of the structure of what the function
            returns or a prefix of it.
        argnames: which of its arguments have examples, by name.
        in_axes: the axis of examples: one for all, or one for each of `argnums` and then of `argnames`.
        num_real_microbatches: how many of the microbatches are computed; it may be traced, so that a batch that is
            only partly filled compiles nothing anew. The others count as zero; their rows are zero in `CONCAT`.
    """
    if microbatch_size is None:
        return fun
    nums = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    names = (argnames,) if isinstance(argnames, str) else tuple(argnames)
    axes = (in_axes,) * (len(nums) + len(names)) if isinstance(in_axes, int) else tuple(in_axes)
    if len(axes) != len(nums) + len(names):
        raise ValueError(
            f"`microbatch(in_axes=...)` has {len(axes)} axes, for the {len(nums)} arguments of `argnums` and the "
            f"{len(names)} of `argnames`. Give one for each, or one integer for all."
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
    """`jax.vmap` that takes one part of the examples after the other, and may put the results together at once.

        squares = micro_vmap(jnp.square, microbatch_size=4)(jnp.arange(8))

    With `AccumulationType.SUM` or `MEAN` the results of all examples, such as their gradients, are never in memory
    together. Keyword arguments have their examples on the first axis, as in `jax.vmap`.

    Args:
        fun: a function of one example.
        in_axes: the axis of examples of each argument, None for one that is the same for all; an integer for all of
            them. What is no array in an argument is the same for all.
        out_axes: 0, where the results of the examples stand.
        microbatch_size: how many examples are taken together; it divides the number of all. None for all at once.
        vmap_fn: what maps over the examples of a part, called like `jax.vmap`.
        accumulator: how the results are put together: an `AccumulationType` or an `Accumulator`, or a tree of them, of
            the structure of what the function returns or a prefix of it.
        num_real_microbatches: how many of the microbatches are computed, see `microbatch`.
    """
    if not isinstance(out_axes, int) or out_axes != 0:
        raise ValueError(f"`micro_vmap(out_axes=...)` must be 0, got {out_axes!r}. Move the axis of what it returns.")

    def mapped(*args: Any, **kwargs: Any) -> Any:
        axes = (in_axes,) * len(args) if in_axes is None or isinstance(in_axes, int) else tuple(in_axes)
        if len(axes) != len(args):
            raise ValueError(
                f"`micro_vmap(in_axes=...)` has {len(axes)} axes, and the call gives {len(args)} arguments by position."
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
    """The axis of examples of every array, None for what is none."""
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
    """The results of `n` parts as one; of a part with a result for every example, these are put together first."""
    results = jax.eval_shape(part, 0)
    whole = accumulator_of(owner, accumulator, results, n)
    # Differentiated, a part is computed again: otherwise all parts together would keep what the way back needs.
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
