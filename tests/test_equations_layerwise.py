"""Steps in proportion to the parameters, normalization, clipping and constraints, against their equations."""

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpy.linalg import norm

import modulax as mx
from modulax import schedules

from . import settings
from .transcriptions import Cases, Points, assert_equations, first_update, gradients, start

x64 = pytest.mark.usefixtures("x64")


def direction(of: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Points:
    """Descent along a function of the gradient and the point."""
    w = start()
    for g in gradients():
        w = w - 1e-3 * of(g, w)
        yield w


CASES: Cases = {
    "ScaleByTrustRatio": (
        lambda: mx.Chain(mx.ScaleByTrustRatio(0.5, 2.0, 0.1, 0.2), mx.Scale(-1e-3)),
        lambda: direction(
            lambda g, w: 2 * max(norm(w), 0.5) / (max(norm(g), 0.5) + 0.2 * max(norm(w), 0.5) + 0.1) * (g + 0.2 * w)
        ),
    ),
    "AdaptiveGradClip": (  # Brock et al. 2021, equation 3
        lambda: mx.Chain(mx.AdaptiveGradClip(10.0), mx.Scale(-1e-3)),
        lambda: direction(
            lambda g, w: 10 * max(norm(w), 1e-3) / norm(g) * g if norm(g) / max(norm(w), 1e-3) > 10 else g
        ),
    ),
}


@x64
@pytest.mark.parametrize("name", CASES)
def test_equals_its_equations(name: str):
    assert_equations(CASES[name])


# --- Matrices ------------------------------------------------------------------------------------------


@x64
def test_centralize_takes_the_mean_of_each_output():
    g = np.random.default_rng(0).normal(size=(3, 4, 5))
    first = np.stack([x - x.mean() for x in g])
    np.testing.assert_allclose(first_update(mx.Centralize(), jnp.asarray(g)), first, rtol=1e-12)
    last = np.stack([g[..., i] - g[..., i].mean() for i in range(5)], axis=-1)
    np.testing.assert_allclose(first_update(mx.Centralize(output_axis=-1), jnp.asarray(g)), last, rtol=1e-12)
    np.testing.assert_array_equal(first_update(mx.Centralize(), jnp.ones(3)), jnp.ones(3))


UNITS = {(): (), (5,): (0,), (1, 5, 1): (0, 1, 2), (3, 4): (0,), (2, 3, 4): (0,), (2, 3, 4, 5): (0, 1, 2)}
UNITS |= {(2, 2, 2, 3, 4): (0, 1, 2, 3)}


@x64
def test_the_norm_of_a_unit():
    arrays = [np.random.default_rng(0).normal(size=shape) for shape in UNITS]
    found = jax.jit(lambda arrays: [mx.unitwise_norm(x) for x in arrays])(arrays)
    for x, axes, norms in zip(arrays, UNITS.values(), found, strict=True):
        expected = np.sqrt(np.sum(x**2, axis=axes, keepdims=True))
        np.testing.assert_allclose(norms, np.broadcast_to(expected, x.shape), rtol=1e-12)


def test_units_of_many_axes_must_be_named():
    x = jnp.ones((2,) * 6)
    with pytest.raises(
        ValueError,
        match=re.escape("(2, 2, 2, 2, 2, 2)") + ".*" + re.escape("`AdaptiveGradClip(clipping, axis=(0, 1))`"),
    ):
        mx.unitwise_norm(x)
    assert mx.unitwise_norm(x, axis=(0, 1)).shape == x.shape
    assert first_update(mx.AdaptiveGradClip(0.1, axis=0), x).shape == x.shape


@x64
def test_the_smallest_norm_that_a_unit_is_divided_by():
    norm_of_g, bound, g = jnp.asarray([1e-8, 1e-4]), jnp.asarray([1e-9, 1e-5]), jnp.ones(2)
    np.testing.assert_allclose(mx.unitwise_clip(norm_of_g, bound, g), [1e-3, 0.1], rtol=1e-12)
    np.testing.assert_allclose(mx.unitwise_clip(norm_of_g, bound, g, 1e-9), [0.1, 0.1], rtol=1e-12)


@x64
def test_masks_of_lars():
    """Each leaf decays or not, and is in proportion or not."""
    random = np.random.default_rng(0)
    names = ("both", "decays", "scaled", "neither")
    w, g = ({name: random.normal(size=3) for name in names} for _ in range(2))
    masks = (
        mx.by_path({"both": True, "decays": True, "*": False}),
        mx.by_path({"both": True, "scaled": True, "*": False}),
    )
    for follow in ("paper", "optax"):
        transform = mx.LARS(1.0, 0.2, masks[0], 0.5, trust_ratio_mask=masks[1], follow=follow)
        found = first_update(transform, *(jax.tree.map(jnp.asarray, tree) for tree in (g, w)))
        for name in names:
            decay = 0.2 if name in ("both", "decays") else 0.0
            total = g[name] + decay * w[name]
            below = norm(g[name]) + decay * norm(w[name]) if follow == "paper" else norm(total)
            ratio = 0.5 * norm(w[name]) / below if name in ("both", "scaled") else 1.0
            np.testing.assert_allclose(found[name], -ratio * total, rtol=1e-12)


def test_a_mask_of_lars_has_booleans():
    params = {"a": jnp.ones(2)}
    with pytest.raises(ValueError, match="needs `True` or `False` for every leaf, got 'yes' at `a`"):
        mx.LARS(0.1, mask={"a": "yes"}).update(params, mx.LARS(0.1).init(params), params)


# --- What follows from the equations -------------------------------------------------------------------


def test_the_shrinkage_of_fromage_is_not_rounded_away():
    """1 / √(1 + η²) - 1 = -η²/2 for a small η, which float32 cannot tell from zero below 2e-4."""
    u = first_update(mx.Fromage(1e-4), jnp.zeros(2), jnp.ones(2))
    np.testing.assert_allclose(u, -0.5e-8, rtol=1e-5)


@x64
def test_the_ratio_of_lars_is_not_that_of_optax():
    g, w = np.asarray([3.0, 4.0]), np.asarray([-3.0, 4.0])
    numbers = (1.0, 0.5, None, 0.1)
    with settings.jax_defaults():
        twin = optax.lars(1.0, 0.5, True, 0.1)
        theirs = np.asarray(jax.jit(lambda g, w: twin.update(g, twin.init(w), w)[0])(g, w))
    np.testing.assert_allclose(first_update(mx.LARS(*numbers, follow="optax"), g, w), theirs, rtol=1e-12)
    expected = -0.1 * 5 / (5 + 0.5 * 5) * (g + 0.5 * w)
    np.testing.assert_allclose(first_update(mx.LARS(*numbers), g, w), expected, rtol=1e-12)
    assert not np.allclose(theirs, expected, rtol=0.1)


# --- Edges: zero, infinity, low precision --------------------------------------------------------------

LOW = (jnp.float16, jnp.bfloat16)


def test_optax_divides_zero_by_zero():
    """Unlike ours. If these fail, optax has fixed it, and the differences are gone."""
    zeros = jnp.zeros(3)
    clips = mx.ClipByGlobalNorm(0.0), mx.AdaptiveGradClip(0.0, 0.0), mx.ClipByBlockRMS(0.0)
    for transform in (*clips, mx.Normalize(), mx.NormalizeByUpdateNorm(eps=0.0)):
        np.testing.assert_array_equal(first_update(transform, zeros), 0)
    with settings.jax_defaults():
        for twin in (optax.contrib.normalize(), optax.clip_by_global_norm(0.0)):
            u: Any = twin.update(zeros, twin.init(zeros))[0]
            assert np.all(np.isnan(u))


@pytest.mark.parametrize("dtype", LOW)
def test_norms_do_not_overflow_in_low_precision(dtype: Any):
    """300² is more than float16 holds."""
    g = jnp.full(4, 300, dtype)
    for transform, expected in (
        (mx.ClipByGlobalNorm(2.0), 1.0),
        (mx.ClipByBlockRMS(2.0), 2.0),
        (mx.NormalizeByUpdateNorm(), 0.5),
        (mx.Normalize(), 0.5),
        (mx.AdaptiveGradClip(1000.0), 0.5),
    ):
        np.testing.assert_allclose(np.asarray(first_update(transform, g), np.float32), expected, rtol=1e-2)
    assert mx.unitwise_norm(g).dtype == jnp.float32
    np.testing.assert_array_equal(mx.unitwise_norm(g), np.float32(np.float32(g[0]) * 2))


@pytest.mark.parametrize("transform", [mx.ClipByGlobalNorm(1.0), mx.ClipByBlockRMS(1.0)], ids=["global", "block"])
def test_clipping_makes_no_nan_and_hides_none(transform: Any):
    np.testing.assert_array_equal(first_update(transform, jnp.asarray([jnp.inf, 1.0])), [0, 0])
    np.testing.assert_array_equal(first_update(transform, jnp.asarray([1e30, 1.0])), [0, 0])
    assert np.all(np.isnan(first_update(transform, jnp.asarray([jnp.nan, 1.0]))))


def test_clipping_has_finite_derivatives_at_its_edges():
    """With respect to bound and updates; for finite updates, since the norm itself has none at infinity."""

    def total(bound: Any, g: Any) -> Any:
        clip = mx.ClipByGlobalNorm(bound)
        return jnp.sum(clip.update(g, mx.EmptyState())[0])

    both = jax.jit(jax.vmap(jax.grad(total, (0, 1))))
    g = jnp.asarray([[3.0, 4.0], [0.0, 0.0], [3.0, 4.0], [3.0, 4.0], [0.0, 0.0]])
    by_bound, by_g = both(jnp.asarray([0.0, 0.0, 2.5, 10.0, 1.0]), g)
    np.testing.assert_allclose(by_bound, [0, 0, 1.4, 0, 0], rtol=1e-6)
    np.testing.assert_allclose(by_g, [[0, 0], [1, 1], [0.08, -0.06], [1, 1], [1, 1]], rtol=1e-5)
    by_bound, _ = both(jnp.ones(1), jnp.asarray([[jnp.inf, 1.0]]))
    np.testing.assert_array_equal(by_bound, 0)


def test_a_decay_of_zero_adds_nothing_to_infinity():
    """The decay is traced: the program does not know that it is zero."""
    w = jnp.asarray([jnp.inf, -jnp.inf, 2.0])
    g = jnp.asarray([1.0, 2.0, 4.0])
    zero: Any = schedules.Constant(0.0)
    scheduled = mx.Scheduled(mx.AddDecayedWeights(zero))
    for transform in (mx.AddDecayedWeights(0.0), scheduled):
        np.testing.assert_array_equal(first_update(transform, g, w), g)
    decaying = first_update(mx.AddDecayedWeights(0.5), g, w)
    np.testing.assert_array_equal(np.isfinite(decaying), True)
    np.testing.assert_array_equal(np.sign(decaying), np.sign(w))
    assert decaying[2] == 5.0
    assert np.isnan(first_update(mx.AddDecayedWeights(0.0), g[:1], jnp.asarray([jnp.nan]))).all()


# --- Constraints -----------------------------------------------------------------------------------------


def test_nan_becomes_zero_and_is_remembered():
    transform = mx.ZeroNaNs()
    bad = {"a": jnp.asarray([jnp.nan, 1.0, jnp.inf]), "b": jnp.ones(2)}
    state = transform.init(bad)
    u, state = transform.update(bad, state)
    np.testing.assert_array_equal(u["a"], [0, 1, jnp.inf])
    assert {k: bool(x) for k, x in state.found_nan.items()} == {"a": True, "b": False}
    _, state = transform.update(jax.tree.map(jnp.ones_like, bad), state)
    assert not any(jax.tree.leaves(state.found_nan))


@pytest.mark.parametrize("dtype", [*LOW, jnp.float32])
def test_parameters_stay_nonnegative(dtype: Any):
    random = np.random.default_rng(0)
    transform, w = mx.Chain(mx.SGD(0.3), mx.KeepParamsNonnegative()), jnp.asarray(random.uniform(0, 1, 50), dtype)
    state = transform.init(w)
    for _ in range(20):
        w, state = transform.step(jnp.asarray(random.normal(size=50), dtype), state, w)
        assert np.all(np.asarray(w) >= 0)
    assert np.any(np.asarray(w) == 0)
    assert np.any(np.asarray(w) > 0)


# --- Neelakantan et al. 2015, equation 1 -----------------------------------------------------------------


def test_the_noise_is_normal_and_decays():
    """Mean, variance and fourth moment of 40000 numbers, each within five standard errors."""
    n = 40_000
    transform = mx.AddNoise(4.0, 2.0, key=1)
    params = {"real": jnp.full(n, 3.0), "complex": jnp.full(n, 3.0 + 0j)}
    state = transform.init(params)
    noises = []
    for t in range(3):
        u, state = transform.update(params, state)
        noise = {k: np.asarray(x, complex) - 3 for k, x in u.items()}
        variance = 4 / (1 + t) ** 2
        z = np.real(noise["real"]) / np.sqrt(variance)
        assert abs(np.mean(z)) < 5 / np.sqrt(n)
        assert abs(np.mean(z**2) - 1) < 5 * np.sqrt(2 / n)
        assert abs(np.mean(z**4) - 3) < 5 * np.sqrt(96 / n)
        both = noise["complex"] / np.sqrt(variance)
        assert abs(np.mean(np.abs(both) ** 2) - 1) < 5 * np.sqrt(1 / n)
        assert abs(np.mean(both.real * both.imag)) < 5 * np.sqrt(0.25 / n)
        noises += [z, both.real * np.sqrt(2)]
    correlations = np.corrcoef(noises) - np.eye(len(noises))
    assert np.max(np.abs(correlations)) < 5 / np.sqrt(n)


def test_a_schedule_of_the_noise():
    """Bare and in an optimizer, the step is that of the noise."""
    w = jnp.zeros(1000)
    switched: Any = schedules.PiecewiseConstant(1.0, {2: 0.0})
    transforms: list[Any] = [mx.AddNoise(switched, 0.0), mx.NoisySGD(1.0, switched, 0.0)]
    for transform in transforms:
        state = transform.init(w)
        deviations = []
        for _ in range(4):
            u, state = transform.update(w, state)
            deviations.append(float(np.std(u)))
        np.testing.assert_allclose(deviations, [1, 1, 0, 0], atol=0.15)
