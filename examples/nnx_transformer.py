"""A small Flax NNX transformer with layer norms, dropout and tied embeddings, with background checkpoints.

It learns to continue sequences with a constant increment. Kill it and run it again: it resumes from the last
checkpoint, with the same final result as an uninterrupted run.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from flax import nnx
from jaxtyping import Array, Float, Int

import modulax as mx
import modulax.nnx
from modulax import checkpoint

VOCABULARY, LENGTH, WIDTH = 16, 12, 32


class Block(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.norm1, self.norm2 = nnx.LayerNorm(WIDTH, rngs=rngs), nnx.LayerNorm(WIDTH, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(2, WIDTH, decode=False, rngs=rngs)
        self.up, self.down = nnx.Linear(WIDTH, 64, rngs=rngs), nnx.Linear(64, WIDTH, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)

    def __call__(self, x: Float[Array, "batch time width"]) -> Float[Array, "batch time width"]:
        mask = nnx.make_causal_mask(x[..., 0])
        x = x + self.dropout(self.attention(self.norm1(x), mask=mask))
        return x + self.dropout(self.down(nnx.gelu(self.up(self.norm2(x)))))


class Transformer(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.embedding = nnx.Embed(VOCABULARY, WIDTH, rngs=rngs)
        self.positions = nnx.Param(0.02 * jax.random.normal(rngs.params(), (LENGTH, WIDTH)))
        self.blocks = nnx.List([Block(rngs) for _ in range(2)])
        self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)

    def __call__(self, tokens: Int[Array, "batch time"]) -> Float[Array, "batch time vocabulary"]:
        x = self.embedding(tokens) + self.positions[...]
        for block in self.blocks:
            x = block(x)
        return self.embedding.attend(self.norm(x))  # tied embedding


def batch(step: int) -> tuple[Int[Array, "batch time"], Int[Array, "batch time"]]:
    """Sequences with increments of 1 to 4, and the same sequences shifted by one token."""
    first, up = jax.random.split(jax.random.key(step))
    start = jax.random.randint(first, (32, 1), 0, VOCABULARY)
    tokens = (start + jax.random.randint(up, (32, 1), 1, 5) * jnp.arange(LENGTH + 1)) % VOCABULARY
    return tokens[:, :-1], tokens[:, 1:]


def loss_fn(model: Transformer, tokens: Array, targets: Array) -> Array:
    return jnp.mean(mx.losses.softmax_cross_entropy_with_integer_labels(model(tokens), targets))


@nnx.jit
def train_step(model: Transformer, optimizer: Any, tokens: Array, targets: Array) -> Array:
    loss, grads = nnx.value_and_grad(loss_fn)(model, tokens, targets)
    optimizer.update(model, grads)
    return loss


def train(
    folder: Path,
    steps: int = 100,
    make: Callable[[Any], Any] = lambda model: modulax.nnx.Optimizer(model, mx.AdamW(3e-3, mask=mx.decays)),
    on_step: Callable[[int, float], None] = lambda step, loss: None,
) -> tuple[Any, list[float]]:
    """Train, resuming from the last checkpoint in the folder, if any. Returns the arrays and this run's losses."""
    model = Transformer(nnx.Rngs(0))
    optimizer = make(model)
    losses = []
    with ocp.CheckpointManager(folder, options=ocp.CheckpointManagerOptions(max_to_keep=2)) as manager:
        start = manager.latest_step() or 0
        tree = {"model": nnx.state(model), "optimizer": nnx.state(optimizer)}
        if start:
            restored, _ = checkpoint.restore(folder / str(start), tree)
            nnx.update(model, restored["model"])
            nnx.update(optimizer, restored["optimizer"])
        for step in range(start, steps):
            losses.append(float(train_step(model, optimizer, *batch(step))))
            on_step(step, losses[-1])
            if (step + 1) % 10 == 0:
                tree = {"model": nnx.state(model), "optimizer": nnx.state(optimizer)}
                manager.save(step + 1, args=ocp.args.StandardSave(nnx.as_pure(tree)))  # asynchronous
    return nnx.as_pure(nnx.state(model)), losses


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:

        def show(step: int, loss: float) -> None:
            if (step + 1) % 20 == 0:
                print(f"step {step + 1:3d}  loss {loss:.4f}")

        train(Path(folder), 60, on_step=show)
        print("stopped, and resumed from the checkpoint")
        _, losses = train(Path(folder), 200, on_step=show)
    assert len(losses) == 140
    assert losses[-1] < 0.3


if __name__ == "__main__":
    main()
