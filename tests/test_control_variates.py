"""Control variates: no bias, less variance where theory says so, and a moving average that can be resumed."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from modulax import estimators

from .refusals import refused
from .test_estimators import (
    LOG_SCALE,
    MEAN,
    MEASURE,
    PATHWISE,
    SCORE,
    each_estimator,
    for_each_function,
    gradients_of_expectations,
    standard_errors,
)

DELTA = estimators.control_delta_method
BASELINE = estimators.moving_avg_baseline
MATRIX = np.array([[2.0, 0.5], [-1.0, 0.3]])


def jacobians_of(function, control_variate, estimator, params, key, n, state=None, estimate=False):
    return estimators.control_variates_jacobians(
        function, control_variate, estimator, params, estimators.multi_normal, key, n, state, estimate
    )


def total_variance(jacobians):
    return np.array([np.asarray(j, np.float64).var(0).sum() for j in jacobians])


def quadratic(x):
    return x @ jnp.asarray(MATRIX, x.dtype) @ x + 3 * x[0] + 100


# --- No bias, less variance -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "estimator, estimate",
    [(SCORE, False), (SCORE, True), (PATHWISE, False), (MEASURE, False)],
    ids=["score", "score-estimated", "pathwise", "measure"],
)
def test_the_mean_is_still_the_gradient(estimator, estimate, key):
    params = jnp.asarray(MEAN, jnp.float32), jnp.asarray(LOG_SCALE, jnp.float32)
    jacobians, state = for_each_function(
        lambda f: jacobians_of(f, DELTA, estimator, params, key, 100_000, None, estimate)
    )
    assert state is None
    for actual, expected in zip(jacobians, gradients_of_expectations(), strict=True):
        assert np.max(standard_errors(actual, expected)) < 4


@each_estimator
@pytest.mark.usefixtures("x64")
def test_nothing_is_left_of_the_noise_of_a_quadratic_function(estimator, key):
    mean, log_scale = jnp.array([0.3, -0.7]), jnp.array([0.2, -0.4])
    symmetric = MATRIX + MATRIX.T
    expected = symmetric @ np.asarray(mean) + [3, 0], np.diag(symmetric) * np.exp(2 * np.asarray(log_scale))

    params = mean, log_scale
    jacobians, _ = jax.jit(lambda: jacobians_of(quadratic, DELTA, estimator, params, key, 5))()
    for x, y in zip(jacobians, expected, strict=True):
        np.testing.assert_allclose(x, np.tile(y, (5, 1)), rtol=1e-9)


def test_a_baseline_takes_away_the_noise_of_a_constant(key):
    params = jnp.zeros(2), jnp.zeros(2)

    @jax.jit
    def step(state, key):
        jacobians, state = jacobians_of(quadratic, BASELINE, SCORE, params, key, 500, state)
        return state, (jacobians, SCORE(quadratic, params, estimators.multi_normal, key, 500))

    start = jnp.zeros(()), jnp.zeros((), int)
    state, (with_baseline, plain) = jax.lax.scan(step, start, jax.random.split(key, 5))
    assert abs(float(state[0]) - 102) < 1
    first, last = (total_variance([np.asarray(j)[i] for j in with_baseline]) for i in (0, -1))
    plain = total_variance([np.asarray(j)[-1] for j in plain])
    assert np.all(first > 1000), "the first step knows of no average"
    assert np.all(last < 0.01 * plain)


def test_a_baseline_changes_nothing_where_constants_are_no_noise(key):
    params = jnp.zeros(2), jnp.zeros(2)
    for estimator in (PATHWISE, MEASURE):
        plain, (jacobians, _) = jax.jit(
            lambda estimator=estimator: (
                estimator(quadratic, params, estimators.multi_normal, key, 5),
                jacobians_of(quadratic, BASELINE, estimator, params, key, 5, (jnp.array(50.0), jnp.array(7))),
            )
        )()
        for x, y in zip(jacobians, plain, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-5)


def test_a_baseline_brings_no_bias_even_to_a_single_sample(key):
    """The average is that of before: with the sample itself in it, nothing would be left of the gradient."""
    params = jnp.array([0.5]), jnp.array([0.1])

    @jax.jit
    @functools.partial(jax.vmap, in_axes=(0, None))
    def one(key, state):
        return jacobians_of(lambda x: jnp.sum(x), BASELINE, SCORE, params, key, 1, state)[0]

    keys = jax.random.split(key, 40_000)
    for state in (None, (jnp.array(0.4), jnp.array(1))):
        by_mean, by_log_scale = map(np.asarray, one(keys, state))
        assert standard_errors(by_mean[:, 0], 1.0) < 4
        assert standard_errors(by_log_scale[:, 0], 0.0) < 4


def test_the_variance_over_the_samples_is_that_of_the_estimate(key):
    """Every sample is an estimate of its own: none shares noise with another."""
    params = jnp.array([0.5]), jnp.array([0.1])

    @jax.jit
    @jax.vmap
    def estimate(key):
        return jacobians_of(lambda x: jnp.sum(x**3), DELTA, SCORE, params, key, 20)[0]

    for jacobian in map(np.asarray, estimate(jax.random.split(key, 4000))):
        of_samples, of_means = jacobian.var(1, ddof=1).mean(), jacobian.mean(1).var()
        np.testing.assert_allclose(20 * of_means, of_samples, rtol=0.1)


# --- Coefficients ---------------------------------------------------------------------------------


def scaled(factor, control_variate=DELTA):
    """A control variate that is a multiple of another."""

    def of(function):
        value, expected_value, update_state = control_variate(function)
        return lambda *args: factor * value(*args), lambda *args: factor * expected_value(*args), update_state

    return of


def test_estimated_coefficients_reach_the_optimum(key):
    """A multiple of the best control variate is as good as it."""
    params = jnp.array([0.3, -0.7]), jnp.array([0.2, -0.4])

    @jax.jit
    def both(factor):
        return (
            jacobians_of(quadratic, scaled(factor), PATHWISE, params, key, 100, None, True)[0],
            PATHWISE(quadratic, params, estimators.multi_normal, key, 100),
        )

    for factor in (0.01, -2.0, 1e25):
        found, plain = map(total_variance, both(factor))
        assert np.all(found < 1e-9 * plain)


def test_estimated_coefficients_bring_no_bias(key):
    """They are of samples of their own: with four of the same, some of the gradient would be taken for noise."""
    params = jnp.array([0.5]), jnp.array([0.1])

    @jax.jit
    @jax.vmap
    def estimate(key):
        return estimators.control_variates_jacobians(
            lambda x: jnp.sum(jnp.exp(x)), DELTA, SCORE, params, estimators.multi_normal, key, 4, None, True, 4
        )[0]

    expected = np.exp(0.5 + np.exp(0.2) / 2) * np.array([1, np.exp(0.2)])
    for jacobian, gradient in zip(estimate(jax.random.split(key, 20_000)), expected, strict=True):
        assert standard_errors(np.asarray(jacobian).mean(1), gradient) < 4


def test_estimated_coefficients_of_a_useless_control_variate_are_small(key):
    """The variance is not much larger with one that has little to do with the function, and the same with zero."""
    params = jnp.array([0.3, -0.7]), jnp.array([0.2, -0.4])

    def unrelated(function):
        return DELTA(lambda x: jnp.sum(100 * jnp.sin(20 * x)))

    @jax.jit
    @functools.partial(jax.vmap, in_axes=0)
    def variances(key):
        plain = SCORE(lambda x: x[0], params, estimators.multi_normal, jax.random.split(key)[0], 100)
        cases = [
            jacobians_of(lambda x: x[0], cv, SCORE, params, key, 100, None, estimate)[0]
            for cv, estimate in ((unrelated, False), (unrelated, True), (scaled(0.0), True))
        ]
        return jnp.stack([jnp.stack([jnp.sum(jnp.var(j, 0)) for j in jacobians]) for jacobians in (plain, *cases)])

    plain, one, estimated, zero = np.asarray(variances(jax.random.split(key, 50))).mean(0)
    assert np.all(one > 100 * plain)
    assert np.all(estimated < 2 * plain)
    np.testing.assert_allclose(zero, plain, rtol=1e-5)


# --- What the control variates say ----------------------------------------------------------------


@pytest.mark.usefixtures("x64")
def test_the_delta_method_is_the_expansion_and_its_expectation():
    """By the derivatives on paper, and by quadrature; a scale that the entries share."""

    def function(x):
        return jnp.exp(x[0, 0]) * x[1, 0] ** 3

    value, expected_value, update_state = DELTA(function)
    mean, log_scale = np.array([[0.2], [0.5]]), np.array(-0.3)
    params = jnp.asarray(mean), jnp.asarray(log_scale)
    e, y = np.exp(0.2), 0.5
    gradient = np.array([e * y**3, 3 * e * y**2])
    hessian = np.array([[e * y**3, 3 * e * y**2], [3 * e * y**2, 6 * e * y]])

    def expansion(d):
        return e * y**3 + gradient @ d + d @ hessian @ d / 2

    d = np.array([0.7, -1.1])
    found = jax.jit(lambda x: value(params, x, None))(mean + d[:, None])
    np.testing.assert_allclose(found, expansion(d), rtol=1e-13)
    nodes, weights = np.polynomial.hermite_e.hermegauss(5)
    weights = weights / weights.sum()
    points = np.exp(-0.3) * nodes
    pairs = [(i, j) for i in range(5) for j in range(5)]
    quadrature = sum(weights[i] * weights[j] * expansion(points[[i, j]]) for i, j in pairs)
    np.testing.assert_allclose(jax.jit(lambda: expected_value(params, None))(), quadrature, rtol=1e-13)
    assert update_state(params, jnp.zeros((3, 2, 1)), "anything") == "anything"


def averages(decays, values, zero_debias=True, heuristic=True):
    """For each decay, the averages after each step of which the function has this mean over the samples."""

    @jax.jit
    @jax.vmap
    def of(decay):
        _, _, update_state = BASELINE(lambda x: x**2, decay, zero_debias, heuristic)

        def step(state, value):
            state = update_state((), jnp.sqrt(jnp.stack([value - 1, value + 1])), state)
            return state, state[0]

        start = jnp.zeros((), values.dtype), jnp.zeros((), int)
        return jax.lax.scan(step, start, values)[1]

    return of(decays)


@pytest.mark.parametrize("zero_debias", [True, False])
@pytest.mark.parametrize("heuristic", [True, False])
@pytest.mark.usefixtures("x64")
def test_the_moving_average_is_the_weighted_mean(zero_debias, heuristic):
    """With all weights written out."""
    decays, values = np.array([0.0, 0.05, 0.5, 0.99]), np.cos(np.arange(1.0, 13.0)) + 2
    for decay, found in zip(decays, averages(decays, values, zero_debias, heuristic), strict=True):
        weights = np.zeros(0)
        for t in range(12):
            now = min(decay, (1 + t) / (10 + t)) if heuristic else decay
            weights = np.append(weights * now, 1 - now)
            expected = weights @ values[: t + 1] / (weights.sum() if zero_debias else 1)
            np.testing.assert_allclose(found[t], expected, rtol=1e-12)


@pytest.mark.parametrize("heuristic", [True, False])
def test_the_average_of_a_constant_is_the_constant(heuristic):
    """From the first step on, also where the decay is so long that it takes all digits."""
    decays, values = np.array([0.5, 0.99, 0.99999], np.float32), np.full(1500, 3.0, np.float32)
    found = averages(decays, values, heuristic=heuristic)
    np.testing.assert_allclose(found, 3.0, rtol=1e-5)


def test_a_moving_average_is_its_own_expectation():
    average, expected_value, update_state = BASELINE(lambda x: 2 * x)
    state = update_state((), jnp.array([1.0, 3.0]), None)
    assert average((), jnp.zeros(3), state) == expected_value((), state) == state[0] == 4
    assert average((), jnp.zeros(3), None) == expected_value((), None) == 0
    assert state[1] == 1


@pytest.mark.usefixtures("x64")
def test_a_moving_average_has_the_precision_of_the_values_and_counts_without_overflow():
    """At least float32, and the dtype of the state that is given."""
    _, _, update_state = BASELINE(lambda x: x)
    values = jnp.full(300, 1.01, jnp.bfloat16).at[0].set(200)
    average, count = update_state((), values, None)
    assert (average.dtype, count) == (jnp.float32, 1)
    np.testing.assert_allclose(average, np.mean(np.asarray(values, np.float64)), rtol=1e-6)
    average, count = update_state((), values, (jnp.bfloat16(1), np.int32(2**31 - 1)))
    assert (average.dtype, count) == (jnp.bfloat16, 2**31 - 1)


def test_the_first_average_is_that_of_all_samples(key):
    params = jnp.array([0.5, 1.0]), jnp.array([0.1, 0.0])
    samples = estimators.multi_normal(*params).sample((8,), seed=key)
    _, (average, _) = jax.jit(lambda: jacobians_of(quadratic, BASELINE, SCORE, params, key, 8))()
    np.testing.assert_allclose(average, np.mean([quadratic(x) for x in samples]), rtol=1e-5)


@each_estimator
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32, jnp.float64])
@pytest.mark.usefixtures("x64")
def test_jacobians_and_averages_keep_their_dtypes(estimator, dtype, key):
    params = jnp.zeros((2, 3), dtype), jnp.zeros((), jnp.float32)
    start = jnp.zeros((), jnp.float32), jnp.zeros((), jnp.int32)
    for control_variate, state in ((DELTA, None), (BASELINE, start)):
        call = functools.partial(jacobians_of, lambda x: jnp.sum(x**2), control_variate, estimator, params)
        jacobians, new = jax.eval_shape(functools.partial(call, n=4, estimate=True), key=key, state=state)
        assert [(j.shape, j.dtype) for j in jacobians] == [((4, 2, 3), dtype), ((4,), jnp.float32)]
        assert jax.tree_util.tree_map(lambda x: x.dtype, new) == jax.tree_util.tree_map(lambda x: x.dtype, state)


def test_finite_for_tiny_and_large_functions(key):
    params = jnp.array([0.3, -0.7]), jnp.array([-20.0, 0.0])

    @jax.jit
    def jacobians(size):
        return jacobians_of(lambda x: size * jnp.sum(jnp.cos(x)), DELTA, SCORE, params, key, 50, None, True)[0]

    for size in (1e-25, 1e25):
        assert all(np.isfinite(j).all() and np.any(j) for j in map(np.asarray, jacobians(size)))


# --- What is refused ------------------------------------------------------------------------------


def test_what_does_not_fit_is_refused(key):
    params = jnp.zeros(2), jnp.zeros(2)
    for functions in (quadratic, (quadratic, quadratic), (quadratic, quadratic, None)):
        with refused("control_variate_from_function=...)` must take a function and"):
            jacobians_of(quadratic, lambda f, given=functions: given, SCORE, params, key, 4)
    with refused("itself, not the result", "`functools.partial(moving_avg_baseline, decay=0.9)`"):
        inspect.unwrap(estimators.control_variates_jacobians)(
            quadratic, BASELINE(quadratic), SCORE, params, estimators.multi_normal, key, 4
        )
    with refused("`control_variates_jacobians(num_samples=...)` must be a positive integer"):
        jacobians_of(quadratic, DELTA, SCORE, params, key, 0)
    with refused("estimate_cv_coeffs_num_samples=...)` must be an integer of at least 2"):
        estimators.control_variates_jacobians(
            quadratic, DELTA, SCORE, params, estimators.multi_normal, key, 4, None, True, 1
        )
    with refused("`control_variates_jacobians(params=...)` must be a tuple"):
        jacobians_of(quadratic, DELTA, SCORE, params[0], key, 4)
    value, expected_value, _ = DELTA(quadratic)
    with refused("`control_delta_method` is for `multi_normal` only: `params` must be"):
        expected_value((jnp.zeros(2),), None)
    with refused("`control_delta_method` needs a `sample` of shape (2,), got (3, 2)"):
        value(params, jnp.zeros((3, 2)), None)
    with refused("`control_delta_method(function=...)` must return a scalar float, because"):
        DELTA(lambda x: x)[0](params, jnp.zeros(2))
    for decay in (1.0, -0.1):
        with refused("`moving_avg_baseline(decay=...)` must be in [0, 1), got"):
            BASELINE(quadratic, decay)
    with refused("`moving_avg_baseline(average=...)` must hold floats, got ", "int32"):
        BASELINE(quadratic)[2](params, jnp.zeros((3, 2)), (0, 0))
