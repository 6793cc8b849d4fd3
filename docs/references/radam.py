"""RAdam on one array. Liu et al., 2019."""

import jax.numpy as jnp


def init(w):
    return {"t": 0, "m": jnp.zeros_like(w), "v": jnp.zeros_like(w)}


def update(w, g, state, learning_rate, b1=0.9, b2=0.999, eps=1e-8, threshold=5.0):
    t = state["t"] + 1
    m = b1 * state["m"] + (1 - b1) * g
    v = b2 * state["v"] + (1 - b2) * g**2
    m_hat = m / (1 - b1**t)
    v_hat = v / (1 - b2**t)
    limit = 2 / (1 - b2) - 1
    rho = limit - 2 * t * b2**t / (1 - b2**t)
    r = (rho - 4) * (rho - 2) * limit / ((limit - 4) * (limit - 2) * rho)
    u = jnp.sqrt(r) * m_hat / (jnp.sqrt(v_hat) + eps)
    u = jnp.where((rho > 4) & (rho >= threshold), u, m_hat)
    w = w - learning_rate * u
    return w, {"t": t, "m": m, "v": v}
