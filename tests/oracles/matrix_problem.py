"""The problem of the frozen trajectories of matrices: a quadratic with noise, computed from integers.

The arrays are in the order in which a dictionary of them is flattened, and matrices are inputs x outputs. The outer
products of a gradient have at most one eigenvalue of zero, so that no basis of eigenvectors is arbitrary.
"""

from typing import Any

import numpy as np

STEPS = 40
SHAPES = {"b1": (4,), "b2": (3,), "w1": (5, 4), "w2": (4, 3)}


def fractions(name: str, factor: int, shift: int = 0) -> np.ndarray:
    """Numbers in [-1, 1], which look random."""
    shape = SHAPES[name]
    k = np.arange(1, 1 + np.prod(shape)) + 23 * list(SHAPES).index(name)
    return ((factor * k * k + 31 * k + shift) % 97 / 48 - 1).reshape(shape)


START = {name: fractions(name, 29) for name in SHAPES}
CURVATURE = {name: 1 + 0.6 * fractions(name, 41) for name in SHAPES}
MINIMUM = {name: 2 * fractions(name, 53) for name in SHAPES}
NOISE = {name: np.stack([0.5 * fractions(name, 37 + t, 17 * t * t) for t in range(STEPS)]) for name in SHAPES}


def gradient(name: str, w: Any, noise: Any) -> Any:
    """The gradient of an array, in NumPy or in JAX."""
    return CURVATURE[name] * (w - MINIMUM[name]) + noise
