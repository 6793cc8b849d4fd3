"""Updates scaled by the norm or the root mean square of each parameter array."""

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array

from .._protocol.fields import Number, number
from .._protocol.leafwise import AbstractLeafwise
from .._support.arithmetic import abs_sq, safe_sqrt
from .clipping import block_rms


def block_norm(x: Array) -> Array:
    """The Euclidean norm of an array, differentiable at zero."""
    return safe_sqrt(jnp.sum(abs_sq(x)))


class ScaleByParamBlockNorm(AbstractLeafwise):
    r"""Multiplies the update of each array by the norm of its parameters: $u = \max(\|w\|_2, s)\, g$.

    Args:
        min_scale: smallest factor $s$, with which parameters that start at zero can move.
    """

    needs: ClassVar[tuple[str, ...]] = ("params",)

    min_scale: Number = number(1e-3)

    def update_leaf(self, now, g, s, p):
        del now
        # An array of zeros would never move without a least scale.
        return jnp.maximum(block_norm(p), self.min_scale) * g, s


class ScaleByParamBlockRMS(AbstractLeafwise):
    r"""Multiplies the update of each array by the root mean square of its parameters.

    $$
    u = \max(\operatorname{RMS}(w), s)\, g, \qquad \operatorname{RMS}(w)^2 = \frac{1}{n} \sum_{i=1}^n |w_i|^2
    $$

    Args:
        min_scale: smallest factor $s$, with which parameters that start at zero can move.

    References:
        Shazeer and Stern, [Adafactor: Adaptive Learning Rates with Sublinear Memory
        Cost](https://arxiv.org/abs/1804.04235), 2018, section 8.
    """

    needs: ClassVar[tuple[str, ...]] = ("params",)

    min_scale: Number = number(1e-3)

    def update_leaf(self, now, g, s, p):
        del now
        return jnp.maximum(block_rms(p), self.min_scale) * g, s
