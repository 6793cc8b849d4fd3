"""KL-Shampoo on one matrix. Lin et al., 2025."""

import jax.numpy as jnp


def init(w):
    state = {"t": 0, "m": jnp.zeros_like(w)}
    for side, n in zip("LR", w.shape, strict=True):
        state[side] = jnp.zeros((n, n), w.dtype)
        state[side + "_root"] = jnp.eye(n, dtype=w.dtype)
    return state


def update(w, g, state, learning_rate, b1=0.9, b2=1.0, eps=1e-12, weight_decay=0.0):
    t = state["t"] + 1
    m = b1 * state["m"] + (1 - b1) * g
    x, y = g @ state["R_root"], state["L_root"] @ g  # whitened by the other factor
    L = b2 * state["L"] + x @ x.T
    R = b2 * state["R"] + y.T @ y
    share = 1 if b2 == 1 else (1 - b2) / (1 - b2**t)  # of sums, or averages
    L_root, R_root = inverse_root(share * L, eps), inverse_root(share * R, eps)
    u = L_root @ (m / (1 - b1**t)) @ R_root
    w = w - learning_rate * (u + weight_decay * w)
    return w, {"t": t, "m": m, "L": L, "R": R, "L_root": L_root, "R_root": R_root}


def inverse_root(x, eps):
    """(x + eps I)^(-1/4)"""
    values, vectors = jnp.linalg.eigh(x)
    return vectors @ jnp.diag((jnp.maximum(values, 0) + eps) ** -0.25) @ vectors.T
