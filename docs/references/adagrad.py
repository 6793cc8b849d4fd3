"""Adagrad on one array. Duchi, Hazan and Singer, 2011."""

import jax.numpy as jnp


def init(w, initial_accumulator_value=0.1):
    return {"s": jnp.full_like(w, initial_accumulator_value)}


def update(w, g, state, learning_rate, eps=1e-7):
    s = state["s"] + g**2
    w = w - learning_rate * g / jnp.sqrt(s + eps)
    return w, {"s": s}
