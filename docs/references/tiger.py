"""Tiger on one matrix. Su, 2023."""

import jax.numpy as jnp


def init(w):
    return {"m": jnp.zeros_like(w)}


def update(w, g, state, learning_rate=1e-3, beta=0.965, weight_decay=0.01):
    m = beta * state["m"] + (1 - beta) * g
    rms = jnp.sqrt(jnp.mean(w**2))
    w = w - learning_rate * rms * (jnp.sign(m) + weight_decay * w)
    return w, {"m": m}
