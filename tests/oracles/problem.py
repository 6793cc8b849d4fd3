"""The problem of the frozen trajectories: a quadratic with noise, computed from integers, so that no data is needed."""

from typing import Any

import numpy as np

STEPS = 40
SHAPES = {"matrix": (3, 2), "vector": (3,)}


def fractions(name: str, factor: int, shift: int = 0) -> np.ndarray:
    """Numbers in [-1, 1], which look random."""
    shape = SHAPES[name]
    k = np.arange(1, 1 + np.prod(shape)) + 11 * len(shape)
    return ((factor * k + shift) % 97 / 48 - 1).reshape(shape)


START = {name: fractions(name, 29) for name in SHAPES}
CURVATURE = {name: 1 + 0.6 * fractions(name, 41) for name in SHAPES}
MINIMUM = {name: 2 * fractions(name, 53) for name in SHAPES}
NOISE = {name: np.stack([0.5 * fractions(name, 37, 17 * t * t + 5 * t) for t in range(STEPS)]) for name in SHAPES}
SAMPLED = {name: np.stack([1 + fractions(name, 61, 23 * t) for t in range(STEPS)]) for name in SHAPES}


def gradient(name: str, w: Any, noise: Any) -> Any:
    """The gradient of an array, in NumPy or in JAX."""
    return CURVATURE[name] * (w - MINIMUM[name]) + noise


def loss(params: Any, noise: Any) -> Any:
    """The loss whose gradient this is; always positive."""
    terms = (0.5 * CURVATURE[n] * (w - MINIMUM[n]) ** 2 + noise[n] * w for n, w in params.items())
    return 5 + sum(term.sum() for term in terms)
