"""Connectionist temporal classification (CTC): the likelihood of a label sequence whose alignment is unknown.

How the pieces meet:

* `_sequences` checks the arguments and turns them into log-probabilities of the blank and of every label at every
  frame, in a `_Sequences`. Padded labels get probability zero.
* `_forward` runs the forward recursion over the frames with `jax.lax.scan`. Its result has the log-probability of the
  first $n$ labels for every $n$, of which `_loss` picks the true length of each sequence.
* Probabilities of zero are `LOG_ZERO` inside, so that differences stay finite; `_surprise` turns them into
  `-log_epsilon` at the end.
* There is no hand-written backward recursion: the gradient is that of the scan, for which `_log_add` has a derivative
  rule that doesn't accumulate rounding errors.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from .._plugin.arguments import Requirement, floating, integral, promoted, real_arrays, traced_check
from ._arguments import chosen, scalars

# Stands in for log(0) during the recursion: below any real log-probability, but finite, so that differences are too.
LOG_ZERO = -1e30
_NOT_POSITIVE = Requirement(lambda x: x <= 0, "must not be positive: it stands for the logarithm of zero")


def ctc_loss(
    logits: ArrayLike,
    logit_paddings: ArrayLike,
    labels: ArrayLike,
    label_paddings: ArrayLike,
    *,
    blank_id: int = 0,
    log_epsilon: ArrayLike = -1e5,
) -> Float[Array, " batch"]:
    r"""Compute the CTC loss: the negative log-likelihood of a label sequence whose alignment to the frames is unknown.

    For speech and handwriting recognition. At every frame the model emits a label or the blank $\varnothing$. An
    alignment $\pi$ assigns a class to every frame; merging repeated classes and then dropping blanks yields its label
    sequence $\mathcal B(\pi)$, as in $\mathcal B(a\, a\, \varnothing\, a\, b\, \varnothing) = a\, a\, b$. The loss is
    the negative logarithm of the total probability of all alignments that yield the labels $y$,

    $$
    L = -\log \sum_{\pi \,:\, \mathcal B(\pi) = y} \; \prod_t \operatorname{softmax}(x_t)_{\pi_t} \; \ge 0.
    $$

    **Infeasible label sequences** have probability zero: those with more labels than frames, those without a frame left
    for the blank that must separate two equal labels, and those with a label whose logits are $-\infty$. Their loss is
    `-log_epsilon` with zero derivatives, so they don't affect training, and can be recognized by their loss.

    An invalid label, one that is out of range or is the blank, makes the loss of its sequence NaN. Wrap the function in
    `jax.experimental.checkify.checkify` to get an error instead.

    Args:
        logits: $x$, floats of shape `(batch, frames, classes)`.
        logit_paddings: of shape `(batch, frames)`: 0 for a frame, 1 for padding. Padded logits are ignored, even if
            they are NaN.
        labels: $y$, integers of shape `(batch, labels)`.
        label_paddings: of shape `(batch, labels)`: 0 for a label, then 1 for padding. Padded labels are ignored.
        blank_id: class index of the blank.
        log_epsilon: value used for $\log 0$ in the result, not positive; clipped to the lowest finite number in
            float16, whose range is smaller.

    Returns:
        One loss per sequence, in the dtype of the logits.

    Raises:
        ValueError: if `logits` does not hold floats or `labels` integers, the shapes don't match, `blank_id` is not a
            class, or `log_epsilon` is positive.

    References:
        Graves et al., [Connectionist Temporal Classification: Labelling Unsegmented Sequence Data with Recurrent Neural
        Networks](https://doi.org/10.1145/1143844.1143891), 2006
    """
    arguments = logits, logit_paddings, labels, label_paddings, blank_id, log_epsilon
    dtype, sequences = _sequences("ctc_loss", *arguments)
    total, _ = _forward(sequences, keep=False)
    return _loss(total, sequences).astype(dtype)


def ctc_loss_with_forward_probs(
    logits: ArrayLike,
    logit_paddings: ArrayLike,
    labels: ArrayLike,
    label_paddings: ArrayLike,
    *,
    blank_id: int = 0,
    log_epsilon: ArrayLike = -1e5,
) -> tuple[Float[Array, " batch"], Float[Array, "frames batch positions"], Float[Array, "frames batch labels"]]:
    r"""Compute the CTC loss together with the forward probabilities of its recursion.

    With $p_t = \operatorname{softmax}(x_t)$, the forward probabilities sum over all alignments of the frames $1, \dots,
    t$ that yield the first $n$ labels and end in a blank or in the label $y_n$:

    $$
    \begin{aligned}
    \alpha^\varnothing_t(n) &= p_t(\varnothing) \left(\alpha^\varnothing_{t-1}(n) + \alpha^y_{t-1}(n)\right), \\
    \alpha^y_t(n) &= p_t(y_n) \left(\alpha^y_{t-1}(n) + \alpha^\varnothing_{t-1}(n-1) + [y_n \ne y_{n-1}] \,
    \alpha^y_{t-1}(n-1)\right),
    \end{aligned}
    $$

    from $\alpha^\varnothing_0(0) = 1$. The loss is the negative logarithm of the sum of the two at the last frame for
    all labels.

    Args:
        logits: $x$, floats of shape `(batch, frames, classes)`.
        logit_paddings: of shape `(batch, frames)`: 0 for a frame, 1 for padding.
        labels: $y$, integers of shape `(batch, labels)`.
        label_paddings: of shape `(batch, labels)`: 0 for a label, then 1 for padding.
        blank_id: class index of the blank.
        log_epsilon: value used for $\log 0$ in the results, not positive; clipped to the lowest finite number in
            float16, whose range is smaller.

    Returns:
        * The loss, of shape `(batch,)`.
        * $\log \alpha^\varnothing_t(n)$ for $n$ from zero, of shape `(frames, batch, labels + 1)`. The last frame holds
          the sum of the two instead, $\log(\alpha^\varnothing_t(n) + \alpha^y_t(n))$.
        * $\log \alpha^y_t(n)$ for $n$ from one, of shape `(frames, batch, labels)`.

        A padded frame repeats the values of the frame before it.

    Raises:
        ValueError: under the same conditions as `ctc_loss`.

    References:
        Graves et al., [Connectionist Temporal Classification: Labelling Unsegmented Sequence Data with Recurrent Neural
        Networks](https://doi.org/10.1145/1143844.1143891), 2006, section 4.1
    """
    arguments = logits, logit_paddings, labels, label_paddings, blank_id, log_epsilon
    dtype, sequences = _sequences("ctc_loss_with_forward_probs", *arguments)
    total, (blank, label) = _forward(sequences, keep=True)
    loss = _loss(total, sequences)
    blank = blank.at[-1:].set(-_surprise(total.T, sequences.log_epsilon))
    return loss.astype(dtype), blank.astype(dtype), label.astype(dtype)


class _Sequences(NamedTuple):
    """A batch of sequences. The batch is the last axis, so that a shift by one label moves whole rows."""

    log_blank: Float[Array, "frames 1 batch"]
    log_label: Float[Array, "frames labels batch"]  # LOG_ZERO for padded labels
    is_frame: Bool[Array, "frames 1 batch"]
    is_repeated: Bool[Array, "labels batch"]  # whether a label equals the previous one; unused for the first
    length: Int[Array, " batch"]
    log_epsilon: Float[Array, ""]


def _sequences(
    owner: str,
    logits: ArrayLike,
    logit_paddings: ArrayLike,
    labels: ArrayLike,
    label_paddings: ArrayLike,
    blank_id: int,
    log_epsilon: ArrayLike,
) -> tuple[Any, _Sequences]:
    """Check the arguments; return the dtype of the result, and the log-probabilities in at least float32."""
    (logits,), (labels,) = floating(owner, logits=logits), integral(owner, labels=labels)
    labels = labels.astype(jnp.int32)  # a narrow dtype may not hold the largest class index
    logit_paddings, label_paddings = real_arrays(owner, logit_paddings=logit_paddings, label_paddings=label_paddings)
    _check_shapes(owner, logits, logit_paddings, labels, label_paddings)
    classes = logits.shape[-1]
    if not 0 <= blank_id < classes:
        raise ValueError(
            f"`{owner}(blank_id={blank_id})` must be a class from 0 to {classes - 1}: `logits` has shape "
            f"{logits.shape}."
        )
    is_frame, is_label = ~logit_paddings.astype(bool), ~label_paddings.astype(bool)
    is_class = (labels >= 0) & (labels < classes) & (labels != blank_id)
    needed = f"classes from 0 to {classes - 1} other than {blank_id}, the blank, wherever `label_paddings` is zero"
    x = traced_check(logits, is_class | ~is_label, f"`{owner}(labels=...)` must hold {needed}.")
    needed = "zeros and then ones in every row: labels come first"
    x = traced_check(x, is_label[:, :-1] | ~is_label[:, 1:], f"`{owner}(label_paddings=...)` must be {needed}.")

    dtype, (x,) = promoted(x)
    (log_zero,) = scalars(owner, x.dtype, _NOT_POSITIVE, log_epsilon=log_epsilon)
    log_p = jax.nn.log_softmax(chosen(is_frame[:, :, None], x))
    index = jnp.where(is_class, labels, blank_id)[:, None, :]
    penalty = jnp.where(is_label, jnp.where(is_class, 0, jnp.nan), LOG_ZERO).astype(log_p.dtype)[:, None, :]
    log_label = jnp.take_along_axis(log_p, index, 2, mode="promise_in_bounds")
    return dtype, _Sequences(
        log_blank=jnp.maximum(log_p[:, :, blank_id], LOG_ZERO).T[:, None, :],
        log_label=(jnp.maximum(log_label, LOG_ZERO) + penalty).transpose(1, 2, 0),
        is_frame=is_frame.T[:, None, :],
        is_repeated=(labels == jnp.roll(labels, 1, 1)).T,
        length=jnp.sum(is_label, 1),
        log_epsilon=jnp.maximum(log_zero, float(jnp.finfo(dtype).min)),
    )


def _check_shapes(owner: str, logits: Array, logit_paddings: Array, labels: Array, label_paddings: Array) -> None:
    """Check that the four arrays have matching shapes."""

    def check(name: str, x: Array, fits: bool, needed: str) -> None:
        if not fits:
            raise ValueError(f"`{owner}` needs `{name}` of shape {needed}, got {x.shape}.")

    check("logits", logits, logits.ndim == 3, "(batch, frames, classes)")
    batch, frames, _ = logits.shape
    beside = f"to match `logits` of shape {logits.shape}"
    check("logit_paddings", logit_paddings, logit_paddings.shape == (batch, frames), f"{batch, frames} {beside}")
    check("labels", labels, labels.ndim == 2 and labels.shape[0] == batch, f"({batch}, labels) {beside}")
    beside = f"to match `labels` of shape {labels.shape}"
    check("label_paddings", label_paddings, label_paddings.shape == labels.shape, f"{labels.shape} {beside}")


def _forward(sequences: _Sequences, keep: bool) -> tuple[Array, Any]:
    """Return the log-probability of the first n labels after all frames, for every n; and per frame, if `keep`."""
    labels, batch = sequences.is_repeated.shape
    dtype = sequences.log_blank.dtype

    def merged(blank: Array, label: Array) -> Array:
        return jnp.concatenate([blank[:1], _log_add(blank[1:], label)])

    def step(alphas: tuple[Array, Array], frame: tuple[Array, Array, Array]) -> tuple[tuple[Array, Array], Any]:
        (blank, label), (log_blank, log_label, is_frame) = alphas, frame
        either = merged(blank, label)
        before = jnp.where(sequences.is_repeated, blank[:-1], either[:-1])
        alphas = (
            jnp.where(is_frame, log_blank + either, blank),
            jnp.where(is_frame, log_label + _log_add(label, before), label),
        )
        return alphas, tuple(-_surprise(x.T, sequences.log_epsilon) for x in alphas) if keep else None

    blank = jnp.full((labels + 1, batch), LOG_ZERO, dtype).at[0].set(0)
    label = jnp.full((labels, batch), LOG_ZERO, dtype)
    frames = sequences.log_blank, sequences.log_label, sequences.is_frame
    alphas, kept = jax.lax.scan(step, (blank, label), frames)
    return merged(*alphas), kept


@jax.custom_jvp
def _log_add(x: Array, y: Array) -> Array:
    # Both are finite, so the case distinctions of `jnp.logaddexp` are not needed.
    return jnp.maximum(x, y) + jnp.log1p(jnp.exp(-jnp.abs(x - y)))


@_log_add.defjvp
def _log_add_jvp(primals, tangents):
    # The two weights sum to one exactly, so that rounding errors don't accumulate over the frames.
    (x, y), (dx, dy) = primals, tangents
    return _log_add(x, y), dy + jax.nn.sigmoid(x - y) * (dx - dy)


def _loss(total: Array, sequences: _Sequences) -> Array:
    """The negative log-probability of all labels of each sequence."""
    return _surprise(jnp.take_along_axis(total, sequences.length[None, :], 0)[0], sequences.log_epsilon)


def _surprise(log_p: Array, log_epsilon: Array) -> Array:
    """Negate a log-probability: never negative despite rounding, and `-log_epsilon` for probability zero."""
    surprise = jnp.where(log_p < LOG_ZERO / 2, -log_epsilon, -log_p)
    return surprise + jax.lax.stop_gradient(jnp.maximum(-surprise, 0))
