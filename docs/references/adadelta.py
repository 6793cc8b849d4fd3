"""Adadelta on one array. Zeiler, 2012."""

import jax.numpy as jnp


def init(w):
    return {"e": jnp.zeros_like(w), "x": jnp.zeros_like(w)}


def update(w, g, state, learning_rate=1.0, rho=0.9, eps=1e-6, weight_decay=0.0):
    g = g + weight_decay * w
    e = rho * state["e"] + (1 - rho) * g**2
    u = jnp.sqrt(state["x"] + eps) / jnp.sqrt(e + eps) * g
    x = rho * state["x"] + (1 - rho) * u**2
    w = w - learning_rate * u
    return w, {"e": e, "x": x}
