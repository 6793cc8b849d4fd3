"""Relatives of Adam and accumulators against their equations, transcribed to NumPy from the papers."""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import modulax as mx

from . import settings
from .transcriptions import ETA, Points, compiled, first_update, gradients, points, start

in_double = pytest.mark.usefixtures("x64")


# --- Kingma and Ba 2014, algorithm 2; the floor of the maximum is ours -----------------------------


def adamax(b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8, decay: float = 0.0) -> Points:
    w, m, u = start(), 0.0, 0.0
    for t, g in enumerate(gradients(), 1):
        m = b1 * m + (1 - b1) * g
        u = np.maximum(b2 * u, np.abs(g) + eps)
        w = w - ETA * (m / (1 - b1**t) / u + decay * w)
        yield w


# --- Reddi et al. 2018, algorithm 2, and with the bias corrections that torch has ------------------


def amsgrad(b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8, root: float = 0.0, which: str = "mu nu") -> Points:
    w, m, v, largest = start(), 0.0, 0.0, 0.0
    for t, g in enumerate(gradients(), 1):
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * g**2
        largest = np.maximum(largest, v)
        m_hat = m / (1 - b1**t) if "mu" in which else m
        v_hat = largest / (1 - b2**t) if "nu" in which else largest
        w = w - ETA * m_hat / (np.sqrt(v_hat + root) + eps)
        yield w


# --- Zhuang et al. 2020, algorithm 2; Dozat 2016 for the look-ahead --------------------------------


def adabelief(
    b1: float = 0.9, b2: float = 0.999, eps: float = 1e-16, root: float = 1e-16, nesterov: bool = False
) -> Points:
    w, m, s = start(), 0.0, 0.0
    for t, g in enumerate(gradients(), 1):
        m = b1 * m + (1 - b1) * g
        s = b2 * s + (1 - b2) * (g - m) ** 2 + root
        m_hat = m / (1 - b1**t)
        if nesterov:
            m_hat = b1 * m / (1 - b1 ** (t + 1)) + (1 - b1) * g / (1 - b1**t)
        w = w - ETA * m_hat / (np.sqrt(s / (1 - b2**t)) + eps)
        yield w


# --- Zaheer et al. 2018, algorithm 2, and the first author's code ----------------------------------


def yogi(
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-3,
    root: float = 0.0,
    initial: float = 1e-6,
    is_corrected: bool = True,
) -> Points:
    w, m, v = start(), 0.0, initial
    for t, g in enumerate(gradients(), 1):
        m = b1 * m + (1 - b1) * g
        v = v - (1 - b2) * np.sign(v - g**2) * g**2
        rate = ETA * (np.sqrt(1 - b2**t) / (1 - b1**t) if is_corrected else 1.0)
        w = w - rate * m / (np.sqrt(v + root) + eps)
        yield w


# --- Liu et al. 2019, algorithm 2 ------------------------------------------------------------------


def length_of_average(b2: float, t: int) -> tuple[float, float]:
    """ρ_t and ρ_∞ in exact arithmetic, because they cancel."""
    b = Fraction(b2)
    limit = 2 / (1 - b) - 1
    return float(limit - 2 * t * b**t / (1 - b**t)), float(limit)


def radam(
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    root: float = 0.0,
    threshold: float = 5.0,
    nesterov: bool = False,
) -> Points:
    w, m, v = start(), 0.0, 0.0
    for t, g in enumerate(gradients(), 1):
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * g**2
        m_hat = m / (1 - b1**t)
        if nesterov:
            m_hat = b1 * m / (1 - b1 ** (t + 1)) + (1 - b1) * g / (1 - b1**t)
        rho, limit = length_of_average(b2, t)
        if rho > 4 and rho >= threshold:
            r = math.sqrt((rho - 4) * (rho - 2) * limit / ((limit - 4) * (limit - 2) * rho))
            w = w - ETA * r * m_hat / (np.sqrt(v / (1 - b2**t) + root) + eps)
        else:
            w = w - ETA * m_hat
        yield w


# --- Ginsburg et al. 2019, algorithm 1 -------------------------------------------------------------


def novograd(b1: float = 0.9, b2: float = 0.25, eps: float = 1e-6, root: float = 0.0, decay: float = 0.0) -> Points:
    w = start()
    first, *rest = gradients()
    v = np.sum(first**2)
    m = first / (np.sqrt(v + root) + eps) + decay * w
    w = w - ETA * m
    yield w
    for g in rest:
        v = b2 * v + (1 - b2) * np.sum(g**2)
        m = b1 * m + (g / (np.sqrt(v + root) + eps) + decay * w)
        w = w - ETA * m
        yield w


# --- Xie et al. 2022, algorithm 1, in the paper's own β, with the bias corrections of its code ------


def adan(
    beta1: float = 0.02,
    beta2: float = 0.08,
    beta3: float = 0.01,
    eps: float = 1e-8,
    root: float = 1e-8,
    decay: float = 0.0,
) -> Points:
    w, m, v, n = start(), 0.0, 0.0, 0.0
    last = gradients()[0]
    for k, g in enumerate(gradients(), 1):
        m = (1 - beta1) * m + beta1 * g
        v = (1 - beta2) * v + beta2 * (g - last)
        n = (1 - beta3) * n + beta3 * (g + (1 - beta2) * (g - last)) ** 2
        m_hat = m / (1 - (1 - beta1) ** k)
        v_hat = v / (1 - (1 - beta2) ** k)
        n_hat = n / (1 - (1 - beta3) ** k)
        eta = ETA / (np.sqrt(n_hat + root) + eps)
        w = (w - eta * (m_hat + (1 - beta2) * v_hat)) / (1 + decay * ETA)
        last = g
        yield w


# --- Duchi et al. 2011; Zeiler 2012, algorithm 1 ---------------------------------------------------


def adagrad(initial: float = 0.1, eps: float = 1e-7) -> Points:
    w, total = start(), initial
    for g in gradients():
        total = total + g**2
        w = w - ETA * g / np.sqrt(total + eps)
        yield w


def adadelta(eta: float = 1.0, rho: float = 0.9, eps: float = 1e-6, decay: float = 0.0) -> Points:
    w, e_g, e_x = start(), 0.0, 0.0
    for g in gradients():
        g = g + decay * w
        e_g = rho * e_g + (1 - rho) * g**2
        step = -np.sqrt(e_x + eps) / np.sqrt(e_g + eps) * g
        e_x = rho * e_x + (1 - rho) * step**2
        w = w + eta * step
        yield w


# --- Mokhtari et al. 2019, equation 5 and its generalization; Daskalakis et al. 2017, algorithm 1 ---


def optimistic(alpha: float = 1.0, beta: float = 1.0) -> Points:
    w = start()
    last = gradients()[0]
    for g in gradients():
        w = w - (alpha + beta) * ETA * g + beta * ETA * last
        last = g
        yield w


def optimistic_adam(
    alpha: float = 1.0, beta: float = 1.0, b1: float = 0.9, b2: float = 0.999, nesterov: bool = True
) -> Points:
    w, m, v, last = start(), 0.0, 0.0, None
    for t, g in enumerate(gradients(), 1):
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * g**2
        m_hat = m / (1 - b1**t)
        if nesterov:
            m_hat = b1 * m / (1 - b1 ** (t + 1)) + (1 - b1) * g / (1 - b1**t)
        d = m_hat / (np.sqrt(v / (1 - b2**t)) + 1e-8)
        last = d if last is None else last
        w = w - (alpha + beta) * ETA * d + beta * ETA * last
        last = d
        yield w


# --- Lion with other signs; a proximal step --------------------------------------------------------


def lion(sign: Callable[[np.ndarray], np.ndarray]) -> Points:
    w, m = start(), 0.0
    for g in gradients():
        w = w + sign(0.9 * m + (1 - 0.9) * g)
        m = 0.99 * m + (1 - 0.99) * g
        yield w


def proximal(eta: float, decay: float) -> Points:
    w = start()
    for g in gradients():
        w = (w + g) / (1 + eta * decay)
        yield w


CASES: dict[str, tuple[Callable[[], Any], Callable[[], Points]]] = {
    "Adamax": (lambda: mx.Adamax(ETA), adamax),
    "Adamax-numbers": (lambda: mx.Adamax(ETA, 0.8, 0.9, 1e-2), lambda: adamax(0.8, 0.9, 1e-2)),
    "AdamaxW": (lambda: mx.AdamaxW(ETA, weight_decay=0.1), lambda: adamax(decay=0.1)),
    "AdamaxW-default": (lambda: mx.AdamaxW(ETA), lambda: adamax(decay=1e-4)),
    "AMSGrad": (lambda: mx.AMSGrad(ETA), amsgrad),
    "AMSGrad-numbers": (lambda: mx.AMSGrad(ETA, 0.8, 0.9, 1e-3, eps_root=1e-2), lambda: amsgrad(0.8, 0.9, 1e-3, 1e-2)),
    "AMSGrad-paper": (
        lambda: mx.AMSGrad(ETA, b2=0.9, bias_correction_mu=False, bias_correction_nu=False),
        lambda: amsgrad(b2=0.9, which=""),
    ),
    "AMSGrad-mu": (lambda: mx.AMSGrad(ETA, b2=0.9, bias_correction_nu=False), lambda: amsgrad(b2=0.9, which="mu")),
    "AMSGrad-nu": (lambda: mx.AMSGrad(ETA, b2=0.9, bias_correction_mu=False), lambda: amsgrad(b2=0.9, which="nu")),
    "AdaBelief": (lambda: mx.AdaBelief(ETA), adabelief),
    "AdaBelief-numbers": (
        lambda: mx.AdaBelief(ETA, 0.8, 0.9, 1e-3, eps_root=1e-2),
        lambda: adabelief(0.8, 0.9, 1e-3, 1e-2),
    ),
    "AdaBelief-nesterov": (lambda: mx.AdaBelief(ETA, nesterov=True), lambda: adabelief(nesterov=True)),
    "Yogi": (lambda: mx.Yogi(ETA), yogi),
    "Yogi-numbers": (
        lambda: mx.Chain(mx.ScaleByYogi(0.8, 0.9, 1e-4, 1e-2, 0.3), mx.Scale(-ETA)),
        lambda: yogi(0.8, 0.9, 1e-4, 1e-2, 0.3),
    ),
    "Yogi-paper": (lambda: mx.Yogi(ETA, 0.8, 0.9, follow="paper"), lambda: yogi(0.8, 0.9, is_corrected=False)),
    "RAdam": (lambda: mx.RAdam(ETA), radam),
    "RAdam-numbers": (
        lambda: mx.RAdam(ETA, 0.8, 0.9, 1e-3, eps_root=1e-2, threshold=7.0),
        lambda: radam(0.8, 0.9, 1e-3, 1e-2, 7.0),
    ),
    "RAdam-low-threshold": (lambda: mx.RAdam(ETA, b2=0.99, threshold=1.0), lambda: radam(b2=0.99, threshold=1.0)),
    "RAdam-short-average": (lambda: mx.RAdam(ETA, b2=0.5), lambda: radam(b2=0.5)),  # ρ_∞ = 3: never rectified
    "RAdam-long-average": (lambda: mx.RAdam(ETA, b2=0.9999), lambda: radam(b2=0.9999)),
    "RAdam-nesterov": (lambda: mx.RAdam(ETA, nesterov=True), lambda: radam(nesterov=True)),
    "NovoGrad": (lambda: mx.NovoGrad(ETA), novograd),
    "NovoGrad-numbers": (
        lambda: mx.NovoGrad(ETA, 0.8, 0.9, 1e-3, eps_root=1e-2, weight_decay=0.1),
        lambda: novograd(0.8, 0.9, 1e-3, 1e-2, 0.1),
    ),
    "Adan": (lambda: mx.Adan(ETA), adan),
    "Adan-numbers": (
        lambda: mx.Adan(ETA, 0.9, 0.75, 0.95, 1e-3, eps_root=1e-2, weight_decay=0.1),
        lambda: adan(0.1, 0.25, 0.05, 1e-3, 1e-2, 0.1),
    ),
    "Adagrad": (lambda: mx.Adagrad(ETA), adagrad),
    "Adagrad-numbers": (lambda: mx.Adagrad(ETA, 0.5, 1e-2), lambda: adagrad(0.5, 1e-2)),
    "Adadelta": (lambda: mx.Adadelta(), adadelta),
    "Adadelta-numbers": (lambda: mx.Adadelta(0.5, 0.8, 1e-3, 0.1), lambda: adadelta(0.5, 0.8, 1e-3, 0.1)),
    "OptimisticGradientDescent": (lambda: mx.OptimisticGradientDescent(ETA), optimistic),
    "OptimisticGradientDescent-numbers": (
        lambda: mx.OptimisticGradientDescent(ETA, 0.6, 0.3),
        lambda: optimistic(0.6, 0.3),
    ),
    "OptimisticAdam": (lambda: mx.OptimisticAdam(ETA), optimistic_adam),
    "OptimisticAdam-paper": (
        lambda: mx.OptimisticAdam(ETA, alpha=0.5, beta=0.7, b1=0.8, b2=0.9, nesterov=False),
        lambda: optimistic_adam(0.5, 0.7, 0.8, 0.9, nesterov=False),
    ),
    "Lion-smooth": (lambda: mx.ScaleByLion(mode="smooth", smooth_beta=2.0), lambda: lion(lambda c: np.tanh(2 * c))),
    "Lion-refined": (lambda: mx.ScaleByLion(mode="refined"), lambda: lion(lambda c: np.clip(c, -1, 1))),
    "ProximalWeightDecay": (lambda: mx.ProximalWeightDecay(0.5, 0.2), lambda: proximal(0.5, 0.2)),
}


@in_double
@pytest.mark.parametrize("name", CASES)
def test_equals_its_equations(name: str):
    make, transcription = CASES[name]
    np.testing.assert_allclose(points(make()), np.stack(list(transcription())), rtol=1e-12)


# --- Where optax differs ---------------------------------------------------------------------------


def optax_points(make: Callable[[], Any]) -> np.ndarray:
    with settings.jax_defaults():
        return points(make())


@in_double
def test_amsgrad_takes_the_maximum_before_the_correction():
    """After one large gradient and small ones, optax's maximum is still that of the first step, 1 / (1 - b2) times."""
    ours, like_theirs = mx.ScaleByAMSGrad(eps=0.0), mx.ScaleByAMSGrad(eps=0.0, follow="optax")
    theirs: Any = optax.scale_by_amsgrad(eps=0.0)
    params = jnp.zeros(())
    found: list[Any] = []
    transforms: list[Any] = [ours, like_theirs, theirs]
    for transform in transforms:
        with settings.jax_defaults():
            state = transform.init(params)
            for g in (1.0, *[0.1] * 20):
                _, state = transform.update(jnp.asarray(g), state, params)
        found.append(state.nu_max)
    np.testing.assert_allclose(found[1], found[2], rtol=1e-12)
    np.testing.assert_allclose(found[2], 1.0, rtol=1e-12)
    largest, v = 0.0, 0.0
    for g in (1.0, *[0.1] * 20):
        v = 0.999 * v + 0.001 * g**2
        largest = max(largest, v)
    np.testing.assert_allclose(found[0], largest, rtol=1e-12)
    assert largest < 2e-3


@in_double
def test_adan_weights_the_difference_by_b2():
    theirs = optax_points(lambda: optax.adan(ETA))
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
    g = jnp.ones(())
    ours, theirs = mx.RAdam(0.1, threshold=2.5), optax.radam(0.1, threshold=2.5)
    state = ours.init(g)
    with settings.jax_defaults():
        their_state = theirs.init(g)
    steps = []
    for _ in range(5):
        u, state = ours.update(g, state)
        with settings.jax_defaults():
            v, their_state = theirs.update(g, their_state)
        steps.append((float(jnp.asarray(u)), float(jnp.asarray(v))))
    np.testing.assert_allclose([u for u, _ in steps[:4]], -0.1, rtol=1e-6)
    assert [math.isnan(v) for _, v in steps] == [False, False, True, True, False]


@pytest.mark.parametrize("b2", [0.9, 0.999, 0.9999, 0.99999])
def test_radam_knows_the_length_of_its_average_in_float32(b2: float):
    """It is found from the update: the direction is r_t times 1 where all gradients are 1, and 1 before."""
    transform = mx.ScaleByRAdam(b2=b2, eps=0.0)
    twin: Any = optax.scale_by_radam(b2=b2, eps=0.0)
    g = jnp.ones(())
    state = transform.init(g)
    with settings.jax_defaults():
        their_state, their_update = twin.init(g), jax.jit(twin.update)
    b2 = float(np.float32(b2))  # the number that both are given
    error, their_error = 0.0, 0.0
    for t in range(1, 40):
        u, state = transform.update(g, state)
        with settings.jax_defaults():
            theirs, their_state = their_update(g, their_state)
        rho, limit = length_of_average(b2, t)
        r = 1.0
        if rho >= 5:
            r = math.sqrt((rho - 4) * (rho - 2) * limit / ((limit - 4) * (limit - 2) * rho))
        error = max(error, abs(float(u) / r - 1))
        their_error = max(their_error, abs(float(theirs) / r - 1))
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


# --- What follows from the equations ---------------------------------------------------------------


@in_double
def test_first_steps():
    g = gradients()[0]
    sign = np.sign(g)
    for transform in (mx.Adamax(ETA, eps=0.0), mx.AMSGrad(ETA, eps=0.0), mx.AMSGrad(ETA, eps=0.0, follow="optax")):
        np.testing.assert_allclose(first_update(transform, g), -ETA * sign, rtol=1e-12)
    np.testing.assert_allclose(first_update(mx.Adan(ETA, eps=0.0, eps_root=0.0), g), -ETA * sign, rtol=1e-12)
    np.testing.assert_allclose(first_update(mx.Adagrad(ETA, 0.0, 0.0), g), -ETA * sign, rtol=1e-12)
    np.testing.assert_allclose(first_update(mx.RAdam(ETA), g), -ETA * g, rtol=1e-12)
    np.testing.assert_allclose(first_update(mx.OptimisticGradientDescent(ETA, 0.6, 5.0), g), -0.6 * ETA * g, rtol=1e-12)
    np.testing.assert_allclose(first_update(mx.NovoGrad(ETA, eps=0.0), g), -ETA * g / np.linalg.norm(g), rtol=1e-12)
    # AdaBelief's first distance is b1 |g|, and its corrected square b1² g².
    belief = mx.AdaBelief(ETA, 0.8, eps=0.0, eps_root=0.0)
    np.testing.assert_allclose(first_update(belief, g), -ETA * sign / 0.8, rtol=1e-12)


@in_double
@pytest.mark.parametrize(
    "transform",
    [
        mx.Adamax(ETA, eps=0.0),
        mx.AMSGrad(ETA, eps=0.0),
        mx.AdaBelief(ETA, eps=0.0, eps_root=0.0),
        mx.Adan(ETA, eps=0.0, eps_root=0.0),
        mx.Adagrad(ETA, 0.0, 0.0),
        mx.NovoGrad(ETA, eps=0.0),
        mx.OptimisticAdam(ETA, eps=0.0),
    ],
    ids=lambda transform: type(transform).__name__,
)
def test_a_scaled_loss_has_the_same_trajectory(transform: Any):
    scaled = mx.Chain(mx.Scale(1e3), transform)
    np.testing.assert_allclose(points(scaled), points(transform), rtol=1e-8)


@in_double
def test_the_root_of_amsgrad_never_shrinks():
    """Without correction, a large gradient is never forgotten."""
    transform = mx.ScaleByAMSGrad(0.0, 0.5, bias_correction_mu=False, bias_correction_nu=False)
    g = jnp.asarray([100.0])
    _, state = transform.update(g, transform.init(g))
    u, _ = transform.update(g / 100, state)
    np.testing.assert_allclose(u, 1 / np.sqrt(0.5 * 100.0**2), rtol=1e-8)


@in_double
def test_yogi_in_optax_corrects_inside_the_root():
    """Its small constant isn't corrected, and its mean starts above zero."""
    with settings.jax_defaults():
        theirs = points(compiled(optax.yogi(ETA)))
    np.testing.assert_allclose(points(mx.Yogi(ETA, follow="optax")), theirs, rtol=1e-10)
    assert np.max(np.abs(points(mx.Yogi(ETA)) - theirs)) > 1e-3


@in_double
def test_the_second_moment_of_yogi_changes_by_a_part_of_the_square():
    """Adam would forget 20 % of a large moment; Yogi takes away 20 % of the small square."""
    transform = mx.ScaleByYogi(b2=0.8, initial_accumulator_value=100.0)
    g = jnp.asarray([1.0, 10.0, 50.0])  # below, at and above the root of the moment
    _, state = transform.update(g, transform.init(g))
    np.testing.assert_allclose(state.nu, [100 - 0.2, 100.0, 100 + 0.2 * 2500], rtol=1e-14)


@in_double
def test_adadelta_is_in_the_units_of_the_parameters():
    """A loss that is scaled, with ε as its square, gives the same steps as long as no step was made before."""
    g = gradients()[0]
    small, large = (first_update(mx.ScaleByAdadelta(eps=0.0).replace(eps=1e-30), c * g) for c in (1.0, 1e3))
    np.testing.assert_allclose(small, large, rtol=1e-10)


@in_double
def test_novograd_has_one_second_moment_for_an_array():
    w = {"a": jnp.ones((3, 2)), "b": jnp.ones(4)}
    state = mx.ScaleByNovoGrad().init(w)
    assert [x.shape for x in jax.tree.leaves(state.nu)] == [(), ()]
    _, state = mx.ScaleByNovoGrad().update(w, state, w)
    np.testing.assert_allclose([state.nu["a"], state.nu["b"]], [6.0, 4.0])


@in_double
def test_optimism_settles_a_game():
    """min_x max_y x y: gradient descent goes round in widening circles, optimistic descent finds the saddle."""

    def distance(transform: Any) -> float:
        w = jnp.asarray([1.0, 1.0])
        state = transform.init(w)
        for _ in range(400):
            w, state = transform.step(jnp.stack([w[1], -w[0]]), state, w)
        return float(jnp.linalg.norm(w))

    assert distance(mx.OptimisticGradientDescent(0.3)) < 1e-6
    assert distance(mx.SGD(0.3)) > 1e3
