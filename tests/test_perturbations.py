"""Perturbed functions: closed forms of Gumbel and normal noise, derivatives of any order, what optax returns."""

from types import SimpleNamespace
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.special
import scipy.stats

from modulax import perturbations
from modulax.perturbations import Gumbel, Normal, make_perturbed_fun

from .refusals import refused
from .settings import jax_defaults

THEIRS: Any = optax.perturbations  # whose types are stricter than what it takes

X = np.array([0.3, -0.2, 0.9])


def one_hot(x: Any) -> Any:
    """The argmax as a vector; it has no derivative."""
    return (jnp.arange(x.size) == jnp.argmax(x)).astype(x.dtype)


def assert_within_four_errors(samples: Any, expected: Any) -> None:
    """The mean of independent estimates, on the first axis, is what is expected."""
    errors = samples.std(0, ddof=1) / len(samples) ** 0.5
    assert (np.abs(samples.mean(0) - expected) <= 4 * errors + 1e-12).all()
    assert (errors < 0.03 * np.abs(expected).max()).all(), "too noisy to tell"


def estimates(function: Any, runs: int = 200) -> np.ndarray:
    """The results of a function of a key for several keys."""
    return np.asarray(jax.jit(lambda seed: jax.vmap(function)(jax.random.split(jax.random.key(seed), runs)))(0))


# --- Closed forms ----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("use_baseline", [True, False])
def test_the_perturbed_argmax_is_the_softmax(use_baseline: bool):
    perturbed = make_perturbed_fun(one_hot, 4000, 0.5, use_baseline=use_baseline)
    both = estimates(lambda key: jnp.vstack([perturbed(key, X), jax.jacobian(perturbed, 1)(key, X)]))
    softmax = scipy.special.softmax(X / 0.5)
    assert_within_four_errors(both[:, 0], softmax)
    assert_within_four_errors(both[:, 1:], (np.diag(softmax) - np.outer(softmax, softmax)) / 0.5)


@pytest.mark.usefixtures("x64")
def test_the_perturbed_maximum_is_the_logarithm_of_a_sum():
    """With its derivatives by the input, the first and the second, and by the scale of the noise."""

    def exact(sigma: Any, x: Any) -> Any:
        return sigma * (jax.nn.logsumexp(x / sigma) + np.euler_gamma)

    def all_of(function: Any) -> Any:
        value, (by_sigma, by_x) = jax.value_and_grad(function, (0, 1))(0.8, X)
        return jnp.concatenate([jnp.stack([value, by_sigma]), by_x, jax.hessian(function, 1)(0.8, X).ravel()])

    def perturbed(key: Any) -> Any:
        return all_of(lambda sigma, x: make_perturbed_fun(jnp.max, 10_000, sigma)(key, x))

    expected = np.asarray(jax.jit(lambda: all_of(exact))())
    assert_within_four_errors(estimates(perturbed, 80), expected)

    def of_optax(key: Any) -> Any:
        return jax.grad(lambda sigma: THEIRS.make_perturbed_fun(jnp.max, 10_000, sigma)(key, X))(0.8)

    with jax_defaults():
        assert (np.abs(estimates(of_optax, 2) - expected[1]) > 1).all()


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("noise", [Gumbel(), Normal()])
def test_the_derivative_of_a_linear_function_is_its_matrix(noise: Any):
    matrix = np.array([[1.0, -2.0, 0.5], [0.0, 3.0, 1.0]])
    jacobian = jax.jacobian(make_perturbed_fun(lambda x: matrix @ x, 4000, 3.0, noise), 1)
    assert_within_four_errors(estimates(lambda key: jacobian(key, X)), matrix)


def test_the_baseline_lowers_the_variance():
    x = jnp.asarray(X, jnp.float32)
    jacobians = [jax.grad(make_perturbed_fun(jnp.max, 50, use_baseline=b), 1) for b in (True, False)]
    with_one, without = estimates(lambda key: jnp.stack([jacobian(key, x) for jacobian in jacobians])).std(0)
    assert (with_one < without / 2).all()


@pytest.mark.parametrize("noise,exact", [(Gumbel(), scipy.stats.gumbel_r), (Normal(), scipy.stats.norm)])
def test_noise_is_what_its_density_says(noise: Any, exact: Any):
    z = noise.sample(jax.random.key(0), (20_000,), jnp.float32)
    assert scipy.stats.kstest(np.asarray(z), exact.cdf).pvalue > 0.01
    np.testing.assert_allclose(noise.log_prob(z), exact.logpdf(z), rtol=1e-5, atol=1e-5)
    assert noise.log_prob(z.astype(jnp.bfloat16)).dtype == jnp.bfloat16
    theirs = getattr(THEIRS, type(noise).__name__)()
    with jax_defaults():
        assert np.allclose(theirs.log_prob(z), exact.logpdf(z), atol=1e-3) == isinstance(noise, Gumbel)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("noise", [Gumbel(), Normal()], ids=["gumbel", "normal"])
def test_noise_has_the_shape_and_the_dtype_that_are_asked_for(noise: Any):
    for dtype in (jnp.bfloat16, jnp.float32, jnp.float64):
        assert noise.sample(jax.random.key(0), (2,), dtype).dtype == dtype
    one = noise.sample(jax.random.key(0))
    assert (one.shape, one.dtype) == ((), jnp.float64)


# --- Equal to optax --------------------------------------------------------------------------------------------------


def nested(x: Any) -> Any:
    return {"hot": one_hot(x["a"]), "sum": x["a"].sum() * x["b"] ** 2}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("use_baseline", [True, False])
@pytest.mark.parametrize("name", ["Gumbel", "Normal"])
def test_the_samples_and_the_derivatives_are_those_of_optax(name: str, use_baseline: bool):
    x = {"a": X, "b": np.array(0.7)}

    def all_of(module: Any) -> Any:
        perturbed = module.make_perturbed_fun(nested, 100, 0.5, getattr(module, name)(), use_baseline)

        def total(x: Any) -> Any:
            out = perturbed(jax.random.key(1), x)
            return jnp.sum(out["hot"] ** 3) + out["sum"] ** 2

        value = perturbed(jax.random.key(1), x)
        return value, jax.jacobian(perturbed, 1)(jax.random.key(1), x), jax.hessian(total)(x)

    ours = jax.jit(lambda: all_of(perturbations))()
    with jax_defaults():
        theirs = jax.jit(lambda: all_of(THEIRS))()
    chex.assert_trees_all_close(ours, theirs, rtol=1e-11, atol=1e-11)


# --- Edges -----------------------------------------------------------------------------------------------------------


def test_noise_below_the_precision_of_the_input():
    """Of 256 in bfloat16 the next number is 258: the sum with the noise is rounded, and the noise itself is known."""
    x = jnp.full(3, 256, jnp.bfloat16)
    identity = make_perturbed_fun(lambda x: x.astype(jnp.float32), 20_000, 1.0, Normal())
    jacobian = jax.jit(jax.jacobian(identity, 1))(jax.random.key(0), x)
    assert jacobian.dtype == jnp.bfloat16
    np.testing.assert_allclose(jacobian.astype(jnp.float32), np.eye(3), atol=0.15)
    with jax_defaults():
        theirs = THEIRS.make_perturbed_fun(lambda x: x, 1000, 0.1, THEIRS.Normal())
        assert not np.any(jax.jit(jax.jacobian(theirs, 1))(jax.random.key(0), x))


def test_an_entry_that_is_masked_by_an_infinity():
    jacobian = jax.jit(jax.jacobian(make_perturbed_fun(one_hot, 1000, 0.5), 1))
    jacobian = jacobian(jax.random.key(0), jnp.array([0.1, 0, -jnp.inf]))
    chex.assert_tree_all_finite(jacobian)
    jacobian = np.asarray(jacobian)
    assert not jacobian[2].any()
    assert jacobian[0, 0] > 0.2


def test_values_where_the_baseline_is_infinite():
    inverse = jax.jit(make_perturbed_fun(lambda x: 1 / jnp.abs(x), 10, 1.0, Normal()))
    assert np.isfinite(inverse(jax.random.key(0), jnp.array(0.0)))


def test_integers_in_and_out_and_what_the_function_depends_on():
    def power(factor: Any, x: Any) -> Any:
        return {"power": factor * x["a"] ** x["n"], "argmax": jnp.argmax(x["a"])}

    x = {"a": jnp.asarray(X, jnp.float32), "n": jnp.array(2), "name": None}

    @jax.jit
    def out_and_slope(key: Any) -> Any:
        return jax.jvp(lambda factor: make_perturbed_fun(lambda x: power(factor, x), 20)(key, x), (3.0,), (1.0,))

    out, slope = out_and_slope(jax.random.key(0))
    np.testing.assert_allclose(slope["power"] * 3, out["power"], rtol=1e-6)
    assert out["argmax"].dtype == jnp.float32
    assert 1 < out["argmax"] <= 2


@pytest.mark.usefixtures("x64")
def test_the_function_gets_the_dtype_of_the_input_and_its_results_keep_theirs():
    """Derivatives are averaged in float32, because their terms overflow in float16; the mean of integers is a float."""
    seen = []

    def function(x: Any) -> Any:
        seen.append(x.dtype)
        return {"large": jnp.full(2, 300, jnp.float16), "is_first": x[0] > x[1], "number": 1.5}

    x = jnp.array([0.1, 0.2], jnp.float16)
    perturbed = make_perturbed_fun(function, 500, 1e-3, Normal(), use_baseline=False)
    out, slopes = jax.jit(lambda x: jax.jvp(lambda x: perturbed(jax.random.key(0), x), (x,), (x,)))(x)
    assert {name: value.dtype for name, value in out.items()} == {
        "large": jnp.float16,
        "is_first": jnp.float64,
        "number": jnp.float64,
    }
    np.testing.assert_array_equal(out["large"], 300)
    assert slopes["large"].dtype == jnp.float16
    assert np.isfinite(slopes["large"]).all()
    assert out["number"] == 1.5
    assert set(seen) == {jnp.dtype(jnp.float16)}


def test_a_complex_result_is_its_two_parts():
    """With derivatives; and a scale may be an integer."""

    def derivative(function: Any) -> Any:
        perturbed = make_perturbed_fun(function, 3, 1, Normal())
        return jax.jvp(lambda x: perturbed(jax.random.key(0), x), (jnp.ones(2),), (jnp.arange(2.0),))

    functions = (lambda x: jax.lax.complex(x, x**2), lambda x: x, lambda x: x**2)
    for found, real, imag in zip(*jax.jit(lambda: [derivative(f) for f in functions])(), strict=True):
        assert found.dtype == jnp.complex64
        np.testing.assert_allclose(found, np.asarray(real) + 1j * np.asarray(imag), rtol=1e-5, atol=1e-6)


def test_what_cannot_be_perturbed_is_refused():
    key, owner = jax.random.key(0), "`make_perturbed_fun("
    calls: list[tuple[dict[str, Any], str]] = [
        ({"num_samples": 0}, "num_samples=...)` must be a positive integer"),
        ({"sigma": 0.0}, "sigma=...)` must be positive, got 0"),
        ({"sigma": np.ones(2)}, "sigma=...)` must be a scalar, got an array of shape (2,)"),
        ({"noise": SimpleNamespace(log_prob=jnp.sin)}, "noise=...)` must have a method `sample`, like `Gumbel()`"),
        ({"noise": SimpleNamespace(sample=jnp.sin)}, "noise=...)` must have a method `log_prob`"),
    ]
    for arguments, said in calls:
        with refused(owner + said):
            make_perturbed_fun(one_hot, **arguments)
    with refused("the input must have a leaf that is a floating-point array"):
        make_perturbed_fun(one_hot)(key, jnp.arange(3))
    with refused("the input `a` is complex, but noise is real"):
        make_perturbed_fun(lambda x: x["a"])(key, {"a": jnp.array(1j)})
