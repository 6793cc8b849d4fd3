"""Contrastive losses at the edges: vectors without a partner, without a direction, or equal to each other."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from modulax import losses

from .refusals import refused
from .settings import jax_defaults

ntxent = jax.jit(jax.value_and_grad(losses.ntxent))
triplet = jax.jit(losses.triplet_margin_loss)


def test_without_a_pair_the_loss_is_zero():
    x = jnp.array([[1.0, 0.0], [0.3, 1.0], [2.0, 1.0]])
    for rows in (0, 1, 3):
        value, gradient = ntxent(x[:rows], np.arange(rows))
        assert value == 0
        assert not np.any(gradient)
    with jax_defaults():
        assert np.isnan(jax.jit(optax.losses.ntxent)(x, np.arange(3)))
    # Nor is there anything to tell a partner from, if all belong together.
    value, gradient = ntxent(x, np.zeros(3, int))
    assert value == 0
    assert not np.any(gradient)


def test_labels_are_numbers_of_any_kind():
    x, labels = jnp.array([[1.0, 0.1], [0.3, 1.0], [2.0, 1.0], [1.0, 3.0]]), np.array([0, 1, 1, 0])
    for others in (labels.astype(np.float32) / 2, labels.astype(bool), labels.astype(np.uint8)):
        assert losses.ntxent(x, others) == losses.ntxent(x, labels)


def test_an_embedding_of_zeros_has_no_direction():
    x = np.array([[0.0, 0.0], [0.3, 1.0], [2.0, 1.0], [1.0, 3.0]], np.float32)
    labels = np.array([0, 0, 1, 1])
    value, gradient = ntxent(x, labels)
    assert np.isfinite(value)
    np.testing.assert_array_equal(gradient[0], 0)
    chex.assert_tree_all_finite(gradient)
    value, gradient = ntxent(np.zeros_like(x), labels)
    np.testing.assert_allclose(value, np.log(3), rtol=1e-6)
    np.testing.assert_array_equal(gradient, 0)
    with jax_defaults():
        assert np.max(np.abs(jax.jit(jax.grad(optax.losses.ntxent))(x, labels))) > 1e3


def test_the_lengths_of_embeddings_do_not_matter():
    x = np.array([[1.0, 0.1], [0.3, 1.0], [2.0, 1.0], [1.0, 3.0]], np.float32)
    labels = np.array([0, 0, 1, 1])
    expected, _ = ntxent(x, labels)
    for size in (1e-30, 1e-6, 1e30):
        value, gradient = ntxent(x * np.float32(size), labels)
        np.testing.assert_allclose(value, expected, rtol=1e-5)
        chex.assert_tree_all_finite(gradient)
    with jax_defaults():
        theirs = jax.jit(optax.losses.ntxent)(x * np.float32(1e-6), labels)
    assert not np.isclose(theirs, expected, rtol=1e-2)


def test_a_low_temperature_takes_the_nearest_of_the_others():
    x, labels = jnp.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]]), jnp.array([0, 0, 1])
    value, gradient = ntxent(x, labels, 1e-4)
    np.testing.assert_allclose(value, (0.6 + 0.8) / 2 / 1e-4, rtol=1e-5)
    chex.assert_tree_all_finite(gradient)


def test_embeddings_that_are_no_table_are_refused():
    with refused("`embeddings` of shape (batch, features), got (4,)"):
        losses.ntxent(jnp.ones(4), jnp.arange(4))


# --- Triplets ------------------------------------------------------------------------------------


@pytest.mark.parametrize("eps", [1e-6, 0.0])
def test_a_positive_that_is_the_anchor_has_a_finite_derivative(eps: float):
    anchor, negative = jnp.array([1.0, 2.0, 2.0]), jnp.array([1.0, 2.5, 2.0])

    def loss(degree, anchor, positive, negative):
        return losses.triplet_margin_loss(anchor, positive, negative, norm_degree=degree, eps=eps)

    degrees = jnp.array([1.0, 1.5, 2.0, 3.0])
    each = jax.jit(jax.vmap(jax.value_and_grad(loss, argnums=(0, 1, 2, 3)), in_axes=(0, None, None, None)))
    values, gradients = each(degrees, anchor, anchor, negative)
    expected = eps ** (1 / degrees) - (0.5**degrees + eps) ** (1 / degrees) + 1
    np.testing.assert_allclose(values, expected, rtol=1e-6)
    chex.assert_tree_all_finite(gradients)
    # Nothing is pulled where the distance is least; and the negative is pushed away.
    np.testing.assert_array_equal(gradients[2][1:], 0)
    np.testing.assert_allclose(gradients[3][:, 1], -1, rtol=1e-4)
    if eps == 0:
        with jax_defaults():
            theirs = jax.jit(jax.grad(optax.losses.triplet_margin_loss), static_argnames="eps")
            assert np.isnan(theirs(anchor, anchor, negative, eps=0.0)).all()


def test_distances_of_every_degree():
    """optax takes powers of differences, which are negative for odd degrees, and NaN for fractions."""
    a, p, n = np.random.default_rng(0).normal(size=(3, 6, 4)).astype(np.float32)
    for degree in (1, 3, 2.5):
        to_p, to_n = (np.linalg.norm(a - x, degree, axis=-1) for x in (p, n))
        ours = triplet(a, p, n, norm_degree=degree, eps=0)
        np.testing.assert_allclose(ours, np.maximum(to_p - to_n + 1, 0), rtol=1e-5, atol=1e-6)
        with jax_defaults():
            assert not np.allclose(optax.losses.triplet_margin_loss(a, p, n, norm_degree=degree, eps=0), ours)
