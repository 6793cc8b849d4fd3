"""The sign of the updates, for signSGD and Signum."""

import jax.numpy as jnp

from .._protocol.leafwise import AbstractLeafwise


class ScaleBySign(AbstractLeafwise):
    r"""Replaces every entry by its sign: $u = \operatorname{sign}(g)$.

    The sign of zero is zero, that of a complex entry $g / |g|$.

    References:
        Bernstein et al., [signSGD: Compressed Optimisation for Non-Convex
        Problems](https://arxiv.org/abs/1802.04434), 2018.
    """

    def update_leaf(self, now, g, s, p):
        del now, p
        return jnp.sign(g), s
