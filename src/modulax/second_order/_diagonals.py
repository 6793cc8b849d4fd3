"""Hessian-vector products, and the diagonals of the Hessian and of the Fisher information."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from .._plugin.trees import check_shapes, columns, leaves_with_paths, trainable

CHUNK = 32


Loss = Callable[[Any, Any, Any], Any]


def hvp(loss: Loss, v: PyTree, params: PyTree, inputs: Any, targets: Any) -> PyTree:
    r"""Compute a Hessian-vector product, $\nabla^2 L(w)\, v$, at the cost of about two gradients.

    Args:
        loss: $L$, a function of parameters, inputs and targets that returns a scalar.
        v: $v$, the vector: an array with as many entries as the parameters have in total, in the order of
            `jax.flatten_util.ravel_pytree`; or a tree like the parameters.
        params: $w$, a tree. Leaves that are not floating-point arrays, such as the functions in an Equinox model, are
            held constant.
        inputs: second argument of the loss.
        targets: third argument of the loss.

    Returns:
        A tree like the parameters, with None for the leaves that are held constant.

    Raises:
        ValueError: if a parameter is complex, the loss doesn't return a scalar, or `v` doesn't fit the parameters.

    References:
        Pearlmutter, [Fast Exact Multiplication by the Hessian](https://doi.org/10.1162/neco.1994.6.1.147), 1994
    """
    gradient, weights = _gradient("hvp", "loss", loss, params, inputs, targets)
    return jax.jvp(gradient, (weights,), (_vector(v, weights),))[1]


def hessian_diag(loss: Loss, params: PyTree, inputs: Any, targets: Any) -> Float[Array, " n"]:
    r"""Compute the exact diagonal of the Hessian of a loss, $\partial^2 L / \partial w_i^2$.

    It takes one Hessian-vector product per parameter, a few of them at a time to limit memory. Use it for small models,
    or to check an estimate such as that of `modulax.HutchinsonDiagonal`.

    Args:
        loss: $L$, a function of parameters, inputs and targets that returns a scalar.
        params: $w$, a tree. Leaves that are not floating-point arrays are held constant.
        inputs: second argument of the loss.
        targets: third argument of the loss.

    Returns:
        A vector with one entry per parameter, in the order of `jax.flatten_util.ravel_pytree` and the dtype that the
        parameters promote to.

    Raises:
        ValueError: if a parameter is complex, or the loss doesn't return a scalar.
    """
    gradient, weights = _gradient("hessian_diag", "loss", loss, params, inputs, targets)
    flat, unravel = _raveled(weights)
    if flat.size == 0:
        return flat
    _, product = jax.linearize(gradient, weights)

    def entry(i: Array) -> Array:
        unit = (jnp.arange(flat.size) == i).astype(flat.dtype)
        return _raveled(product(unravel(unit)))[0][i]

    n = flat.size
    if n <= 4 * CHUNK:
        return jax.vmap(entry)(jnp.arange(n))
    # Pad the last chunk with indices out of range, so that a single loop covers all chunks.
    rows = -(-n // CHUNK)
    entries = jax.lax.map(jax.vmap(entry), jnp.arange(rows * CHUNK).reshape(rows, CHUNK))
    return entries.reshape(-1)[:n]


def fisher_diag(negative_log_likelihood: Loss, params: PyTree, inputs: Any, targets: Any) -> Float[Array, " n"]:
    r"""Compute the diagonal of the observed Fisher information, the squared gradient $(\partial L / \partial w_i)^2$.

    This is the information in a single observation. For several, average over them:

        of_each = jax.vmap(fisher_diag, in_axes=(None, None, 0, 0))(negative_log_likelihood, params, inputs, targets)

    Don't pass the negative log-likelihood of a whole batch: the square of a mean gradient is not the Fisher
    information, and is about zero at the optimum.

    Args:
        negative_log_likelihood: $L$, a function of parameters, inputs and targets that returns a scalar.
        params: $w$, a tree. Leaves that are not floating-point arrays are held constant.
        inputs: second argument of the function.
        targets: third argument of the function.

    Returns:
        A vector with one entry per parameter, in the order of `hessian_diag`.

    Raises:
        ValueError: if a parameter is complex, or the function doesn't return a scalar.

    References:
        Kirkpatrick et al., [Overcoming catastrophic forgetting in neural networks](https://arxiv.org/abs/1612.00796),
        2017, which uses it to protect important weights (EWC); Kunstner et al., [Limitations of the Empirical Fisher
        Approximation for Natural Gradient Descent](https://arxiv.org/abs/1905.12558), 2019
    """
    owner = "fisher_diag", "negative_log_likelihood"
    gradient, weights = _gradient(*owner, negative_log_likelihood, params, inputs, targets)
    return jnp.square(_raveled(gradient(weights))[0])


def _gradient(
    owner: str, name: str, loss: Loss, params: PyTree, inputs: Any, targets: Any
) -> tuple[Callable[[PyTree], PyTree], PyTree]:
    """Return the gradient as a function of the trainable leaves, and these leaves."""
    weights = trainable(params)
    for path, x in leaves_with_paths(weights):
        if jnp.iscomplexobj(x):
            raise ValueError(f"`{owner}` is not defined for complex parameters, and `{path}` is complex.")

    def value(weights: PyTree) -> Array:
        out = jnp.asarray(loss(eqx.combine(weights, params), inputs, targets))
        if out.shape != ():
            raise ValueError(
                f"`{owner}({name}=...)` must return a scalar, got an array of shape {out.shape}: return its mean, "
                "or its sum."
            )
        return out

    return jax.grad(value), weights


def _raveled(tree: PyTree) -> tuple[Float[Array, " n"], Callable[[Array], PyTree]]:
    """Ravel a tree to a vector of the dtype that its leaves promote to; also return the inverse."""
    with jax.numpy_dtype_promotion("standard"):
        return ravel_pytree(tree)


def _vector(v: PyTree, weights: PyTree) -> PyTree:
    """Convert the vector to a tree like the parameters, after checking that it fits."""
    if not jtu.all_leaves([v]):
        (leaves, found), treedef = columns("hvp", params=weights, v=v)
        check_shapes("hvp", weights, leaves, found)
        return treedef.unflatten([x.astype(w.dtype) for x, w in zip(found, leaves, strict=True)])
    flat, unravel = _raveled(weights)
    v = jnp.asarray(v)
    if v.size != flat.size:
        raise ValueError(
            f"`hvp(v=...)` must have as many entries as the parameters, {flat.size}, or be a tree like them; got an "
            f"array of shape {v.shape}."
        )
    return unravel(v.reshape(-1).astype(flat.dtype))
