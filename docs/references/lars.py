"""LARS on one array. You et al., 2017."""

import jax.numpy as jnp


def init(w):
    return {"v": jnp.zeros_like(w)}


def update(
    w,
    g,
    state,
    learning_rate,
    weight_decay=0.0,
    trust_coefficient=0.001,
    eps=0.0,
    momentum=0.9,
    nesterov=False,
):
    w_norm = jnp.linalg.norm(w)
    norms = jnp.linalg.norm(g) + weight_decay * w_norm
    ratio = trust_coefficient * w_norm / (norms + eps)
    ratio = jnp.where((w_norm > 0) & (norms > 0), ratio, 1)
    step = learning_rate * ratio * (g + weight_decay * w)
    v = momentum * state["v"] + step
    w = w - (momentum * v + step if nesterov else v)
    return w, {"v": v}
