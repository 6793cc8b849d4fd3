"""Arithmetic at the edges: norms of zeros and of huge numbers, counters at their end, gradients times a number."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import optax
import pytest

import modulax as mx
from modulax import numerics
from modulax._support.arithmetic import common_dtype

from .refusals import refused
from .settings import jax_defaults

THEIRS: Any = optax  # whose types are stricter than what it takes

# --- Norms -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", [mx.safe_norm, mx.safe_root_mean_squares])
def test_a_norm_of_at_most_the_least_one_has_no_derivative(norm: Any):
    """Where `maximum` would return half of one; and the least norm has all of it."""
    x = jnp.array([[0.0], [1e-3], [1.0]])
    value, (by_x, by_least) = jax.vmap(jax.value_and_grad(norm, (0, 1)), (0, None))(x, 1.0)
    np.testing.assert_array_equal(value, [1, 1, 1])
    np.testing.assert_array_equal(by_x, np.zeros((3, 1)))
    np.testing.assert_array_equal(by_least, [1, 1, 1])


def test_second_derivatives_of_a_norm_are_finite_at_zero_and_right_elsewhere():
    hessian = jax.jit(jax.hessian(mx.safe_norm))
    np.testing.assert_array_equal(hessian(jnp.zeros(2), 0.0), np.zeros((2, 2)))
    np.testing.assert_allclose(hessian(jnp.array([3e20, 4e20]), 0.0) * 5e20, [[0.64, -0.48], [-0.48, 0.36]], rtol=1e-5)


VECTORS = (None, 0, 0.5, 1, 2, 3, -2, math.inf, -math.inf)
MATRICES = (None, "fro", "nuc", 1, -1, 2, -2, math.inf, -math.inf)


def _values_and_gradients(norm: Any, orders: Any, axis: Any, least: Any) -> Any:
    def of_order(x: Any, ord: Any, least: Any) -> Any:
        return jnp.sum(norm(x, least, ord, axis))

    return jax.jit(lambda x: [jax.value_and_grad(of_order)(x, ord, m) for ord, m in zip(orders, least, strict=True)])


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("orders,axis", [(VECTORS, 0), (MATRICES, (0, 1)), (MATRICES, (2, 1))])
def test_every_order_is_that_of_numpy_and_optax(orders: Any, axis: Any):
    """With a least norm that some of the vectors have not."""
    x = np.random.default_rng(0).normal(size=(2, 3, 2))
    norms = [np.linalg.norm(x, ord, axis) for ord in orders]
    least = [0.99 * np.median(n) for n in norms]
    found = _values_and_gradients(mx.safe_norm, orders, axis, least)(x)
    with jax_defaults():
        theirs = _values_and_gradients(optax.safe_norm, orders, axis, least)(x)
    for n, m, (value, gradient), (_, their_gradient) in zip(norms, least, found, theirs, strict=True):
        np.testing.assert_allclose(value, np.maximum(n, m).sum(), rtol=1e-12)
        np.testing.assert_allclose(gradient, their_gradient, rtol=1e-12, atol=1e-13)


def test_zeros_in_rows_of_any_order():
    orders = VECTORS
    found = _values_and_gradients(mx.safe_norm, orders, 1, [0.5] * len(orders))(jnp.zeros((2, 3)))
    for value, gradient in found:
        assert value == 1
        np.testing.assert_array_equal(gradient, np.zeros((2, 3)))


@pytest.mark.parametrize("size", [1e-37, 1e-30, 1e25, 1e38])
def test_squares_neither_overflow_nor_vanish(size: float):
    x = size * jnp.ones(4)
    value, gradient = jax.value_and_grad(mx.safe_norm)(x, 0.0)
    np.testing.assert_allclose(value, 2 * size, rtol=1e-6)
    np.testing.assert_allclose(gradient, np.full(4, 0.5), rtol=1e-6)
    np.testing.assert_allclose(mx.safe_root_mean_squares(x, 0.0), size, rtol=1e-6)
    np.testing.assert_allclose(mx.safe_norm(jax.lax.complex(x, x), 0.0), 8**0.5 * size, rtol=1e-6)
    np.testing.assert_allclose(mx.safe_norm(x, 0.0, 3), 4 ** (1 / 3) * size, rtol=1e-6)
    with jax_defaults():
        assert not np.isclose(optax.safe_norm(x, 0.0), 2 * size, rtol=1e-2, atol=0)


@pytest.mark.parametrize("n", [1, 5])
def test_norms_and_their_derivatives_in_every_magnitude(n: int):
    """Of one entry too: XLA would multiply the scales of its square with each other."""
    norm = jax.jit(jax.value_and_grad(mx.safe_norm))
    rows = np.ldexp(np.random.default_rng(0).uniform(1, 2, (80, n)), np.linspace(-124, 124, 80, dtype=int)[:, None])
    for x in rows:
        value, gradient = norm(x.astype(np.float32), 0.0)
        np.testing.assert_allclose(value, np.linalg.norm(x), rtol=3e-7)
        np.testing.assert_allclose(gradient, x / np.linalg.norm(x), rtol=1e-6)


def test_what_is_not_finite_stays_visible():
    assert mx.safe_norm(jnp.array([1.0, jnp.inf]), 0.0) == jnp.inf
    assert np.isnan(mx.safe_norm(jnp.array([1.0, jnp.nan]), 0.5))


def test_a_least_norm_for_every_row():
    x, least = jnp.array([[3.0, 4.0], [0.3, 0.4]]), jnp.array([1.0, 2.0])
    np.testing.assert_allclose(mx.safe_norm(x, least, axis=1), [5, 2])
    np.testing.assert_allclose(mx.safe_norm(x, least[:, None], axis=1, keepdims=True), [[5], [2]])


def test_what_has_no_norm_is_refused():
    x, cube = jnp.ones((2, 3)), jnp.ones((2, 2, 2))
    assert mx.safe_norm(cube, 0.0) == np.float32(8**0.5)  # of all entries
    calls: tuple[tuple[Any, str], ...] = (
        ((x, jnp.ones((2, 1)), None, 1), "`safe_norm(min_norm=...)` must be a number or have shape (2,), got"),
        ((x, 1j), "`safe_norm(min_norm=...)` must hold real numbers, got "),
        ((x, 0.0, "fro", 0), "`safe_norm(ord=...)` of vectors must be a number"),
        ((x, 0.0, 3), "`safe_norm(ord=...)` of matrices must be"),
        ((cube, 0.0, 1), "`safe_norm(ord=1)` needs one axis for vectors or two for matrices, got 3"),
        ((x, 0.0, None, 2), "`safe_norm(axis=2)` is out of bounds: `x` "),
    )
    for arguments, said in calls:
        with refused(said):
            mx.safe_norm(*arguments)
    with refused("`safe_root_mean_squares(min_rms=...)` must hold real numbers, got "):
        mx.safe_root_mean_squares(x, 1j)
    with refused("`safe_root_mean_squares(min_rms=...)` must be a number or have shape (), got (2,)"):
        mx.safe_root_mean_squares(x, jnp.ones(2))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_norms_of_low_dtypes_are_rounded_once(dtype: Any):
    x = jnp.full(4, 300, dtype)
    for norm, expected in ((mx.safe_norm(x, np.float64(0.1)), 600), (mx.safe_root_mean_squares(x, 0.1), 300)):
        assert (norm.dtype, norm) == (dtype, dtype(expected))
    assert jax.grad(mx.safe_norm)(x, 0.1).dtype == dtype


def test_norms_of_integers_complex_numbers_and_nothing():
    of_integers = mx.safe_norm(np.array([30_000, 40_000]), 0)
    assert of_integers == 50_000
    assert of_integers.dtype == jnp.float32
    value, gradient = jax.value_and_grad(mx.safe_norm)(jnp.array([3j, -4]), 0.0)
    assert value == 5
    np.testing.assert_allclose(gradient, [-0.6j, -0.8], rtol=1e-6)  # JAX returns the conjugate
    assert [mx.safe_norm(jnp.array([3j, -4]), 0.0, ord) for ord in (1, math.inf)] == [7, 4]
    assert mx.safe_root_mean_squares(jnp.array([3j, -4]), 0.0) == np.float32(12.5**0.5)
    assert mx.safe_norm(jnp.zeros((0, 3)), 0.5) == 0.5
    assert mx.safe_root_mean_squares(jnp.zeros(0), 0.5) == 0.5
    np.testing.assert_array_equal(mx.safe_norm(jnp.zeros((0, 3)), 0.5, axis=0), [0.5, 0.5, 0.5])


# --- Roots, squares, counters ----------------------------------------------------------------------------------------


def test_the_root_and_the_square_of_zero():
    value, slope = jax.vmap(jax.value_and_grad(numerics.safe_sqrt))(jnp.array([0.0, 4.0]))
    np.testing.assert_array_equal(value, [0, 2])
    np.testing.assert_array_equal(slope, [0, 0.25])
    assert numerics.abs_sq(jnp.array(3 - 4j)) == 25
    assert jax.grad(numerics.abs_sq)(jnp.array(0j)) == 0
    assert numerics.at_least_float32(jnp.bfloat16) == jnp.float32


@pytest.mark.parametrize("dtype", [jnp.int8, jnp.uint32, jnp.int32, jnp.float16])
def test_a_counter_stays_at_its_end(dtype: Any, monkeypatch: pytest.MonkeyPatch):
    limit = (jnp.finfo if dtype == jnp.float16 else jnp.iinfo)(dtype).max
    counts = jnp.array([0, 7, limit], dtype)
    following = mx.safe_increment(counts)
    assert following.dtype == dtype
    np.testing.assert_array_equal(following, jnp.array([1, 8, limit], dtype))
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as for users: annotations are not checked
    for no_count in (1j, True):
        with refused("`safe_increment` counts with integers or real numbers; got an array of"):
            mx.safe_increment(jnp.asarray(no_count))


# --- Gradients times a number ----------------------------------------------------------------------------------------


def scaled_square(x: Any, scale: Any) -> Any:
    return numerics.scale_gradient({"x": x}, scale)["x"] ** 2


def test_derivatives_are_scaled_in_both_modes_and_the_value_is_not():
    assert scaled_square(3.0, -0.5) == 9
    assert jax.grad(scaled_square)(3.0, -0.5) == -3
    assert jax.jvp(lambda x: scaled_square(x, -0.5), (3.0,), (1.0,))[1] == -3
    assert jax.hessian(scaled_square)(3.0, -0.5) == 2 * 0.25
    with jax_defaults():
        assert jax.grad(jax.grad(lambda x: THEIRS.scale_gradient(x, -0.5) ** 2))(3.0) == 2 * 0.25


def test_complex_derivatives_are_scaled_and_integers_pass():
    tree = {"z": jnp.array(1 - 2j), "n": jnp.array(3), "none": None}

    def doubled(tree: Any) -> Any:
        return numerics.scale_gradient(tree, 2.0)

    same, tangents = eqx.filter_jvp(doubled, (tree,), ({**tree, "n": None},))
    assert same == tree
    assert tangents["z"] == 2 * tree["z"]
    # The product is rounded once: 0.3 in bfloat16 is 0.30078.
    tangent = jnp.bfloat16(100)
    assert jax.jvp(lambda x: numerics.scale_gradient(x, 0.3), (tangent,), (tangent,))[1] == 30


def test_the_scale_of_a_gradient_may_be_traced_and_differentiated():
    slopes = jax.jit(jax.vmap(jax.grad(scaled_square), in_axes=(None, 0)))(3.0, jnp.array([0.0, 1.0, 2.0]))
    np.testing.assert_array_equal(slopes, [0, 6, 12])
    assert jax.grad(jax.grad(scaled_square), 1)(3.0, 2.0) == 6
    assert jax.grad(scaled_square, 1)(3.0, 2.0) == 0
    with jax_defaults(), pytest.raises(jax.errors.TracerBoolConversionError):
        jax.jit(jax.grad(lambda x, s: THEIRS.scale_gradient(x, s) ** 2))(3.0, 2.0)
    with refused("`scale_gradient(scale=...)` must be a scalar, got an array of shape (2,"):
        numerics.scale_gradient(1.0, jnp.ones(2))
    with refused("`scale_gradient(scale=...)` must hold real numbers"):
        numerics.scale_gradient(1.0, 1j)


def test_a_gradient_that_is_not_finite_is_stopped_too():
    assert jax.grad(lambda x, scale: jnp.sqrt(numerics.scale_gradient(x, scale)))(0.0, 0.0) == 0


def test_a_whole_model_passes_and_keeps_its_dtypes(key):
    model = eqx.nn.MLP(2, 1, 3, 1, dtype=jnp.bfloat16, key=key)
    same = numerics.scale_gradient(model, np.float64(3.0))
    assert eqx.tree_equal(same, model)
    x = jnp.ones(2, jnp.bfloat16)
    plain = eqx.filter_jit(eqx.filter_grad(lambda m: m(x)[0]))(model)
    scaled = eqx.filter_jit(eqx.filter_grad(lambda m: numerics.scale_gradient(m, np.float64(3.0))(x)[0]))(model)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a * 3, b, strict=True), plain, scaled)


def test_what_dtypes_promote_to():
    """A float of one byte gives way to every other float; with an integer, or another such float, it is float32."""
    f8, other = jnp.float8_e4m3fn, jnp.float8_e5m2
    expected = {(f8,): f8, (f8, f8): f8, (f8, other): jnp.float32, (f8, jnp.bfloat16): jnp.bfloat16}
    expected |= {(jnp.int32, f8): jnp.float32, (f8, jnp.complex64): jnp.complex64, (bool, f8): jnp.float32}
    expected |= {(jnp.bfloat16, jnp.float16): jnp.float32, (other, f8, jnp.float16): jnp.float16}
    for dtypes, result in expected.items():
        assert common_dtype(*dtypes) == result, dtypes
