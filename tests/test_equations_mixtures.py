"""Contributed adaptive methods and sign methods against their equations, and against what follows from them."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import modulax as mx
from modulax import schedules

from . import settings
from .transcriptions import ETA, STEPS, Points, compiled, gradients, points, start

pytestmark = pytest.mark.usefixtures("x64")


# --- Taniguchi et al. 2024, algorithm 2 (without clipping and with Nesterov's look-ahead, the authors' code) ---------


def adopt(b1: float = 0.9, b2: float = 0.9999, eps: float = 1e-6, clips: bool = True, nesterov: bool = False) -> Points:
    first, *rest = gradients()
    w, m, v = start(), 0.0, first**2
    yield w
    for t, g in enumerate(rest, 1):
        c = g / np.maximum(np.sqrt(v), eps)
        if clips:
            c = np.minimum(np.maximum(c, -(t**0.25)), t**0.25)
        m = b1 * m + (1 - b1) * c
        w = w - ETA * (b1 * m + (1 - b1) * c if nesterov else m)
        yield w
        v = b2 * v + (1 - b2) * g**2


# --- Pagliardini et al. 2024, algorithm 1; schedules count from 0 ----------------------------------------------------


def ademamix(
    b3: Callable[[int], float] = lambda t: 0.9999,
    alpha: Callable[[int], float] = lambda t: 5.0,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    decay: float = 0.0,
) -> Points:
    w, m1, m2, v = start(), 0.0, 0.0, 0.0
    for t, g in enumerate(gradients(), 1):
        m1 = b1 * m1 + (1 - b1) * g
        m2 = b3(t - 1) * m2 + (1 - b3(t - 1)) * g
        v = b2 * v + (1 - b2) * g**2
        m1_hat, v_hat = m1 / (1 - b1**t), v / (1 - b2**t)
        w = w - ETA * ((m1_hat + alpha(t - 1) * m2) / (np.sqrt(v_hat + eps_root) + eps) + decay * w)
        yield w


# --- Morwani et al. 2025, the algorithm of section 5 -----------------------------------------------------------------


def simplified(alpha: float = 0.0, b1: float = 0.99, b2: float = 0.95, eps: float = 1e-8, decay: float = 0.0) -> Points:
    w, m, v = start(), 0.0, 0.0
    for t, g in enumerate(gradients(), 1):
        m = b1 * m + g
        v = b2 * v + (1 - b2) * g**2
        w = w - ETA * ((m + alpha * g) / (np.sqrt(v / (1 - b2**t)) + eps) + decay * w)
        yield w


# --- Zhuang et al. 2021, algorithm 2, and the bias correction and the first step of the authors' code ----------------


def acprop(b1: float = 0.9, b2: float = 0.999, eps: float = 1e-16, eps_root: float = 1e-16, decay: float = 0.0):
    w, m, s = start(), 0.0, 0.0
    for t, g in enumerate(gradients(), 1):
        below = 1.0 if t == 1 else np.sqrt(s / (1 - b2 ** (t - 1))) + eps
        w = w - ETA * (g / below + decay * w)
        m = b1 * m + (1 - b1) * g
        s = b2 * s + (1 - b2) * (g - m) ** 2 + eps_root
        yield w


# --- Defazio and Jelassi 2021, algorithm 1; the learning rate plus eps is from the authors' code ---------------------


def madgrad(
    momentum: float = 0.9, decay: float = 0.0, eps: float = 1e-6, rate: Callable[[int], float] = lambda k: ETA
) -> Points:
    w, w0, s, v = start(), start(), 0.0, 0.0
    c = 1 - momentum
    for k, g in enumerate(gradients()):
        g = g + decay * w
        lamb = (rate(k) + eps) * np.sqrt(k + 1)
        s = s + lamb * g
        v = v + lamb * g**2
        z = w0 - s / (np.cbrt(v) + eps)
        w = (1 - c) * w + c * z
        yield w


# --- Bernstein et al. 2018, algorithms 1 and 2 -----------------------------------------------------------------------


def sign(beta: float = 0.0) -> Points:
    w, m = start(), 0.0
    for g in gradients():
        m = beta * m + (1 - beta) * g
        w = w - ETA * np.sign(m)
        yield w


# --- Igel and Hüsken 2003, iRprop⁻ -----------------------------------------------------------------------------------


def rprop(minus: float = 0.5, plus: float = 1.2, smallest: float = 1e-6, largest: float = 50.0) -> Points:
    w = start()
    delta, before = np.full_like(w, ETA), np.zeros_like(w)
    for gradient in gradients():
        g = gradient.copy()
        for i in range(len(w)):
            if before[i] * g[i] > 0:
                delta[i] = min(delta[i] * plus, largest)
            elif before[i] * g[i] < 0:
                delta[i] = max(delta[i] * minus, smallest)
                g[i] = 0
            w[i] = w[i] - np.sign(g[i]) * delta[i]
        before = g
        yield w.copy()


def _ramp(first: float, last: float, steps: int) -> Callable[[int], float]:
    return lambda t: first + (last - first) * min(t / steps, 1)


CASES: dict[str, tuple[Callable[[], Any], Callable[[], Points]]] = {
    "ADOPT": (lambda: mx.ADOPT(ETA), adopt),
    "ADOPT-numbers": (lambda: mx.ADOPT(ETA, 0.8, 0.95, 1e-2), lambda: adopt(0.8, 0.95, 1e-2)),
    "ADOPT-unclipped": (lambda: mx.ADOPT(ETA, use_clipping=False), lambda: adopt(clips=False)),
    "ADOPT-nesterov": (lambda: mx.ADOPT(ETA, nesterov=True), lambda: adopt(nesterov=True)),
    "AdEMAMix": (lambda: mx.AdEMAMix(ETA), ademamix),
    "AdEMAMix-numbers": (
        lambda: mx.AdEMAMix(ETA, 0.8, 0.95, 0.99, 2.0, 1e-3, eps_root=1e-2, weight_decay=0.1),
        lambda: ademamix(lambda t: 0.99, lambda t: 2.0, 0.8, 0.95, 1e-3, 1e-2, 0.1),
    ),
    "AdEMAMix-schedules": (
        lambda: mx.AdEMAMix(ETA, b3=schedules.Linear(0.9, 0.99, 20), alpha=schedules.Linear(0.0, 5.0, 30)),
        lambda: ademamix(_ramp(0.9, 0.99, 20), _ramp(0.0, 5.0, 30)),
    ),
    "SimplifiedAdEMAMix": (lambda: mx.SimplifiedAdEMAMix(ETA), simplified),
    "SimplifiedAdEMAMix-numbers": (
        lambda: mx.SimplifiedAdEMAMix(ETA, 0.9, 0.99, 3.0, 1e-3, weight_decay=0.1),
        lambda: simplified(3.0, 0.9, 0.99, 1e-3, 0.1),
    ),
    "ACProp": (lambda: mx.ACProp(ETA), acprop),
    "ACProp-numbers": (
        lambda: mx.ACProp(ETA, 0.8, 0.95, 1e-3, eps_root=1e-2, weight_decay=0.1),
        lambda: acprop(0.8, 0.95, 1e-3, 1e-2, 0.1),
    ),
    "MADGRAD": (lambda: mx.MADGRAD(ETA), madgrad),
    "MADGRAD-numbers": (lambda: mx.MADGRAD(ETA, 0.5, 0.1, 1e-2), lambda: madgrad(0.5, 0.1, 1e-2)),
    "MADGRAD-schedule": (
        lambda: mx.MADGRAD(schedules.Linear(0.1, 0.01, 20)),
        lambda: madgrad(rate=_ramp(0.1, 0.01, 20)),
    ),
    "SignSGD": (lambda: mx.SignSGD(ETA), sign),
    "Signum": (lambda: mx.Signum(ETA), lambda: sign(0.9)),
    "Rprop": (lambda: mx.Rprop(ETA), rprop),
    "Rprop-numbers": (
        lambda: mx.Rprop(ETA, 0.3, 1.7, 0.01, 0.1),
        lambda: rprop(0.3, 1.7, 0.01, 0.1),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_equals_its_equations(name: str):
    make, transcription = CASES[name]
    np.testing.assert_allclose(points(make()), np.stack(list(transcription())), rtol=1e-12, atol=1e-15)


# --- What differs from optax -----------------------------------------------------------------------------------------


def _updates(transform: Any, grads: Any, params: Any = None) -> list[np.ndarray]:
    grads = np.asarray(grads)
    params = np.zeros_like(grads[0]) if params is None else params
    state, out = transform.init(params), []
    for g in grads:
        u, state = transform.update(g, state, params)
        out.append(np.asarray(u))
    return out


def test_rprop_steps_at_once():
    """In the paper the first gradient moves the parameters; with optax, the second gradient makes the first step."""
    grads = jnp.asarray([[1.0, -2.0], [3.0, -1.0], [0.5, -0.1]])
    ours = _updates(mx.Rprop(0.1), grads)
    with settings.jax_defaults():
        theirs = _updates(compiled(optax.rprop(0.1)), grads)
    np.testing.assert_allclose(ours[0], [-0.1, 0.1])
    np.testing.assert_array_equal(theirs[0], [0.0, 0.0])
    np.testing.assert_allclose(ours[:-1], theirs[1:])
    np.testing.assert_allclose(_updates(mx.Rprop(0.1, follow="optax"), grads), theirs)


def test_acprop_deviates_from_the_new_mean():
    """g - m_t is b1 (g - m_{t-1}): without eps, optax's later steps are b1 times ours."""
    numbers: dict[str, Any] = {"b1": 0.7, "b2": 0.9, "eps": 0.0, "eps_root": 0.0}
    ours = _updates(mx.ACProp(ETA, **numbers), jnp.asarray(gradients()))
    with settings.jax_defaults():
        theirs = _updates(compiled(optax.contrib.acprop(ETA, **numbers)), jnp.asarray(gradients()))
    np.testing.assert_allclose(theirs[0], ours[0])
    np.testing.assert_allclose(theirs[1:], 0.7 * np.asarray(ours[1:]), rtol=1e-12)


@pytest.mark.parametrize("make", [mx.ScaleByACProp, mx.ACProp, mx.ScaleByRprop, mx.Rprop, mx.ScaleBySophia, mx.Sophia])
def test_whom_to_follow_is_checked(make: Callable[..., Any]):
    """Where annotations are not checked; in these tests beartype may be the first to complain."""
    with pytest.raises((ValueError, TypeError), match=rf"{make.__name__}[\s\S]*follow[\s\S]*'paper'[\s\S]*'optax'"):
        make(0.1, follow="torch")


# --- What follows from the equations ---------------------------------------------------------------------------------


def test_the_first_step_of_adopt_only_measures():
    first, second = gradients()[:2]
    updates = _updates(mx.ScaleByADOPT(use_clipping=False), jnp.asarray([first, second]))
    np.testing.assert_array_equal(updates[0], 0)
    np.testing.assert_allclose(updates[1], 0.1 * second / np.abs(first), rtol=1e-12)


def test_adopt_does_not_know_the_scale_of_gradients():
    scaled = _updates(mx.ADOPT(ETA, eps=1e-30), 1e4 * jnp.asarray(gradients()))
    np.testing.assert_allclose(scaled, _updates(mx.ADOPT(ETA, eps=1e-30), jnp.asarray(gradients())), rtol=1e-11)


def test_what_enters_the_mean_of_adopt_is_bounded():
    """A gradient a million times those before counts as one that is t^(1/4) times."""
    grads = np.ones((6, 1))
    grads[5] = 1e6
    updates = _updates(mx.ScaleByADOPT(b1=0.0), jnp.asarray(grads))
    np.testing.assert_allclose(updates[5], 5**0.25, rtol=1e-12)


def test_ademamix_without_its_slow_mean_is_adam():
    np.testing.assert_allclose(points(mx.AdEMAMix(ETA, alpha=0.0)), points(mx.Adam(ETA)), rtol=1e-13)


def test_simplified_ademamix_is_the_slow_mean_of_ademamix():
    """(m̂ + m) - m̂ = m, and the momentum is m / (1 - b1)."""
    grads = jnp.asarray(gradients())
    both = _updates(mx.ScaleByAdEMAMix(0.9, 0.95, b3=0.9, alpha=1.0), grads)
    fast = _updates(mx.ScaleByAdam(0.9, 0.95), grads)
    momentum = _updates(mx.ScaleBySimplifiedAdEMAMix(0.9, 0.95), grads)
    np.testing.assert_allclose(0.1 * np.asarray(momentum), np.asarray(both) - fast, rtol=1e-11, atol=1e-14)


def test_acprop_divides_by_what_was_before():
    """The newest gradient is not in the denominator, so the update is linear in it."""
    grads = gradients()[:9]
    larger = np.concatenate([grads[:-1], 7 * grads[-1:]])
    once, more = (_updates(mx.ACProp(ETA), jnp.asarray(g))[-1] for g in (grads, larger))
    np.testing.assert_allclose(more, 7 * once, rtol=1e-13)


def test_the_first_step_of_madgrad():
    """-(1 - μ) λ g / ∛(λ g²), without eps."""
    g = gradients()[0]
    (update,) = _updates(mx.MADGRAD(0.2, 0.75, eps=0.0), jnp.asarray([g]), jnp.asarray(start()))
    np.testing.assert_allclose(update, -0.25 * 0.2 * g / np.cbrt(0.2 * g**2), rtol=1e-12)


def test_madgrad_starts_from_the_first_point():
    """The point without momentum depends on the sums of gradients alone, not on the points between."""
    w, shuffled = (points(mx.MADGRAD(ETA, 0.0))[-1] for _ in range(2))
    transform = mx.MADGRAD(ETA, 0.0)
    state = transform.init(jnp.asarray(start()))
    for g in gradients():
        wrong = jnp.asarray(start()) + 5.0
        u, state = transform.update(g, state, wrong)
        shuffled = wrong + u
    np.testing.assert_allclose(shuffled, w, rtol=1e-12)


@pytest.mark.parametrize("make", [mx.SignSGD, mx.Signum])
def test_signs_move_every_entry_by_the_learning_rate(make: Callable[..., Any]):
    moves = np.diff(points(make(ETA)), axis=0)
    np.testing.assert_allclose(np.abs(moves), ETA, rtol=1e-12)


def test_the_sign_of_a_complex_number_is_its_direction():
    g = jnp.asarray([3 + 4j, 0j, -2j])
    (u,) = _updates(mx.ScaleBySign(), g[None])
    np.testing.assert_allclose(u, [0.6 + 0.8j, 0, -1j])


def test_rprop_grows_and_shrinks():
    grads = jnp.asarray([[1.0], [5.0], [1e-30], [-1.0], [-2.0], [-1.0]])
    updates = np.ravel(_updates(mx.ScaleByRprop(0.1, 0.5, 2.0, max_step_size=0.3), grads))
    np.testing.assert_allclose(updates, [0.1, 0.2, 0.3, 0.0, -0.15, -0.3])


# --- Sound at the edges ----------------------------------------------------------------------------------------------


def test_rprop_sees_the_sign_of_tiny_gradients():
    """The product of two gradients of 1e-30 is zero in float32; optax's step size then stays."""
    grads = jnp.full((3, 2), 1e-30, jnp.float32)
    np.testing.assert_allclose(_updates(mx.ScaleByRprop(1e-20, min_step_size=0.0), grads)[2], 1.44e-20, rtol=1e-6)


def test_adopt_seeds_with_any_gradient():
    """Divided by eps it would overflow, and infinity times zero is NaN."""
    grads = jnp.full((2, 1), 1e35, jnp.float32)
    np.testing.assert_array_equal(_updates(mx.ADOPT(ETA, use_clipping=False), grads)[0], 0)


@pytest.mark.parametrize(
    "transform",
    [
        mx.ScaleByADOPT(),
        mx.ScaleByAdEMAMix(),
        mx.ScaleBySimplifiedAdEMAMix(),
        mx.ScaleByACProp(),
        mx.ScaleByMADGRAD(0.1),
    ],
)
def test_squares_accumulate_in_low_precision(transform: Any):
    """A thousandth of an accumulator is lost in bfloat16: its mean square would never reach that of the gradients."""
    params = jnp.ones(3, jnp.bfloat16)
    state = transform.init(params)
    squares = next(getattr(state, name) for name in ("nu", "n", "grad_sum_sq") if hasattr(state, name))
    assert squares.dtype == jnp.float32
    updates = _updates(transform, jnp.ones((STEPS, 3), jnp.bfloat16), params)
    assert np.all(np.isfinite(np.asarray(updates, float)))
