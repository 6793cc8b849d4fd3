"""Terms that are added to the updates to keep the parameters small."""

from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from .._leafwise import AbstractLeafwise
from .._rules import AbstractRule, as_rule, mask_of
from .._schedule import Number, number


def decayed(weight_decay: Any, p: Array) -> Array:
    """The decay times the parameter; a decay of zero adds nothing, to an infinite parameter neither."""
    return weight_decay * jnp.where(jnp.isfinite(p) | (weight_decay != 0), p, jnp.zeros_like(p))


class AddDecayedWeights(AbstractLeafwise):
    r"""Adds the decayed parameters: $u = g + \lambda w$.

    Behind `ScaleByAdam` this is decoupled weight decay; in front of it, an $L_2$ penalty.

    Args:
        weight_decay: the rate $\lambda$.
        mask: the leaves that decay: a tree of booleans of the parameters' structure or a prefix of it, a function of
            the parameters that returns one, or `by_path({...})`. By default all.

    References:
        Loshchilov and Hutter, [Decoupled Weight Decay Regularization](https://arxiv.org/abs/1711.05101), 2017.
    """

    needs_params: ClassVar[bool] = True

    weight_decay: Number = number(0.0)
    mask: Any = eqx.field(static=True, default=None, converter=as_rule)

    def where(self, tree):
        rule: AbstractRule | None = self.mask
        return None if rule is None else mask_of(self, rule, tree)

    def update_leaf(self, now, g, s, p):
        del now
        return decayed(self.weight_decay, p) + g, s
