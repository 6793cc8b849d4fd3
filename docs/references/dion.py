"""Dion on one matrix, inputs × outputs. Ahn et al., 2025."""

import jax
import jax.numpy as jnp


def init(w, rank=None, key=0):
    _, used = jax.random.split(jax.random.key(key))
    (used,) = jax.random.split(used, 1)  # one key for each matrix
    least = min(w.shape)
    Q = jax.random.normal(used, (least, min(rank or least, least)), w.dtype)
    return {"M": jnp.zeros_like(w), "Q": Q}


def update(w, g, state, learning_rate, beta=0.95, eps=1e-8, weight_decay=0.01):
    B = state["M"] + g
    rows, columns = w.shape
    turned = B.T if rows <= columns else B  # Q belongs to the shorter side
    P, _ = jnp.linalg.qr(turned @ state["Q"])
    R = turned.T @ P
    Q = R / (jnp.linalg.norm(R, axis=0, keepdims=True) + eps)
    low, o = P @ R.T, P @ Q.T
    if rows <= columns:
        low, o = low.T, o.T
    M = B - (1 - beta) * low  # what the update leaves out stays
    w = w - learning_rate * ((columns / rows) ** 0.5 * o + weight_decay * w)
    return w, {"M": M, "Q": Q}
