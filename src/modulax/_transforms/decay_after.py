"""The last step of optimizers that decay the weights after the step: SOAP, Apollo, FOCUS."""

from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from .._protocol.fields import Number, number, required_number
from .._protocol.leafwise import AbstractLeafwise
from .._protocol.masks import as_labels, mask_or_all
from .._support.arithmetic import default_float
from .._support.module import AbstractState, counter
from .._support.types import Count, Shared
from .regularization import decayed


class StepThenDecayState(AbstractState):
    """State of `StepThenDecay`: step count."""

    count: Shared[Count] = counter()


class StepThenDecay(AbstractLeafwise[StepThenDecayState]):
    r"""Takes the step of a learning rate, and decays the weights that it leads to.

    $$
    u_t = -\eta d_t - \eta \lambda (w_t - \eta d_t)
    $$

    Args:
        learning_rate: learning rate $\eta$.
        weight_decay: weight decay coefficient $\lambda$.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.
        start: number of first steps without weight decay.
    """

    needs: ClassVar[tuple[str, ...]] = ("params",)

    learning_rate: Number = required_number()
    weight_decay: Number = number(0.0)
    mask: Any = eqx.field(static=True, default=None, converter=as_labels)
    start: int = eqx.field(static=True, default=0)

    def init_leaf(self, p):
        del p
        return StepThenDecayState()

    def where(self, tree):
        chosen = mask_or_all(self, self.mask, tree)
        return None if chosen is None else [jnp.asarray(x, default_float()) for x in chosen]

    def prepare(self, count):
        return jnp.where(count >= self.start, 1.0, 0.0).astype(count.dtype)

    def _at_leaf(self, now: Any, own: Any) -> Array:
        return now * own

    def update_leaf(self, now, g, s, p):
        step = -self.learning_rate * g
        return step - decayed(now * self.learning_rate * self.weight_decay, p + step), s
