"""Transforms that tell the tests what happens inside a container, and a schedule that asks for an argument."""

from typing import Any

import jax
import jax.numpy as jnp

import modulax as mx

runs: list[int] = []


class Noted(mx.AbstractTransform):
    """Notes each time that it is really run, and returns what it was given. Call `jax.effects_barrier()` to wait."""

    def init(self, params: Any) -> mx.EmptyState:
        del params
        return mx.EmptyState()

    def update(self, updates: Any, state: Any, params: Any = None, **extra: Any) -> Any:
        del params, extra
        jax.debug.callback(lambda: runs.append(1))
        return updates, state


class Proportional(mx.AbstractStatefulSchedule):
    """A rate that is proportional to the loss before."""

    needs = ("value",)
    factor: float = mx.number(0.1)

    def init(self) -> jax.Array:
        return jnp.zeros(())

    def update(self, state: Any, *, value: Any, **extra: Any) -> jax.Array:
        del state, extra
        return jnp.asarray(value)

    def __call__(self, state: Any, **extra: Any) -> jax.Array:
        del extra
        return self.factor * state
