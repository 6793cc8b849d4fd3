"""The Polyak step size, computed from the loss."""

from typing import ClassVar, Literal

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from .._protocol.fields import Number, number
from .._protocol.leafwise import AbstractLeafwise
from .._support.arithmetic import abs_sq, default_float, ratio
from ..tree._math import total


def loss_of(value: ArrayLike) -> Float[Array, ""]:
    """The extra argument `value` in the dtype of the numbers that all leaves share."""
    return jnp.asarray(value).astype(default_float())


class ScaleByPolyak(AbstractLeafwise):
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

    needs: ClassVar[tuple[str, ...]] = ("value",)

    f_min: Number = number(0.0)
    max_learning_rate: Number = number(1.0)
    eps: Number = number(0.0)
    variant: Literal["sps", "sps+"] = eqx.field(static=True, default="sps")

    def survey(self, count, state, updates, params, *, value, **extra):
        del count, state, params, extra
        gap = loss_of(value) - self.f_min
        if self.variant == "sps+":
            gap = jnp.maximum(gap, 0)
        # At a stationary point the squared norm is zero, and `eps` is zero by default.
        return jnp.minimum(ratio(gap, self.eps + total(abs_sq, updates)), self.max_learning_rate)

    def update_leaf(self, now, g, s, p):
        del p
        return now * g, s
