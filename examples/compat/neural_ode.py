"""A neural ODE in diffrax and Equinox, fitted to damped rotations."""

# pyright: reportMissingImports=false

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp

from modulax import compat as optax  # or: import optax

STEPS, TIMES = 100, jnp.linspace(0.0, 1.0, 11)
tx = optax.adabelief(optax.cosine_decay_schedule(2e-2, STEPS), b2=0.99)


class NeuralODE(eqx.Module):
    field: eqx.nn.MLP

    def __init__(self, key: Any):
        self.field = eqx.nn.MLP(2, 2, width_size=16, depth=1, activation=jax.nn.softplus, key=key)

    def __call__(self, times: Any, start: Any) -> Any:
        solution: Any = diffrax.diffeqsolve(
            diffrax.ODETerm(lambda t, y, args: self.field(y)),
            diffrax.Heun(),
            t0=0.0,
            t1=times[-1],
            dt0=0.1,
            y0=start,
            max_steps=16,
            saveat=diffrax.SaveAt(ts=times),
        )
        return solution.ys


def spirals(key: Any) -> Any:
    """Paths of shape `(16, 11, 2)`, in polar coordinates: the angle grows, and the radius shrinks."""
    angle, radius = jax.random.uniform(key, (2, 16, 1))
    angle, radius = 6.28 * angle + 3 * TIMES, (0.5 + radius) * jnp.exp(-TIMES)
    return jnp.stack([radius * jnp.cos(angle), radius * jnp.sin(angle)], axis=-1)


def loss_fn(model: NeuralODE, paths: Any) -> Any:
    return jnp.mean((jax.vmap(model, (None, 0))(TIMES, paths[:, 0]) - paths) ** 2)


@eqx.filter_jit
def train_step(model: NeuralODE, opt_state: Any, paths: Any) -> Any:
    loss, grads = eqx.filter_value_and_grad(loss_fn)(model, paths)
    updates, opt_state = tx.update(grads, opt_state, eqx.filter(model, eqx.is_inexact_array))
    return eqx.apply_updates(model, updates), opt_state, loss


def train() -> Any:
    """The parameters and the losses."""
    model, paths, losses = NeuralODE(jax.random.key(0)), spirals(jax.random.key(1)), []
    opt_state = tx.init(eqx.filter(model, eqx.is_inexact_array))
    for _ in range(STEPS):
        model, opt_state, loss = train_step(model, opt_state, paths)
        losses.append(loss)
    return eqx.filter(model, eqx.is_array), jnp.stack(losses)


def main() -> Any:
    _, losses = results = train()
    print(f"loss {losses[0]:.4f} → {losses[-1]:.4f}")
    assert losses[-1] < 0.05 * losses[0]
    return results


if __name__ == "__main__":
    main()
