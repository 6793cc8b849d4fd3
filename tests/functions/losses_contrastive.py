import numpy as np
import optax

from modulax import losses

from ..differences import Difference
from ._case import Case

_vectors = ("anchors", "positives", "negatives")


def _views(rng):
    labels = rng.permutation([0, 0, 1, 1, 1, 2])
    return {"embeddings": rng.normal(size=(6, 3)), "labels": labels, "temperature": np.array(0.5)}


def _ntxent(embeddings, labels, temperature):
    """Definition (1) of Chen et al., one pair after the other."""
    lengths = np.linalg.norm(embeddings, axis=1)

    def exponential(i, j):
        return np.exp(embeddings[i] @ embeddings[j] / (lengths[i] * lengths[j]) / temperature)

    values = []
    for i, label in enumerate(labels):
        negatives = sum(exponential(i, k) for k, other in enumerate(labels) if other != label)
        for j, other in enumerate(labels):
            if i != j and other == label:
                values.append(-np.log(exponential(i, j) / (exponential(i, j) + negatives)))
    return np.mean(values)


def _triplets(rng):
    return {name: rng.normal(size=(5, 3)) for name in _vectors}


def _triplets_of_degree(rng):
    numbers = {"norm_degree": np.array(1.5), "margin": np.array(0.8), "eps": np.array(0.1)}
    return {**{name: rng.normal(size=(5, 2, 3)) for name in _vectors}, **numbers, "axis": (0, 2)}


def _triplet(anchors, positives, negatives, axis=-1, norm_degree=2.0, margin=1.0, eps=1e-6):
    def distance(x, y):
        return ((np.abs(x - y) ** norm_degree).sum(axis) + eps) ** (1 / norm_degree)

    return np.maximum(distance(anchors, positives) - distance(anchors, negatives) + margin, 0)


CASES = (
    Case(
        losses.ntxent,
        _views,
        _ntxent,
        optax.losses.ntxent,
        floats=("embeddings",),
        numbers=("temperature",),
        batched=("embeddings", "labels"),
        misfits={"labels": (6, 1), "temperature": (6,)},
    ),
    Case(
        losses.triplet_margin_loss,
        _triplets,
        _triplet,
        optax.losses.triplet_margin_loss,
        floats=_vectors,
        batched=_vectors,
        misfits={"negatives": (5, 1), "positives": (3,)},
    ),
    Case(
        losses.triplet_margin_loss,
        _triplets_of_degree,
        _triplet,
        None,
        "degree",
        floats=_vectors,
        numbers=("margin", "eps"),
    ),
)

FUNCTION_DIFFERENCES = (
    Difference(
        "arrays for `temperature`, `margin`, `norm_degree`, `eps`, `smooth`, `alpha` and `beta`",
        "an error; use `jax.vmap`",
        "broadcast",
        "the meaning of an array is undefined",
        "test_functions.py::test_shapes_that_do_not_fit_are_refused",
    ),
    Difference(
        "`ntxent` without pairs",
        "zero",
        "NaN",
        "there is no pair to average over",
        "test_losses_contrastive.py::test_without_a_pair_the_loss_is_zero",
    ),
    Difference(
        "`ntxent` of short vectors",
        "depends only on the directions; the zero vector has a gradient of zero",
        "vectors shorter than the dtype's precision are shortened, and the gradient at zero is huge",
        "the result must not depend on the lengths",
        "test_losses_contrastive.py::test_the_lengths_of_embeddings_do_not_matter",
    ),
    Difference(
        "`triplet_margin_loss` with a `norm_degree` that is not even",
        "distances of absolute differences",
        "powers of signed differences, NaN for fractions",
        "the definition of the norm",
        "test_losses_contrastive.py::test_distances_of_every_degree",
    ),
    Difference(
        "The derivative of `triplet_margin_loss` without `eps` where a positive is its anchor",
        "finite",
        "NaN",
        "the derivative of the root at zero is defined as zero",
        "test_losses_contrastive.py::test_a_positive_that_is_the_anchor_has_a_finite_derivative",
    ),
)
