"""The final step of Prodigy and D-Adaptation: decoupled weight decay at the estimated step size.

`distance_estimate.py` explains why these two aren't plain chains.
"""

from typing import Any, ClassVar

import equinox as eqx

from .._protocol.container import AbstractContainer, Part, part
from .._protocol.fields import Number, number
from .._protocol.leafwise import run_rules
from .._protocol.masks import as_rule
from .._protocol.transform import EmptyState
from .dadapt import ScaleByDAdaptAdam
from .distance_estimate import estimated_rate
from .prodigy import ScaleByProdigy
from .regularization import AddDecayedWeights
from .scaling import Scale


class StepWithDecay(AbstractContainer):
    r"""The step $-(u_t + \gamma_t \lambda w_t)$ for a rule that estimates its own step size $\gamma_t$.

    The state is the state of the rule.

    Args:
        rule: the rule, which returns $u_t$.
        weight_decay: weight decay coefficient $\lambda$, multiplied by the step size $\gamma_t$.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.
    """

    needs: ClassVar[tuple[str, ...]] = ("params",)

    rule: ScaleByProdigy | ScaleByDAdaptAdam = part(state=lambda state: state)
    weight_decay: Number = number(0.0)
    mask: Any = eqx.field(static=True, default=None, converter=as_rule)

    def each_part(self, state=None):
        """Yield the rule, and the weight decay with its mask, which `describe` shows."""
        yield from super().each_part(state)
        decay = AddDecayedWeights(self.weight_decay, self.mask)
        yield Part("weight_decay", None, decay, None if state is None else EmptyState())

    def init(self, params):
        return self.rule.init(params)

    def update(self, updates, state, params=None, **extra):
        decay = AddDecayedWeights(estimated_rate(self.rule.at(state), state) * self.weight_decay, self.mask)
        rules, states = [self.rule, decay, Scale(-1.0)], [state, EmptyState(), EmptyState()]
        updates, (state, _, _) = run_rules(rules, updates, states, params, extra)
        return updates, state
