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
        "`temperature`, `margin`, `norm_degree`, `eps`, `smooth`, `alpha` and `beta` of several numbers",
        "refused; `jax.vmap` maps over them",
        "broadcast",
        "what several mean is not said",
        "test_functions.py::test_shapes_that_do_not_fit_are_refused",
    ),
    Difference(
        "`ntxent` without pairs",
        "zero",
        "NaN",
        "the mean of no pair",
        "test_losses_contrastive.py::test_without_a_pair_the_loss_is_zero",
    ),
    Difference(
        "`ntxent` of short vectors",
        "that of their directions; a vector of zeros has none, and a gradient of zero",
        "vectors shorter than the dtype's precision are shortened, and have a huge gradient at zero",
        "the lengths of the vectors do not matter",
        "test_losses_contrastive.py::test_the_lengths_of_embeddings_do_not_matter",
    ),
    Difference(
        "`triplet_margin_loss` of other degrees than the even numbers",
        "distances of absolute differences",
        "powers of signed differences, NaN for fractions",
        "that is the norm",
        "test_losses_contrastive.py::test_distances_of_every_degree",
    ),
    Difference(
        "The derivative of `triplet_margin_loss` without `eps` where a positive is its anchor",
        "finite",
        "NaN",
        "a root whose derivative at zero is zero",
        "test_losses_contrastive.py::test_a_positive_that_is_the_anchor_has_a_finite_derivative",
    ),
)
