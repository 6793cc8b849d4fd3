"""CartPole: a pole that stands on a cart, which is pushed to the left or to the right at every step."""

from typing import Any

import jax
import jax.numpy as jnp

GRAVITY, CART, POLE, HALF_LENGTH, FORCE, SECONDS = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
MASS = CART + POLE


def reset(key: Any) -> Any:
    """Position, velocity, angle and angular velocity at the start of an episode."""
    return jax.random.uniform(key, (4,), minval=-0.05, maxval=0.05)


def step(key: Any, state: Any, action: Any) -> tuple[Any, Any, Any]:
    """The next state (a new start if the episode has ended), the reward, and whether the episode has ended."""
    _, velocity, angle, turning = state
    sin, cos = jnp.sin(angle), jnp.cos(angle)
    pushed = (FORCE * (2 * action - 1) + POLE * HALF_LENGTH * turning**2 * sin) / MASS
    turned = (GRAVITY * sin - cos * pushed) / (HALF_LENGTH * (4 / 3 - POLE * cos**2 / MASS))
    moved = pushed - POLE * HALF_LENGTH * turned * cos / MASS
    state = state + SECONDS * jnp.stack([velocity, moved, turning, turned])
    ended = (jnp.abs(state[0]) > 2.4) | (jnp.abs(state[2]) > 0.21)
    return jnp.where(ended, reset(key), state), jnp.where(ended, 0.0, 1.0), ended
