"""An Equinox CNN with batch normalization (a model with state) on scikit-learn's digits, with checkpoints.

It writes a synchronous checkpoint every ten steps. Kill it and run it again: it resumes from the last checkpoint.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key
from sklearn.datasets import load_digits

import modulax as mx
from modulax import checkpoint

DIGITS = load_digits()
IMAGES = jnp.asarray(DIGITS.images / 16, jnp.float32)[:, None]  # pyright: ignore[reportAttributeAccessIssue]
LABELS = jnp.asarray(DIGITS.target, jnp.int32)  # pyright: ignore[reportAttributeAccessIssue]
ADAMW = mx.AdamW(3e-3, weight_decay=1e-2, mask=mx.decays)


class CNN(eqx.Module):
    conv1: eqx.nn.Conv2d
    norm1: eqx.nn.BatchNorm
    conv2: eqx.nn.Conv2d
    norm2: eqx.nn.BatchNorm
    out: eqx.nn.Linear

    def __init__(self, key: Key[Array, ""]):
        keys = jax.random.split(key, 3)
        self.conv1 = eqx.nn.Conv2d(1, 8, 3, padding=1, use_bias=False, key=keys[0])
        self.norm1 = eqx.nn.BatchNorm(8, axis_name="batch", mode="batch")
        self.conv2 = eqx.nn.Conv2d(8, 16, 3, stride=2, padding=1, use_bias=False, key=keys[1])
        self.norm2 = eqx.nn.BatchNorm(16, axis_name="batch", mode="batch")
        self.out = eqx.nn.Linear(4 * 4 * 16, 10, key=keys[2])

    def __call__(self, x: Float[Array, "1 8 8"], state: eqx.nn.State) -> tuple[Float[Array, "10"], eqx.nn.State]:
        x, state = self.norm1(self.conv1(x), state)
        x, state = self.norm2(self.conv2(jax.nn.relu(x)), state)
        return self.out(jax.nn.relu(x).reshape(-1)), state


def loss_fn(model: CNN, statistics: eqx.nn.State, images: Array, labels: Array) -> tuple[Array, eqx.nn.State]:
    logits, statistics = jax.vmap(model, axis_name="batch", in_axes=(0, None), out_axes=(0, None))(images, statistics)
    return jnp.mean(mx.losses.softmax_cross_entropy_with_integer_labels(logits, labels)), statistics


@eqx.filter_jit
def train_step(optimizer: Any, model: CNN, statistics: eqx.nn.State, state: Any, images: Array, labels: Array) -> Any:
    (loss, statistics), grads = eqx.filter_value_and_grad(loss_fn, has_aux=True)(model, statistics, images, labels)
    updates, state = optimizer.update(grads, state, eqx.filter(model, eqx.is_inexact_array))
    return mx.apply_updates(model, updates), statistics, state, loss


def train(
    folder: Path,
    steps: int = 100,
    optimizer: Any = ADAMW,
    on_step: Callable[[int, float], None] = lambda step, loss: None,
) -> tuple[Any, list[float]]:
    """Train, resuming from the checkpoint in the folder if there is one. Returns all arrays and this run's losses."""
    model, statistics = eqx.nn.make_with_state(CNN)(jax.random.key(0))
    state = optimizer.init(eqx.filter(model, eqx.is_inexact_array))
    path, start, losses = folder / "training", 0, []
    if path.exists():
        (model, statistics, state, start), _ = checkpoint.restore(path, (model, statistics, state, start))
    for step in range(start, steps):
        chosen = jax.random.choice(jax.random.key(step), 1500, (64,), replace=False)
        model, statistics, state, loss = train_step(optimizer, model, statistics, state, IMAGES[chosen], LABELS[chosen])
        losses.append(float(loss))
        on_step(step, losses[-1])
        if (step + 1) % 10 == 0:
            checkpoint.save(path, (model, statistics, state, step + 1), overwrite=True)
    return (eqx.filter(model, eqx.is_array), statistics), losses


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:

        def show(step: int, loss: float) -> None:
            if (step + 1) % 20 == 0:
                print(f"step {step + 1:3d}  loss {loss:.4f}")

        train(Path(folder), 60, on_step=show)
        print("stopped, and resumed from the checkpoint")
        (arrays, statistics), _ = train(Path(folder), 200, on_step=show)
    model, _ = eqx.nn.make_with_state(CNN)(jax.random.key(0))
    model = eqx.nn.inference_mode(eqx.combine(arrays, model))
    logits, _ = jax.vmap(model, axis_name="batch", in_axes=(0, None), out_axes=(0, None))(IMAGES[1500:], statistics)
    accuracy = jnp.mean(jnp.argmax(logits, -1) == LABELS[1500:])
    print(f"test accuracy: {accuracy:.3f}")
    assert accuracy > 0.85


if __name__ == "__main__":
    main()
