import numpy as np
import optax

from modulax import numerics

from ..differences import Difference
from ._case import Case


def _norm(x, min_norm, ord=None, axis=None, keepdims=False):
    return np.maximum(np.linalg.norm(x, ord, axis, keepdims), min_norm)


def _rms(x, min_rms):
    return np.maximum(np.sqrt(np.mean(np.abs(x) ** 2)), min_rms)


def _of_rows(**others):
    return lambda rng: {"x": rng.normal(size=(5, 4)), "min_norm": np.array(1.6), "axis": 1, **others}


def _whole(name):
    return lambda rng: {"x": rng.normal(size=(5, 4)), name: np.array(0.3)}


_BY = ("x", "min_norm")

CASES = (
    Case(numerics.safe_norm, _of_rows(), _norm, optax.safe_norm, "rows", batched=("x",), numbers=_BY),
    Case(numerics.safe_norm, _whole("min_norm"), _norm, optax.safe_norm, "whole", numbers=_BY),
    Case(numerics.safe_norm, _of_rows(ord=3, keepdims=True), _norm, optax.safe_norm, "cubes", numbers=_BY),
    Case(
        numerics.safe_norm,
        lambda rng: {"x": rng.normal(size=(2, 4, 3)), "min_norm": np.array(2.9), "ord": "nuc", "axis": (2, 1)},
        _norm,
        optax.safe_norm,
        "nuclear",
        numbers=_BY,
    ),
    Case(
        numerics.safe_root_mean_squares,
        _whole("min_rms"),
        _rms,
        optax.safe_root_mean_squares,
        numbers=("x", "min_rms"),
    ),
)

FUNCTION_DIFFERENCES = (
    Difference(
        "`safe_norm` and `safe_root_mean_squares` of large and of small entries",
        "their norm",
        "infinity or the least value, once a square overflows or vanishes",
        "the entries are divided by the largest one before they are squared",
        "test_numerics.py::test_squares_neither_overflow_nor_vanish",
    ),
    Difference(
        "`safe_norm` with a least value for each row",
        "takes it",
        "fails, or compares rows with columns",
        "`keepdims` is none of its business",
        "test_numerics.py::test_a_least_norm_for_every_row",
    ),
    Difference(
        "`scale_gradient` by a traced number, and in forward mode",
        "works; what is computed of the gradient can be differentiated by the number",
        "an error",
        "both derivatives are linear",
        "test_numerics.py::test_the_scale_of_a_gradient_may_be_traced_and_differentiated",
    ),
)
