"""Projections: trees, values at the edges, and error messages."""

import functools
import operator
from typing import Any

import jax
import jax.numpy as jnp
import jax.test_util
import numpy as np
import optax
import pytest
from jax.experimental import checkify

from modulax import projections as p

from .functions import Case
from .functions.projections import CASES, simplex
from .refusals import refused
from .settings import jax_defaults


def _tree(x: Any) -> dict[str, Any]:
    """A matrix of three rows as leaves of several shapes, one of which is empty and one absent."""
    return {"w": x[:2], "none": None, "b": (x[2, 0], x[2, 1:1], x[2, 1:])}


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.usefixtures("x64")
def test_a_tree_is_one_vector(case: Case):
    """All leaves together are projected, whatever their shapes; a tree of bounds, or of `a`, has its structure."""
    arguments = {name: jnp.asarray(x) for name, x in case.make().items()}
    shape = arguments[case.floats[0]].shape
    trees = {name: _tree(jnp.broadcast_to(x, shape)) if x.ndim else x for name, x in arguments.items()}
    expected, actual = jax.jit(lambda: (_tree(case.function(**arguments)), case.function(**trees)))()
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-14, atol=1e-15), actual, expected)


def test_the_leaves_keep_their_dtypes():
    """Beside wider bounds and scales; and the entries of a simplex still sum to one."""
    tree = {"a": jnp.array([0.3, 2.0], jnp.bfloat16), "b": jnp.array(1.5), "c": jnp.array([0.1], jnp.float16)}
    wide = jax.tree.map(lambda x: np.asarray(x, np.float64), tree)

    @jax.jit
    def project(tree):
        return [
            p.projection_simplex(tree, jnp.float64(1)),
            p.projection_non_negative(tree),
            p.projection_box(tree, jax.tree.map(np.negative, wide), np.float64(1)),
            p.projection_linf_ball(tree, np.float64(1)),
            p.projection_l1_ball(tree, jnp.float64(1)),
            p.projection_l2_ball(tree, jnp.float64(1)),
            p.projection_halfspace(tree, wide, 1),
        ]

    with jax.enable_x64(True):
        results = project(tree)
    for result in results:
        assert [x.dtype for x in result.values()] == [x.dtype for x in tree.values()]
    np.testing.assert_allclose(sum(np.asarray(x, np.float64).sum() for x in results[0].values()), 1, rtol=1e-2)


def test_a_number_bounds_all_leaves():
    tree = {"a": jnp.array([-1.0, 2.0]), "b": [jnp.array([[0.5], [7.0]]), None]}
    boxed = p.projection_box(tree, 0, {"a": jnp.array([1.0, 1.5]), "b": 3})  # `b` is the beginning of a tree
    np.testing.assert_array_equal(boxed["a"], [0, 1.5])
    np.testing.assert_array_equal(boxed["b"][0], [[0.5], [3]])
    np.testing.assert_array_equal(p.projection_hypercube(tree)["b"][0], [[0.5], [1]])
    np.testing.assert_array_equal(p.projection_box(tree, -jnp.inf, jnp.inf)["b"][0], tree["b"][0])
    with jax_defaults(), pytest.raises(ValueError, match="structure"):
        optax.projections.projection_hypercube(tree)


def test_an_empty_tree_stays_empty():
    for function in (p.projection_simplex, p.projection_l1_sphere, p.projection_l1_ball, p.projection_l2_ball):
        nothing, no_rows = jax.jit(lambda x, function=function: (function({"a": None}), function(x)))(np.zeros((0, 3)))
        assert nothing == {"a": None}
        assert no_rows.shape == (0, 3)


# --- Numbers at the edges ------------------------------------------------------------------------


@functools.cache
def _differentiated(function, arguments):
    """One compiled function for all tests of a projection."""

    def weighted(x, *rest):
        y = function(x, *rest)
        return jnp.sum(y * jnp.arange(1, y.size + 1, dtype=y.dtype)), y

    return jax.jit(jax.value_and_grad(weighted, tuple(range(arguments)), has_aux=True))


def _value_and_gradients(function, *arguments):
    """The result, and the gradients of its product with (1, 2, …)."""
    (_, y), gradients = _differentiated(function, len(arguments))(*arguments)
    return y, *gradients


@pytest.mark.parametrize(
    "x, scale, expected, by_x, by_scale",
    [
        ([3.0], 2.0, [2], [0], 1),
        ([1.0, 1.0], 1.0, [0.5, 0.5], [-0.5, 0.5], 1.5),
        ([0.0, 0.0, 0.0, 0.0], 1.0, [0.25] * 4, [-1.5, -0.5, 0.5, 1.5], 2.5),
        ([1.0, -jnp.inf, 0.8], 1.0, [0.6, 0, 0.4], [-1, 0, 1], 2),
        ([5.0, 1.0], 0.0, [0, 0], [0, 0], 0),
        ([5.0, 1.0], 1e-30, [1e-30, 0], [0, 0], 1),
        ([1.0, 0.0], 1.0, [1, 0], [0, 0], 1),
    ],
)
def test_the_simplex_at_the_edges(x, scale, expected, by_x, by_scale):
    y, dx, ds = _value_and_gradients(p.projection_simplex, jnp.array(x), jnp.float32(scale))
    np.testing.assert_allclose(y, expected, rtol=1e-6)
    np.testing.assert_allclose(dx, by_x, atol=1e-6)
    np.testing.assert_allclose(ds, by_scale, atol=1e-6)


@pytest.mark.parametrize("x", [[1e30, 1e30, 1.0], [2e38, 2e38, -2e38]])
def test_the_simplex_of_huge_entries(x):
    x, large = np.array(x, np.float32), np.full(4, 2e38, np.float32)
    simplex, of_ball, of_large = jax.jit(
        lambda x, large: (p.projection_simplex(x), p.projection_l1_ball(-x[:2]), p.projection_simplex(large))
    )(x, large)
    np.testing.assert_array_equal(simplex, [0.5, 0.5, 0])
    np.testing.assert_array_equal(of_ball, [-0.5, -0.5])
    np.testing.assert_array_equal(of_large, [0.25] * 4)
    with jax_defaults():
        wrong = jax.jit(optax.projections.projection_simplex)(large)
    assert np.sum(wrong) > 2


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_many_entries_of_low_precision(dtype):
    """As many as one could not count in their dtype."""
    x = jnp.asarray(np.random.default_rng(0).uniform(size=5000) / 2500, dtype)
    y, dx = _value_and_gradients(p.projection_simplex, x)
    assert y.dtype == dx.dtype == dtype
    np.testing.assert_allclose(
        np.asarray(y, np.float64), simplex(np.asarray(x, np.float64)), rtol=float(jnp.finfo(dtype).eps), atol=1e-7
    )


@pytest.mark.parametrize("n", [2, 37, 2000])
@pytest.mark.usefixtures("x64")
def test_newton_finds_the_threshold_of_hard_vectors(n: int):
    """Entries that lie geometrically, so that few of them leave at every step; ties; all sizes of the scale."""
    rng, i = np.random.default_rng(n), np.arange(n)
    vectors = [
        -(0.5**i),
        -(1.5 ** (-i / 10)),
        -np.cumprod(1 / np.arange(1.0, n + 1)),
        -i / n,
        np.round(rng.normal(size=n)),
        rng.standard_cauchy(size=n),
        -np.sqrt(i),
    ]
    scales = [1e-3, 0.3, 1.0, 50.0]
    x = np.stack([v for v in vectors for _ in scales])
    s = np.stack([s for _ in vectors for s in scales])
    expected = [simplex(*pair) for pair in zip(x, s, strict=True)]
    np.testing.assert_allclose(jax.jit(jax.vmap(p.projection_simplex))(x, s), expected, atol=1e-12)
    twice = jax.jit(jax.vmap(jax.vmap(p.projection_simplex, (None, 0)), (0, None)))(np.stack(vectors), np.array(scales))
    np.testing.assert_allclose(twice.reshape(-1, n), expected, atol=1e-12)


def test_zeros_go_to_the_sphere():
    """Both signs are equally near; the derivative is that of the one that is taken, or zero where there is none."""
    y, dx, ds = _value_and_gradients(p.projection_l1_sphere, jnp.array([0.1, 0.0, -0.3]), jnp.float32(1))
    np.testing.assert_allclose(y, [0.3, 0.2, -0.5], rtol=1e-6)
    np.testing.assert_allclose([*dx, ds], [1, 2, 3, 0], atol=1e-6)  # (I - σσᵀ/3) w with w·σ = 0, for the signs σ
    np.testing.assert_allclose(jax.jit(p.projection_l1_sphere)(np.zeros(4, np.float32)), [0.25] * 4)
    y, dx, ds = _value_and_gradients(p.projection_l2_sphere, jnp.zeros(4), jnp.float32(3))
    np.testing.assert_allclose([*y, *dx, ds], [1.5, 1.5, 1.5, 1.5, 0, 0, 0, 0, 5])
    np.testing.assert_allclose(np.hstack(p.projection_l2_sphere([jnp.zeros(3), jnp.zeros(1)], 2.0)), [1] * 4)
    with jax_defaults():
        theirs = jax.jit(optax.projections.projection_l1_sphere)(np.array([0.1, 0.0, -0.3], np.float32))
        assert np.abs(theirs).sum() < 0.9
        assert np.isnan(jax.jit(optax.projections.projection_l2_sphere)(np.zeros(4, np.float32))).all()


@pytest.mark.parametrize("function", [p.projection_l1_ball, p.projection_l2_ball])
def test_a_point_of_the_ball_stays_what_it_is(function):
    """Zero entries too, whose derivative is one."""
    for x in (jnp.zeros(3), jnp.array([0.1, 0.0, -0.3])):
        y, dx, ds = _value_and_gradients(function, x, jnp.float32(1))
        np.testing.assert_array_equal(y, x)
        np.testing.assert_array_equal([*dx, ds], [1, 2, 3, 0])
    for x in (jnp.zeros(2), jnp.array([1.0, -2.0])):
        y, dx, ds = _value_and_gradients(function, x, jnp.float32(0))
        np.testing.assert_array_equal(y, [0, 0])
        assert np.isfinite([*dx, ds]).all()


@pytest.mark.parametrize("size", [1e-36, 1e-30, 1e-20, 1e20, 1e30, 1e37])
def test_the_square_of_a_length_need_not_exist(size: float):
    """In float32 as in float64, values and gradients."""
    x, a = np.float32(size) * np.array([[1.0, -2.0, 0.5], [0.4, 0.3, 2.5]], np.float32)
    b, w = np.float32(size), a / np.float32(size)
    calls = [
        (p.projection_l2_ball, x, b),
        (p.projection_l2_sphere, x, b),
        (p.projection_vector, w, a),
        (p.projection_hyperplane, w, a, np.float32(b / 2)),
        (p.projection_halfspace, w, a, np.float32(b / 2)),
    ]

    def gradients(calls):
        return jax.tree.map(np.asarray, [_value_and_gradients(*call) for call in calls])

    actual = gradients(calls)
    with jax.enable_x64(True):
        expected = gradients([(f, *(np.float64(v) for v in arguments)) for f, *arguments in calls])
    for ours, exact in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        if np.max(np.abs(exact)) < 3e38:
            np.testing.assert_allclose(ours, exact, rtol=1e-5, atol=1e-5 * np.max(np.abs(exact)) + 1e-37)
    with jax_defaults():
        theirs = jax.jit(optax.projections.projection_l2_ball)(x, b)
        assert not np.allclose(theirs, expected[0][0], rtol=1e-2, atol=0)


def test_a_zero_vector_defines_no_plane():
    x, zero = jnp.array([1.0, -2.0]), jnp.zeros(2)
    y, dx, da = _value_and_gradients(p.projection_vector, x, zero)
    assert not np.any([y, dx, da])
    for function in (p.projection_hyperplane, p.projection_halfspace):
        y, dx, da, db = _value_and_gradients(function, x, zero, jnp.float32(-1))
        np.testing.assert_array_equal(y, x)
        np.testing.assert_array_equal(dx, [1, 2])
        assert not np.any([*da, db])


def test_a_set_may_be_a_single_point():
    """The numbers are known here, so they are checked; a radius of zero, and a box whose bounds are equal, are fine."""
    names = "hypercube", "linf_ball", "simplex", "l1_ball", "l1_sphere", "l2_ball", "l2_sphere"
    projections = [getattr(p, f"projection_{name}") for name in names]
    x = np.array([0.5, -2.0], np.float32)
    *found, boxed = jax.jit(lambda x: [*(project(x, 0.0) for project in projections), p.projection_box(x, 3.0, 3.0)])(x)
    np.testing.assert_array_equal(found, np.zeros((len(names), 2)))
    np.testing.assert_array_equal(boxed, [3, 3])


def test_complex_vectors_have_a_length():
    x = np.array([3.0 + 4.0j, 0.0, -12.0j], np.complex64)
    np.testing.assert_allclose(jax.jit(p.projection_l2_ball)(x, 6.5), x / 2, rtol=1e-6)
    sphere = jax.jit(lambda x: p.projection_l2_sphere({"a": x, "b": jnp.zeros(1)}, 26.0)["a"])
    np.testing.assert_allclose(sphere(x), 2 * x, rtol=1e-6)
    gradient = jax.jit(jax.grad(lambda x: sphere(x).imag.sum()))(x)
    parts = jax.jit(jax.grad(lambda x: p.projection_l2_sphere(x, 26.0)[1].sum()))(np.stack([x.real, x.imag]))
    np.testing.assert_allclose(gradient, np.asarray(parts[0]) - 1j * np.asarray(parts[1]), atol=1e-6)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    "function", [p.projection_simplex, p.projection_l1_ball, p.projection_l2_ball, p.projection_l2_sphere]
)
def test_second_derivatives(function):
    """They are those of finite differences, and zero where the projection is piecewise linear."""
    x = jnp.asarray(np.random.default_rng(3).normal(size=4))
    jax.test_util.check_grads(jax.jit(function), (x, 0.7), order=2, modes=["rev"], atol=1e-4, rtol=1e-4)


def test_a_nan_is_seen():
    for function in (p.projection_simplex, p.projection_l1_ball, p.projection_l2_ball, p.projection_l2_sphere):
        assert np.isnan(jax.jit(function)(jnp.array([1.0, jnp.nan]))).any()


# --- Error messages ------------------------------------------------------------------------------


def test_what_does_not_fit_is_refused():
    pair = {"w": jnp.ones((2, 3)), "b": jnp.ones(3)}
    with refused("`projection_simplex(tree.w.1=...)` must hold floats, got ", "`tree.w.1.astype(jnp.float32)`."):
        p.projection_simplex({"w": [jnp.ones(2), jnp.arange(3)]})
    with refused("`projection_l1_ball(tree=...)` must be a tree of arrays, got ", "at `f`. `eqx.filter(tree, "):
        p.projection_l1_ball({"w": jnp.ones(2), "f": jnp.tanh})
    with refused("`projection_l2_ball` needs `scale` to be a scalar, got an array of shape (3,)."):
        p.projection_l2_ball(pair, pair["b"])
    with refused("a number or a tree of the same structure as `tree`, which has the leaves `b`, `w`; got `w`."):
        p.projection_box(pair, {"w": 0}, 1)
    with refused("`upper` of shapes that broadcast to those of `tree`, got (2,) and (2, 3) at `w`."):
        p.projection_box(pair, 0, {"w": jnp.ones(2), "b": 1})
    with refused("`a` to be a tree of the same structure as `x`, which has the leaves `b`, `w`; got `w`."):
        p.projection_hyperplane(pair, {"w": pair["w"]}, 1)
    with refused("`projection_vector` needs `a` of shapes equal to those of `x`, got (1,) and (3,) at `b`."):
        p.projection_vector(pair, {**pair, "b": jnp.ones(1)})
    with refused("`projection_halfspace` needs `b` to be a scalar, got an array of shape (3,)."):
        p.projection_halfspace(pair, pair, jnp.ones(3))
    with refused("`projection_simplex(scale=...)` must not be negative."):
        p.projection_simplex(pair, -1)
    with refused("`projection_box` needs `lower <= upper` in every entry."):
        p.projection_box(pair, 1, 0.5)


@pytest.mark.parametrize(
    "function, numbers, message",
    [
        (p.projection_l1_ball, (-1.0,), "`projection_l1_ball(scale=...)` must not be negative."),
        (p.projection_hypercube, (-1.0,), "`projection_hypercube(scale=...)` must not be negative."),
        (p.projection_box, (0.5, 0.4), "`projection_box` needs `lower <= upper` in every entry."),
    ],
)
def test_traced_numbers_are_checked_where_one_debugs(function, numbers, message):
    x, numbers = np.array([1.0, 2.0], np.float32), list(map(np.float32, numbers))
    assert np.isfinite(jax.jit(function)(x, *numbers)).all()
    error, _ = checkify.checkify(jax.jit(function))(x, *numbers)
    assert message in str(error.get())
    error, _ = checkify.checkify(jax.jit(function))(x, *(abs(s) * np.float32(k) for k, s in enumerate(numbers, 1)))
    assert error.get() is None


def test_numbers_that_are_known_leave_no_check_in_the_program():
    """Which would make it slower to call."""
    x = jnp.ones(3)
    calls = [p.projection_simplex, p.projection_l2_ball, lambda x: p.projection_box(x, -1, np.ones(3))]
    assert not functools.reduce(operator.or_, [jax.make_jaxpr(f)(x).effects for f in calls])
