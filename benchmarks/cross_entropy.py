"""Cross-entropies against optax."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from measure import interleaved, seconds, table

from modulax import losses


def cross_entropy(quick: bool) -> str:
    """Cross-entropies of the logits of a language model and of a small batch: time, and XLA's memory.

    "Gradient" is `value_and_grad` of the mean. "Temporary" is what XLA allocates in addition to arguments and results.
    """
    large = (1, 64, 1000) if quick else (8, 1024, 32_000)
    rows = []
    for shape, dtypes, rounds in (
        (large, (jnp.float32,), 31),
        (large, (jnp.bfloat16,), 9),
        ((64, 10), (jnp.float32,), 1000),
    ):
        for dtype in dtypes:
            logits = jax.random.normal(jax.random.key(0), shape, dtype)
            labels = jax.random.randint(jax.random.key(1), shape[:-1], 0, shape[-1])
            size = "×".join(f"{n:,}" for n in shape)
            for what, of in (("loss", lambda f: f), ("gradient", _gradient)):
                name = "softmax_cross_entropy_with_integer_labels"
                row = _against_optax(name, of, (logits, labels), 2 if quick else rounds)
                rows.append([f"`{name}`", f"{size}, {logits.dtype}", what, *row])
    logits = jax.random.normal(jax.random.key(0), (8, 1000) if quick else (1024, 32_000))
    labels = jax.nn.softmax(jax.random.normal(jax.random.key(1), logits.shape))
    size = "×".join(f"{n:,}" for n in logits.shape)
    for name in ("softmax_cross_entropy", "sigmoid_binary_cross_entropy", "sigmoid_focal_loss"):
        for what, of in (("loss", lambda f: f), ("gradient", _gradient)):
            row = _against_optax(name, of, (logits, labels), 2 if quick else 9)
            rows.append([f"`{name}`", f"{size}, float32", what, *row])
    head = ["function", "logits", "", "optax", "modulax", "ratio", "temporary, optax", "temporary, modulax"]
    return table(head, rows, labels=3)


def _gradient(function: Callable[..., Any]) -> Callable[..., Any]:
    return jax.value_and_grad(lambda *arguments: jnp.mean(function(*arguments)))


def _against_optax(name: str, of: Callable[..., Any], arguments: tuple[Any, ...], rounds: int) -> list[str]:
    """Times, their ratio, and temporary memory of optax and modulax."""
    programs = [jax.jit(of(getattr(module, name))).lower(*arguments).compile() for module in (optax, losses)]
    runs = [lambda program=program: program(*arguments) for program in programs]
    times, ratios = interleaved(runs, rounds)
    memory = [getattr(program.memory_analysis(), "temp_size_in_bytes", math.nan) / 1e6 for program in programs]
    return [*map(seconds, times), f"{ratios[1]:.2f}", *(f"{megabytes:,.2f} MB" for megabytes in memory)]
