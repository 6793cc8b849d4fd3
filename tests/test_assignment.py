"""Assignments: the least cost, by SciPy; valid pairs whatever the costs are; exact sums of integers."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.experimental import checkify
from scipy.optimize import linear_sum_assignment
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import maximum_bipartite_matching

from modulax.assignment import base_hungarian_algorithm, hungarian_algorithm

from .refusals import refused
from .settings import jax_defaults

BOTH = (hungarian_algorithm, base_hungarian_algorithm)
TWINS = {
    hungarian_algorithm: optax.assignment.hungarian_algorithm,
    base_hungarian_algorithm: optax.assignment.base_hungarian_algorithm,
}
SHAPES = [(1, 4), (6, 6), (5, 8), (8, 5)]


def _pairs(function, costs) -> tuple[np.ndarray, np.ndarray]:
    """The pairs for each matrix of a batch, all in one program: some are solved long before the others."""
    i, j = map(np.asarray, jax.jit(jax.vmap(function))(costs))
    k = min(costs.shape[1:])
    assert i.shape == j.shape == (len(costs), k)
    assert i.dtype == j.dtype == jnp.arange(1).dtype
    for rows, columns in zip(i, j, strict=True):
        assert len(set(rows)) == len(set(columns)) == k
        assert set(rows) <= set(range(costs.shape[1]))
        assert set(columns) <= set(range(costs.shape[2]))
    return i, j


def _sums(function, costs) -> np.ndarray:
    i, j = _pairs(function, costs)
    return np.stack([c[rows, columns] for c, rows, columns in zip(costs, i, j, strict=True)]).astype(np.float64).sum(1)


def _least(costs) -> np.ndarray:
    return np.array([c[linear_sum_assignment(c)].astype(np.float64).sum() for c in costs])


def _tables(shape) -> np.ndarray:
    """Matrices of costs that are hard in different ways."""
    rng = np.random.default_rng(1)
    n, m = shape
    some_forbidden = np.where(rng.uniform(size=shape) < 0.4, np.inf, rng.normal(size=shape))
    some_forbidden[np.arange(min(shape)), rng.permutation(min(shape))] = 1  # so that there is a way
    return np.stack(
        [
            rng.uniform(size=shape),
            rng.normal(size=shape),
            rng.integers(-3, 3, size=shape),
            np.full(shape, -2.0),
            np.outer(np.arange(n), np.arange(m)),  # each search goes through all columns that are taken
            np.outer(np.arange(n), -np.arange(m)),
            np.abs(rng.normal(size=(n, 1)) - rng.normal(size=m)),
            1e6 + rng.integers(0, 9, size=shape),
            rng.uniform(-3e38, 3e38, size=shape),
            rng.normal(size=shape) * 1e-30,
            some_forbidden,
        ]
    ).astype(np.float32)


@pytest.mark.parametrize("function", BOTH)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_cost_is_the_least(function, shape):
    costs = _tables(shape)
    np.testing.assert_allclose(_sums(function, costs), _least(costs), rtol=2e-6, atol=1e-30)


@pytest.mark.usefixtures("x64")
def test_a_large_matrix_in_float64():
    rng = np.random.default_rng(2)
    costs = rng.normal(size=(2, 60, 70))
    np.testing.assert_allclose(_sums(hungarian_algorithm, costs), _least(costs), rtol=1e-13)


@pytest.mark.parametrize("function", BOTH)
@pytest.mark.parametrize("shape", [(6, 6), (5, 8), (8, 5)], ids=str)
def test_the_pairs_are_those_of_optax_in_its_order(function, shape):
    costs = np.random.default_rng(3).normal(size=shape).astype(np.float32)
    with jax_defaults():
        expected = jax.jit(TWINS[function])(costs)
    np.testing.assert_array_equal(jax.jit(function)(costs), expected)
    if function is base_hungarian_algorithm:
        np.testing.assert_array_equal(expected, linear_sum_assignment(costs))


@pytest.mark.parametrize("function", BOTH)
@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)], ids=str)
def test_without_rows_or_columns_there_are_no_pairs(function, shape):
    i, j = jax.jit(function)(jnp.zeros(shape))
    assert i.shape == j.shape == (0,)
    assert i.dtype == j.dtype == jnp.arange(1).dtype


def test_large_integers_are_added_up_exactly():
    rng = np.random.default_rng(4)
    limits = np.iinfo(np.int32)
    costs = np.stack(
        [
            2**30 + rng.integers(0, 3, size=(5, 5)),
            rng.integers(limits.min, limits.max, size=(5, 5)),
            np.where(np.eye(5) > 0, limits.max, limits.min),
            np.where(np.eye(5) > 0, limits.min, limits.max),
        ]
    ).astype(np.int32)
    for function, twin in TWINS.items():
        np.testing.assert_array_equal(_sums(function, costs), _least(costs))
        with jax_defaults():
            i, j = jax.jit(twin)(costs[0])
        assert costs[0][i, j].astype(np.float64).sum() > _least(costs)[0]


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint32, bool])
def test_integers_of_all_sizes(dtype):
    limits = (0, 1) if dtype is bool else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    costs = np.random.default_rng(5).integers(*limits, size=(3, 4, 6), endpoint=True).astype(dtype)
    np.testing.assert_array_equal(_sums(hungarian_algorithm, costs), _least(costs))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_integers_that_no_float64_holds(dtype):
    costs = (2**60 + np.random.default_rng(6).integers(0, 3, size=(5, 5))).astype(dtype)
    i, j = jax.jit(hungarian_algorithm)(costs)
    rows, columns = linear_sum_assignment((costs - dtype(2**60)).astype(np.int32))
    assert sum(map(int, costs[i, j])) == sum(map(int, costs[rows, columns]))


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_sums_beyond_a_low_precision(dtype):
    costs = np.random.default_rng(7).uniform(3e4, 6e4, size=(3, 6, 6)).astype(dtype)
    wide = costs.astype(np.float64)
    i, j = _pairs(hungarian_algorithm, costs)
    sums = [c[rows, columns].sum() for c, rows, columns in zip(wide, i, j, strict=True)]
    np.testing.assert_allclose(sums, _least(wide), rtol=1e-6)


def test_as_few_forbidden_pairs_as_possible():
    """If forbidden pairs cannot be avoided, the others are a largest matching of the pairs that are allowed."""
    rng = np.random.default_rng(8)
    costs = np.where(rng.uniform(size=(20, 6, 7)) < 0.8, np.inf, rng.normal(size=(20, 6, 7))).astype(np.float32)
    costs[0], costs[1, :, :6] = np.inf, np.inf
    expected = [(maximum_bipartite_matching(csr_matrix(np.isfinite(c))) >= 0).sum() for c in costs]
    assert min(expected) < 6
    for function in BOTH:
        i, j = _pairs(function, costs)
        allowed = [np.isfinite(c[rows, columns]).sum() for c, rows, columns in zip(costs, i, j, strict=True)]
        assert allowed == expected
    with jax_defaults():
        _, columns = optax.assignment.base_hungarian_algorithm(jnp.array([[jnp.inf, 1], [jnp.inf, 2]]))
    assert -1 in columns


def test_mistakes_end_and_are_valid_pairs():
    nan, inf = np.nan, np.inf
    costs = np.array(
        [np.full((3, 3), nan), np.full((3, 3), -inf), np.diag([nan, -inf, inf]), *[np.diag([1, 3, 0])] * 3]
    )
    costs[3:, 1, 0], costs[3:, 0, 1] = 2, (-inf, nan, -1e3)
    costs[3:, 2, :2] = costs[3:, :2, 2] = inf
    costs = costs.astype(np.float32)
    for function in BOTH:
        i, j = _pairs(function, costs)
        assert np.all(i[2] != j[2])
        # -inf is as invalid as NaN, and avoided; optax takes it, and SciPy refuses both.
        for rows, columns in zip(i[3:5], j[3:5], strict=True):
            np.testing.assert_array_equal(rows, columns)
        assert {*zip(i[5].tolist(), j[5].tolist(), strict=True)} == {(0, 1), (1, 0), (2, 2)}
    check = checkify.checkify(jax.jit(hungarian_algorithm))
    assert "`hungarian_algorithm(cost_matrix=...)` must not contain NaN or -inf." in str(
        check(jnp.asarray(costs[2]))[0].get()
    )
    assert check(jnp.array([[1.0, inf], [2.0, 3.0]]))[0].get() is None


def test_the_gradient_flows_through_the_costs():
    @jax.jit
    def loss(x, y):
        costs = jnp.abs(x[:, None] - y[None])
        i, j = hungarian_algorithm(costs)
        return jnp.sum(costs[i, j])

    x, y = jnp.array([0.1, 2.2, 1.3]), jnp.array([1.0, 0.0, 2.0])
    np.testing.assert_allclose(loss(x, y), 0.6, rtol=1e-5)
    for differentiate in (jax.grad, jax.jacfwd):
        np.testing.assert_array_equal(differentiate(loss)(x, y), [1, 1, 1])


def test_what_is_no_matrix_of_numbers_is_refused():
    with refused("`hungarian_algorithm(cost_matrix=...)` must be a matrix", "shape (3,)"):
        hungarian_algorithm(jnp.ones(3))
    with refused("`base_hungarian_algorithm(cost_matrix=...)`", "(2, 3, 3)", "`jax.vmap`"):
        base_hungarian_algorithm(jnp.ones((2, 3, 3)))
    with refused("`hungarian_algorithm(cost_matrix=...)` must hold real numbers"):
        hungarian_algorithm(jnp.ones((2, 2), jnp.complex64))
