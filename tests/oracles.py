"""Helpers of the transcriptions of algorithms to NumPy: the same gradients, start and learning rate as ours."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

STEPS, SIZE = 50, 7
ETA = 0.03
Points = Iterator[np.ndarray]


def gradients() -> np.ndarray:
    random = np.random.default_rng(0)
    return random.normal(size=(STEPS, SIZE)) * np.geomspace(1e-3, 1e2, SIZE)


def start() -> np.ndarray:
    return np.random.default_rng(1).normal(size=SIZE)


def points(transform: Any, **extra: Any) -> np.ndarray:
    """The points that a transform visits; `extra` are functions of the point that give extra arguments."""

    def body(carry: Any, g: Any) -> Any:
        w, state = carry
        u, state = transform.update(g, state, w, **{name: f(w) for name, f in extra.items()})
        return (w + u, state), w + u

    w = jnp.asarray(start())
    return np.asarray(jax.lax.scan(body, (w, transform.init(w)), jnp.asarray(gradients()))[1])


def first_update(transform: Any, g: Any, w: Any = None) -> np.ndarray:
    """The first update for a gradient, at zero if no point is given."""
    update = jnp.asarray(g)
    w = jnp.zeros_like(update) if w is None else w
    return np.asarray(transform.update(update, transform.init(w), w)[0])
