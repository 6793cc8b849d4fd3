"""What Prodigy and D-Adaptation share: hyperparameters, and decoupled weight decay at the estimated step size.

`distance_estimate.py` explains why these two aren't plain chains.
"""

from typing import ClassVar

import jax.numpy as jnp
import jax.tree_util as jtu

from .. import authoring as ma
from .._protocol.leafwise import run_rules
from .._transforms.distance_estimate import estimated_rate


class AbstractEstimatedRate(ma.AbstractFields):
    r"""The learning rate of a rule that estimates its step size, and of its optimizer.

    Args:
        learning_rate: learning rate $\eta$, a factor of the estimated step size; recommended is 1, or a schedule that
            decays from 1 to 0.
    """

    learning_rate: ma.Number = ma.number(1.0)


class AbstractEstimatingRule(AbstractEstimatedRate):
    r"""The first hyperparameters of a rule that estimates its step size.

    Args:
        b1: exponential decay rate $\beta_1$ of the first moment.
        b2: exponential decay rate $\beta_2$ of the second moment.
    """

    b1: ma.Number = ma.number(0.9, needs=ma.DECAY)
    b2: ma.Number = ma.number(0.999, needs=ma.DECAY)


class StepWithDecay(ma.AbstractContainer):
    r"""The step $-(u_t + \gamma_t \lambda w_t)$ for a rule that estimates its own step size $\gamma_t$.

    The state is the state of the rule.

    Args:
        rule: the rule, which returns $u_t$.
        decay: the weight decay $\lambda w_t$ and its mask; its coefficient is multiplied by the step size $\gamma_t$.
    """

    needs = ("params",)
    is_one_pass = True
    _negates = True

    rule: ma.AbstractLeafwise = ma.required_part(state=lambda state: state)
    decay: ma.AddDecayedWeights = ma.required_part(state=lambda state: ma.EmptyState())

    def init(self, params):
        return self.rule.init(params)

    def update(self, updates, state, params=None, **extra):
        rate = estimated_rate(self.rule.at(state), state)
        decay = ma.AddDecayedWeights(rate * self.decay.weight_decay, self.decay.mask)
        updates, (state, _) = run_rules([self.rule, decay], updates, [state, ma.EmptyState()], params, extra)
        # A third rule, `Scale(-1.0)`, would multiply by an array of -1, which takes longer to compile.
        return jtu.tree_map(jnp.negative, updates), state


class AbstractEstimatingOptimizer(AbstractEstimatedRate, ma.AbstractOptimizer):
    r"""An optimizer made of a rule that estimates its step size, and of weight decay at that step size.

    Args:
        betas: exponential decay rates $\beta_1$ and $\beta_2$ of the first and the second moment.
    """

    direction: ClassVar[type[ma.AbstractLeafwise]]

    betas: ma.Numbers = ma.numbers((0.9, 0.999), needs=ma.DECAY)

    def transform(self) -> StepWithDecay:
        b1, b2 = self.betas
        return StepWithDecay(self._part(self.direction, b1=b1, b2=b2), self._part(ma.AddDecayedWeights))


class AbstractDecayAtEstimate(ma.AbstractFields):
    r"""The weight decay of an `AbstractEstimatingOptimizer`.

    Args:
        weight_decay: weight decay coefficient $\lambda$, multiplied by the step size $\eta_t d_t$.
    """

    weight_decay: ma.Number = ma.number(0.0)
