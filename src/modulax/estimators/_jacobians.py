"""Three estimators of the gradient of an expectation, by what of the integrand they differentiate."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from .._support.checks import check_integer
from .._support.types import Params
from ._draws import draw, in_dtypes, scalar, widened_params
from ._gaussian import MultiNormal, draw_noise, entries


def score_function_jacobians(
    function: Callable[[Array], ArrayLike],
    params: Params,
    dist_builder: Callable[..., Any],
    rng: PRNGKeyArray,
    num_samples: int,
) -> tuple[Float[Array, "num_samples ..."], ...]:
    r"""The gradient of an expectation by the derivative of the density: also known as REINFORCE.

    For every sample $x_i \sim p_\theta$, an estimate of $\nabla_\theta \, \mathbb E_{p_\theta}[f(x)]$:

    $$
    f(x_i) \, \nabla_\theta \log p_\theta(x_i)
    $$

    Nothing is asked of the function, which may have jumps, and samples may be discrete. The price is variance: a
    constant added to the function changes nothing in expectation, but is multiplied with noise.
    `control_variates_jacobians` with a `moving_avg_baseline` takes that away.

    Args:
        function: $f$, which maps one sample to a real number. It must not depend on the parameters otherwise.
        params: $\theta$, a tuple of arrays of floats.
        dist_builder: `dist_builder(*params)` returns the distribution $p_\theta$, anything with `sample(shape, seed)`
            and `log_prob(x)`.
        rng: a random key.
        num_samples: how many samples are drawn.

    Returns:
        For every parameter, an array `[num_samples, *param.shape]` of its dtype. The mean over the first axis is the
        estimate of the gradient, the variance over it that of one sample's.

    References:
        Mohamed, Rosca, Figurnov and Mnih, [Monte Carlo Gradient Estimation in Machine
        Learning](https://jmlr.org/papers/v21/19-346.html), 2020, section 4
    """
    owner = "score_function_jacobians"
    dtypes, params = widened_params(owner, params)
    dist = dist_builder(*params)
    samples = draw(owner, dist, rng, num_samples)
    if not callable(getattr(dist, "log_prob", None)):
        raise ValueError(f"`{owner}` needs `log_prob(x)`, which the `{type(dist).__name__}` of `dist_builder` has not.")
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
    """Each entry of the first axis by a factor of its own."""
    return factors.astype(x.dtype).reshape(-1, *(1,) * (x.ndim - 1)) * x


def pathwise_jacobians(
    function: Callable[[Array], ArrayLike],
    params: Params,
    dist_builder: Callable[..., Any],
    rng: PRNGKeyArray,
    num_samples: int,
) -> tuple[Float[Array, "num_samples ..."], ...]:
    r"""The gradient of an expectation by the derivative of the samples: the reparametrization trick.

    A sample is a function $x_i = g(\varepsilon_i; \theta)$ of the parameters and of noise that does not depend on them.
    For every sample, an estimate of $\nabla_\theta \, \mathbb E_{p_\theta}[f(x)]$:

    $$
    \nabla_\theta \, f(g(\varepsilon_i; \theta))
    $$

    The function must be differentiable, without jumps, and samples must be continuous. For smooth functions the
    variance is usually by far the smallest.

    Args:
        function: $f$, which maps one sample to a float. It must not depend on the parameters otherwise.
        params: $\theta$, a tuple of arrays of floats.
        dist_builder: `dist_builder(*params)` returns the distribution $p_\theta$, anything with `sample(shape, seed)`
            whose result JAX can differentiate by the parameters.
        rng: a random key.
        num_samples: how many samples are drawn.

    Returns:
        For every parameter, an array `[num_samples, *param.shape]` of its dtype. The mean over the first axis is the
        estimate of the gradient, the variance over it that of one sample's.

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
            f"`{owner}` differentiates the samples, which must be floats, got {samples.dtype}: "
            "`score_function_jacobians` takes any."
        )
    function = scalar(f"`{owner}(function=...)`", function, is_differentiated=True)
    slopes = jax.vmap(jax.grad(function))(samples)
    dist = dist_builder(*params)
    if isinstance(dist, MultiNormal):
        noise = draw_noise(dist, (num_samples,), rng)
        return in_dtypes(dtypes, _by_params(dist_builder, params, slopes, slopes * noise))
    # The function was differentiated backwards, once for each sample; the samples are forwards, for each parameter.
    return in_dtypes(dtypes, jax.jacfwd(lambda params: jnp.sum(_flat(drawn(params) * slopes), 1))(params))


def _by_params(builder: Callable[..., Any], params: Params, by_mean: Array, by_log_scale: Array) -> Sequence[Array]:
    """Jacobians by what a Gaussian was built from, of those by the mean and the log-scale of each of its entries."""
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
    r"""The gradient of an expectation under a Gaussian by differences of the function.

    The derivative of the density by a parameter of the $d$-th entry is a multiple of the difference of two densities,
    which differ from the Gaussian only in the $d$-th entry of $x$. With all other entries as in a sample $x_i$,

    $$
    \begin{aligned}
    \partial_{\mu_d} &: \quad
        \frac{f(x_d = \mu_d + \sigma_d w) - f(x_d = \mu_d - \sigma_d w')}{\sigma_d \sqrt{2 \pi}},
        && w, w' \sim \text{Weibull}(\text{shape } 2, \text{scale } \sqrt 2) \\
    \partial_{\log \sigma_d} &: \quad f(x_d = \mu_d + \sigma_d m) - f(x_d = \mu_d + \sigma_d n),
        && m \sim \text{double-sided Maxwell}, \; n \sim \mathcal N(0, 1)
    \end{aligned}
    $$

    The function may have jumps, as that of `score_function_jacobians`, but a constant added to it adds no noise. The
    price is four evaluations of the function for every entry of every sample.

    Args:
        function: $f$, which maps one sample to a real number. It must not depend on the parameters otherwise.
        params: $\theta$, a tuple of arrays of floats.
        dist_builder: `dist_builder(*params)` returns what `multi_normal` returns: `multi_normal` itself, or a function
            that computes the mean and the log-scale from other parameters.
        rng: a random key.
        num_samples: how many samples are drawn.
        coupling: whether the two points of a difference share their noise, $w' = w$ and $n = u m$ with $u$ uniform. For
            smooth functions that usually makes the variance smaller, most of all by the scale.

    Returns:
        For every parameter, an array `[num_samples, *param.shape]` of its dtype. The mean over the first axis is the
        estimate of the gradient, the variance over it that of one sample's.

    References:
        Mohamed, Rosca, Figurnov and Mnih, [Monte Carlo Gradient Estimation in Machine
        Learning](https://jmlr.org/papers/v21/19-346.html), 2020, section 6
    """
    owner = "measure_valued_jacobians"
    dtypes, params = widened_params(owner, params)
    check_integer(owner, "num_samples", num_samples)
    dist = dist_builder(*params)
    if not isinstance(dist, MultiNormal):
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
        """The function of every sample, one entry after the other replaced by one with this noise."""
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
    r"""Of the density $w e^{-w^2 / 2}$. That is Rayleigh's too, but JAX's own `rayleigh` is infinite now and then."""
    return jax.random.weibull_min(key, math.sqrt(2), 2.0, shape, dtype)


def _flat(x: Array) -> Array:
    """Each sample as a vector."""
    return x.reshape(len(x), -1)
