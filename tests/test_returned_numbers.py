"""What a user's schedule returns may be a number of any kind: it changes neither a value nor a dtype nor a program."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest

import modulax as mx
from modulax import schedules

# Ways to return 2.
TWOS: dict[str, Callable[[Any], Any]] = {
    "a Python integer": lambda step: 2,
    "a Python float": lambda step: 2.0,
    "a NumPy float64": lambda step: np.float64(2),
    "a NumPy array": lambda step: np.asarray(2, np.int64),
    "a weak number": lambda step: jnp.asarray(2.0),
    "an integer": lambda step: jnp.asarray(2, jnp.int32) + 0 * jnp.asarray(step).astype(jnp.int32),
    "a bfloat16": lambda step: jnp.asarray(2, jnp.bfloat16),
    "a float16": lambda step: jnp.asarray(2, jnp.float16),
}


class Returning(mx.AbstractSchedule):
    """A schedule of one's own, which hands on what its function returns."""

    kind: str = eqx.field(static=True)

    def __call__(self, step: Any) -> Any:
        return TWOS[self.kind](step)


class Stateful(mx.AbstractStatefulSchedule):
    """A stateful one, whose state is narrower than what its update returns."""

    kind: str = eqx.field(static=True)

    def init(self) -> Any:
        return {"low": jnp.zeros((), jnp.bfloat16), "count": jnp.zeros((), jnp.int32)}

    def update(self, state: Any, **extra: Any) -> Any:
        del extra
        return {"low": state["low"].astype(jnp.float32) + 1, "count": state["count"] + 1}

    def __call__(self, state: Any, **extra: Any) -> Any:
        del extra
        return TWOS[self.kind](state["count"])


def doubling(schedule: Any) -> Any:
    """A rule that takes schedules inside of `Scheduled` alone, which its annotation does not say."""
    return mx.Scale(schedule)


# Where a number stands: each of these doubles its updates.
PLACES: dict[str, Callable[[str], Any]] = {
    "a function in an optimizer": lambda kind: mx.SGD(TWOS[kind]),
    "a schedule in an optimizer": lambda kind: mx.SGD(Returning(kind)),
    "a stateful schedule": lambda kind: mx.SGD(Stateful(kind)),
    "in `Scheduled`": lambda kind: mx.Chain(mx.Scheduled(doubling(Returning(kind))), mx.Scale(-1.0)),
    "a stateful one in `Scheduled`": lambda kind: mx.Chain(mx.Scheduled(doubling(Stateful(kind))), mx.Scale(-1.0)),
    "in `Injected`": lambda kind: mx.Injected(mx.SGD(Returning(kind))),
    "in a rule that counts": lambda kind: mx.ScaleByLearningRate(Returning(kind)),
    "joined": lambda kind: mx.SGD(schedules.Join([Returning(kind), TWOS[kind]], [1])),
    "stretched": lambda kind: mx.SGD(Returning(kind).over(10)),
    "as a number of steps": lambda kind: mx.Chain(mx.MultiSteps(mx.SGD(2.0), Returning(kind), use_grad_mean=False)),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_number_of_any_kind_is_the_same_number(place: str):
    params = {"w": jnp.asarray([0.5, -1.0]), "low": jnp.asarray([1.0, 3.0], jnp.bfloat16)}
    transforms = {kind: PLACES[place](kind) for kind in TWOS}

    @jax.jit
    def run() -> Any:
        found = {}
        for kind, transform in transforms.items():
            states, total = [transform.init(params)], jtu.tree_map(jnp.zeros_like, params)
            for _ in range(2):
                updates, state = transform.update(params, states[-1], params)
                states.append(state)
                total = jtu.tree_map(jnp.add, total, updates)
            found[kind] = total, states
        return found

    for kind, (total, states) in run().items():
        for name, p in params.items():
            np.testing.assert_array_equal(total[name], -4 * p, err_msg=kind)
        assert [x.dtype for x in jtu.tree_leaves(total)] == [jnp.bfloat16, jnp.float32], kind
        dtypes = [[x.dtype for x in jtu.tree_leaves(state)] for state in states]
        assert dtypes[1:] == dtypes[:-1], kind
        numbers = transforms[kind].hyperparameters(states[-1])
        assert {jnp.asarray(x).dtype for x in numbers.values()} == {np.dtype(np.float32)}, kind


@pytest.mark.parametrize("kind", TWOS)
def test_schedules_made_of_schedules_return_floats(kind: str):
    """As their annotations say, whatever those that they are made of return."""
    made = (
        schedules.WrappedSchedule(TWOS[kind]),
        schedules.Join([Returning(kind), Returning(kind)], [1]),
        schedules.WrappedSchedule(TWOS[kind]).over(10),
        Returning(kind) + Returning(kind) - 2,
        Returning(kind).clip(0, 3),
    )
    for schedule in made:
        for step in (0, 1, jnp.asarray(3)):
            value = schedule(step)
            assert (value, value.dtype, value.weak_type) == (2, jnp.float32, False), (schedule, step)


def test_a_step_is_divided_in_floats():
    """A run may be longer than what an integer divided by its length would keep."""
    seen = []

    def record(step: Any) -> Any:
        seen.append(jnp.asarray(step).dtype)
        return step

    stretched = schedules.WrappedSchedule(record).over(4)
    assert stretched(np.int32(3)) == 0.75
    assert stretched(jnp.asarray(3, jnp.int8)) == 0.75
    assert set(seen) == {np.dtype(np.float32)}
