"""Trust ratios: steps relative to the norm of each array, as in LARS and LAMB."""

from typing import Any, ClassVar

import jax.numpy as jnp
from jaxtyping import Array

from .._protocol.fields import Number, number
from .._protocol.leafwise import AbstractLeafwise
from .._protocol.masks import Mask, mask, mask_or_all
from .._support.checks import NON_NEGATIVE
from .param_block import block_norm
from .regularization import decayed


def trust_ratio(param_norm: Array, update_norm: Array, coefficient: Any, eps: Any) -> Array:
    r"""$c \|w\| / (\|g\| + \varepsilon)$, and 1 where a norm is zero, since such parameters would never move."""
    is_zero = (param_norm == 0) | (update_norm == 0)
    return jnp.where(is_zero, 1, coefficient * param_norm / (eps + jnp.where(is_zero, 1, update_norm)))


class ScaleByTrustRatio(AbstractLeafwise):
    r"""Scales the update of each array relative to the norm of its parameters, as in LARS and LAMB.

    $$
    u = \frac{c \|w\|}{\|g\| + \lambda \|w\| + \varepsilon} (g + \lambda w)
    $$

    Both norms are raised to at least `min_norm`. Where $\|w\|$ or $\|g\| + \lambda \|w\|$ is zero, the fraction is
    replaced by 1, so that parameters that start at zero can move. With $\lambda$ this is the rule of LARS.

    Args:
        min_norm: smallest value of both norms.
        trust_coefficient: trust coefficient $c$.
        eps: $\varepsilon$, added to the denominator.
        weight_decay: weight decay coefficient $\lambda$, for a weight decay that takes part in the ratio, as in LARS.
        mask: which parameters are scaled and decay: a tree of booleans with the structure of the parameters or a prefix
            of it, a function of the parameters that returns one, or `by_path({...})`. By default all. Others pass
            through unchanged.

    References:
        You et al., [Large Batch Training of Convolutional Networks](https://arxiv.org/abs/1708.03888), 2017.
    """

    needs: ClassVar[tuple[str, ...]] = ("params",)

    min_norm: Number = number(0.0, needs=NON_NEGATIVE)
    trust_coefficient: Number = number(1.0)
    eps: Number = number(0.0)
    weight_decay: Number = number(0.0)
    mask: Mask = mask()

    def where(self, tree):
        return mask_or_all(self, self.mask, tree)

    def update_leaf(self, now, g, s, p):
        del now
        p_norm = jnp.maximum(block_norm(p), self.min_norm)
        g_norm = jnp.maximum(block_norm(g), self.min_norm)
        ratio = trust_ratio(p_norm, self.weight_decay * p_norm + g_norm, self.trust_coefficient, self.eps)
        return ratio * (decayed(self.weight_decay, p) + g), s
