"""Helpers of the transcriptions of algorithms to NumPy: the same gradients, start and learning rate as ours."""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import optax

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

    @jax.jit
    def run(w: Any, gradients: Any) -> Any:
        return jax.lax.scan(body, (w, transform.init(w)), gradients)[1]

    return np.asarray(run(start(), gradients()))


def first_update(transform: Any, g: Any, w: Any = None) -> np.ndarray:
    """The first update for a gradient, at zero if no point is given."""
    w = np.zeros_like(g) if w is None else w
    return np.asarray(jax.jit(lambda g, w: transform.update(g, transform.init(w), w)[0])(g, w))


def compiled(twin: Any) -> Any:
    """A transformation of optax whose update is one program, not one for each operation."""
    return optax.GradientTransformationExtraArgs(twin.init, jax.jit(twin.update))
