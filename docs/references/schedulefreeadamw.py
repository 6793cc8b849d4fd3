"""Schedule-Free AdamW on one array. Defazio et al., 2024.

`w` is the point y, at which gradients are taken. Evaluate and save `state["x"]`.
"""

import jax.numpy as jnp


def init(w):
    v = jnp.zeros_like(w)
    return {"t": 0, "v": v, "x": w, "z": w, "largest_rate": 0.0, "weights": 0.0}


def update(
    w,
    g,
    state,
    learning_rate=0.0025,
    warmup_steps=0,
    b1=0.9,
    b2=0.999,
    eps=1e-8,
    weight_decay=0.0,
):
    t = state["t"] + 1
    v = b2 * state["v"] + (1 - b2) * g**2
    v_hat = v / (1 - b2**t)
    rate = learning_rate * jnp.minimum(1, t / jnp.maximum(1, warmup_steps))
    z = state["z"] - rate * (g / (jnp.sqrt(v_hat) + eps) + weight_decay * w)
    largest_rate = jnp.maximum(state["largest_rate"], rate)
    weights = state["weights"] + largest_rate**2
    c = jnp.where(weights > 0, largest_rate**2 / weights, 0)
    x = (1 - c) * state["x"] + c * z
    w = (1 - b1) * z + b1 * x
    sums = {"largest_rate": largest_rate, "weights": weights}
    return w, {"t": t, "v": v, "x": x, "z": z, **sums}
