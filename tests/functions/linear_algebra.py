import numpy as np
import optax
import scipy.optimize

from modulax import linalg

from ..differences import Difference
from ._case import Case


def _problem(*shape):
    """Columns that are not far from orthogonal, so that few steps are enough; two numbers in the solution are zero."""

    def make(rng):
        a = np.eye(7, 4) + 0.1 * rng.normal(size=(7, 4))
        x = np.array([1.0, -2, 2, -1])
        return {"A": a, "b": (a @ x + 0.1 * rng.normal(size=(*shape, 7))).T, "iters": 300}

    return make


def _nnls(A, b, iters, L=None):
    columns = [scipy.optimize.nnls(A, column)[0] for column in np.reshape(b, (len(b), -1)).T]
    return np.stack(columns, axis=-1).reshape(A.shape[1:] + b.shape[1:])


CASES = (
    Case(linalg.nnls, _problem(), _nnls, optax.nnls, floats=("A",), numbers=("b",), misfits={"b": (4,)}),
    Case(linalg.nnls, _problem(2), _nnls, optax.nnls, "columns", floats=("A",), numbers=("b",), misfits={"b": (4, 2)}),
    Case(
        linalg.nnls,
        lambda rng: {**_problem()(rng), "L": np.array(2.0)},
        _nnls,
        optax.nnls,
        "bound",
        floats=("A",),
        numbers=("b",),
    ),
)

FUNCTION_DIFFERENCES = (
    Difference(
        "`hungarian_algorithm` of large integers",
        "the least cost, exactly",
        "costs are rounded to floats: a larger one",
        "integers can be added exactly",
        "test_assignment.py::test_large_integers_are_added_up_exactly",
    ),
    Difference(
        "`base_hungarian_algorithm` where every assignment has an infinite cost",
        "as few forbidden pairs as possible",
        "a column -1",
        "an assignment is asked for",
        "test_assignment.py::test_as_few_forbidden_pairs_as_possible",
    ),
    Difference(
        "`power_iteration` of a matrix of zeros",
        "the eigenvalue zero",
        "NaN",
        "every vector is an eigenvector",
        "test_linear_algebra.py::test_power_iteration_of_zeros",
    ),
    Difference(
        "`power_iteration` where a number and its negative are the largest eigenvalues",
        "one of them, and its eigenvector",
        "a number between them, and no eigenvector",
        "the vectors go to and fro between two, whose combinations are eigenvectors",
        "test_linear_algebra.py::test_two_opposite_eigenvalues",
    ),
    Difference(
        "`power_iteration` and `matrix_inverse_pth_root` of matrices with large or small entries",
        "as of all others",
        "NaN",
        "no square may overflow or vanish",
        "test_linear_algebra.py::test_the_size_of_the_entries_does_not_matter",
    ),
    Difference(
        "`matrix_inverse_pth_root` for `p` other than 1, 2, 4, 8",
        "the root",
        "something else, and a small error",
        "the power that Newton's iteration needs is rounded to one of these",
        "test_linear_algebra.py::test_the_inverse_root_is_that_of_the_eigenvalues",
    ),
    Difference(
        "`matrix_inverse_pth_root` of a matrix of zeros",
        "a multiple of the identity",
        "NaN in float32",
        "the ridge is what remains",
        "test_linear_algebra.py::test_the_inverse_root_of_singular_matrices",
    ),
    Difference(
        "`matrix_inverse_pth_root` of a matrix of ones",
        "the root",
        "a multiple of the identity, for `p=2`",
        "the distance from the identity is a norm that falls in every step",
        "test_linear_algebra.py::test_the_inverse_root_of_singular_matrices",
    ),
    Difference(
        "`nnls` before it has converged",
        "nearer to the solution",
        "farther from it",
        "the momentum starts anew when it points uphill, and no step is made twice",
        "test_linear_algebra.py::test_nnls_needs_fewer_steps",
    ),
)
