"""SOAP on one matrix. Vyas et al., 2024."""

import jax.numpy as jnp


def init(w):
    L, R = (jnp.zeros((n, n), w.dtype) for n in w.shape)
    zeros = jnp.zeros_like(w)
    return {"t": 0, "m": zeros, "v": zeros, "L": L, "R": R, "QL": L, "QR": R}


def update(
    w, g, state, learning_rate, b1=0.95, b2=0.95, eps=1e-8, weight_decay=0.01,
    precondition_frequency=10,
):  # fmt: skip
    t, m, v, QL, QR = (state[name] for name in ("t", "m", "v", "QL", "QR"))
    L = b2 * state["L"] + (1 - b2) * g @ g.T
    R = b2 * state["R"] + (1 - b2) * g.T @ g
    if t == 0:  # the first gradient gives the bases, and moves nothing
        QL, QR = (jnp.linalg.eigh(x)[1][:, ::-1] for x in (L, R))
    else:
        x = QL.T @ g @ QR  # Adam in the eigenbases
        m = b1 * m + (1 - b1) * x
        v = b2 * v + (1 - b2) * x**2
        scale = jnp.sqrt(1 - b2**t) / (1 - b1**t)
        w = w - learning_rate * scale * QL @ (m / (jnp.sqrt(v) + eps)) @ QR.T
        w = (1 - learning_rate * weight_decay) * w
        if t % precondition_frequency == 0:
            m = QL @ m @ QR.T
            (QL, rows), (QR, columns) = power_step(L, QL), power_step(R, QR)
            m, v = QL.T @ m @ QR, v[rows][:, columns]
    return w, {"t": t + 1, "m": m, "v": v, "L": L, "R": R, "QL": QL, "QR": QR}


def power_step(x, q):
    """Better eigenvectors, and the order of the old ones by their eigenvalues."""
    order = jnp.argsort(-jnp.diag(q.T @ x @ q))
    return jnp.linalg.qr(x @ q[:, order])[0], order
