from typing import Any

import numpy as np
import optax
from scipy import special

from modulax import losses

from ._case import Case


def _log_softmax(x, axis, where):
    return special.log_softmax(np.where(where, x, -np.inf), axis=axis)


def _softmax_cross_entropy(logits, labels, axis=-1, where=True):
    terms = labels * _log_softmax(logits, axis, where)
    return -np.where(where, terms, 0).sum(axis)


def _poly(logits, labels, epsilon=2.0, axis=-1, where=True):
    p = np.exp(_log_softmax(logits, axis, where))
    wrong = np.where(where, labels * (1 - p), 0).sum(axis)
    return _softmax_cross_entropy(logits, labels, axis, where) + epsilon * wrong


def _integer_cross_entropy(logits, labels, axis=-1, where=True):
    axes = axis if isinstance(axis, tuple) else (axis,)
    log_p = np.moveaxis(_log_softmax(logits, axis, where), axes, range(-len(axes), 0)).reshape(*labels.shape, -1)
    return -np.take_along_axis(log_p, labels[..., None], -1)[..., 0]


def _binary(logits, labels):
    return -labels * special.log_expit(logits) - (1 - labels) * special.log_expit(-logits)


def _focal(logits, labels, alpha=None, gamma=2.0):
    p = labels * special.expit(logits) + (1 - labels) * special.expit(-logits)
    weight = 1 if alpha is None else alpha * labels + (1 - alpha) * (1 - labels)
    return weight * (1 - p) ** gamma * _binary(logits, labels)


def _smooth(labels, alpha, axis=-1, where=True):
    n = np.broadcast_to(where, labels.shape).sum(axis, keepdims=True)
    return np.where(where, (1 - alpha) * labels + alpha / n, 0)


def _probabilities(*shape):
    return lambda rng: {"logits": 3 * rng.normal(size=shape), "labels": special.softmax(rng.normal(size=shape), -1)}


def _yes_or_no(*shape):
    return lambda rng: {"logits": 3 * rng.normal(size=shape), "labels": rng.uniform(size=shape)}


def _integers(*shape):
    def make(rng):
        return {"logits": 3 * rng.normal(size=shape), "labels": rng.integers(0, shape[-1], shape[:-1], np.int32)}

    return make


def _with(make, **more):
    return lambda rng: {**make(rng), **more}


MASK = np.arange(20).reshape(5, 4) % 4 != 1
BOTH: dict[str, Any] = {"batched": ("logits", "labels"), "misfits": {"labels": (5, 3)}}
LOGITS: dict[str, Any] = {"floats": ("logits",)}
DENSE: dict[str, Any] = {**LOGITS, "numbers": ("labels",)}


def _dense(function, oracle, twin):
    masked = _with(_probabilities(5, 4), where=MASK)
    common = {**BOTH, "batched": ("logits", "labels", "where")}
    return (
        Case(function, _probabilities(5, 4), oracle, twin, **DENSE, **BOTH),
        # By masked labels, optax has derivatives of NaN.
        Case(function, masked, oracle, twin, "where", **LOGITS, **common),
    )


CASES = (
    *_dense(losses.softmax_cross_entropy, _softmax_cross_entropy, optax.losses.softmax_cross_entropy),
    Case(
        losses.softmax_cross_entropy,
        _with(_probabilities(5, 3, 4), axis=(0, 2)),
        _softmax_cross_entropy,
        optax.losses.softmax_cross_entropy,
        "axes",
        **DENSE,
        misfits={"labels": (5, 2, 4)},
    ),
    Case(
        losses.safe_softmax_cross_entropy,
        _probabilities(5, 4),
        _softmax_cross_entropy,
        optax.losses.safe_softmax_cross_entropy,
        **DENSE,
        **BOTH,
    ),
    *_dense(losses.poly_loss_cross_entropy, _poly, optax.losses.poly_loss_cross_entropy),
    Case(
        losses.poly_loss_cross_entropy,
        lambda rng: {**_probabilities(5, 3, 4)(rng), "axis": (0, 2), "epsilon": rng.normal(size=(2, 3))},
        _poly,
        optax.losses.poly_loss_cross_entropy,
        "epsilon",
        **LOGITS,
        numbers=("labels", "epsilon"),
        misfits={"epsilon": (4,)},
    ),
    Case(
        losses.softmax_cross_entropy_with_integer_labels,
        _integers(5, 4),
        _integer_cross_entropy,
        optax.losses.softmax_cross_entropy_with_integer_labels,
        **LOGITS,
        batched=("logits", "labels"),
        misfits={"labels": (5, 1)},
        said_of_labels="needs `labels` from 0 to 3, one of the 4 classes in `logits`.",
    ),
    Case(
        losses.softmax_cross_entropy_with_integer_labels,
        _with(_integers(5, 4), labels=np.array([0, 2, 3, 3, 0]), where=MASK),
        _integer_cross_entropy,
        optax.losses.softmax_cross_entropy_with_integer_labels,
        "where",
        **LOGITS,
        batched=("logits", "labels", "where"),
        misfits={"where": (5, 3), "labels": (4,)},
    ),
    Case(
        losses.softmax_cross_entropy_with_integer_labels,
        lambda rng: {
            "logits": rng.normal(size=(3, 5, 4)),
            "labels": rng.integers(0, 12, 5),
            "axis": (2, 0),
        },
        _integer_cross_entropy,
        optax.losses.softmax_cross_entropy_with_integer_labels,
        "axes",
        **LOGITS,
        misfits={"labels": (3,)},
    ),
    Case(
        losses.softmax_cross_entropy_with_integer_labels,
        lambda rng: {"logits": rng.normal(size=(5, 4, 3)), "labels": rng.integers(0, 4, (5, 3)), "axis": 1},
        _integer_cross_entropy,
        optax.losses.softmax_cross_entropy_with_integer_labels,
        "axis",
        **LOGITS,
        batched=("logits", "labels"),
    ),
    Case(
        losses.sigmoid_binary_cross_entropy,
        _yes_or_no(5, 4),
        _binary,
        optax.losses.sigmoid_binary_cross_entropy,
        **DENSE,
        **BOTH,
    ),
    Case(losses.sigmoid_focal_loss, _yes_or_no(5, 4), _focal, optax.losses.sigmoid_focal_loss, **DENSE, **BOTH),
    Case(
        losses.sigmoid_focal_loss,
        _with(_yes_or_no(5, 4), alpha=np.array(0.25), gamma=np.array([0.0, 1.0, 2.0, 3.5])),
        _focal,
        optax.losses.sigmoid_focal_loss,
        "alpha and gamma",
        **LOGITS,
        numbers=("labels", "alpha", "gamma"),
        misfits={"alpha": (3,), "gamma": (5,)},
    ),
    Case(
        losses.smooth_labels,
        lambda rng: {"labels": np.eye(4)[rng.integers(0, 4, 5)], "alpha": np.array(0.1)},
        _smooth,
        optax.losses.smooth_labels,
        floats=("labels",),
        numbers=("alpha",),
        batched=("labels",),
        misfits={"alpha": (3,)},
    ),
    Case(
        losses.smooth_labels,
        lambda rng: {"labels": np.eye(4)[[0, 2, 3, 3, 0]], "alpha": np.array(0.1), "where": MASK},
        _smooth,
        None,  # whose masked labels are not zero
        "where",
        floats=("labels",),
        numbers=("alpha",),
        misfits={"where": (5, 3)},
    ),
    Case(
        losses.smooth_labels,
        lambda rng: {"labels": rng.uniform(size=(5, 3, 4)), "alpha": rng.uniform(size=(3, 1)), "axis": (0, 2)},
        _smooth,
        optax.losses.smooth_labels,
        "axes",
        floats=("labels",),
        numbers=("alpha",),
    ),
)
