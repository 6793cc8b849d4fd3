"""The last step of optimizers that find their own step size."""

from typing import Any, ClassVar

import equinox as eqx

from .._protocol.container import AbstractContainer, part
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
    r"""The step $-(u_t + \gamma_t \lambda w_t)$ of a rule that finds its step size $\gamma_t$ by itself.

    The state is that of the rule.

    Args:
        rule: the rule.
        weight_decay: $\lambda$.
        mask: the leaves that decay; by default all.
    """

    needs: ClassVar[tuple[str, ...]] = ("params",)

    rule: ScaleByProdigy | ScaleByDAdaptAdam = part(state=lambda state: state)
    weight_decay: Number = number(0.0)
    mask: Any = eqx.field(static=True, default=None, converter=as_rule)

    def init(self, params):
        return self.rule.init(params)

    def update(self, updates, state, params=None, **extra):
        decay = AddDecayedWeights(estimated_rate(self.rule.at(state), state) * self.weight_decay, self.mask)
        rules, states = [self.rule, decay, Scale(-1.0)], [state, EmptyState(), EmptyState()]
        updates, (state, _, _) = run_rules(rules, updates, states, params, extra)
        return updates, state
