"""Products with the Hessian of a loss, its diagonal, and that of the Fisher information."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from ..tree._leaves import check_shapes, columns
from ..tree._math import trainable
from ..tree._paths import leaves_with_paths

CHUNK = 32


Loss = Callable[[Any, Any, Any], Any]


def hvp(loss: Loss, v: PyTree, params: PyTree, inputs: Any, targets: Any) -> PyTree:
    r"""The Hessian of a loss times a vector, $\nabla^2 L(w)\, v$, for the price of about two gradients.

    Args:
        loss: $L$, a function of parameters, inputs and targets that returns a number.
        v: the vector: an array of as many entries as the parameters have together, in JAX's order; or a tree like them.
        params: $w$, a tree. What is no floating array, such as the functions in an Equinox model, is no parameter.
        inputs: what the loss is given as its second argument.
        targets: what the loss is given as its third argument.

    Returns:
        A tree like the parameters, with None for what is none.

    References:
        Pearlmutter, [Fast Exact Multiplication by the Hessian](https://doi.org/10.1162/neco.1994.6.1.147), 1994
    """
    gradient, weights = _gradient("hvp", "loss", loss, params, inputs, targets)
    return jax.jvp(gradient, (weights,), (_vector(v, weights),))[1]


def hessian_diag(loss: Loss, params: PyTree, inputs: Any, targets: Any) -> Float[Array, " n"]:
    r"""The diagonal of the Hessian of a loss, $\partial^2 L / \partial w_i^2$, exactly.

    It costs as many products with the Hessian as there are parameters, of which only a few are held at a time: right
    for small models, and to check an estimate such as that of `modulax.HutchinsonDiagonal`.

    Args:
        loss: $L$, a function of parameters, inputs and targets that returns a number.
        params: $w$, a tree. What is no floating array is no parameter.
        inputs: what the loss is given as its second argument.
        targets: what the loss is given as its third argument.

    Returns:
        A vector with an entry for each entry of the parameters, in JAX's order, as `jax.flatten_util.ravel_pytree` puts
        them; in the dtype that they have together.
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
    # The last row is filled up with indices that are none, so that there is one loop and one program.
    rows = -(-n // CHUNK)
    entries = jax.lax.map(jax.vmap(entry), jnp.arange(rows * CHUNK).reshape(rows, CHUNK))
    return entries.reshape(-1)[:n]


def fisher_diag(negative_log_likelihood: Loss, params: PyTree, inputs: Any, targets: Any) -> Float[Array, " n"]:
    r"""The diagonal of the observed Fisher information, $(\partial L / \partial w_i)^2$.

    That is the information in one observation. For that of several, average it over them:

        of_each = jax.vmap(fisher_diag, in_axes=(None, None, 0, 0))(negative_log_likelihood, params, inputs, targets)

    The square of a mean of gradients, which is what the negative log-likelihood of a whole batch gives, is another
    thing, and about zero at the optimum.

    Args:
        negative_log_likelihood: $L$, a function of parameters, inputs and targets that returns a number.
        params: $w$, a tree. What is no floating array is no parameter.
        inputs: what the function is given as its second argument.
        targets: what the function is given as its third argument.

    Returns:
        A vector with an entry for each entry of the parameters, in the order of `hessian_diag`.

    References:
        Kirkpatrick et al., [Overcoming catastrophic forgetting in neural networks](https://arxiv.org/abs/1612.00796),
        2017, which uses it to hold on to what matters;
        Kunstner et al., [Limitations of the Empirical Fisher Approximation for Natural Gradient
        Descent](https://arxiv.org/abs/1905.12558), 2019
    """
    owner = "fisher_diag", "negative_log_likelihood"
    gradient, weights = _gradient(*owner, negative_log_likelihood, params, inputs, targets)
    return jnp.square(_raveled(gradient(weights))[0])


def _gradient(
    owner: str, name: str, loss: Loss, params: PyTree, inputs: Any, targets: Any
) -> tuple[Callable[[PyTree], PyTree], PyTree]:
    """The gradient of the loss as a function of what is trained, and what is trained."""
    weights = trainable(params)
    for path, x in leaves_with_paths(weights):
        if jnp.iscomplexobj(x):
            raise ValueError(f"`{owner}` is not defined for complex parameters, and `{path}` is complex.")

    def value(weights: PyTree) -> Array:
        out = jnp.asarray(loss(eqx.combine(weights, params), inputs, targets))
        if out.shape != ():
            raise ValueError(
                f"`{owner}({name}=...)` must return a number, got an array of shape {out.shape}: return its mean, "
                "or its sum."
            )
        return out

    return jax.grad(value), weights


def _raveled(tree: PyTree) -> tuple[Float[Array, " n"], Callable[[Array], PyTree]]:
    """All entries in one vector, of the dtype that holds them, and the way back."""
    with jax.numpy_dtype_promotion("standard"):
        return ravel_pytree(tree)


def _vector(v: PyTree, weights: PyTree) -> PyTree:
    """The vector as a tree like the parameters; refused if it does not fit."""
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
