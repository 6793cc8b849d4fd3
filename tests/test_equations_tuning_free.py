"""Methods that find their own step size: equations transcribed to NumPy, what follows from them, and the edges.

The transcriptions are written from the papers. Each is given the gradients and the loss of `transcriptions`, which know
nothing of the point; so the loss, where a method needs it, is a function of the point that is written here.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import optax
import pytest

import modulax as mx
from modulax import schedules

from . import settings
from .transcriptions import Points, gradients, points, start

pytestmark = pytest.mark.usefixtures("x64")
contrib = optax.contrib


def loss(w: Any) -> Any:
    """A loss between 2 and 3, for methods that are given one."""
    return 2 + (w**2).sum() / (1 + (w**2).sum())


def positive(x: float) -> float:
    return max(x, 0.0)


# --- Mishchenko and Defazio 2023, algorithm 4, and the authors' package ----------------------------


def prodigy(
    eta: Callable[[int], float] = lambda t: 1.0,
    b1: float = 0.9,
    b2: float = 0.999,
    b3: float = np.sqrt(0.999),
    eps: float = 1e-8,
    d: float = 1e-6,
    coef: float = 1.0,
    decay: float = 0.0,
    safeguard: bool = False,
    as_in_paper: bool = False,
) -> Points:
    w, w0 = start(), start()
    m, v, r, s = 0.0, 0.0, 0.0, np.zeros_like(w)
    for t, g in enumerate(gradients()):
        m = b1 * m + (1 - b1) * d * g
        v = b2 * v + (1 - b2) * d**2 * g**2
        r = b3 * r + (1 - b3) * eta(t) * d**2 * np.dot(g, w0 - w)
        s = b3 * s + (1 - b3) * (1 if safeguard else eta(t)) * d**2 * g
        new_d = max(d, coef * r / np.abs(s).sum())
        w = w - eta(t) * d * (m / (np.sqrt(v) + (d if as_in_paper else new_d) * eps) + decay * w)
        d = new_d
        yield w


# --- Defazio and Mishchenko 2023, Adam with D-Adaptation, and the authors' package -----------------


def dadapt(
    eta: Callable[[int], float] = lambda t: 1.0,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    d: float = 1e-6,
    decay: float = 0.0,
    as_in_paper: bool = False,
) -> Points:
    w, m, v, r, root = start(), 0.0, 0.0, 0.0, np.sqrt(b2)
    s = np.zeros_like(w)
    for t, g in enumerate(gradients()):
        m = b1 * m + (1 - b1) * d * eta(t) * g
        before, v = v, b2 * v + (1 - b2) * g**2
        r = root * r + (1 - root) * d * eta(t) * np.dot(g, s / (np.sqrt(v if as_in_paper else before) + eps))
        s = root * s + (1 - root) * d * eta(t) * g
        w = w - m / (np.sqrt(v) + eps) - d * eta(t) * decay * w
        d = max(d, r / ((1 - root) * np.abs(s).sum()))
        yield w


# --- Ivgi et al. 2023, equations 2 and 3; Khaled et al. 2023, algorithm 1 --------------------------


def dog(eta: float = 1.0, r: float = 0.0, first: float = 0.0, eps: float = 1e-8, decay: float = 0.0) -> Points:
    w, w0, total = start(), start(), 0.0
    for t, g in enumerate(gradients()):
        g = g + decay * w
        r = max(r, float(np.linalg.norm(w - w0)))
        total += np.sum(g**2)
        rate = first if first and t == 0 else r / np.sqrt(total + eps)
        w = w - eta * rate * g
        yield w


def heuristic(value: float) -> float:
    return value * (1 + float(np.linalg.norm(start())))


def dowg(eta: float = 1.0, squared: float = 1e-4, eps: float = 1e-4) -> Points:
    w, w0, v = start(), start(), 0.0
    for g in gradients():
        squared = max(squared, np.sum((w - w0) ** 2))
        v += squared * np.sum(g**2)
        w = w - eta * squared / (np.sqrt(v) + eps) * g
        yield w


# --- Orabona and Tommasi 2017, algorithm 2 ---------------------------------------------------------


def cocob(alpha: float = 100.0, eps: float = 1e-8, decay: float = 0.0, factor: float = 1.0) -> Points:
    w, w0 = start(), start()
    largest, way, reward, theta = eps, 0.0, 0.0, 0.0
    for g in gradients():
        g = factor * (g + decay * w)
        largest = np.maximum(largest, np.abs(g))
        way = way + np.abs(g)
        reward = np.maximum(reward - (w - w0) * g, 0)
        theta = theta - g
        w = w0 + theta / (largest * np.maximum(way + largest, alpha * largest)) * (largest + reward)
        yield w


# --- Loizou et al. 2020, SPS_max; Garrigos et al. 2023 ---------------------------------------------


def polyak(longest: float = 1.0, s: float = 1.0, f_min: float = 0.0, eps: float = 0.0, plus: bool = False) -> Points:
    w = start()
    for g in gradients():
        gap = loss(w) - f_min
        gap = positive(gap) if plus else gap
        w = w - s * min(gap / (np.sum(g**2) + eps), longest) * g
        yield w


# --- Schaipp et al. 2023, algorithms 1 to 3, with weight decay as a proximal step -------------------


def momo(eta: float = 1.0, beta: float = 0.9, bound: float = 0.0, decay: float = 0.0, adapts: bool = False) -> Points:
    w, f, gamma, m, lb = start(), 0.0, 0.0, 0.0, bound
    sigma = 1 + eta * decay
    for t, g in enumerate(gradients()):
        b = beta if t else 0.0
        f = b * f + (1 - b) * loss(w)
        gamma = b * gamma + (1 - b) * np.dot(g, w)
        m = b * m + (1 - b) * g
        model = sigma * (f - gamma) + np.dot(m, w)
        if adapts and model < sigma * lb:
            lb = max(model / (2 * sigma), bound)
        tau = min(eta, positive(model - sigma * lb) / np.dot(m, m))
        if adapts:
            lb = max(f - gamma + np.dot(m, w) - tau * np.dot(m, m) / 2, bound)
        w = (w - tau * m) / sigma
        yield w


def momo_adam(
    eta: float = 1e-2,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    bound: float = 0.0,
    decay: float = 0.0,
    adapts: bool = False,
) -> Points:
    w, f, gamma, m, v, lb = start(), 0.0, 0.0, 0.0, 0.0, bound
    sigma = 1 + eta * decay
    for t, g in enumerate(gradients(), 1):
        f = b1 * f + (1 - b1) * loss(w)
        gamma = b1 * gamma + (1 - b1) * np.dot(g, w)
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * g**2
        rho, scale = 1 - b1**t, eps + np.sqrt(v / (1 - b2**t))
        squared = np.dot(m, m / scale)
        model = sigma * (f - gamma) + np.dot(m, w)
        if adapts and model < sigma * rho * lb:
            lb = max(model / (2 * rho * sigma), bound)
        tau = min(eta / rho, positive(model - sigma * rho * lb) / squared)
        if adapts:
            lb = max((f - gamma + np.dot(m, w) - tau * squared / 2) / rho, bound)
        w = (w - tau * m / scale) / sigma
        yield w


def falling(t: int) -> float:
    return 1.0 - 0.9 * min(t / 20, 1)


def linear() -> schedules.Linear:
    """The same curve, made where numbers are in double precision."""
    return schedules.Linear(1.0, 0.1, 20)


CASES: dict[str, tuple[Callable[[], Any], Callable[[], Points]]] = {
    "Prodigy": (mx.Prodigy, prodigy),
    "Prodigy-numbers": (
        lambda: mx.Prodigy(0.5, (0.8, 0.99), 0.9, 1e-4, 1e-2, 1.2, 0.1),
        lambda: prodigy(lambda t: 0.5, 0.8, 0.99, 0.9, 1e-4, 1e-2, 1.2, 0.1),
    ),
    "Prodigy-schedule": (lambda: mx.Prodigy(linear()), lambda: prodigy(falling)),
    "Prodigy-safeguard": (
        lambda: mx.Prodigy(linear(), estim_lr0=0.1, safeguard_warmup=True),
        lambda: prodigy(falling, d=0.1, safeguard=True),
    ),
    "Prodigy-paper": (
        lambda: mx.Prodigy(eps=1e-4, estim_lr0=1e-2, follow="paper"),
        lambda: prodigy(eps=1e-4, d=1e-2, as_in_paper=True),
    ),
    "DAdaptAdamW": (mx.DAdaptAdamW, dadapt),
    "DAdaptAdamW-paper": (
        lambda: mx.DAdaptAdamW(linear(), (0.8, 0.99), 1e-4, 1e-2, 0.1, follow="paper"),
        lambda: dadapt(falling, 0.8, 0.99, 1e-4, 1e-2, 0.1, as_in_paper=True),
    ),
    "DAdaptAdamW-numbers": (
        lambda: mx.DAdaptAdamW(linear(), (0.8, 0.99), 1e-4, 1e-2, 0.1),
        lambda: dadapt(falling, 0.8, 0.99, 1e-4, 1e-2, 0.1),
    ),
    "DoG": (mx.DoG, lambda: dog(r=heuristic(1e-6))),
    "DoG-distance": (
        lambda: mx.DoG(0.5, ("distance", 0.2), 1e-2, 0.1),
        lambda: dog(0.5, r=0.2, eps=1e-2, decay=0.1),
    ),
    "DoG-learning_rate": (lambda: mx.DoG(init_step=("learning_rate", 1e-3)), lambda: dog(first=1e-3)),
    "DoWG": (mx.DoWG, dowg),
    "DoWG-numbers": (lambda: mx.DoWG(0.5, 0.1, 1e-2), lambda: dowg(0.5, 0.1, 1e-2)),
    "ScaleByDistanceOverGradients": (  # of one array, the norms of an array are those of all
        lambda: mx.ScaleByDistanceOverGradients(1e-3, 1e-2, jnp.float64, -0.5),
        lambda: dog(0.5, r=heuristic(1e-3), eps=1e-2),
    ),
    "COCOB": (mx.COCOB, cocob),
    "COCOB-numbers": (lambda: mx.COCOB(2.0, 10.0, 1e-2, 0.1), lambda: cocob(10.0, 1e-2, 0.1, 2.0)),
    "PolyakSGD": (mx.PolyakSGD, polyak),
    "PolyakSGD-numbers": (
        lambda: mx.PolyakSGD(1e-4, 0.5, 2.5, 0.1),
        lambda: polyak(1e-4, 0.5, 2.5, 0.1),
    ),
    "PolyakSGD-plus": (lambda: mx.PolyakSGD(f_min=2.9, variant="sps+"), lambda: polyak(f_min=2.9, plus=True)),
    "MoMo": (mx.MoMo, momo),
    "MoMo-numbers": (lambda: mx.MoMo(1e-3, 0.5, 1.0, 0.1), lambda: momo(1e-3, 0.5, 1.0, 0.1)),
    "MoMo-bound": (lambda: mx.MoMo(0.1, 0.8, 1.0, 0.1, True), lambda: momo(0.1, 0.8, 1.0, 0.1, True)),
    "MoMoAdam": (mx.MoMoAdam, momo_adam),
    "MoMoAdam-numbers": (
        lambda: mx.MoMoAdam(0.1, 0.5, 0.9, 1e-3, 1.0, 0.1),
        lambda: momo_adam(0.1, 0.5, 0.9, 1e-3, 1.0, 0.1),
    ),
    "MoMoAdam-bound": (
        lambda: mx.MoMoAdam(1.0, lower_bound=1.0, weight_decay=0.1, adapt_lower_bound=True),
        lambda: momo_adam(1.0, bound=1.0, decay=0.1, adapts=True),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_equals_its_equations(name: str):
    make, transcription = CASES[name]
    np.testing.assert_allclose(points(make(), value=loss), np.stack(list(transcription())), rtol=1e-12)


# --- What optax does otherwise ---------------------------------------------------------------------

OTHERWISE: dict[str, tuple[Callable[..., Any], Callable[[], Any]]] = {
    "Prodigy": (lambda **how: mx.Prodigy(estim_lr0=0.1, **how), lambda: contrib.prodigy(estim_lr0=0.1)),
    "DAdaptAdamW": (lambda **how: mx.DAdaptAdamW(estim_lr0=0.1, **how), lambda: contrib.dadapt_adamw(estim_lr0=0.1)),
    "MoMo": (lambda **how: mx.MoMo(weight_decay=0.1, **how), lambda: contrib.momo(weight_decay=0.1)),
    "MoMoAdam": (
        lambda **how: mx.MoMoAdam(1.0, weight_decay=0.1, **how),
        lambda: contrib.momo_adam(1.0, weight_decay=0.1),
    ),
    "PolyakSGD": (lambda **how: mx.PolyakSGD(scaling=0.5, **how), lambda: optax.polyak_sgd(scaling=0.5)),
}


@pytest.mark.parametrize("name", OTHERWISE)
def test_what_optax_does_otherwise(name: str):
    make, twin = OTHERWISE[name]
    with settings.jax_defaults():
        theirs = points(optax.with_extra_args_support(twin()), value=loss)
    np.testing.assert_allclose(points(make(follow="optax"), value=loss), theirs, rtol=1e-9)
    assert np.max(np.abs(points(make(), value=loss) - theirs)) > 1e-4


@pytest.mark.parametrize("make", [mx.Prodigy, mx.DAdaptAdamW, mx.MoMo, mx.MoMoAdam, mx.PolyakSGD])
def test_an_unknown_source_is_refused(make: Any):
    with pytest.raises(ValueError, match=r"follow=.*'paper'.*'optax'"):
        make().replace(follow="keras")


# --- What follows from the equations ---------------------------------------------------------------


def _run(transform: Any, gradient: Callable[[Any], Any], w: Any, steps: int = 60) -> np.ndarray:
    state, out = transform.init(w), []
    for _ in range(steps):
        w, state = transform.step(gradient(w), state, w)
        out.append(np.asarray(w))
    return np.stack(out)


def _quadratic(x: Any) -> Any:
    return jnp.geomspace(0.1, 10, 4) * x


SCALED: dict[str, Callable[[float], Any]] = {
    "Prodigy": lambda c: mx.Prodigy(eps=0.0, estim_lr0=c * 1e-3),
    "DAdaptAdamW": lambda c: mx.DAdaptAdamW(eps=0.0, estim_lr0=c * 1e-3),
    "DoG": lambda c: mx.DoG(init_step=("distance", c * 1e-3), eps=0.0),
    "DoWG": lambda c: mx.DoWG(init_estim_sq_dist=(c * 1e-3) ** 2, eps=0.0),
}


@pytest.mark.parametrize("name", SCALED)
def test_the_scale_of_the_parameters_does_not_matter(name: str):
    """In other units of w, with the first guess in these units too, the way is the same."""
    w = jnp.asarray([1.0, -2.0, 0.5, 3.0])
    expected = _run(SCALED[name](1.0), _quadratic, w)
    found = _run(SCALED[name](1e3), lambda x: _quadratic(x / 1e3) / 1e3, 1e3 * w)
    np.testing.assert_allclose(found, 1e3 * expected, rtol=1e-8)


@pytest.mark.parametrize("name", SCALED)
def test_the_scale_of_the_loss_does_not_matter(name: str):
    w = jnp.asarray([1.0, -2.0, 0.5, 3.0])
    expected = _run(SCALED[name](1.0), _quadratic, w)
    np.testing.assert_allclose(_run(SCALED[name](1.0), lambda x: 1e6 * _quadratic(x), w), expected, rtol=1e-8)


def test_the_first_guess_of_prodigy_is_forgotten():
    """Five orders of magnitude apart, both find the distance to the solution within a factor of two."""
    w = jnp.asarray([1.0, -2.0, 0.5, 3.0])
    for estim_lr0 in (1e-7, 1e-2):
        transform = mx.Prodigy(estim_lr0=estim_lr0)
        state, x = transform.init(w), w
        for _ in range(300):
            x, state = transform.step(_quadratic(x), state, x)
        assert 1.0 < float(state.inner.estim_lr) < 4.0  # the largest entry of w is 3


def test_polyak_solves_a_line_in_one_step():
    """On |w| the step leads to the minimum, whatever the slope."""
    for slope in (1e-3, 1.0, 1e4):
        transform = mx.PolyakSGD(max_learning_rate=np.inf)
        w = jnp.asarray([3.0])
        w, _ = transform.step(slope * jnp.sign(w), transform.init(w), w, value=slope * jnp.abs(w[0]))
        np.testing.assert_allclose(w, 0, atol=1e-12)


def test_momo_without_momentum_is_polyak():
    expected = points(mx.PolyakSGD(0.5, variant="sps+", f_min=2.0), value=loss)
    np.testing.assert_allclose(points(mx.MoMo(0.5, 0.0, 2.0), value=loss), expected, rtol=1e-10)


def test_polyak_plus_never_ascends():
    g = jnp.asarray(gradients()[0])
    ascends, stays = (mx.PolyakSGD(f_min=5.0, variant=v) for v in ("sps", "sps+"))
    assert jnp.vdot(g, ascends.update(g, ascends.init(g), g, value=1.0)[0]) > 0
    assert not np.any(stays.update(g, stays.init(g), g, value=1.0)[0])


def test_a_mask_keeps_the_decay_of_prodigy_from_some():
    params = {"kernel": jnp.ones(3), "bias": jnp.ones(3)}
    grads = jtu.tree_map(lambda p: 0.5 * p, params)
    masks = {"all": None, "kernel": mx.by_path({"bias": False, "*": True}), "none": mx.by_path({"*": False})}
    found = {}
    for name, mask in masks.items():
        transform = mx.Prodigy(estim_lr0=0.1, weight_decay=0.3, mask=mask)
        found[name], _ = transform.update(grads, transform.init(params), params)
    np.testing.assert_array_equal(found["kernel"]["kernel"], found["all"]["kernel"])
    np.testing.assert_array_equal(found["kernel"]["bias"], found["none"]["bias"])
    np.testing.assert_allclose(found["all"]["bias"], found["none"]["bias"] - 0.1 * 0.3, rtol=1e-12)


def test_the_estimate_is_of_all_arrays_together():
    """Two arrays are as one that holds both; the layer-wise method is not."""
    whole, parts = jnp.asarray(start()), {"a": jnp.asarray(start()[:3]), "b": jnp.asarray(start()[3:])}
    for make, is_global in ((mx.Prodigy, True), (mx.DAdaptAdamW, True), (mx.DoG, True), (mx.DoWG, True),
                            (lambda: mx.ScaleByDistanceOverGradients(global_scale=-1.0), False)):  # fmt: skip
        one, two = make(), make()
        state, states, w, ws = one.init(whole), two.init(parts), whole, parts
        for g in gradients()[:20]:
            w, state = one.step(jnp.asarray(g), state, w)
            ws, states = two.step({"a": jnp.asarray(g[:3]), "b": jnp.asarray(g[3:])}, states, ws)
        assert np.allclose(np.concatenate([ws["a"], ws["b"]]), w, rtol=1e-10, atol=0) == is_global


# --- Hyperparameters -------------------------------------------------------------------------------


def test_betas_are_numbers_like_any_other():
    transform = mx.Prodigy(betas=(schedules.Linear(0.5, 0.9, 10), 0.99))
    assert {"betas.0", "betas.0.init_value", "betas.1"} <= transform.addresses().keys()
    constant = transform.replace(**{"betas.0": 0.8})
    np.testing.assert_allclose(points(constant), points(mx.Prodigy(betas=(0.8, 0.99))), rtol=1e-14)
    assert np.max(np.abs(points(transform) - points(constant))) > 0
    w = jnp.ones(2)
    assert float(transform.hyperparameters(transform.init(w))["betas.0"]) == 0.5
    for wrong in (0.9, (0.9,), (0.9, 1.5), (0.9, "x")):
        with pytest.raises(ValueError, match=r"Prodigy\(betas=\.\.\.\)"):
            mx.Prodigy(betas=wrong)  # pyright: ignore[reportArgumentType]


def test_the_first_step_of_dog_is_a_number_like_any_other():
    transform = mx.DoG(init_step=("distance", 0.1))
    assert transform.hyperparameters()["init_step.value"] == 0.1
    changed = transform.replace(**{"init_step.value": 0.2})
    np.testing.assert_array_equal(points(changed), points(mx.DoG(init_step=mx.InitialStep("distance", 0.2))))
    assert mx.ScaleByDoG(["distance", 0.2]).init_step == changed.init_step
    with pytest.raises(ValueError, match=r"`DoG\(init_step=...\)` must be a pair"):
        mx.DoG(init_step=0.1)
    with pytest.raises(ValueError, match=r"InitialStep.*'heuristic'"):
        transform.init_step.replace(kind="far")


@pytest.mark.parametrize("make", [mx.PolyakSGD, mx.MoMo, mx.MoMoAdam])
def test_a_missing_loss_is_asked_for(make: Any):
    transform, w = make(), jnp.ones(2)
    with pytest.raises(ValueError, match="value="):
        transform.update(w, transform.init(w), w)
