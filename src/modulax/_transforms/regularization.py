"""Weight decay: decoupled, as an $L_2$ penalty, and proximal."""

from dataclasses import KW_ONLY
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from .._protocol.fields import Number, OptionalNumber, number, required_number
from .._protocol.leafwise import AbstractLeafwise, StateT
from .._protocol.masks import Mask, mask, mask_of, mask_or_all
from .._support.arithmetic import default_float, without_infinities
from .._support.placement import typed_like


def decayed(weight_decay: Any, p: Array) -> Array:
    """The weight decay of a parameter; infinities count as the largest number, so that zero decay adds zero."""
    return weight_decay * without_infinities(p)


class AbstractDecayingRule(AbstractLeafwise[StateT]):
    """A direction that decays the parameters itself, because the decay is scaled or left out with the step.

    A subclass declares `weight_decay`, None for none, and `mask`, and adds `self.decay_of(now, p)` to its direction.
    """

    weight_decay: eqx.AbstractVar[OptionalNumber]
    mask: eqx.AbstractVar[Any]

    @property
    def needs(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return () if self.weight_decay is None else ("params",)

    def where(self, tree):
        if self.weight_decay is None or self.mask is None:
            return None
        return [jnp.asarray(x, default_float()) for x in mask_of(self, self.mask, tree)]

    def _at_leaf(self, now, own):
        return Decaying(now, own)

    def decay_of(self, decays: Any, p: Array) -> Array | float:
        """Return the weight decay of a parameter.

        Args:
            decays: 1 for a parameter that decays, and 0 for others.
            p: the parameter.
        """
        return 0.0 if self.weight_decay is None else decayed(decays * self.weight_decay, p)


class Decaying(NamedTuple):
    """The shared values of a `AbstractDecayingRule` with a mask, and whether the parameter decays, as a number."""

    now: Any
    decays: Any


def split_decay(now: Any) -> tuple[Any, Any]:
    """Return the shared values of a rule that decays, and whether the parameter does, as a number."""
    return now if isinstance(now, Decaying) else (now, 1.0)


class AddDecayedWeights(AbstractLeafwise):
    r"""Adds weight decay to the updates: $u = g + \lambda w$.

    After `ScaleByAdam` this is decoupled weight decay; before it, an $L_2$ penalty. Cautious weight decay applies to
    the entries that the update moves towards zero, $g w \ge 0$, and to no others (Chen et al. 2025, arXiv 2510.12402).

    Args:
        weight_decay: weight decay coefficient $\lambda$.
        mask: which parameters decay: a tree of booleans with the structure of the parameters or a prefix of it, a
            function of the parameters that returns one, or `by_path({...})`; `decays` for all but biases, gains and
            embeddings. By default all.
        cautious: whether only entries decay that the update moves towards zero. Place the transform before the learning
            rate, which negates.

    References:
        Loshchilov and Hutter, [Decoupled Weight Decay Regularization](https://arxiv.org/abs/1711.05101), 2017.
    """

    _keeps = "gradients"
    needs: ClassVar[tuple[str, ...]] = ("params",)

    weight_decay: Number = number(0.0)
    mask: Mask = mask()
    _: KW_ONLY
    cautious: bool = eqx.field(static=True, default=False)

    def where(self, tree):
        return mask_or_all(self, self.mask, tree)

    def update_leaf(self, now, g, s, p):
        del now
        if self.cautious:
            product = (g * p.conj()).real
            return jnp.where(product >= 0, typed_like(decayed(self.weight_decay, p), product), 0) + g, s
        # The decay is the first operand: in the other order, XLA:CPU compiles more kernels (docs/design_edges.md,
        # "Compilation cost").
        return decayed(self.weight_decay, p) + g, s


class ProximalWeightDecay(AbstractLeafwise):
    r"""Proximal weight decay, by the parameters after the step; place it after the learning rate.

    $$
    u = (g - \eta \lambda w) / (1 + \eta \lambda)
    $$

    The new parameter is $(w + g) / (1 + \eta \lambda)$, the minimum of
    $\frac{1}{2\eta} \|x - (w + g)\|^2 + \frac{\lambda}{2} \|x\|^2$. To first order in $\eta \lambda$ this equals
    `AddDecayedWeights` before the learning rate, but it never overshoots zero.

    Args:
        learning_rate: learning rate $\eta$.
        weight_decay: weight decay coefficient $\lambda$, multiplied by the learning rate.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.

    References:
        Zhuang et al., [Understanding AdamW through Proximal Methods and
        Scale-Freeness](https://arxiv.org/abs/2202.00089), 2022.
    """

    needs: ClassVar[tuple[str, ...]] = ("params",)

    learning_rate: Number = required_number()
    weight_decay: Number = number(0.0)
    mask: Mask = mask()

    def where(self, tree):
        return mask_or_all(self, self.mask, tree)

    def update_leaf(self, now, g, s, p):
        del now
        shrinkage = self.learning_rate * self.weight_decay
        return (g - decayed(shrinkage, p)) / (1 + shrinkage), s
