"""A Flax Linen MLP on scikit-learn's digits, with `modulax.linen.TrainState`, in which the optimizer is data.

It writes a synchronous checkpoint every ten steps. Kill it and run it again: it resumes from the last checkpoint.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array
from sklearn.datasets import load_digits

import modulax as mx
import modulax.linen
from modulax import checkpoint

DIGITS = load_digits()
IMAGES = jnp.asarray(DIGITS.data / 16, jnp.float32)  # pyright: ignore[reportAttributeAccessIssue]
LABELS = jnp.asarray(DIGITS.target, jnp.int32)  # pyright: ignore[reportAttributeAccessIssue]
MODEL = nn.Sequential([nn.Dense(64), nn.relu, nn.Dense(64), nn.relu, nn.Dense(10)])


def loss_fn(params: Any, images: Array, labels: Array) -> Array:
    logits: Any = MODEL.apply(params, images)
    return jnp.mean(mx.losses.softmax_cross_entropy_with_integer_labels(logits, labels))


@jax.jit
def train_step(state: Any, images: Array, labels: Array) -> tuple[Any, Array]:
    loss, grads = jax.value_and_grad(loss_fn)(state.params, images, labels)
    return state.apply_gradients(grads=grads), loss


def adamw(params: Any) -> Any:
    schedule = mx.schedules.WarmupCosineDecay(0.0, 3e-3, warmup_steps=20, decay_steps=200)
    optimizer = mx.AdamW(schedule, weight_decay=1e-2, mask=mx.decays)
    return modulax.linen.TrainState.create(apply_fn=MODEL.apply, params=params, tx=optimizer)


def train(
    folder: Path,
    steps: int = 100,
    make: Callable[[Any], Any] = adamw,
    on_step: Callable[[int, float], None] = lambda step, loss: None,
) -> tuple[Any, list[float]]:
    """Train, resuming from the checkpoint in the folder if there is one. Returns all arrays and this run's losses."""
    state = make(MODEL.init(jax.random.key(0), IMAGES[:1]))
    path, losses = folder / "state", []
    if path.exists():
        state, _ = checkpoint.restore(path, state)
    for step in range(int(state.step), steps):
        chosen = jax.random.choice(jax.random.key(step), 1500, (64,), replace=False)
        state, loss = train_step(state, IMAGES[chosen], LABELS[chosen])
        losses.append(float(loss))
        on_step(step, losses[-1])
        if (step + 1) % 10 == 0:
            checkpoint.save(path, state, overwrite=True)
    return state.params, losses


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:

        def show(step: int, loss: float) -> None:
            if (step + 1) % 20 == 0:
                print(f"step {step + 1:3d}  loss {loss:.4f}")

        train(Path(folder), 60, on_step=show)
        print("stopped, and resumed from the checkpoint")
        params, _ = train(Path(folder), 200, on_step=show)
    logits: Any = MODEL.apply(params, IMAGES[1500:])
    accuracy = jnp.mean(jnp.argmax(logits, -1) == LABELS[1500:])
    print(f"test accuracy: {accuracy:.3f}")
    assert accuracy > 0.85


if __name__ == "__main__":
    main()
