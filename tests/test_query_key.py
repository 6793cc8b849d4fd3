"""QK-Clip, `clip_query_key`, against the equations of Kimi K2."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import modulax as mx

TOKENS = np.random.default_rng(0).normal(size=(5, 6))
HEADS, SIZE = 3, 4


def logits(query: Any, key: Any) -> Any:
    """Of each head, for weights of shape (inputs, heads, size) and biases of shape (heads, size)."""
    q, k = (np.einsum("ti,ihs->ths", TOKENS, x["kernel"]) + np.asarray(x["bias"]) for x in (query, key))
    return np.einsum("qhs,khs->hqk", q, k) / SIZE**0.5


def weights(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {"kernel": rng.normal(size=(6, HEADS, SIZE)), "bias": rng.normal(size=(HEADS, SIZE))}


def test_logits_above_the_threshold_are_scaled_down_to_it(x64: None):
    query, key = weights(1), weights(2)
    before = logits(query, key)
    largest = before.max(axis=(1, 2))
    threshold = float(np.median(largest))
    factors = np.minimum(1, threshold / largest)
    assert (factors < 1).sum() == 1
    for shared, new in (
        (False, jax.jit(mx.clip_query_key)(query, key, largest, threshold)),
        (True, (mx.clip_query_key(query, None, largest, threshold)[0], key)),
    ):
        np.testing.assert_allclose(logits(*new), factors[:, None, None] * before, rtol=1e-12)
        for name in ("kernel", "bias"):
            expected = factors[:, None] ** (1 if shared else 0.5) * query[name]
            np.testing.assert_allclose(new[0][name], expected, rtol=1e-12)


def test_each_head_has_consecutive_rows():
    """As in Equinox, `(heads * size, inputs)`, in any dtype; a head without a finite maximum stays."""
    weight = jnp.ones((HEADS * SIZE, 6), jnp.bfloat16)
    query, key = mx.clip_query_key(weight, weight, jnp.array([400.0, jnp.inf, -3.0]))
    assert query.dtype == jnp.bfloat16
    np.testing.assert_array_equal(query, np.repeat([0.5, 1, 1], SIZE)[:, None] * np.ones(6))
    np.testing.assert_array_equal(query, key)
