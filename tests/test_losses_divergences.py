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
    expected = 0.4 * np.log(0.4 / 0.3) + 0.6 * np.log(0.6 / 0.5)
    slopes = np.array([0, 1 + np.log(0.4 / 0.3), 1 + np.log(0.6 / 0.5), 0])
    value, (by_log_q, by_p) = _value_and_gradients(losses.kl_divergence, LOG_PREDICTIONS, TARGETS)
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    np.testing.assert_allclose(by_log_q, -TARGETS)
    np.testing.assert_allclose(by_p, slopes, rtol=1e-6)

    value, (by_log_q, by_log_p) = _value_and_gradients(
        losses.kl_divergence_with_log_targets, LOG_PREDICTIONS, jnp.log(TARGETS)
    )
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    np.testing.assert_allclose(by_log_q, -TARGETS, rtol=1e-6)
    np.testing.assert_allclose(by_log_p, TARGETS * slopes, rtol=1e-6)

    value, (by_log_q, by_p) = _value_and_gradients(losses.generalized_kl_divergence, LOG_PREDICTIONS, TARGETS)
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    np.testing.assert_allclose(by_log_q, jnp.exp(LOG_PREDICTIONS) - TARGETS, rtol=1e-6)
    np.testing.assert_allclose(by_p, slopes - 1, rtol=1e-6)

    with jax_defaults():
        value, (_, by_p) = _value_and_gradients(optax.losses.kl_divergence, LOG_PREDICTIONS, TARGETS)
        assert np.isnan(value)
        assert np.isnan(by_p[3])
        assert np.isnan(jax.jit(optax.losses.kl_divergence_with_log_targets)(LOG_PREDICTIONS, jnp.log(TARGETS)))


def test_the_second_derivatives_are_finite_at_zero():
    for function, targets in (
        (losses.kl_divergence, TARGETS),
        (losses.kl_divergence_with_log_targets, jnp.log(TARGETS)),
        (losses.generalized_kl_divergence, TARGETS),
    ):
        hessian = jax.jit(jax.hessian(function, argnums=(0, 1)))(LOG_PREDICTIONS, targets)
        chex.assert_tree_all_finite(hessian)


def test_the_derivative_at_a_target_that_underflowed_is_the_one_of_its_logarithm():
    log_q, logits = jnp.log(jnp.array([0.2, 0.3, 0.5])), jnp.array([1.0, -200.0, 2.0])
    gradient = jax.jit(jax.grad(lambda z: losses.kl_divergence(log_q, jax.nn.softmax(z))))(logits)
    exact = jax.jit(jax.grad(lambda z: losses.kl_divergence_with_log_targets(log_q, jax.nn.log_softmax(z))))(logits)
    assert jax.nn.softmax(logits)[1] == 0
    np.testing.assert_allclose(gradient, exact, rtol=1e-5, atol=1e-7)


def test_what_is_predicted_to_be_impossible_and_has_a_target_costs_infinity():
    log_q = jnp.array([-INF, jnp.log(0.5), jnp.log(0.5)])
    p = jnp.array([0.1, 0.4, 0.5])
    # e^-200 is zero in float32, and yet no zero.
    for log_p in (jnp.log(p), jnp.array([-200.0, -1.0, -1.0])):
        value, gradients = _value_and_gradients(losses.kl_divergence_with_log_targets, log_q, log_p)
        assert value == INF
        assert not any(np.isnan(g).any() for g in gradients)
    for function in (losses.kl_divergence, losses.generalized_kl_divergence):
        value, gradients = _value_and_gradients(function, log_q, p)
        assert value == INF
        assert not any(np.isnan(g).any() for g in gradients)


def test_the_most_negative_number_is_as_good_as_minus_infinity():
    lowest = float(jnp.finfo(jnp.float32).min)
    log_p = jnp.array([lowest, jnp.log(0.4), jnp.log(0.6)])
    log_q = jnp.array([[-1.0, -2.0, -0.5], [lowest, jnp.log(0.5), jnp.log(0.5)]])
    log_p = jnp.broadcast_to(log_p, log_q.shape)
    expected = jax.jit(losses.kl_divergence)(log_q, jnp.exp(log_p))
    np.testing.assert_allclose(jax.jit(losses.kl_divergence_with_log_targets)(log_q, log_p), expected, rtol=1e-6)


def test_divergences_are_zero_of_a_distribution_from_itself_and_positive_from_others():
    rng = np.random.default_rng(0)
    p, q = rng.dirichlet(np.full(6, 0.3), (2, 100)).astype(np.float32)
    log_p, log_q = np.log(p), np.log(q)
    kl, log_kl, generalized = map(
        jax.jit, (losses.kl_divergence, losses.kl_divergence_with_log_targets, losses.generalized_kl_divergence)
    )
    for function, targets in ((kl, p), (log_kl, log_p), (generalized, p)):
        np.testing.assert_allclose(function(log_p, targets), 0, atol=1e-6)
        assert np.min(function(log_q, targets)) > 0.01
    # Of what sums to one, they are one; and the generalized one is homogeneous.
    one = np.asarray(kl(log_q, p))
    np.testing.assert_allclose(generalized(log_q, p), one, rtol=1e-5)
    np.testing.assert_allclose(generalized(log_q + np.log(np.float32(3)), 3 * p), 3 * one, rtol=1e-5)


def test_the_former_name_of_the_generalized_divergence():
    assert losses.convex_kl_divergence is losses.generalized_kl_divergence
