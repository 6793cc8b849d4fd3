"""Contributed adaptive methods and sign methods against their equations, and against what follows from them."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import modulax as mx

from . import settings
from .transcriptions import ETA, Cases, Points, assert_equations, gradients, moments, start, updates

pytestmark = pytest.mark.usefixtures("x64")


# --- Morwani et al. 2025, the algorithm of section 5 -----------------------------------------------------------------


def simplified(alpha: float, b1: float, b2: float, eps: float, decay: float) -> Points:
    w, momentum = start(), 0.0
    for t, g, _, v in moments(b1, b2):
        momentum = b1 * momentum + g
        w = w - ETA * ((momentum + alpha * g) / (np.sqrt(v / (1 - b2**t)) + eps) + decay * w)
        yield w


# --- Bernstein et al. 2018, algorithms 1 and 2 -----------------------------------------------------------------------


def sign(beta: float) -> Points:
    w = start()
    for _, _, m, _ in moments(beta, 0.0):
        w = w - ETA * np.sign(m)
        yield w


CASES: Cases = {
    "SimplifiedAdEMAMix": (
        lambda: mx.SimplifiedAdEMAMix(ETA, 0.9, 0.99, 3.0, 1e-3, weight_decay=0.1),
        lambda: simplified(3.0, 0.9, 0.99, 1e-3, 0.1),
    ),
    "SignSGD": (lambda: mx.SignSGD(ETA), lambda: sign(0.0)),
    "Signum": (lambda: mx.Signum(ETA), lambda: sign(0.9)),
}


@pytest.mark.parametrize("name", CASES)
def test_equals_its_equations(name: str):
    assert_equations(CASES[name])


# --- What differs from optax -----------------------------------------------------------------------------------------


def test_rprop_steps_at_once():
    """In the paper the first gradient moves the parameters; with optax, the second gradient makes the first step."""
    grads = jnp.asarray([[1.0, -2.0], [3.0, -1.0], [0.5, -0.1]])
    ours = updates(mx.Rprop(0.1), grads)
    with settings.jax_defaults():
        theirs = updates(optax.rprop(0.1), grads)
    np.testing.assert_allclose(ours[0], [-0.1, 0.1])
    np.testing.assert_array_equal(theirs[0], [0.0, 0.0])
    np.testing.assert_allclose(ours[:-1], theirs[1:])
    np.testing.assert_allclose(updates(mx.Rprop(0.1, follow="optax"), grads), theirs)


def test_acprop_deviates_from_the_new_mean():
    """g - m_t is b1 (g - m_{t-1}): without eps, optax's later steps are b1 times ours."""
    numbers: dict[str, Any] = {"b1": 0.7, "b2": 0.9, "eps": 0.0, "eps_root": 0.0}
    ours = updates(mx.ACProp(ETA, **numbers), jnp.asarray(gradients()))
    with settings.jax_defaults():
        theirs = updates(optax.contrib.acprop(ETA, **numbers), jnp.asarray(gradients()))
    np.testing.assert_allclose(theirs[0], ours[0])
    np.testing.assert_allclose(theirs[1:], 0.7 * np.asarray(ours[1:]), rtol=1e-12)


# --- What follows from the equations ---------------------------------------------------------------------------------


def test_the_sign_of_a_complex_number_is_its_direction():
    g = jnp.asarray([3 + 4j, 0j, -2j])
    (u,) = updates(mx.ScaleBySign(), g[None])
    np.testing.assert_allclose(u, [0.6 + 0.8j, 0, -1j])


# --- Sound at the edges ----------------------------------------------------------------------------------------------


def test_rprop_sees_the_sign_of_tiny_gradients():
    """The product of two gradients of 1e-30 is zero in float32; optax's step size then stays."""
    grads = jnp.full((3, 2), 1e-30, jnp.float32)
    np.testing.assert_allclose(updates(mx.ScaleByRprop(1e-20, min_step_size=0.0), grads)[2], 1.44e-20, rtol=1e-6)


def test_adopt_seeds_with_any_gradient():
    """Divided by eps it would overflow, and infinity times zero is NaN."""
    grads = jnp.full((2, 1), 1e35, jnp.float32)
    np.testing.assert_array_equal(updates(mx.ADOPT(ETA, use_clipping=False), grads)[0], 0)
