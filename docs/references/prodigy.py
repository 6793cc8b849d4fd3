"""Prodigy on one array of all parameters. Mishchenko and Defazio, 2023."""

import jax.numpy as jnp


def init(w, estim_lr0=1e-6):
    zeros = jnp.zeros_like(w)
    return {"w0": w, "m": zeros, "v": zeros, "r": 0.0, "s": zeros, "d": estim_lr0}


def update(
    w,
    g,
    state,
    learning_rate=1.0,
    betas=(0.9, 0.999),
    eps=1e-8,
    estim_lr_coef=1.0,
    weight_decay=0.0,
):
    b1, b2 = betas
    b3 = b2**0.5
    d = state["d"]
    m = b1 * state["m"] + (1 - b1) * d * g
    v = b2 * state["v"] + (1 - b2) * d**2 * g**2
    r = b3 * state["r"] + learning_rate * d**2 * jnp.sum(g * (state["w0"] - w))
    s = b3 * state["s"] + learning_rate * d**2 * g
    size = jnp.sum(jnp.abs(s))
    next_d = jnp.maximum(d, jnp.where(size > 0, estim_lr_coef * r / size, 0))
    u = m / (jnp.sqrt(v) + next_d * eps) + weight_decay * w
    w = w - learning_rate * d * u
    return w, {"w0": state["w0"], "m": m, "v": v, "r": r, "s": s, "d": next_d}
