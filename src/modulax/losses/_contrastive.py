"""Contrastive and triplet losses: pull embeddings that belong together closer, push the others apart."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from .._plugin.arguments import (
    NON_NEGATIVE,
    POSITIVE,
    Axes,
    Requirement,
    axes_of,
    check_one_shape,
    floating,
    promoted,
    real_arrays,
)
from ._arguments import check_shape, scalars
from ._shared import log_sum_exp, mean, unit

_DEGREE = Requirement(lambda x: (x >= 1) & (x + 1 > x), "must be a finite number of at least 1")


def ntxent(embeddings: ArrayLike, labels: ArrayLike, temperature: ArrayLike = 0.07) -> Float[Array, ""]:
    r"""Compute the NT-Xent contrastive loss: normalized temperature-scaled cross-entropy, as in SimCLR.

    With $s_{ij}$ the cosine similarity of the embeddings $i$ and $j$ divided by the temperature $\tau$, and $P$ the set
    of ordered pairs of two embeddings with the same label,

    $$
    L = -\frac{1}{|P|} \sum_{(i, j) \in P}
        \log \frac{e^{s_{ij}}}{e^{s_{ij}} + \sum_{k : \, y_k \ne y_i} e^{s_{ik}}}
    $$

    Use it for self-supervised representation learning, where the two views of an image share a label. If more than two
    embeddings share a label, each positive pair is contrasted with the embeddings of other labels only, not with the
    other positives. An embedding without a partner forms no positive pair, but still serves as a negative. Without any
    pair the loss is zero. A zero embedding has no direction: its cosine similarities and its gradient are zero.

    Args:
        embeddings: floats of shape `(batch, features)`; they are normalized to unit length first.
        labels: $y$, of shape `(batch,)`: embeddings with the same label are positives of each other.
        temperature: $\tau$, the positive softmax temperature; the lower it is, the more the hardest negatives dominate.

    Returns:
        The mean over all positive pairs, in the dtype of the embeddings.

    Raises:
        ValueError: if `embeddings` is not a matrix of floats, `labels` is not real with one entry per row, or
            `temperature` is not a positive scalar.

    References:
        Chen et al., [A Simple Framework for Contrastive Learning of Visual
        Representations](https://arxiv.org/abs/2002.05709), 2020
    """
    owner = "ntxent"
    (embeddings,) = floating(owner, embeddings=embeddings)
    (labels,) = real_arrays(owner, labels=labels)
    if embeddings.ndim != 2:
        raise ValueError(f"`{owner}` needs `embeddings` of shape (batch, features), got {embeddings.shape}.")
    check_shape(owner, "labels", labels, embeddings.shape[:1], "one for every row of `embeddings`")
    dtype, (x,) = promoted(embeddings)
    (temperature,) = scalars(owner, x.dtype, POSITIVE, temperature=temperature)
    x = unit(x, (1,))
    similarities = jnp.matmul(x, x.T, precision=jax.lax.Precision.HIGHEST) / temperature
    belong = labels[:, None] == labels[None, :]
    # -log(e^s / (e^s + e^o)) = log(1 + e^(o - s)), where o is the log-sum-exp over the negatives.
    others = log_sum_exp(jnp.where(belong, -jnp.inf, similarities))
    losses = jnp.logaddexp(others - similarities, jnp.zeros_like(similarities))
    return mean(losses, belong & ~jnp.eye(len(labels), dtype=bool)).astype(dtype)


def triplet_margin_loss(
    anchors: ArrayLike,
    positives: ArrayLike,
    negatives: ArrayLike,
    axis: Axes = -1,
    norm_degree: ArrayLike = 2,
    margin: ArrayLike = 1.0,
    eps: ArrayLike = 1e-6,
) -> Float[Array, "..."]:
    r"""Compute the triplet margin loss: the anchor should be nearer to the positive than to the negative by a margin.

    $$
    \max\bigl(0, d(a, p) - d(a, n) + m\bigr), \qquad d(x, y) = \Bigl(\sum_i |x_i - y_i|^r + \varepsilon\Bigr)^{1/r}
    $$

    Args:
        anchors: $a$, vectors of floats along `axis`.
        positives: $p$, of the same shape: examples that belong with the anchors.
        negatives: $n$, of the same shape: examples that don't.
        axis: axis or axes of the vectors; None means all axes.
        norm_degree: $r \ge 1$, the degree of the norm: 2 for Euclidean distances, 1 for sums of absolute differences.
        margin: $m$, how much nearer the positive should be.
        eps: $\varepsilon \ge 0$, which keeps the distance smooth where two vectors coincide.

    Returns:
        One loss per anchor, in the dtype that anchors, positives and negatives promote to.

    Raises:
        ValueError: if the vectors are not floats of the same shape, `axis` is out of bounds, or one of `norm_degree`,
            `margin` and `eps` is not a real scalar or out of its range.

    References:
        Balntas et al., [Learning Local Feature Descriptors with Triplets and Shallow Convolutional Neural
        Networks](https://bmva-archive.org.uk/bmvc/2016/papers/paper119/index.html), 2016
    """
    owner = "triplet_margin_loss"
    anchors, positives, negatives = floating(owner, anchors=anchors, positives=positives, negatives=negatives)
    check_one_shape(owner, anchors=anchors, positives=positives, negatives=negatives)
    axes = axes_of(owner, axis, "anchors", anchors)
    dtype, (a, p, n) = promoted(anchors, positives, negatives)
    (degree,) = scalars(owner, a.dtype, _DEGREE, norm_degree=norm_degree)
    (eps,) = scalars(owner, a.dtype, NON_NEGATIVE, eps=eps)
    (margin,) = scalars(owner, a.dtype, margin=margin)
    distances = _distance(a - p, axes, degree, eps) - _distance(a - n, axes, degree, eps)
    return jnp.maximum(distances + margin, 0).astype(dtype)


def _distance(x: Array, axes: tuple[int, ...], degree: Array, eps: Array) -> Array:
    """The length of the vectors; where it is zero, its derivatives are zero too."""
    total = jnp.sum(jnp.abs(x) ** degree, axes) + eps
    is_zero = total == 0
    root = jnp.where(is_zero, jnp.ones_like(total), total) ** (1 / degree)
    return jnp.where(is_zero, jnp.zeros_like(root), root)
