"""Control variates: subtract noise of known expectation to reduce the variance of a gradient estimate."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from .._plugin.arguments import DECAY, check_integer, floating, require
from .._plugin.arrays import Params, moment, ratio
from ..numerics import at_least_float32, safe_increment
from ._draws import draw, in_dtypes, scalar, widened_params
from ._gaussian import entries, multi_normal

ControlVariate: TypeAlias = tuple[Callable[..., Array], Callable[..., Array], Callable[..., Any]]


def control_delta_method(function: Callable[[Array], ArrayLike]) -> ControlVariate:
    r"""Make a control variate from the second-order Taylor expansion of a function at the mean of a Gaussian.

    With the mean $\mu$ and the standard deviation $\sigma$ of a Gaussian with independent entries,

    $$
    \begin{aligned}
    h(x; \theta) &= f(\mu) + \nabla f(\mu)^\top (x - \mu) + \tfrac12 (x - \mu)^\top \nabla^2 f(\mu) \, (x - \mu) \\
    \mathbb E[h(x; \theta)] &= f(\mu) + \tfrac12 \sum\nolimits_d \sigma_d^2 \, \partial_d^2 f(\mu)
    \end{aligned}
    $$

    It helps with every estimator if the function is about quadratic within a few standard deviations of the mean. For a
    quadratic function it removes all noise.

    Args:
        function: $f$, which maps one sample to a float and is twice differentiable; `control_variates_jacobians`
            differentiates it a third time.

    Returns:
        A control variate, see `control_variates_jacobians`, for the distribution `multi_normal(*params)` only: its
        parameters must be the mean and the log-scale. It has no state.

    Raises:
        ValueError: when the control variate is called, if the parameters are not a mean and a log-scale, the sample has
            another shape, or the function doesn't return a scalar float.

    References:
        Paisley, Blei and Jordan, [Variational Bayesian Inference with Stochastic
        Search](https://icml.cc/2012/papers/687.pdf), 2012; Mohamed, Rosca, Figurnov and Mnih, [Monte Carlo Gradient
        Estimation in Machine Learning](https://jmlr.org/papers/v21/19-346.html), 2020, section 7.4
    """
    function = scalar("`control_delta_method(function=...)`", function, is_differentiated=True)

    def derivatives(mean: Array, step: Array) -> tuple[Array, Array, Array]:
        """Return the value at the mean, and the first and second directional derivative along a step."""

        def along(x: Array) -> tuple[Array, Array]:
            return jax.jvp(function, (x,), (step,))

        (value, first), (_, second) = jax.jvp(along, (mean,), (step,))
        return value, first, second

    def expansion(params: Params, sample: ArrayLike, state: Any = None) -> Array:
        r"""The Taylor expansion $h(x; \theta)$ at a sample."""
        del state
        mean, _ = _mean_and_log_scale(params)
        sample = jnp.asarray(sample, mean.dtype)
        if sample.shape != mean.shape:
            raise ValueError(f"`control_delta_method` needs a `sample` of shape {mean.shape}, got {sample.shape}.")
        value, first, second = derivatives(mean, sample - mean)
        return value + first + second / 2

    def expected_expansion(params: Params, state: Any = None) -> Array:
        """The expectation of the Taylor expansion."""
        del state
        mean, log_scale = _mean_and_log_scale(params)
        steps = jnp.diag(jnp.exp(log_scale).ravel()).reshape(-1, *mean.shape)
        curvatures = jax.vmap(lambda step: derivatives(mean, step)[2])(steps)
        return function(mean) + jnp.sum(curvatures) / 2

    def update_state(params: Params, samples: ArrayLike, state: Any = None) -> Any:
        del params, samples
        return state

    return expansion, expected_expansion, update_state


def _mean_and_log_scale(params: Params) -> tuple[Array, Array]:
    """Return the mean and log-scale of each entry in at least float32."""
    if not isinstance(params, (tuple, list)) or len(params) != 2:
        raise ValueError("`control_delta_method` is for `multi_normal` only: `params` must be `(loc, log_scale)`.")
    return entries(multi_normal(*params))[1:]


def moving_avg_baseline(
    function: Callable[[Array], ArrayLike],
    decay: ArrayLike = 0.99,
    zero_debias: bool = True,
    use_decay_early_training_heuristic: bool = True,
) -> ControlVariate:
    r"""Make a moving-average baseline, a control variate for `score_function_jacobians` (REINFORCE).

    The baseline is an exponential moving average of the function values. Subtracting it removes the noise that a
    constant offset of the function causes. The other two estimators don't depend on such an offset, so it has no effect
    there. In step $t = 0, 1, \dots$ the average $b$ is updated with the mean $\bar f_t$ of the function over the
    samples:

    $$
    b_{t+1} = b_t + \frac{1 - \beta_t}{1 - \prod_{k \le t} \beta_k} \, (\bar f_t - b_t),
    \qquad \beta_t = \min\left(\beta, \frac{1 + t}{10 + t}\right)
    $$

    Args:
        function: $f$, which maps one sample to a real number.
        decay: $\beta \in [0, 1)$, exponential decay rate of the average, over about $1 / (1 - \beta)$ steps.
        zero_debias: whether to correct the bias towards the initial zero; otherwise the denominator is 1.
        use_decay_early_training_heuristic: whether to use a lower decay rate in the first steps; otherwise $\beta_t =
            \beta$.

    Returns:
        A control variate, see `control_variates_jacobians`. Its state is a pair of the average and the number of steps,
        initially `(jnp.zeros(()), jnp.zeros((), int))` or None.

    Raises:
        ValueError: if `decay` is outside $[0, 1)$; and, when the control variate is called, if the function doesn't
            return a real scalar or the average in the state is not a float.

    References:
        Williams, [Simple Statistical Gradient-Following Algorithms for Connectionist Reinforcement
        Learning](https://doi.org/10.1007/BF00992696), 1992
    """
    decay = require("`moving_avg_baseline(decay=...)`", _number(decay), DECAY, deferred=False)
    values_of = jax.vmap(scalar("`moving_avg_baseline(function=...)`", function))

    def average(params: Params, sample: ArrayLike, state: Any = None) -> Array:
        del params, sample
        return _average_and_count(state)[0]

    def expected_average(params: Params, state: Any = None) -> Array:
        del params
        return _average_and_count(state)[0]

    def update_state(params: Params, samples: ArrayLike, state: Any = None) -> tuple[Array, Array]:
        del params
        values = values_of(jnp.asarray(samples))
        mean = jnp.mean(values.astype(at_least_float32(values.dtype)))
        value, count = _average_and_count(state, mean.dtype)
        beta, t = jnp.asarray(decay, mean.dtype), count.astype(mean.dtype)
        now = jnp.minimum(beta, (1 + t) / (10 + t)) if use_decay_early_training_heuristic else beta
        weight = 1 - now
        if zero_debias:
            weight = weight / _total_weight(beta, t, early=use_decay_early_training_heuristic)
        value = moment(1 - weight, value.astype(mean.dtype), mean, weight).astype(value.dtype)
        return value, safe_increment(count)

    return average, expected_average, update_state


def _average_and_count(state: Any, dtype: Any = float) -> tuple[Array, Array]:
    """Unpack the state of a moving average; None starts one of this dtype."""
    value, count = (jnp.zeros((), dtype), jnp.zeros((), int)) if state is None else state
    (value,) = floating("moving_avg_baseline", average=value)
    return value, jnp.asarray(count)


def _number(x: ArrayLike) -> Any:
    """Convert a known number to an array, so that it can be checked; a tracer is returned unchanged."""
    return x if isinstance(x, Tracer) else np.asarray(x)


def _total_weight(decay: Array, t: Array, *, early: bool) -> Array:
    r"""Total weight of the values of the steps $0, \dots, t$: $1 - \prod_{k \le t} \beta_k$."""
    steps = t + 1
    # In the first n steps β_k = (1 + k) / (10 + k), whose product telescopes to that of j / (n + j) for j = 1, …, 9.
    n = jnp.clip(jnp.ceil((10 * decay - 1) / (1 - decay)), 0, steps) if early else jnp.zeros_like(steps)
    j = jnp.arange(1, 10, dtype=decay.dtype)
    log_product = (steps - n) * jnp.log(decay) + jnp.sum(jnp.log(j / (n + j)))
    return -jnp.expm1(log_product)


def control_variates_jacobians(
    function: Callable[[Array], ArrayLike],
    control_variate_from_function: Callable[[Callable[[Array], ArrayLike]], ControlVariate],
    grad_estimator: Callable[..., Sequence[Array]],
    params: Params,
    dist_builder: Callable[..., Any],
    rng: PRNGKeyArray,
    num_samples: int,
    control_variate_state: Any = None,
    estimate_cv_coeffs: bool = False,
    estimate_cv_coeffs_num_samples: int = 20,
) -> tuple[tuple[Float[Array, "num_samples ..."], ...], Any]:
    r"""Estimate the gradient of an expectation with a control variate, which reduces the variance of any estimator.

    A control variate $h$ is similar to the function $f$, but has a known expectation. With $\hat g$ the estimate from
    one sample $x_i$, and a coefficient $\beta$ that is 1 unless it is estimated, every sample gives

    $$
    \hat g[f] - \beta \left(\hat g[h] + \nabla_\theta \, h(x_i; \theta)
        - \nabla_\theta \, \mathbb E[h(x; \theta)]\right)
    $$

    The expression in parentheses has expectation zero, so the estimate stays unbiased for any $h$ and $\beta$. The
    variance is reduced if the function and the control variate are correlated.

    A control variate is a function of $f$ that returns three functions: `value(params, sample, state)` is $h(x;
    \theta)$, `expected_value(params, state)` is its expectation, and `update_state(params, samples, state)` returns the
    next state.

    Args:
        function: $f$, with the properties that `grad_estimator` requires.
        control_variate_from_function: `control_delta_method`, `moving_avg_baseline` or your own; set other arguments
            with `functools.partial(moving_avg_baseline, decay=0.9)`.
        grad_estimator: `score_function_jacobians`, `pathwise_jacobians`, `measure_valued_jacobians` or your own.
        params: $\theta$, a tuple of arrays of floats.
        dist_builder: function such that `dist_builder(*params)` is the distribution to sample from.
        rng: a random key.
        num_samples: number of samples.
        control_variate_state: state returned by the previous call, or None.
        estimate_cv_coeffs: whether to estimate, for each parameter, the $\beta$ that minimizes the variance summed over
            its entries. It is estimated from separate samples, so the gradient stays unbiased.
        estimate_cv_coeffs_num_samples: number of samples for estimating $\beta$, at least 2.

    Returns:
        The Jacobians, for each parameter an array of shape `(num_samples, *param.shape)` and its dtype; and the state
        of the control variate for the next call, updated with the samples.

    Raises:
        ValueError: if `control_variate_from_function` doesn't return three functions, `params` is not a tuple of arrays
            of floats, a sample count is too small, or the distribution or the function doesn't fit the estimator.

    References:
        Mohamed, Rosca, Figurnov and Mnih, [Monte Carlo Gradient Estimation in Machine
        Learning](https://jmlr.org/papers/v21/19-346.html), 2020, section 7
    """
    owner = "control_variates_jacobians"
    dtypes, params = widened_params(owner, params)
    value, expected_value, update_state = _functions_of(control_variate_from_function, function)
    state = control_variate_state

    def terms(rng: PRNGKeyArray, n: int) -> tuple[Array, Sequence[Array], list[Array]]:
        """Return the samples, the gradient estimates, and the terms whose expectation is zero."""
        samples = draw(owner, dist_builder(*params), rng, n)
        gradients = grad_estimator(function, params, dist_builder, rng, n)
        of_variate = grad_estimator(lambda x: value(params, x, state), params, dist_builder, rng, n)
        by_params = jax.vmap(jax.grad(value), (None, 0, None))(params, samples, state)
        expected = jax.grad(expected_value)(params, state)
        noise = [g + h - e[None] for g, h, e in zip(of_variate, by_params, expected, strict=True)]
        return samples, gradients, noise

    if estimate_cv_coeffs:
        check_integer(owner, "estimate_cv_coeffs_num_samples", estimate_cv_coeffs_num_samples, least=2)
        rng, rng_of_coefficients = jax.random.split(rng)
        _, gradients, noise = terms(rng_of_coefficients, estimate_cv_coeffs_num_samples)
        coefficients = [_coefficient(g, z) for g, z in zip(gradients, noise, strict=True)]
    else:
        coefficients = [1.0] * len(params)
    samples, gradients, noise = terms(rng, num_samples)
    jacobians = [g - c * z for g, c, z in zip(gradients, coefficients, noise, strict=True)]
    return in_dtypes(dtypes, jacobians), update_state(params, samples, state)


def _functions_of(from_function: Any, function: Callable[[Array], ArrayLike]) -> ControlVariate:
    """Build a control variate for the function, and check that it consists of three functions."""
    functions = from_function(function) if callable(from_function) else None
    if not isinstance(functions, (tuple, list)) or len(functions) != 3 or not all(map(callable, functions)):
        raise ValueError(
            "`control_variates_jacobians(control_variate_from_function=...)` must take a function and return three. "
            "Pass `control_delta_method` itself, not the result of calling it. To set other arguments, pass "
            "`functools.partial(moving_avg_baseline, decay=0.9)`."
        )
    value, expected_value, update_state = functions
    return value, expected_value, update_state


def _coefficient(gradients: Array, noise: Array) -> Array:
    """The coefficient of the noise that minimizes the sum of variances of the corrected gradients."""
    gradients, noise = (x - jnp.mean(x, 0, keepdims=True) for x in (gradients, noise))
    # Divide by the largest entry, so that the squares neither overflow nor underflow.
    largest = jnp.max(jnp.abs(noise), initial=0)
    unit = ratio(noise, largest)
    return ratio(ratio(jnp.sum(gradients * unit), jnp.sum(unit**2)), largest)
