"""A Flax NNX CNN with batch normalization on scikit-learn's digits; norms are excluded from weight decay.

Checkpoints are written in the background. Kill it and run it again: it resumes from the last checkpoint.
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
from sklearn.datasets import load_digits

import modulax as mx
import modulax.nnx
from modulax import checkpoint

DIGITS = load_digits()
IMAGES = jnp.asarray(DIGITS.images / 16, jnp.float32)[..., None]  # pyright: ignore[reportAttributeAccessIssue]
LABELS = jnp.asarray(DIGITS.target, jnp.int32)  # pyright: ignore[reportAttributeAccessIssue]


class CNN(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.conv1 = nnx.Conv(1, 8, (3, 3), use_bias=False, rngs=rngs)
        self.norm1 = nnx.BatchNorm(8, rngs=rngs)
        self.conv2 = nnx.Conv(8, 16, (3, 3), strides=2, use_bias=False, rngs=rngs)
        self.norm2 = nnx.BatchNorm(16, rngs=rngs)
        self.out = nnx.Linear(4 * 4 * 16, 10, rngs=rngs)

    def __call__(self, x: Float[Array, "batch 8 8 1"]) -> Float[Array, "batch 10"]:
        x = nnx.relu(self.norm1(self.conv1(x)))
        x = nnx.relu(self.norm2(self.conv2(x)))
        return self.out(x.reshape(x.shape[0], -1))


def loss_fn(model: CNN, images: Float[Array, "batch 8 8 1"], labels: Int[Array, " batch"]) -> Float[Array, ""]:
    return jnp.mean(mx.losses.softmax_cross_entropy_with_integer_labels(model(images), labels))


@nnx.jit
def train_step(model: CNN, optimizer: Any, images: Array, labels: Array) -> Array:
    loss, grads = nnx.value_and_grad(loss_fn)(model, images, labels)
    optimizer.update(model, grads)
    return loss


def adamw(model: CNN) -> Any:
    return modulax.nnx.Optimizer(model, mx.AdamW(3e-3, weight_decay=1e-2, mask=mx.decays))


def train(
    folder: Path,
    steps: int = 100,
    make: Callable[[Any], Any] = adamw,
    on_step: Callable[[int, float], None] = lambda step, loss: None,
) -> tuple[Any, list[float]]:
    """Train, resuming from the last checkpoint in the folder, if any. Returns the arrays and this run's losses."""
    model = CNN(nnx.Rngs(0))
    optimizer = make(model)
    losses = []
    with ocp.CheckpointManager(folder, options=ocp.CheckpointManagerOptions(max_to_keep=2)) as manager:
        start = manager.latest_step() or 0
        if start:
            tree = {"model": nnx.state(model), "optimizer": nnx.state(optimizer)}
            restored, _ = checkpoint.restore(folder / str(start), tree)
            nnx.update(model, restored["model"])
            nnx.update(optimizer, restored["optimizer"])
        for step in range(start, steps):
            chosen = jax.random.choice(jax.random.key(step), 1500, (64,), replace=False)
            losses.append(float(train_step(model, optimizer, IMAGES[chosen], LABELS[chosen])))
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
        state, _ = train(Path(folder), 200, on_step=show)
    model = CNN(nnx.Rngs(0))
    nnx.update(model, state)
    model.eval()
    accuracy = jnp.mean(jnp.argmax(model(IMAGES[1500:]), -1) == LABELS[1500:])
    print(f"test accuracy: {accuracy:.3f}")
    assert accuracy > 0.85


if __name__ == "__main__":
    main()
