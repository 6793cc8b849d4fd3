"""AdamW on one array. Loshchilov and Hutter, 2017."""

import jax.numpy as jnp


def init(w):
    return {"t": 0, "m": jnp.zeros_like(w), "v": jnp.zeros_like(w)}


def update(w, g, state, learning_rate, b1=0.9, b2=0.999, eps=1e-8, weight_decay=1e-4):
    t = state["t"] + 1
    m = b1 * state["m"] + (1 - b1) * g
    v = b2 * state["v"] + (1 - b2) * g**2
    m_hat = m / (1 - b1**t)
    v_hat = v / (1 - b2**t)
    w = w - learning_rate * (m_hat / (jnp.sqrt(v_hat) + eps) + weight_decay * w)
    return w, {"t": t, "m": m, "v": v}
