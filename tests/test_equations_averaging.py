"""Averages, look-ahead, adversaries and a scale that is found: the equations in NumPy, and optax over 60 steps."""

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import modulax as mx
from modulax import schedules

from .instances.averaging import adversary, optax_adversary
from .settings import jax_defaults
from .test_parity import assert_close, noise, trajectory, tree
from .transcriptions import ETA, STEPS, Cases, Points, assert_equations, gradients, moments, points, start

pytestmark = pytest.mark.usefixtures("x64")


# --- Defazio et al. 2024, equations 3 to 5, and algorithm 1 -----------------------------------------


def rising_and_falling(t: Any) -> Any:
    return ETA * np.minimum(np.minimum(t / 10, 1.0), (STEPS + 5 - t) / 20)


class RisingAndFalling(mx.AbstractSchedule):
    def __call__(self, step: Any) -> Any:
        t = jnp.asarray(step).astype(float) + 1
        return ETA * jnp.minimum(jnp.minimum(t / 10, 1.0), (STEPS + 5 - t) / 20)


def schedule_free(b1: float, power: float) -> Points:
    x = z = start()
    total = largest = 0.0
    for t, g in enumerate(gradients(), 1):
        z = z - rising_and_falling(t) * g
        largest = max(largest, rising_and_falling(t))
        total += largest**power
        c = largest**power / total
        x = (1 - c) * x + c * z
        yield (1 - b1) * z + b1 * x


def schedule_free_adamw(b1: float, b2: float, eps: float, decay: float, warmup: int) -> Points:
    x = z = start()
    total = 0.0
    for t, g, _, v in moments(0.0, b2):
        y = (1 - b1) * z + b1 * x
        rate = ETA * min(1.0, t / warmup) * np.sqrt(1 - b2**t)
        z = z - rate * g / (np.sqrt(v) + eps) - rate * decay * y
        total += rate**2
        c = rate**2 / total
        x = (1 - c) * x + c * z
        yield (1 - b1) * z + b1 * x


# --- Zhang et al. 2019, algorithm 1 -----------------------------------------------------------------


def lookahead(k: int, alpha: float, momentum: float) -> Points:
    slow = fast = start()
    v = 0.0
    for t, g in enumerate(gradients(), 1):
        v = momentum * v + g
        fast = fast - ETA * v
        if t % k == 0:
            slow = slow + alpha * (fast - slow)
            fast = slow
        yield fast


# --- Cutkosky, Defazio and Mehta 2023, algorithm 1 --------------------------------------------------


def mechanic(decay: float, eps: float, s_init: float, n: int) -> Points:
    beta = 1 - 0.1 ** np.arange(1, n + 1)
    reference, delta, x = start(), np.zeros_like(start()), start()
    m, v, r, s = (np.zeros(n) for _ in range(4))
    for g in gradients():
        h = delta @ (g + decay * np.sum(s) * np.linalg.norm(g) * x / (np.linalg.norm(x) + eps))
        delta = delta - ETA * g
        m = np.maximum(beta * m, abs(h))
        v = beta**2 * v + h**2
        r = np.maximum(0, beta * r - s * h)
        s = (s_init / n * m + r) / (np.sqrt(v) + eps)
        x = reference + np.sum(s) * delta
        yield x


CASES: Cases = {
    "ScheduleFree": (
        lambda: mx.ScheduleFree(mx.SGD(RisingAndFalling()), RisingAndFalling(), 0.8),
        lambda: schedule_free(0.8, 2.0),
    ),
    "ScheduleFreeAdamW-paper": (
        lambda: mx.ScheduleFreeAdamW(ETA, 10, 0.95, 0.99, 1e-6, 0.1, follow="paper"),
        lambda: schedule_free_adamw(0.95, 0.99, 1e-6, 0.1, 10),
    ),
    "Lookahead": (lambda: mx.Lookahead(mx.SGD(ETA, 0.9), 5, 0.5), lambda: lookahead(5, 0.5, 0.9)),
    "Mechanize-paper": (
        lambda: mx.Mechanize(mx.SGD(ETA), 0.5, 1e-6, 1e-2, 3, follow="paper"),
        lambda: mechanic(0.5, 1e-6, 1e-2, 3),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_equals_its_equations(name: str):
    assert_equations(CASES[name])


# --- optax, over 60 steps ---------------------------------------------------------------------------


def rate_of_optax(step: Any) -> Any:
    return 0.05 * jnp.minimum((jnp.asarray(step).astype(float) + 1) / 10, 1.0)


TWINS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "ScheduleFree": (
        lambda: mx.ScheduleFree(mx.SGD(rate_of_optax), rate_of_optax, follow="optax"),
        lambda: optax.contrib.schedule_free(optax.sgd(rate_of_optax), rate_of_optax),
    ),
    "ScheduleFreeSGD": (
        lambda: mx.ScheduleFreeSGD(0.05, weight_decay=0.1, follow="optax"),
        lambda: optax.contrib.schedule_free_sgd(0.05, weight_decay=0.1),
    ),
}


@pytest.mark.parametrize("name", TWINS)
def test_sixty_steps_as_in_optax(name: str):
    ours, theirs = TWINS[name]
    updates = trajectory(ours(), steps=60)
    with jax_defaults():
        twin = trajectory(theirs(), steps=60)
    assert_close(updates, twin, 1e-12)


@pytest.mark.parametrize("reset", [False, True])
def test_a_pair_goes_where_it_goes_in_optax(reset: bool):
    ours = points(mx.Lookahead(mx.SGD(0.05, 0.9), 5, 0.5, reset), mx.LookaheadParams.init_synced(tree(0)), noise(60))
    with jax_defaults():
        twin = optax.lookahead(optax.sgd(0.05, 0.9), 5, 0.5, reset)
        theirs = points(twin, optax.LookaheadParams.init_synced(tree(0)), noise(60))
    assert_close((ours.fast, ours.slow), (theirs.fast, theirs.slow), 1e-12)


# --- Where optax differs ----------------------------------------------------------------------------


def _first_updates(transforms: Sequence[Any], steps: int) -> list[Any]:
    with jax_defaults():
        return [np.asarray(trajectory(t, steps=steps)["dense"]["bias"]) for t in transforms]


def test_the_weights_of_optax_are_those_of_the_next_step():
    """With a warm-up from zero, the first point has a weight before a step was made."""
    rate = schedules.Linear(0.0, 0.05, 10)
    ours = mx.ScheduleFree(mx.SGD(rate), rate)
    like_optax = mx.ScheduleFree(mx.SGD(rate), rate, follow="optax")
    theirs = optax.contrib.schedule_free(optax.sgd(rate), rate)
    paper, followed, twin = _first_updates([ours, like_optax, theirs], 5)
    np.testing.assert_allclose(followed, twin, rtol=1e-6)
    assert np.max(np.abs(paper - twin)) > 0.01 * np.max(np.abs(twin))
    # After the first step that moves, the mean is the point where it led: all that came before has weight zero.
    w = jnp.ones(())
    _, state = ours.update(w, ours.init(w), w)
    update, state = ours.update(w, state, w)
    np.testing.assert_allclose(update, -0.005, rtol=1e-6)


def test_the_warm_up_of_optax_begins_at_zero():
    ours, theirs = mx.ScheduleFreeAdamW(0.05, 10), optax.contrib.schedule_free_adamw(0.05, 10)
    reference, twin = _first_updates([ours, theirs], 10)
    assert np.all(reference[0])
    assert not np.any(twin[0])
    assert np.max(np.abs(reference - twin)) > 0.01 * np.max(np.abs(twin))
    # Without a warm-up they agree, unlike the paper.
    ours, paper = mx.ScheduleFreeAdamW(0.05), mx.ScheduleFreeAdamW(0.05, follow="paper")
    reference, paper, twin = _first_updates([ours, paper, optax.contrib.schedule_free_adamw(0.05)], 10)
    np.testing.assert_allclose(reference, twin, rtol=1e-12)
    assert np.max(np.abs(paper - twin)) > 0.01 * np.max(np.abs(twin))


def test_steps_of_mechanic_far_below_the_parameters_are_not_rounded():
    """Added to the start before the parameters are subtracted, a step of 1e-7 of them would lose its digits."""
    p, g = jnp.full(3, 3.0, jnp.float32), jnp.asarray([0.001, 0.002, 0.003], jnp.float32)
    transform = mx.Mechanize(mx.SGD(1.0))
    u, _ = transform.update(g, transform.init(p), p)
    assert 0 < float(jnp.max(jnp.abs(u))) < 1e-6
    np.testing.assert_allclose(u / u[0], [1, 2, 3], rtol=1e-6)


def test_a_round_of_one_step_forgets_nothing():
    """Without an adversary, SAM is its optimizer."""
    plain, ours, theirs = _first_updates(
        [
            optax.sgd(0.05),
            mx.SAM(mx.SGD(0.05), adversary(), 1),
            optax.contrib.sam(optax.sgd(0.05), optax_adversary(), 1),
        ],
        5,
    )
    np.testing.assert_allclose(ours, plain, rtol=1e-12)
    assert np.max(np.abs(theirs - plain)) > 0.1 * np.max(np.abs(plain))
