"""The last step of optimizers whose weight decay is not that of AdamW: AdamC, LaProp, SOAP."""

from dataclasses import KW_ONLY
from typing import Any, ClassVar, Literal, TypeAlias

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from .._protocol.fields import Number, OptionalNumber, number, required_number
from .._protocol.leafwise import AbstractLeafwise
from .._protocol.masks import Mask, mask, mask_or_all
from .._protocol.transform import EmptyState
from .._support.arithmetic import default_float, ratio
from .._support.module import AbstractState, counter
from .._support.types import Count, Shared
from .regularization import decayed

DecayKind: TypeAlias = Literal["decoupled", "corrected", "independent"]


class DecayedStepState(AbstractState):
    """State of the last step of SOAP: step count."""

    count: Shared[Count] = counter()


class DecayedStep(AbstractLeafwise):
    r"""Takes the step of a learning rate, with weight decay of any kind.

    $$
    u_t = -\eta d_t - \kappa_t w_t \quad\text{or, after the step,}\quad u_t = -\eta d_t - \kappa_t (w_t - \eta d_t)
    $$

    $\kappa_t$ is $\eta \lambda$ for decoupled weight decay, $\eta^2 \lambda / \eta_{\max}$ for corrected weight decay,
    and $\lambda$ for weight decay that is independent of the learning rate.

    Args:
        learning_rate: learning rate $\eta$.
        weight_decay: weight decay coefficient $\lambda$.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.
        kind: `"decoupled"`, `"corrected"` or `"independent"`.
        peak: $\eta_{\max}$, the highest learning rate, for corrected weight decay.
        after: whether the weights after the step decay, and not those before it.
        start: number of first steps without weight decay.
    """

    needs: ClassVar[tuple[str, ...]] = ("params",)

    learning_rate: Number = required_number()
    weight_decay: Number = number(0.0)
    mask: Mask = mask()
    _: KW_ONLY
    kind: DecayKind = eqx.field(static=True, default="decoupled")
    peak: OptionalNumber = number(None, optional=True)
    after: bool = eqx.field(static=True, default=False)
    start: int = eqx.field(static=True, default=0)

    def init_leaf(self, p):
        del p
        return DecayedStepState() if self.start else EmptyState()

    def where(self, tree):
        chosen = mask_or_all(self, self.mask, tree)
        return None if chosen is None else [jnp.asarray(x, default_float()) for x in chosen]

    def prepare(self, count):
        shrinkage = jnp.asarray(self.weight_decay)
        if self.kind != "independent":
            shrinkage = self.learning_rate * shrinkage
        if self.kind == "corrected":
            shrinkage = ratio(jnp.abs(self.learning_rate), jnp.abs(jnp.asarray(self.peak))) * shrinkage
        return jnp.where(count >= self.start, shrinkage, 0) if self.start else shrinkage

    def _at_leaf(self, now: Any, own: Any) -> Array:
        return now * own

    def update_leaf(self, now, g, s, p):
        step = -self.learning_rate * g
        return step - decayed(now, p + step if self.after else p), s
