"""Interleaved timing: noise of the machine affects all alternatives alike. And what several parts measure."""

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

SHAPES = ((64, 64), (64,), (128, 64))


def tree(leaves: int) -> dict[str, jax.Array]:
    """Parameters of a few shapes, as in a model with many equal layers."""
    return {f"layer{i}": jnp.full(SHAPES[i % len(SHAPES)], 0.1, jnp.float32) for i in range(leaves)}


def step_of(
    optimizer: Any, apply_updates: Callable[[Any, Any], Any], **extra: Any
) -> Callable[[Any, Any, Any], tuple[Any, Any]]:
    """Update and apply, as a function of parameters, state and gradients."""

    def step(params: Any, state: Any, grads: Any) -> tuple[Any, Any]:
        updates, state = optimizer.update(grads, state, params, **extra)
        return apply_updates(params, updates), state

    return step


def carried(step: Any, carry: Sequence[Any], *given: Any) -> Callable[[], list[Any]]:
    """A function that runs a step on what the last one returned, and on other arguments that stay."""
    held = list(carry)

    def run() -> list[Any]:
        held[:] = step(*held, *given)
        return held

    return run


def interleaved(
    runs: Sequence[Callable[[], Any]], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> tuple[list[float], list[float]]:
    """The median time of each function in seconds, and the median of its ratio to the first one in the same round.

    In every round, each function runs once and blocks until its result is ready; the order rotates.
    """
    for run in runs:
        jax.block_until_ready(run())
    times: list[list[float]] = [[] for _ in runs]
    gc.disable()
    try:
        for i in range(rounds):
            for j in range(len(runs)):
                k = (i + j) % len(runs)
                start = clock()
                jax.block_until_ready(runs[k]())
                times[k].append(clock() - start)
    finally:
        gc.enable()
    return medians(times)


def medians(times: Sequence[Sequence[float]]) -> tuple[list[float], list[float]]:
    """The median time of each function, and the median of its ratio to the first one in the same round."""
    ratios = [statistics.median(a / b for a, b in zip(t, times[0], strict=True)) for t in times]
    return [statistics.median(t) for t in times], ratios


def seconds(x: float) -> str:
    """A duration with three significant digits."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if x >= scale:
            return f"{x / scale:.3g} {unit}"
    return f"{x / 1e-9:.3g} ns"


def table(head: Sequence[str], rows: Sequence[Sequence[str]], labels: int = 1) -> str:
    """A Markdown table. The first columns, `labels` of them, name a row; the others are figures, aligned to the right.

    `--compare` pairs rows by their names, so no two rows may have the same one.
    """
    rule = ["---"] * labels + ["---:"] * (len(head) - labels)
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *rows))
