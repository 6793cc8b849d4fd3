"""Three Monte Carlo gradient estimators: they differentiate the density, the samples, or take differences."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from .._plugin.arguments import check_integer
from .._plugin.arrays import Params
from ._draws import draw, in_dtypes, scalar, widened_params
from ._gaussian import draw_noise, entries, is_gaussian


def score_function_jacobians(
    function: Callable[[Array], ArrayLike],
    params: Params,
    dist_builder: Callable[..., Any],
    rng: PRNGKeyArray,
    num_samples: int,
) -> tuple[Float[Array, "num_samples ..."], ...]:
    r"""Estimate the gradient of an expectation by the score function (REINFORCE, likelihood-ratio gradient).

    For every sample $x_i \sim p_\theta$, an estimate of $\nabla_\theta \, \mathbb E_{p_\theta}[f(x)]$:

    $$
    f(x_i) \, \nabla_\theta \log p_\theta(x_i)
    $$

    The function need not be differentiable or continuous, and samples may be discrete. The price is high variance: a
    constant offset of the function has no effect in expectation, but multiplies the noise. `control_variates_jacobians`
    with `moving_avg_baseline` removes that part.

    Args:
        function: $f$, which maps one sample to a real number. It must not depend on the parameters in any other way.
        params: $\theta$, a tuple of arrays of floats.
        dist_builder: function such that `dist_builder(*params)` is the distribution $p_\theta$, an object with
            `sample(shape, seed)` and `log_prob(x)`.
        rng: a random key.
        num_samples: number of samples.

    Returns:
        For each parameter, an array of shape `(num_samples, *param.shape)` and its dtype. The mean over the first axis
        is the gradient estimate; the variance over it is the variance of a single sample.

    Raises:
        ValueError: if `params` is not a tuple of arrays of floats, `num_samples` is not a positive integer, the
            distribution lacks a method, or the function or the log-density doesn't return a scalar.

    References:
        Mohamed, Rosca, Figurnov and Mnih, [Monte Carlo Gradient Estimation in Machine
        Learning](https://jmlr.org/papers/v21/19-346.html), 2020, section 4
    """
    owner = "score_function_jacobians"
    dtypes, params = widened_params(owner, params)
    dist = dist_builder(*params)
    samples = draw(owner, dist, rng, num_samples)
    if not callable(getattr(dist, "log_prob", None)):
        raise ValueError(
            f"`{owner}` needs `log_prob(x)`, but the `{type(dist).__name__}` from `dist_builder` has none."
        )
    log_prob = scalar(
        f"`log_prob` of the `{type(dist).__name__}` that `dist_builder` of `{owner}` returned",
        lambda params, x: dist_builder(*params).log_prob(x),
        is_differentiated=True,
        hint=" Make independent entries one event: `.to_event(1)` in numpyro, `Independent` in distrax.",
    )
    scores = jax.vmap(jax.grad(log_prob), (None, 0))(params, samples)
    values = jax.vmap(scalar(f"`{owner}(function=...)`", function))(samples)
    return in_dtypes(dtypes, [_along_first(values, score) for score in scores])


def _along_first(factors: Array, x: Array) -> Array:
    """Multiply each entry along the first axis by its own factor."""
    return factors.astype(x.dtype).reshape(-1, *(1,) * (x.ndim - 1)) * x


def pathwise_jacobians(
    function: Callable[[Array], ArrayLike],
    params: Params,
    dist_builder: Callable[..., Any],
    rng: PRNGKeyArray,
    num_samples: int,
) -> tuple[Float[Array, "num_samples ..."], ...]:
    r"""Estimate the gradient of an expectation by the reparameterization trick (pathwise gradient).

    A sample is a function $x_i = g(\varepsilon_i; \theta)$ of the parameters and of noise that does not depend on them.
    For every sample, an estimate of $\nabla_\theta \, \mathbb E_{p_\theta}[f(x)]$:

    $$
    \nabla_\theta \, f(g(\varepsilon_i; \theta))
    $$

    The function must be differentiable and without jumps, and samples must be continuous. For smooth functions the
    variance is usually the smallest of the three estimators by far.

    Args:
        function: $f$, which maps one sample to a float. It must not depend on the parameters in any other way.
        params: $\theta$, a tuple of arrays of floats.
        dist_builder: function such that `dist_builder(*params)` is the distribution $p_\theta$, an object with a
            `sample(shape, seed)` that JAX can differentiate with respect to the parameters.
        rng: a random key.
        num_samples: number of samples.

    Returns:
        For each parameter, an array of shape `(num_samples, *param.shape)` and its dtype. The mean over the first axis
        is the gradient estimate; the variance over it is the variance of a single sample.

    Raises:
        ValueError: if `params` is not a tuple of arrays of floats, `num_samples` is not a positive integer, the
            distribution has no suitable `sample`, the samples are not floats, or the function doesn't return a scalar
            float.

    References:
        Mohamed, Rosca, Figurnov and Mnih, [Monte Carlo Gradient Estimation in Machine
        Learning](https://jmlr.org/papers/v21/19-346.html), 2020, section 5
    """
    owner = "pathwise_jacobians"
    dtypes, params = widened_params(owner, params)

    def drawn(params: Params) -> Array:
        return draw(owner, dist_builder(*params), rng, num_samples)

    samples = drawn(params)
    if not jnp.issubdtype(samples.dtype, jnp.floating):
        raise ValueError(
            f"`{owner}` differentiates the samples, which must be floats, got {samples.dtype}. "
            "For discrete samples, use `score_function_jacobians`."
        )
    function = scalar(f"`{owner}(function=...)`", function, is_differentiated=True)
    slopes = jax.vmap(jax.grad(function))(samples)
    dist = dist_builder(*params)
    if is_gaussian(dist):
        noise = draw_noise(dist, (num_samples,), rng)
        return in_dtypes(dtypes, _by_params(dist_builder, params, slopes, slopes * noise))
    # Reverse mode through the function, once per sample; forward mode through the samples, once per parameter.
    return in_dtypes(dtypes, jax.jacfwd(lambda params: jnp.sum(_flat(drawn(params) * slopes), 1))(params))


def _by_params(builder: Callable[..., Any], params: Params, by_mean: Array, by_log_scale: Array) -> Sequence[Array]:
    """Pull Jacobians with respect to mean and log-scale of each entry back to the parameters of the builder."""
    _, pull = jax.vjp(lambda *params: entries(builder(*params))[1:], *params)
    return jax.vmap(pull)((by_mean, by_log_scale))


def measure_valued_jacobians(
    function: Callable[[Array], ArrayLike],
    params: Params,
    dist_builder: Callable[..., Any],
    rng: PRNGKeyArray,
    num_samples: int,
    coupling: bool = True,
) -> tuple[Float[Array, "num_samples ..."], ...]:
    r"""Estimate the gradient of an expectation under a Gaussian by measure-valued derivatives.

    The derivative of the density with respect to a parameter of the $d$-th entry is a multiple of the difference of two
    densities, which differ from the Gaussian only in the $d$-th entry of $x$. With all other entries as in a sample
    $x_i$,

    $$
    \begin{aligned}
    \partial_{\mu_d} &: \quad
        \frac{f(x_d = \mu_d + \sigma_d w) - f(x_d = \mu_d - \sigma_d w')}{\sigma_d \sqrt{2 \pi}},
        && w, w' \sim \text{Weibull}(\text{shape } 2, \text{scale } \sqrt 2) \\
    \partial_{\log \sigma_d} &: \quad f(x_d = \mu_d + \sigma_d m) - f(x_d = \mu_d + \sigma_d n),
        && m \sim \text{double-sided Maxwell}, \; n \sim \mathcal N(0, 1)
    \end{aligned}
    $$

    As with `score_function_jacobians` the function may be discontinuous, but a constant offset adds no noise. The price
    is four evaluations of the function per entry and sample.

    Args:
        function: $f$, which maps one sample to a real number. It must not depend on the parameters in any other way.
        params: $\theta$, a tuple of arrays of floats.
        dist_builder: function such that `dist_builder(*params)` is a `multi_normal`: `multi_normal` itself, or a
            function that computes mean and log-scale from other parameters.
        rng: a random key.
        num_samples: number of samples.
        coupling: whether the two points of a difference share their noise: $w' = w$, and $n = u m$ with $u$ uniform.
            For smooth functions this usually reduces the variance, most of all for the scale.

    Returns:
        For each parameter, an array of shape `(num_samples, *param.shape)` and its dtype. The mean over the first axis
        is the gradient estimate; the variance over it is the variance of a single sample.

    Raises:
        ValueError: if `params` is not a tuple of arrays of floats, `num_samples` is not a positive integer, the
            distribution is not a `multi_normal`, or the function doesn't return a real scalar.

    References:
        Mohamed, Rosca, Figurnov and Mnih, [Monte Carlo Gradient Estimation in Machine
        Learning](https://jmlr.org/papers/v21/19-346.html), 2020, section 6
    """
    owner = "measure_valued_jacobians"
    dtypes, params = widened_params(owner, params)
    check_integer(owner, "num_samples", num_samples)
    dist = dist_builder(*params)
    if not is_gaussian(dist):
        raise ValueError(
            f"`{owner}` is for Gaussians only: `dist_builder(*params)` must return `multi_normal(loc, log_scale)`, "
            f"got `{type(dist).__name__}`."
        )
    _, mean, log_scale = entries(dist)
    function = scalar(f"`{owner}(function=...)`", function)
    shape, dtype = (num_samples, *mean.shape), mean.dtype
    base, first, second, third, fourth = jax.random.split(rng, 5)
    samples = _flat(mean[None] + draw_noise(dist, (num_samples,), base))

    def values(noise: Array) -> Array:
        """Evaluate every sample with each entry in turn replaced by one with this noise."""
        replaced = _flat(mean[None] + jnp.exp(log_scale)[None] * noise)
        is_replaced = jnp.eye(mean.size, dtype=bool)

        def of_sample(x: Array, new: Array) -> Array:
            rows = jnp.where(is_replaced, new[None], x[None])
            return jax.vmap(lambda row: function(row.reshape(mean.shape)))(rows)

        return jax.vmap(of_sample)(samples, replaced).astype(dtype).reshape(shape)

    weibull = _weibull(first, shape, dtype)
    other_weibull = weibull if coupling else _weibull(second, shape, dtype)
    maxwell = jax.random.double_sided_maxwell(third, 0.0, 1.0, shape, dtype)
    normal = maxwell * jax.random.uniform(fourth, shape, dtype) if coupling else jax.random.normal(fourth, shape, dtype)
    by_mean = (values(weibull) - values(-other_weibull)) * jnp.exp(-log_scale)[None] / math.sqrt(2 * math.pi)
    by_log_scale = values(maxwell) - values(normal)
    return in_dtypes(dtypes, _by_params(dist_builder, params, by_mean, by_log_scale))


def _weibull(key: PRNGKeyArray, shape: tuple[int, ...], dtype: Any) -> Array:
    """Samples with density $w e^{-w^2 / 2}$.

    It is also a Rayleigh distribution, but `jax.random.rayleigh` is infinite now and then.
    """
    return jax.random.weibull_min(key, math.sqrt(2), 2.0, shape, dtype)


def _flat(x: Array) -> Array:
    """Flatten each sample to a vector."""
    return x.reshape(len(x), -1)
