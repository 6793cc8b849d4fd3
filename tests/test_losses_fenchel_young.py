"""Fenchel-Young losses: their gradients, which are predictions minus targets, and their edges."""

from typing import Any

import chex
import jax
import jax.numpy as jnp
import jax.test_util
import numpy as np
import optax
import pytest
from jax.experimental import checkify

from modulax import losses

from .refusals import refused
from .settings import jax_defaults

SCORES = np.array([[0.3, -1.0, 0.8], [2.0, 1.9, -0.5], [4.0, 0.0, 1.0]])
TARGETS = np.array([[0.0, 1.0, 0.0], [0.5, 0.5, 0.0], [1.0, 0.0, 0.0]])


@pytest.mark.usefixtures("x64")
def test_logsumexp_gives_the_cross_entropy():
    loss = jax.jit(losses.make_fenchel_young_loss(jax.nn.logsumexp))
    softmax = np.exp(SCORES) / np.exp(SCORES).sum(-1, keepdims=True)
    expected = np.log(np.exp(SCORES).sum(-1)) - (SCORES * TARGETS).sum(-1)
    np.testing.assert_allclose(loss(SCORES, TARGETS), expected, rtol=1e-12)
    gradient = jax.jit(jax.grad(lambda *a: loss(*a).sum(), argnums=(0, 1)))
    np.testing.assert_allclose(gradient(SCORES, TARGETS)[0], softmax - TARGETS, atol=1e-12)
    np.testing.assert_allclose(gradient(SCORES, TARGETS)[1], -SCORES, atol=1e-12)
    make: Any = optax.losses.make_fenchel_young_loss
    theirs = make(jax.nn.logsumexp)
    with jax_defaults():
        np.testing.assert_allclose(loss(SCORES, TARGETS), theirs(SCORES, TARGETS), rtol=1e-12)
    impossible = np.where(TARGETS == 0, -np.inf, SCORES)
    values, (by_scores, _) = loss(impossible, TARGETS), gradient(impossible, TARGETS)
    np.testing.assert_allclose(values, [0, np.logaddexp(2, 1.9) - 1.95, 0], atol=1e-12)
    chex.assert_tree_all_finite(by_scores)
    with jax_defaults():
        assert np.isnan(theirs(impossible, TARGETS)).all()


def _perturbed_maximum(scores, key, *, sigma):
    noise = jax.random.normal(key, (1000, *scores.shape), scores.dtype)
    return jnp.mean(jnp.max(scores[None] + sigma * noise, -1))


@pytest.mark.usefixtures("x64")
def test_a_perturbed_maximum_has_its_argmax_as_gradient(key):
    """The mean of one-hot vectors under the noise, which is the same for all examples."""
    loss = losses.make_fenchel_young_loss(_perturbed_maximum)
    gradient = jax.jit(jax.grad(lambda s: loss(s, TARGETS, key, sigma=0.5).sum()))(SCORES)
    noise = np.asarray(jax.random.normal(key, (1000, 3), np.float64))
    chosen = np.argmax(SCORES[:, None] + 0.5 * noise, -1)
    np.testing.assert_allclose(gradient, np.eye(3)[chosen].mean(1) - TARGETS, atol=1e-12)
    with jax_defaults(), pytest.raises(TypeError, match="positional"):
        optax.losses.make_fenchel_young_loss(_perturbed_maximum)(SCORES, TARGETS, key, sigma=0.5)


def test_axes_of_examples_broadcast():
    loss = jax.jit(losses.make_fenchel_young_loss(jnp.max))
    scores, targets = jnp.array(SCORES, jnp.bfloat16), jnp.array(TARGETS[:2], jnp.bfloat16)
    value = loss(scores[:, None], targets)
    assert value.shape == (3, 2)
    assert value.dtype == jnp.bfloat16
    np.testing.assert_allclose(value.astype(jnp.float32), SCORES.max(-1)[:, None] - SCORES @ TARGETS[:2].T, atol=0.02)
    assert loss(scores[0], targets).shape == (2,)
    assert loss(scores[:0], targets[0]).shape == (0,)
    integers = jnp.array([[0, 1, 0], [1, 0, 1]])  # as one-hot targets may be
    np.testing.assert_array_equal(loss(scores[:2], integers), loss(scores[:2], integers.astype(jnp.bfloat16)))
    assert loss(jnp.array([jnp.inf, -jnp.inf, 1.0]), jnp.array([0.0, 0.0, 1.0])) == jnp.inf


@pytest.mark.usefixtures("x64")
def test_the_second_derivative_of_the_multiclass_sparsemax():
    scores, labels = np.random.default_rng(1).normal(size=(2, 3)) * 1.5, np.array([0, 2])
    loss = jax.jit(lambda s: losses.multiclass_sparsemax_loss(s, labels))
    jax.test_util.check_grads(loss, (scores,), order=2, modes=["rev"])


def test_infinite_logits():
    """And huge ones; the loss is zero as soon as the label is ahead by one."""
    x = jnp.array([jnp.inf, -jnp.inf, 1e38, -1e38])
    for module in (losses, optax.losses):
        with jax_defaults():
            value, slope = jax.jit(jax.vmap(jax.value_and_grad(module.sparsemax_loss), (0, None)))(x, 0)
        np.testing.assert_array_equal(value, [jnp.inf, 0, x[2], 0])
        np.testing.assert_array_equal(slope, [1, 0, 1, 0] if module is losses else [np.nan, np.nan, 1, 0])
    scores = jnp.array([[1.0, -jnp.inf, 3.0], [1e30, 2.0, -1e30], [2.0, 1.0, -jnp.inf]])
    both = jax.jit(jax.value_and_grad(lambda s, k: losses.multiclass_sparsemax_loss(s, k).sum()))
    value, gradient = both(scores, jnp.array([0, 1, 0]))
    np.testing.assert_allclose(value, 2 + 1e30)
    np.testing.assert_allclose(gradient, [[-1, 0, 1], [1, -1, 0], [0, 0, 0]])
    value, gradient = both(scores[:1], jnp.array([1]))
    assert value == jnp.inf
    np.testing.assert_array_equal(gradient, [[0, -1, 1]])


def test_one_vector_of_scores():
    scores = jnp.array(SCORES, jnp.float32)
    loss = jax.jit(losses.multiclass_sparsemax_loss)
    np.testing.assert_allclose(loss(scores[0], jnp.array(1)), loss(scores[:1], jnp.array([1]))[0])
    with jax_defaults(), pytest.raises(ValueError, match="vmap"):
        optax.losses.multiclass_sparsemax_loss(scores[0], 1)


def test_targets_of_the_binary_loss_that_are_not_zero_or_one_are_reported():
    error, _ = checkify.checkify(jax.jit(losses.sparsemax_loss))(jnp.ones(3), jnp.array([0, 1, 2]))
    assert "`sparsemax_loss(labels=...)` must hold zeros and ones." in str(error.get())


def test_what_does_not_fit_is_explained():
    ones, loss = jnp.ones((2, 3)), losses.make_fenchel_young_loss(jnp.max)
    with refused("`make_fenchel_young_loss(max_fun=...)` must return a scalar for a vector of scores, got ", " (3,)."):
        losses.make_fenchel_young_loss(jnp.abs)(ones, ones)
    for x, y in ((ones, ones[:, :1]), (ones[0, 0], ones[0, 0])):
        with refused(f"needs `scores` and `targets` whose last axes have equal length, got {x.shape} and {y.shape}."):
            loss(x, y)
    with refused("`fenchel_young_loss` needs `scores` and `targets` of shapes that broadcast, got (2, 3) and (4, 3)."):
        loss(ones, jnp.ones((4, 3)))
    with refused("`fenchel_young_loss(scores=...)` must hold floats, got ", "int32", "`scores.astype(jnp.float32)`."):
        loss(jnp.ones(3, int), ones[0])
    with refused("needs `labels` of shape (2,), one for every row of `scores`, got (2, 3)."):
        losses.multiclass_sparsemax_loss(ones, jnp.ones((2, 3), int))
    with refused("`multiclass_sparsemax_loss(labels=...)` must hold integers, got ", "`labels.astype(jnp.int32)`."):
        losses.multiclass_sparsemax_loss(ones, jnp.ones(2))
