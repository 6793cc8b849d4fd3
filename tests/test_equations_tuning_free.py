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
from .transcriptions import Cases, Points, assert_equations, gradients, points, start

pytestmark = pytest.mark.usefixtures("x64")
contrib = optax.contrib


def loss(w: Any) -> Any:
    """A loss between 2 and 3, for methods that are given one."""
    return 2 + (w**2).sum() / (1 + (w**2).sum())


# --- Mishchenko and Defazio 2023, algorithm 4 -------------------------------------------------------


def falling(t: int) -> float:
    return 1.0 - 0.9 * min(t / 20, 1)


def linear() -> schedules.Linear:
    """The same curve, made where numbers are in double precision."""
    return schedules.Linear(1.0, 0.1, 20)


def prodigy(eps: float, d: float) -> Points:
    w, w0, b3 = start(), start(), np.sqrt(0.999)
    m, v, r, s = 0.0, 0.0, 0.0, np.zeros_like(w)
    for t, g in enumerate(gradients()):
        m = 0.9 * m + 0.1 * d * g
        v = 0.999 * v + 0.001 * d**2 * g**2
        r = b3 * r + (1 - b3) * falling(t) * d**2 * np.dot(g, w0 - w)
        s = b3 * s + (1 - b3) * falling(t) * d**2 * g
        w = w - falling(t) * d * m / (np.sqrt(v) + d * eps)
        d = max(d, r / np.abs(s).sum())
        yield w


# --- Defazio and Mishchenko 2023, Adam with D-Adaptation --------------------------------------------


def dadapt(b1: float, b2: float, eps: float, d: float, decay: float) -> Points:
    w, m, v, r, root = start(), 0.0, 0.0, 0.0, np.sqrt(b2)
    s = np.zeros_like(w)
    for t, g in enumerate(gradients()):
        eta = falling(t)
        m = b1 * m + (1 - b1) * d * eta * g
        v = b2 * v + (1 - b2) * g**2
        r = root * r + (1 - root) * d * eta * np.dot(g, s / (np.sqrt(v) + eps))
        s = root * s + (1 - root) * d * eta * g
        w = w - m / (np.sqrt(v) + eps) - d * eta * decay * w
        d = max(d, r / ((1 - root) * np.abs(s).sum()))
        yield w


# --- Loizou et al. 2020, SPS_max; Garrigos et al. 2023 ---------------------------------------------


def polyak(longest: float, s: float, f_min: float, eps: float, plus: bool = False) -> Points:
    w = start()
    for g in gradients():
        gap = loss(w) - f_min
        gap = max(gap, 0.0) if plus else gap
        w = w - s * min(gap / (np.sum(g**2) + eps), longest) * g
        yield w


DADAPT = ((0.8, 0.99), 1e-4, 1e-2, 0.1)
CASES: Cases = {
    "Prodigy-paper": (
        lambda: mx.Prodigy(linear(), eps=1e-4, estim_lr0=1e-2, follow="paper"),
        lambda: prodigy(1e-4, 1e-2),
    ),
    "DAdaptAdamW-paper": (
        lambda: mx.DAdaptAdamW(linear(), *DADAPT, follow="paper"),
        lambda: dadapt(*DADAPT[0], *DADAPT[1:]),
    ),
    "PolyakSGD": (lambda: mx.PolyakSGD(1e-4, 0.5, 2.5, 0.1), lambda: polyak(1e-4, 0.5, 2.5, 0.1)),
    "PolyakSGD-plus": (
        lambda: mx.PolyakSGD(f_min=2.9, variant="sps+"),
        lambda: polyak(1.0, 1.0, 2.9, 0.0, plus=True),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_equals_its_equations(name: str):
    assert_equations(CASES[name], value=loss)


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


# --- What follows from the equations ---------------------------------------------------------------


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
