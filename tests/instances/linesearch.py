"""Line searches and L-BFGS."""

from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import optax

import modulax as mx
from modulax.numerics import abs_sq, at_least_float32

from ._instance import Instance


def valley(params: Any) -> Any:
    """A convex loss whose curvature depends on the point, and differs from leaf to leaf."""
    leaves = [jnp.asarray(p, at_least_float32(p.dtype)) for p in jtu.tree_leaves(params)]
    rounds = [i * jnp.sum(jnp.sqrt(1 + abs_sq(p))).astype(float) for i, p in enumerate(leaves, 1)]
    total = sum((jnp.sum(p.real).astype(float) for p in leaves), jnp.zeros((), float))
    return sum(rounds, 0.05 * total**2)


@jax.jit  # one program, which is started and not waited for
def _computed(params: Any) -> Any:
    value, grad = jax.value_and_grad(valley)(params)
    return value, jtu.tree_map(jnp.conj, grad)


def uphill(params: Any) -> Any:
    return _computed(params)[1]


def downhill(params: Any) -> Any:
    return jtu.tree_map(lambda g: -g, uphill(params))


def searched(params: Any, updates: Any) -> Any:
    """The extra arguments of a line search: the loss, its value and its gradient."""
    del updates
    value, grad = _computed(params)
    return {"value": value, "grad": grad, "value_fn": valley}


TRANSFORMS = (
    Instance(
        "ScaleByZoomLinesearch",
        lambda: mx.ScaleByZoomLinesearch(4, max_learning_rate=3.0),
        lambda: optax.scale_by_zoom_linesearch(4, max_learning_rate=3.0),
        extra=searched,
        updates=downhill,
    ),
    Instance(
        "ScaleByBacktrackingLinesearch",
        lambda: mx.ScaleByBacktrackingLinesearch(4),
        lambda: optax.scale_by_backtracking_linesearch(4),
        extra=searched,
        updates=downhill,
    ),
    Instance(
        "ScaleByBacktrackingLinesearch-store_grad",
        lambda: mx.ScaleByBacktrackingLinesearch(6, 0.3, 0.6, 1.2, 2.0, 1e-3, 1e-4, True),
        lambda: optax.scale_by_backtracking_linesearch(6, 0.3, 0.6, 1.2, 2.0, 1e-3, 1e-4, True),
        extra=searched,
        updates=downhill,
        rtol=1e-5,
    ),
    Instance("ScaleByLBFGS", lambda: mx.ScaleByLBFGS(3), lambda: optax.scale_by_lbfgs(3), updates=uphill),
    Instance(
        "LBFGS",
        lambda: mx.LBFGS(memory_size=3, linesearch=mx.ScaleByZoomLinesearch(4, initial_guess_strategy="one")),
        lambda: optax.lbfgs(memory_size=3, linesearch=optax.scale_by_zoom_linesearch(4, initial_guess_strategy="one")),
        extra=searched,
        updates=uphill,
    ),
    Instance(
        "LBFGS-rate",
        lambda: mx.LBFGS(0.1, 3, False, None),
        lambda: optax.lbfgs(0.1, 3, False, None),
        updates=uphill,
    ),
)
