"""Divergences at the edges: targets and predictions of zero, probabilities that are too small for the dtype."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax

from modulax import losses

from .settings import jax_defaults

INF = jnp.inf
TARGETS = jnp.array([0.0, 0.4, 0.6, 0.0])
LOG_PREDICTIONS = jnp.array([-INF, jnp.log(0.3), jnp.log(0.5), jnp.log(0.2)])


def _value_and_gradients(function, *arguments):
    return jax.jit(jax.value_and_grad(function, argnums=(0, 1)))(*arguments)


def test_a_zero_target_adds_nothing_whatever_the_prediction():
    """Neither to the value nor to the derivatives, of which the second are finite."""
    slopes = np.array([0, 1 + np.log(0.4 / 0.3), 1 + np.log(0.6 / 0.5), 0])
    for function, targets, by_targets, by_log_predictions in (
        (losses.kl_divergence, TARGETS, slopes, -TARGETS),
        (losses.kl_divergence_with_log_targets, jnp.log(TARGETS), TARGETS * slopes, -TARGETS),
        (losses.generalized_kl_divergence, TARGETS, slopes - 1, jnp.exp(LOG_PREDICTIONS) - TARGETS),
    ):
        value, gradients = _value_and_gradients(function, LOG_PREDICTIONS, targets)
        np.testing.assert_allclose(value, 0.4 * np.log(0.4 / 0.3) + 0.6 * np.log(0.6 / 0.5), rtol=1e-6)
        np.testing.assert_allclose(gradients[0], by_log_predictions, rtol=1e-6)
        np.testing.assert_allclose(gradients[1], by_targets, rtol=1e-6)
        chex.assert_tree_all_finite(jax.jit(jax.hessian(function, argnums=(0, 1)))(LOG_PREDICTIONS, targets))
    with jax_defaults():
        value, (_, by_p) = _value_and_gradients(optax.losses.kl_divergence, LOG_PREDICTIONS, TARGETS)
        assert np.isnan([value, by_p[3]]).all()
        assert np.isnan(jax.jit(optax.losses.kl_divergence_with_log_targets)(LOG_PREDICTIONS, jnp.log(TARGETS)))


def test_the_derivative_at_a_target_that_underflowed_is_the_one_of_its_logarithm():
    log_q, logits = jnp.log(jnp.array([0.2, 0.3, 0.5])), jnp.array([1.0, -200.0, 2.0])
    gradient = jax.jit(jax.grad(lambda z: losses.kl_divergence(log_q, jax.nn.softmax(z))))(logits)
    exact = jax.jit(jax.grad(lambda z: losses.kl_divergence_with_log_targets(log_q, jax.nn.log_softmax(z))))(logits)
    assert jax.nn.softmax(logits)[1] == 0
    np.testing.assert_allclose(gradient, exact, rtol=1e-5, atol=1e-7)


def test_what_is_predicted_to_be_impossible_and_has_a_target_costs_infinity():
    log_q, p = jnp.array([-INF, jnp.log(0.5), jnp.log(0.5)]), jnp.array([0.1, 0.4, 0.5])
    for function, targets in (
        (losses.kl_divergence, p),
        (losses.generalized_kl_divergence, p),
        (losses.kl_divergence_with_log_targets, jnp.log(p)),
        # e^-200 is zero in float32, and yet no zero.
        (losses.kl_divergence_with_log_targets, jnp.array([-200.0, -1.0, -1.0])),
    ):
        value, gradients = _value_and_gradients(function, log_q, targets)
        assert value == INF
        assert not np.isnan(gradients).any()


def test_the_most_negative_number_is_as_good_as_minus_infinity():
    lowest = float(jnp.finfo(jnp.float32).min)
    log_p = jnp.array([lowest, jnp.log(0.4), jnp.log(0.6)])
    log_q = jnp.array([[-1.0, -2.0, -0.5], [lowest, jnp.log(0.5), jnp.log(0.5)]])
    log_p = jnp.broadcast_to(log_p, log_q.shape)
    expected = jax.jit(losses.kl_divergence)(log_q, jnp.exp(log_p))
    np.testing.assert_allclose(jax.jit(losses.kl_divergence_with_log_targets)(log_q, log_p), expected, rtol=1e-6)


def test_the_former_name_of_the_generalized_divergence():
    assert losses.convex_kl_divergence is losses.generalized_kl_divergence
