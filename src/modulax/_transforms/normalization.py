"""Normalized and centered updates."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from .._protocol.fields import Number, number
from .._protocol.leafwise import AbstractLeafwise
from ..tree._math import norm


class NormalizeByUpdateNorm(AbstractLeafwise):
    r"""Divides all updates by their global norm: $u = \alpha g / (\|g\|_2 + \varepsilon)$.

    The norm is that of all leaves together. If it overflows, all updates become zero.

    Args:
        scale_factor: factor $\alpha$.
        eps: $\varepsilon$, added to the norm. Zero updates stay zero, even for $\varepsilon = 0$.
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
    r"""Normalizes all updates to a global norm of 1: $u = g / \|g\|_2$.

    The norm is that of all leaves together. Zero updates stay zero, and so do those whose squares are zero in float32:
    a norm below about 1e-19. This is the adversarial step of sharpness-aware minimization (SAM).

    References:
        Foret et al., [Sharpness-Aware Minimization for Efficiently Improving
        Generalization](https://arxiv.org/abs/2010.01412), 2020.
    """

    def survey(self, count, state, updates, params, **extra):
        del count, state, params, extra
        return _inverse(norm(updates))

    def update_leaf(self, now, g, s, p):
        del p
        return now * g, s


def _inverse(x: Array) -> Array:
    """1 / x, and zero for x = 0."""
    return jnp.where(x == 0, 0, 1 / jnp.where(x == 0, 1, x))


class Centralize(AbstractLeafwise):
    r"""Gradient centralization: subtracts its mean from the gradient of each output.

    $$
    u_{ij} = g_{ij} - \frac{1}{n} \sum_{k=1}^n g_{ik}
    $$

    Scalars and vectors pass through unchanged.

    Args:
        output_axis: axis of the outputs, $i$; the mean is over all other axes, $j$. The first axis is right for weights
            of Equinox and torch; for kernels of Flax use the last one, -1.

    References:
        Yong et al., [Gradient Centralization: A New Optimization Technique for Deep Neural
        Networks](https://arxiv.org/abs/2004.01461), 2020.
    """

    _keeps = "gradients"

    output_axis: int = eqx.field(static=True, default=0)

    def update_leaf(self, now, g, s, p):
        del now, p
        if g.ndim < 2:
            return g, s
        others = tuple(i for i in range(g.ndim) if i != self.output_axis % g.ndim)
        return g - jnp.broadcast_to(jnp.mean(g, axis=others, keepdims=True), g.shape), s
