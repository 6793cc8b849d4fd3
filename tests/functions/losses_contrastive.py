import numpy as np
import optax

from modulax import losses

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
