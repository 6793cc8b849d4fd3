"""DoG and DoWG: step sizes from the distance travelled so far, without a learning rate."""

from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Bool

from .. import authoring as ma
from .._protocol.hyperparameters import AbstractHyperparameters
from ..tree._math import total


class InitialStep(AbstractHyperparameters):
    """The first step of `DoG`. A pair `(kind, value)` is converted to one.

    Args:
        kind: meaning of the value: `"distance"`, the initial estimate of the distance to the solution;
            `"learning_rate"`, the first step size; `"heuristic"`, the initial distance relative to 1 + the norm of the
            parameters.
        value: the value.
    """

    kind: Literal["distance", "learning_rate", "heuristic"] = eqx.field(static=True)
    value: ma.Number = ma.required_number()


def as_initial_step(x: Any) -> Any:
    """Converts a pair to an `InitialStep`, and returns anything else unchanged."""
    return InitialStep(*x) if isinstance(x, (tuple, list)) and len(x) == 2 else x


class DoGState(ma.AbstractState):
    """State of `ScaleByDoG`: initial parameters, largest distance from them, and sum of squared gradients."""

    optax_fields = ("is_init_step", "init_params", "max_dist", "sum_sq_norm_grads")

    init_params: ma.PyTree = ma.like_params(copied=True)
    is_init_step: ma.Shared[Bool[ma.Array, ""]] = ma.shared(None, kw_only=True, starts=True)  # the first field in optax
    max_dist: ma.Shared[ma.Scalar] = ma.shared(None, kw_only=True)
    sum_sq_norm_grads: ma.Shared[ma.Scalar] = ma.shared(None, kw_only=True, starts=0.0)


class DoGNumbers(NamedTuple):
    """Numbers shared by all leaves in a step of DoG: the step size and the new shared state."""

    rate: ma.Array
    is_init_step: ma.Array
    max_dist: ma.Array
    sum_sq_norm_grads: ma.Array


class AbstractDoG(ma.AbstractFields):
    r"""The hyperparameters of DoG.

    Args:
        init_step: the first step: `("distance", r)` for $\bar r_0 = r$, `("heuristic", a)` for
            $\bar r_0 = a (1 + \|w_0\|)$, or `("learning_rate", lr)` for a first step size of `lr`. The paper recommends
            the heuristic with 1e-6, or with 1e-4 for models with batch normalization.
        eps: $\varepsilon$, added to the sum of squares inside the root.
    """

    init_step: Any = eqx.field(converter=as_initial_step)
    eps: ma.Number = ma.number(1e-8)

    def check(self) -> None:
        if not isinstance(self.init_step, InitialStep):
            raise ValueError(
                f'`{type(self).__name__}(init_step=...)` must be a pair such as `("heuristic", 1e-6)`, got '
                f"{self.init_step!r}."
            )


class ScaleByDoG(AbstractDoG, ma.AbstractLeafwise[DoGState]):
    r"""Distance over gradients (DoG): the largest distance from the initial parameters sets the step size.

    $$
    \begin{aligned}
    \bar r_t &= \max(\bar r_{t-1}, \|w_t - w_0\|), \qquad G_t = G_{t-1} + \|g_t\|^2 \\
    u_t &= \bar r_t\, g_t / \sqrt{G_t + \varepsilon}
    \end{aligned}
    $$

    The norms are over all parameters; `ScaleByDistanceOverGradients` has one step size per array. The authors recommend
    evaluating an average of the parameters.

    Args:
        init_step: the first step: `("distance", r)` for $\bar r_0 = r$, `("heuristic", a)` for
            $\bar r_0 = a (1 + \|w_0\|)$, or `("learning_rate", lr)` for a first step size of `lr`. The paper recommends
            the heuristic with 1e-6, or with 1e-4 for models with batch normalization.
        eps: $\varepsilon$, added to the sum of squares inside the root.

    References:
        Ivgi, Hinder and Carmon, [DoG is SGD's Best Friend: A Parameter-Free Dynamic Step Size
        Schedule](https://arxiv.org/abs/2302.12022), 2023.
    """

    needs = ("params",)

    def init_leaf(self, p):
        return DoGState(init_params=jnp.array(p))

    def init_shared(self, params):
        first = {
            "distance": lambda value: value,
            "heuristic": lambda value: value * (1 + ma.norm(params)),
            # The first step sets the distance, which is measured from the second step on.
            "learning_rate": jnp.zeros_like,
        }
        return {"max_dist": jnp.array(first[self.init_step.kind](self.init_step.value), ma.default_float())}

    def survey(self, count, state, updates, params, **extra):
        del count, extra
        distance = ma.norm(jtu.tree_map(jnp.subtract, params, state.init_params))
        max_dist = jnp.maximum(state.max_dist, distance)
        squares = state.sum_sq_norm_grads + total(ma.abs_sq, updates)
        # With `eps` of zero, the sum is zero until the first nonzero gradient.
        rate = ma.ratio(max_dist, ma.safe_sqrt(self.eps + squares))
        if self.init_step.kind == "learning_rate":
            rate = jnp.where(state.is_init_step, self.init_step.value, rate)
        return DoGNumbers(rate, jnp.array(False), max_dist, squares)

    def update_leaf(self, now, g, s, p):
        del p
        return now.rate * g, s


class DoWGState(ma.AbstractState):
    """State of `ScaleByDoWG`: initial parameters, weighted sum of squared gradients, and largest squared distance."""

    optax_fields = ("init_params", "weighted_sq_norm_grads", "estim_sq_dist")

    init_params: ma.PyTree = ma.like_params(copied=True)
    weighted_sq_norm_grads: ma.Shared[ma.Scalar] = ma.shared(None, starts=0.0)
    estim_sq_dist: ma.Shared[ma.Scalar] = ma.shared(
        None, starts=lambda rule: rule.eps if rule.init_estim_sq_dist is None else rule.init_estim_sq_dist
    )


class DoWGNumbers(NamedTuple):
    """Numbers shared by all leaves in a step of DoWG: the step size and the new shared state."""

    rate: ma.Array
    weighted_sq_norm_grads: ma.Array
    estim_sq_dist: ma.Array


class AbstractDoWG(ma.AbstractFields):
    r"""The hyperparameters of DoWG.

    Args:
        init_estim_sq_dist: initial estimate $\bar r_0^2$ of the squared distance to the solution; by default `eps`.
        eps: $\varepsilon$, added to the denominator outside the root.
    """

    init_estim_sq_dist: ma.OptionalNumber = ma.number(None, optional=True)
    eps: ma.Number = ma.number(1e-4)


class ScaleByDoWG(AbstractDoWG, ma.AbstractLeafwise[DoWGState]):
    r"""Distance over weighted gradients (DoWG): DoG with each squared gradient weighted by the squared distance.

    $$
    \begin{aligned}
    \bar r_t^2 &= \max(\bar r_{t-1}^2, \|w_t - w_0\|^2), \qquad v_t = v_{t-1} + \bar r_t^2 \|g_t\|^2 \\
    u_t &= \bar r_t^2\, g_t / (\sqrt{v_t} + \varepsilon)
    \end{aligned}
    $$

    The norms are over all parameters.

    Args:
        init_estim_sq_dist: initial estimate $\bar r_0^2$ of the squared distance to the solution; by default `eps`.
        eps: $\varepsilon$, added to the denominator outside the root.

    References:
        Khaled, Mishchenko and Jin, [DoWG Unleashed: An Efficient Universal Parameter-Free Gradient Descent
        Method](https://arxiv.org/abs/2305.16284), 2023.
    """

    needs = ("params",)

    def init_leaf(self, p):
        return DoWGState(init_params=jnp.array(p))

    def survey(self, count, state, updates, params, **extra):
        del count, extra
        way = jtu.tree_map(jnp.subtract, params, state.init_params)
        squared = jnp.maximum(state.estim_sq_dist, total(ma.abs_sq, way))
        weighted = state.weighted_sq_norm_grads + squared * total(ma.abs_sq, updates)
        return DoWGNumbers(ma.ratio(squared, self.eps + ma.safe_sqrt(weighted)), weighted, squared)

    def update_leaf(self, now, g, s, p):
        del p
        return now.rate * g, s


class AbstractPenalized(ma.AbstractFields, ma.AbstractRated):
    r"""SGD with an $L_2$ penalty and a direction that finds its step size.

    Args:
        learning_rate: factor $\eta$ of the step size, a number or a schedule, for example one that decays to zero.
        weight_decay: coefficient $\lambda$ of the $L_2$ penalty, whose gradient $\lambda w_t$ is added to the gradient;
            None for none.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.
    """

    learning_rate: ma.Number = ma.number(1.0)
    weight_decay: ma.OptionalNumber = ma.number(None, optional=True)
    mask: ma.Mask = ma.mask()

    def directions(self):
        penalty = [] if self.weight_decay is None else [self._part(ma.AddDecayedWeights)]
        return [*penalty, *super().directions()]


class DoG(AbstractPenalized, AbstractDoG, ma.AbstractRated):
    r"""SGD without a learning rate to tune: the step size is distance over gradients (DoG).

        optimizer = ParamAverage(DoG())  # evaluate the average: optimizer.eval_params(state, params)

    $$
    \begin{aligned}
    g_t &= \nabla f(w_t) + \lambda w_t \\
    \bar r_t &= \max(\bar r_{t-1}, \|w_t - w_0\|), \qquad G_t = G_{t-1} + \|g_t\|^2 \\
    w_{t+1} &= w_t - \eta\, \bar r_t\, g_t / \sqrt{G_t + \varepsilon}
    \end{aligned}
    $$

    with $w_0$ the initial parameters, and norms over all parameters. `init_step` sets $\bar r_0$. The authors recommend
    evaluating an average of the parameters.

    Args:
        learning_rate: factor $\eta$ of the step size, a number or a schedule, for example one that decays to zero.
        init_step: the first step: `("distance", r)` for $\bar r_0 = r$, `("heuristic", a)` for
            $\bar r_0 = a (1 + \|w_0\|)$, or `("learning_rate", lr)` for a first step size of `lr`. The paper recommends
            the heuristic with 1e-6, or with 1e-4 for models with batch normalization.
        eps: $\varepsilon$, added to the sum of squares inside the root.
        weight_decay: coefficient $\lambda$ of the $L_2$ penalty, whose gradient $\lambda w_t$ is added to the gradient;
            None for none.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.

    References:
        Ivgi, Hinder and Carmon, [DoG is SGD's Best Friend: A Parameter-Free Dynamic Step Size
        Schedule](https://arxiv.org/abs/2302.12022), 2023.
    """

    direction = ScaleByDoG
    init_step: Any = eqx.field(default=("heuristic", 1e-6), converter=as_initial_step)


class DoWG(AbstractPenalized, AbstractDoWG, ma.AbstractRated):
    r"""SGD without a learning rate to tune: distance over weighted gradients (DoWG), with longer steps than DoG.

        optimizer = DoWG()

    $$
    \begin{aligned}
    g_t &= \nabla f(w_t) + \lambda w_t \\
    \bar r_t^2 &= \max(\bar r_{t-1}^2, \|w_t - w_0\|^2), \qquad v_t = v_{t-1} + \bar r_t^2 \|g_t\|^2 \\
    w_{t+1} &= w_t - \eta\, \bar r_t^2\, g_t / (\sqrt{v_t} + \varepsilon)
    \end{aligned}
    $$

    with $w_0$ the initial parameters, and norms over all parameters.

    Args:
        learning_rate: factor $\eta$ of the step size, a number or a schedule, for example one that decays to zero.
        init_estim_sq_dist: initial estimate $\bar r_0^2$ of the squared distance to the solution; by default `eps`.
        eps: $\varepsilon$, added to the denominator outside the root.
        weight_decay: coefficient $\lambda$ of the $L_2$ penalty, whose gradient $\lambda w_t$ is added to the gradient;
            None for none.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.

    References:
        Khaled, Mishchenko and Jin, [DoWG Unleashed: An Efficient Universal Parameter-Free Gradient Descent
        Method](https://arxiv.org/abs/2305.16284), 2023.
    """

    direction = ScaleByDoWG
