import numpy as np
import optax

from modulax import losses

from ._case import Case


def _signs(rng):
    return {"predictor_outputs": rng.normal(size=(5, 4)), "targets": np.where(rng.normal(size=(5, 4)) > 0, 1, -1)}


def _labels(rng):
    return {"scores": 2 * rng.normal(size=(5, 2, 4)), "labels": rng.integers(0, 4, size=(5, 2))}


def _binary(margin):
    return lambda predictor_outputs, targets: np.maximum(margin - targets * predictor_outputs, 0)


def _multiclass(margin):
    def row(scores, label):
        others = np.delete(scores, label)
        return max(0, others.max() + margin - scores[label])

    return np.vectorize(row, signature="(n),()->()")


def _of_signs(function, margin, twin):
    floats = ("predictor_outputs",)
    return Case(
        function, _signs, _binary(margin), twin, "", floats, batched=(*floats, "targets"), misfits={"targets": (5, 1)}
    )


def _of_labels(function, margin, twin):
    return Case(
        function,
        _labels,
        lambda scores, labels: _multiclass(margin)(scores, labels),
        twin,
        floats=("scores",),
        batched=("scores", "labels"),
        misfits={"labels": (5, 1)},
        said_of_labels=f"`{function.__name__}(labels=...)` must hold class indices from 0 to 3.",
    )


CASES = (
    _of_signs(losses.hinge_loss, 1, optax.hinge_loss),
    _of_signs(losses.perceptron_loss, 0, optax.losses.perceptron_loss),
    _of_labels(losses.multiclass_hinge_loss, 1, optax.losses.multiclass_hinge_loss),
    _of_labels(losses.multiclass_perceptron_loss, 0, optax.losses.multiclass_perceptron_loss),
)
