"""MARS-AdamW on one matrix, without a second gradient. Yuan et al., 2024."""

import jax.numpy as jnp


def init(w):
    zeros = jnp.zeros_like(w)
    return {"t": 0, "g": zeros, "m": zeros, "v": zeros}


def update(
    w,
    g,
    state,
    learning_rate=3e-3,
    b1=0.95,
    b2=0.99,
    eps=1e-8,
    gamma=0.025,
    max_norm=1.0,
    weight_decay=0.0,
):
    t = state["t"] + 1
    c = g + gamma * b1 / (1 - b1) * (g - state["g"])
    c = c / jnp.maximum(1, jnp.linalg.norm(c) / max_norm)
    m = b1 * state["m"] + (1 - b1) * c
    v = b2 * state["v"] + (1 - b2) * c**2
    m_hat = m / (1 - b1**t)
    v_hat = v / (1 - b2**t)
    w = w - learning_rate * (m_hat / (jnp.sqrt(v_hat) + eps) + weight_decay * w)
    return w, {"t": t, "g": g, "m": m, "v": v}
