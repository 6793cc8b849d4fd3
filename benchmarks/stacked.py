"""`Stacked`: many small parameters, with the state in stacks."""

import gc
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from measure import SHAPES, interleaved, medians, seconds, step_of, table

import modulax


def stacked(quick: bool) -> str:
    """AdamW in stacks and in one buffer against optax: update and apply in one `jax.jit`.

    The optimizers are closed over. The times to trace and lower, and to compile, are CPU times; the parameters have new
    names in every round, so that no cache is hit. The shapes of the 1000 arrays are those of a small transformer.
    """
    adam = modulax.AdamW(1e-3)
    ways: dict[str, Any] = {
        "optax": optax.adamw(1e-3),
        "optax, `flatten`": optax.flatten(optax.adamw(1e-3)),
        "`AdamW`": adam,
        "`Stacked`": modulax.Stacked(adam),
        "`Stacked`, chunks of 8": modulax.Stacked(adam, 8),
        "`Stacked`, chunks of 32": modulax.Stacked(adam, 32),
        "`Flatten`": modulax.Flatten(adam),
        "`Flatten`, chunks of 16": modulax.Flatten(adam, 16),
    }
    models: dict[str, list[tuple[int, ...]]] = {
        "512 × (32,)": [(32,)] * 512,
        "1000 of three shapes": [SHAPES[i % len(SHAPES)] for i in range(1000)],
        "one of 8M": [(8_000_000,)],
    }
    if quick:
        models = {"12 × (32,)": [(32,)] * 12}
    rows = []
    for model, shapes in models.items():
        rows += _rows(model, shapes, ways, quick)
    head = ["parameters", "", "step", "ratio", "trace + lower", "ratio", "compile", "ratio"]
    return table(head, rows, labels=2)


def _rows(model: str, shapes: list[tuple[int, ...]], ways: dict[str, Any], quick: bool) -> list[list[str]]:
    rounds = 1 if quick else 5
    lowering: list[list[float]] = [[] for _ in ways]
    compiling: list[list[float]] = [[] for _ in ways]
    runs: list[Callable[[], Any]] = []
    for i in range(-1, rounds):  # the first round warms up
        runs.clear()
        made: dict[int, Callable[[], Any]] = {}
        for j in range(len(ways)):
            k = (i + j) % len(ways)
            optimizer = list(ways.values())[k]
            params = {f"{i}.{j}.{n}": jnp.full(shape, 0.1, jnp.float32) for n, shape in enumerate(shapes)}
            step = step_of(
                optimizer, (modulax if isinstance(optimizer, modulax.AbstractTransform) else optax).apply_updates
            )
            abstract = jax.eval_shape(optimizer.init, params)
            gc.collect()
            start = time.process_time()
            lowered = jax.jit(step).lower(params, abstract, params)
            between = time.process_time()
            program = lowered.compile()
            if i >= 0:
                lowering[k].append(between - start)
                compiling[k].append(time.process_time() - between)
            if i == rounds - 1:
                state = optimizer.init(params)
                made[k] = lambda p=program, a=params, s=state: p(a, s, a)
        runs += [made[k] for k in sorted(made)]
    times, ratios = interleaved(runs, 3 if quick else 200)
    lower, compiled = medians(lowering), medians(compiling)
    cells = [[times, ratios], lower, compiled]
    return [
        [model, name, *(x for t, r in cells for x in (seconds(t[k]), f"{r[k]:.2f}"))] for k, name in enumerate(ways)
    ]
