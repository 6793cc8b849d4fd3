"""Kron (PSGD) on one matrix. Li, 2018; Walters et al., 2024."""

import jax
import jax.numpy as jnp


def init(w, precond_init_scale=1.0, key=0):
    QL, QR = (precond_init_scale**0.5 * jnp.eye(n, dtype=w.dtype) for n in w.shape)
    key = jax.random.key(key)
    return {"t": 0, "m": jnp.zeros_like(w), "QL": QL, "QR": QR, "key": key}


def update(w, g, state, learning_rate, b1=0.9, weight_decay=0.0, precond_lr=0.1):
    t, m, QL, QR = state["t"] + 1, state["m"], state["QL"], state["QR"]
    key, used = jax.random.split(state["key"])
    balance_key, noise_key = jax.random.split(used)
    V = jax.random.normal(noise_key, w.shape, w.dtype)
    m = b1 * m + (1 - b1) * g
    m_hat = m / (1 - b1**t)
    x = m_hat + 3.452669770922512e-4 * jnp.mean(jnp.abs(m_hat)) * V  # √ε of float32
    is_balanced = jax.random.uniform(balance_key) < 0.01
    ratio = jnp.where(is_balanced, jnp.max(jnp.abs(QR)) / jnp.max(jnp.abs(QL)), 1)
    QL, QR = QL * ratio**0.5, QR / ratio**0.5
    A = QL @ x @ QR.T
    B = jnp.linalg.solve(QL.T, V) @ jnp.linalg.inv(QR)
    # In all of the first 500 steps, then more and more rarely, at last in one of 33.
    QL, QR = moved(QL, A, B, precond_lr), moved(QR, A.T, B.T, precond_lr)
    u = QL.T @ QL @ x @ QR.T @ QR
    u = u * jnp.minimum(1, 1.1 / jnp.sqrt(jnp.mean(u**2)))
    w = w - learning_rate * (u + weight_decay * w)
    return w, {"t": t, "m": m, "QL": QL, "QR": QR, "key": key}


def moved(Q, A, B, learning_rate):
    total = A @ A.T + B @ B.T
    x = total @ total[:, jnp.argmax(jnp.sum(total**2, axis=0))]
    norm = jnp.linalg.norm(total @ x) / jnp.linalg.norm(x)  # about the spectral one
    return Q - learning_rate * jnp.triu(A @ A.T - B @ B.T) @ Q / norm
