"""LAMB on one array. You et al., 2019."""

import jax.numpy as jnp


def init(w):
    return {"t": 0, "m": jnp.zeros_like(w), "v": jnp.zeros_like(w)}


def update(w, g, state, learning_rate, b1=0.9, b2=0.999, eps=1e-6, weight_decay=0.0):
    t = state["t"] + 1
    m = b1 * state["m"] + (1 - b1) * g
    v = b2 * state["v"] + (1 - b2) * g**2
    m_hat = m / (1 - b1**t)
    v_hat = v / (1 - b2**t)
    u = m_hat / (jnp.sqrt(v_hat) + eps) + weight_decay * w
    w_norm, u_norm = jnp.linalg.norm(w), jnp.linalg.norm(u)
    ratio = jnp.where((w_norm > 0) & (u_norm > 0), w_norm / u_norm, 1)
    w = w - learning_rate * ratio * u
    return w, {"t": t, "m": m, "v": v}
