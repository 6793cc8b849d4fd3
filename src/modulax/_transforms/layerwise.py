"""Updates in proportion to the parameters, array by array; and updates of unit norm or mean zero."""

from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from .._checks import NON_NEGATIVE
from .._leafwise import AbstractLeafwise
from .._numerics import abs_sq, safe_sqrt
from .._rules import as_rule, mask_or_all
from .._schedule import Number, number
from ..tree._math import norm
from .regularization import decayed


def block_norm(x: Array) -> Array:
    """The Euclidean norm of one array, differentiable at zero."""
    return safe_sqrt(jnp.sum(abs_sq(x)))


def block_rms(x: Array) -> Array:
    """The root of the mean square of one array, differentiable at zero."""
    return safe_sqrt(jnp.mean(abs_sq(x)))


def trust_ratio(param_norm: Array, update_norm: Array, coefficient: Any, eps: Any) -> Array:
    r"""$\eta \|w\| / (\|g\| + \varepsilon)$, and 1 where one of the norms is zero: such parameters would never move."""
    is_zero = (param_norm == 0) | (update_norm == 0)
    return jnp.where(is_zero, 1, coefficient * param_norm / (eps + jnp.where(is_zero, 1, update_norm)))


class ScaleByTrustRatio(AbstractLeafwise):
    r"""Scales the update of each array in proportion to the norm of its parameters.

    $$
    u = \frac{c \|w\|}{\|g\| + \lambda \|w\| + \varepsilon} (g + \lambda w)
    $$

    Both norms are raised to a least value. Where one of them is zero the ratio is 1, so that parameters that begin at
    zero can move. With $\lambda$ it is the rule of LARS.

    Args:
        min_norm: the least value of both norms.
        trust_coefficient: $c$.
        eps: $\varepsilon$.
        weight_decay: the rate $\lambda$ of a weight decay that belongs to the step, as in LARS.
        mask: the leaves that are scaled, and decay: a tree of booleans of the parameters' structure or a prefix of it,
            a function of the parameters that returns one, or `by_path({...})`. By default all; the others pass through
            unchanged.

    References:
        You et al., [Large Batch Training of Convolutional Networks](https://arxiv.org/abs/1708.03888), 2017.
    """

    needs_params: ClassVar[bool] = True
    cites: ClassVar[tuple[str, ...]] = ("you2017",)

    min_norm: Number = number(0.0, needs=NON_NEGATIVE)
    trust_coefficient: Number = number(1.0)
    eps: Number = number(0.0)
    weight_decay: Number = number(0.0)
    mask: Any = eqx.field(static=True, default=None, converter=as_rule)

    def where(self, tree):
        return mask_or_all(self, self.mask, tree)

    def update_leaf(self, now, g, s, p):
        del now
        p_norm = jnp.maximum(block_norm(p), self.min_norm)
        g_norm = jnp.maximum(block_norm(g), self.min_norm)
        ratio = trust_ratio(p_norm, self.weight_decay * p_norm + g_norm, self.trust_coefficient, self.eps)
        return ratio * (decayed(self.weight_decay, p) + g), s


class ScaleByParamBlockNorm(AbstractLeafwise):
    r"""Multiplies the update of each array by the norm of its parameters: $u = \max(\|w\|_2, s)\, g$.

    Args:
        min_scale: the least factor $s$, so that parameters that begin at zero can move.
    """

    needs_params: ClassVar[bool] = True

    min_scale: Number = number(1e-3)

    def update_leaf(self, now, g, s, p):
        del now
        return jnp.maximum(block_norm(p), self.min_scale) * g, s


class ScaleByParamBlockRMS(AbstractLeafwise):
    r"""Multiplies the update of each array by the root mean square of its parameters.

    $$
    u = \max(\operatorname{RMS}(w), s)\, g, \qquad \operatorname{RMS}(w)^2 = \frac{1}{n} \sum_{i=1}^n |w_i|^2
    $$

    Args:
        min_scale: the least factor $s$, so that parameters that begin at zero can move.

    References:
        Shazeer and Stern, [Adafactor: Adaptive Learning Rates with Sublinear Memory
        Cost](https://arxiv.org/abs/1804.04235), 2018, section 8.
    """

    needs_params: ClassVar[bool] = True
    cites: ClassVar[tuple[str, ...]] = ("shazeer2018",)

    min_scale: Number = number(1e-3)

    def update_leaf(self, now, g, s, p):
        del now
        return jnp.maximum(block_rms(p), self.min_scale) * g, s


class NormalizeByUpdateNorm(AbstractLeafwise):
    r"""Divides all updates by their norm: $u = \alpha g / (\|g\|_2 + \varepsilon)$, the norm of all leaves together.

    Where the norm overflows the update is zero.

    Args:
        scale_factor: $\alpha$.
        eps: $\varepsilon$. Updates that are all zero stay so, also for 0.
    """

    scale_factor: Number = number(1.0)
    eps: Number = number(1e-6)

    def survey(self, count, state, updates, params, **extra):
        del count, state, params, extra
        return self.scale_factor * _inverse(self.eps + norm(updates))

    def update_leaf(self, now, g, s, p):
        del p
        return now * g, s


class Normalize(AbstractLeafwise):
    r"""Divides all updates by their norm: $u = g / \|g\|_2$, the norm of all leaves together.

    Updates that are all zero stay so. It is the step of the adversary in sharpness-aware minimization.

    References:
        Foret et al., [Sharpness-Aware Minimization for Efficiently Improving
        Generalization](https://arxiv.org/abs/2010.01412), 2020.
    """

    cites: ClassVar[tuple[str, ...]] = ("foret2020",)

    def survey(self, count, state, updates, params, **extra):
        del count, state, params, extra
        return _inverse(norm(updates))

    def update_leaf(self, now, g, s, p):
        del p
        return now * g, s


def _inverse(x: Array) -> Array:
    """1 / x, and zero for zero."""
    return jnp.where(x == 0, 0, 1 / jnp.where(x == 0, 1, x))


class Centralize(AbstractLeafwise):
    r"""Subtracts from the gradient of each output its mean: $u_i = g_i - \frac{1}{n} \sum_{j=1}^n g_{ij}$.

    Scalars and vectors pass through unchanged.

    Args:
        output_axis: the axis $i$ of the outputs; the mean is over all others. The first one is right for the weights of
            Equinox, as for torch's; the kernels of Flax have it last, at -1.

    References:
        Yong et al., [Gradient Centralization: A New Optimization Technique for Deep Neural
        Networks](https://arxiv.org/abs/2004.01461), 2020.
    """

    cites: ClassVar[tuple[str, ...]] = ("yong2020",)

    output_axis: int = eqx.field(static=True, default=0)

    def update_leaf(self, now, g, s, p):
        del now, p
        if g.ndim < 2:
            return g, s
        others = tuple(i for i in range(g.ndim) if i != self.output_axis % g.ndim)
        return g - jnp.broadcast_to(jnp.mean(g, axis=others, keepdims=True), g.shape), s
