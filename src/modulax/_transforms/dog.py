"""DoG and DoWG: step sizes from the distance travelled so far, without a learning rate."""

from typing import Any, ClassVar, Literal, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Bool, Float, PyTree

from .._protocol.fields import Number, OptionalNumber, number, required_number
from .._protocol.hyperparameters import AbstractHyperparameters
from .._protocol.leafwise import AbstractLeafwise
from .._support.arithmetic import abs_sq, default_float, ratio, safe_sqrt
from .._support.module import AbstractState, like_params, shared
from .._support.types import Shared
from ..tree._math import norm, total


class InitialStep(AbstractHyperparameters):
    """The first step of `DoG`. A pair `(kind, value)` is converted to one.

    Args:
        kind: meaning of the value: `"distance"`, the initial estimate of the distance to the solution;
            `"learning_rate"`, the first step size; `"heuristic"`, the initial distance relative to 1 + the norm of the
            parameters.
        value: the value.
    """

    kind: Literal["distance", "learning_rate", "heuristic"] = eqx.field(static=True)
    value: Number = required_number()


def as_initial_step(x: Any) -> Any:
    """Converts a pair to an `InitialStep`, and returns anything else unchanged."""
    return InitialStep(*x) if isinstance(x, (tuple, list)) and len(x) == 2 else x


def check_initial_step(owner: object, x: Any) -> None:
    """Raises an error for anything that isn't an `InitialStep`."""
    if not isinstance(x, InitialStep):
        raise ValueError(
            f'`{type(owner).__name__}(init_step=...)` must be a pair such as `("heuristic", 1e-6)`, got {x!r}.'
        )


class DoGState(AbstractState):
    """State of `ScaleByDoG`: initial parameters, largest distance from them, and sum of squared gradients."""

    optax_fields: ClassVar[tuple[str, ...]] = ("is_init_step", "init_params", "max_dist", "sum_sq_norm_grads")

    init_params: PyTree = like_params(copied=True)
    is_init_step: Shared[Bool[Array, ""]] = shared(None, kw_only=True)  # the first field in optax
    max_dist: Shared[Float[Array, ""]] = shared(None, kw_only=True)
    sum_sq_norm_grads: Shared[Float[Array, ""]] = shared(None, kw_only=True)


class DoGNumbers(NamedTuple):
    """Numbers shared by all leaves in a step of DoG: the step size and the new shared state."""

    rate: Array
    max_dist: Array
    sum_sq_norm_grads: Array


class ScaleByDoG(AbstractLeafwise[DoGState]):
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
            $\bar r_0 = a (1 + \|w_0\|)$, or `("learning_rate", eta)` for a first step of $\eta g_0$. The paper
            recommends the heuristic with 1e-6, or with 1e-4 for models with batch normalization.
        eps: $\varepsilon$, added to the sum of squares inside the root.

    References:
        Ivgi, Hinder and Carmon, [DoG is SGD's Best Friend: A Parameter-Free Dynamic Step Size
        Schedule](https://arxiv.org/abs/2302.12022), 2023.
    """

    needs: ClassVar[tuple[str, ...]] = ("params",)

    init_step: Any = eqx.field(converter=as_initial_step)
    eps: Number = number(1e-8)

    def check(self) -> None:
        check_initial_step(self, self.init_step)

    def init_leaf(self, p):
        return DoGState(init_params=jnp.array(p))

    def init_shared(self, params):
        first = {
            "distance": lambda value: value,
            "heuristic": lambda value: value * (1 + norm(params)),
            # The first step sets the distance, which is measured from the second step on.
            "learning_rate": jnp.zeros_like,
        }
        return {
            "is_init_step": jnp.array(True),
            "max_dist": jnp.array(first[self.init_step.kind](self.init_step.value), default_float()),
            "sum_sq_norm_grads": jnp.zeros((), default_float()),
        }

    def survey(self, count, state, updates, params, **extra):
        del count, extra
        distance = norm(jtu.tree_map(jnp.subtract, params, state.init_params))
        max_dist = jnp.maximum(state.max_dist, distance)
        squares = state.sum_sq_norm_grads + total(abs_sq, updates)
        # With `eps` of zero, the sum is zero until the first nonzero gradient.
        rate = ratio(max_dist, safe_sqrt(self.eps + squares))
        if self.init_step.kind == "learning_rate":
            rate = jnp.where(state.is_init_step, self.init_step.value, rate)
        return DoGNumbers(rate, max_dist, squares)

    def share(self, now):
        return {
            "is_init_step": jnp.array(False),
            "max_dist": now.max_dist,
            "sum_sq_norm_grads": now.sum_sq_norm_grads,
        }

    def update_leaf(self, now, g, s, p):
        del p
        return now.rate * g, s


class DoWGState(AbstractState):
    """State of `ScaleByDoWG`: initial parameters, weighted sum of squared gradients, and largest squared distance."""

    optax_fields: ClassVar[tuple[str, ...]] = ("init_params", "weighted_sq_norm_grads", "estim_sq_dist")

    init_params: PyTree = like_params(copied=True)
    weighted_sq_norm_grads: Shared[Float[Array, ""]] = shared(None)
    estim_sq_dist: Shared[Float[Array, ""]] = shared(None)


class DoWGNumbers(NamedTuple):
    """Numbers shared by all leaves in a step of DoWG: the step size and the new shared state."""

    rate: Array
    weighted_sq_norm_grads: Array
    estim_sq_dist: Array


class ScaleByDoWG(AbstractLeafwise[DoWGState]):
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

    needs: ClassVar[tuple[str, ...]] = ("params",)

    init_estim_sq_dist: OptionalNumber = number(None, optional=True)
    eps: Number = number(1e-4)

    def init_leaf(self, p):
        return DoWGState(init_params=jnp.array(p))

    def init_shared(self, params):
        del params
        first = self.eps if self.init_estim_sq_dist is None else self.init_estim_sq_dist
        return {
            "weighted_sq_norm_grads": jnp.zeros((), default_float()),
            "estim_sq_dist": jnp.array(first, default_float()),
        }

    def survey(self, count, state, updates, params, **extra):
        del count, extra
        way = jtu.tree_map(jnp.subtract, params, state.init_params)
        squared = jnp.maximum(state.estim_sq_dist, total(abs_sq, way))
        weighted = state.weighted_sq_norm_grads + squared * total(abs_sq, updates)
        return DoWGNumbers(ratio(squared, self.eps + safe_sqrt(weighted)), weighted, squared)

    def share(self, now):
        return {"weighted_sq_norm_grads": now.weighted_sq_norm_grads, "estim_sq_dist": now.estim_sq_dist}

    def update_leaf(self, now, g, s, p):
        del p
        return now.rate * g, s
