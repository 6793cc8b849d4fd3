import numpy as np
import optax
import scipy.optimize

from modulax import linalg

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
