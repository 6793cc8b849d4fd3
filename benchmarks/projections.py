"""Projections against optax."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from measure import interleaved, seconds, table

from modulax import projections as ours

theirs = optax.projections
# The name of the function, the factor of the normally distributed entries, and the other arguments.
SETS: dict[str, tuple[str, float, tuple[float, ...]]] = {
    "simplex": ("projection_simplex", 1.0, ()),
    "l1 ball": ("projection_l1_ball", 1.0, ()),
    "l1 ball, from inside": ("projection_l1_ball", 1e-9, ()),
    "l2 ball": ("projection_l2_ball", 1.0, ()),
    "box": ("projection_box", 1.0, (-0.5, 0.5)),
}


def _gradient(function: Callable[..., Any], x: jax.Array, weights: jax.Array, *arguments: float) -> Any:
    return jax.vjp(lambda x: function(x, *arguments), x)[1](weights)[0]


def _value(function: Callable[..., Any], x: jax.Array, weights: jax.Array, *arguments: float) -> Any:
    del weights
    return function(x, *arguments)


def projections(quick: bool) -> str:
    """Projections of a float32 array of normally distributed entries, and the gradient of a weighted sum of the result.

    Temporary memory is as reported by XLA, in bytes per entry.
    """
    rows = []
    for size in (1000,) if quick else (10_000, 1_000_000):
        normal = np.random.default_rng(0).normal(size=size)
        weights = jnp.cos(jnp.arange(size, dtype=jnp.float32))
        for title, (name, factor, arguments) in SETS.items():
            x = jnp.asarray(factor * normal, jnp.float32)
            for what, measured in (("value", _value), ("gradient", _gradient)):
                programs = []
                for function in (getattr(theirs, name), getattr(ours, name)):
                    call = functools.partial(measured, function)
                    program = jax.jit(lambda x, w, call=call, rest=arguments: call(x, w, *rest))
                    programs.append(program.lower(x, weights).compile())
                runs = [functools.partial(program, x, weights) for program in programs]
                (t, u), (_, ratio) = interleaved(runs, 3 if quick else 101)
                memory = [f"{p.memory_analysis().temp_size_in_bytes / size:.1f}" for p in programs]
                rows.append([title, f"{size:,}", what, seconds(t), seconds(u), f"{ratio:.3f}", *memory])
    head = ["set", "entries", "", "optax", "modulax", "ratio", "memory, optax", "memory, modulax"]
    return table(head, rows, labels=3)
