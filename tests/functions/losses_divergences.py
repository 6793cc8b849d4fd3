import numpy as np
import optax
import scipy.special

from modulax import losses

from ._case import Case

MASK = np.arange(20).reshape(5, 4) % 4 != 1


def _logarithms(rng, *shape):
    return scipy.special.log_softmax(rng.normal(size=shape), -1)


def _with_targets(rng):
    return {
        "log_predictions": _logarithms(rng, 5, 4),
        "targets": scipy.special.softmax(rng.normal(size=(5, 4)), -1),
        "where": MASK,
    }


def _with_zeros(rng):
    targets = np.abs(rng.normal(size=(5, 3, 4))) * (np.arange(60).reshape(5, 3, 4) % 5 > 0)
    return {"log_predictions": rng.normal(size=(5, 3, 4)), "targets": targets, "axis": (0, 2)}


def _with_log_targets(rng):
    logarithms = {name: _logarithms(rng, 5, 4, 3) for name in ("log_predictions", "log_targets")}
    return {**logarithms, "axis": 1, "where": np.arange(60).reshape(5, 4, 3) % 4 != 1}


def _summed(terms):
    def oracle(log_predictions, targets, axis=-1, where=True):
        return np.sum(terms(targets, np.exp(log_predictions)), axis, where=where)

    return oracle


def _of_log_targets(log_predictions, log_targets, axis=-1, where=True):
    return np.sum(scipy.special.rel_entr(np.exp(log_targets), np.exp(log_predictions)), axis, where=where)


def _of_targets(function, oracle, twin):
    floats = "log_predictions", "targets"
    masked = {"batched": (*floats, "where"), "misfits": {"targets": (5, 3)}}
    return (
        Case(function, _with_targets, oracle, twin, "where", floats, **masked),
        Case(function, _with_zeros, oracle, None, "zeros", floats, is_smooth=False),
    )


CASES = (
    *_of_targets(losses.kl_divergence, _summed(scipy.special.rel_entr), optax.losses.kl_divergence),
    *_of_targets(
        losses.generalized_kl_divergence, _summed(scipy.special.kl_div), optax.losses.generalized_kl_divergence
    ),
    Case(
        losses.kl_divergence_with_log_targets,
        _with_log_targets,
        _of_log_targets,
        optax.losses.kl_divergence_with_log_targets,
        "where",
        floats=("log_predictions", "log_targets"),
        batched=("log_predictions", "log_targets", "where"),
        misfits={"log_targets": (2, 5, 4, 3)},
    ),
)
