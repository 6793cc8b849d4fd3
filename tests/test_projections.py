"""Projections: the laws of a nearest point, trees, values at the edges, and error messages."""

import functools
import operator
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.test_util
import numpy as np
import optax
import pytest
import scipy.optimize
from jax.experimental import checkify

from modulax import projections as p

from .functions.projections import simplex
from .settings import jax_defaults

N = 6
A = np.array([0.5, -1.0, 2.0, 0.0, 1.5, -0.3])


class Set(NamedTuple):
    """A set, its projection, points of it from normal and uniform numbers, and by how much a point is outside."""

    name: str
    project: Callable[[Any], Any]
    points: Callable[[np.ndarray, np.ndarray], np.ndarray]
    outside: Callable[[Any], Any]
    is_convex: bool = True

    def __str__(self) -> str:
        return self.name


def _shares(z):
    return np.abs(z) / np.abs(z).sum(-1, keepdims=True)


def _directions(z):
    return z / np.linalg.norm(z, axis=-1, keepdims=True)


def _onto_plane(z):
    return z + ((0.7 - z @ A) / (A @ A))[:, None] * A


SETS = (
    Set("non_negative", p.projection_non_negative, lambda z, u: np.abs(z), lambda x: jnp.max(-x)),
    Set(
        "box",
        lambda x: p.projection_box(x, -0.5, jnp.asarray(A) ** 2),
        lambda z, u: -0.5 + u * (A**2 + 0.5),
        lambda x: jnp.max(jnp.maximum(-0.5 - x, x - A**2)),
    ),
    Set("hypercube", p.projection_hypercube, lambda z, u: u, lambda x: jnp.max(jnp.maximum(-x, x - 1))),
    Set(
        "linf_ball",
        lambda x: p.projection_linf_ball(x, 0.5),
        lambda z, u: u - 0.5,
        lambda x: jnp.max(jnp.abs(x)) - 0.5,
    ),
    Set(
        "simplex",
        lambda x: p.projection_simplex(x, 2.0),
        lambda z, u: 2 * _shares(z),
        lambda x: jnp.maximum(jnp.max(-x), jnp.abs(jnp.sum(x) - 2)),
    ),
    Set(
        "l1_ball",
        lambda x: p.projection_l1_ball(x, 2.0),
        lambda z, u: 2 * u[:, :1] * _shares(z) * np.sign(z),
        lambda x: jnp.sum(jnp.abs(x)) - 2,
    ),
    Set(
        "l1_sphere",
        lambda x: p.projection_l1_sphere(x, 2.0),
        lambda z, u: 2 * _shares(z) * np.sign(z),
        lambda x: jnp.abs(jnp.sum(jnp.abs(x)) - 2),
        is_convex=False,
    ),
    Set(
        "l2_ball",
        lambda x: p.projection_l2_ball(x, 1.5),
        lambda z, u: 1.5 * u[:, :1] * _directions(z),
        lambda x: jnp.linalg.norm(x) - 1.5,
    ),
    Set(
        "l2_sphere",
        lambda x: p.projection_l2_sphere(x, 1.5),
        lambda z, u: 1.5 * _directions(z),
        lambda x: jnp.abs(jnp.linalg.norm(x) - 1.5),
        is_convex=False,
    ),
    Set(
        "vector",
        lambda x: p.projection_vector(x, jnp.asarray(A)),
        lambda z, u: z[:, :1] * A,
        lambda x: jnp.linalg.norm(x - x[0] / A[0] * A),
    ),
    Set(
        "hyperplane",
        lambda x: p.projection_hyperplane(x, jnp.asarray(A), 0.7),
        lambda z, u: _onto_plane(z),
        lambda x: jnp.abs(x @ jnp.asarray(A) - 0.7),
    ),
    Set(
        "halfspace",
        lambda x: p.projection_halfspace(x, jnp.asarray(A), 0.7),
        lambda z, u: _onto_plane(z) - u[:, :1] * A,
        lambda x: x @ jnp.asarray(A) - 0.7,
    ),
)


@pytest.mark.parametrize("of", SETS, ids=str)
@pytest.mark.usefixtures("x64")
def test_the_result_is_the_nearest_point(of: Set):
    """P x is the point of a convex set nearest to x if and only if ⟨x - P x, z - P x⟩ ≤ 0 for all z of the set."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(100, N)) * rng.choice([0.1, 1, 10], size=(100, 1))
    z = of.points(rng.normal(size=(200, N)), rng.uniform(size=(200, N)))

    def project(x):
        y = of.project(x)
        return y, of.project(y), of.outside(y)

    (y, twice, outside), of_points = jax.jit(lambda x, z: (jax.vmap(project)(x), jax.vmap(of.outside)(z)))(x, z)
    y, twice = np.asarray(y), np.asarray(twice)
    assert np.max(outside) < 1e-12
    assert np.max(of_points) < 1e-12
    np.testing.assert_allclose(twice, y, atol=1e-13)
    if of.is_convex:
        obtuse = np.einsum("in,ijn->ij", x - y, z - y[:, None])
        assert np.max(obtuse) < 1e-11
        moved, apart = np.linalg.norm(y[1:] - y[:-1], axis=-1), np.linalg.norm(x[1:] - x[:-1], axis=-1)
        assert np.all(moved <= apart * (1 + 1e-12))
    else:
        distances = np.linalg.norm(x[:, None] - z, axis=-1)
        assert np.all(np.linalg.norm(x - y, axis=-1, keepdims=True) <= distances * (1 + 1e-12))


@pytest.mark.usefixtures("x64")
def test_the_simplex_by_quadratic_programming():
    x = np.array([0.3, -1.0, 0.8, 0.7, 0.2])
    solution = scipy.optimize.minimize(
        lambda y: ((x - y) ** 2).sum(),
        np.full(5, 0.2),
        jac=lambda y: 2 * (y - x),
        bounds=[(0, None)] * 5,
        constraints={"type": "eq", "fun": lambda y: y.sum() - 1},
        tol=1e-14,
    )
    np.testing.assert_allclose(jax.jit(p.projection_simplex)(x), solution.x, atol=1e-7)


# --- Trees ---------------------------------------------------------------------------------------


def _tree(x: Any) -> dict[str, Any]:
    return {"w": x[:4].reshape(2, 2), "none": None, "b": (x[4], x[5:5], x[5:])}


@pytest.mark.parametrize("of", SETS, ids=str)
@pytest.mark.usefixtures("x64")
def test_a_tree_is_one_vector(of: Set):
    """All leaves together are projected, whatever their shapes; a tree of bounds, or of `a`, has its structure."""
    trees = {
        "box": lambda x: p.projection_box(x, -0.5, _tree(jnp.asarray(A) ** 2)),
        "vector": lambda x: p.projection_vector(x, _tree(A)),
        "hyperplane": lambda x: p.projection_hyperplane(x, _tree(A), 0.7),
        "halfspace": lambda x: p.projection_halfspace(x, _tree(A), 0.7),
    }
    x = np.random.default_rng(1).normal(size=N)
    project = trees.get(of.name, of.project)
    expected, actual = jax.jit(lambda x: (_tree(of.project(x)), project(_tree(x))))(x)
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-14, atol=1e-15), actual, expected)


def test_the_leaves_keep_their_dtypes():
    tree = {"a": jnp.array([0.3, 2.0], jnp.bfloat16), "b": jnp.array(1.5), "c": jnp.array([0.1], jnp.float16), "d": 0.5}
    dtypes = {"a": jnp.bfloat16, "b": jnp.float32, "c": jnp.float16, "d": jnp.float32}
    wide = jax.tree.map(lambda x: np.asarray(x, np.float64), tree)

    @jax.jit
    def project(tree):
        return [
            p.projection_non_negative(tree),
            p.projection_box(tree, jax.tree.map(np.negative, wide), np.float64(1)),
            p.projection_linf_ball(tree, np.float64(1)),
            p.projection_simplex(tree, jnp.float64(1)),
            p.projection_l1_ball(tree, jnp.float64(1)),
            p.projection_l2_ball(tree, jnp.float64(1)),
            p.projection_halfspace(tree, wide, 1),
        ]

    with jax.enable_x64(True):
        results = project(tree)
    for result in results:
        assert {name: x.dtype for name, x in result.items() if name != "d"} == {
            name: dtype for name, dtype in dtypes.items() if name != "d"
        }
    simplex = jax.tree.map(lambda x: np.asarray(x, np.float64), results[3])
    np.testing.assert_allclose(sum(x.sum() for x in simplex.values()), 1, rtol=1e-2)


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
    of_radius = (
        p.projection_hypercube,
        p.projection_linf_ball,
        p.projection_simplex,
        p.projection_l1_ball,
        p.projection_l1_sphere,
        p.projection_l2_ball,
        p.projection_l2_sphere,
    )
    x = np.array([0.5, -2.0], np.float32)
    *found, boxed = jax.jit(lambda x: [*(project(x, 0.0) for project in of_radius), p.projection_box(x, 3.0, 3.0)])(x)
    np.testing.assert_array_equal(found, np.zeros((len(of_radius), 2)))
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

PAIR = {"w": jnp.ones((2, 3)), "b": jnp.ones(3)}


@pytest.mark.parametrize(
    "call, message",
    [
        (
            lambda: p.projection_simplex({"w": [jnp.ones(2), jnp.arange(3)]}),
            "`projection_simplex(tree.w.1=...)` must hold floats, got an array of dtype int32 and shape (3,). If that "
            "is intended, convert it: `tree.w.1.astype(jnp.float32)`.",
        ),
        (
            lambda: p.projection_l1_ball({"w": jnp.ones(2), "f": jnp.tanh}),
            "`projection_l1_ball(tree=...)` must be a tree of arrays, got an object of type `PjitFunction` at `f`. "
            "`eqx.filter(tree, eqx.is_inexact_array)` keeps the arrays of a model.",
        ),
        (
            lambda: p.projection_l2_ball(PAIR, PAIR["b"]),
            "`projection_l2_ball` needs `scale` to be a scalar, got an array of shape (3,).",
        ),
        (
            lambda: p.projection_box(PAIR, {"w": 0}, 1),
            "`projection_box` needs `lower` to be a number or a tree of the same structure as `tree`, which has the "
            "leaves `b`, `w`; got `w`.",
        ),
        (
            lambda: p.projection_box(PAIR, 0, {"w": jnp.ones(2), "b": 1}),
            "`projection_box` needs `upper` of shapes that broadcast to those of `tree`, got (2,) and (2, 3) at `w`.",
        ),
        (
            lambda: p.projection_hyperplane(PAIR, {"w": jnp.ones((2, 3))}, 1),
            "`projection_hyperplane` needs `a` to be a tree of the same structure as `x`, which has the leaves `b`, "
            "`w`; got `w`.",
        ),
        (
            lambda: p.projection_vector(PAIR, {"w": jnp.ones((2, 3)), "b": jnp.ones(1)}),
            "`projection_vector` needs `a` of shapes equal to those of `x`, got (1,) and (3,) at `b`.",
        ),
        (
            lambda: p.projection_halfspace(PAIR, PAIR, jnp.ones(3)),
            "`projection_halfspace` needs `b` to be a scalar, got an array of shape (3,).",
        ),
        (lambda: p.projection_simplex(PAIR, -1), "`projection_simplex(scale=...)` must not be negative."),
        (lambda: p.projection_box(PAIR, 1, 0.5), "`projection_box` needs `lower <= upper` in every entry."),
    ],
)
def test_error_messages(call, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        call()


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
