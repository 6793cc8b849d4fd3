from typing import Any

import numpy as np
import optax

from modulax import losses

from ._case import Case


def _pair(*shape):
    return lambda rng: {"predictions": rng.normal(size=shape), "targets": rng.normal(size=shape)}


def _of_error(function):
    return lambda predictions, targets=0.0: function(predictions - targets)


def _huber(predictions, targets=0.0, delta=1.0):
    size = np.abs(predictions - targets)
    return np.where(size <= delta, size**2 / 2, delta * (size - delta / 2))


def _cosine(predictions, targets, epsilon=0.0, axis=-1, where=True):
    def length(x):
        return np.maximum(np.sqrt((np.where(where, x, 0) ** 2).sum(axis)), epsilon)

    return np.where(where, predictions * targets, 0).sum(axis) / (length(predictions) * length(targets))


def _of_vectors(function, oracle, twin):
    common: dict[str, Any] = {"floats": ("predictions", "targets")}

    exemptions = {"examples": "the mask is one of entries"}

    def masked(rng):
        return {**_pair(5, 4)(rng), "where": np.arange(20).reshape(5, 4) % 4 != 1, "epsilon": np.array(0.1)}

    def axes(rng):
        return {**_pair(5, 3, 4)(rng), "axis": (0, 2)}

    return (
        Case(function, _pair(5, 4), oracle, twin, batched=common["floats"], misfits={"targets": (5, 3)}, **common),
        Case(
            function,
            masked,
            oracle,
            twin,
            "where",
            numbers=("epsilon",),
            exemptions=exemptions,
            misfits={"epsilon": (4,)},
            **common,
        ),
        Case(function, axes, oracle, twin, "axes", **common),
    )


def _of_errors(function, oracle, twin):
    def alone(rng):
        return {"predictions": rng.normal(size=7)}

    return (
        Case(
            function,
            _pair(5, 4),
            oracle,
            twin,
            floats=("predictions",),
            numbers=("targets",),
            batched=("predictions", "targets"),
            misfits={"targets": (5, 1)},
        ),
        Case(function, alone, oracle, twin, "no targets", floats=("predictions",), batched=("predictions",)),
    )


CASES = (
    *_of_errors(losses.squared_error, _of_error(np.square), optax.squared_error),
    *_of_errors(losses.l2_loss, lambda predictions, targets=0.0: (predictions - targets) ** 2 / 2, optax.l2_loss),
    *_of_errors(losses.huber_loss, _huber, optax.huber_loss),
    Case(
        losses.huber_loss,
        lambda rng: {**_pair(5, 4)(rng), "delta": np.array([[0.3, 0.2, 1.0, 0.5]])},
        _huber,
        optax.huber_loss,
        "delta",
        floats=("predictions",),
        numbers=("targets", "delta"),
        misfits={"delta": (2, 5, 4)},
    ),
    *_of_errors(losses.log_cosh, _of_error(lambda e: np.log(np.cosh(e))), optax.log_cosh),
    *_of_vectors(losses.cosine_similarity, _cosine, optax.cosine_similarity),
    *_of_vectors(losses.cosine_distance, lambda **kwargs: 1 - _cosine(**kwargs), optax.cosine_distance),
)
