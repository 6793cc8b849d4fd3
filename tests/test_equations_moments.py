"""Relatives of Adam and accumulators against their equations, transcribed to NumPy from the papers."""

import math
from fractions import Fraction
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import modulax as mx

from . import settings
from .transcriptions import ETA, Cases, Points, assert_equations, compiled, gradients, moments, points, start, updates

in_double = pytest.mark.usefixtures("x64")


# --- Kingma and Ba 2014, algorithm 2; the floor of the maximum is ours -----------------------------


def adamax(decay: float, eps: float) -> Points:
    w, u = start(), 0.0
    for t, g, m, _ in moments(0.9, 0.999):
        u = np.maximum(0.999 * u, np.abs(g) + eps)
        w = w - ETA * (m / (1 - 0.9**t) / u + decay * w)
        yield w


# --- Reddi et al. 2018, algorithm 2, with the bias correction of the second moment ------------------


def amsgrad(b1: float, b2: float, eps: float, root: float) -> Points:
    w, largest = start(), 0.0
    for t, _, m, v in moments(b1, b2):
        largest = np.maximum(largest, v)
        w = w - ETA * m / (np.sqrt(largest / (1 - b2**t) + root) + eps)
        yield w


# --- Zaheer et al. 2018, algorithm 2, and the first author's code ----------------------------------


def yogi(b1: float, b2: float, eps: float, root: float, initial: float, is_corrected: bool) -> Points:
    w, v = start(), initial
    for t, g, m, _ in moments(b1, b2):
        v = v - (1 - b2) * np.sign(v - g**2) * g**2
        rate = ETA * (np.sqrt(1 - b2**t) / (1 - b1**t) if is_corrected else 1.0)
        w = w - rate * m / (np.sqrt(v + root) + eps)
        yield w


# --- Liu et al. 2019, algorithm 2 ------------------------------------------------------------------


def rectification(b2: float, t: int) -> float | None:
    """The factor r_t where it is defined; the lengths ρ_t and ρ_∞ in exact arithmetic, because they cancel."""
    b = Fraction(b2)
    exact = 2 / (1 - b) - 1
    rho, limit = float(exact - 2 * t * b**t / (1 - b**t)), float(exact)
    if rho < 5:
        return None
    return math.sqrt((rho - 4) * (rho - 2) * limit / ((limit - 4) * (limit - 2) * rho))


# --- Mokhtari et al. 2019, equation 5 and its generalization; Daskalakis et al. 2017, algorithm 1 ---


def optimistic(alpha: float, beta: float) -> Points:
    w, last = start(), gradients()[0]
    for g in gradients():
        w = w - (alpha + beta) * ETA * g + beta * ETA * last
        last = g
        yield w


def optimistic_adam(alpha: float, beta: float, b1: float, b2: float) -> Points:
    w, last = start(), None
    for t, _, m, v in moments(b1, b2):
        d = m / (1 - b1**t) / (np.sqrt(v / (1 - b2**t)) + 1e-8)
        w = w - (alpha + beta) * ETA * d + beta * ETA * (d if last is None else last)
        last = d
        yield w


YOGI = (0.8, 0.9, 1e-4, 1e-2, 0.3)
CASES: Cases = {
    "AdamaxW": (lambda: mx.AdamaxW(ETA, eps=1e-2, weight_decay=0.1), lambda: adamax(0.1, 1e-2)),
    "AMSGrad": (
        lambda: mx.AMSGrad(ETA, 0.8, 0.9, 1e-3, eps_root=1e-2, bias_correction_mu=False),
        lambda: amsgrad(0.8, 0.9, 1e-3, 1e-2),
    ),
    "Yogi": (lambda: mx.Chain(mx.ScaleByYogi(*YOGI), mx.Scale(-ETA)), lambda: yogi(*YOGI, True)),
    "Yogi-paper": (
        lambda: mx.Chain(mx.ScaleByYogi(*YOGI, follow="paper"), mx.Scale(-ETA)),
        lambda: yogi(*YOGI, False),
    ),
    "OptimisticGradientDescent": (
        lambda: mx.OptimisticGradientDescent(ETA, 0.6, 0.3),
        lambda: optimistic(0.6, 0.3),
    ),
    "OptimisticAdam": (
        lambda: mx.OptimisticAdam(ETA, alpha=0.5, beta=0.7, b1=0.8, b2=0.9, nesterov=False),
        lambda: optimistic_adam(0.5, 0.7, 0.8, 0.9),
    ),
}


@in_double
@pytest.mark.parametrize("name", CASES)
def test_equals_its_equations(name: str):
    assert_equations(CASES[name])


# --- Where optax differs ---------------------------------------------------------------------------


def optax_points(twin: Any) -> np.ndarray:
    with settings.jax_defaults():
        return points(compiled(twin))


@in_double
def test_amsgrad_takes_the_maximum_before_the_correction():
    """After one large gradient and small ones, optax's maximum is still that of the first step, 1 / (1 - b2) times."""
    grads, largest = np.asarray([1.0, *[0.1] * 20]), []
    ours = mx.ScaleByAMSGrad(eps=0.0)
    transforms: list[Any] = [ours, ours.replace(follow="optax"), optax.scale_by_amsgrad(eps=0.0)]
    for transform in transforms:
        with settings.jax_defaults():
            state = transform.init(jnp.zeros(()))
            for g in jnp.asarray(grads):
                _, state = transform.update(g, state, g)
        largest.append(state.nu_max)
    squares = np.cumsum(0.001 * grads**2 * 0.999 ** -np.arange(21)) * 0.999 ** np.arange(21)
    np.testing.assert_allclose(largest, [squares.max(), 1.0, 1.0], rtol=1e-12)
    assert squares.max() < 2e-3


@in_double
def test_adan_weights_the_difference_by_b2():
    theirs = optax_points(optax.adan(ETA))
    np.testing.assert_allclose(points(mx.Adan(ETA, follow="optax")), theirs, rtol=1e-10)
    assert np.max(np.abs(points(mx.Adan(ETA)) - theirs)) > ETA


@in_double
def test_adan_decays_proximally():
    """Without gradients the parameters shrink by 1 + ηλ; optax multiplies by 1 - ηλ, which may be negative."""
    w = jnp.asarray(start())
    update = mx.Adan(0.5, weight_decay=3.0)
    u, _ = update.update(jnp.zeros_like(w), update.init(w), w)
    np.testing.assert_allclose(w + u, w / 2.5, rtol=1e-14)
    with settings.jax_defaults():
        twin: Any = optax.adan(0.5, weight_decay=3.0)
        theirs, _ = twin.update(jnp.zeros_like(w), twin.init(w), w)
    np.testing.assert_allclose(w + theirs, -0.5 * w, rtol=1e-14)


def test_adadelta_needs_no_learning_rate():
    w = jnp.asarray([1.0, -2.0])
    ours = mx.Adadelta()
    twin: Any = optax.adadelta()
    u, _ = ours.update(w, ours.init(w), w)
    with settings.jax_defaults():
        theirs, _ = twin.update(w, twin.init(w), w)
    assert np.all(u * w < 0)
    assert np.all(theirs * w > 0)


def test_radam_with_a_threshold_below_four():
    """Between the threshold and 4, the factor would be the root of a negative number, and optax's step is NaN."""
    ones = np.ones((5, 1), np.float32)
    found = updates(mx.RAdam(0.1, threshold=2.5), ones)
    np.testing.assert_allclose(found[:4], -0.1, rtol=1e-6)
    with settings.jax_defaults():
        theirs = updates(optax.radam(0.1, threshold=2.5), ones)
    assert np.isnan(theirs).ravel().tolist() == [False, False, True, True, False]


@pytest.mark.parametrize("b2", [0.9, 0.999, 0.9999, 0.99999])
def test_radam_knows_the_length_of_its_average_in_float32(b2: float):
    """It is found from the update: the direction is r_t times 1 where all gradients are 1, and 1 before."""
    ones = np.ones((39, 1), np.float32)
    found = updates(mx.ScaleByRAdam(b2=b2, eps=0.0), ones)
    with settings.jax_defaults():
        theirs = updates(optax.scale_by_radam(b2=b2, eps=0.0), ones)
    rounded = float(np.float32(b2))  # the number that both are given
    factors = np.asarray([[rectification(rounded, t) or 1.0] for t in range(1, 40)])
    error, their_error = (np.max(np.abs(u / factors - 1)) for u in (found, theirs))
    # What is left is Adam's own bias correction, which loses digits as 1 / (1 - b2) grows.
    assert error < 1e-4
    # optax: no difference at 0.9, one percent at 0.999, and above that too long a step, too early or too late.
    assert (their_error < 1e-5) == (b2 < 0.95)
    assert (their_error > 0.9) == (b2 > 0.9995)


def test_radam_is_adam_in_the_long_run():
    """The average is as long as it gets, up to the end of the counter."""
    g = jnp.ones(())
    for count in (10**5, 10**8, 2**31 - 2):
        state = mx.states.ScaleByAdamState(mu=g, nu=g + 0, count=jnp.asarray(count, jnp.int32))
        u, _ = mx.ScaleByRAdam().update(g, state)
        np.testing.assert_allclose(u, 1.0, rtol=1e-5)


@in_double
def test_yogi_in_optax_corrects_inside_the_root():
    """Its small constant isn't corrected, and its mean starts above zero."""
    theirs = optax_points(optax.yogi(ETA))
    np.testing.assert_allclose(points(mx.Yogi(ETA, follow="optax")), theirs, rtol=1e-10)
    assert np.max(np.abs(points(mx.Yogi(ETA)) - theirs)) > 1e-3
