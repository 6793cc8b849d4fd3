"""D-Adapted AdamW on one array of all parameters. Defazio and Mishchenko, 2023."""

import jax.numpy as jnp


def init(w, estim_lr0=1e-6):
    zeros = jnp.zeros_like(w)
    return {"m": zeros, "v": zeros, "r": 0.0, "s": zeros, "d": estim_lr0}


def update(
    w,
    g,
    state,
    learning_rate=1.0,
    betas=(0.9, 0.999),
    eps=1e-8,
    weight_decay=0.0,
):
    b1, b2 = betas
    b3 = b2**0.5
    d = state["d"]
    rate = learning_rate * d
    product = jnp.sum(g * state["s"] / (jnp.sqrt(state["v"]) + eps))
    m = b1 * state["m"] + (1 - b1) * rate * g
    v = b2 * state["v"] + (1 - b2) * g**2
    r = b3 * state["r"] + (1 - b3) * rate * product
    s = b3 * state["s"] + (1 - b3) * rate * g
    size = (1 - b3) * jnp.sum(jnp.abs(s))
    d = jnp.maximum(d, jnp.where(size > 0, r / size, 0))
    w = w - m / (jnp.sqrt(v) + eps) - rate * weight_decay * w
    return w, {"m": m, "v": v, "r": r, "s": s, "d": d}
