"""GaLore with Adam on one matrix. Zhao et al., 2024."""

import jax.numpy as jnp


def init(w, rank=128):
    short, long = sorted(w.shape)
    rank = min(rank, short)
    zeros = jnp.zeros((rank, long), w.dtype)
    return {"t": 0, "m": zeros, "v": zeros, "P": jnp.zeros((short, rank), w.dtype)}


def update(
    w, g, state, learning_rate, update_proj_gap=200, scale=1.0, weight_decay=0.0
):
    b1, b2, eps = 0.9, 0.999, 1e-8  # of Adam
    t, P = state["t"], state["P"]
    is_tall = w.shape[0] > w.shape[1]
    if t % update_proj_gap == 0:  # singular vectors of the shorter side
        U, _, Vt = jnp.linalg.svd(g, full_matrices=False)
        P = (Vt.T if is_tall else U)[:, : P.shape[1]]
    t, R = t + 1, P.T @ (g.T if is_tall else g)
    m = b1 * state["m"] + (1 - b1) * R
    v = b2 * state["v"] + (1 - b2) * R**2
    m_hat = m / (1 - b1**t)
    v_hat = v / (1 - b2**t)
    u = scale * P @ (m_hat / (jnp.sqrt(v_hat) + eps))
    w = w - learning_rate * (u.T if is_tall else u)
    w = (1 - learning_rate * weight_decay) * w
    return w, {"t": t, "m": m, "v": v, "P": P}
