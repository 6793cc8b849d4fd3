"""An Equinox RNN that classifies spirals by their direction of rotation, with checkpoints.

The checkpoint includes the optimizer, so a learning rate that was lowered stays lowered. Kill it and run it again: it
resumes from the last checkpoint.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

import modulax as mx
from modulax import checkpoint

ADAM = mx.Chain(mx.ClipByGlobalNorm(1.0), mx.Adam(3e-3))


class RNN(eqx.Module):
    cell: eqx.nn.GRUCell
    out: eqx.nn.Linear

    def __init__(self, key: Key[Array, ""]):
        first, second = jax.random.split(key)
        self.cell = eqx.nn.GRUCell(2, 16, key=first)
        self.out = eqx.nn.Linear(16, "scalar", key=second)

    def __call__(self, sequence: Float[Array, "time 2"]) -> Float[Array, ""]:
        last, _ = jax.lax.scan(lambda hidden, x: (self.cell(x, hidden), None), jnp.zeros(16), sequence)
        return self.out(last)


def batch(step: int) -> tuple[Float[Array, "batch time 2"], Float[Array, " batch"]]:
    """Spirals, and labels: 1 for counterclockwise."""
    first, second = jax.random.split(jax.random.key(step))
    left = jnp.arange(64.0) % 2
    angle = jax.random.uniform(first, (64, 1), maxval=6.3) + (2 * left - 1)[:, None] * jnp.linspace(0, 6, 16)
    points = jnp.linspace(0.2, 1, 16)[:, None] * jnp.stack([jnp.cos(angle), jnp.sin(angle)], -1)
    return points + 0.02 * jax.random.normal(second, points.shape), left


def loss_fn(model: RNN, x: Array, left: Array) -> Array:
    logits = jax.vmap(model)(x)
    return jnp.mean(jnp.logaddexp(0, logits) - left * logits)


@eqx.filter_jit
def train_step(optimizer: Any, model: RNN, state: Any, x: Array, left: Array) -> Any:
    loss, grads = eqx.filter_value_and_grad(loss_fn)(model, x, left)
    updates, state = optimizer.update(grads, state, eqx.filter(model, eqx.is_inexact_array))
    return mx.apply_updates(model, updates), state, loss


def train(
    folder: Path,
    steps: int = 100,
    optimizer: Any = ADAM,
    on_step: Callable[[int, float], None] = lambda step, loss: None,
) -> tuple[Any, list[float]]:
    """Train, resuming from the checkpoint in the folder if there is one. Returns all arrays and this run's losses."""
    model = RNN(jax.random.key(0))
    state = optimizer.init(eqx.filter(model, eqx.is_inexact_array))
    tree = {"model": model, "optimizer": optimizer, "state": state, "step": 0}
    path, losses = folder / "training", []
    if path.exists():
        tree, _ = checkpoint.restore(path, tree)
    for step in range(tree["step"], steps):
        model, state, loss = train_step(tree["optimizer"], tree["model"], tree["state"], *batch(step))
        tree = {**tree, "model": model, "state": state, "step": step + 1}
        losses.append(float(loss))
        on_step(step, losses[-1])
        if (step + 1) % 10 == 0:
            checkpoint.save(path, tree, overwrite=True)
    return eqx.filter(tree["model"], eqx.is_array), losses


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:

        def show(step: int, loss: float) -> None:
            if (step + 1) % 25 == 0:
                print(f"step {step + 1:3d}  loss {loss:.4f}")

        train(Path(folder), 100, on_step=show)
        print("stopped, and resumed from the checkpoint")
        _, losses = train(Path(folder), 250, on_step=show)
    assert len(losses) == 150
    assert losses[-1] < 0.2


if __name__ == "__main__":
    main()
