"""Apollo on one matrix. Zhu et al., 2024."""

import jax
import jax.numpy as jnp


def init(w, rank=256, key=0):
    short, long = sorted(w.shape)
    P = jnp.zeros((short, min(rank, short)), w.dtype)
    zeros = jnp.zeros((min(rank, short), long), w.dtype)
    key = jax.random.key(key)
    return {"t": 0, "m": zeros, "v": zeros, "P": P, "norm": 0, "key": key}


def update(
    w, g, state, learning_rate, update_proj_gap=200, scale=1.0, b1=0.9, b2=0.999,
    eps=1e-6, weight_decay=0.0, max_growth=1.01,
):  # fmt: skip
    t, P, key = state["t"], state["P"], state["key"]
    is_tall = w.shape[0] > w.shape[1]
    g = g.T if is_tall else g
    if t % update_proj_gap == 0:
        key, used = jax.random.split(key)
        (used,) = jax.random.split(used, 1)  # one key for each matrix
        P = jax.random.normal(used, P.shape, P.dtype) / P.shape[1] ** 0.5
    t, R = t + 1, P.T @ g
    m = b1 * state["m"] + (1 - b1) * R
    v = b2 * state["v"] + (1 - b2) * R**2
    d = m / (jnp.sqrt(v) + eps)
    norms = [jnp.linalg.norm(x, axis=0, keepdims=True) for x in (d, R)]
    u = g * norms[0] / (norms[1] + 1e-8)  # a factor for each channel
    norm = jnp.linalg.norm(u)
    if t > 1:
        most = max_growth * (state["norm"] + 1e-8)
        u, norm = u * jnp.minimum(1, most / norm), jnp.minimum(norm, most)
    u = scale**0.5 * jnp.sqrt(1 - b2**t) / (1 - b1**t) * u
    w = w - learning_rate * (u.T if is_tall else u)
    w = (1 - learning_rate * weight_decay) * w
    return w, {"t": t, "m": m, "v": v, "P": P, "norm": norm, "key": key}
