"""Sophia-H on one array, with Hutchinson's estimates. Liu et al., 2023."""

import jax
import jax.numpy as jnp


def init(w):
    return {"t": 0, "m": jnp.zeros_like(w), "h": jnp.zeros_like(w)}


def update(
    w,
    g,
    state,
    learning_rate,
    obj_fn,
    b1=0.965,
    b2=0.99,
    eps=1e-8,
    weight_decay=1e-4,
    gamma=0.01,
    clip_threshold=1.0,
    update_interval=10,
):
    t, h = state["t"], state["h"]
    m = b1 * state["m"] + (1 - b1) * g
    h = jax.lax.cond(
        t % update_interval == 0,
        lambda: b2 * h + (1 - b2) * hutchinson(obj_fn, w, t),
        lambda: h,
    )
    u = jnp.clip(m / jnp.maximum(gamma * h, eps), -clip_threshold, clip_threshold)
    w = w - learning_rate * (u + weight_decay * w)
    return w, {"t": t + 1, "m": m, "h": h}


def hutchinson(f, w, t):
    """Diagonal of the Hessian, estimated with random signs."""
    r = jax.random.rademacher(jax.random.key(t), w.shape, w.dtype)
    return r * jax.jvp(jax.grad(f), (w,), (r,))[1]
