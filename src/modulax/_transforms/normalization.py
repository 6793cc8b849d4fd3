"""Updates of unit norm, and centered ones."""

from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from .._protocol.fields import Number, number
from .._protocol.leafwise import AbstractLeafwise
from ..tree._math import norm


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
