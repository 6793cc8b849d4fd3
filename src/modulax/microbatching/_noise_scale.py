"""The gradient noise scale: how large a batch is worth its cost.

Of n gradients g_i of microbatches, McCandlish et al. (2018, appendix A.1) compare the squared norms at two batch sizes,
here one microbatch and all of them:

    tr(Sigma) = (mean of |g_i|^2 - |mean|^2) / (1 - 1 / n),    |G|^2 = (n |mean|^2 - mean of |g_i|^2) / (n - 1).

As the sum of |g_i - mean|^2 is that of |g_i|^2 minus n |mean|^2, these are the sample variance, and |mean|^2 minus the
variance of the mean. In this form, `gradient_noise`, two large numbers do not cancel where there is little noise.
"""

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, PyTree

from .._support.arithmetic import abs_sq, at_least_float32, default_float
from .._support.checks import check_integer
from ..tree._leaves import leaves_of
from ..tree._math import norm, total
from ..tree._paths import leaves_with_paths


def gradient_noise(
    deviations: Float[Array, ""], mean_square: Float[Array, ""], n: ArrayLike
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    r"""Estimate $|G|^2$ and $\operatorname{tr} \Sigma$ without bias, in units of one microbatch.

    Args:
        deviations: $\sum_i |g_i - \bar g|^2$.
        mean_square: $|\bar g|^2$.
        n: number of microbatches; with less than two, the variance is zero.
    """
    count = jnp.asarray(n).astype(deviations.dtype)
    variance = deviations / jnp.maximum(count - 1, 1)
    return mean_square - variance / count, variance


def noise_scale(squared_norm: Float[Array, ""], variance: Float[Array, ""]) -> Float[Array, ""]:
    r"""Divide $\operatorname{tr} \Sigma$ by $|G|^2$: infinity if the noise hides the gradient, zero without noise."""
    is_hidden = squared_norm <= 0
    quotient = jnp.where(is_hidden, jnp.inf, variance / jnp.where(is_hidden, 1, squared_norm))
    return jnp.where(variance <= 0, 0, quotient)


def critical_batch(
    grads: PyTree, microbatch_size: int = 1, *, norms: Float[ArrayLike, " n"] | None = None
) -> Float[Array, ""]:
    r"""Estimate the critical batch size, in examples, by the gradient noise scale of several gradients.

        grads = jax.vmap(jax.grad(loss), (None, 0))(params, batch)
        critical_batch(grads)

    This is the simple noise scale of McCandlish et al.:

    $$
    B_\text{simple} = \frac{\operatorname{tr} \Sigma}{|G|^2}
    $$

    where $G$ is the gradient of the expected loss, and $\Sigma$ the covariance of the gradients of single examples.
    Both are estimated without bias; the quotient of few gradients is noisy. It takes a number of gradients that is not
    far below the result in microbatches: with fewer, the noise may hide the gradient. The result is then infinite.

    For a model whose per-example gradients do not fit into memory, pass their mean and their norms, as `micro_grad`
    returns them:

        each = micro_grad(loss, accumulator=AccumulationType.MEAN, metrics_fn=modulax.tree.norm, microbatch_size=32)
        mean, outputs = each(params, batch)
        critical_batch(mean, norms=outputs.metrics)

    During training, `MultiSteps(..., noise_scale=True)` measures it over many steps.

    Args:
        grads: the gradients of several microbatches at the same parameters, on a leading axis of every array: at least
            two, each the mean over different examples. With `norms`, the mean of the gradients, without this axis.
        microbatch_size: number of examples per gradient: 1 for per-example gradients.
        norms: global norms of the gradients, if `grads` is their mean.

    Returns:
        A number of examples; infinite if the gradients are too few to tell, zero if all are equal.

    Raises:
        ValueError: if there are less than two gradients, or their numbers differ between arrays.

    References:
        McCandlish et al., [An Empirical Model of Large-Batch Training](https://arxiv.org/abs/1812.06162), 2018.
    """
    check_integer("critical_batch", "microbatch_size", microbatch_size)
    leaves, _ = leaves_of("critical_batch", "grads", grads)
    if norms is None:
        n = _number_of_gradients(grads)
        means = [jnp.mean(g, 0, dtype=at_least_float32(g.dtype), keepdims=True) for g in leaves]
        mean_square = norm(means, squared=True)
        deviations = total(lambda g, mean: abs_sq(g - mean), leaves, means)
    else:
        n = _at_least_two(jnp.size(norms), f"`norms` has shape {jnp.shape(norms)}")
        mean_square = norm(leaves, squared=True)
        deviations = norm(norms, squared=True) - n * mean_square
    scale = noise_scale(*gradient_noise(deviations, mean_square, n))
    return (microbatch_size * scale).astype(default_float())


def _number_of_gradients(grads: PyTree) -> int:
    """The length of the leading axis, which all arrays must have."""
    shapes = {path: jnp.shape(g) for path, g in leaves_with_paths(grads)}
    lengths = {shape[0] if shape else None for shape in shapes.values()}
    if len(lengths) == 1 and (n := lengths.pop()) is not None:
        return _at_least_two(n, f"the arrays have shapes such as {next(iter(shapes.values()))}")
    found = ", ".join(f"{shape} in `{path}`" if path else str(shape) for path, shape in shapes.items())
    raise ValueError(
        f"`critical_batch`: the gradients of several microbatches must be on the leading axis of every array, and as "
        f"many in each; the shapes are {found or 'those of no array'}. {_GRADIENTS}"
    )


def _at_least_two(n: int, found: str) -> int:
    if n < 2:
        raise ValueError(f"`critical_batch` needs at least two gradients, and {found}. {_GRADIENTS}")
    return n


_GRADIENTS = (
    "Write `critical_batch(jax.vmap(jax.grad(loss), (None, 0))(params, batch))` with per-example gradients, or "
    "`critical_batch(mean, norms=...)` with the mean of gradients and their norms."
)
