"""QK-Clip: attention logits that stay bounded, by smaller weights of queries and keys."""

from typing import Any, TypeVar

import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, ArrayLike

from .._support.arguments import floating
from .._support.arithmetic import at_least_float32, is_inexact_array, safe_sqrt, scalar_like

_OWNER = "clip_query_key"
Q = TypeVar("Q")
K = TypeVar("K")


def clip_query_key(
    query: Q, key: K, max_logits: ArrayLike, threshold: ArrayLike = 100.0, *, axis: int = -2
) -> tuple[Q, K]:
    r"""Scale down the query and key weights of each head whose attention logits exceeded a threshold (QK-Clip).

    $$
    \gamma_h = \min(1, \tau / S_h), \qquad W_q^h \leftarrow \sqrt{\gamma_h}\, W_q^h, \qquad
        W_k^h \leftarrow \sqrt{\gamma_h}\, W_k^h
    $$

    where $S_h$ is the largest logit $q^\top k / \sqrt d$ of head $h$, over the tokens of the batch. The logits of such
    a head are multiplied by $\gamma_h$, and the others don't change. Call it on the parameters after a step, with the
    largest logits of its forward pass. `Muon(learning_rate, consistent_rms=0.2)` with it is MuonClip:

        params = step(params)
        params["query"], params["key"] = clip_query_key(params["query"], params["key"], max_logits)

    If several heads share a key, pass None for it. Then $W_q^h \leftarrow \gamma_h W_q^h$, as for the rotary part of
    the queries in the paper. A head whose largest logit is infinite or NaN does not change.

    No released code exists; this is the paper's algorithm.

    Args:
        query: the weights of the queries: an array, or a tree of arrays such as kernel and bias.
        key: the weights of the keys; or None.
        max_logits: $S$, one number for each head.
        threshold: $\tau$, the largest logit.
        axis: the axis of the heads, in all arrays. If it is longer than the number of heads, each head has as many
            consecutive entries: -2 is right for Flax, `(inputs, heads, size)` and `(heads, size)`, and for the weights
            of Equinox, `(heads * size, inputs)`.

    Returns:
        the scaled weights of the queries, and those of the keys.

    Raises:
        ValueError: if the axis has no equal parts for the heads.

    References:
        Kimi Team, [Kimi K2: Open Agentic Intelligence](https://arxiv.org/abs/2507.20534), 2025, algorithm 1.
    """
    (largest,) = floating(_OWNER, max_logits=max_logits)
    if largest.ndim != 1:
        raise ValueError(f"`{_OWNER}(max_logits=...)` must hold a number for each head, got the shape {largest.shape}.")
    largest = largest.astype(at_least_float32(largest.dtype))
    is_above = (largest > scalar_like(threshold, largest)) & jnp.isfinite(largest)
    factors = jnp.where(is_above, scalar_like(threshold, largest) / jnp.where(is_above, largest, 1), 1)
    if key is None:
        return _scaled("query", query, factors, axis), key
    roots = safe_sqrt(factors)
    return _scaled("query", query, roots, axis), _scaled("key", key, roots, axis)


def _scaled(name: str, tree: Any, factors: Array, axis: int) -> Any:
    """The arrays, each multiplied by the factors of the heads."""

    def scaled(x: Any) -> Any:
        if not is_inexact_array(x):
            return x
        length = x.shape[axis] if -x.ndim <= axis < x.ndim else 0
        if length == 0 or length % factors.size:
            hint = " If several heads share a key, write `key=None`." if name == "key" else ""
            raise ValueError(
                f"`{_OWNER}({name}=..., axis={axis})` has an array of shape {x.shape}, whose axis doesn't divide into "
                f"{factors.size} heads, as many as `max_logits` has.{hint}"
            )
        shape = [1] * x.ndim
        shape[axis] = length
        dtype = at_least_float32(x.dtype)
        each = jnp.repeat(factors, length // factors.size).reshape(shape)
        return (jnp.asarray(x).astype(dtype) * each.astype(dtype)).astype(x.dtype)

    return jtu.tree_map(scaled, tree)
