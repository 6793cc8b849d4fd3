"""The problems of `first_order.npz`, beside the one of `problem.py`: layers, larger matrices, a full Hessian.

Linear layers are (in, out). The numbers are computed from integers.
"""

import math
from typing import Any, NamedTuple

import numpy as np

STEPS = 40


class Problem(NamedTuple):
    """A quadratic with noise; its Hessian is diagonal."""

    start: dict[str, np.ndarray]
    curvature: dict[str, np.ndarray]
    minimum: dict[str, np.ndarray]
    noise: dict[str, np.ndarray]

    def gradient(self, name: str, w: Any, noise: Any) -> Any:
        """The gradient of an array, in NumPy or in JAX."""
        return self.curvature[name] * (w - self.minimum[name]) + noise


def quadratic(**shapes: tuple[int, ...]) -> Problem:
    """A problem of arrays of these shapes, whose entries look random."""

    def fractions(factor: int, shift: int = 0) -> dict[str, np.ndarray]:
        found = {}
        for i, (name, shape) in enumerate(shapes.items()):
            k = np.arange(1, 1 + math.prod(shape)) + 23 * i
            found[name] = ((factor * k * k + 31 * k + shift) % 97 / 48 - 1).reshape(shape)
        return found

    noise = [fractions(37 + t, 17 * t * t) for t in range(STEPS)]
    return Problem(
        fractions(29),
        {name: 1 + 0.6 * c for name, c in fractions(41).items()},
        {name: 2 * m for name, m in fractions(53).items()},
        {name: 0.5 * np.stack([n[name] for n in noise]) for name in shapes},
    )


LAYERS = quadratic(
    embed=(5, 4), wq=(4, 4), wk=(4, 2), wv=(4, 4), wo=(4, 4), mlp=(4, 6), mlp_bias=(6,), norm=(4,), other=(4, 3),
    output=(4, 5),
)  # fmt: skip
MATRICES = quadratic(tall=(6, 4), wide=(3, 5), square=(4, 4), vector=(4,))
KERAS = quadratic(embeddings=(5, 4), kernel=(4, 3), bias=(3,), gamma=(4,), beta=(4,))
CONVOLUTION = quadratic(kernel=(2, 1, 3, 2), matrix=(3, 2), vector=(3,))  # the kernel is (out, in, height, width)


def coupled_loss(problem: Problem, params: dict[str, Any], noise: dict[str, Any]) -> Any:
    """A loss with a full Hessian, which is not constant, in NumPy, PyTorch or JAX."""
    total: Any = 0.0
    common: Any = 0.0
    for name, w in params.items():
        from_minimum = w - problem.minimum[name]
        total += (0.5 * problem.curvature[name] * from_minimum**2 + 0.02 * from_minimum**4 + noise[name] * w).sum()
        common += (problem.start[name] * w).sum()
    return total + 0.05 * common**2


def cosine(peak: float, t: int) -> float:
    """A rate that falls to zero."""
    return peak * (1 + math.cos(math.pi * t / STEPS)) / 2


def warm_up(peak: float, t: int) -> float:
    """A rate that rises for 20 steps."""
    return peak * min(1.0, (t + 1) / 20)


def noise_of_worker(noise: np.ndarray, worker: int, t: int) -> np.ndarray:
    """The noise of one of several workers at a step."""
    return noise[(t + 13 * worker) % STEPS]
