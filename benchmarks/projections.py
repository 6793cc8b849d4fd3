"""Projections of modulax beside those of optax."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from measure import interleaved, seconds, table

from modulax import projections as ours

theirs = optax.projections


def projections(quick: bool) -> str:
    """Projections of normal numbers, all in one array of float32, with and without the gradient of a weighted sum.

    "Inside" are numbers so small that they lie in the ball already. "Memory" is the ratio of XLA's temporary memory.
    """
    sets: dict[str, tuple[str, float, tuple[Any, ...]]] = {
        "simplex": ("projection_simplex", 1.0, ()),
        "l1 ball": ("projection_l1_ball", 1.0, ()),
        "l1 ball, inside": ("projection_l1_ball", 1e-9, ()),
        "l2 ball": ("projection_l2_ball", 1.0, ()),
        "box": ("projection_box", 1.0, (-0.5, 0.5)),
    }
    rows = []
    for size in (1000,) if quick else (10_000, 1_000_000):
        normal = np.random.default_rng(0).normal(size=size)
        weights = jnp.cos(jnp.arange(size, dtype=jnp.float32))
        for title, (name, scale, arguments) in sets.items():
            x = jnp.asarray(scale * normal, jnp.float32)
            ways = []
            for module in (theirs, ours):

                def value(x: Any, function: Any = getattr(module, name), arguments: Any = arguments) -> Any:
                    return function(x, *arguments)

                def gradient(x: Any, value: Any = value) -> Any:
                    return jax.vjp(value, x)[1](weights)  # noqa: B023

                ways.append([jax.jit(f).lower(x).compile() for f in (value, gradient)])
            row = [title, f"{size:,}"]
            for their_way, our_way in zip(*ways, strict=True):
                runs = [lambda f=f: f(x) for f in (their_way, our_way)]  # noqa: B023
                (t, u), (_, ratio) = interleaved(runs, 3 if quick else 31)
                memory = [f.memory_analysis().temp_size_in_bytes for f in (their_way, our_way)]
                relative = f"{memory[1] / memory[0]:.2f}" if memory[0] else "none" if not memory[1] else "some"
                row += [seconds(t), seconds(u), f"{ratio:.3f}", relative]
            rows.append(row)
    value, gradient = (["optax", "modulax", "ratio", "memory"], ["optax, gradient", "modulax", "ratio", "memory"])
    return table(["set", "entries", *value, *gradient], rows)
