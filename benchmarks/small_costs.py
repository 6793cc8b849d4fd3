"""What is paid once or outside the step: importing, the first `init`, reading the hyperparameters in force."""

import resource
import subprocess
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import optax
from measure import interleaved, medians, seconds, table, tree

import modulax


def _processor_time(code: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def imports(quick: bool) -> str:
    """Processor time of a new interpreter that imports a library, or makes an optimizer too.

    modulax imports a name when it is first used. Every program with Equinox needs the time of `import equinox`.
    """
    programs = {
        "`import optax`": "import optax",
        "`import modulax`": "import modulax",
        "`import equinox`": "import equinox",
        "`optax.adamw(1e-3)`": "import optax; optax.adamw(1e-3)",
        "`modulax.AdamW(1e-3)`": "import modulax; modulax.AdamW(1e-3)",
        "`from modulax import *`": "from modulax import *",
    }
    times: list[list[float]] = [[] for _ in programs]
    for i in range(1 if quick else 16):  # the first round compiles files
        for row, code in zip(times, programs.values(), strict=True):
            found = _processor_time(code)
            if quick or i > 0:
                row.append(found)
    rows = [[name, seconds(t), f"{r:.2f}"] for name, t, r in zip(programs, *medians(times), strict=True)]
    return table(["", "time", "ratio"], rows)


def inits(quick: bool) -> str:
    """The first and the second `optimizer.init` of AdamW, as it is, against `tx.init`, which is not compiled.

    For the first one, JAX's caches are empty.
    """
    rows = []
    for leaves in (10,) if quick else (10, 100, 1000, 4000):
        params = tree(leaves)
        jax.block_until_ready(params)
        ways: list[Any] = [optax.adamw(1e-3), modulax.AdamW(1e-3)]
        times: list[list[list[float]]] = [[[], []], [[], []]]
        for i in range(1 if quick else 5):
            for k in (i % 2, (i + 1) % 2):
                jax.clear_caches()
                for found in times:
                    start = time.perf_counter()
                    jax.block_until_ready(ways[k].init(params))
                    found[k].append(time.perf_counter() - start)
        cells: list[str] = []
        for found in times:
            absolute, ratios = medians(found)
            cells += [*map(seconds, absolute), f"{ratios[1]:.2f}"]
        rows.append([str(leaves), *cells])
    head = ["leaves", "first, optax", "modulax", "ratio", "second, optax", "modulax", "ratio"]
    return table(head, rows)


def reading(quick: bool) -> str:
    """`optimizer.hyperparameters(state)` outside a program."""
    schedule = modulax.schedules.WarmupCosineDecay(0.0, 1e-3, 10, 100)
    transforms = {
        "`AdamW`": modulax.AdamW(1e-3),
        "`AdamW` with a schedule": modulax.AdamW(schedule),
        "`Chain` of a clip and that": modulax.Chain(modulax.ClipByGlobalNorm(1.0), modulax.AdamW(schedule)),
    }
    rows = []
    for name, transform in transforms.items():
        state = transform.init(jnp.ones(3))
        (spent,), _ = interleaved([lambda: transform.hyperparameters(state)], 3 if quick else 300)  # noqa: B023
        rows.append([name, seconds(spent)])
    return table(["optimizer", "time"], rows)
