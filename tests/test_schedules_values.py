"""Properties of single schedules: their ends and edges, fractions of a run, plots, and the errors they raise."""

import re
import sys
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import matplotlib.pyplot as plt
import numpy as np
import optax
import pytest

import modulax as mx
from modulax import schedules as S  # noqa: N812

from .settings import jax_defaults

LATE = 2**31 - 1

# --- Ends ------------------------------------------------------------------------------------------

# Where it ends, the value at the start, and the value at the end.
ENDS: list[tuple[S.AbstractSchedule, int, float, float]] = [
    (S.Linear(1.0, 1e-7, 20, 5), 25, 1.0, 1e-7),
    (S.Linear(1e-7, 1.0, 20), 20, 1e-7, 1.0),
    (S.Polynomial(1.0, 1e-7, 0.5, 20, 5), 25, 1.0, 1e-7),
    (S.CosineDecay(1.0, 20, 1e-7, 0.5), 20, 1.0, 1e-7),
    (S.ExponentialDecay(1.0, 5, 0.1, end_value=1e-3), 20, 1.0, 1e-3),
    (S.REX(1.0, 20, 1e-7), 20, 1.0, 1e-7),
    (S.PiecewiseInterpolate("linear", 1.0, {10: 0.5, 20: 0.0}), 20, 1.0, 0.0),
    (S.WarmupConstant(1e-7, 1.0, 20), 20, 1e-7, 1.0),
    (S.WarmupCosineDecay(1e-7, 1.0, 5, 20, 1e-6), 20, 1e-7, 1e-6),
    (S.WarmupExponentialDecay(1e-7, 1.0, 5, 5, 0.1, end_value=1e-3), 25, 1e-7, 1e-3),
    (S.WarmupStableDecay(1e-7, 1.0, 5, 5, 10, 1e-6, "1-sqrt"), 20, 1e-7, 1e-6),
    (S.WarmupStableDecay(1e-7, 1.0, 5, 5, 10, 1e-6, "exponential"), 20, 1e-7, 1e-6),
    (S.SGDR.geometric(1.0, 4, 3, end_value=1e-6), 28, 1.0, 1e-6),
    (S.REX(1.0, 1.0, 1e-7).over(20), 20, 1.0, 1e-7),
]


@pytest.mark.parametrize("schedule, end, first, last", ENDS)
def test_the_ends_are_exact(schedule: S.AbstractSchedule, end: int, first: float, last: float):
    """However small one of them is relative to the other; and constant afterwards."""
    start, *behind = jax.vmap(schedule)(jnp.asarray([0, end, end + 1, 10 * end, LATE]))
    assert start == np.float32(first)
    assert [float(x) for x in behind] == [float(np.float32(last))] * 4


def test_the_steps_that_are_turning_points():
    cases: list[tuple[Any, list[int], list[float]]] = [
        (S.CosineOneCycle(10, 8.0, 0.5, 8.0, 4.0), [0, 5, 10, LATE], [1, 8, 0.25, 0.25]),
        (S.LinearOneCycle(8, 8.0, 0.25, 0.75, 8.0, 4.0), [0, 2, 6, 7, 8, LATE], [1, 8, 1, 0.625, 0.25, 0.25]),
        (S.LinearOneCycle(8, 8.0, 0.5, 0.5, 8.0, 4.0), [0, 2, 4, 8], [1, 4.5, 1, 0.25]),
        (S.SGDR.geometric(4.0, 2, 2, peak_factor=0.5), [0, 1, 2, 4, 6], [4, 2, 2, 1, 0]),
        (S.ExponentialDecay(4.0, 2, 0.5, 1, True), [0, 1, 2, 3, 5, LATE], [4, 4, 4, 2, 1, 0]),
        (S.InverseSqrt(2.0, 4), [0, 2, 4, 16, 64], [0, 1, 2, 1, 0.5]),
        (S.PiecewiseConstant(1.0, {0.3: 0.5}).over(10), [2, 3, 4], [1, 0.5, 0.5]),
        (S.PiecewiseInterpolate("linear", 1.0), [0, LATE], [1, 1]),
        (S.PiecewiseConstant(1.0), [0, LATE], [1, 1]),
        (S.PiecewiseInterpolate("linear", 1.0, {0: 2.0, 2: 2.0}), [0, 1, 2], [2, 3, 4]),
        (S.WarmupConstant(0.0, 2.0, 0), [0, LATE], [2, 2]),
        (S.WarmupExponentialDecay(0.0, 2.0, 0, 1, 0.5), [0, 1], [2, 1]),
        (S.WarmupStableDecay(0.0, 2.0, 0, 0, 2), [0, 1, 2], [2, 1, 0]),
        (S.Power(1.0, 1.0, decay="exponential"), [0, LATE], [0.02, 4 * LATE**-0.51]),
        (S.Join([S.Linear(0.0, 1.0, 1), S.Linear(0.0, 8.0, 4)], [2.5]), [2, 3, 4], [1, 1, 3]),
    ]
    values = jax.jit(lambda: [jax.vmap(schedule)(jnp.asarray(steps)) for schedule, steps, _ in cases])()
    for found, (schedule, _, expected) in zip(values, cases, strict=True):
        np.testing.assert_allclose(found, np.asarray(expected, np.float32), rtol=1e-5, atol=1e-7, err_msg=str(schedule))


def test_gradients_at_the_edges_are_finite():
    """Where a power, a root or a quotient has no derivative."""
    edges = [
        S.CosineDecay(1.0, 10, exponent=0.5),
        S.CosineDecay(0.0, 10, exponent=0.0),
        S.Polynomial(1.0, 0.0, 0.5, 10),
        S.Polynomial(1.0, 0.0, 0.0, 10),
        S.ExponentialDecay(1.0, 1, 10.0, end_value=100.0),
        S.ExponentialDecay(0.0, 1, 0.1, end_value=0.0),
        S.REX(0.0, 10, beta=0.0),
        S.PiecewiseInterpolate("cosine", 1.0, {0: 0.5, 10: 0.0, 20: 2.0}),
        S.CosineOneCycle(10, 0.0, pct_start=0.0),
        S.LinearOneCycle(10, 1.0, 0.0, 1.0),
        S.SGDR.geometric(1.0, 4, 2),
        S.WarmupConstant(0.0, 1.0, 0),
        S.WarmupCosineDecay(0.0, 0.0, 0, 10, exponent=0.5),
        S.WarmupExponentialDecay(0.0, 1.0, 0, 1, 0.1),
        S.WarmupStableDecay(0.0, 1.0, 0, 0, 10, decay="1-sqrt"),
        S.EMAWarmup(0.999),
        S.InverseSqrt(1.0, 1),
        S.Power(1.0, 1.0),
        S.Power(1.0, 1.0, decay_begin=0, decay_steps=10),
    ]

    def total(edges: Any) -> Any:
        steps = jnp.asarray([*range(30), 10**6, LATE])
        return sum(jnp.sum(jax.vmap(schedule)(steps)) for schedule in edges)

    gradients = jax.jit(jax.grad(total))(jtu.tree_map(jnp.asarray, edges))
    for schedule, gradient in zip(edges, gradients, strict=True):
        assert np.isfinite(jtu.tree_leaves(gradient)).all(), f"{schedule}: {gradient}"


# --- Fractions of a run ----------------------------------------------------------------------------

# With every duration in units of u.
IN_UNITS: list[Callable[[float], S.AbstractSchedule]] = [
    lambda u: S.Linear(1.0, 0.1, 20 * u, 5 * u),
    lambda u: S.Polynomial(1.0, 0.1, 2.0, 20 * u, 5 * u),
    lambda u: S.CosineDecay(1.0, 20 * u),
    lambda u: S.ExponentialDecay(1.0, 6 * u, 0.5, 5 * u, True),
    lambda u: S.REX(1.0, 20 * u),
    lambda u: S.PiecewiseConstant(1.0, {10 * u: 0.5, 20 * u: 0.1}),
    lambda u: S.PiecewiseInterpolate("cosine", 1.0, {10 * u: 0.5, 20 * u: 0.1}),
    lambda u: S.CosineOneCycle(25 * u, 1.0),
    lambda u: S.LinearOneCycle(25 * u, 1.0),
    lambda u: S.SGDR.geometric(1.0, 4 * u, 3),
    lambda u: S.WarmupConstant(0.0, 1.0, 8 * u),
    lambda u: S.WarmupCosineDecay(0.0, 1.0, 8 * u, 30 * u),
    lambda u: S.WarmupExponentialDecay(0.0, 1.0, 8 * u, 6 * u, 0.5, 3 * u),
    lambda u: S.WarmupStableDecay(0.0, 1.0, 5 * u, 15 * u, 10 * u),
    lambda u: S.InverseSqrt(1.0, 8 * u),
    lambda u: S.Power(64, 4e6 / u, 5 * u, 20 * u, 10 * u),
    lambda u: S.Join([S.Linear(0.0, 1.0, 8 * u), S.SGDR.geometric(1.0, 4 * u, 2)], [10 * u]),
]


@pytest.mark.usefixtures("x64")
def test_every_duration_may_be_a_fraction_of_the_run():
    steps = jnp.arange(0.37, 40)
    in_steps, in_fractions = [make(1.0) for make in IN_UNITS], [make(1 / 30).over(30) for make in IN_UNITS]
    both = jax.jit(lambda *runs: [[jax.vmap(s)(steps) for s in run] for run in runs])(in_steps, in_fractions)
    for expected, found, schedule in zip(*both, in_steps, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12, err_msg=str(schedule))


def test_the_length_of_a_run_is_a_number_like_the_others():
    optimizer = mx.SGD(S.Linear(1.0, 0.0, 1.0).over(10))
    assert optimizer.hyperparameters()["learning_rate.total_steps"] == 10
    longer = optimizer.replace(total_steps=20)
    g = jnp.ones(())
    state = longer.init(g)
    _, state = longer.update(g, state)
    assert longer.update(g, state)[0] == np.float32(-0.95)
    swept = eqx.filter_vmap(lambda n: S.Linear(1.0, 0.0, 1.0).over(n)(4))(jnp.asarray([5.0, 10.0, 40.0]))
    np.testing.assert_allclose(swept, [0.2, 0.6, 0.9], rtol=1e-6)
    np.testing.assert_allclose(jax.grad(lambda n: S.Linear(1.0, 0.0, 1.0).over(n)(4))(8.0), 4 / 64, rtol=1e-6)


def test_a_function_can_be_stretched():
    tenth = S.Join([S.Linear(1.0, 0.0, 1.0).over(0.1), S.Constant(0.0)], [0.1]).over(40)
    assert tenth(2) == 0.5  # a part of the run, in which a schedule is stretched too
    schedule = S.Join([S.WrappedSchedule(lambda x: 2 * x), lambda x: x], [0.5]).over(4)
    assert [float(schedule(t)) for t in range(5)] == [0, 0.5, 0, 0.25, 0.5]


# --- Cycles ----------------------------------------------------------------------------------------


def test_the_cycles_of_sgdr_are_schedules():
    """Given as schedules, as mappings like optax's, or by the paper's parameters; a changed length moves later ones."""
    first, second = S.WarmupCosineDecay(1.0, 1.0, 0, 2), S.WarmupCosineDecay(1.0, 1.0, 0, 4)
    as_mapping = MappingProxyType({"init_value": 1.0, "peak_value": 1.0, "warmup_steps": 0, "decay_steps": 4})
    schedule = S.SGDR([first, as_mapping])
    assert eqx.tree_equal(schedule, S.SGDR([first, second]), S.SGDR.geometric(1.0, 2, 2))
    later = schedule.replace(**{"cycles.0.decay_steps": 3})
    assert schedule(2) == later(3) == 1
    assert schedule(4) == later(5) == pytest.approx(0.5)


# --- Plots -----------------------------------------------------------------------------------------


def test_a_plot_shows_the_values():
    figure, ax = plt.subplots()
    schedule = S.Linear(1.0, 0.0, 4)
    assert schedule.plot(4, ax, label="rate", color="red") is ax
    steps = np.asarray([0, 2, 10])
    assert schedule.plot(steps) is ax  # the current axes of pyplot
    first, second = ax.lines
    np.testing.assert_array_equal(first.get_xydata(), [(0, 1), (1, 0.75), (2, 0.5), (3, 0.25)])
    np.testing.assert_array_equal(second.get_xydata(), [(0, 1), (2, 0.5), (10, 0)])
    assert (first.get_label(), first.get_color(), ax.get_xlabel()) == ("rate", "red", "step")
    plt.close(figure)


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=re.escape('pip install "modulax[plot]"')):
        S.Constant(1.0).plot(3)


# --- What is refused, and where optax differs ------------------------------------------------------


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: S.Polynomial(1.0, 0.0, 1.0, 0), ["Polynomial(transition_steps=...)", "positive"]),
        (lambda: S.Polynomial(1.0, 0.0, -1.0, 5), ["Polynomial(power=...)", "negative"]),
        (lambda: S.ExponentialDecay(1.0, 5, 0.0), ["ExponentialDecay(decay_rate=...)", "positive"]),
        (lambda: S.ExponentialDecay(1.0, 5, 0.5, -1), ["ExponentialDecay(transition_begin=...)", "negative"]),
        (lambda: S.PiecewiseConstant(1.0, {5: -0.5}), ["PiecewiseConstant(scales=...)", "negative"]),
        (lambda: S.REX(1.0, 10, beta=1.0), ["REX(beta=...)", "[0, 1)"]),
        (lambda: S.CosineOneCycle(10, 1.0, 30.0), ["CosineOneCycle(pct_start=...)", "[0, 1]", "30.0"]),
        (lambda: S.LinearOneCycle(10, 1.0, 0.9), ["LinearOneCycle(pct_final=...)", "at least `pct_start=0.9", "0.85"]),
        (lambda: S.SGDR([]), ["SGDR", "at least one cycle", "SGDR.geometric("]),
        (
            lambda: S.WarmupStableDecay(0.0, 1.0, 1, 1, 1, decay="exponential"),
            ["(end_value=...)", "never reaches zero"],
        ),
        (
            lambda: S.WarmupStableDecay(0.0, 0.0, 1, 1, 1, 1.0, "exponential"),
            ["`WarmupStableDecay(peak_value=...)` must be positive with `decay=", "got 0.0"],
        ),
        (lambda: S.Power(1.0, 1.0, decay_begin=5), ["Power", "decay_steps=1_000"]),
        (lambda: S.Power(1.0, 1.0, decay_steps=5), ["Power", "decay_begin=9_000"]),
        (
            lambda: S.Power(1.0, 1.0, decay_begin=5, decay_steps=5, decay="exponential"),
            ["`Power(end_value=...)` must be positive", "never reaches zero, got 0.0"],
        ),
        (lambda: S.WarmupCosineDecay(0.0, 1.0, 5, 5), ["must be greater than `warmup_steps=5.0`, got 5.0"]),
        (lambda: S.Join([1.0], [2.0]), ["one boundary between each pair", "1 schedules and 1 boundaries"]),
        (lambda: S.Linear(1.0, 0.0, 1.0).over(100).over(200), ["run of 100.", "`schedule.replace(total_steps=200)`"]),
        (lambda: (2 * S.Linear(1.0, 0.0, 1.0).over(100)).over(9), ["run of 100.", "replace(total_steps=9)"]),
        (lambda: S.Constant(1.0).over(0), ["Stretched(total_steps=...)", "positive"]),
        (
            lambda: S.PiecewiseInterpolate("linear", 1.0, {5: 0.1, 9: 0.1}).replace(**{"boundaries.0": 10}),
            ["ascending order", "(10.0, 9.0)", "replace(boundaries=(...))"],
        ),
    ],
)
def test_a_mistake_is_explained(make: Callable[[], Any], words: list[str]):
    with pytest.raises(ValueError, match=".*".join(map(re.escape, words))):
        make()


def test_a_form_that_does_not_exist():
    """In these tests beartype may be the first to complain."""
    spline: Any = "spline"
    for make in (
        lambda: S.PiecewiseInterpolate(spline, 1.0, {5: 0.1}),
        lambda: S.WarmupStableDecay(0.0, 1.0, 1, 1, 1, decay=spline),
    ):
        with pytest.raises((ValueError, TypeError), match=r"linear|spline"):
            make()


def test_what_optax_does_otherwise():
    with jax_defaults():
        theirs = [optax.linear_onecycle_schedule(25, 2.0), optax.cosine_onecycle_schedule(25, 2.0)]
        peaks = [int(np.argmax(jax.vmap(schedule)(jnp.arange(25)))) for schedule in theirs]
        assert peaks == [7, 7]
        assert optax.warmup_constant_schedule(0.0, 1.0, 0)(10) == 0
        assert optax.polynomial_schedule(1.0, 0.0, 1.0, 0)(10) == 1
        assert optax.exponential_decay(1.0, 5, 0.0)(10) == 1
        assert optax.warmup_cosine_decay_schedule(0.2, 0.0, 50, 100, -3.0)(100) == 0
    for ours in (S.LinearOneCycle(25, 2.0), S.CosineOneCycle(25, 2.0)):
        assert float(ours(7.5)) == pytest.approx(2.0)
        assert ours(7) < ours(7.5)
    assert S.WarmupConstant(0.0, 1.0, 0)(10) == 1
    assert S.WarmupCosineDecay(0.2, 0.0, 50, 100, -3.0)(100) == -3
    for make in (lambda: S.Polynomial(1.0, 0.0, 1.0, 0), lambda: S.ExponentialDecay(1.0, 5, 0.0)):
        with pytest.raises(ValueError, match="must be positive"):
            make()


def test_the_length_of_a_run_is_of_any_dtype():
    assert S.Linear(1.0, 0.0, 1.0).over(jnp.asarray(20.0, jnp.bfloat16))(4) == np.float32(0.8)
