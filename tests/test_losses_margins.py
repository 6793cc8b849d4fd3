"""Margins and ranking at the edges: labels that are no classes, infinite scores, ties, lists without items."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.experimental import checkify

from modulax import losses

from .refusals import refused
from .settings import jax_defaults

INF = jnp.inf
MULTICLASS = (losses.multiclass_hinge_loss, losses.multiclass_perceptron_loss)


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
    with refused("`multiclass_hinge_loss(labels=...)` must hold integers, got ", "float32"):
        losses.multiclass_hinge_loss(jnp.ones((2, 3)), jnp.ones(2))
    with refused("`multiclass_perceptron_loss` needs `scores` with an axis of classes"):
        losses.multiclass_perceptron_loss(jnp.ones(()), jnp.array(0))


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
    functions = (None, jnp.sum, lambda x, where: jnp.max(x, where=where, initial=-jnp.inf))

    @jax.jit
    def reduced(logits, labels, where):
        return [losses.ranking_softmax_loss(logits, labels, where=where, reduce_fn=f) for f in functions]

    every, total, largest = map(np.asarray, reduced(logits, labels, where))
    assert every[1] == 0
    np.testing.assert_allclose([total, largest], [every.sum(), every[[0, 2]].max()], rtol=1e-6)


def test_the_derivative_by_the_weights_does_not_see_what_is_masked():
    logits, labels, where = jnp.array([1.0, 2.0, 3.0]), jnp.array([0.0, 1.0, 1.0]), jnp.array([True, True, False])

    def by_weights(loss):
        return jax.jit(jax.grad(lambda w: loss(logits, labels, where=where, weights=w)))(jnp.ones(3))

    np.testing.assert_allclose(by_weights(losses.ranking_softmax_loss), [0, np.log1p(np.exp(-1)), 0], rtol=1e-6)
    with jax_defaults():
        assert np.isnan(by_weights(optax.losses.ranking_softmax_loss)[2])


def test_what_ranking_cannot_mean_is_refused():
    with refused("`weights` to broadcast to the shape of `logits`, (4,), got (3, 1)"):
        losses.ranking_softmax_loss(jnp.ones(4), jnp.ones(4), weights=jnp.ones((3, 1)))
    with refused("`logits` with an axis of items"):
        losses.ranking_softmax_loss(jnp.ones(()), jnp.ones(()))
