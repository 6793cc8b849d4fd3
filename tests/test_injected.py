"""Injected: numbers that live in the state, for callers that hold the optimizer static."""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import modulax as mx
from modulax import schedules

G = jnp.asarray([1.0, -2.0])


def test_the_numbers_can_be_read():
    transform: Any = mx.Injected(mx.AdamW(0.1, b1=0.8))
    numbers = transform.init(G).hyperparameters
    assert isinstance(numbers, mx.AdamW)
    assert numbers.learning_rate == np.float32(0.1)
    assert numbers.b1 == np.float32(0.8)
    assert isinstance(numbers.learning_rate, jax.Array)
    assert transform.hyperparameters(transform.init(G))["inner.learning_rate"] == np.float32(0.1)


def test_the_numbers_in_the_state_rule():
    transform: Any = mx.Injected(mx.SGD(0.1))
    state: Any = transform.init(G)
    state = eqx.tree_at(lambda s: s.hyperparameters.learning_rate, state, jnp.asarray(0.5))
    u, state = transform.update(G, state)
    np.testing.assert_allclose(u, -0.5 * G)
    assert state.hyperparameters.learning_rate == 0.5
    assert transform.hyperparameters(state)["inner.learning_rate"] == 0.5
    state = eqx.tree_at(lambda s: s.hyperparameters, state, state.hyperparameters.replace(learning_rate=2))
    np.testing.assert_allclose(transform.update(G, state)[0], -2 * G)
    u, _ = transform.update(G, transform.init(G))
    np.testing.assert_allclose(u, -0.1 * G, rtol=1e-6)


def test_a_raw_number_in_the_state_is_fine():
    transform: Any = mx.Injected(mx.SGD(0.1))
    state: Any = eqx.tree_at(lambda s: s.hyperparameters.learning_rate, transform.init(G), 0.25)
    u, new_state = transform.update(G, state)
    np.testing.assert_allclose(u, -0.25 * G)
    assert new_state.hyperparameters.learning_rate.dtype == jnp.float32
    assert not new_state.hyperparameters.learning_rate.aval.weak_type


def test_a_schedule_rules_its_own_field():
    transform: Any = mx.Injected(mx.SGD(schedules.Linear(1.0, 0.0, 4), momentum=0.5))
    state: Any = transform.init(G)
    assert state.hyperparameters.learning_rate == 1.0
    state = eqx.tree_at(lambda s: s.hyperparameters.learning_rate, state, jnp.asarray(9.0))
    state = eqx.tree_at(lambda s: s.hyperparameters.momentum, state, jnp.asarray(0.0))
    for rate in (1.0, 0.75, 0.5, 0.25, 0.0, 0.0):
        u, state = transform.update(G, state)
        np.testing.assert_allclose(u, -rate * G)
        assert state.hyperparameters.learning_rate == rate
        assert state.hyperparameters.momentum == 0
    assert state.count == 6


def test_inside_jit_with_a_static_optimizer():
    """The transform is closed over; a number that changes in the state traces nothing."""
    transform: Any = mx.Injected(mx.AdamW(0.1))
    traces = 0

    @jax.jit
    def step(state: Any, g: Any) -> Any:
        nonlocal traces
        traces += 1
        u, state = transform.update(g, state, g)
        numbers = state.hyperparameters
        halved = eqx.tree_at(lambda n: n.learning_rate, numbers, numbers.learning_rate / 2)
        return u, eqx.tree_at(lambda s: s.hyperparameters, state, halved)

    state: Any = transform.init(G)
    for i in range(3):
        assert state.hyperparameters.learning_rate == np.float32(0.1) / 2**i
        _, state = step(state, G)
    state = eqx.tree_at(lambda s: s.hyperparameters.learning_rate, state, jnp.asarray(7.0, jnp.float32))
    u, _ = step(state, G)
    assert np.all(np.abs(u) > 6)
    assert traces == 1


def test_a_chain_inside():
    inner = mx.Chain(clip=mx.ClipByGlobalNorm(1.0), sgd=mx.SGD(0.1))
    transform: Any = mx.Injected(inner)
    state: Any = transform.init(G)
    assert state.hyperparameters["clip"].max_norm == 1.0
    state = eqx.tree_at(lambda s: s.hyperparameters["clip"].max_norm, state, jnp.asarray(100.0))
    u, _ = transform.update(G, state)
    np.testing.assert_allclose(u, -0.1 * G, rtol=1e-6)


def test_the_state_has_its_own_copy():
    """Donating the state does not take the transform's numbers away."""
    transform: Any = mx.Injected(mx.SGD(jnp.asarray(0.1, jnp.float32)))

    @functools.partial(jax.jit, donate_argnums=0)
    def step(state: Any, g: Any) -> Any:
        return transform.update(g, state)[1]

    step(transform.init(G), G)
    assert float(transform.inner.learning_rate) == pytest.approx(0.1)
    transform.init(G)


def test_the_numbers_do_not_depend_on_the_parameters_dtype():
    """In bfloat16, b2 = 0.999 is 1."""
    transform: Any = mx.Injected(mx.AdamW(0.1))
    g = jnp.ones(2, jnp.bfloat16)
    state: Any = transform.init(g)
    assert state.hyperparameters.b2 == np.float32(0.999)
    u, _ = transform.update(g, state, g)
    assert u.dtype == jnp.bfloat16
    assert np.all(np.isfinite(np.asarray(u, np.float32)))


def test_gradients_through_the_state():
    transform: Any = mx.Injected(mx.SGD(0.1))
    state: Any = transform.init(G)

    def loss(rate: Any) -> Any:
        changed = eqx.tree_at(lambda s: s.hyperparameters.learning_rate, state, rate)
        return jnp.sum(transform.update(G, changed)[0])

    assert jax.grad(loss)(jnp.asarray(0.3)) == 1.0


# --- Schedules inside of what counts for itself ----------------------------------------------------


def _updates(transform: Any, steps: int = 8) -> np.ndarray:
    state, out = transform.init(G), []
    for _ in range(steps):
        u, state = transform.update(G, state, G)
        out.append(u)
    return np.stack(out)


@pytest.mark.parametrize(
    "inner",
    [
        mx.MultiSteps(mx.SGD(schedules.Linear(1.0, 0.0, 4)), 2),
        mx.MultiSteps(mx.SGD(1.0), schedules.Linear(1.0, 3.0, 2)),
        mx.Injected(mx.SGD(schedules.Linear(1.0, 0.0, 4))),
        mx.Chain(mx.MultiSteps(mx.ScaleBySchedule(schedules.Linear(1.0, 0.0, 4)), 2)),
    ],
    ids=["rate", "every_k", "injected", "chain"],
)
@pytest.mark.parametrize("outer", [mx.Scheduled, mx.Injected])
def test_a_schedule_goes_by_the_counter_next_to_it(inner: Any, outer: Any):
    """Inside of MultiSteps that is the number of steps, not of calls, whatever stands around it."""
    np.testing.assert_allclose(_updates(outer(inner)), _updates(inner), rtol=1e-6)
