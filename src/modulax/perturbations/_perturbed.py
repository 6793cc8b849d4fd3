"""Functions smoothed by noise, with derivatives that don't need those of the function.

The value of a sample is $f$ itself. Its derivatives come from `_vanishing`, a term that is always zero but has the
derivatives of the log-density ratio times $f - b$. JAX differentiates it like any other function, in any mode and
order.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, ArrayLike, PyTree

from .._plugin.arguments import POSITIVE, check_integer, real_arrays, require
from .._plugin.arrays import default_float, is_inexact_array, real_dtype
from .._plugin.trees import leaves_with_paths, widened
from ..numerics import at_least_float32
from ..tree import random_like, sum as sum_of
from ._noise import Gumbel

_GUMBEL = Gumbel()


def make_perturbed_fun(
    fun: Callable[[PyTree], PyTree],
    num_samples: int = 1000,
    sigma: ArrayLike = 0.1,
    noise: Any = _GUMBEL,
    use_baseline: bool = True,
) -> Callable[[Array, PyTree], PyTree]:
    r"""Make a function differentiable by averaging it over noise in its input (perturbed optimizers).

    Use it to train through functions without useful derivatives: an argmax, a sort, a shortest path, a combinatorial
    solver. With noise $z$ of density $p$ and samples $z_1, \dots, z_n$,

    $$
    f_\sigma(x) = \mathbb E\, f(x + \sigma z) \approx \frac1n \sum_i f(x + \sigma z_i), \qquad
    \partial f_\sigma(x) \approx \frac1n \sum_i \bigl(f(x + \sigma z_i) - b\bigr)\,
        \Bigl(-\frac{1}{\sigma} \nabla \log p(z_i)\Bigr)^{\!\top}
    $$

    Both estimates are unbiased. The function $f$ is evaluated, but never differentiated with respect to its input. JAX
    can differentiate the result in forward or reverse mode and to any order, with respect to $x$, `sigma`, and anything
    else that $f$ depends on. The baseline $b = f(x)$ reduces the variance of the derivatives at the cost of one more
    evaluation.

        perturbed_argmax = make_perturbed_fun(lambda x: jax.nn.one_hot(jnp.argmax(x), x.size), sigma=0.5)
        jacobian = jax.jacobian(perturbed_argmax, argnums=1)(key, x)

    Args:
        fun: $f$, a function from a pytree of arrays to a pytree of arrays. It is vectorized over the samples by
            `jax.vmap`. Leaves of its input that are not floating-point arrays are not perturbed.
        num_samples: $n$, number of Monte Carlo samples. The error falls with its square root.
        sigma: $\sigma$, scale of the noise: the smaller it is, the closer the result is to $f$ and the noisier its
            derivatives.
        noise: distribution of $z$: `Gumbel()`, `Normal()`, or any object with the two methods of `AbstractNoise`.
        use_baseline: whether to subtract the baseline $b = f(x)$ in the derivatives; otherwise $b = 0$.

    Returns:
        A function of a random key and $x$. Its result has the dtypes of the result of `fun`; integers become floats.

    Raises:
        ValueError: if `num_samples` is not a positive integer, `sigma` is not a positive scalar, or `noise` lacks a
            method; and, when the result is called, if $x$ holds no floating-point array or a complex one.

    References:
        Berthet et al., [Learning with Differentiable Perturbed Optimizers](https://arxiv.org/abs/2002.08676), 2020;
        Foerster et al., [DiCE: The Infinitely Differentiable Monte Carlo Estimator](https://arxiv.org/abs/1802.05098),
        2018, for derivatives of any order
    """
    owner = "make_perturbed_fun"
    check_integer(owner, "num_samples", num_samples)
    if lacking := [name for name in ("sample", "log_prob") if not hasattr(noise, name)]:
        raise ValueError(f"`{owner}(noise=...)` must have a method `{lacking[0]}`, like `Gumbel()`; got {noise!r}.")
    sigma = np.asarray(sigma) if isinstance(sigma, int | float) else sigma
    (sigma,) = real_arrays(owner, sigma=require(f"`{owner}(sigma=...)`", sigma, POSITIVE, deferred=False))
    if sigma.shape != ():
        raise ValueError(f"`{owner}(sigma=...)` must be a scalar, got an array of shape {sigma.shape}.")

    def evaluated(moving: PyTree, fixed: PyTree) -> PyTree:
        """Call the function on the whole input."""
        return jtu.tree_map(jnp.asarray, fun(eqx.combine(moving, fixed)))

    def perturbed(key: Array, x: PyTree) -> PyTree:
        """Average the function over noise in the floating-point leaves of `x`."""
        moving, fixed = eqx.partition(x, is_inexact_array)
        _check_input(owner, moving)
        baseline = evaluated(jax.lax.stop_gradient(moving), fixed) if use_baseline else None

        def one(key: Array) -> tuple[PyTree, PyTree]:
            """Evaluate one sample; return its terms of the average in at least float32, and the value for its dtype."""
            z = random_like(key, widened(moving), noise.sample)
            values = evaluated(_at_sample(moving, sigma, z), fixed)
            log_density = _log_density(noise, moving, sigma, z)
            wide = jtu.tree_map(_wide, values)
            differences = wide if baseline is None else jtu.tree_map(lambda v, b: v - _wide(b), wide, baseline)
            return jtu.tree_map(lambda v, d: v + _vanishing(log_density, d), wide, differences), values

        wide, values = jax.vmap(one)(jax.random.split(key, num_samples))
        return jtu.tree_map(lambda w, v: jnp.mean(w, axis=0).astype(_dtype_of_mean(v)), wide, values)

    return perturbed


def _check_input(owner: str, moving: PyTree) -> None:
    """Check that the input has a floating-point leaf, and no complex one."""
    found = leaves_with_paths(moving)
    if not found:
        raise ValueError(
            f"`{owner}`: the input must have a leaf that is a floating-point array, to which noise is added."
        )
    for path, x in found:
        if jnp.iscomplexobj(x):
            raise ValueError(
                f"`{owner}`: the input `{path}` is complex, but noise is real. Pass its real and imaginary parts as "
                "two leaves."
            )


def _at_sample(x: PyTree, sigma: Array, z: PyTree) -> PyTree:
    """Perturb the input; no derivative passes through."""

    def leaf(x: Array, z: Array) -> Array:
        return jax.lax.stop_gradient((x.astype(z.dtype) + sigma.astype(z.dtype) * z).astype(x.dtype))

    return jtu.tree_map(leaf, x, z)


def _log_density(noise: Any, x: PyTree, sigma: Array, z: PyTree) -> Array:
    r"""Log-density of the perturbed input $y$ as a function of $x$ and $\sigma$, with $y$ held constant."""

    def leaf(x: Array, z: Array) -> Array:
        # (y - x) / σ without cancellation: y - x is σ z up to derivatives. An infinite x has no derivative to keep.
        x = jnp.where(jnp.isfinite(x), x, jnp.zeros_like(x)).astype(z.dtype)
        scale = sigma.astype(z.dtype)
        moved = (jax.lax.stop_gradient(scale) * z - (x - jax.lax.stop_gradient(x))) / scale
        return jnp.sum(noise.log_prob(moved) - jnp.log(scale))

    return sum_of(jtu.tree_map(leaf, x, z))


@jax.custom_jvp
def _vanishing(log_density: Array, x: Array) -> Array:
    r"""Zero, with the derivatives of $(p / p_0 - 1)\, x$, where $p_0$ is the density $p$ treated as a constant."""
    # Selecting zeros or zeros costs nothing in the compiled program. A plain constant would not do: JAX 0.10 can't
    # differentiate a jitted `vmap` of a function whose derivatives are mapped while its value isn't.
    zeros = jnp.zeros_like(x)
    return jnp.where(jnp.isnan(log_density) | jnp.isnan(x), zeros, zeros)


@_vanishing.defjvp
def _vanishing_jvp(primals, tangents):
    (log_density, x), (d_log_density, dx) = primals, tangents
    excess = _vanishing(log_density, jnp.ones_like(log_density))
    slope = ((1 + excess) * d_log_density).astype(real_dtype(x.dtype))
    with jax.numpy_dtype_promotion("standard"):  # a real number times a complex array is complex
        return _vanishing(log_density, x), excess.astype(slope.dtype) * dx + slope * x


def _wide(x: Array) -> Array:
    """Cast to the dtype in which the mean is computed."""
    return x.astype(at_least_float32(_dtype_of_mean(x)))


def _dtype_of_mean(x: Array) -> Any:
    """The dtype of a mean: that of the array, or the default float for integers."""
    return x.dtype if jnp.issubdtype(x.dtype, jnp.inexact) else default_float()
