"""SGD, with and without momentum."""

from .. import authoring as ma
from .._transforms.momentum import Trace


class SGD(ma.AbstractRated):
    r"""Stochastic gradient descent, optionally with momentum or Nesterov momentum.

        optimizer = SGD(0.1, momentum=0.9, nesterov=True)
        params, state = optimizer.step(grads, state, params)

    $$
    \begin{aligned}
    v_t &= \mu v_{t-1} + g_t \\
    w_{t+1} &= w_t - \eta\, v_t \quad\text{or, with Nesterov momentum,}\quad w_{t+1} = w_t - \eta (\mu v_t + g_t)
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$ and $v_0 = 0$. Without momentum, $v_t = g_t$.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        momentum: momentum coefficient $\mu$; None for no momentum, and no state for it.
        nesterov: whether to use Nesterov momentum.
        accumulator_dtype: dtype of the momentum; by default that of the parameters.

    References:
        Robbins and Monro, [A Stochastic Approximation Method](https://doi.org/10.1214/aoms/1177729586), 1951.
    """

    _call_hint = (
        "torch's order is `lr, momentum, dampening, weight_decay, nesterov`; weight decay is another transform here: "
        "`Chain(AddDecayedWeights(1e-4), SGD(0.1, momentum=0.9))`."
    )

    momentum: ma.OptionalNumber = ma.number(None, optional=True)
    nesterov: bool = ma.static(False)
    accumulator_dtype: ma.DTypeLike | None = ma.static(None)

    def directions(self):
        return [] if self.momentum is None else [self._part(Trace, decay=self.momentum)]
