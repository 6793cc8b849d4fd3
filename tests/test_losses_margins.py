"""Margins and ranking at the edges: labels that are no classes, infinite scores, ties, lists without items."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.experimental import checkify

from modulax import losses

from .settings import jax_defaults

INF = jnp.inf
MULTICLASS = (losses.multiclass_hinge_loss, losses.multiclass_perceptron_loss)


def test_two_classes_are_a_difference_of_scores():
    rng = np.random.default_rng(0)
    scores, labels = rng.normal(size=(50, 2)).astype(np.float32), rng.integers(0, 2, 50)
    difference, signs = scores[:, 1] - scores[:, 0], 2 * labels - 1
    for of_two, of_signs in zip(MULTICLASS, (losses.hinge_loss, losses.perceptron_loss), strict=True):
        np.testing.assert_allclose(jax.jit(of_two)(scores, labels), jax.jit(of_signs)(difference, signs), rtol=1e-6)


@pytest.mark.parametrize("loss", MULTICLASS)
def test_a_label_that_is_no_class_makes_the_loss_nan_and_is_reported(loss):
    scores = jnp.array([1.0, 2.0, 3.0])
    each = jax.jit(jax.vmap(loss, in_axes=(None, 0)))
    checked = jax.jit(checkify.checkify(each))
    for dtype in (jnp.int32, jnp.int8):
        np.testing.assert_array_equal(np.isnan(each(scores, jnp.array([2, 3, -1], dtype))), [False, True, True])
    error, _ = checked(scores, jnp.array([0, 1, 2]))
    assert error.get() is None
    error, _ = checked(scores, jnp.array([0, 1, 3]))
    assert f"`{loss.__name__}(labels=...)` must hold class indices from 0 to 2." in error.get()


def test_labels_of_a_small_dtype_reach_as_far_as_they_can():
    scores, loss = np.zeros(300, np.float32), jax.jit(losses.multiclass_perceptron_loss)
    scores[261] = 5
    assert loss(scores, np.int8(5)) == 5
    error, value = checkify.checkify(loss)(scores, np.uint8(255))
    assert error.get() is None
    assert value == 5


@pytest.mark.parametrize("loss", MULTICLASS)
def test_infinite_scores(loss):
    scores = jnp.array([[1.0, -INF, 3.0], [INF, 0.0, 1.0], [0.0, -INF, -INF], [-INF, 1.0, 2.0]])
    values, gradients = jax.jit(jax.vmap(jax.value_and_grad(loss)))(scores, jnp.zeros(4, int))
    margin = 1 if loss is losses.multiclass_hinge_loss else 0
    np.testing.assert_array_equal(values, [2 + margin, 0, 0, INF])
    chex.assert_tree_all_finite(gradients)
    np.testing.assert_array_equal(gradients[:3], [[-1, 0, 1], [0, 0, 0], [0, 0, 0]])
    with jax_defaults():
        assert np.isnan(getattr(optax.losses, loss.__name__)(scores[:3], jnp.zeros(3, int))).all()


def test_equal_scores_share_the_derivative():
    """As those of a model whose last layer begins at zero: the same subgradient as optax's."""
    scores, labels = jnp.zeros((2, 3)), jnp.array([0, 2])
    for loss in MULTICLASS:
        gradient = jax.jit(jax.vmap(jax.grad(loss)))(scores, labels)
        with jax_defaults():
            theirs = jax.jit(jax.vmap(jax.grad(getattr(optax.losses, loss.__name__))))(scores, labels)
        np.testing.assert_allclose(gradient, theirs, rtol=1e-6)


@pytest.mark.parametrize("loss", [losses.hinge_loss, losses.perceptron_loss])
def test_targets_of_zero_and_one_are_reported(loss):
    checked = jax.jit(checkify.checkify(loss))
    scores = jnp.array([0.5, -2.0])
    assert checked(scores, jnp.array([1, -1]))[0].get() is None
    error, _ = checked(scores, jnp.array([1, 0]))
    assert f"`{loss.__name__}(targets=...)` must hold -1 and 1." in error.get()
    assert np.isfinite(jax.jit(loss)(scores, jnp.array([1, 0]))).all()


def test_margins_refuse_what_they_cannot_mean():
    with pytest.raises(ValueError, match=r"`multiclass_hinge_loss\(labels=\.\.\.\)` must hold integers, got .*float32"):
        losses.multiclass_hinge_loss(jnp.ones((2, 3)), jnp.ones(2))
    with pytest.raises(ValueError, match="`multiclass_perceptron_loss` needs `scores` with an axis of classes"):
        losses.multiclass_perceptron_loss(jnp.ones(()), jnp.array(0))
    with jax_defaults(), pytest.raises(ValueError, match=r"of the same shape, got \(3,\) and \(3, 1\)"):
        losses.hinge_loss(jnp.ones(3), jnp.ones((3, 1)))


# --- Ranking -------------------------------------------------------------------------------------


def test_an_item_without_a_chance():
    logits = jnp.array([[-INF, 0.0, 1.0], [-INF, 0.0, 1.0], [-INF, -INF, -INF], [-INF, -INF, -INF]])
    labels = jnp.array([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    each = jax.jit(jax.vmap(jax.value_and_grad(losses.ranking_softmax_loss, argnums=(0, 1))))
    values, (by_logits, by_labels) = each(logits, labels)
    np.testing.assert_allclose(values, [np.log(1 + np.e), INF, 0, INF], rtol=1e-6)
    chex.assert_tree_all_finite(by_logits)
    np.testing.assert_allclose(by_logits[0], [0, -1 / (1 + np.exp(-1)), 1 / (1 + np.exp(-1))], rtol=1e-6)
    assert not np.isnan(by_labels).any()
    assert np.isfinite(by_labels[::2]).all()
    with jax_defaults():
        assert np.isnan(optax.losses.ranking_softmax_loss(logits[0], labels[0]))


def test_lists_without_items_do_not_count():
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(2, 3, 4)).astype(np.float32)
    where = np.array([[True, True, False, True], [False] * 4, [True] * 4])
    functions = (jnp.mean, jnp.sum, lambda x, where: jnp.max(x, where=where, initial=-jnp.inf))

    @jax.jit
    def reduced(logits, labels, where):
        return [losses.ranking_softmax_loss(logits, labels, where=where, reduce_fn=f) for f in (None, *functions)]

    every, mean, total, largest = map(np.asarray, reduced(logits, labels, where))
    assert every.shape == (3,)
    assert every[1] == 0
    np.testing.assert_allclose([mean, total, largest], [every.sum() / 2, every.sum(), every[[0, 2]].max()], rtol=1e-6)

    @jax.jit
    @functools.partial(jax.value_and_grad, argnums=(0, 1, 2))
    def of_nothing(logits, labels, weights):
        return losses.ranking_softmax_loss(logits, labels, where=jnp.zeros((3, 4), bool), weights=weights)

    value, gradients = of_nothing(logits, labels, np.ones((3, 4), np.float32))
    assert value == 0
    assert not any(np.any(g) for g in gradients)


def test_the_derivative_by_the_weights_does_not_see_what_is_masked():
    logits, labels, where = jnp.array([1.0, 2.0, 3.0]), jnp.array([0.0, 1.0, 1.0]), jnp.array([True, True, False])

    def by_weights(loss):
        return jax.jit(jax.grad(lambda w: loss(logits, labels, where=where, weights=w)))(jnp.ones(3))

    np.testing.assert_allclose(by_weights(losses.ranking_softmax_loss), [0, np.log1p(np.exp(-1)), 0], rtol=1e-6)
    with jax_defaults():
        assert np.isnan(by_weights(optax.losses.ranking_softmax_loss)[2])


def test_weights_broadcast_and_what_does_not_fit_is_refused():
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(2, 3, 4)).astype(np.float32)
    of_items = np.array([1.0, 0.5, 0.0, 2.0], np.float32)
    plain = jax.jit(losses.ranking_softmax_loss)
    np.testing.assert_allclose(plain(logits, labels, weights=of_items), plain(logits, labels * of_items), rtol=1e-6)
    # What is added to all scores of a list does not matter.
    np.testing.assert_allclose(plain(logits + 50, labels), plain(logits, labels), rtol=1e-4)
    with pytest.raises(ValueError, match=r"`weights` to broadcast to the shape of `logits`, \(4,\), got \(3, 1\)"):
        losses.ranking_softmax_loss(logits[0], labels[0], weights=np.ones((3, 1), np.float32))
    with pytest.raises(ValueError, match="`logits` with an axis of items"):
        losses.ranking_softmax_loss(jnp.ones(()), jnp.ones(()))
