"""AdEMAMix on one array. Pagliardini et al., 2024."""

import jax.numpy as jnp


def init(w):
    zeros = jnp.zeros_like(w)
    return {"t": 0, "m1": zeros, "m2": zeros, "v": zeros}


def update(
    w,
    g,
    state,
    learning_rate,
    b1=0.9,
    b2=0.999,
    b3=0.9999,
    alpha=5.0,
    eps=1e-8,
    weight_decay=0.0,
):
    t = state["t"] + 1
    m1 = b1 * state["m1"] + (1 - b1) * g
    m2 = b3 * state["m2"] + (1 - b3) * g
    v = b2 * state["v"] + (1 - b2) * g**2
    m1_hat = m1 / (1 - b1**t)
    v_hat = v / (1 - b2**t)
    u = (m1_hat + alpha * m2) / (jnp.sqrt(v_hat) + eps)
    w = w - learning_rate * (u + weight_decay * w)
    return w, {"t": t, "m1": m1, "m2": m2, "v": v}
