"""Variance reduction with the gradient of the step before, for MARS."""

from jaxtyping import PyTree

from .._protocol.fields import Number, OptionalNumber, number
from .._protocol.leafwise import AbstractLeafwise
from .._support.arithmetic import zeros_in
from .._support.checks import DECAY, NON_NEGATIVE
from .._support.module import AbstractState, counter, like_params
from .._support.types import Count, Shared
from ..numerics._norms import safe_norm
from .clipping import shrinking, shrunk


class ReduceVarianceState(AbstractState):
    """State of `ReduceVariance`: step count, and the last updates."""

    last: PyTree = like_params()
    count: Shared[Count] = counter()


class ReduceVariance(AbstractLeafwise[ReduceVarianceState]):
    r"""Adds a multiple of the difference to the last gradient, before a momentum: the corrected gradient of MARS.

    $$
    c_t = g_t + \gamma \frac{\beta}{1 - \beta} (g_t - g_{t-1}), \qquad
        u_t = c_t \min(1, \Delta / \|c_t\|_F)
    $$

    with $g_0 = 0$. $\beta$ is the decay rate of the momentum that follows, and the norm is that of each array. This is
    the approximate form of MARS, in which $g_{t-1}$ is the gradient of the last batch at the last parameters.

    Args:
        gamma: strength $\gamma$ of the correction.
        beta: exponential decay rate $\beta$ of the momentum that follows.
        max_norm: largest norm $\Delta$ of an array; None for no clipping.

    References:
        Yuan et al., [MARS: Unleashing the Power of Variance Reduction for Training Large
        Models](https://arxiv.org/abs/2411.10438), 2024.
    """

    gamma: Number = number(0.025)
    beta: Number = number(0.95, needs=DECAY)
    max_norm: OptionalNumber = number(1.0, needs=NON_NEGATIVE, optional=True)

    def init_leaf(self, p):
        return ReduceVarianceState(last=zeros_in(p, None))

    def update_leaf(self, now, g, s, p):
        del now, p
        c = g + self.gamma * self.beta / (1 - self.beta) * (g - s.last)
        if self.max_norm is not None:
            c = shrunk(c, shrinking(self.max_norm, safe_norm(c, 0.0)))
        return c, ReduceVarianceState(last=g)
