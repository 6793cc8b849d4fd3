"""Muon on one matrix, inputs × outputs. Jordan et al., 2024."""

import jax.numpy as jnp


def init(w):
    return {"m": jnp.zeros_like(w)}


def update(
    w, g, state, learning_rate, beta=0.95, ns_steps=5, eps=1e-8, weight_decay=0.0,
    nesterov=True,
):  # fmt: skip
    m = beta * state["m"] + (1 - beta) * g
    o = orthogonalize(beta * m + (1 - beta) * g if nesterov else m, ns_steps, eps)
    rows, columns = w.shape
    scale = max(1, columns / rows) ** 0.5
    w = w - learning_rate * (scale * o + weight_decay * w)
    return w, {"m": m}


def orthogonalize(x, steps, eps):
    """Newton-Schulz: move all singular values close to 1."""
    a, b, c = 3.4445, -4.775, 2.0315
    x = x / (jnp.linalg.norm(x) + eps)
    for _ in range(steps):
        s = x.T @ x if x.shape[0] > x.shape[1] else x @ x.T
        p = b * s + c * s @ s
        x = a * x + (x @ p if x.shape[0] > x.shape[1] else p @ x)
    return x
