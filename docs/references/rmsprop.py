"""RMSProp on one array. Tieleman and Hinton, 2012."""

import jax.numpy as jnp


def init(w):
    return {"v": jnp.zeros_like(w), "b": jnp.zeros_like(w)}


def update(w, g, state, learning_rate, decay=0.9, eps=1e-8, momentum=0.0):
    v = decay * state["v"] + (1 - decay) * g**2
    b = momentum * state["b"] + learning_rate * g / jnp.sqrt(v + eps)
    w = w - b
    return w, {"v": v, "b": b}
