"""Gradients of each example by itself, part by part."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import PyTree

from ._accumulators import AccumulationType
from ._batch_axis import is_array
from ._microbatch import micro_vmap


class IndividualOutputs(NamedTuple):
    """What `micro_grad` returns for each example, on a leading axis: value, metrics, and what else there was."""

    values: Any
    metrics: Any
    aux: Any


def _itself(x: PyTree) -> PyTree:
    return x


def _nothing(x: PyTree) -> None:
    del x


def micro_grad(
    fun: Callable[..., Any],
    has_aux: bool = False,
    argnums: int | Sequence[int] = 0,
    *,
    batch_argnums: int | Sequence[int] = 1,
    keep_batch_dim: bool = True,
    microbatch_size: int | None = None,
    accumulator: PyTree = AccumulationType.SUM,
    transform_fn: Callable[[PyTree], PyTree] = _itself,
    metrics_fn: Callable[[PyTree], PyTree] = _nothing,
    num_real_microbatches: Any = None,
) -> Callable[..., tuple[PyTree, IndividualOutputs]]:
    """The gradient of each example by itself, transformed, and put together at once.

        clipped = micro_grad(loss, transform_fn=clip, metrics_fn=tree.norm, microbatch_size=8)
        sum_of_clipped, each = clipped(params, batch)  # each.values, each.metrics

    With `AccumulationType.CONCAT` the gradients themselves are returned, as the transforms take them that want the
    gradient of each example.

    Args:
        fun: the loss, a function of parameters and a batch.
        has_aux: whether it returns the loss and something else.
        argnums: the arguments to differentiate by. They may be whole models: what is no floating array in them has no
            gradient (None).
        batch_argnums: the arguments with examples, on their first axis. Keyword arguments have them there too.
        keep_batch_dim: whether `fun` is given a batch of one example; else an example without that axis.
        microbatch_size: how many examples are taken together, see `microbatch`. None for all at once.
        accumulator: how the transformed gradients of the examples are put together, see `micro_vmap`.
        transform_fn: a function of the gradient of one example, such as a clip. It may return several trees.
        metrics_fn: a function of the gradient of one example as it was, such as its norm. What it returns is kept for
            every example, so it should be small.
        num_real_microbatches: how many of the microbatches are computed, see `microbatch`.

    Returns:
        a function of the arguments of `fun` that returns the gradients, and `IndividualOutputs` with the value, the
        metrics and the other output of each example.
    """
    batch_nums = (batch_argnums,) if isinstance(batch_argnums, int) else tuple(batch_argnums)

    def of_example(*args: Any, **kwargs: Any) -> tuple[PyTree, IndividualOutputs]:
        value, aux, grads = _value_and_grad(fun, has_aux, argnums, args, kwargs)
        return transform_fn(grads), IndividualOutputs(value, metrics_fn(grads), aux)

    def with_examples(*args: Any, **kwargs: Any) -> tuple[PyTree, IndividualOutputs]:
        batched = [i % len(args) for i in batch_nums if args]
        if not batched or any(not -len(args) <= i < len(args) for i in batch_nums):
            raise ValueError(
                f"`micro_grad(batch_argnums={batch_argnums})`: the call gives {len(args)} arguments by position. Give "
                f"those with examples by position."
            )
        mapped = micro_vmap(
            of_example,
            in_axes=[0 if i in batched else None for i in range(len(args))],
            accumulator=(accumulator, AccumulationType.CONCAT),
            microbatch_size=microbatch_size,
            num_real_microbatches=num_real_microbatches,
        )
        if keep_batch_dim:
            args = tuple(_with_axis(x) if i in batched else x for i, x in enumerate(args))
        return mapped(*args, **kwargs)

    return with_examples


def _with_axis(tree: PyTree) -> PyTree:
    """The arrays with an axis of length one behind that of examples, which is left when the first is mapped over."""
    return jtu.tree_map(lambda x: jnp.expand_dims(x, 1) if is_array(x) else x, tree)


def _value_and_grad(
    fun: Callable[..., Any], has_aux: bool, argnums: int | Sequence[int], args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[Any, Any, PyTree]:
    nums = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    pairs = [eqx.partition(args[i], eqx.is_inexact_array) for i in nums]

    def of_arrays(arrays: list[PyTree]) -> tuple[Any, Any]:
        positional = list(args)
        for i, ours, (_, rest) in zip(nums, arrays, pairs, strict=True):
            positional[i] = eqx.combine(ours, rest)
        out = fun(*positional, **kwargs)
        return out if has_aux else (out, None)

    (value, aux), grads = jax.value_and_grad(of_arrays, has_aux=True)([arrays for arrays, _ in pairs])
    return value, aux, grads[0] if isinstance(argnums, int) else tuple(grads)
