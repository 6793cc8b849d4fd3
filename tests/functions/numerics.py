from typing import Any

import numpy as np
import optax

from modulax import numerics

from ._case import Case


def _norm(x, min_norm, ord=None, axis=None, keepdims=False):
    return np.maximum(np.linalg.norm(x, ord, axis, keepdims), min_norm)


def _rms(x, min_rms):
    return np.maximum(np.sqrt(np.mean(np.abs(x) ** 2)), min_rms)


def _of_rows(**others):
    return lambda rng: {"x": rng.normal(size=(5, 4)), "min_norm": np.array(1.6), "axis": 1, **others}


def _whole(name):
    return lambda rng: {"x": rng.normal(size=(5, 4)), name: np.array(0.3)}


_COMMON: dict[str, Any] = {
    "numbers": ("x", "min_norm"),
    "exemptions": {"real numbers": "complex numbers have a norm too"},
}

CASES = (
    Case(numerics.safe_norm, _of_rows(), _norm, optax.safe_norm, "rows", batched=("x",), **_COMMON),
    Case(numerics.safe_norm, _whole("min_norm"), _norm, optax.safe_norm, "whole", **_COMMON),
    Case(numerics.safe_norm, _of_rows(ord=3, keepdims=True), _norm, optax.safe_norm, "cubes", **_COMMON),
    Case(
        numerics.safe_root_mean_squares,
        _whole("min_rms"),
        _rms,
        optax.safe_root_mean_squares,
        **{**_COMMON, "numbers": ("x", "min_rms")},
    ),
)
