"""AdaBelief on one array. Zhuang et al., 2020."""

import jax.numpy as jnp


def init(w):
    return {"t": 0, "m": jnp.zeros_like(w), "s": jnp.zeros_like(w)}


def update(
    w,
    g,
    state,
    learning_rate,
    b1=0.9,
    b2=0.999,
    eps=1e-16,
    eps_root=1e-16,
    weight_decay=0.0,
):
    t = state["t"] + 1
    m = b1 * state["m"] + (1 - b1) * g
    s = b2 * state["s"] + (1 - b2) * (g - m) ** 2 + eps_root
    m_hat = m / (1 - b1**t)
    s_hat = s / (1 - b2**t)
    w = w - learning_rate * (m_hat / (jnp.sqrt(s_hat) + eps) + weight_decay * w)
    return w, {"t": t, "m": m, "s": s}
