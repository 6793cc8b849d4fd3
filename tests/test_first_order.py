"""What only one optimizer with another momentum, or another weight decay, can get wrong."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import modulax as mx
from modulax import schedules

W = np.array([1.0, -2.0])
G = np.array([0.5, 0.5])


def run(optimizer: Any, steps: int, w: Any = W, g: Any = G) -> list[Any]:
    """The parameters before the first and after each step, for a constant gradient."""

    @jax.jit
    def trained(w: Any, optimizer: Any) -> Any:
        def body(carry: Any, _: Any) -> Any:
            new = optimizer.step(g, carry[1], carry[0])
            return new, new[0]

        return jax.lax.scan(body, (w, optimizer.init(w)), None, steps)[1]

    return [w, *np.asarray(trained(jnp.asarray(w, jnp.float32), optimizer))]


def test_peak_of_a_schedule():
    rate = schedules.WarmupCosineDecay(0.0, 0.1, 3, 20)
    points = run(mx.AdamC(rate, weight_decay=0.5), 10)
    np.testing.assert_allclose(points[-1], run(mx.AdamC(rate, weight_decay=0.5, peak=0.1), 10)[-1], rtol=1e-4)
    np.testing.assert_allclose(points[-1], run(mx.AdamW(rate, weight_decay=5 * rate), 10)[-1], rtol=1e-4)


def test_a_peak_that_cannot_be_found():
    table = jnp.ones(3)
    with pytest.raises(ValueError, match=r"`AdamC\(peak=...\)` is needed: the highest value of `WrappedSchedule` "):
        mx.AdamC(lambda step: table[step]).init(W)
    with pytest.raises(ValueError, match=r"`AdamC\(peak=...\)` is needed: the highest value of `ReduceOnLoss` "):
        mx.AdamC(ReduceOnLoss())


class ReduceOnLoss(mx.AbstractStatefulSchedule):
    """A schedule of which only its course tells the highest value."""

    def init(self) -> Any:
        return jnp.ones(())

    def update(self, state: Any, **extra: Any) -> Any:
        del extra
        return 0.5 * state

    def __call__(self, state: Any, **extra: Any) -> Any:
        del extra
        return state


def test_a_rate_of_zero():
    """LaProp and FTRL divide by learning rates; neither moves until these are positive, nor remembers such steps."""
    for cls in (mx.LaProp, mx.FTRL):
        late = run(cls(lambda step: jnp.where(step < 3, 0.0, 0.1)), 6)
        assert all(np.array_equal(point, W) for point in late[:4])
        if cls is mx.FTRL:
            np.testing.assert_allclose(late[4:], run(cls(0.1), 3)[1:], rtol=1e-6)


def test_weights_that_were_learned_stay_when_the_rate_falls():
    """Unlike in Keras, where FTRL shrinks all of them with the rate."""
    points = run(mx.FTRL(schedules.Linear(1.0, 1e-6, 20)), 40, g=np.array([0.0, 1e-9]))
    np.testing.assert_allclose(points[-1], points[20], rtol=1e-5)


def test_decay_rates_of_aggmo():
    wrong: Any = ((), 0.9)
    for betas in wrong:
        with pytest.raises(ValueError, match="`betas` must be one decay rate or several, such as"):
            mx.AggMo(0.1, betas)


def test_kinds_of_parameters_in_tiger():
    params: Any = {
        "embedding": {"embedding": jnp.asarray([[1.0, -1.0], [2.0, 2.0]])},
        "dense": {"kernel": jnp.asarray([[1.0, -1.0], [1.0, 5.0]]), "bias": jnp.zeros(2)},
        "norm": {"scale": jnp.ones(2)},
    }
    grads = jax.tree.map(jnp.ones_like, params)
    optimizer = mx.Tiger(0.1, weight_decay=0.0)
    steps, state = optimizer.update(grads, optimizer.init(params), params)
    np.testing.assert_allclose(steps["embedding"]["embedding"], [[-0.1] * 2, [-0.2] * 2], rtol=1e-6)
    np.testing.assert_allclose(steps["dense"]["kernel"], np.full((2, 2), -0.1 * 7**0.5), rtol=1e-6)
    np.testing.assert_allclose([steps["dense"]["bias"], steps["norm"]["scale"]], np.full((2, 2), -0.05), rtol=1e-6)
    assert not any("head" in note for note in mx.describe(optimizer, params, state).notes)


def test_rate_of_averaged_sgd_in_force():
    optimizer = mx.ASGD(0.1, 0.5, start=2)
    state = optimizer.init(W)
    for _ in range(3):
        _, state = optimizer.update(G, state, W)
    assert optimizer.metrics(state)["learning_rate"] == pytest.approx(0.1 / (1 + 0.5 * 0.1 * 2) ** 0.75)


def test_peaks_at_a_few_steps_only():
    """Also of a schedule in a `Join`, whose steps are counted from where it begins."""
    short = schedules.PiecewiseConstant(1e-3, {10_000: 10.0, 10_020: 0.1})
    for rate in (short, schedules.Join([schedules.Linear(0.0, 1e-3, 500), short], [500])):
        assert mx.AdamC(rate)._completed().peak == pytest.approx(1e-2)


def test_a_negative_rate_has_a_peak():
    """With a constant rate it is AdamW, also to maximize; and a falling one loses its decay with its square."""
    same = [run(cls(-0.1, weight_decay=0.1), 3) for cls in (mx.AdamC, mx.AdamW)]
    np.testing.assert_allclose(*same, rtol=1e-6)
    first, second = run(mx.AdamC(schedules.Linear(-0.1, -0.05, 1), weight_decay=0.1), 2, g=0 * G)[1:]
    np.testing.assert_allclose(first, W * (1 + 0.01), rtol=1e-6)
    np.testing.assert_allclose(second, first * (1 + 0.0025), rtol=1e-6)


def test_what_multiplies_the_steps_of_averaged_sgd_is_written_inside():
    """Nothing that a user writes is inside `ASGD`."""
    params = {"layers": [{"w": jnp.ones(2)}, {"w": jnp.ones(2)}]}
    with pytest.raises(ValueError, match=r"Write `groups\(ASGD\(\.\.\.\), \{\.\.\.\}\)`"):
        mx.layerwise_decay(mx.ASGD(), params, 0.5)
