"""Power iteration, inverse roots and non-negative least squares: by decompositions, at the edges, errors."""

import functools
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.optimize

from modulax import linalg

from .refusals import refused
from .settings import jax_defaults

FULL_LOOP = {"num_iters": 5000, "error_tolerance": 1e-12}


def _symmetric(eigenvalues, seed: int = 0, is_complex: bool = False) -> np.ndarray:
    rng = np.random.default_rng(seed)
    shape = (len(eigenvalues), len(eigenvalues))
    x = rng.normal(size=shape) + (1j * rng.normal(size=shape) if is_complex else 0)
    q, _ = np.linalg.qr(x)
    return (q * eigenvalues) @ q.conj().T


def _inverse_root(matrix, p, ridge=1e-6) -> np.ndarray:
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * (np.maximum(values, 0) + ridge * max(values[-1], 1e-16)) ** (-1 / p)) @ vectors.conj().T


def _optax(function, *args, **kwargs):
    with jax_defaults():
        return function(*args, **kwargs)


# One program for all calls with arrays of one shape, whatever the numbers.
power_iteration = jax.jit(linalg.power_iteration)
inverse_root = jax.jit(linalg.matrix_inverse_pth_root)  # of an exponent that is traced
inverse_root_of = jax.jit(linalg.matrix_inverse_pth_root, static_argnums=1)
their_power_iteration = jax.jit(optax.power_iteration)
their_inverse_root = jax.jit(optax.matrix_inverse_pth_root)


# --- Power iteration -----------------------------------------------------------------------------


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    "matrix",
    [
        _symmetric([3.0, 1, -2]),
        _symmetric([-3.0, 1, 2]),
        np.array([[2.0, 1, 0], [0, 0.5, 1], [0, 0, -1]]),
    ],
    ids=["positive", "negative", "not symmetric"],
)
def test_power_iteration_equals_optax(matrix):
    value, vector = power_iteration(jnp.asarray(matrix))
    expected, expected_vector = _optax(their_power_iteration, jnp.asarray(matrix))
    np.testing.assert_allclose(value, expected, rtol=1e-12)
    np.testing.assert_allclose(vector, expected_vector, atol=1e-12)
    eigenvalues = np.linalg.eigvals(matrix)
    np.testing.assert_allclose(value, eigenvalues[np.argmax(np.abs(eigenvalues))], rtol=1e-5)
    np.testing.assert_allclose(matrix @ vector, value * vector, atol=1e-5)


@pytest.mark.usefixtures("x64")
def test_power_iteration_of_hermitian_matrices():
    matrix = _symmetric([1.0, -4, 3], is_complex=True)
    value, vector = power_iteration(jnp.asarray(matrix), **FULL_LOOP)
    np.testing.assert_allclose(value, -4, rtol=1e-12)
    np.testing.assert_allclose(matrix @ vector, -4 * vector, atol=1e-10)
    assert vector.dtype == complex


@pytest.mark.usefixtures("x64")
def test_power_iteration_of_a_function_of_a_tree():
    matrix = _symmetric([3.0, 1, 0.5, -2])

    def product(tree):
        z = matrix @ jnp.concatenate([tree["a"].ravel(), tree["b"]])
        return {"a": z[:2].reshape(1, 2), "b": z[2:]}

    v0 = {"a": jnp.ones((1, 2)), "b": jnp.ones(2)}
    value, vector = jax.jit(lambda v0: linalg.power_iteration(product, v0=v0))(v0)
    expected, expected_vector = _optax(jax.jit(lambda v0: optax.power_iteration(product, v0=v0)), v0)
    np.testing.assert_allclose(value, expected, rtol=1e-12)
    chex.assert_trees_all_close(vector, expected_vector, atol=1e-12)


def test_a_function_is_given_the_dtypes_of_v0():
    matrix = jnp.diag(jnp.array([1, 4], jnp.bfloat16))
    value, vector = jax.jit(lambda v0: linalg.power_iteration(lambda v: matrix @ v, v0=v0))(jnp.ones(2, jnp.bfloat16))
    assert value.dtype == vector.dtype == jnp.bfloat16
    assert value == 4


def test_the_dtype_is_the_one_of_the_matrix_and_of_v0_together():
    for of_matrix, of_start, expected in (
        (jnp.bfloat16, None, jnp.bfloat16),
        (jnp.bfloat16, jnp.float32, jnp.float32),
        (jnp.float32, jnp.complex64, jnp.complex64),
    ):
        v0 = None if of_start is None else jax.ShapeDtypeStruct((2,), of_start)
        value, vector = jax.eval_shape(power_iteration, jax.ShapeDtypeStruct((2, 2), of_matrix), v0=v0)
        assert value.dtype == vector.dtype == expected
    tree = {"a": jnp.ones(1, jnp.complex64), "b": jnp.ones(1)}  # with leaves of which some are complex
    _, vector = jax.eval_shape(lambda v0: linalg.power_iteration(lambda v: v, v0=v0), tree)
    assert [x.dtype for x in jax.tree.leaves(vector)] == [jnp.complex64, jnp.float32]


def test_the_limits_of_a_function_and_the_length_of_its_start():
    @jax.jit
    def vector(start, num_iters, error_tolerance):
        limits = {"num_iters": num_iters, "error_tolerance": error_tolerance}
        return linalg.power_iteration(lambda v: jnp.array([2.0, 1.0]) * v, v0=start, **limits)[1]

    for size, num_iters, tolerance, steps in (
        (1.0, 2, 0.0, 3),
        (1e30, 2, 0.0, 3),
        (1e-30, 2, 0.0, 3),
        (1.0, 9, 0.4, 1),
    ):
        found = vector(jnp.full(2, size), num_iters, tolerance)  # at the start the residual is a third
        np.testing.assert_allclose(found[0] / found[1], 2.0**steps, rtol=1e-6)


def test_the_default_start_is_random_and_has_all_signs():
    @jax.jit
    def start(key):
        return linalg.power_iteration(jnp.eye(8, dtype=jnp.complex64), num_iters=0, key=key)[1]

    one, other = start(jax.random.key(0)), start(jax.random.key(1))
    assert not np.any(np.isclose(one, other))
    assert min(one.real) < 0 < max(one.real)
    assert min(one.imag) < 0 < max(one.imag)


def test_all_products_have_the_precision():
    def products(function, **options):
        text = str(jax.make_jaxpr(functools.partial(function, **options))(jnp.eye(2)))
        found = re.findall(r"precision=\(Precision\.(\w+), Precision\.(\w+)\)", text)
        assert len(found) == text.count("dot_general")
        return {x for pair in found for x in pair}

    for function in (linalg.power_iteration, functools.partial(linalg.matrix_inverse_pth_root, p=3)):
        assert products(function) == {"HIGHEST"}
        assert products(function, precision=jax.lax.Precision.HIGH) == {"HIGH"}


def test_power_iteration_of_zeros():
    value, vector = power_iteration(jnp.zeros((3, 3)))
    assert value == 0
    np.testing.assert_allclose(np.linalg.norm(vector), 1, rtol=1e-6)
    assert np.isnan(_optax(their_power_iteration, jnp.zeros((3, 3)))[0])
    value, vector = power_iteration(jnp.eye(3), v0=jnp.zeros(3))
    assert value == 0
    assert not np.any(vector)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    "matrix",
    [np.diag([2.0, -2, 0.3]), np.array([[0, 8.0, 0], [2, 0, 0], [0, 0, 1]]), _symmetric([5.0, -5, 5])],
    ids=["diagonal", "not symmetric", "three"],
)
def test_two_opposite_eigenvalues(matrix):
    largest = np.max(np.abs(np.linalg.eigvals(matrix)))
    value, vector = power_iteration(jnp.asarray(matrix))
    np.testing.assert_allclose(np.abs(value), largest, rtol=1e-12)
    np.testing.assert_allclose(matrix @ vector, value * vector, atol=1e-8)
    np.testing.assert_allclose(np.linalg.norm(vector), 1)
    value, vector = _optax(their_power_iteration, jnp.asarray(matrix))
    assert np.abs(matrix @ vector - value * vector).max() > 0.1


@pytest.mark.usefixtures("x64")
def test_forward_derivatives_are_those_of_the_eigenpair():
    matrix, direction = _symmetric([3.0, 1, -2]), _symmetric([1.0, 2, 4], seed=1)
    (value, vector), (dvalue, dvector) = jax.jvp(
        lambda a: linalg.power_iteration(a, **FULL_LOOP), (jnp.asarray(matrix),), (jnp.asarray(direction),)
    )
    np.testing.assert_allclose(dvalue, vector @ direction @ vector, rtol=1e-9)
    residual = direction @ vector + matrix @ dvector - dvalue * vector - value * dvector
    np.testing.assert_allclose(residual, 0, atol=1e-8)


def test_the_size_of_the_entries_does_not_matter():
    matrix, sizes = _symmetric([3.0, 1, 0.2]), np.array([1e-35, 1e-20, 1e20, 1e35])
    scaled = jnp.asarray(matrix * sizes[:, None, None], jnp.float32)
    values, (roots, errors) = jax.jit(
        jax.vmap(lambda a: (linalg.power_iteration(a)[0], linalg.matrix_inverse_pth_root(a, 4)))
    )(scaled)
    np.testing.assert_allclose(values / sizes, 3, rtol=1e-5)
    np.testing.assert_allclose(roots * sizes[:, None, None] ** 0.25, [_inverse_root(matrix, 4)] * 4, atol=2e-5)
    assert np.all(errors < 1e-5)
    for a in scaled:
        assert np.isnan(_optax(their_power_iteration, a)[0])
        assert np.isnan(_optax(their_inverse_root, a, 4)[0]).any()


# --- Inverse roots -------------------------------------------------------------------------------


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("p", [1, 2, 3, 4, 6, 8])
def test_the_inverse_root_is_that_of_the_eigenvalues(p: int):
    matrix = _symmetric([3.0, 0.1, 1e-3])
    expected = _inverse_root(matrix, p)
    tight = {"error_tolerance": 1e-13}
    root, error = inverse_root_of(jnp.asarray(matrix), p, **tight)
    np.testing.assert_allclose(root, expected, rtol=0, atol=1e-10 * expected.max())
    assert error < 1e-10
    traced, _ = inverse_root(jnp.asarray(matrix), p, **tight)
    np.testing.assert_allclose(traced, expected, rtol=0, atol=1e-10 * expected.max())
    theirs, _ = _optax(their_inverse_root, jnp.asarray(matrix), p, **tight)
    assert np.allclose(theirs, expected, rtol=0, atol=1e-10 * expected.max()) == (p in (1, 2, 4, 8))


@pytest.mark.parametrize("p", [1, 2, 4])
def test_the_inverse_root_of_singular_matrices(p: int):
    ones = np.ones((3, 3))
    for matrix in (np.zeros((3, 3)), np.eye(3), ones, _symmetric([1.0, 1, 1e-9]), np.array([[4.0]]), np.array([[0.0]])):
        expected = _inverse_root(matrix, p, 1e-3)
        root, error = inverse_root(jnp.asarray(matrix, jnp.float32), p, ridge_epsilon=1e-3)
        np.testing.assert_allclose(root, expected, rtol=0, atol=3e-4 * np.abs(expected).max())
        assert error < 1e-4
    assert np.isnan(_optax(their_inverse_root, jnp.zeros((3, 3)), p)[0]).any()
    if p == 2:
        theirs, _ = _optax(their_inverse_root, jnp.ones((3, 3)), p, ridge_epsilon=1e-3)
        assert not np.any(theirs - np.diag(np.diag(theirs)))


def test_the_inverse_root_ends_with_the_best_that_rounding_allows():
    """Also without a ridge, also where there is no root."""
    for eigenvalues in ([1.0, 1e-7, 1e-7], [1.0, -0.5, 0.2], [-1.0, -2.0, -2.0]):
        matrix = jnp.asarray(_symmetric(eigenvalues), jnp.float32)
        root, error = inverse_root(matrix, 2, ridge_epsilon=0.0, error_tolerance=0.0)
        chex.assert_tree_all_finite(root)
        assert np.isfinite(error)
    root, error = inverse_root(jnp.full((3, 3), jnp.nan), 2)
    assert np.isnan(root).all()
    assert np.isnan(error)


def test_the_inverse_root_after_few_steps():
    """The error is that of the result: the largest entry, not a norm."""
    for num_iters, last, left in ((0, 1.0, 0.5), (1, 1.5, 0.25)):
        root, error = inverse_root(jnp.diag(jnp.array([1.0, 0.5])), 1, num_iters=num_iters, ridge_epsilon=0.0)
        np.testing.assert_allclose(root, [[1, 0], [0, last]], atol=1e-5)
        np.testing.assert_allclose(error, left, atol=1e-5)


def test_the_exponent_may_be_any_integer():
    for p in (2, np.int64(2), np.array(2), jnp.array([2])):
        nothing, error = linalg.matrix_inverse_pth_root(jnp.zeros((0, 0), jnp.complex64), p)
        assert nothing.shape == (0, 0)
        assert error == 0
        assert error.dtype == jnp.float32
    with refused("`matrix_inverse_pth_root(p=...)` must hold integers, got ", "float32"):
        jax.eval_shape(linalg.matrix_inverse_pth_root, jnp.eye(2), 2.0)


def test_the_inverse_root_of_hermitian_and_of_low_precision_matrices():
    matrix = _symmetric([3.0, 1, 0.1], is_complex=True)
    root, _ = inverse_root_of(jnp.asarray(matrix, jnp.complex64), 2)
    np.testing.assert_allclose(root, _inverse_root(matrix, 2), atol=1e-5)
    for dtype in (jnp.bfloat16, jnp.float16):
        low = jnp.asarray(_symmetric([3.0, 1, 0.5]), dtype)
        root, error = inverse_root_of(low, 2)
        assert root.dtype == dtype
        assert error.dtype == jnp.float32
        expected = _inverse_root(np.asarray(low, np.float64), 2)
        np.testing.assert_allclose(np.asarray(root, np.float64), expected, rtol=1.1 * float(jnp.finfo(dtype).eps))


def test_inverse_roots_of_a_batch_and_their_forward_derivatives():
    matrices = jnp.asarray(
        np.stack([_symmetric([3.0, 1, 0.1]), _symmetric([1.0, 1, 1]), np.zeros((3, 3))]), jnp.float32
    )

    def both(matrix):
        return jax.jvp(lambda a: linalg.matrix_inverse_pth_root(a, 1)[0], (matrix,), (matrix,))

    roots, derivatives = jax.jit(jax.vmap(both))(matrices)
    for matrix, root in zip(matrices, roots, strict=True):
        np.testing.assert_allclose(root, inverse_root(matrix, 1)[0], rtol=1e-4, atol=1e-6)
    inverse = np.linalg.inv(np.asarray(matrices[0], np.float64))  # the inverse of (1 + t) A is 1 / (1 + t) of it
    np.testing.assert_allclose(derivatives[0], -inverse, atol=1e-2)
    chex.assert_tree_all_finite(derivatives)


# --- Non-negative least squares ------------------------------------------------------------------


nnls = jax.jit(linalg.nnls, static_argnums=2)


def _random_problem(m: int, n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(m, n)), rng.normal(size=m)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("shape", [(8, 5), (5, 8), (12, 12)], ids=str)
def test_nnls_solves_the_problem(shape):
    a, b = _random_problem(*shape)
    x = nnls(jnp.asarray(a), jnp.asarray(b), 500)
    assert np.all(x >= 0)
    np.testing.assert_allclose(np.linalg.norm(a @ x - b), scipy.optimize.nnls(a, b)[1], rtol=1e-9, atol=1e-9)


@pytest.mark.usefixtures("x64")
def test_nnls_needs_fewer_steps():
    a, b = _random_problem(20, 20)
    least = scipy.optimize.nnls(a, b)[1]
    for steps in (10, 100):
        ours, theirs = (
            np.linalg.norm(a @ _optax(function, jnp.asarray(a), jnp.asarray(b), steps) - b) - least
            for function in (nnls, jax.jit(optax.nnls, static_argnums=2))
        )
        assert ours < theirs * (0.9 if steps == 10 else 1e-3)


def test_nnls_at_the_edges():
    both = jax.jit(jax.value_and_grad(lambda a, b: jnp.sum(linalg.nnls(a, b, 10))))
    zeros, ones = jnp.zeros((3, 2)), jnp.ones((3, 2))
    for a, b in ((zeros, ones[:, 0]), (ones, zeros[:, 0]), (ones, -ones[:, 0]), (zeros[:0], zeros[:0, 0])):
        x, gradient = both(a, b)
        assert x == 0
        chex.assert_tree_all_finite(gradient)
    assert nnls(ones[:, :0], ones[:, 0], 5).shape == (0,)
    assert not np.any(nnls(ones, ones[:, 0], 0))
    assert not np.any(nnls(zeros, ones[:, 0], 5, L=0.0))


def test_the_size_of_the_entries_of_a_problem_does_not_matter():
    a, b = (jnp.asarray(x, jnp.float32) for x in _random_problem(8, 5))
    sizes = jnp.array([1e-30, 1, 1e30])
    expected = np.broadcast_to(nnls(a, b, 200), (3, 5))
    for scale_a in (jnp.ones(3), sizes):
        solve = jax.jit(jax.vmap(lambda s, t: linalg.nnls(a * s, b * t, 200, unroll=2)))
        solutions = solve(scale_a, sizes) * (scale_a / sizes)[:, None]
        np.testing.assert_allclose(solutions, expected, rtol=1e-4, atol=1e-6)


def test_a_bound_is_one_of_the_problem_whatever_its_size():
    a, b = (jnp.asarray(x, jnp.float32) for x in _random_problem(8, 5))
    bound = jnp.linalg.norm(a.T @ a)
    expected = nnls(a, b, 200, L=bound)
    np.testing.assert_allclose(nnls(a * 1e-3, b, 200, L=bound * 1e-6) * 1e-3, expected, rtol=1e-4, atol=1e-6)
    # If it is too large, the steps are too short.
    assert not np.allclose(nnls(a, b, 200, L=1e4 * bound), expected, rtol=1e-2)
    program = jax.make_jaxpr(functools.partial(linalg.nnls, iters=6, unroll=3))(a, b)
    assert "unroll=3" in str(program)


# --- Of a preconditioner -------------------------------------------------------------------------


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("is_complex", [False, True])
def test_outer_products_eigenbases_and_their_inverse_roots(is_complex: bool):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, 2, 4)) + (1j * rng.normal(size=(3, 2, 4)) if is_complex else 0)
    x = jnp.asarray(x)
    left, right = (linalg.outer_product(x, side) for side in ("left", "right"))
    np.testing.assert_allclose(left, x @ x.conj().mT)
    np.testing.assert_allclose(right, x.conj().mT @ x)
    basis = np.asarray(linalg.eigenbasis(left))
    diagonal = basis.conj().swapaxes(-1, -2) @ left @ basis
    values = np.linalg.eigvalsh(left)
    np.testing.assert_allclose(diagonal, values[..., None, ::-1] * np.eye(2), atol=1e-12)
    for root, exponents in (
        (linalg.inverse_root(left, 0.25, 1e-3), [0.25] * 3),
        (linalg.inverse_root(left, jnp.array([[0.25], [0.5], [1.0]]), 1e-3), [0.25, 0.5, 1.0]),
    ):
        for one, matrix, exponent in zip(root, left, exponents, strict=True):
            values, vectors = np.linalg.eigh(matrix)
            expected = (vectors * (values + 1e-3) ** -exponent) @ vectors.conj().T
            np.testing.assert_allclose(one, expected, rtol=1e-9)
    # Of a matrix without rank, the eigenvalues are raised to eps.
    np.testing.assert_allclose(linalg.inverse_root(jnp.zeros((2, 2)), 0.5, 1e-4), 100 * np.eye(2))


def test_outer_products_of_huge_matrices_are_finite():
    x = jnp.full((2, 3), 1e30)
    product = linalg.outer_product(x, "left")
    assert np.isfinite(product).all()
    np.testing.assert_allclose(product / product[0, 0], 1)
    with refused("`outer_product(side=...)` must be one of"):
        linalg.outer_product(x, "rows")


# --- Sentences -----------------------------------------------------------------------------------


def test_bad_input_is_refused():
    for name, function in {
        "power_iteration": linalg.power_iteration,
        "matrix_inverse_pth_root": lambda matrix: linalg.matrix_inverse_pth_root(matrix, 2),
    }.items():
        with refused(f"`{name}(matrix=...)` must be a square matrix, ", " shape (2, 3)."):
            function(jnp.ones((2, 3)))
        with refused(f"`{name}(matrix=...)` must be a square ", "(4, 2, 2). `jax.vmap"):
            function(jnp.ones((4, 2, 2)))
        with refused(f"`{name}(matrix=...)` must hold floats, got ", "int32"):
            function(jnp.ones((2, 2), jnp.int32))
    for p in (0, -1, 2.5):
        with refused("`matrix_inverse_pth_root(p=...)` must be a positive integer, got"):
            linalg.matrix_inverse_pth_root(jnp.eye(2), p)
    for function, v0, said in (
        (jnp.eye(2), jnp.ones(3), "`power_iteration` needs `v0` of shape (2,)"),
        (lambda v: v, None, "of a function needs `v0`"),
        (lambda v: v[:1], jnp.ones(2), "the shapes of `v0`, (2,), got (1,)"),
        (lambda v: [v], jnp.ones(2), "the shapes of `v0`, (2,), got [(2,)]"),
        (lambda v: v, jnp.ones(2, int), "`power_iteration(v0=...)` must hold floats, got "),
    ):
        with refused(said):
            linalg.power_iteration(function, v0=v0)
    with refused("`nnls` needs `b` of shape (2,) or (2, k) ", ", got (2, 1, 1)"):
        linalg.nnls(jnp.ones((2, 2)), jnp.ones((2, 1, 1)), 1)
    with refused("`nnls(iters=...)` must be an integer of at least 0, got -1"):
        linalg.nnls(jnp.ones((2, 2)), jnp.ones(2), -1)
