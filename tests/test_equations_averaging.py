"""Averages, look-ahead, adversaries and a scale that is found: the equations in NumPy, and optax over 60 steps."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import optax
import pytest

import modulax as mx
from modulax import schedules

from .instances.averaging import PlainLookahead, adversary, optax_adversary
from .settings import jax_defaults
from .test_parity import assert_close, trajectory, tree
from .transcriptions import ETA, STEPS, Points, gradients, points, start

pytestmark = pytest.mark.usefixtures("x64")


# --- Defazio et al. 2024, equations 3 to 5, algorithm 1, and the authors' package ------------------


def constant(t: int) -> float:
    del t
    return ETA


def rising_and_falling(t: int) -> float:
    return ETA * min(t / 10, 1.0, (STEPS + 5 - t) / 20)


def schedule_free(b1: float = 0.9, power: float = 2.0, rate: Callable[[int], float] = constant) -> Points:
    x = z = start()
    total = largest = 0.0
    for t, g in enumerate(gradients(), 1):
        z = z - rate(t) * g
        largest = max(largest, rate(t))
        total += largest**power
        c = largest**power / total
        x = (1 - c) * x + c * z
        yield (1 - b1) * z + b1 * x


def schedule_free_adamw(
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    decay: float = 0.0,
    warmup: int = 0,
    as_in_paper: bool = False,
) -> Points:
    x = z = start()
    v, total = 0.0, 0.0
    for t, g in enumerate(gradients(), 1):
        y = (1 - b1) * z + b1 * x
        v = b2 * v + (1 - b2) * g**2
        corrected = 1 - b2**t
        rate = ETA * (min(1.0, t / warmup) if warmup else 1.0) * (np.sqrt(corrected) if as_in_paper else 1.0)
        z = z - rate * g / (np.sqrt(v if as_in_paper else v / corrected) + eps) - rate * decay * y
        total += rate**2
        c = rate**2 / total
        x = (1 - c) * x + c * z
        yield (1 - b1) * z + b1 * x


# --- Zhang et al. 2019, algorithm 1 -----------------------------------------------------------------


def lookahead(k: int, alpha: float, momentum: float = 0.0) -> Points:
    slow = fast = start()
    v = 0.0
    for t, g in enumerate(gradients(), 1):
        v = momentum * v + g
        fast = fast - ETA * v
        if t % k == 0:
            slow = slow + alpha * (fast - slow)
            fast = slow
        yield fast


# --- Foret et al. 2020, equation 2 and algorithm 1 --------------------------------------------------


def sam(rho: float) -> Points:
    w = start()
    for near, far in zip(gradients()[::2], gradients()[1::2], strict=True):
        yield w + rho * near / np.linalg.norm(near)
        w = w - ETA * far
        yield w


# --- Cutkosky, Defazio and Mehta 2023, algorithm 1, and the authors' code ---------------------------


def mechanic(
    decay: float = 1e-2, eps: float = 1e-8, s_init: float = 1e-6, n: int = 6, as_in_paper: bool = False
) -> Points:
    beta = 1 - 0.1 ** np.arange(1, n + 1)
    reference, delta, x = start(), np.zeros_like(start()), start()
    v, r, s = (np.zeros(n) for _ in range(3))
    m = np.zeros(n) if as_in_paper else np.full(n, 1e-6)
    for g in gradients():
        at = x if as_in_paper else x - ETA * g
        h = delta @ (g + decay * np.sum(s) * np.linalg.norm(g) * at / (np.linalg.norm(at) + eps))
        delta = delta - ETA * g
        m = np.maximum(beta * m, abs(h))
        v = beta**2 * v + h**2
        r = np.maximum(0, beta * r - s * h)
        s = (s_init / n * m + r) / (np.sqrt(v) + eps)
        x = reference + np.sum(s) * delta
        yield x


class _RisingAndFalling(mx.AbstractSchedule):
    def __call__(self, step: Any) -> Any:
        t = jnp.asarray(step).astype(float) + 1
        return ETA * jnp.minimum(jnp.minimum(t / 10, 1.0), (STEPS + 5 - t) / 20)


CASES: dict[str, tuple[Callable[[], Any], Callable[[], Points]]] = {
    "ScheduleFree": (lambda: mx.ScheduleFree(mx.SGD(ETA), ETA), schedule_free),
    "ScheduleFree-mean": (lambda: mx.ScheduleFree(mx.SGD(ETA), ETA, 1.0, 0.0), lambda: schedule_free(1.0, 0.0)),
    "ScheduleFree-points": (lambda: mx.ScheduleFree(mx.SGD(ETA), ETA, 0.0, 1.0), lambda: schedule_free(0.0, 1.0)),
    "ScheduleFree-scheduled": (
        lambda: mx.ScheduleFree(mx.SGD(_RisingAndFalling()), _RisingAndFalling(), 0.8),
        lambda: schedule_free(0.8, rate=rising_and_falling),
    ),
    "ScheduleFreeSGD": (
        lambda: mx.ScheduleFreeSGD(ETA, 10, weight_lr_power=1.0),
        lambda: schedule_free(power=1.0, rate=lambda t: ETA * min(1.0, t / 10)),
    ),
    "ScheduleFreeAdamW": (lambda: mx.ScheduleFreeAdamW(ETA), schedule_free_adamw),
    "ScheduleFreeAdamW-all": (
        lambda: mx.ScheduleFreeAdamW(ETA, 10, 0.95, 0.99, 1e-6, 0.1),
        lambda: schedule_free_adamw(0.95, 0.99, 1e-6, 0.1, 10),
    ),
    "ScheduleFreeAdamW-paper": (
        lambda: mx.ScheduleFreeAdamW(ETA, 10, 0.95, 0.99, 1e-6, 0.1, follow="paper"),
        lambda: schedule_free_adamw(0.95, 0.99, 1e-6, 0.1, 10, as_in_paper=True),
    ),
    "Lookahead": (lambda: mx.Lookahead(mx.SGD(ETA, 0.9), 5, 0.5), lambda: lookahead(5, 0.5, 0.9)),
    "SAM": (
        lambda: mx.SAM(mx.SGD(ETA), mx.Chain(mx.Normalize(), mx.SGD(0.05))),
        lambda: sam(0.05),
    ),
    "Mechanize": (lambda: mx.Mechanize(mx.SGD(ETA)), mechanic),
    "Mechanize-all": (
        lambda: mx.Mechanize(mx.SGD(ETA), 0.5, 1e-6, 1e-2, 3),
        lambda: mechanic(0.5, 1e-6, 1e-2, 3),
    ),
    "Mechanize-paper": (
        lambda: mx.Mechanize(mx.SGD(ETA), 0.5, 1e-6, 1e-2, 3, follow="paper"),
        lambda: mechanic(0.5, 1e-6, 1e-2, 3, as_in_paper=True),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_equations(name: str):
    make, transcription = CASES[name]
    expected = np.stack(list(transcription()))
    np.testing.assert_allclose(points(make()), expected, rtol=1e-12, atol=1e-12 * np.max(np.abs(expected)))


# --- optax, over 60 steps ---------------------------------------------------------------------------


def rate_of_optax(step: Any) -> Any:
    return 0.05 * jnp.minimum((jnp.asarray(step).astype(float) + 1) / 10, 1.0)


TWINS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "ScheduleFree": (
        lambda: mx.ScheduleFree(mx.Chain(mx.AddDecayedWeights(0.1), mx.SGD(0.05)), 0.05, 0.8, 1.5),
        lambda: optax.contrib.schedule_free(
            optax.chain(optax.add_decayed_weights(0.1), optax.sgd(0.05)), 0.05, 0.8, 1.5
        ),
    ),
    "ScheduleFree-scheduled": (
        lambda: mx.ScheduleFree(mx.SGD(rate_of_optax), rate_of_optax, follow="optax"),
        lambda: optax.contrib.schedule_free(optax.sgd(rate_of_optax), rate_of_optax),
    ),
    "ScheduleFreeSGD": (
        lambda: mx.ScheduleFreeSGD(0.05, weight_decay=0.1, follow="optax"),
        lambda: optax.contrib.schedule_free_sgd(0.05, weight_decay=0.1),
    ),
    "ScheduleFreeAdamW": (
        lambda: mx.ScheduleFreeAdamW(0.05, weight_decay=0.1, follow="optax"),
        lambda: optax.contrib.schedule_free_adamw(0.05, weight_decay=0.1),
    ),
    "Lookahead": (
        lambda: mx.Lookahead(mx.SGD(0.05, 0.9), 5, 0.5),
        lambda: PlainLookahead(optax.sgd(0.05, 0.9), 5, 0.5),
    ),
    "SAM": (
        lambda: mx.SAM(mx.SGD(0.05, 0.9), adversary(), 4, reset_state=False),
        lambda: optax.contrib.sam(optax.sgd(0.05, 0.9), optax_adversary(), 4, reset_state=False),
    ),
    "Mechanize": (lambda: mx.Mechanize(mx.SGD(1.0), follow="optax"), lambda: optax.contrib.mechanize(optax.sgd(1.0))),
}


@pytest.mark.parametrize("name", TWINS)
def test_sixty_steps_as_in_optax(name: str):
    ours, theirs = TWINS[name]
    updates = trajectory(ours(), steps=60)
    with jax_defaults():
        twin = trajectory(theirs(), steps=60)
    assert_close(updates, twin, 1e-12)


def _paired(transform: Any, params: Any, steps: int = 60) -> Any:
    """The parameters after each step, of a transform that takes a pair."""

    def body(carry: Any, noise: Any) -> Any:
        params, state = carry
        grads = jtu.tree_map(lambda p, n: 0.5 * p + n, params.fast, noise)
        updates, state = transform.update(grads, state, params)
        params = jtu.tree_map(jnp.add, params, updates)
        return (params, state), (params.fast, params.slow)

    noise = jtu.tree_map(lambda *x: jnp.stack(x), *(tree(1 + i) for i in range(steps)))
    return jax.jit(lambda c, n: jax.lax.scan(body, c, n)[1])((params, transform.init(params)), noise)


def test_a_pair_goes_where_it_goes_in_optax():
    for reset in (False, True):
        ours = _paired(mx.Lookahead(mx.SGD(0.05, 0.9), 5, 0.5, reset), mx.LookaheadParams.init_synced(tree(0)))
        with jax_defaults():
            twin = optax.lookahead(optax.sgd(0.05, 0.9), 5, 0.5, reset)
            theirs = _paired(twin, optax.LookaheadParams.init_synced(tree(0)))
        assert_close(ours, theirs, 1e-12)


def _curved(params: Any) -> Any:
    return sum((jnp.sum(jnp.sqrt(1 + p**2)) for p in jtu.tree_leaves(params)), jnp.zeros(()))


def test_an_opaque_round_is_as_in_optax():
    def extra(params: Any, grads: Any) -> Any:
        del params, grads
        return {"grad_fn": lambda params, i: jax.grad(lambda p: (1 + i) * _curved(p))(params)}

    ours = trajectory(mx.SAM(mx.SGD(0.05, 0.9), adversary(), 3, opaque_mode=True), extra, steps=60)
    with jax_defaults():
        twin = optax.contrib.sam(optax.sgd(0.05, 0.9), optax_adversary(), 3, opaque_mode=True)
        theirs = trajectory(twin, extra, steps=60)
    assert_close(ours, theirs, 1e-12)


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


def test_the_first_step_of_mechanic_in_the_paper_looks():
    ours, theirs = mx.Mechanize(mx.SGD(1.0)), optax.contrib.mechanize(optax.sgd(1.0))
    reference, paper, twin = _first_updates([ours, ours.replace(follow="paper"), theirs], 10)
    assert not np.any(paper[0])
    assert np.all(reference[0])
    assert np.all(twin[0])
    for other in (paper, twin):
        assert np.max(np.abs(reference - other)) > 1e-3 * np.max(np.abs(twin))


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
