"""Functions smoothed by noise, whose derivatives need none of the function itself."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, ArrayLike, PyTree

from .._support.arguments import real
from .._support.arithmetic import at_least_float32, default_float, real_dtype
from .._support.checks import POSITIVE, check_integer, checked
from ..tree import random_like, sum as sum_of
from ..tree._math import widened
from ..tree._paths import leaves_with_paths
from ._noise import Gumbel

_GUMBEL = Gumbel()


def make_perturbed_fun(
    fun: Callable[[PyTree], PyTree],
    num_samples: int = 1000,
    sigma: ArrayLike = 0.1,
    noise: Any = _GUMBEL,
    use_baseline: bool = True,
) -> Callable[[Array, PyTree], PyTree]:
    r"""A function that is the mean of another one over noise in its input, and so is differentiable.

    Use it to train through what has no useful derivative: an argmax, a sort, a shortest path, a whole solver. With
    noise $z$ of the density $p$, and its mean over samples $z_1, \dots, z_n$,

    $$
    f_\sigma(x) = \mathbb E\, f(x + \sigma z) \approx \frac1n \sum_i f(x + \sigma z_i), \qquad
    \partial f_\sigma(x) \approx \frac1n \sum_i \bigl(f(x + \sigma z_i) - b\bigr)\,
        \Bigl(-\frac{1}{\sigma} \nabla \log p(z_i)\Bigr)^{\!\top}
    $$

    Both are right on average. The function $f$ is only evaluated, never differentiated by its input. The derivatives
    are those that JAX takes of the result, in forward or reverse mode, of any order, by `sigma` as well, and by
    whatever else $f$ depends on. With the baseline $b = f(x)$ they vary less, for one more evaluation.

        perturbed_argmax = make_perturbed_fun(lambda x: jax.nn.one_hot(jnp.argmax(x), x.size), sigma=0.5)
        jacobian = jax.jacobian(perturbed_argmax, argnums=1)(key, x)

    Args:
        fun: $f$, from a tree of arrays to a tree of arrays. It is mapped over the samples by `jax.vmap`. Leaves of its
            input that are not floating arrays are not perturbed.
        num_samples: $n$. The error of the mean falls with its square root.
        sigma: $\sigma$, the scale of the noise: the smaller, the closer to $f$ and the noisier the derivatives.
        noise: the distribution of $z$: `Gumbel()`, `Normal()`, or whatever has the two methods of `AbstractNoise`.
        use_baseline: whether to evaluate $f(x)$ and to subtract it in the derivatives; otherwise $b$ is zero.

    Returns:
        A function of a random key and $x$. Its result has the dtypes of `fun`'s; the mean of integers is a float.

    References:
        Berthet et al., [Learning with Differentiable Perturbed Optimizers](https://arxiv.org/abs/2002.08676), 2020;
        Foerster et al., [DiCE: The Infinitely Differentiable Monte Carlo
        Estimator](https://arxiv.org/abs/1802.05098), 2018, for derivatives of any order
    """
    owner = "make_perturbed_fun"
    check_integer(owner, "num_samples", num_samples)
    if lacking := [name for name in ("sample", "log_prob") if not hasattr(noise, name)]:
        raise ValueError(
            f"`{owner}(noise=...)` needs the method `{lacking[0]}`, such as `Gumbel()` has; got {noise!r}."
        )
    sigma = np.asarray(sigma) if isinstance(sigma, int | float) else sigma
    (sigma,) = real(owner, sigma=checked(f"`{owner}(sigma=...)`", sigma, POSITIVE, deferred=False))
    if sigma.shape != ():
        raise ValueError(f"`{owner}(sigma=...)` must be a number, got an array of shape {sigma.shape}.")

    def evaluated(moving: PyTree, fixed: PyTree) -> PyTree:
        return jtu.tree_map(jnp.asarray, fun(eqx.combine(moving, fixed)))

    def perturbed(key: Array, x: PyTree) -> PyTree:
        moving, fixed = eqx.partition(x, eqx.is_inexact_array)
        _check_input(owner, moving)
        baseline = evaluated(jax.lax.stop_gradient(moving), fixed) if use_baseline else None

        def one(key: Array) -> tuple[PyTree, PyTree]:
            """What is averaged, in at least float32; and the value itself, for its dtype."""
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
    """Refuses an input without a floating array, and one with a complex one."""
    found = leaves_with_paths(moving)
    if not found:
        raise ValueError(f"`{owner}`: the input must have a leaf that is a floating array, to which noise is added.")
    for path, x in found:
        if jnp.iscomplexobj(x):
            raise ValueError(
                f"`{owner}`: the input `{path}` is complex, and noise is real. Give its real and its imaginary part as "
                "two leaves."
            )


def _at_sample(x: PyTree, sigma: Array, z: PyTree) -> PyTree:
    """The perturbed input, through which no derivative is taken."""

    def leaf(x: Array, z: Array) -> Array:
        return jax.lax.stop_gradient((x.astype(z.dtype) + sigma.astype(z.dtype) * z).astype(x.dtype))

    return jtu.tree_map(leaf, x, z)


def _log_density(noise: Any, x: PyTree, sigma: Array, z: PyTree) -> Array:
    r"""The logarithm of the density of the perturbed input $y$, as a function of $x$ and $\sigma$ with $y$ held."""

    def leaf(x: Array, z: Array) -> Array:
        # (y - x) / σ, written so that nothing cancels; where x is infinite so is y, whatever the noise.
        x = jnp.where(jnp.isfinite(x), x, jnp.zeros_like(x)).astype(z.dtype)
        scale = sigma.astype(z.dtype)
        moved = (jax.lax.stop_gradient(scale) * z - (x - jax.lax.stop_gradient(x))) / scale
        return jnp.sum(noise.log_prob(moved) - jnp.log(scale))

    return sum_of(jtu.tree_map(leaf, x, z))


@jax.custom_jvp
def _vanishing(log_density: Array, x: Array) -> Array:
    r"""$(p / p_0 - 1)\, x$, where $p_0$ is the density $p$ without derivatives: zero, with the derivatives of $p$."""
    # A choice of zero or zero, which XLA leaves out: JAX 0.10 cannot differentiate a jitted `vmap` of a function whose
    # derivatives are mapped and whose value, a constant, is not.
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
    return x.astype(at_least_float32(_dtype_of_mean(x)))


def _dtype_of_mean(x: Array) -> Any:
    return x.dtype if jnp.issubdtype(x.dtype, jnp.inexact) else default_float()
