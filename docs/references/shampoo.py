"""Shampoo on one matrix. Gupta et al., 2018."""

import jax.numpy as jnp


def init(w):
    L, R = (jnp.zeros((n, n), w.dtype) for n in w.shape)
    return {"t": 0, "m": jnp.zeros_like(w), "L": L, "R": R}


def update(w, g, state, learning_rate, b1=0.9, b2=1.0, eps=1e-12, weight_decay=0.0):
    t = state["t"] + 1
    m = b1 * state["m"] + (1 - b1) * g
    L = b2 * state["L"] + g @ g.T
    R = b2 * state["R"] + g.T @ g
    share = 1 if b2 == 1 else (1 - b2) / (1 - b2**t)  # of sums, or averages
    m_hat = m / (1 - b1**t)
    u = inverse_root(share * L, eps) @ m_hat @ inverse_root(share * R, eps)
    w = w - learning_rate * (u + weight_decay * w)
    return w, {"t": t, "m": m, "L": L, "R": R}


def inverse_root(x, eps):
    """(x + eps I)^(-1/4)"""
    values, vectors = jnp.linalg.eigh(x)
    return vectors @ jnp.diag((jnp.maximum(values, 0) + eps) ** -0.25) @ vectors.T
