import functools
import itertools

import jax.numpy as jnp
import numpy as np
import optax

from modulax import losses

from ._case import Case

LOG_ZERO = -100.0  # in float64 far enough away for optax, and near enough for a tolerance that says something


def said(path, blank):
    """The labels that an alignment says: equal classes that follow each other are merged, and blanks dropped."""
    return tuple(k for k, _ in itertools.groupby(path) if k != blank)


def _log(p):
    return np.log(p) if p else LOG_ZERO


def _forward_probs(logits, logit_paddings, labels, label_paddings, blank_id=0, log_epsilon=LOG_ZERO):
    """The probability of every alignment of every number of frames, added up."""
    assert log_epsilon == LOG_ZERO
    batch, frames, classes = logits.shape
    loss = np.zeros(batch)
    blank = np.full((frames, batch, labels.shape[1] + 1), LOG_ZERO)
    label = np.full((frames, batch, labels.shape[1]), LOG_ZERO)
    for b in range(batch):
        p = np.exp(logits[b]) / np.exp(logits[b]).sum(-1, keepdims=True)
        there = [t for t in range(frames) if not logit_paddings[b, t]]
        y = tuple(labels[b][label_paddings[b] == 0])
        for t in range(frames):
            kept = [s for s in there if s <= t]
            ends: dict = {}
            for path in itertools.product(range(classes), repeat=len(kept)):
                end = said(path, blank_id), not path or path[-1] == blank_id
                ends[end] = ends.get(end, 0) + np.prod([p[s, k] for s, k in zip(kept, path, strict=True)])
            for n in range(len(y) + 1):
                in_label, in_blank = ends.get((y[:n], False), 0), ends.get((y[:n], True), 0)
                blank[t, b, n] = _log(in_blank + in_label * (t == frames - 1))
                if n:
                    label[t, b, n - 1] = _log(in_label)
        loss[b] = -blank[-1, b, len(y)]
    return loss, blank, label


@functools.wraps(optax.ctc_loss_with_forward_probs)
def _optax_forward_probs(**arguments):
    """optax's result, without the traces of `log_epsilon` that it leaves where the result is undefined."""
    loss, *alphas = optax.ctc_loss_with_forward_probs(**arguments)
    lengths = np.sum(arguments["label_paddings"] == 0, 1)[:, None]

    def cleaned(x, first):
        is_there = (first + np.arange(x.shape[-1]) <= lengths) & (x > LOG_ZERO / 2)
        return jnp.where(is_there, x, LOG_ZERO)

    return loss, cleaned(alphas[0], 0), cleaned(alphas[1], 1)


def _arguments(rng):
    return {
        "logits": rng.normal(size=(4, 5, 3)),
        "logit_paddings": np.array([[0.0, 0, 0, 0, 0], [0, 0, 0, 0, 1], [0, 0, 0, 0, 0], [0, 1, 1, 1, 1]]),
        "labels": np.array([[1, 2, 1], [2, 2, 0], [1, 0, 0], [2, 0, 0]]),
        "label_paddings": np.array([[0.0, 0, 0], [0, 0, 1], [1, 1, 1], [0, 1, 1]]),
        "log_epsilon": LOG_ZERO,
    }


def _other_blank(rng):
    arguments = _arguments(rng)
    return {**arguments, "labels": (arguments["labels"] + 2) % 3, "blank_id": 2}


def _cases(function, oracle, twin, exemptions, said_of_labels=""):
    common = {
        "floats": ("logits",),
        "batched": ("logits", "logit_paddings", "labels", "label_paddings"),
        "misfits": {"logits": (4, 5), "logit_paddings": (4, 3), "labels": (2, 3), "label_paddings": (4, 2)},
        "exemptions": exemptions,
        "said_of_labels": said_of_labels,
    }
    return (
        Case(function, _arguments, oracle, twin, **common),
        Case(function, _other_blank, oracle, twin, "blank", floats=("logits",)),
    )


CASES = (
    *_cases(
        losses.ctc_loss,
        lambda **arguments: _forward_probs(**arguments)[0],
        optax.ctc_loss,
        {},
        "`ctc_loss(labels=...)` must hold classes from 0 to 2 other than 0, the blank, wherever",
    ),
    *_cases(
        losses.ctc_loss_with_forward_probs,
        _forward_probs,
        _optax_forward_probs,
        {"empty": "the examples are along the second axis of the forward probabilities"},
    ),
)
