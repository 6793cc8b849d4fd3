"""Transforms that keep updates free of NaN, or parameters nonnegative."""

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import PyTree

from .._protocol.leafwise import AbstractLeafwise
from .._support.module import AbstractState
from .._support.placement import typed_like


class ZeroNaNsState(AbstractState):
    """State of `ZeroNaNs`: for each leaf, whether the last update contained a NaN."""

    optax_fields = ("found_nan",)

    found_nan: PyTree


class ZeroNaNs(AbstractLeafwise[ZeroNaNsState]):
    """Replaces NaN in the updates by zero, and records which leaves contained one. Infinities are left alone."""

    _keeps = "gradients"

    def init_leaf(self, p):
        del p
        return ZeroNaNsState(found_nan=jnp.zeros((), bool))

    def update_leaf(self, now, g, s, p):
        del now, s, p
        is_nan = jnp.isnan(g)
        return jnp.where(is_nan, jnp.zeros_like(g), g), ZeroNaNsState(found_nan=jnp.any(is_nan))


class KeepParamsNonnegative(AbstractLeafwise):
    r"""Keeps parameters nonnegative by clipping the updates: $u = \max(g, -w)$ in each entry.

    Must be the last transform in a chain. Parameters should be nonnegative at the start; negative ones become zero.
    """

    needs: ClassVar[tuple[str, ...]] = ("params", "real")

    def update_leaf(self, now, g, s, p):
        del now
        new = p + g
        return jnp.where(new < 0, typed_like(-p, new), typed_like(g, new)), s
