"""Properties of every schedule, checked on each of them."""

import pickle
from typing import Any

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest

import modulax as mx
from modulax import schedules

from .instances import SCHEDULES, Instance

each_schedule = pytest.mark.parametrize("instance", [pytest.param(i, id=i.name) for i in SCHEDULES])
LATE = 2**31 - 1


@each_schedule
def test_a_value_is_a_float_scalar(instance: Instance):
    schedule = instance.make()
    values = [schedule(t) for t in (3, np.int64(3), jnp.asarray(3), jnp.asarray(3, jnp.uint32))]
    for value in values:
        assert isinstance(value, jax.Array)
        assert value.shape == ()
        assert value.dtype == jnp.float32
        assert not value.aval.weak_type
        assert value == values[0]


@each_schedule
def test_it_is_finite_until_the_end_of_counting(instance: Instance):
    schedule = instance.make()
    for t in (0, 1, 10**6, LATE):
        assert np.isfinite(schedule(t)), t


@each_schedule
@pytest.mark.usefixtures("x64")
def test_it_computes_in_double_precision(instance: Instance):
    schedule = instance.make()
    assert schedule(jnp.asarray(3, jnp.int32)).dtype == jnp.float64


@each_schedule
def test_it_runs_in_every_transformation(instance: Instance):
    schedule, steps = instance.make(), jnp.arange(30)
    loop = np.asarray([schedule(t) for t in range(30)])
    np.testing.assert_allclose(jax.vmap(schedule)(steps), loop, rtol=1e-6)
    np.testing.assert_allclose(jax.jit(lambda: schedule(7))(), loop[7], rtol=1e-6)
    np.testing.assert_allclose(jax.lax.map(schedule, steps), loop, rtol=1e-6)


@each_schedule
def test_it_is_a_tree_of_numbers(instance: Instance):
    schedule = instance.make()
    assert all(np.ndim(x) == 0 and x.dtype == jnp.float32 for x in jtu.tree_leaves(schedule))
    rebuilt = pickle.loads(pickle.dumps(schedule))
    assert jtu.tree_structure(rebuilt) == jtu.tree_structure(schedule)
    assert eqx.tree_equal(rebuilt, schedule)
    assert repr(schedule).startswith(instance.name + "(") or instance.name == "Expression"  # prints as an expression
    assert "array" not in repr(schedule).lower()


@each_schedule
def test_a_changed_number_is_not_traced(instance: Instance):
    schedule = instance.make()

    @jax.jit
    @chex.assert_max_traces(n=1)
    def value(schedule: Any, t: Any) -> Any:
        return schedule(t)

    value(schedule, 3)
    for path, x in schedule.hyperparameters().items():
        value(schedule.replace(**{path: 1.01 * float(x)}), 3)
        value(schedule.replace(**{path: 1.01 * jnp.asarray(x, jnp.float32)}), 4)


@each_schedule
def test_it_is_made_from_traced_numbers(instance: Instance):
    schedule = instance.make()
    numbers = schedule.hyperparameters()
    value = jax.eval_shape(lambda numbers: schedule.replace(**numbers)(3), numbers)
    assert (value.shape, value.dtype) == ((), jnp.float32)


@each_schedule
def test_gradients_are_finite(instance: Instance):
    schedule = instance.make()
    numbers, treedef = jtu.tree_flatten(schedule)

    def total(numbers: Any) -> Any:
        return jnp.sum(jax.vmap(treedef.unflatten(numbers))(jnp.arange(40)))

    for gradient in jax.grad(total)([jnp.asarray(x) for x in numbers]):
        assert np.isfinite(gradient)


@each_schedule
@pytest.mark.parametrize("field", ["learning_rate", "momentum"])
def test_it_may_stand_in_any_field(instance: Instance, field: str):
    """And the state is that of a plain number, so that one may replace the other in a run."""
    schedule = instance.make()
    numbers: dict[str, Any] = {"learning_rate": 0.5, "momentum": 0.5}
    plain, scheduled = mx.SGD(**numbers), mx.SGD(**{**numbers, field: schedule})
    g = jnp.ones(2)
    state = plain.init(g)
    assert jtu.tree_structure(scheduled.init(g)) == jtu.tree_structure(state)
    for t in range(3):
        now = plain.replace(**{field: schedule(t)})
        expected, _ = now.update(g, state)
        found, state = scheduled.update(g, state)
        np.testing.assert_allclose(found, expected, rtol=1e-6)


@each_schedule
def test_a_batch_of_schedules(instance: Instance):
    schedule = instance.make()
    if not jtu.tree_leaves(schedule):
        assert instance.name == "WrappedSchedule"
        return
    batch = jtu.tree_map(lambda x: jnp.stack([jnp.asarray(x)] * 3), schedule)
    values = eqx.filter_vmap(lambda s: s(7))(batch)
    np.testing.assert_allclose(values, [schedule(7)] * 3, rtol=1e-6)


@each_schedule
def test_every_number_may_be_a_schedule(instance: Instance):
    schedule = instance.make()
    # The numbers of a stretched schedule are those at a fraction of the run.
    numbers = {path: x for path, x in schedule.hyperparameters().items() if not path.startswith("schedule.")}
    ramps = {path: schedules.Linear(0.0, float(x), 5) for path, x in numbers.items()}
    of_ramps = schedule.replace(**ramps)
    steps = jnp.arange(2, 8)
    found = jax.jit(jax.vmap(of_ramps))(steps)
    for t, value in zip(steps, found, strict=True):
        expected = schedule.replace(**{path: ramp(t) for path, ramp in ramps.items()})(t)
        np.testing.assert_allclose(value, expected, rtol=1e-5, err_msg=str(t))


def test_a_schedule_in_a_field_of_a_schedule_in_an_optimizer():
    class Wave(mx.AbstractSchedule):
        height: mx.Number = mx.required_number()

        def __call__(self, step: Any) -> Any:
            return self.height * (jnp.asarray(step, float) + 1)

    for schedule, expected in (
        (schedules.Linear(schedules.Linear(1.0, 0.5, 4), 0.0, 10), [1, 0.875 * 0.9, 0.75 * 0.8]),
        (Wave(lambda step: jnp.sqrt(jnp.asarray(step, float))), [0, 2, 3 * 2**0.5]),
        (schedules.PiecewiseConstant(1.0, {1: schedules.Linear(0.0, 1.0, 4)}), [1, 0.25, 0.5]),
    ):
        optimizer = mx.SGD(schedule)
        params, state = jnp.zeros(()), optimizer.init(jnp.zeros(()))
        for rate in expected:
            np.testing.assert_allclose(optimizer.hyperparameters(state)["learning_rate"], rate, rtol=1e-6)
            moved, state = optimizer.step(jnp.ones(()), state, params)
            np.testing.assert_allclose(moved, -rate, rtol=1e-6)


def test_boundaries():
    """A change at a step is in effect at that step."""
    piecewise = schedules.PiecewiseConstant(1.0, {3: 0.5})
    assert [float(piecewise(t)) for t in (2, 3, 4)] == [1, 0.5, 0.5]
    join = schedules.Join([1.0, schedules.Linear(5.0, 6.0, 2)], [3])
    assert [float(join(t)) for t in (2, 3, 4, 5, 6)] == [1, 5, 5.5, 6, 6]
    assert schedules.WarmupCosineDecay(0.0, 1.0, 0, 10)(0) == 1  # no warm-up: no division by zero either


def test_a_plain_function_is_wrapped():
    def rate(step: Any) -> float:
        del step
        return 0.25

    transform = mx.SGD(rate)
    assert isinstance(transform.learning_rate, schedules.WrappedSchedule)
    assert jtu.tree_leaves(transform) == []
    assert "rate" in repr(transform)
    np.testing.assert_allclose(transform.update(jnp.ones(2), transform.init(jnp.ones(2)))[0], -0.25)


def test_a_schedule_is_a_function_for_jit():
    """It hashes by value, as it compares; another value is another program."""
    line = schedules.Linear(1.0, 0.0, 10)
    assert jax.jit(line)(5) == 0.5
    assert hash(line) == hash(schedules.Linear(1.0, 0.0, 10)) != hash(schedules.Linear(1.0, 0.5, 10))
    assert jax.jit(schedules.Linear(1.0, 0.5, 10))(5) == 0.75
    assert hash(eqx.tree_at(lambda s: s.init_value, line, 1.0)) is not None
    assert jax.jit(schedules.WrappedSchedule(jnp.sqrt))(4) == 2
