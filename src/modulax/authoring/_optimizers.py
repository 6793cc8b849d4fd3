"""Groups of hyperparameters that optimizers share, and the optimizers that are a direction, a decay and a rate.

A dataclass has the fields of its last base first. So the bases from right to left are the order of the arguments, and
`class AdamW(AbstractDecayed, AbstractAdam, AbstractRated)` is called `AdamW(learning_rate, b1, ..., weight_decay)`.

A base of a group stands as far left as Python's resolution order allows. Where its fields must come earlier, list it
too: `class AdaHessian(AbstractAdaHessian, AbstractDecayed, AbstractMoments, AbstractRated)` has the weight decay
between the moments and what else its group has.
"""

from collections.abc import Sequence
from dataclasses import KW_ONLY
from typing import Any, ClassVar

from .._containers.chain import Chain
from .._protocol.container import AbstractOptimizer
from .._protocol.fields import Number, number, required_number, static
from .._protocol.masks import Mask, mask
from .._protocol.transform import AbstractTransform
from .._support.checks import DECAY
from .._support.module import AbstractModule
from .._transforms.regularization import AddDecayedWeights
from .._transforms.scaling import ScaleByLearningRate


class AbstractFields(AbstractModule):
    """A group of hyperparameters: fields, and a sentence on each, that a direction and its optimizers inherit.

        class AbstractHeavyBall(AbstractFields):
            '''Args:
                decay: decay rate of the velocity.
            '''

            decay: Number = number(0.9)

        class ScaleByHeavyBall(AbstractHeavyBall, AbstractLeafwise[HeavyBallState]): ...

        class HeavyBall(AbstractDecayed, AbstractHeavyBall, AbstractRated):
            direction = ScaleByHeavyBall

    A class may declare a field of a group with another default. It keeps its place among the arguments.
    """


class AbstractMoments(AbstractFields):
    r"""The hyperparameters of two moments, as Adam has them.

    Args:
        b1: exponential decay rate $\beta_1$ of the first moment.
        b2: exponential decay rate $\beta_2$ of the second moment.
        eps: $\varepsilon$, added to the denominator outside the root.
    """

    b1: Number = number(0.9, needs=DECAY)
    b2: Number = number(0.999, needs=DECAY)
    eps: Number = number(1e-8)


class AbstractNesterov(AbstractFields):
    """Nesterov momentum, as an option.

    Args:
        nesterov: whether to use Nesterov momentum.
    """

    _: KW_ONLY
    nesterov: bool = static(False)


class AbstractRated(AbstractOptimizer):
    r"""An optimizer that multiplies a direction by the negative learning rate. It is the last base: the rate is first.

    The transform `direction` is made of the hyperparameters that it has under the same names as the optimizer. Where
    that is not all, override `directions()`, or `transform()`.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
    """

    direction: ClassVar[type[AbstractTransform]]

    learning_rate: Number = required_number()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        below = cls.__mro__[cls.__mro__.index(AbstractRated) :]
        if groups := [base.__name__ for base in below if issubclass(base, AbstractFields)]:
            # Otherwise its fields would come first, and the methods of `AbstractDecayed` would not be called.
            raise TypeError(f"`class {cls.__name__}`: write `AbstractRated` after `{groups[0]}`, as the last base.")

    def directions(self) -> Sequence[AbstractTransform]:
        """Return the transforms before the weight decay and the learning rate."""
        if not hasattr(type(self), "direction"):
            name = type(self).__name__
            raise TypeError(f"`{name}` has no direction: write `direction = ...` in its class, or `directions()`.")
        return [self._part(self.direction)]

    def decays(self) -> Sequence[AbstractTransform]:
        """Return the transforms between the direction and the learning rate."""
        return []

    def transform(self) -> Any:  # a `Chain`, but subclasses return others
        """Return the chain of the direction, the weight decay and the learning rate."""
        return Chain(*self.directions(), *self.decays(), ScaleByLearningRate(self.learning_rate))


class AbstractWeightDecay(AbstractFields):
    r"""The coefficient of a weight decay: a base beside `AbstractDecayed` where arguments stand between it and `mask`.

    Args:
        weight_decay: weight decay coefficient $\lambda$, multiplied by the learning rate.
    """

    weight_decay: Number = number(0.0)


class AbstractDecayed(AbstractFields):
    r"""Decoupled weight decay, as AdamW has it, between the direction and the rate of an `AbstractRated`.

    Args:
        weight_decay: weight decay coefficient $\lambda$, multiplied by the learning rate.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.
    """

    weight_decay: Number = number(0.0)
    mask: Mask = mask()

    def decays(self) -> Sequence[AbstractTransform]:
        """Return the weight decay."""
        return [AddDecayedWeights(self.weight_decay, self.mask)]


class AbstractDecayedByName(AbstractDecayed):
    """`AbstractDecayed`, whose two arguments are given by name only."""

    _: KW_ONLY
    weight_decay: Number = number(0.0)
    mask: Mask = mask()
