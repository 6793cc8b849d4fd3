import numpy as np
import optax

from modulax import losses

from ._case import Case
from .projections import simplex


def _sparsemax(scores, labels):
    """The maximum that defines the loss, at the sparsemax."""
    p = np.apply_along_axis(simplex, -1, scores) if scores.size else scores
    maxima = np.sum(p * scores + p * (1 - p) / 2, -1)
    return maxima - np.take_along_axis(scores, labels[..., None], -1)[..., 0]


def _binary_sparsemax(logits, labels):
    """The maximum over the probability of the class that the label is not."""
    x = np.where(labels == 1, -logits, logits)
    p = np.clip((x + 1) / 2, 0, 1)
    return p * x + p * (1 - p)


CASES = (
    Case(
        losses.sparsemax_loss,
        lambda rng: {"logits": 1.5 * rng.normal(size=(5, 4)), "labels": rng.integers(0, 2, size=(5, 4))},
        _binary_sparsemax,
        optax.losses.sparsemax_loss,
        floats=("logits",),
        batched=("logits", "labels"),
        misfits={"labels": (5, 1)},
    ),
    Case(
        losses.multiclass_sparsemax_loss,
        lambda rng: {"scores": rng.normal(size=(5, 4)), "labels": rng.integers(0, 4, size=5)},
        _sparsemax,
        optax.losses.multiclass_sparsemax_loss,
        floats=("scores",),
        batched=("scores", "labels"),
        misfits={"labels": (5, 1)},
        said_of_labels="`multiclass_sparsemax_loss(labels=...)` must hold class indices from 0 to 3.",
    ),
    Case(
        losses.multiclass_sparsemax_loss,
        lambda rng: {"scores": rng.normal(size=(3, 2, 4)), "labels": rng.integers(0, 4, size=(3, 2))},
        _sparsemax,
        name="more axes",
        floats=("scores",),
        misfits={"labels": (3,)},
    ),
)
