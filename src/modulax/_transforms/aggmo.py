"""AggMo: the mean of several momenta."""

from collections.abc import Iterable
from typing import Any

import equinox as eqx
import jax.tree_util as jtu
from jaxtyping import DTypeLike, PyTree

from .._protocol.fields import Numbers, numbers
from .._protocol.leafwise import AbstractLeafwise
from .._support.arithmetic import zeros_in
from .._support.checks import DECAY
from .._support.module import AbstractState, like_params


def as_betas(betas: Any) -> tuple[Any, ...]:
    """Return the decay rates of AggMo as a tuple, of any length but zero."""
    given = tuple(betas) if isinstance(betas, Iterable) else ()
    if not given:
        raise ValueError(f"`betas` must be one decay rate or several, such as `(0.0, 0.9, 0.99)`, got {betas!r}.")
    return given


class ScaleByAggMoState(AbstractState):
    """State of `ScaleByAggMo`: for each parameter, a list of momenta."""

    velocities: PyTree = like_params(moment=lambda rule: tuple(1 - beta for beta in rule.betas))


class ScaleByAggMo(AbstractLeafwise[ScaleByAggMoState]):
    r"""Averages several momenta with different decay rates: aggregated momentum, the direction of AggMo.

    $$
    v_t^{(i)} = \beta_i v_{t-1}^{(i)} + g_t, \qquad u_t = \frac{1}{K} \sum_{i=1}^K v_t^{(i)}
    $$

    Each momentum is a sum, as in `Trace`.

    Args:
        betas: decay rates $\beta_1, \dots, \beta_K$.
        accumulator_dtype: dtype of the momenta; by default that of the parameters.

    References:
        Lucas et al., [Aggregated Momentum: Stability Through Passive Damping](https://arxiv.org/abs/1804.00325), 2018.
    """

    betas: Numbers = numbers((0.0, 0.9, 0.99), needs=DECAY, arranged=as_betas)
    accumulator_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def init_leaf(self, p):
        return ScaleByAggMoState(velocities=[zeros_in(p, self.accumulator_dtype) for _ in self.betas])

    def update_leaf(self, now, g, s, p):
        del now, p
        before, treedef = jtu.tree_flatten(s.velocities)  # NNX turns lists into mappings
        velocities = [beta * v + g for beta, v in zip(self.betas, before, strict=True)]
        return sum(velocities[1:], velocities[0]) / len(velocities), ScaleByAggMoState(treedef.unflatten(velocities))
