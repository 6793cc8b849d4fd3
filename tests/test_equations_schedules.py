"""The schedules against their equations, transcribed from the papers to NumPy, and their derivatives."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest
from jaxtyping import Array, Float

from modulax import schedules

from .instances import SCHEDULES, Instance

pytestmark = pytest.mark.usefixtures("x64")
Steps = Float[np.ndarray, " steps"]

T = np.arange(50.0)


def cosine(x: Steps) -> Steps:
    """Loshchilov and Hutter 2016, equation 5, between 0 and 1."""
    return 0.5 * (1 + np.cos(np.pi * np.clip(x, 0, 1)))


def line(x: Steps, a: float, b: float) -> Steps:
    return a + (b - a) * np.clip(x, 0, 1)


def interpolated(kind: str) -> Steps:
    """From 1 to 0.5 at step 10, 2 at step 15 and 0.2 at step 30."""
    out = np.full_like(T, 0.2)
    for start, end, v, w in ((0, 10, 1, 0.5), (10, 15, 0.5, 2), (15, 30, 2, 0.2)):
        x = (T - start) / (end - start)
        weight = 1 - x if kind == "linear" else cosine(x)
        out = np.where((start <= T) & (end > T), w + (v - w) * weight, out)
    return out


def one_cycle() -> Steps:
    """Smith and Topin 2017, in the two phases of torch's OneCycleLR."""
    start, peak, end = 2 / 25, 2, 2 / 25 / 1e4
    up = end_of(start, peak, T / 7.5)
    return np.where(T <= 7.5, up, end_of(peak, end, (T - 7.5) / (25 - 7.5)))


def end_of(a: float, b: float, x: Steps) -> Steps:
    return b + (a - b) * cosine(x)


def linear_one_cycle() -> Steps:
    start = 2 / 25
    up, down = line(T / 7.5, start, 2), line((T - 7.5) / (21.25 - 7.5), 2, start)
    return np.where(T <= 7.5, up, np.where(T <= 21.25, down, line((T - 21.25) / 3.75, start, start / 1e4)))


def restarts() -> Steps:
    """Loshchilov and Hutter 2016, section 3: T_0 = 4, T_mult = 2, from a peak that is halved at each restart."""
    ends = np.cumsum([4, 8, 16])
    i = np.minimum(np.searchsorted(ends, T, side="right"), 2)
    length = 4.0 * 2**i
    return 0.01 + (0.5**i - 0.01) * cosine((T - (ends[i] - length)) / length)


def exponential(x: Steps, staircase: bool) -> Steps:
    periods = np.maximum(x, 0) / 6
    return 2 * 0.5 ** (np.floor(periods) if staircase else periods)


def wsd(w: Callable[[Steps], Steps]) -> Steps:
    """Hu et al. 2024: W = 5, T = 25; the decay takes 10 steps, from 2 to 0.1."""
    x = np.clip((T - 25) / 10, 0, 1)
    return np.where(T < 5, 0.5 + 1.5 * T / 5, np.where(T < 25, 2, w(x)))


def inverse_sqrt() -> Steps:
    """Vaswani et al. 2017, equation 3, with 512 dimensions."""
    with np.errstate(divide="ignore"):
        return 512**-0.5 * np.minimum(T**-0.5, T * 12**-1.5)


def rex() -> Steps:
    """Chen et al. 2021."""
    left = 1 - np.minimum(T / 30, 1)
    return 2 * left / (0.5 + 0.5 * left)


def shen() -> Steps:
    """Shen et al. 2024, equations 7 and 8, in tokens: 4e6 of them in a step, 64 sequences in a batch."""

    def eta(n: Any) -> Any:
        return np.minimum(0.015, 64 * 4 * np.maximum(n, 1) ** -0.51)

    n, warmup, total, decay = 4e6 * T, 4e6 * 5, 4e6 * 40, 4e6 * 10
    f = 1 - np.sqrt(np.clip((n - (total - decay)) / decay, 0, 1))
    return np.where(n < warmup, n / warmup * eta(warmup), np.where(n <= total - decay, eta(n), f * eta(total - decay)))


S = schedules
CURVES: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "Constant": (lambda: S.Constant(0.3), lambda: 0.3),
    "Linear": (lambda: S.Linear(1.0, 3.0, 8, 4), lambda: line((T - 4) / 8, 1, 3)),
    "CosineDecay": (
        lambda: S.CosineDecay(2.0, 20, 0.1, 1.5),
        lambda: 2 * (0.9 * cosine(T / 20) ** 1.5 + 0.1),
    ),
    "WarmupCosineDecay": (
        lambda: S.WarmupCosineDecay(0.1, 2.0, 5, 20, 0.3, 2.0),
        lambda: np.where(T < 5, line(T / 5, 0.1, 2), 0.3 + 1.7 * cosine((T - 5) / 15) ** 2),
    ),
    "PiecewiseConstant": (
        lambda: S.PiecewiseConstant(2.0, {3: 0.5, 10: 0.1}),
        lambda: 2 * np.where(T >= 3, 0.5, 1) * np.where(T >= 10, 0.1, 1),
    ),
    "Join": (
        lambda: S.Join([0.7, S.Linear(0.0, 1.0, 4), S.Linear(0.0, 5.0, 50)], [3, 9]),
        lambda: np.where(T < 3, 0.7, np.where(T < 9, line((T - 3) / 4, 0, 1), 0.1 * (T - 9))),
    ),
    "Polynomial": (
        lambda: S.Polynomial(2.0, 0.1, 1.5, 20, 5),
        lambda: 1.9 * (1 - line((T - 5) / 20, 0, 1)) ** 1.5 + 0.1,
    ),
    "Polynomial-1": (lambda: S.Polynomial(0.0, 2.0, 1.0, 20, 5), lambda: line((T - 5) / 20, 0, 2)),
    "ExponentialDecay": (lambda: S.ExponentialDecay(2.0, 6, 0.5, 3), lambda: exponential(T - 3, False)),
    "ExponentialDecay-staircase": (
        lambda: S.ExponentialDecay(2.0, 6, 0.5, 3, staircase=True, end_value=0.3),
        lambda: np.maximum(exponential(T - 3, True), 0.3),
    ),
    "ExponentialDecay-growth": (
        lambda: S.ExponentialDecay(2.0, 6, 2.0, end_value=30.0),
        lambda: np.minimum(2 * 2 ** (T / 6), 30),
    ),
    "REX": (lambda: S.REX(2.0, 30), rex),
    "REX-0": (lambda: S.REX(2.0, 30, 0.5, beta=0.0), lambda: line(T / 30, 2, 0.5)),
    "PiecewiseInterpolate-linear": (
        lambda: S.PiecewiseInterpolate("linear", 1.0, {30: 0.1, 10: 0.5, 15: 4.0}),
        lambda: interpolated("linear"),
    ),
    "PiecewiseInterpolate-cosine": (
        lambda: S.PiecewiseInterpolate("cosine", 1.0, {10: 0.5, 15: 4.0, 30: 0.1}),
        lambda: interpolated("cosine"),
    ),
    "CosineOneCycle": (lambda: S.CosineOneCycle(25, 2.0), one_cycle),
    "LinearOneCycle": (lambda: S.LinearOneCycle(25, 2.0), linear_one_cycle),
    "SGDR": (lambda: S.SGDR.geometric(1.0, 4, 3, peak_factor=0.5, end_value=0.01), restarts),
    "WarmupConstant": (lambda: S.WarmupConstant(0.5, 2.0, 8), lambda: line(T / 8, 0.5, 2)),
    "WarmupExponentialDecay": (
        lambda: S.WarmupExponentialDecay(0.5, 2.0, 8, 6, 0.5, 3),
        lambda: np.where(T < 8, line(T / 8, 0.5, 2), exponential(T - 11, False)),
    ),
    "WarmupStableDecay-linear": (
        lambda: S.WarmupStableDecay(0.5, 2.0, 5, 20, 10, 0.1),
        lambda: wsd(lambda x: 0.1 + 1.9 * (1 - x)),
    ),
    "WarmupStableDecay-1-sqrt": (
        lambda: S.WarmupStableDecay(0.5, 2.0, 5, 20, 10, 0.1, "1-sqrt"),
        lambda: wsd(lambda x: 0.1 + 1.9 * (1 - np.sqrt(x))),
    ),
    "WarmupStableDecay-cosine": (
        lambda: S.WarmupStableDecay(0.5, 2.0, 5, 20, 10, 0.1, "cosine"),
        lambda: wsd(lambda x: 0.1 + 1.9 * cosine(x)),
    ),
    "WarmupStableDecay-exponential": (  # MiniCPM's 0.5^((s - S) / T), with a half-life of 2 steps
        lambda: S.WarmupStableDecay(0.5, 2.0, 5, 20, 10, 2.0 / 32, "exponential"),
        lambda: wsd(lambda x: 2 * 0.5 ** (10 * x / 2)),
    ),
    "InverseSqrt": (lambda: S.InverseSqrt((512.0 * 12) ** -0.5, 12), inverse_sqrt),
    "Power": (lambda: S.Power(64, 4e6, 5, 30, 10, peak_value=0.015, decay="1-sqrt"), shen),
    "Power-no-end": (lambda: S.Power(64, 4e6), lambda: np.minimum(0.02, 256 * (4e6 * np.maximum(T, 1e-6)) ** -0.51)),
}


@pytest.mark.parametrize("name", CURVES)
def test_schedule_equals_its_equation(name: str):
    make, transcription = CURVES[name]
    np.testing.assert_allclose(make()(jnp.asarray(T)), transcription(), rtol=1e-12, atol=1e-16)


@pytest.mark.parametrize("instance", [pytest.param(i, id=i.name) for i in SCHEDULES if jtu.tree_leaves(i.make())])
def test_derivatives_are_those_of_differences(instance: Instance):
    """With respect to every number, between the steps, where nothing has a kink."""
    numbers, treedef = jtu.tree_flatten(instance.make())
    x = np.stack(numbers)
    h = 1e-6 * np.maximum(np.abs(x), 1)

    def values(x: Float[Array, " numbers"]) -> Float[Array, " steps"]:
        return jax.vmap(treedef.unflatten(list(x)))(jnp.arange(0.37, 40))

    sides = np.concatenate([x + np.diag(h), x - np.diag(h)])
    found, both = map(np.asarray, jax.jit(lambda x, sides: (jax.jacrev(values)(x), jax.vmap(values)(sides)))(x, sides))
    differences = (both[: x.size] - both[x.size :]) / (2 * h[:, None])
    np.testing.assert_allclose(found.T, differences, rtol=1e-6, atol=1e-8)
