"""ADOPT on one array. Taniguchi et al., 2024."""

import jax.numpy as jnp


def init(w):
    return {"t": 0, "m": jnp.zeros_like(w), "v": jnp.zeros_like(w)}


def update(w, g, state, learning_rate, b1=0.9, b2=0.9999, eps=1e-6, weight_decay=0.0):
    t = state["t"]
    is_first = t == 0  # this step only initializes v
    c = g / jnp.maximum(jnp.sqrt(state["v"]), eps)
    c = jnp.clip(c, -(t**0.25), t**0.25)
    m = b1 * state["m"] + (1 - b1) * c
    v = jnp.where(is_first, g**2, b2 * state["v"] + (1 - b2) * g**2)
    w = jnp.where(is_first, w, w - learning_rate * (m + weight_decay * w))
    return w, {"t": t + 1, "m": m, "v": v}
