import numpy as np
import optax
import scipy.special

from modulax import losses

from ._case import Case


def _soft(rng, *shape):
    return {"predictions": rng.normal(size=shape), "targets": scipy.special.softmax(3 * rng.normal(size=shape), -1)}


def _tversky(rng):
    return {
        **_soft(rng, 2, 3, 2, 3),
        "class_weights": np.array([0.5, 2.0, 1.0]),
        "smooth": np.array(0.3),
        "alpha": np.array(0.2),
        "beta": np.array(0.9),
        "reduction": "sum",
        "ignore_background": True,
        "axis": (0, 1, -2),
    }


def _soft_probabilities(rng):
    return {**_soft(rng, 2, 4, 3), "predictions": rng.dirichlet(np.ones(3), (2, 4)), "apply_softmax": False}


def _probabilities(rng):
    return {**_soft_probabilities(rng), "targets": rng.integers(0, 2, size=(2, 4, 3)), "reduction": "none"}


def _pixels(rng):
    return {
        "predictions": rng.normal(size=(3, 4, 2)),
        "targets": rng.uniform(size=(3, 4, 2)),
        "smooth": np.array(0.3),
    }


def _probabilities_of_pixels(rng):
    pairs = zip(("predictions", "targets"), rng.uniform(size=(2, 3, 4, 2)), strict=True)
    return {**dict(pairs), "apply_sigmoid": False}


def _coefficients(p, t, smooth, alpha, beta, axis):
    overlap, false_positives, false_negatives = (np.sum(x, axis) for x in (p * t, p * (1 - t), (1 - p) * t))
    return (overlap + smooth) / (overlap + alpha * false_positives + beta * false_negatives + smooth)


def _dice(
    predictions,
    targets,
    class_weights=1.0,
    smooth=1.0,
    alpha=0.5,
    beta=0.5,
    apply_softmax=True,
    reduction="mean",
    ignore_background=False,
    axis=None,
):
    p = scipy.special.softmax(predictions, -1) if apply_softmax else predictions
    axis = tuple(range(1, p.ndim - 1)) if axis is None else axis
    values = (1 - _coefficients(p, targets, smooth, alpha, beta, axis)) * class_weights
    values = values[..., 1:] if ignore_background else values
    return {"mean": values.mean(-1), "sum": values.sum(-1), "none": values}[reduction]


def _generalized(predictions, targets, smooth=1.0, apply_softmax=True, ignore_background=False):
    inverses = 1 / (targets.sum((0, 1)) ** 2 + 1e-7)
    weights = len(inverses) * inverses / inverses.sum()
    return _dice(
        predictions, targets, weights, smooth, apply_softmax=apply_softmax, ignore_background=ignore_background
    ).mean()


def _binary(predictions, targets, smooth=1.0, apply_sigmoid=True):
    p = scipy.special.expit(predictions) if apply_sigmoid else predictions
    return 1 - _coefficients(p, targets, smooth, 0.5, 0.5, (1, 2))


_arrays = ("predictions", "targets")
_common = {"floats": ("predictions",), "batched": _arrays}
CASES = (
    Case(
        losses.dice_loss,
        lambda rng: _soft(rng, 2, 3, 2, 3),
        _dice,
        optax.losses.dice_loss,
        misfits={"targets": (2, 3, 2, 4)},
        numbers=("targets",),
        **_common,
    ),
    Case(
        losses.dice_loss,
        _tversky,
        _dice,
        optax.losses.dice_loss,
        "Tversky",
        floats=("predictions",),
        numbers=("targets", "class_weights", "smooth", "alpha", "beta"),
        misfits={"class_weights": (2,), "smooth": (3,)},
    ),
    Case(losses.dice_loss, _probabilities, _dice, None, "probabilities", floats=("predictions",), batched=_arrays),
    Case(
        losses.multiclass_generalized_dice_loss,
        lambda rng: {**_soft(rng, 3, 4, 3), "smooth": np.array(0.3), "ignore_background": True},
        _generalized,
        optax.losses.multiclass_generalized_dice_loss,
        misfits={"targets": (3, 4, 2)},
        numbers=("targets", "smooth"),
        **_common,
    ),
    Case(
        losses.multiclass_generalized_dice_loss,
        _soft_probabilities,
        _generalized,
        name="probabilities",
        floats=("predictions",),
    ),
    Case(
        losses.binary_dice_loss,
        _pixels,
        _binary,
        optax.losses.binary_dice_loss,
        misfits={"targets": (3, 4, 1)},
        numbers=("targets", "smooth"),
        **_common,
    ),
    Case(losses.binary_dice_loss, _probabilities_of_pixels, _binary, name="probabilities", floats=("predictions",)),
)
