"""Scion on one hidden matrix, inputs × outputs. Pethick et al., 2025."""

import jax.numpy as jnp


def init(w):
    return {"m": jnp.zeros_like(w)}


def update(w, g, state, learning_rate, beta=0.9, scale=50.0, constrained=True):
    m = beta * state["m"] + (1 - beta) * g
    rows, columns = w.shape
    u = scale * (columns / rows) ** 0.5 * orthogonalize(m)  # spectral norm
    w = w - learning_rate * (u + w if constrained else u)
    return w, {"m": m}


def orthogonalize(x, steps=5, eps=1e-7):
    """Newton-Schulz: move all singular values close to 1."""
    a, b, c = 3.4445, -4.775, 2.0315
    x = x / (jnp.linalg.norm(x) + eps)
    for _ in range(steps):
        s = x.T @ x if x.shape[0] > x.shape[1] else x @ x.T
        p = b * s + c * s @ s
        x = a * x + (x @ p if x.shape[0] > x.shape[1] else p @ x)
    return x
