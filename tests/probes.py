"""Transforms that tell the tests what happens inside a container."""

from typing import Any

import jax

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
