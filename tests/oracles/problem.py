"""The problems of the frozen trajectories: quadratics with noise, computed from integers, so that no data is needed.

Matrices are inputs x outputs.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

STEPS = 40
Arrays = dict[str, np.ndarray]


class Problem(NamedTuple):
    """A quadratic with noise; its Hessian is diagonal."""

    start: Arrays
    curvature: Arrays
    minimum: Arrays
    noise: Arrays

    def gradient(self, name: str, w: Any, noise: Any) -> Any:
        """The gradient of an array, in NumPy or in JAX."""
        return self.curvature[name] * (w - self.minimum[name]) + noise

    def loss(self, params: Any, noise: Any) -> Any:
        """The loss whose gradient this is; always positive on the small problem."""
        away = {n: w - self.minimum[n] for n, w in params.items()}
        return 5 + sum((0.5 * self.curvature[n] * away[n] ** 2 + noise[n] * w).sum() for n, w in params.items())

    def transposed(self, *names: str) -> "Problem":
        """The same problem, some of whose matrices are outputs x inputs."""
        return Problem(*({n: w.swapaxes(-1, -2) if n in names else w for n, w in part.items()} for part in self))


def made_of(fractions: Callable[[int, int], Arrays], noise: list[Arrays]) -> Problem:
    """A problem from arrays of numbers in [-1, 1], which look random, for a factor and a shift."""
    return Problem(
        fractions(29, 0),
        {name: 1 + 0.6 * c for name, c in fractions(41, 0).items()},
        {name: 2 * m for name, m in fractions(53, 0).items()},
        {name: 0.5 * np.stack([n[name] for n in noise]) for name in noise[0]},
    )


def small(factor: int, shift: int) -> Arrays:
    found = {}
    for name, shape in {"matrix": (3, 2), "vector": (3,)}.items():
        k = np.arange(1, 1 + math.prod(shape)) + 11 * len(shape)
        found[name] = ((factor * k + shift) % 97 / 48 - 1).reshape(shape)
    return found


SMALL = made_of(small, [small(37, 17 * t * t + 5 * t) for t in range(STEPS)])
SAMPLED = {name: np.stack([1 + small(61, 23 * t)[name] for t in range(STEPS)]) for name in SMALL.start}


def quadratic(**shapes: tuple[int, ...]) -> Problem:
    """A problem of arrays of these shapes."""

    def fractions(factor: int, shift: int) -> Arrays:
        found = {}
        for i, (name, shape) in enumerate(shapes.items()):
            k = np.arange(1, 1 + math.prod(shape)) + 23 * i
            found[name] = ((factor * k * k + 31 * k + shift) % 97 / 48 - 1).reshape(shape)
        return found

    return made_of(fractions, [fractions(37 + t, 17 * t * t) for t in range(STEPS)])


# The outer products of a gradient have at most one eigenvalue of zero, so that no basis of eigenvectors is arbitrary.
TWO_LAYERS = quadratic(b1=(4,), b2=(3,), w1=(5, 4), w2=(4, 3))
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
