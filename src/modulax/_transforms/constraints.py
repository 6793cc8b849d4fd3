"""What updates and parameters must be: free of NaN, not negative."""

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import PyTree

from .._protocol.leafwise import AbstractLeafwise
from .._support.module import AbstractState


class ZeroNaNsState(AbstractState):
    """The state of `ZeroNaNs`: for each leaf, whether the last update had a NaN."""

    found_nan: PyTree


class ZeroNaNs(AbstractLeafwise):
    """Replaces every NaN in the updates by zero, and remembers where there was one. Infinities stay."""

    def init_leaf(self, p):
        del p
        return ZeroNaNsState(found_nan=jnp.zeros((), bool))

    def update_leaf(self, now, g, s, p):
        del now, s, p
        is_nan = jnp.isnan(g)
        return jnp.where(is_nan, jnp.zeros_like(g), g), ZeroNaNsState(found_nan=jnp.any(is_nan))


class KeepParamsNonnegative(AbstractLeafwise):
    r"""Shortens the updates so that no parameter becomes negative: $u = \max(g, -w)$ in each entry.

    The last part of a chain. The parameters must not be negative at the start; those that are become zero.
    """

    needs: ClassVar[tuple[str, ...]] = ("params",)
    takes_complex: ClassVar[bool] = False

    def update_leaf(self, now, g, s, p):
        del now
        return jnp.where(p + g < 0, -p, g), s
