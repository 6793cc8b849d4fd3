"""The sign of the update."""

from typing import ClassVar

import jax.numpy as jnp

from .._protocol.leafwise import AbstractLeafwise


class ScaleBySign(AbstractLeafwise):
    r"""The sign of every entry: $u = \operatorname{sign}(g)$, for complex ones $g / |g|$, and zero for zero.

    References:
        Bernstein et al., [signSGD: Compressed Optimisation for Non-Convex
        Problems](https://arxiv.org/abs/1802.04434), 2018.
    """

    cites: ClassVar[tuple[str, ...]] = ("bernstein2018",)

    def update_leaf(self, now, g, s, p):
        del now, p
        return jnp.sign(g), s
