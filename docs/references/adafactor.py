"""Adafactor on one matrix. Shazeer and Stern, 2018."""

import jax.numpy as jnp


def init(w):
    return {"t": 0, "r": jnp.zeros_like(w[:, 0]), "c": jnp.zeros_like(w[0])}


def update(
    w,
    g,
    state,
    learning_rate=None,
    decay_rate=0.8,
    clipping_threshold=1.0,
    eps=1e-30,
):
    t = state["t"] + 1
    beta = 1 - t**-decay_rate
    r = beta * state["r"] + (1 - beta) * jnp.mean(g**2 + eps, axis=1)
    c = beta * state["c"] + (1 - beta) * jnp.mean(g**2 + eps, axis=0)
    u = g / jnp.outer(jnp.sqrt(r / jnp.mean(r)), jnp.sqrt(c))
    u = u / jnp.maximum(1, rms(u) / clipping_threshold)
    rho = jnp.minimum(1e-2, t**-0.5) if learning_rate is None else learning_rate
    w = w - rho * jnp.maximum(1e-3, rms(w)) * u
    return w, {"t": t, "r": r, "c": c}


def rms(x):
    return jnp.sqrt(jnp.mean(x**2))
