import numpy as np
import optax
import scipy.special

from modulax import losses

from ._case import Case

MASK = np.array([[1, 1, 1, 0], [1, 0, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1], [0, 0, 1, 0]], bool)


def _lists(rng):
    return {"logits": rng.normal(size=(5, 4)), "labels": np.abs(rng.normal(size=(5, 4)))}


def _masked(rng):
    return {**_lists(rng), "weights": rng.uniform(size=(5, 4)), "where": MASK, "reduce_fn": None}


def _masked_mean(rng):
    labels = rng.integers(0, 3, size=(5, 4))
    return {"logits": rng.normal(size=(5, 4)), "labels": labels, "weights": rng.uniform(size=(5, 1)), "where": MASK}


def _oracle(logits, labels, where=None, weights=1.0, reduce_fn=np.mean):
    where = np.ones(logits.shape, bool) if where is None else where
    lists = zip(logits, labels * weights, where, strict=True)
    values = [-(y[w] @ scipy.special.log_softmax(s[w])) if w.any() else 0.0 for s, y, w in lists]
    return np.array(values) if reduce_fn is None else np.mean(values, where=where.any(-1))


def _case(arguments, twin, name="", **options):
    misfits = {"labels": (5, 1)}
    return Case(
        losses.ranking_softmax_loss, arguments, _oracle, twin, name, floats=("logits",), misfits=misfits, **options
    )


CASES = (
    _case(_lists, optax.losses.ranking_softmax_loss, numbers=("labels",), batched=("logits", "labels")),
    _case(_masked, optax.losses.ranking_softmax_loss, "where", numbers=("labels",)),
    _case(_masked_mean, None, "mean of masked lists", numbers=("weights",)),
)
