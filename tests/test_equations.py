"""Each algorithm against its equations, transcribed to NumPy, and against what follows from them.

The transcriptions are written from the cited papers, one function per algorithm, that maps a list of
gradients and a first point to the list of points.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import modulax as mx
from modulax import schedules

from .transcriptions import ETA, SIZE, Points, first_update, gradients, points, start

pytestmark = pytest.mark.usefixtures("x64")


# --- Kingma and Ba 2014, algorithm 1; Loshchilov and Hutter 2017, algorithm 2; Dozat 2016 ----------


def adam(
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    decay: float = 0.0,
    nesterov: bool = False,
) -> Points:
    w, m, v = start(), 0.0, 0.0
    for t, g in enumerate(gradients(), 1):
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * g**2
        m_hat = m / (1 - b1**t)
        if nesterov:  # Dozat, algorithm 2 at a constant momentum
            m_hat = b1 * m / (1 - b1 ** (t + 1)) + (1 - b1) * g / (1 - b1**t)
        v_hat = v / (1 - b2**t)
        w = w - ETA * (m_hat / (np.sqrt(v_hat + eps_root) + eps) + decay * w)
        yield w


# --- Tieleman and Hinton 2012; Graves 2013, equations 38 to 45 -------------------------------------


def rmsprop(
    rho: float = 0.9,
    eps: float = 1e-8,
    initial: float = 0.0,
    inside: bool = True,
    centered: bool = False,
    momentum: float = 0.0,
    nesterov: bool = False,
    corrected: bool = False,
) -> Points:
    w, n, m, delta = start(), initial, 0.0, 0.0
    for t, g in enumerate(gradients(), 1):
        n = rho * n + (1 - rho) * g**2
        m = rho * m + (1 - rho) * g
        correction = 1 - rho**t if corrected else 1.0
        variance = n / correction - (m / correction) ** 2 if centered else n / correction
        variance = np.maximum(variance, 0)
        step = -ETA * g / (np.sqrt(variance + eps) if inside else np.sqrt(variance) + eps)
        delta = momentum * delta + step
        w = w + (momentum * delta + step if nesterov else delta)
        yield w


# --- Polyak 1964; Sutskever et al. 2013 ------------------------------------------------------------


def sgd(momentum: float = 0.0, nesterov: bool = False) -> Points:
    w, v = start(), 0.0
    for g in gradients():
        v = momentum * v + g
        w = w - ETA * (g + momentum * v if nesterov else v)
        yield w


# --- Chen et al. 2023, algorithm 2 -----------------------------------------------------------------


def lion(b1: float = 0.9, b2: float = 0.99, decay: float = 1e-3) -> Points:
    w, m = start(), 0.0
    for g in gradients():
        c = b1 * m + (1 - b1) * g
        w = w - ETA * (np.sign(c) + decay * w)
        m = b2 * m + (1 - b2) * g
        yield w


def ema(beta: float, debias: bool) -> Points:
    w, m = start(), 0.0
    for t, g in enumerate(gradients(), 1):
        m = beta * m + (1 - beta) * g
        w = w + (m / (1 - beta**t) if debias else m)
        yield w


def clipped(bound: float) -> Points:
    w = start()
    for g in gradients():
        w = w + np.minimum(np.maximum(g, -bound), bound)
        yield w


def clipped_by_norm(bound: float) -> Points:
    w = start()
    for g in gradients():
        w = w + g * min(1.0, bound / np.sqrt(np.sum(g**2)))
        yield w


def accumulated(k: int) -> Points:
    """SGD with momentum on the mean of every `k` gradients."""
    w, v, held = start(), 0.0, []
    for g in gradients():
        held.append(g)
        if len(held) == k:
            v = 0.9 * v + np.mean(held, axis=0)
            w, held = w - ETA * v, []
        yield w


CASES: dict[str, tuple[Callable[[], Any], Callable[[], Points]]] = {
    "SGD": (lambda: mx.SGD(ETA), sgd),
    "SGD-momentum": (lambda: mx.SGD(ETA, 0.9), lambda: sgd(0.9)),
    "SGD-nesterov": (lambda: mx.SGD(ETA, 0.9, nesterov=True), lambda: sgd(0.9, True)),
    "Adam": (lambda: mx.Adam(ETA), adam),
    "Adam-numbers": (
        lambda: mx.Adam(ETA, 0.8, 0.95, 1e-3, eps_root=1e-2),
        lambda: adam(0.8, 0.95, 1e-3, 1e-2),
    ),
    "NAdam": (lambda: mx.NAdam(ETA, eps=1e-5), lambda: adam(eps=1e-5, nesterov=True)),
    "AdamW": (lambda: mx.AdamW(ETA, weight_decay=0.1), lambda: adam(decay=0.1)),
    "AdamW-default": (lambda: mx.AdamW(ETA), lambda: adam(decay=1e-4)),
    "NAdamW": (
        lambda: mx.NAdamW(ETA, 0.8, weight_decay=0.1),
        lambda: adam(0.8, decay=0.1, nesterov=True),
    ),
    "RMSProp": (lambda: mx.RMSProp(ETA), rmsprop),
    "RMSProp-outside": (
        lambda: mx.RMSProp(ETA, 0.95, 1e-3, 0.5, eps_in_sqrt=False),
        lambda: rmsprop(0.95, 1e-3, 0.5, inside=False),
    ),
    "RMSProp-corrected": (
        lambda: mx.RMSProp(ETA, bias_correction=True),
        lambda: rmsprop(corrected=True),
    ),
    "RMSProp-momentum": (
        lambda: mx.RMSProp(ETA, momentum=0.7),
        lambda: rmsprop(momentum=0.7),
    ),
    "RMSProp-nesterov": (
        lambda: mx.RMSProp(ETA, momentum=0.7, nesterov=True),
        lambda: rmsprop(momentum=0.7, nesterov=True),
    ),
    "RMSProp-centered": (
        lambda: mx.RMSProp(ETA, eps=1e-2, centered=True),
        lambda: rmsprop(eps=1e-2, centered=True),
    ),
    # The first variance is zero but for rounding, so eps must be larger than the rounding.
    "RMSProp-centered-corrected": (
        lambda: mx.RMSProp(ETA, eps=1.0, centered=True, bias_correction=True),
        lambda: rmsprop(eps=1.0, centered=True, corrected=True),
    ),
    "Lion": (lambda: mx.Lion(ETA), lion),
    "Lion-numbers": (
        lambda: mx.Lion(ETA, 0.7, 0.8, weight_decay=0.2),
        lambda: lion(0.7, 0.8, 0.2),
    ),
    "Ema": (lambda: mx.Ema(0.8), lambda: ema(0.8, True)),
    "Ema-biased": (lambda: mx.Ema(0.8, debias=False), lambda: ema(0.8, False)),
    "Clip": (lambda: mx.Clip(0.5), lambda: clipped(0.5)),
    "ClipByGlobalNorm": (lambda: mx.ClipByGlobalNorm(30.0), lambda: clipped_by_norm(30.0)),
    "MultiSteps": (lambda: mx.MultiSteps(mx.SGD(ETA, 0.9), 4), lambda: accumulated(4)),
}


@pytest.mark.parametrize("name", CASES)
def test_equals_its_equations(name: str):
    make, transcription = CASES[name]
    np.testing.assert_allclose(points(make()), np.stack(list(transcription())), rtol=1e-12)


# --- Schedules -------------------------------------------------------------------------------------


def cosine(t: float, total: float) -> float:
    """Loshchilov and Hutter 2016, equation 5, without restarts."""
    return 0.5 * (1 + np.cos(np.pi * min(t / total, 1)))


def warmup_cosine(t: float) -> float:
    if t < 5:
        return 0.1 + (2.0 - 0.1) * t / 5
    return 0.3 + (2.0 - 0.3) * cosine(t - 5, 20 - 5) ** 2


def _slope(t: Any) -> Any:
    return 0.1 * jnp.asarray(t).astype(float)


CURVES: dict[str, tuple[Callable[[], Any], Callable[[int], float]]] = {
    "Constant": (lambda: schedules.Constant(0.3), lambda t: 0.3),
    "Linear": (
        lambda: schedules.Linear(1.0, 3.0, 8, 4),
        lambda t: 1.0 + 2.0 * min(max((t - 4) / 8, 0), 1),
    ),
    "CosineDecay": (
        lambda: schedules.CosineDecay(2.0, 20, 0.1, 1.5),
        lambda t: 2.0 * (0.9 * cosine(t, 20) ** 1.5 + 0.1),
    ),
    "WarmupCosineDecay": (
        lambda: schedules.WarmupCosineDecay(0.1, 2.0, 5, 20, 0.3, 2.0),
        warmup_cosine,
    ),
    "PiecewiseConstant": (
        lambda: schedules.PiecewiseConstant(2.0, {3: 0.5, 10: 0.1}),
        lambda t: 2.0 * (0.5 if t >= 3 else 1) * (0.1 if t >= 10 else 1),
    ),
    "Join": (
        lambda: schedules.Join([0.7, schedules.Linear(0.0, 1.0, 4), _slope], [3, 9]),
        lambda t: 0.7 if t < 3 else min((t - 3) / 4, 1) if t < 9 else 0.1 * (t - 9),
    ),
}


@pytest.mark.parametrize("name", CURVES)
def test_schedule_equals_its_equation(name: str):
    make, transcription = CURVES[name]
    found = [float(make()(t)) for t in range(30)]
    np.testing.assert_allclose(found, [transcription(t) for t in range(30)], rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("name", CURVES)
def test_a_scheduled_rate_is_the_curve(name: str):
    """An optimizer's first step takes the schedule at zero, the next one at one."""
    make, transcription = CURVES[name]
    expected = start() - np.cumsum([transcription(t) * g for t, g in enumerate(gradients())], axis=0)
    np.testing.assert_allclose(points(mx.SGD(make())), expected, rtol=1e-10)


# --- What follows from the equations ---------------------------------------------------------------


def test_the_first_step_of_adam():
    """The moments are corrected to g and g², whatever the decays: the step is -η g / (|g| + ε)."""
    g = gradients()[0]
    for b1, b2 in ((0.9, 0.999), (0.0, 0.5)):
        found = first_update(mx.Adam(ETA, b1, b2, 1e-3), jnp.asarray(g))
        np.testing.assert_allclose(found, -ETA * g / (np.abs(g) + 1e-3), rtol=1e-12)


def test_lion_moves_every_entry_by_the_learning_rate():
    path = np.concatenate([start()[None], points(mx.Lion(ETA, weight_decay=0.0))])
    np.testing.assert_allclose(np.abs(np.diff(path, axis=0)), ETA, rtol=1e-9)


@pytest.mark.parametrize("transform", [mx.Adam(ETA, eps=0.0), mx.Lion(ETA)], ids=["Adam", "Lion"])
def test_a_scaled_loss_has_the_same_trajectory(transform: Any):
    """Adam without ε and Lion depend on the direction of the gradients alone."""
    scaled = mx.Chain(mx.Scale(1e3), transform)
    np.testing.assert_allclose(points(scaled), points(transform), rtol=1e-9)


def test_chains_are_associative():
    a, b, c = mx.Trace(0.8), mx.ClipByGlobalNorm(1.0), mx.AdamW(ETA)
    flat = points(mx.Chain(a, b, c))
    np.testing.assert_allclose(points(mx.Chain(mx.Chain(a, b), c)), flat, rtol=1e-14)
    np.testing.assert_allclose(points(mx.Chain(a, mx.Chain(b, c))), flat, rtol=1e-14)


def test_the_order_of_a_chain_matters():
    """Clipping before the momentum bounds the gradient, after it the step."""
    before = points(mx.Chain(mx.Clip(0.1), mx.Trace(0.9)))
    after = points(mx.Chain(mx.Trace(0.9), mx.Clip(0.1)))
    assert np.max(np.abs(np.diff(after, axis=0))) <= 0.1 + 1e-12
    assert np.max(np.abs(np.diff(before, axis=0))) > 0.2


def test_gradient_descent_on_a_quadratic():
    """w_t = (1 - η a)^t w_0 on ½ a w²."""
    a = np.geomspace(0.01, 10, SIZE)
    transform, w = mx.SGD(0.1), jnp.asarray(start())
    state = transform.init(w)
    for _ in range(20):
        w, state = transform.step(a * w, state, w)
    np.testing.assert_allclose(w, (1 - 0.1 * a) ** 20 * start(), rtol=1e-10)


def test_heavy_ball_on_a_quadratic():
    """The iterates are those of the companion matrix of w_{t+1} = (1 + μ - η a) w_t - μ w_{t-1}."""
    eta, mu, a = 0.1, 0.8, 2.0
    companion = np.asarray([[1 + mu - eta * a, -mu], [1.0, 0.0]])
    expected = (np.linalg.matrix_power(companion, 15) @ np.asarray([3.0, 3.0]))[0]
    transform, w = mx.SGD(eta, mu), jnp.asarray(3.0)
    state = transform.init(w)
    for _ in range(15):
        w, state = transform.step(a * w, state, w)
    np.testing.assert_allclose(w, expected, rtol=1e-11)


def test_the_average_of_a_constant_is_the_constant():
    transform = mx.Ema(0.97)
    g = jnp.asarray(gradients()[0])
    state = transform.init(g)
    for _ in range(5):
        u, state = transform.update(g, state)
        np.testing.assert_allclose(u, g, rtol=1e-13)


def test_decoupled_decay_is_not_a_penalty():
    """After Adam, decay shrinks all weights alike; before it, it is normalized away."""
    decoupled = points(mx.AdamW(ETA, weight_decay=0.1))
    penalty = points(mx.Chain(mx.AddDecayedWeights(0.1), mx.Adam(ETA)))
    plain = points(mx.Adam(ETA))
    assert not np.allclose(decoupled, penalty, rtol=1e-3)
    w = start()
    np.testing.assert_allclose(decoupled[0], plain[0] - ETA * 0.1 * w, rtol=1e-12)
