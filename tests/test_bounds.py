"""What happens exactly at a bound: of a number that is allowed, of a schedule's pieces, of a count, of a norm."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import modulax as mx
from modulax import (
    microbatching,
    projections,
    schedules as S,  # noqa: N812
)

TINY = 1e-30

# --- Numbers that are allowed ----------------------------------------------------------------------

# For each requirement a field that has it, what is just allowed, and what is just not.
REQUIREMENTS: dict[str, tuple[Callable[[Any], Any], list[float], list[float]]] = {
    "a decay": (mx.Ema, [0, 1 - 1e-6], [-TINY, 1, np.nan]),
    "a fraction": (lambda x: mx.ScaleBySM3(b2=x), [0, 1], [-TINY, 1 + 1e-6, np.nan]),
    "a proper fraction": (mx.ReduceOnPlateau, [TINY, 1 - 1e-6], [0, 1, np.nan]),
    "not negative": (mx.Clip, [0], [-TINY, np.nan]),
    "positive": (lambda x: S.Linear(1.0, 0.0, x), [TINY], [0, -TINY, np.nan]),
    "at least one": (mx.ApplyEvery, [1], [1 - 1e-6, np.nan]),
    "a positive integer": (mx.ScaleByLBFGS, [1], [0, -1]),
    "a warm-up within the schedule": (lambda x: S.WarmupCosineDecay(0.0, 1.0, x, 10), [0, 9.5], [10]),
    "back at the start": (lambda x: S.LinearOneCycle(10, 1.0, 0.5, x), [0.5, 1], [0.25]),
    "boundaries in order": (lambda x: S.PiecewiseInterpolate("linear", 1.0, {4: 0.5, x: 0.1}), [4.0, 5], []),
    "boundaries one after the other": (
        lambda x: S.PiecewiseInterpolate("linear", 1.0, {4: 0.5, 5: 0.1}).replace(boundaries=(4.0, x)),
        [4, 5],
        [3.5],
    ),
    "a radius": (lambda x: projections.projection_l2_ball(np.ones(2, np.float32), x), [0], [-TINY]),
    "a box": (lambda x: projections.projection_box(np.ones(2, np.float32), 0.5, x), [0.5], [0.25]),
    "a microbatch": (lambda x: microbatching.reshape_batch_axis(np.ones(4, np.float32), x), [1, 4], [0, 3]),
}


@pytest.mark.parametrize("name", REQUIREMENTS)
def test_what_is_allowed_ends_where_it_is_said_to(name: str):
    make, allowed, refused = REQUIREMENTS[name]
    for x in allowed:
        make(x)
    for x in refused:
        with pytest.raises(ValueError, match=r"must|needs|cannot"):
            make(x)


# --- Schedules -------------------------------------------------------------------------------------

# A schedule, and its value at steps where something begins or ends; all numbers are exact in float32.
TURNS: dict[str, tuple[Any, dict[float, float]]] = {
    "Constant": (S.Constant(0.5), {0: 0.5, 1e9: 0.5}),
    "Linear": (S.Linear(1.0, 0.0, 4, 2), {0: 1, 2: 1, 3: 0.75, 6: 0, 7: 0}),
    "Polynomial": (S.Polynomial(1.0, 0.0, 2.0, 4, 2), {0: 1, 2: 1, 4: 0.25, 6: 0, 7: 0}),
    "Polynomial-power-0": (S.Polynomial(4.0, 1.0, 0.0, 4), {0: 4, 3: 4, 4: 4, 5: 4}),
    "CosineDecay": (S.CosineDecay(2.0, 4, 0.25), {0: 2, 4: 0.5, 5: 0.5}),
    "CosineDecay-exponent-0": (S.CosineDecay(2.0, 4, 0.25, 0.0), {0: 2, 4: 2, 5: 2}),
    "ExponentialDecay": (S.ExponentialDecay(8.0, 2, 0.5, 2), {0: 8, 1: 8, 2: 8, 4: 4, 6: 2}),
    "ExponentialDecay-staircase": (
        S.ExponentialDecay(8.0, 4, 0.5, 1, True),
        {0: 8, 1: 8, 3: 8, 4: 8, 4.75: 8, 5: 4, 8: 4, 9: 2},
    ),
    "ExponentialDecay-end": (S.ExponentialDecay(8.0, 1, 0.5, end_value=2.0), {0: 8, 1: 4, 2: 2, 3: 2}),
    "ExponentialDecay-growth": (S.ExponentialDecay(1.0, 1, 2.0, end_value=4.0), {0: 1, 1: 2, 2: 4, 3: 4}),
    "ExponentialDecay-rate-1": (S.ExponentialDecay(1.0, 1, 1.0, end_value=2.0), {0: 1, 1: 1, 9: 1}),
    "ExponentialDecay-rate-1-below": (S.ExponentialDecay(2.0, 1, 1.0, end_value=1.0), {0: 1, 9: 1}),
    "REX": (S.REX(2.0, 4, 1.0), {0: 2, 4: 1, 5: 1}),
    "PiecewiseConstant": (S.PiecewiseConstant(8.0, {2: 0.5, 4: 0.25}), {0: 8, 1: 8, 2: 4, 3: 4, 4: 1, 5: 1}),
    "PiecewiseInterpolate": (
        S.PiecewiseInterpolate("linear", 8.0, {2: 0.5, 4: 0.25}),
        {0: 8, 1: 6, 2: 4, 3: 2.5, 4: 1, 5: 1},
    ),
    # Two boundaries at one step: a jump, which takes effect at the step itself.
    "PiecewiseInterpolate-jump": (
        S.PiecewiseInterpolate("linear", 8.0, {2: 1.0, 3: 1.0}).replace(boundaries=(2.0, 2.0), scales=(1.0, 0.5)),
        {1: 8, 2: 4, 3: 4},
    ),
    "PiecewiseInterpolate-cosine": (
        S.PiecewiseInterpolate("cosine", 8.0, {2: 0.5, 4: 0.25}),
        {0: 8, 2: 4, 4: 1, 5: 1},
    ),
    "CosineOneCycle": (S.CosineOneCycle(8, 4.0, 0.25, 4.0, 8.0), {0: 1, 2: 4, 8: 0.125, 9: 0.125}),
    "LinearOneCycle": (S.LinearOneCycle(8, 4.0, 0.25, 0.5, 4.0, 8.0), {0: 1, 2: 4, 3: 2.5, 4: 1, 8: 0.125, 9: 0.125}),
    "SGDR": (
        S.SGDR.geometric(4.0, 2, 3, peak_factor=0.5, end_value=1.0),
        {0: 4, 2: 2, 6: 1, 14: 1, 15: 1},
    ),
    "Join": (S.Join([1.0, S.Linear(4.0, 2.0, 2), 8.0], [2, 4]), {0: 1, 1: 1, 2: 4, 3: 3, 4: 8, 5: 8}),
    "WarmupConstant": (S.WarmupConstant(0.0, 2.0, 4), {0: 0, 2: 1, 4: 2, 5: 2}),
    "WarmupConstant-0": (S.WarmupConstant(0.0, 2.0, 0), {0: 2, 1: 2}),
    "WarmupCosineDecay": (S.WarmupCosineDecay(0.0, 2.0, 4, 8, 0.5), {0: 0, 2: 1, 4: 2, 8: 0.5, 9: 0.5}),
    "WarmupCosineDecay-0": (S.WarmupCosineDecay(0.0, 2.0, 0, 8, 0.5), {0: 2, 8: 0.5}),
    "WarmupExponentialDecay": (
        S.WarmupExponentialDecay(0.0, 4.0, 2, 2, 0.5, 2, end_value=0.5),
        {0: 0, 1: 2, 2: 4, 3: 4, 4: 4, 6: 2, 10: 0.5, 12: 0.5},
    ),
    "WarmupStableDecay": (S.WarmupStableDecay(0.0, 4.0, 2, 2, 4), {0: 0, 1: 2, 2: 4, 4: 4, 5: 3, 8: 0, 9: 0}),
    "WarmupStableDecay-exponential": (
        S.WarmupStableDecay(0.0, 4.0, 2, 2, 4, 1.0, "exponential"),
        {2: 4, 4: 4, 6: 2, 8: 1, 9: 1},
    ),
    "EMAWarmup": (S.EMAWarmup(0.75, 4), {0: 0.25, 2: 0.5, 8: 0.75, 100: 0.75}),
    "InverseSqrt": (S.InverseSqrt(2.0, 4), {0: 0, 2: 1, 4: 2, 16: 1, 64: 0.5}),
    "Power": (S.Power(1.0, 1.0, exponent=-1.0, amplitude=8.0, peak_value=2.0), {0: 2, 1: 2, 4: 2, 8: 1, 16: 0.5}),
    "Power-below-its-bound": (S.Power(1.0, 1.0, exponent=-1.0, amplitude=0.5, peak_value=2.0), {0: 2, 1: 0.5, 2: 0.25}),
    "Power-warmup-and-decay": (
        S.Power(1.0, 1.0, 4, 8, 4, exponent=-1.0, amplitude=8.0, peak_value=8.0),
        {0: 0, 2: 1, 4: 2, 8: 1, 10: 0.5, 12: 0, 13: 0},
    ),
    "Expression": (1.0 / (2.0 - S.Linear(0.0, 1.0, 4)), {0: 0.5, 4: 1, 5: 1}),
    "Clipped": (S.Linear(0.0, 1.0, 4).clip(0.25, 0.75), {0: 0.25, 1: 0.25, 2: 0.5, 3: 0.75, 5: 0.75}),
    "Stretched": (S.Linear(1.0, 0.0, 1.0).over(4), {0: 1, 2: 0.5, 4: 0, 5: 0}),
}


def test_schedules_at_their_turns():
    values = jax.jit(lambda: [jax.vmap(curve)(jnp.asarray(list(at), float)) for curve, at in TURNS.values()])()
    for (name, (_, at)), found in zip(TURNS.items(), values, strict=True):
        np.testing.assert_allclose(found, list(at.values()), rtol=3e-7, atol=1e-7, err_msg=name)


def test_every_schedule_is_looked_at_its_turns():
    public = {cls for cls in vars(S).values() if isinstance(cls, type) and issubclass(cls, mx.AbstractSchedule)}
    names = {cls.__name__ for cls in public if not cls.__name__.startswith(("Abstract", "Wrapped"))}
    assert names == {name.partition("-")[0] for name in TURNS}


# --- Norms, counts ---------------------------------------------------------------------------------


def test_updates_as_long_as_the_bound_stay_as_they_are():
    g = jnp.asarray([3.0, 4.0])
    for clip in (mx.ClipByGlobalNorm(5.0), mx.ClipByBlockRMS(float(np.sqrt(12.5)))):
        np.testing.assert_array_equal(clip.update(g, clip.init(g))[0], g)
    for clip in (mx.ClipByGlobalNorm(0.0), mx.ClipByBlockRMS(0.0)):
        np.testing.assert_array_equal(clip.update(0 * g, clip.init(g))[0], 0 * g)
        np.testing.assert_array_equal(clip.update(g, clip.init(g))[0], 0 * g)


def test_a_norm_at_the_limit_is_skipped():
    g = jnp.asarray([3.0, 4.0])
    skips = [bool(mx.skip_large_updates(g, 0, None, limit)[0]) for limit in (24.0, 25.0, 26.0)]
    assert skips == [True, True, False]


def test_an_improvement_of_just_the_tolerance_is_none():
    plateau = mx.ReduceOnPlateau(0.5, patience=2, rtol=0.0, atol=0.5)
    g = jnp.ones(())
    scales = []
    state = plateau.init(g)
    for value in (4.0, 3.5, 3.5):
        u, state = plateau.update(g, state, value=value)
        scales.append(float(u))
    assert scales == [1, 1, 0.5]
    state = plateau.init(g)
    for value in (4.0, 3.25, 3.25):
        u, state = plateau.update(g, state, value=value)
    assert u == 1


def test_squares_that_are_lost_one_by_one_count_in_a_length():
    """Each of three squares is flushed to zero; the fourth alone is above the threshold for four of the smallest."""
    tiny = np.finfo(np.float32).tiny
    x = np.sqrt(np.array([5.0, 0.9, 0.9, 0.9]) * tiny).astype(np.float32)
    found = np.asarray(projections.projection_l2_sphere(jnp.asarray(x)), np.float64)
    np.testing.assert_allclose(np.linalg.norm(found), 1.0, rtol=1e-6)
