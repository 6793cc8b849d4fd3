"""An LSTM in Flax Linen: it reads numbers and reports their running mean."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.training.train_state import TrainState

from modulax import compat as optax  # or: import optax

STEPS, BATCH, LENGTH = 100, 16, 12


class RunningMean(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.Dense(1)(nn.RNN(nn.OptimizedLSTMCell(16))(x))


def batch(key: Any) -> Any:
    numbers = jax.random.normal(key, (BATCH, LENGTH, 1))
    return numbers, jnp.cumsum(numbers, axis=1) / jnp.arange(1, LENGTH + 1)[:, None]


@jax.jit
def train_step(state: TrainState, key: Any) -> Any:
    x, y = batch(key)
    loss, grads = jax.value_and_grad(lambda params: optax.squared_error(state.apply_fn(params, x), y).mean())(
        state.params
    )
    return state.apply_gradients(grads=grads), loss


def decays(params: Any) -> Any:
    """Weight decay for matrices, not for biases."""
    return jax.tree.map(lambda p: p.ndim > 1, params)


def train() -> Any:
    """The parameters and the losses."""
    model = RunningMean()
    warmup, decay = optax.linear_schedule(1e-3, 2e-2, 10), optax.cosine_decay_schedule(2e-2, 90)
    schedule = optax.join_schedules([warmup, decay], [10])
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, b2=0.99, weight_decay=1e-3, mask=decays))
    params = model.init(jax.random.key(0), batch(jax.random.key(0))[0])
    state, losses = TrainState.create(apply_fn=model.apply, params=params, tx=tx), []
    for i in range(STEPS):
        state, loss = train_step(state, jax.random.key(i))
        losses.append(loss)
    return state.params, jnp.stack(losses)


def main() -> Any:
    _, losses = results = train()
    print(f"loss {losses[0]:.4f} → {losses[-1]:.4f}")
    assert losses[-1] < 0.2 * losses[0]
    return results


if __name__ == "__main__":
    main()
