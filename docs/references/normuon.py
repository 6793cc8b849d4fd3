"""NorMuon on one matrix, inputs × outputs. Li et al., 2025."""

import jax.numpy as jnp


def init(w):
    return {"m": jnp.zeros_like(w), "v": jnp.zeros((1, w.shape[1]), w.dtype)}


def update(
    w, g, state, learning_rate, beta=0.95, b2=0.95, moment_eps=1e-10, weight_decay=0.0
):
    m = beta * state["m"] + (1 - beta) * g
    o = orthogonalize(beta * m + (1 - beta) * g)
    v = b2 * state["v"] + (1 - b2) * jnp.mean(o**2, axis=0, keepdims=True)
    u = o / (jnp.sqrt(v) + moment_eps)
    u = u * jnp.linalg.norm(o) / jnp.linalg.norm(u)
    rows, columns = w.shape
    scale = max(1, columns / rows) ** 0.5
    w = w - learning_rate * (scale * u + weight_decay * w)
    return w, {"m": m, "v": v}


def orthogonalize(x, steps=5, eps=1e-7):
    """Newton-Schulz: move all singular values close to 1."""
    a, b, c = 3.4445, -4.775, 2.0315
    x = x / (jnp.linalg.norm(x) + eps)
    for _ in range(steps):
        s = x.T @ x if x.shape[0] > x.shape[1] else x @ x.T
        p = b * s + c * s @ s
        x = a * x + (x @ p if x.shape[0] > x.shape[1] else p @ x)
    return x
