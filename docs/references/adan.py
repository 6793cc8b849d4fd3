"""Adan on one array. Xie et al., 2022."""

import jax.numpy as jnp


def init(w):
    zeros = jnp.zeros_like(w)
    return {"t": 0, "g": zeros, "m": zeros, "v": zeros, "n": zeros}


def update(
    w,
    g,
    state,
    learning_rate,
    b1=0.98,
    b2=0.92,
    b3=0.99,
    eps=1e-8,
    eps_root=1e-8,
    weight_decay=0.0,
):
    t = state["t"] + 1
    d = jnp.where(t == 1, 0, g - state["g"])
    m = b1 * state["m"] + (1 - b1) * g
    v = b2 * state["v"] + (1 - b2) * d
    n = b3 * state["n"] + (1 - b3) * (g + b2 * d) ** 2
    m_hat = m / (1 - b1**t)
    v_hat = v / (1 - b2**t)
    n_hat = n / (1 - b3**t)
    u = (m_hat + b2 * v_hat) / (jnp.sqrt(n_hat + eps_root) + eps)
    w = (w - learning_rate * u) / (1 + learning_rate * weight_decay)
    return w, {"t": t, "g": g, "m": m, "v": v, "n": n}
