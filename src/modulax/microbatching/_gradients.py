"""Per-example gradients, computed one microbatch at a time."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import PyTree

from .._support.arithmetic import is_inexact_array
from ._accumulators import AccumulationType
from ._batch_axis import is_array
from ._microbatch import micro_vmap


class IndividualOutputs(NamedTuple):
    """The per-example outputs of `micro_grad`, on a leading axis: loss values, metrics and auxiliary outputs."""

    values: Any
    metrics: Any
    aux: Any


def _itself(x: PyTree) -> PyTree:
    """The identity."""
    return x


def _nothing(x: PyTree) -> None:
    """No metrics."""
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
    """Compute per-example gradients, transform each of them, and accumulate the results.

        clipped = micro_grad(loss, transform_fn=clip, metrics_fn=tree.norm, microbatch_size=8)
        sum_of_clipped, each = clipped(params, batch)  # each.values, each.metrics

    Use it for per-example clipping, as in differentially private training. With `AccumulationType.CONCAT` the
    per-example gradients themselves are returned, in the form that aggregators and the differentially private
    transforms take them.

    Args:
        fun: the loss, a function of parameters and a batch.
        has_aux: whether the loss also returns auxiliary outputs.
        argnums: positions of the arguments to differentiate with respect to. They may be whole models: leaves that are
            not floating-point arrays get the gradient None.
        batch_argnums: positions of the arguments with examples, on their first axis. Keyword arguments have examples on
            their first axis too.
        keep_batch_dim: whether `fun` is called with a batch of one example, instead of an example without that axis.
            Keyword arguments never have that axis.
        microbatch_size: number of examples to process at once, see `microbatch`. None processes all at once.
        accumulator: how to combine the transformed gradients of the examples, see `micro_vmap`.
        transform_fn: function of the gradient of one example, such as clipping. It may return several trees.
        metrics_fn: function of the original gradient of one example, such as its norm. Its results are kept for every
            example, so they should be small.
        num_real_microbatches: number of microbatches to compute, see `microbatch`.

    Returns:
        A function of the arguments of `fun` that returns the accumulated gradients, and `IndividualOutputs` with the
        loss value, the metrics and the auxiliary outputs of each example. It raises a ValueError if `batch_argnums`
        doesn't fit the call, or the batch can't be split.
    """
    batch_nums = (batch_argnums,) if isinstance(batch_argnums, int) else tuple(batch_argnums)

    def of_example(*args: Any, **kwargs: Any) -> tuple[PyTree, IndividualOutputs]:
        """Value, metrics and transformed gradient of one example."""
        value, aux, grads = _value_and_grad(fun, has_aux, argnums, args, kwargs)
        return transform_fn(grads), IndividualOutputs(value, metrics_fn(grads), aux)

    def with_examples(*args: Any, **kwargs: Any) -> tuple[PyTree, IndividualOutputs]:
        batched = [i % len(args) for i in batch_nums if args]
        if not batched or any(not -len(args) <= i < len(args) for i in batch_nums):
            raise ValueError(
                f"`micro_grad(batch_argnums={batch_argnums})`: the call passes {len(args)} positional arguments. Pass "
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
    """Insert an axis of length one after the batch axis: `vmap` removes the batch axis, and a batch of one is left."""
    return jtu.tree_map(lambda x: jnp.expand_dims(x, 1) if is_array(x) else x, tree)


def _float_as_array(x: Any) -> Any:
    return jnp.asarray(x) if isinstance(x, (float, complex)) else x


def _value_and_grad(
    fun: Callable[..., Any], has_aux: bool, argnums: int | Sequence[int], args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[Any, Any, PyTree]:
    """Return value, auxiliary outputs and gradient; only floating-point arrays in the arguments are differentiated."""
    nums = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    pairs = [eqx.partition(jtu.tree_map(_float_as_array, args[i]), is_inexact_array) for i in nums]

    def of_arrays(arrays: list[PyTree]) -> tuple[Any, Any]:
        positional = list(args)
        for i, ours, (_, rest) in zip(nums, arrays, pairs, strict=True):
            positional[i] = eqx.combine(ours, rest)
        out = fun(*positional, **kwargs)
        return out if has_aux else (out, None)

    (value, aux), grads = jax.value_and_grad(of_arrays, has_aux=True)([arrays for arrays, _ in pairs])
    return value, aux, grads[0] if isinstance(argnums, int) else tuple(grads)
