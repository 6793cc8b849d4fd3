"""Second derivatives of losses: the whole Hessian as oracle, models as parameters, memory, dtypes."""

import warnings
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

from modulax import second_order
from modulax.second_order import fisher_diag, hessian_diag, hvp

from .settings import jax_defaults

INPUTS = np.random.default_rng(0).normal(size=(5, 2))
TARGETS = INPUTS[:, 0] * INPUTS[:, 1]
V = np.random.default_rng(1).normal(size=17)


def loss(model: Any, inputs: Any, targets: Any) -> Any:
    return jnp.mean((jax.vmap(model)(inputs)[:, 0] - targets) ** 2)


def all_of(module: Any, loss: Any, params: Any, v: Any = V) -> Any:
    """Product, diagonal of the Hessian, diagonal of the information, each as a vector."""
    product = module.hvp(loss, v, params, INPUTS, TARGETS)
    diagonals = [f(loss, params, INPUTS, TARGETS) for f in (module.hessian_diag, module.fisher_diag)]
    return ravel_pytree(product)[0], *diagonals


@pytest.mark.usefixtures("x64")
def test_products_and_diagonals_are_those_of_the_matrix_and_of_optax():
    # 17 parameters, and functions, which are none.
    model = eqx.nn.MLP(2, 1, 4, 1, activation=jnp.tanh, dtype=jnp.float64, key=jax.random.key(0))
    arrays, rest = eqx.partition(model, eqx.is_array)
    flat, unravel = ravel_pytree(arrays)

    def of_arrays(arrays: Any, inputs: Any, targets: Any) -> Any:
        return loss(eqx.combine(arrays, rest), inputs, targets)

    def of_vector(w: Any) -> Any:
        return of_arrays(unravel(w), INPUTS, TARGETS)

    @eqx.filter_jit
    def everything(model: Any) -> Any:
        exact = jax.hessian(of_vector)(flat), jax.grad(of_vector)(flat)
        of_a_tree = hvp(loss, unravel(jnp.asarray(V)), model, INPUTS, TARGETS)
        return exact, all_of(second_order, loss, model), of_a_tree

    (matrix, gradient), ours, of_a_tree = everything(model)
    assert jtu.tree_structure(of_a_tree) == jtu.tree_structure(arrays)
    np.testing.assert_array_equal(ravel_pytree(of_a_tree)[0], ours[0])
    for found, expected in zip(ours, (matrix @ V, np.diag(matrix), gradient**2), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)
    with jax_defaults(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        theirs = jax.jit(lambda arrays: all_of(optax.second_order, of_arrays, arrays))(arrays)
    for found, expected in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)


def quartic(params: Any, inputs: Any, targets: Any) -> Any:
    """Its Hessian is 12 w² on the diagonal, plus ones."""
    del inputs, targets
    w = jnp.concatenate([x.astype(jnp.float32) for x in jtu.tree_leaves(params)])
    return jnp.sum(w**4) + jnp.sum(w) ** 2 / 2


def test_dtypes_are_kept_and_mixed_ones_are_held():
    params = {"a": jnp.array([1.0, 2.0], jnp.bfloat16), "b": jnp.array([0.5]), "none": None}
    as_tree = {"a": jnp.array([1.0, 0.0]), "b": jnp.zeros(1, jnp.bfloat16), "none": None}  # in other dtypes
    vectors = np.array([1, 0, 0]), np.array([[1, 0, 0]]), as_tree
    product, *others = jax.jit(lambda: [hvp(quartic, v, params, None, None) for v in vectors])()
    assert eqx.tree_equal(product, *others)
    assert jtu.tree_map(lambda x: (x.dtype, x.tolist()), product) == {
        "a": (jnp.bfloat16, [13, 1]),
        "b": (jnp.float32, [1]),
        "none": None,
    }
    np.testing.assert_array_equal(hessian_diag(quartic, params, None, None), [13, 49, 4])
    low = hessian_diag(quartic, params["a"], None, None)
    assert low.dtype == jnp.bfloat16
    assert fisher_diag(lambda w, x, y: w[0] ** 2 / 2, params["a"], None, None).tolist() == [1, 0]


def test_the_diagonal_needs_no_matrix():
    """The memory grows with the number of parameters; optax's with its square."""
    w = jnp.linspace(-1, 1, 203)  # no multiple of a chunk
    np.testing.assert_allclose(jax.jit(hessian_diag, static_argnums=0)(quartic, w, None, None), 12 * w**2 + 1, 1e-5)

    def memory(f: Any, n: int) -> int:
        call = jax.jit(lambda w: f(quartic, [w], None, None))
        analysis = call.lower(jax.ShapeDtypeStruct((n,), jnp.float32)).compile().memory_analysis()
        assert analysis is not None
        return analysis.temp_size_in_bytes

    assert memory(hessian_diag, 2048) < 2.5 * memory(hessian_diag, 1024) < 1024**2
    with jax_defaults(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        assert memory(optax.second_order.hessian_diag, 1024) >= 4 * 1024**2


def test_information_of_many_observations():
    """Of a normal variable of variance one, there is one unit of information on its mean in each."""
    x = jax.random.normal(jax.random.key(0), (10_000,))
    of_each = jax.vmap(fisher_diag, in_axes=(None, None, 0, None))
    information = of_each(lambda mean, x, _: (x - mean["m"]) ** 2 / 2, {"m": jnp.array(0.0)}, x, None)
    np.testing.assert_allclose(information.mean(0), [1], atol=4 * 2**0.5 / 100)


def test_nothing_to_differentiate():
    assert hessian_diag(lambda w, x, y: jnp.array(1.0), {"n": jnp.arange(3)}, None, None).shape == (0,)
    assert hvp(lambda w, x, y: jnp.array(1.0), jnp.zeros(0), {}, None, None) == {}
    assert fisher_diag(lambda w, x, y: 1.0, jnp.ones(2), None, None).tolist() == [0, 0]  # a Python number


@pytest.mark.parametrize(
    "call,message",
    [
        (
            lambda w: hvp(quartic, jnp.ones(2), w, None, None),
            r"`hvp\(v=...\)` must have as many entries as the parameters, 3, .* got an array of shape \(2,\)",
        ),
        (lambda w: hvp(quartic, jnp.ones(4), w, None, None), r"as the parameters, 3, .* an array of shape \(4,\)"),
        (
            lambda w: hvp(quartic, {"x": jnp.ones(3)}, w, None, None),
            "`v` must have the leaves of `params`; it lacks `w",
        ),
        (lambda w: hvp(quartic, {"w": jnp.ones(1)}, w, None, None), r"at `w` the shapes are \(3,\) and \(1,\)"),
        (
            lambda w: hessian_diag(lambda w, x, y: w["w"], w, None, None),
            r"`hessian_diag\(loss=...\)` must return a scalar, got an array of shape \(3,\)",
        ),
        (
            lambda w: fisher_diag(lambda w, x, y: w["w"], w, None, None),
            r"`fisher_diag\(negative_log_likelihood=...\)` must return a scalar",
        ),
        (
            lambda w: hvp(quartic, jnp.ones(1), {"c": jnp.array(1j)}, None, None),
            "`hvp` is not defined for complex parameters, and `c` is complex",
        ),
        (
            lambda w: hessian_diag(quartic, {"c": jnp.array(1j)}, None, None),
            "`hessian_diag` is not defined for complex",
        ),
        (lambda w: fisher_diag(quartic, {"c": jnp.array(1j)}, None, None), "`fisher_diag` is not defined for complex"),
    ],
)
def test_what_does_not_fit_is_refused(call: Any, message: str):
    with pytest.raises(ValueError, match=message):
        call({"w": jnp.ones(3)})
