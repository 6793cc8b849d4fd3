"""Helpers of the transcriptions of algorithms to NumPy: the same gradients, start and learning rate as ours."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import optax

STEPS, SIZE = 50, 7
ETA = 0.03
Points = Iterator[np.ndarray]
Cases = dict[str, tuple[Callable[[], Any], Callable[[], Points]]]


def gradients() -> np.ndarray:
    random = np.random.default_rng(0)
    return random.normal(size=(STEPS, SIZE)) * np.geomspace(1e-3, 1e2, SIZE)


def start() -> np.ndarray:
    return np.random.default_rng(1).normal(size=SIZE)


def moments(b1: float, b2: float) -> Iterator[tuple[int, np.ndarray, Any, Any]]:
    """For each step its number, its gradient, and the averages of the gradients and of their squares."""
    m, v = 0.0, 0.0
    for t, g in enumerate(gradients(), 1):
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * g**2
        yield t, g, m, v


def looked_ahead(b1: float, t: int, g: Any, m: Any) -> Any:
    """The corrected average of Dozat 2016, algorithm 2, at a constant momentum."""
    return b1 * m / (1 - b1 ** (t + 1)) + (1 - b1) * g / (1 - b1**t)


def points(transform: Any, w: Any = None, grads: Any = None, **extra: Any) -> Any:
    """The points that a transform visits, in any tree; `extra` are functions of the point that give extra arguments."""

    def body(carry: Any, g: Any) -> Any:
        w, state = carry
        u, state = transform.update(g, state, w, **{name: f(w) for name, f in extra.items()})
        w = jtu.tree_map(jnp.add, w, u)
        return (w, state), w

    @jax.jit
    def run(w: Any, gradients: Any) -> Any:
        return jax.lax.scan(body, (w, transform.init(w)), gradients)[1]

    found = run(start() if w is None else w, gradients() if grads is None else grads)
    return jtu.tree_map(np.asarray, found)


def assert_equations(case: tuple[Callable[[], Any], Callable[[], Points]], **extra: Any) -> None:
    """The points that a transform visits are those of its transcription."""
    make, transcription = case
    expected = np.stack(list(transcription()))
    np.testing.assert_allclose(points(make(), **extra), expected, rtol=1e-12, atol=1e-15)


def updates(transform: Any, grads: Any, params: Any = None) -> np.ndarray:
    """The updates for some gradients at one point, which is zero if none is given."""
    params = np.zeros_like(grads[0]) if params is None else params

    @jax.jit
    def run(params: Any, grads: Any) -> Any:
        return jax.lax.scan(lambda s, g: transform.update(g, s, params)[::-1], transform.init(params), grads)[1]

    return np.asarray(run(params, grads))


def first_update(transform: Any, g: Any, w: Any = None) -> Any:
    """The first update for a gradient, at zero if no point is given."""
    w = jtu.tree_map(np.zeros_like, g) if w is None else w
    update = jax.jit(lambda g, w: transform.update(g, transform.init(w), w)[0])
    return jtu.tree_map(np.asarray, update(g, w))


def compiled(twin: Any) -> Any:
    """A transformation of optax whose update is one program, not one for each operation."""
    return optax.GradientTransformationExtraArgs(twin.init, jax.jit(twin.update))
