"""Losses of overlap at the edges: empty regions, classes that are not there, shapes with and without classes."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from modulax import losses

from .refusals import refused
from .settings import jax_defaults


def _masks(*shape):
    return np.random.default_rng(0).integers(0, 2, size=shape).astype(np.float32)


@pytest.mark.parametrize("smooth", [0.0, 1.0])
def test_empty_regions(smooth: float):
    """Two empty regions are one; an empty and another one have nothing in common."""
    p = jnp.zeros((1, 4, 2)).at[..., 0].set(1)
    apart = p[..., ::-1]

    def loss(p, t):
        return losses.dice_loss(p, t, smooth=smooth, apply_softmax=False, reduction="none")

    one = jax.jit(lambda p, t: (loss(p, t), jax.jacobian(loss, argnums=(0, 1))(p, t)))
    value, gradients = one(p, p)
    np.testing.assert_array_equal(value, 0)
    chex.assert_tree_all_finite(gradients)
    # Without smoothing the loss jumps where the second class is nowhere, and the derivative there is zero.
    np.testing.assert_allclose(gradients[0][0, 1, 0, :, 1], 0.5 / smooth if smooth else 0.0)
    value, gradients = one(p, apart)
    np.testing.assert_allclose(value, 2 / (2 + smooth))
    chex.assert_tree_all_finite(gradients)
    if smooth == 0:
        with jax_defaults():
            assert np.isnan(optax.losses.dice_loss(p, p, smooth=0.0, apply_softmax=False))


def test_many_pixels_in_a_low_dtype():
    """Their number is more than float16 can hold."""
    p = jnp.full((1, 70_000), 0.5, jnp.float16)
    np.testing.assert_allclose(losses.binary_dice_loss(p, jnp.ones_like(p), apply_sigmoid=False), [1 / 3], rtol=1e-3)


def test_probabilities_of_one_region_and_under_jit():
    """optax wants all probabilities to sum to one over the classes, and looks at their values."""
    p, t = jnp.array([[0.2, 0.9, 0.4]]), jnp.array([[0.0, 1.0, 1.0]])
    p, t = p[..., None, :], t[..., None, :]
    function = jax.jit(lambda p, t: losses.binary_dice_loss(p, t, apply_sigmoid=False))
    errors, overlap = (0.2 + 0.1 + 0.6) / 2, 1.3
    np.testing.assert_allclose(function(p, t), [errors / (overlap + errors + 1)], rtol=1e-6)
    with jax_defaults():
        with pytest.raises(ValueError, match="sum to 1"):
            optax.losses.binary_dice_loss(p, t, apply_sigmoid=False)
        with pytest.raises(jax.errors.TracerBoolConversionError):
            jax.jit(lambda p: optax.losses.dice_loss(p, p, apply_softmax=False))(jnp.full((1, 3, 2), 0.5))


def test_one_class_with_and_without_its_axis():
    logits, t = np.linspace(-2, 2, 24, dtype=np.float32).reshape(2, 3, 4), _masks(2, 3, 4)

    @jax.jit
    def of_all_shapes(p, t):
        found = [losses.dice_loss(p[..., None], t[..., None]), losses.binary_dice_loss(p, t)]
        for function in (losses.dice_loss, losses.binary_dice_loss):
            found += [function(p[..., None], t), function(p, t[..., None])]
        # The only class is no background.
        return [*found, losses.dice_loss(p[..., None], t, ignore_background=True)]

    expected, *others = of_all_shapes(logits, t)
    assert expected.shape == (2,)
    for other in others:
        np.testing.assert_array_equal(other, expected)


def test_a_class_that_is_not_there_does_not_hide_the_others():
    labels = np.array([[0, 0, 0, 1, 0, 0]])
    t = np.eye(3, dtype=np.float32)[labels]
    logits = np.zeros_like(t)
    loss = jax.jit(jax.value_and_grad(losses.multiclass_generalized_dice_loss))
    of_classes = jax.jit(lambda p, t: losses.dice_loss(p, t, reduction="none"))
    value, gradient = loss(logits, t)
    np.testing.assert_array_equal(np.argmin(gradient, -1), labels)
    with jax_defaults():
        theirs = jax.jit(jax.grad(optax.losses.multiclass_generalized_dice_loss))(logits, t)
    np.testing.assert_allclose(theirs[0, 3, 1], theirs[0, 3, 0], atol=1e-6)
    # It weighs as much as the rarest one.
    weights = np.array([1 / 25, 1, 1])
    np.testing.assert_allclose(value, weights @ np.asarray(of_classes(logits, t)[0]) / weights.sum(), rtol=1e-5)
    # If there is none at all, all weigh the same; and no image has no loss.
    nothing = np.zeros_like(t)
    np.testing.assert_allclose(loss(logits, nothing)[0], np.mean(of_classes(logits, nothing)), rtol=1e-6)
    assert loss(logits[:0], t[:0])[0] == 0


def test_what_dice_refuses():
    p = jnp.ones((2, 3, 4, 5))
    with refused("`dice_loss(reduction='avg')` must be one of 'mean', 'sum', 'none'"):
        losses.dice_loss(p, p, reduction="avg")
    with refused("`dice_loss(axis=(1, -1))` must not name the last axis"):
        losses.dice_loss(p, p, axis=(1, -1))
    with refused("of the same shape, got (2, 3, 4, 5) and (2, 3, 4)"):
        losses.dice_loss(p, p[..., 0])
    with refused("`dice_loss` needs `class_weights` of shape (5,), one for every class, got"):
        losses.dice_loss(p, p, class_weights=jnp.ones(4))
    with refused("needs `predictions` with an axis of classes"):
        losses.dice_loss(jnp.ones(()), jnp.ones(()))


def test_the_loss_of_nan_is_nan():
    t, p = jnp.eye(4)[:2], jnp.full((2, 4), jnp.nan)
    for loss in (losses.dice_loss, losses.binary_dice_loss, losses.multiclass_generalized_dice_loss):
        assert np.isnan(loss(p, t)).all()


def test_a_class_that_is_surely_absent_has_a_finite_derivative_without_smoothing():
    logits, targets = jnp.array([[[30.0, 90.0, 30.0]]]), jnp.array([[[0.0, 1.0, 0.0]]])
    loss, slope = jax.value_and_grad(lambda x: jnp.sum(losses.dice_loss(x, targets, smooth=0.0)))(logits)
    np.testing.assert_allclose(loss, 2 / 3, rtol=1e-6)
    np.testing.assert_allclose(slope, 0, atol=1e-6)
