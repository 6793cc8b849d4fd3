"""Losses of vectors that should be near those that they belong with, and far from the others."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from .._support.arguments import Axes, axes_of, check_one_shape, check_shape, floating, numbers, real, widened
from ._pieces import log_sum_exp, mean, unit


def ntxent(embeddings: ArrayLike, labels: ArrayLike, temperature: ArrayLike = 0.07) -> Float[Array, ""]:
    r"""The cross-entropy of telling a partner from all that are none by the angle between the embeddings.

    With $s_{ij}$ the cosine of the angle between the embeddings $i$ and $j$, divided by the temperature $\tau$, and
    $P$ all ordered pairs of two embeddings of one label,

    $$
    L = -\frac{1}{|P|} \sum_{(i, j) \in P}
        \log \frac{e^{s_{ij}}}{e^{s_{ij}} + \sum_{k : \, y_k \ne y_i} e^{s_{ik}}}
    $$

    For learning representations without classes: two views of one image have one label. With more than two of one
    label, each pair is told from those of other labels, not from the other partners. An embedding without a partner is
    in no pair, but the others are told from it. If there are no pairs, the loss is zero. An embedding of zeros has no
    direction: its cosines are zero, and so is its gradient.

    Args:
        embeddings: floats of shape `(batch, features)`; their lengths do not matter.
        labels: $y$, which embeddings belong together, of shape `(batch,)`.
        temperature: $\tau$, positive; the lower it is, the more the nearest of the others count.

    Returns:
        The mean over all pairs, in the dtype of the embeddings.

    References:
        Chen et al., [A Simple Framework for Contrastive Learning of Visual
        Representations](https://arxiv.org/abs/2002.05709), 2020
    """
    owner = "ntxent"
    (embeddings,) = floating(owner, embeddings=embeddings)
    (labels,) = real(owner, labels=labels)
    if embeddings.ndim != 2:
        raise ValueError(f"`{owner}` needs `embeddings` of shape (batch, features), got {embeddings.shape}.")
    check_shape(owner, "labels", labels, embeddings.shape[:1], "one for every row of `embeddings`")
    dtype, (x,) = widened(embeddings)
    (temperature,) = numbers(owner, x.dtype, temperature=temperature)
    x = unit(x, (1,))
    similarities = jnp.matmul(x, x.T, precision=jax.lax.Precision.HIGHEST) / temperature
    belong = labels[:, None] == labels[None, :]
    # -log(e^s / (e^s + e^o)) = log(1 + e^(o - s)), where o is the logarithm of the sum over the others.
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
    r"""How much a vector lacks to be nearer to a positive than to a negative by a margin.

    $$
    \max\bigl(0, d(a, p) - d(a, n) + m\bigr), \qquad d(x, y) = \Bigl(\sum_i |x_i - y_i|^r + \varepsilon\Bigr)^{1/r}
    $$

    Args:
        anchors: $a$, vectors of floats along `axis`.
        positives: $p$, of the same shape: what the anchors belong with.
        negatives: $n$, of the same shape: what they do not belong with.
        axis: along which the vectors lie; several, or None for all of them.
        norm_degree: $r$, at least one: 2 for Euclidean distances, 1 for sums of absolute differences.
        margin: $m$, by how much the positive should be nearer.
        eps: $\varepsilon$, which makes the distance smooth where two vectors are one.

    Returns:
        A value for every anchor, in the dtype of the anchors.

    References:
        Balntas et al., [Learning Local Feature Descriptors with Triplets and Shallow Convolutional Neural
        Networks](https://bmva-archive.org.uk/bmvc/2016/papers/paper119/index.html), 2016
    """
    owner = "triplet_margin_loss"
    anchors, positives, negatives = floating(owner, anchors=anchors, positives=positives, negatives=negatives)
    check_one_shape(owner, anchors=anchors, positives=positives, negatives=negatives)
    axes = axes_of(owner, axis, "anchors", anchors)
    dtype, (a, p, n) = widened(anchors, positives, negatives)
    degree, margin, eps = numbers(owner, a.dtype, norm_degree=norm_degree, margin=margin, eps=eps)
    distances = _distance(a - p, axes, degree, eps) - _distance(a - n, axes, degree, eps)
    return jnp.maximum(distances + margin, 0).astype(dtype)


def _distance(x: Array, axes: tuple[int, ...], degree: Array, eps: Array) -> Array:
    """The length of the vector; where that is zero, so are its derivatives."""
    total = jnp.sum(jnp.abs(x) ** degree, axes) + eps
    is_zero = total == 0
    root = jnp.where(is_zero, jnp.ones_like(total), total) ** (1 / degree)
    return jnp.where(is_zero, jnp.zeros_like(root), root)
