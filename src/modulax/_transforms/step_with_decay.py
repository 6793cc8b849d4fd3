"""The final step of Prodigy and D-Adaptation: decoupled weight decay at the estimated step size.

`distance_estimate.py` explains why these two aren't plain chains.
"""

from typing import ClassVar

import jax.numpy as jnp
import jax.tree_util as jtu

from .._protocol.container import AbstractContainer, required_part
from .._protocol.leafwise import run_rules
from .._protocol.transform import EmptyState
from .dadapt import ScaleByDAdaptAdam
from .distance_estimate import estimated_rate
from .prodigy import ScaleByProdigy
from .regularization import AddDecayedWeights


class StepWithDecay(AbstractContainer):
    r"""The step $-(u_t + \gamma_t \lambda w_t)$ for a rule that estimates its own step size $\gamma_t$.

    The state is the state of the rule.

    Args:
        rule: the rule, which returns $u_t$.
        decay: the weight decay $\lambda w_t$ and its mask; its coefficient is multiplied by the step size $\gamma_t$.
    """

    needs: ClassVar[tuple[str, ...]] = ("params",)
    is_one_pass: ClassVar[bool] = True
    _negates: ClassVar[bool] = True

    rule: ScaleByProdigy | ScaleByDAdaptAdam = required_part(state=lambda state: state)
    decay: AddDecayedWeights = required_part(state=lambda state: EmptyState())

    def init(self, params):
        return self.rule.init(params)

    def update(self, updates, state, params=None, **extra):
        rate = estimated_rate(self.rule.at(state), state)
        decay = AddDecayedWeights(rate * self.decay.weight_decay, self.decay.mask)
        updates, (state, _) = run_rules([self.rule, decay], updates, [state, EmptyState()], params, extra)
        # A third rule, `Scale(-1.0)`, would multiply by an array of -1, which takes longer to compile.
        return jtu.tree_map(jnp.negative, updates), state
