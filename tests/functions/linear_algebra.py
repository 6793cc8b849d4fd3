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


def _nnls(A, b, iters, unroll=1, L=None):
    columns = [scipy.optimize.nnls(A, column)[0] for column in np.reshape(b, (len(b), -1)).T]
    return np.stack(columns, axis=-1).reshape(A.shape[1:] + b.shape[1:])


CASES = (
    Case(linalg.nnls, _problem(), _nnls, optax.nnls, floats=("A",), numbers=("b",), misfits={"b": (4,)}),
    Case(linalg.nnls, _problem(2), _nnls, optax.nnls, "columns", floats=("A",), numbers=("b",), misfits={"b": (4, 2)}),
    Case(
        linalg.nnls,
        lambda rng: {**_problem()(rng), "L": np.array(2.0), "unroll": 2},
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
        "the exact minimum cost",
        "rounds costs to floats: not the minimum",
        "integers can be summed exactly",
        "test_assignment.py::test_large_integers_are_added_up_exactly",
    ),
    Difference(
        "`base_hungarian_algorithm` where every assignment has an infinite cost",
        "as few forbidden pairs as possible",
        "a column of -1",
        "the result must be an assignment",
        "test_assignment.py::test_as_few_forbidden_pairs_as_possible",
    ),
    Difference(
        "`hungarian_algorithm` of costs of $-\\infty$",
        "invalid, as in SciPy: avoided, and reported by `checkify`",
        "such pairs come first",
        "sums that contain $-\\infty$ cannot be compared",
        "test_assignment.py::test_mistakes_end_and_are_valid_pairs",
    ),
    Difference(
        "`power_iteration` of a matrix of zeros",
        "the eigenvalue zero",
        "NaN",
        "every vector is an eigenvector",
        "test_linear_algebra.py::test_power_iteration_of_zeros",
    ),
    Difference(
        "`power_iteration` if the two largest eigenvalues are λ and −λ",
        "one of the two, with its eigenvector",
        "a value between them, and a vector that is not an eigenvector",
        "the iterates alternate between two vectors, which span the eigenvectors",
        "test_linear_algebra.py::test_two_opposite_eigenvalues",
    ),
    Difference(
        "`power_iteration` and `matrix_inverse_pth_root` of matrices with large or small entries",
        "correct",
        "NaN",
        "squares must not overflow or underflow",
        "test_linear_algebra.py::test_the_size_of_the_entries_does_not_matter",
    ),
    Difference(
        "`matrix_inverse_pth_root` for `p` other than 1, 2, 4, 8",
        "the root",
        "a wrong result, with a small reported error",
        "optax rounds the exponent of the Newton iteration to one of these",
        "test_linear_algebra.py::test_the_inverse_root_is_that_of_the_eigenvalues",
    ),
    Difference(
        "`matrix_inverse_pth_root` of a matrix of zeros",
        "a multiple of the identity",
        "NaN in float32",
        "only the ridge remains",
        "test_linear_algebra.py::test_the_inverse_root_of_singular_matrices",
    ),
    Difference(
        "`matrix_inverse_pth_root` of a matrix of ones",
        "the root",
        "a multiple of the identity, for `p=2`",
        "the error must be measured in a norm that decreases in every step",
        "test_linear_algebra.py::test_the_inverse_root_of_singular_matrices",
    ),
    Difference(
        "`nnls` before it has converged",
        "closer to the solution",
        "farther from the solution",
        "the momentum restarts when it points uphill, and no step is repeated",
        "test_linear_algebra.py::test_nnls_needs_fewer_steps",
    ),
)
