"""AggMo: the mean of several momenta."""

from collections.abc import Iterable
from typing import Any

import jax.tree_util as jtu

from .. import authoring as ma


def as_betas(betas: Any) -> tuple[Any, ...]:
    """Return the decay rates of AggMo as a tuple, of any length but zero."""
    given = tuple(betas) if isinstance(betas, Iterable) else ()
    if not given:
        raise ValueError(f"`betas` must be one decay rate or several, such as `(0.0, 0.9, 0.99)`, got {betas!r}.")
    return given


class ScaleByAggMoState(ma.AbstractState):
    """State of `ScaleByAggMo`: for each parameter, a list of momenta."""

    velocities: ma.PyTree = ma.like_params(moment=lambda rule: tuple(1 - beta for beta in rule.betas))


class AbstractAggMo(ma.AbstractFields):
    r"""The hyperparameters of AggMo.

    Args:
        betas: decay rates $\beta_1, \dots, \beta_K$ of the momenta.
        accumulator_dtype: dtype of the momenta; by default that of the parameters.
    """

    betas: ma.Numbers = ma.numbers((0.0, 0.9, 0.99), needs=ma.DECAY, arranged=as_betas)
    accumulator_dtype: ma.DTypeLike | None = ma.static(None)


class ScaleByAggMo(AbstractAggMo, ma.AbstractLeafwise[ScaleByAggMoState]):
    r"""Averages several momenta with different decay rates: aggregated momentum, the direction of AggMo.

    $$
    v_t^{(i)} = \beta_i v_{t-1}^{(i)} + g_t, \qquad u_t = \frac{1}{K} \sum_{i=1}^K v_t^{(i)}
    $$

    Each momentum is a sum, as in `Trace`.

    Args:
        betas: decay rates $\beta_1, \dots, \beta_K$ of the momenta.
        accumulator_dtype: dtype of the momenta; by default that of the parameters.

    References:
        Lucas et al., [Aggregated Momentum: Stability Through Passive Damping](https://arxiv.org/abs/1804.00325), 2018.
    """

    def init_leaf(self, p):
        return ScaleByAggMoState(velocities=[ma.zeros_in(p, self.accumulator_dtype) for _ in self.betas])

    def update_leaf(self, now, g, s, p):
        del now, p
        before, treedef = jtu.tree_flatten(s.velocities)  # NNX turns lists into mappings
        velocities = [beta * v + g for beta, v in zip(self.betas, before, strict=True)]
        return sum(velocities[1:], velocities[0]) / len(velocities), ScaleByAggMoState(treedef.unflatten(velocities))


class AggMo(AbstractAggMo, ma.AbstractRated):
    r"""SGD with aggregated momentum: averages several momenta, so that fast ones damp the oscillations of slow ones.

        optimizer = AggMo(0.1, betas=(0.0, 0.9, 0.99))

    $$
    \begin{aligned}
    v_t^{(i)} &= \beta_i v_{t-1}^{(i)} + g_t \\
    w_{t+1} &= w_t - \frac{\eta}{K} \sum_{i=1}^K v_t^{(i)}
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$ and $v_0^{(i)} = 0$. The state has $K$ momenta. The authors' decay rates are
    $\beta_i = 1 - 0.1^{i-1}$. For weight decay as in SGD, write `Chain(AddDecayedWeights(1e-4), AggMo(0.1))`.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        betas: decay rates $\beta_1, \dots, \beta_K$ of the momenta.
        accumulator_dtype: dtype of the momenta; by default that of the parameters.

    References:
        Lucas et al., [Aggregated Momentum: Stability Through Passive Damping](https://arxiv.org/abs/1804.00325), 2018.
    """

    direction = ScaleByAggMo
