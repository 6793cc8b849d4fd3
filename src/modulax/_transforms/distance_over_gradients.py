"""Distance over gradients with one step size per array: the layer-wise variant of DoG."""

from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import DTypeLike, PyTree

from .._protocol.fields import Number, number
from .._protocol.leafwise import AbstractLeafwise
from .._support.arithmetic import abs_sq, at_least_float32, common_dtype, ratio, real_dtype, safe_sqrt
from .._support.module import AbstractState, like_params
from ..tree._math import norm


class ScaleByDistanceOverGradientsState(AbstractState):
    """State of `ScaleByDistanceOverGradients`: initial value, largest distance and sum of squares of each array."""

    optax_fields = ("max_dist", "grad_sum_of_squares", "init_params")

    max_dist: PyTree = like_params(nonnegative=True)
    grad_sum_of_squares: PyTree = like_params(nonnegative=True)
    init_params: PyTree = like_params(copied=True)


class ScaleByDistanceOverGradients(AbstractLeafwise[ScaleByDistanceOverGradientsState]):
    r"""Distance over gradients with one step size per array: the layer-wise variant of `ScaleByDoG` (L-DoG).

    $$
    \begin{aligned}
    \bar r_t &= \max(\bar r_{t-1}, \|w_t - w_0\|), \qquad \bar r_{-1} = r\, (1 + \|w_0\|) \\
    G_t &= G_{t-1} + \|g_t\|^2 \\
    u_t &= c\, \bar r_t\, g_t / \sqrt{G_t + \varepsilon}
    \end{aligned}
    $$

    The norms are those of one array. The authors recommend evaluating an average of the parameters.

    Args:
        reps_rel: $r$, which sets the first step relative to the parameters; 1e-4 for models with batch normalization.
        eps: $\varepsilon$, added to the sum of squares inside the root.
        param_dtype: dtype in which the initial parameters are stored.
        global_scale: factor $c$ of the step size.

    References:
        Ivgi, Hinder and Carmon, [DoG is SGD's Best Friend: A Parameter-Free Dynamic Step Size
        Schedule](https://arxiv.org/abs/2302.12022), 2023.
    """

    needs: ClassVar[tuple[str, ...]] = ("params",)

    reps_rel: Number = number(1e-6)
    eps: Number = number(1e-8)
    param_dtype: DTypeLike = eqx.field(static=True, default=jnp.float32)
    global_scale: Number = number(1.0)

    def init_leaf(self, p):
        dtype = common_dtype(self.param_dtype, jnp.complex64) if jnp.iscomplexobj(p) else self.param_dtype
        wide = at_least_float32(real_dtype(p.dtype))
        return ScaleByDistanceOverGradientsState(
            max_dist=(self.reps_rel * (1 + norm(p))).astype(wide),
            grad_sum_of_squares=jnp.zeros((), wide),
            init_params=jnp.array(p, dtype),
        )

    def update_leaf(self, now, g, s, p):
        del now
        max_dist = jnp.maximum(s.max_dist, safe_sqrt(jnp.sum(abs_sq(p - s.init_params))))
        squares = s.grad_sum_of_squares + jnp.sum(abs_sq(g))
        # With `eps` of zero, an array without gradients would divide by zero.
        rate = self.global_scale * ratio(max_dist, safe_sqrt(self.eps + squares))
        return rate * g, ScaleByDistanceOverGradientsState(max_dist, squares, s.init_params)
