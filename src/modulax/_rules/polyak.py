"""The Polyak step size, computed from the loss."""

from typing import Literal

import jax.numpy as jnp

from .. import authoring as ma
from .._support.arithmetic import loss_of


class ScaleByPolyak(ma.AbstractLeafwise):
    r"""Scales the gradient by the Polyak step size: the distance to the smallest loss over the squared gradient norm.

    $$
    u_t = \min\left(\frac{f_t - f^\star}{\|g_t\|^2 + \varepsilon},\ \eta_{\max}\right) g_t
    $$

    `update` needs the loss $f_t$ as the extra argument `value`. The norm is over all parameters. If all gradients are
    zero, so is the update.

    Args:
        f_min: $f^\star$, the smallest value of the loss, or a lower bound.
        max_learning_rate: $\eta_{\max}$, the largest step size.
        eps: $\varepsilon$, added to the squared norm.
        variant: `"sps"`, or `"sps+"`, which uses $\max(f_t - f^\star, 0)$ and so never steps uphill.

    References:
        Loizou et al., [Stochastic Polyak Step-size for SGD: An Adaptive Learning Rate for Fast
        Convergence](https://arxiv.org/abs/2002.10542), 2020;
        Garrigos et al., [Function Value Learning: Adaptive Learning Rates Based on the Polyak Stepsize and Function
        Splitting in ERM](https://arxiv.org/abs/2307.14528), 2023.
    """

    needs = ("value",)

    f_min: ma.Number = ma.number(0.0)
    max_learning_rate: ma.Number = ma.number(1.0)
    eps: ma.Number = ma.number(0.0)
    variant: Literal["sps", "sps+"] = ma.static("sps")

    def survey(self, count, state, updates, params, *, value, **extra):
        del count, state, params, extra
        gap = loss_of(value) - self.f_min
        if self.variant == "sps+":
            gap = jnp.maximum(gap, 0)
        # At a stationary point the squared norm is zero, and `eps` is zero by default.
        return jnp.minimum(ma.ratio(gap, self.eps + ma.norm(updates, squared=True)), self.max_learning_rate)

    def update_leaf(self, now, g, s, p):
        del p
        return now * g, s


class PolyakSGD(ma.AbstractOptimizer):
    r"""SGD with the Polyak step size, computed from the loss, for problems whose smallest loss is known.

        optimizer = PolyakSGD(1.0, f_min=0.0)
        params, state = optimizer.step(grads, state, params, value=loss)

    $$
    w_{t+1} = w_t - s \min\left(\frac{f_t - f^\star}{\|g_t\|^2 + \varepsilon},\ \eta_{\max}\right) g_t
    $$

    with $f_t$ the loss and $g_t$ the gradient at $w_t$, and the norm over all parameters. With `follow="optax"`, the
    gradient is multiplied by $s$ before the norm is taken: the step is
    $s \min((f_t - f^\star) / (s^2 \|g_t\|^2 + \varepsilon), \eta_{\max}) g_t$, which gets longer as $s$ gets smaller.

    `update` and `step` need the loss, as `value`.

    Args:
        max_learning_rate: $\eta_{\max}$, the largest step size, a number or a schedule.
        scaling: factor $s$ of the step.
        f_min: $f^\star$, the smallest value of the loss, or a lower bound.
        eps: $\varepsilon$, added to the squared norm.
        variant: `"sps"`, or `"sps+"`, which uses $\max(f_t - f^\star, 0)$ and so never steps uphill.
        follow: `"paper"`, or `"optax"`, which scales the gradient instead of the step.

    References:
        Loizou et al., [Stochastic Polyak Step-size for SGD: An Adaptive Learning Rate for Fast
        Convergence](https://arxiv.org/abs/2002.10542), 2020.
    """

    needs = ("value",)

    max_learning_rate: ma.Number = ma.number(1.0)
    scaling: ma.Number = ma.number(1.0)
    f_min: ma.Number = ma.number(0.0)
    eps: ma.Number = ma.number(0.0)
    variant: Literal["sps", "sps+"] = ma.static("sps")
    follow: ma.Follow = ma.followed()

    def transform(self) -> ma.Chain:
        polyak, rate = self._part(ScaleByPolyak), ma.ScaleByLearningRate(self.scaling)
        return ma.Chain(polyak, rate) if self.follow == "paper" else ma.Chain(rate, polyak)
