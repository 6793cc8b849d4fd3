"""Estimators of gradients: their mean is the gradient, of all that they take; the Gaussian that they draw from."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.special
import scipy.stats

from modulax import estimators

from .refusals import refused
from .settings import jax_defaults

SCORE = estimators.score_function_jacobians
PATHWISE = estimators.pathwise_jacobians
MEASURE = estimators.measure_valued_jacobians
UNCOUPLED = functools.partial(MEASURE, coupling=False)
each_estimator = pytest.mark.parametrize("estimator", [SCORE, PATHWISE, MEASURE], ids=["score", "pathwise", "measure"])

# Functions of a Gaussian in three dimensions, and their expectations.
A = np.array([0.5, -0.3, 0.8])
MEAN, LOG_SCALE = np.array([0.4, -1.0, 0.7]), np.array([-0.5, 0.2, 0.0])


def functions(x):
    a = jnp.asarray(A, x.dtype)
    return jnp.stack([a @ x, a @ x**2, a @ x**3, jnp.exp(a @ x), jnp.cos(a @ x)])


def expectations(mean, log_scale):
    a, v = jnp.asarray(A, mean.dtype), jnp.exp(2 * log_scale)
    half = (a**2 @ v) / 2
    along = a @ mean
    return jnp.stack(
        [
            along,
            a @ (mean**2 + v),
            a @ (mean**3 + 3 * mean * v),
            jnp.exp(along + half),
            jnp.cos(along) * jnp.exp(-half),
        ]
    )


@functools.cache
def gradients_of_expectations():
    """By the mean and by the log-scale, for each of the functions."""
    with jax.enable_x64(True):
        return [np.asarray(g) for g in jax.jit(jax.jacobian(expectations, (0, 1)))(MEAN, LOG_SCALE)]


def for_each_function(jacobians_of):
    """The results of `jacobians_of(function)` for each of the functions, in one program."""
    return jax.jit(jax.vmap(lambda w: jacobians_of(lambda x: w @ functions(x))))(np.eye(5, dtype=np.float32))


def standard_errors(jacobians, expected):
    """By how many standard errors the means over the samples, which are the last axis but one, differ."""
    jacobians, expected = np.asarray(jacobians, np.float64), np.asarray(expected, np.float64)
    error = jacobians.std(-2) / np.sqrt(jacobians.shape[-2])
    return np.abs(jacobians.mean(-2) - expected) / (error + 1e-6 * (1 + np.abs(expected)))


@pytest.mark.parametrize(
    "estimator", [SCORE, PATHWISE, MEASURE, UNCOUPLED], ids=["score", "pathwise", "measure", "uncoupled"]
)
def test_the_mean_is_the_gradient(estimator, key):
    params = jnp.asarray(MEAN, jnp.float32), jnp.asarray(LOG_SCALE, jnp.float32)
    jacobians = for_each_function(lambda f: estimator(f, params, estimators.multi_normal, key, 100_000))
    for actual, expected in zip(jacobians, gradients_of_expectations(), strict=True):
        assert actual.shape == (5, 100_000, 3)
        assert np.max(standard_errors(actual, expected)) < 4


@pytest.mark.parametrize("estimator", [SCORE, MEASURE], ids=["score", "measure"])
def test_functions_with_jumps(estimator, key):
    """The probability of a half-line: a pathwise derivative would be zero."""
    params = jnp.array(0.1), jnp.array(0.5)
    jacobians = jax.jit(lambda: estimator(lambda x: x > 0.3, params, estimators.multi_normal, key, 100_000))()
    sigma = np.exp(0.5)
    density = scipy.stats.norm.pdf(0.3, 0.1, sigma)
    for actual, expected in zip(jacobians, (density, (0.3 - 0.1) * density), strict=True):
        assert standard_errors(actual[:, None], expected) < 4


class Bernoulli:
    def __init__(self, logits):
        self.logits = logits

    def sample(self, shape, seed):
        p = jnp.broadcast_to(jax.nn.sigmoid(self.logits), (*shape, *self.logits.shape))
        return jax.random.bernoulli(seed, p).astype(jnp.int32)

    def log_prob(self, x):
        return jnp.sum(jax.nn.log_sigmoid(jnp.where(x == 1, self.logits, -self.logits)))


def test_discrete_samples(key):
    logits = jnp.array([0.3, -1.0])
    (jacobian,) = jax.jit(lambda: SCORE(lambda x: x @ jnp.array([2, -1]), (logits,), Bernoulli, key, 100_000))()
    p = scipy.special.expit(np.asarray(logits))
    assert np.max(standard_errors(jacobian, np.array([2.0, -1.0]) * p * (1 - p))) < 4
    with refused("`pathwise_jacobians` differentiates the samples", "floats, got int32"):
        PATHWISE(lambda x: x.sum(), (logits,), Bernoulli, key, 3)


def test_coupled_points_share_their_noise(key):
    """Of an even function, the two for the mean have one value, and that of the normal is never the larger one."""
    params = jnp.zeros(2), jnp.zeros(2)
    coupled, uncoupled = jax.jit(
        lambda: [f(lambda x: jnp.sum(x**2), params, estimators.multi_normal, key, 20) for f in (MEASURE, UNCOUPLED)]
    )()
    np.testing.assert_array_equal(coupled[0], 0)
    assert np.all(np.asarray(coupled[1]) >= 0)
    assert np.all(np.asarray(uncoupled[0]) != 0)
    assert np.any(np.asarray(uncoupled[1]) < 0)


@each_estimator
@pytest.mark.usefixtures("x64")
def test_what_the_gaussian_is_built_from(estimator, key):
    """Parameters of any shape, by the chain rule; a scale that all entries share; samples that are matrices."""
    matrix = jnp.array([[1.0, 2.0], [0.5, -1.0], [0.0, 3.0]])
    theta = jnp.array([0.3, -0.2])

    def build(theta, log_scale):
        return estimators.multi_normal((matrix @ theta).reshape(3, 1), log_scale + theta[0])

    def function(x):
        return jnp.sum(jnp.sin(x)) + x[0, 0] * x[2, 0]

    entries = (matrix @ theta).reshape(3, 1), jnp.full((3, 1), 0.1 + theta[0])
    (by_theta, by_shared), (by_mean, by_log_scale) = jax.jit(
        lambda: (
            estimator(function, [theta, jnp.array(0.1)], build, key, 7),
            estimator(function, entries, estimators.multi_normal, key, 7),
        )
    )()
    assert by_shared.shape == (7,)
    matrix, by_mean, by_log_scale = np.asarray(matrix), np.asarray(by_mean), np.asarray(by_log_scale)
    np.testing.assert_allclose(by_shared, by_log_scale.sum((1, 2)), rtol=1e-12)
    expected = by_mean[..., 0] @ matrix + by_log_scale.sum((1, 2))[:, None] * np.array([[1.0, 0.0]])
    np.testing.assert_allclose(by_theta, expected, rtol=1e-12, atol=1e-14)


class Other:
    """A user's distribution."""

    def __init__(self, *params):
        self.dist = estimators.multi_normal(*params)

    def sample(self, shape, seed):
        return self.dist.sample(shape, seed=seed)

    def log_prob(self, x):
        return self.dist.log_prob(x)


@pytest.mark.parametrize("estimator", [SCORE, PATHWISE], ids=["score", "pathwise"])
@pytest.mark.usefixtures("x64")
def test_any_distribution_will_do(estimator, key):
    params = jnp.array([[0.3, -0.2]]), jnp.array(0.1)
    ours, theirs = jax.jit(
        lambda: [
            estimator(lambda x: jnp.sum(jnp.exp(x)), params, build, key, 5)
            for build in (estimators.multi_normal, Other)
        ]
    )()
    for x, y in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-12)


@each_estimator
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32, jnp.float64])
@pytest.mark.usefixtures("x64")
def test_jacobians_have_the_dtype_of_their_parameter(estimator, dtype, key):
    """Nothing is rounded in between: the function is called with at least float32."""
    seen = []

    def function(x):
        seen.append(x.dtype)
        return jnp.sum(x)

    params = jnp.zeros((2, 3), dtype), jnp.zeros((), jnp.float32)
    jacobians = jax.eval_shape(lambda key: estimator(function, params, estimators.multi_normal, key, 4), key)
    assert isinstance(jacobians, tuple)
    assert [(j.shape, j.dtype) for j in jacobians] == [((4, 2, 3), dtype), ((4,), jnp.float32)]
    assert set(seen) == {jnp.dtype(jnp.float64 if dtype == jnp.float64 else jnp.float32)}


@each_estimator
def test_finite_for_tiny_and_large_scales(estimator, key):
    log_scale = jnp.array([-40.0, -15.0, 0.0, 15.0, 40.0])
    jacobians = jax.jit(
        lambda: estimator(lambda x: jnp.sum(jnp.tanh(x)), (log_scale * 0, log_scale), estimators.multi_normal, key, 50)
    )()
    chex.assert_tree_all_finite(jacobians)


# --- The Gaussian ---------------------------------------------------------------------------------


@pytest.mark.usefixtures("x64")
def test_multi_normal_is_that_of_scipy_and_optax(key):
    mean, log_scale = np.array([[0.3, -1.0], [2.0, 5.0]]), np.array([[0.1, -3.0]])
    ours, theirs = estimators.multi_normal(mean, log_scale), optax.multi_normal(mean, log_scale)

    def sample_and_density():
        x = ours.sample((3, 4), seed=key)
        return x, ours.log_prob(x)

    x, log_prob = jax.jit(sample_and_density)()
    expected = scipy.stats.norm.logpdf(x, mean, np.exp(log_scale)).sum((2, 3))
    np.testing.assert_allclose(log_prob, expected, rtol=1e-12)
    with jax_defaults():
        their_log_prob, their_x = jax.jit(lambda x: (theirs.log_prob(x), theirs.sample((3, 4), key)))(x)
        np.testing.assert_allclose(log_prob, their_log_prob, rtol=1e-12)
        np.testing.assert_allclose(x, their_x, rtol=1e-12)
    assert [np.array_equal(p, q) for p, q in zip(ours.params, (mean, log_scale), strict=True)] == [True, True]
    np.testing.assert_array_equal(ours.mean(), mean)
    assert estimators.multi_normal(0.0, log_scale).mean().shape == (1, 2)


def test_multi_normal_is_an_immutable_tree(key):
    dist = estimators.multi_normal(jnp.zeros(3), 0.5)
    with pytest.raises(AttributeError):
        dist.loc = jnp.ones(3)
    batch = jax.vmap(estimators.multi_normal, (0, None))(jnp.zeros((4, 3)), 0.5)
    samples = jax.eval_shape(jax.vmap(lambda d, k: d.sample((2,), k)), batch, jax.random.split(key, 4))
    assert samples.shape == (4, 2, 3)


def test_multi_normal_keeps_a_low_dtype_and_rounds_once(key):
    dist = estimators.multi_normal(jnp.full(2000, 0.1, jnp.bfloat16), jnp.bfloat16(0.2))
    x, log_prob = jax.jit(lambda: (x := dist.sample((), key), dist.log_prob(x)))()
    exact = scipy.stats.norm.logpdf(
        np.asarray(x, np.float32), float(jnp.bfloat16(0.1)), np.exp(float(jnp.bfloat16(0.2)))
    )
    assert x.dtype == dist.mean().dtype == log_prob.dtype == jnp.bfloat16
    np.testing.assert_allclose(float(log_prob), exact.sum(), rtol=0.004)


def test_multi_normal_refuses_what_does_not_fit():
    dist = estimators.multi_normal(jnp.zeros(3), 0.0)
    with refused("`multi_normal(loc=...)` must hold floats, got ", "int32"):
        estimators.multi_normal(jnp.zeros(3, jnp.int32), 0.0)
    with refused("`multi_normal` needs `loc` and `log_scale` of shapes that broadcast"):
        estimators.multi_normal(jnp.zeros(3), jnp.zeros(2))
    for x in (jnp.ones(()), jnp.zeros((3, 1))):
        with refused(f"`multi_normal.log_prob` needs an `x` whose shape ends with (3,), got {x.shape}"):
            dist.log_prob(x)
    with refused("`multi_normal.log_prob(x=...)` must hold real numbers, got ", "complex64"):
        dist.log_prob(jnp.zeros(3, jnp.complex64))


# --- What is refused ------------------------------------------------------------------------------


class Numpyro:
    """Draws with the arguments of numpyro."""

    def sample(self, key, sample_shape=()):
        return jax.random.normal(key, sample_shape)


class Entries(Other):
    """Its log-probability has a value for each entry."""

    def log_prob(self, x):
        return -(x**2)


class Fixed:
    """Always draws the same; and has no density."""

    def __init__(self, samples):
        self.samples = samples

    def sample(self, shape, seed):
        del shape, seed
        return self.samples


def call(estimator, key, function=jnp.sum, params=None, build=estimators.multi_normal, n=4):
    """Nothing is computed: what does not fit is refused in tracing."""
    params = (jnp.zeros(2), jnp.zeros(2)) if params is None else params
    return jax.eval_shape(lambda params, key: estimator(function, params, build, key, n), params, key)


@each_estimator
def test_what_does_not_fit_is_refused(estimator, key):
    name, ones = estimator.__name__, jnp.ones(2)
    with refused(f"`{name}(params=...)` must be a tuple", " `(x,)`"):
        call(estimator, key, params=ones)
    with refused(f"`{name}(params[1]=...)` must hold floats, got ", "int32"):
        call(estimator, key, params=(ones, ones.astype(int)))
    for n in (0, -3):
        with refused(f"`{name}(num_samples=...)` must be a positive integer, got"):
            call(estimator, key, n=n)
    for function, said in (
        (lambda x: x, "got an array of shape (2,)"),
        (lambda x: None, "got `NoneType`"),
        (lambda x: jax.lax.complex(x[0], x[1]), "got an array of shape () and dtype complex64"),
    ):
        with refused(f"`{name}(function=...)` must return a ", "scalar", said):
            call(estimator, key, function)


@pytest.mark.parametrize("estimator", [SCORE, PATHWISE], ids=["score", "pathwise"])
def test_a_distribution_with_another_interface_is_refused(estimator, key):
    name = estimator.__name__
    with refused("must return a distribution with `sample(shape, seed)`, got `tuple`"):
        call(estimator, key, build=lambda *params: params)
    with refused(f"`{name}` calls ", "has `Numpyro.sample(key, sample_shape=())`: wrap"):
        call(estimator, key, build=lambda *params: Numpyro())
    for samples in (jnp.zeros((3, 2)), jnp.zeros(())):
        with refused("needs 4 samples along the first axis", f"got an array of shape {samples.shape}"):
            call(estimator, key, build=lambda *params, samples=samples: Fixed(samples))


def test_what_one_estimator_needs_is_refused_by_name(key):
    with refused("`log_prob` of the `Entries`", "a scalar float", "(2,)", "`.to_event(1)`"):
        call(SCORE, key, build=Entries)
    with refused("`score_function_jacobians` needs `log_prob(x)`, but the `Fixed`"):
        call(SCORE, key, build=lambda *params: Fixed(jnp.zeros((4, 2))))
    with refused("`measure_valued_jacobians` is for Gaussians only", "got `Other`"):
        call(MEASURE, key, build=Other)
    with refused("`pathwise_jacobians(function=...)` must return a scalar float, because"):
        call(PATHWISE, key, lambda x: jnp.sum(x > 0))
