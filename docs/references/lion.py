"""Lion on one array. Chen et al., 2023."""

import jax.numpy as jnp


def init(w):
    return {"m": jnp.zeros_like(w)}


def update(w, g, state, learning_rate, b1=0.9, b2=0.99, weight_decay=1e-3):
    c = b1 * state["m"] + (1 - b1) * g
    m = b2 * state["m"] + (1 - b2) * g
    w = w - learning_rate * (jnp.sign(c) + weight_decay * w)
    return w, {"m": m}
