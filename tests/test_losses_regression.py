"""Losses of regression at the edges: zero vectors, long and short ones, small and large errors."""

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


def test_a_zero_vector_has_no_direction():
    zeros, ones = jnp.zeros(3), jnp.ones(3)
    both = jax.value_and_grad(losses.cosine_similarity, argnums=(0, 1))
    for x, y in ((zeros, ones), (ones, zeros), (zeros, zeros)):
        value, gradients = both(x, y)
        assert value == 0
        chex.assert_tree_all_finite(gradients)
    assert not np.any(both(zeros, ones)[1][0])
    with jax_defaults():
        assert np.isnan(optax.cosine_similarity(zeros, ones))


@pytest.mark.parametrize("size", [1e-36, 1e-25, 1e25, 1e37])
def test_the_length_of_a_vector_does_not_matter(size: float):
    x, y = jnp.array([1.0, 0.2, -0.5]), jnp.array([0.3, -0.7, 0.9])
    expected = losses.cosine_similarity(x, y)
    np.testing.assert_allclose(losses.cosine_similarity(x * size, y), expected, rtol=1e-4)
    gradient = jax.grad(losses.cosine_similarity, argnums=1)(x * size, y)
    np.testing.assert_allclose(gradient, jax.grad(losses.cosine_similarity, argnums=1)(x, y), rtol=1e-3)
    with jax_defaults():
        assert not np.isclose(optax.cosine_similarity(x * size, y), expected)


def test_epsilon_is_the_least_length_of_either_vector():
    long, short = jnp.array([3.0, 4.0]), jnp.array([0.3, 0.4])
    for x, y, expected in ((long, long, 1.0), (short, long, 0.625), (long, short, 0.625), (short, short, 0.625**2)):
        np.testing.assert_allclose(losses.cosine_similarity(x, y, epsilon=0.8), expected, rtol=1e-6)
        np.testing.assert_allclose(losses.cosine_distance(x, y, epsilon=0.8), 1 - expected, rtol=1e-6, atol=1e-6)
    with jax_defaults():
        np.testing.assert_allclose(optax.cosine_similarity(long, short, epsilon=0.64), 0.625, rtol=1e-6)


def test_small_cosine_distances_are_exact_in_a_low_precision():
    """The similarity in between is not rounded."""
    x, y = jnp.array([[1.0, 0.0], [1.0, 0.0625]], jnp.bfloat16)
    np.testing.assert_allclose(float(losses.cosine_distance(x, y)), 1 - 1 / np.sqrt(1 + 0.0625**2), rtol=1e-2)


def test_log_cosh_of_a_small_error_is_half_its_square():
    errors = jnp.array([1e-3, 1e-5, 1e-10, 0.0])
    np.testing.assert_allclose(losses.log_cosh(errors), errors**2 / 2, rtol=1e-6)
    with jax_defaults():
        assert not np.allclose(optax.log_cosh(errors), errors**2 / 2, rtol=1e-2, atol=0)


def test_log_cosh_of_a_large_error_is_its_size():
    errors = jnp.array([1e4, -1e30, 3e38, -jnp.inf])
    np.testing.assert_allclose(losses.log_cosh(errors), jnp.abs(errors) - np.log(2), rtol=1e-6)
    np.testing.assert_array_equal(jax.vmap(jax.grad(losses.log_cosh))(errors), [1, -1, 1, -1])
    np.testing.assert_allclose(jax.grad(jax.grad(losses.log_cosh))(0.0), 1)


def test_huber_with_an_infinite_delta_is_half_a_square():
    errors = jnp.array([-300.0, 0.0, 2.0])
    value, slope = jax.vmap(jax.value_and_grad(lambda e: losses.huber_loss(e, delta=jnp.inf)))(errors)
    np.testing.assert_array_equal(value, losses.l2_loss(errors))
    with jax_defaults():
        assert np.isnan(optax.huber_loss(errors, delta=np.inf)).all()
    np.testing.assert_array_equal(slope, errors)


_ROW, _PAIRS = jnp.array([1.0, -3.0]), jnp.array([0, 0])
_TRIPLET, _REGION = (_ROW, _ROW, _ROW), jnp.ones((1, 2, 2))
_WRONG = {
    "huber_loss(delta=": lambda x: losses.huber_loss(_ROW, delta=x),
    "smooth_labels(alpha=": lambda x: losses.smooth_labels(_ROW, 1 - x),
    "sigmoid_focal_loss(alpha=": lambda x: losses.sigmoid_focal_loss(_ROW, _PAIRS, alpha=1 - x),
    "sigmoid_focal_loss(gamma=": lambda x: losses.sigmoid_focal_loss(_ROW, _PAIRS, gamma=x),
    "ntxent(temperature=": lambda x: losses.ntxent(jnp.eye(2), _PAIRS, x + 1),
    "triplet_margin_loss(norm_degree=": lambda x: losses.triplet_margin_loss(*_TRIPLET, norm_degree=1 / (x + 1)),
    "triplet_margin_loss(eps=": lambda x: losses.triplet_margin_loss(*_TRIPLET, eps=x),
    "dice_loss(smooth=": lambda x: losses.dice_loss(_REGION, _REGION, smooth=x),
    "dice_loss(beta=": lambda x: losses.dice_loss(_REGION, _REGION, beta=x),
    "binary_dice_loss(smooth=": lambda x: losses.binary_dice_loss(_REGION, _REGION, smooth=x),
    "cosine_distance(epsilon=": lambda x: losses.cosine_distance(_ROW, _ROW, epsilon=x),
    "ctc_loss(log_epsilon=": lambda x: losses.ctc_loss(
        jnp.ones((1, 2, 3)), jnp.zeros((1, 2)), jnp.ones((1, 1), int), jnp.zeros((1, 1)), log_epsilon=-x
    ),
}


@pytest.mark.parametrize("call", _WRONG)
def test_a_hyperparameter_out_of_its_range_is_refused(call: str):
    with np.errstate(divide="ignore"), refused(f"`{call}...)` must"):
        _WRONG[call](np.float32(-1))


def test_a_traced_hyperparameter_is_checked_under_checkify():
    loss = jax.jit(lambda delta: losses.huber_loss(_ROW, delta=delta))
    assert losses.huber_loss(_ROW, delta=jnp.asarray(1.0)).shape == loss(-1.0).shape
    error, _ = checkify.checkify(loss)(-1.0)
    assert "`huber_loss(delta=...)` must not be negative." in str(error.get())


def test_an_axis_named_twice_is_refused():
    with refused("names an axis twice"):
        losses.cosine_similarity(jnp.ones((2, 2)), jnp.ones((2, 2)), axis=(0, -2))


def test_python_numbers_do_not_change_the_dtype():
    assert losses.squared_error(jnp.bfloat16(1), 2.5).dtype == jnp.bfloat16
