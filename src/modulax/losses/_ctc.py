"""Connectionist temporal classification: the likelihood of labels of which nobody knows when they are said."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from .._support.arguments import chosen, floating, integral, real, widened
from .._support.value_checks import checked

# The logarithm of zero in between: below whatever has a probability, and finite, so that differences of it are.
LOG_ZERO = -1e30


def ctc_loss(
    logits: ArrayLike,
    logit_paddings: ArrayLike,
    labels: ArrayLike,
    label_paddings: ArrayLike,
    *,
    blank_id: int = 0,
    log_epsilon: ArrayLike = -1e5,
) -> Float[Array, " batch"]:
    r"""Connectionist temporal classification: for a sequence of labels, if nobody knows at which frames they are said.

    At every frame the model says a label or nothing, the blank $\varnothing$. An alignment $\pi$ is one class for every
    frame; what it says, $\mathcal B(\pi)$, is found by merging the equal classes that follow each other and dropping
    the blanks: $\mathcal B(a\, a\, \varnothing\, a\, b\, \varnothing) = a\, a\, b$. The loss is the negative logarithm
    of the probability of all alignments that say the labels $y$,

    $$
    L = -\log \sum_{\pi \,:\, \mathcal B(\pi) = y} \; \prod_t \operatorname{softmax}(x_t)_{\pi_t} \; \ge 0.
    $$

    **Labels that cannot be said** have the probability zero: there are more labels than frames, or no frame for the
    blank that must stand between equal labels, or the logits of their class are $-\infty$. Their loss is
    `-log_epsilon` and its derivatives are zero, so that such an example moves nothing; it can be found by its loss.

    A label that is none, since it is out of range or the blank, makes the loss of its sequence NaN. Wrap the function
    in `jax.experimental.checkify.checkify` to be told so.

    Args:
        logits: $x$, floats of shape `(batch, frames, classes)`.
        logit_paddings: of shape `(batch, frames)`: zero for a frame, one for what is none. What logits hold there does
            not matter, not even if it is NaN.
        labels: $y$, integers of shape `(batch, labels)`.
        label_paddings: of shape `(batch, labels)`: zero for a label, then one for what is none. What labels hold there
            does not matter.
        blank_id: the class of the blank.
        log_epsilon: what stands for the logarithm of zero in the result; in float16, which does not reach so far, the
            lowest number.

    Returns:
        A value for every sequence, in the dtype of the logits.

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
    r"""`ctc_loss`, and the probabilities it is made of: how far the labels have been said at every frame.

    With $p_t = \operatorname{softmax}(x_t)$, the forward probabilities are those of all alignments of the frames
    $1, \dots, t$ that say the first $n$ labels, and end in a blank or in the label $y_n$:

    $$
    \begin{aligned}
    \alpha^\varnothing_t(n) &= p_t(\varnothing) \left(\alpha^\varnothing_{t-1}(n) + \alpha^y_{t-1}(n)\right), \\
    \alpha^y_t(n) &= p_t(y_n) \left(\alpha^y_{t-1}(n) + \alpha^\varnothing_{t-1}(n-1) + [y_n \ne y_{n-1}] \,
    \alpha^y_{t-1}(n-1)\right),
    \end{aligned}
    $$

    from $\alpha^\varnothing_0(0) = 1$. The sum of the two at the last frame, for all the labels, is the probability
    whose negative logarithm is the loss.

    Args:
        logits: $x$, floats of shape `(batch, frames, classes)`.
        logit_paddings: of shape `(batch, frames)`: zero for a frame, one for what is none.
        labels: $y$, integers of shape `(batch, labels)`.
        label_paddings: of shape `(batch, labels)`: zero for a label, then one for what is none.
        blank_id: the class of the blank.
        log_epsilon: what stands for the logarithm of zero in the results; in float16, which does not reach so far, the
            lowest number.

    Returns:
        * The loss, of shape `(batch,)`.
        * $\log \alpha^\varnothing_t(n)$ for $n$ from zero, of shape `(frames, batch, labels + 1)`. The last frame has
          the sum of the two instead, $\log(\alpha^\varnothing_t(n) + \alpha^y_t(n))$.
        * $\log \alpha^y_t(n)$ for $n$ from one, of shape `(frames, batch, labels)`.

        A padded frame repeats the one before it.

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
    """A batch of sequences. The batch is the last axis, so that a shift by a label moves whole rows."""

    log_blank: Float[Array, "frames 1 batch"]
    log_label: Float[Array, "frames labels batch"]  # impossible where there is no label
    is_frame: Bool[Array, "frames 1 batch"]
    is_repeated: Bool[Array, "labels batch"]  # a label like the one before it; of the first it does not matter
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
    """The dtype of the result, and what was given, checked and in at least float32."""
    (logits,), (labels,) = floating(owner, logits=logits), integral(owner, labels=labels)
    labels = labels.astype(jnp.int32)  # uint8 does not reach the number of the last class
    logit_paddings, label_paddings = real(owner, logit_paddings=logit_paddings, label_paddings=label_paddings)
    _check_shapes(owner, logits, logit_paddings, labels, label_paddings)
    classes = logits.shape[-1]
    if not 0 <= blank_id < classes:
        raise ValueError(
            f"`{owner}(blank_id={blank_id})` must be a class from 0 to {classes - 1}: `logits` has the shape "
            f"{logits.shape}."
        )
    is_frame, is_label = ~logit_paddings.astype(bool), ~label_paddings.astype(bool)
    is_class = (labels >= 0) & (labels < classes) & (labels != blank_id)
    needed = f"classes from 0 to {classes - 1} other than {blank_id}, the blank, wherever `label_paddings` is zero"
    x = checked(logits, is_class | ~is_label, f"`{owner}(labels=...)` must hold {needed}.")
    needed = "zeros and then ones in every row: labels come first"
    x = checked(x, is_label[:, :-1] | ~is_label[:, 1:], f"`{owner}(label_paddings=...)` must be {needed}.")

    dtype, (x,) = widened(x)
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
        log_epsilon=jnp.maximum(jnp.asarray(log_epsilon, x.dtype), float(jnp.finfo(dtype).min)),
    )


def _check_shapes(owner: str, logits: Array, logit_paddings: Array, labels: Array, label_paddings: Array) -> None:
    def check(name: str, x: Array, fits: bool, needed: str) -> None:
        if not fits:
            raise ValueError(f"`{owner}` needs `{name}` of shape {needed}, got {x.shape}.")

    check("logits", logits, logits.ndim == 3, "(batch, frames, classes)")
    batch, frames, _ = logits.shape
    beside = f"beside `logits` of shape {logits.shape}"
    check("logit_paddings", logit_paddings, logit_paddings.shape == (batch, frames), f"{batch, frames} {beside}")
    check("labels", labels, labels.ndim == 2 and labels.shape[0] == batch, f"({batch}, labels) {beside}")
    beside = f"beside `labels` of shape {labels.shape}"
    check("label_paddings", label_paddings, label_paddings.shape == labels.shape, f"{labels.shape} {beside}")


def _forward(sequences: _Sequences, keep: bool) -> tuple[Array, Any]:
    """How probable the first labels are, for each number of them, after all frames; and after each frame, if kept."""
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
    # Of finite numbers, which spares the questions that `jnp.logaddexp` must ask.
    return jnp.maximum(x, y) + jnp.log1p(jnp.exp(-jnp.abs(x - y)))


@_log_add.defjvp
def _log_add_jvp(primals, tangents):
    # The shares of the two add up to one, so that rounding errors do not pile up over the frames.
    (x, y), (dx, dy) = primals, tangents
    return _log_add(x, y), dy + jax.nn.sigmoid(x - y) * (dx - dy)


def _loss(total: Array, sequences: _Sequences) -> Array:
    """The negative logarithm of the probability of as many labels as there are."""
    return _surprise(jnp.take_along_axis(total, sequences.length[None, :], 0)[0], sequences.log_epsilon)


def _surprise(log_p: Array, log_epsilon: Array) -> Array:
    """The negative logarithm of a probability: never negative, whatever was rounded, and finite if that is zero."""
    surprise = jnp.where(log_p < LOG_ZERO / 2, -log_epsilon, -log_p)
    return surprise + jax.lax.stop_gradient(jnp.maximum(-surprise, 0))
