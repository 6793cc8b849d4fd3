"""`LowBit`: time and memory of a step, and the loss after training, in 32, 8 and 4 bits."""

import importlib
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from measure import interleaved, seconds, table

import modulax
import modulax.nnx

sys.path.append(str(Path(__file__).parents[1] / "examples"))
transformer: Any = importlib.import_module("nnx_transformer")


def low_bit_state(quick: bool) -> str:
    """A donated step of AdamW and Lion with their moments in 32, 8 and 4 bits, and the loss after training.

    The time is that of update and apply in one `jax.jit`, with donated parameters and state, for 12 matrices; the ratio
    is to 32 bits. Bytes are those of the state for each parameter. The last column is the temporary memory of the
    program, in bytes for each parameter: moments in float32 would be 8 of AdamW.
    """
    shape, leaves = ((256, 128), 2) if quick else ((1024, 768), 12)
    params = {str(i): jax.random.normal(jax.random.key(i), shape) for i in range(leaves)}
    rows = []
    for optimizer in (modulax.AdamW(1e-3), modulax.Lion(1e-4)):
        name = type(optimizer).__name__
        ways = {
            name: optimizer,
            f"{name}, 8 bits": modulax.LowBit(optimizer),
            f"{name}, 8 bits, to the nearest": modulax.LowBit(optimizer, stochastic=False),
            f"{name}, 4 bits": modulax.LowBit(optimizer, 4),
        }
        runs, held, programs = [], [], []
        for way in ways.values():
            held.append([jax.tree.map(jnp.copy, params), way.init(params)])

            def step(params: Any, state: Any, grads: Any, way: Any = way) -> Any:
                return way.step(grads, state, params)

            programs.append(jax.jit(step, donate_argnums=(0, 1)).lower(*held[-1], params).compile())

            def run(program: Any = programs[-1], own: list[Any] = held[-1]) -> Any:
                own[:] = program(*own, params)
                return own

            runs.append(run)
        times, ratios = interleaved(runs, 3 if quick else 60)
        entries = sum(x.size for x in params.values())
        for i, label in enumerate(ways):
            state = sum(x.nbytes for x in jax.tree.leaves(held[i][1])) / entries
            temporary = programs[i].memory_analysis().temp_size_in_bytes / entries
            rows.append([label, seconds(times[i]), f"{ratios[i]:.2f}", f"{state:.2f}", f"{temporary:.2f}"])
    steps = table(["optimizer", "step", "ratio", "bytes", "temporary"], rows)
    return f"{steps}\n\n{_training(quick)}"


def _training(quick: bool) -> str:
    """The mean loss of the last 50 of 200 steps of `examples/nnx_transformer.py`, every matrix in fewer bits."""
    steps, rows = 2 if quick else 200, []
    optimizers = (modulax.AdamW(3e-3), modulax.Lion(3e-4), modulax.Adafactor(1e-2, min_dim_size_to_factor=64))
    for optimizer in optimizers[:1] if quick else optimizers:
        losses = []
        for way in (optimizer, *(modulax.LowBit(optimizer, bits, min_size=256) for bits in (8, 4))):
            model = transformer.Transformer(nnx.Rngs(0))
            trained = modulax.nnx.Optimizer(model, way)
            run = [float(transformer.train_step(model, trained, *transformer.batch(step))) for step in range(steps)]
            losses.append(np.mean(run[-50:]))
        ratios = [f"{loss / losses[0]:.4f}" for loss in losses[1:]]
        rows.append([type(optimizer).__name__, f"{losses[0]:.4f}", *ratios])
    head = ["optimizer", "loss in 32 bits", "8 bits, ratio", "4 bits, ratio"]
    return f"Loss of `examples/nnx_transformer.py`, the mean of the last 50 of 200 steps:\n\n{table(head, rows)}"
