"""`losses.ctc_loss` against optax."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from measure import interleaved, seconds, table

from modulax import losses


def _batch(batch: int, frames: int, classes: int, labels: int) -> tuple[Any, ...]:
    """Sequences that use between three quarters and all of the frames, and between half and all of the labels."""
    rng = np.random.default_rng(0)
    lengths = np.linspace(frames * 3 // 4, frames, batch).astype(int)
    label_lengths = np.linspace(labels // 2, labels, batch).astype(int)
    arrays = (
        3 * rng.normal(size=(batch, frames, classes)),
        1.0 * (np.arange(frames) >= lengths[:, None]),
        rng.integers(1, classes, size=(batch, labels)),
        1.0 * (np.arange(labels) >= label_lengths[:, None]),
    )
    return tuple(jnp.asarray(x, jnp.int32 if x.dtype == int else jnp.float32) for x in arrays)


def ctc(quick: bool) -> str:
    """CTC inside one `jax.jit`, 32 × 200 frames × 64 classes and 30 labels: time, and XLA's temporary memory."""
    arguments = _batch(2, 20, 8, 5) if quick else _batch(32, 200, 64, 30)
    rows = []
    for what, function, is_gradient in (
        ("loss", "ctc_loss", False),
        ("gradient", "ctc_loss", True),
        ("loss and forward probabilities", "ctc_loss_with_forward_probs", False),
    ):
        programs = []
        for module in (optax.losses, losses):
            loss = getattr(module, function)
            run = jax.grad(lambda *a, loss=loss: jnp.sum(loss(*a))) if is_gradient else loss
            programs.append(jax.jit(run).lower(*arguments).compile())
        (t, u), (_, ratio) = interleaved([lambda p=p: p(*arguments) for p in programs], 3 if quick else 100)
        theirs, ours = (p.memory_analysis().temp_size_in_bytes / 2**20 for p in programs)
        memory = [f"{theirs:.2f} MiB", f"{ours:.2f} MiB", f"{ours / theirs:.2f}"]
        rows.append([what, seconds(t), seconds(u), f"{ratio:.2f}", *memory])
    return table(["", "optax", "modulax", "ratio", "memory, optax", "memory, modulax", "ratio"], rows)
