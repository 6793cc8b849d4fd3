"""CAME on one matrix. Luo et al., 2023."""

import jax.numpy as jnp


def init(w):
    means = jnp.zeros_like(w[:, 0]), jnp.zeros_like(w[0])
    return {"m": jnp.zeros_like(w), "v": means, "s": means}


def update(
    w,
    g,
    state,
    learning_rate,
    b1=0.9,
    b2=0.999,
    b3=0.9999,
    eps=1e-30,
    instability_eps=1e-16,
    clip_threshold=1.0,
    weight_decay=0.0,
):
    u, v = normalize(g, state["v"], b2, g**2 + eps)
    u = u / jnp.maximum(1, jnp.sqrt(jnp.mean(u**2)) / clip_threshold)
    m = b1 * state["m"] + (1 - b1) * u
    d, s = normalize(m, state["s"], b3, (u - m) ** 2 + instability_eps)
    w = w - learning_rate * (d + weight_decay * w)
    return w, {"m": m, "v": v, "s": s}


def normalize(x, means, beta, square):
    """Divide by the root of an average, of which rows and columns are stored."""
    r = beta * means[0] + (1 - beta) * jnp.mean(square, axis=1)
    c = beta * means[1] + (1 - beta) * jnp.mean(square, axis=0)
    return x / jnp.outer(jnp.sqrt(r / jnp.mean(r)), jnp.sqrt(c)), (r, c)
