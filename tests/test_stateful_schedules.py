"""Stateful schedules: numbers that depend on what happened, and whose states an optimizer keeps in its own."""

import io
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import modulax as mx
from modulax import checkpoint, schedules

from . import settings
from .instances._masks import Cautious

G = jnp.asarray([1.0, -2.0])
STEPS = 60


class Sum(mx.AbstractStatefulSchedule):
    """The sum of the losses before this step, and ten times the loss of this one."""

    start: mx.Hyperparameter = mx.number(0.0)

    def init(self) -> Any:
        return {"total": self.start}

    def update(self, state: Any, *, value: Any = 0.0, **extra: Any) -> Any:
        return {"total": state["total"] + jnp.asarray(value, state["total"].dtype)}

    def __call__(self, state: Any, *, value: Any = 0.0, **extra: Any) -> Any:
        return state["total"] + 10 * jnp.asarray(value, state["total"].dtype)


class OptaxCautious:
    """`Cautious` as optax wants it: an object with three methods."""

    def __init__(self, init_value: float, decay: float = 0.5):
        self.init_value, self.decay = init_value, decay

    def init(self) -> Any:
        return jnp.zeros((), float)

    def update(self, state: Any, *, value: Any = 0.0, **extra: Any) -> Any:
        return self.decay * state + (1 - self.decay) * value

    def __call__(self, state: Any, *, value: Any = 0.0, **extra: Any) -> Any:
        return self.init_value / (1 + state + value)


def _rates(transform: Any, values: Any = (1.0, 2.0, 4.0)) -> list[float]:
    """The factors of an SGD step by step, given the losses."""
    state, rates = transform.init(G), []
    for value in values:
        u, state = transform.update(G, state, G, value=value)
        rates.append(float(-u[0]))
    return rates


def _trajectory(transform: Any, steps: int = STEPS, read: Any = lambda state: 0.0) -> Any:
    """Updates, and what `read` finds in the states, on a bowl whose loss is the extra argument."""

    def body(carry: Any, noise: Any) -> Any:
        p, state = carry
        u, state = transform.update(p + noise, state, p, value=jnp.sum(p**2))
        return (p + u, state), (u, read(state))

    p = jnp.asarray([1.0, -2.0, 0.5])
    noise = jnp.asarray(np.random.default_rng(0).normal(size=(steps, 3)))
    return jax.jit(lambda: jax.lax.scan(body, (p, transform.init(p)), noise)[1])()


# --- The order of calls -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "transform",
    [
        mx.SGD(Sum()),
        mx.Scheduled(mx.ScaleByLearningRate(Sum())),
        mx.Scheduled(mx.Chain(mx.Identity(), mx.ScaleByLearningRate(Sum()))),
        mx.Injected(mx.SGD(Sum())),
        mx.Injected(mx.Chain(mx.ScaleByLearningRate(Sum()))),
        mx.Chain(mx.Identity(), mx.SGD(Sum())),
        mx.Injected(mx.Scheduled(mx.ScaleByLearningRate(Sum()))),
        mx.Scheduled(mx.Chain(mx.Injected(mx.SGD(Sum())))),
        mx.Partition({"all": mx.SGD(Sum())}, mx.by_path({"*": "all"})),
    ],
    ids=lambda t: repr(t).replace("\n", "")[:60],
)
def test_the_number_of_a_step_sees_its_extra_arguments_and_the_state_before_it(transform: Any):
    assert _rates(transform) == [10, 1 + 20, 3 + 40]


@pytest.mark.usefixtures("x64")
def test_equals_optax():
    """In an optimizer, in `Injected` and in `Scheduled` alike; the state shows the number of the last step."""
    ours = mx.AdamW(Cautious(0.5), b1=Cautious(0.9, 0.75))
    chain = mx.Chain(
        mx.ScaleByAdam(b1=Cautious(0.9, 0.75)),
        mx.AddDecayedWeights(1e-4),
        mx.ScaleByLearningRate(Cautious(0.5)),
    )
    with settings.jax_defaults():
        theirs = optax.inject_hyperparams(optax.adamw)(OptaxCautious(0.5), b1=OptaxCautious(0.9, 0.75))
        expected, numbers = _trajectory(theirs, read=lambda s: (s.hyperparams["learning_rate"], s.hyperparams["b1"]))
        # A field also accepts one of optax's.
        wrapped, _ = _trajectory(mx.AdamW(OptaxCautious(0.5), b1=OptaxCautious(0.9, 0.75)))
    np.testing.assert_allclose(wrapped, expected, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(_trajectory(ours)[0], expected, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(_trajectory(mx.Scheduled(chain))[0], expected, rtol=1e-12, atol=1e-14)
    found, shown = _trajectory(
        mx.Injected(ours), read=lambda s: (s.hyperparameters.learning_rate, s.hyperparameters.b1)
    )
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(shown, numbers, rtol=1e-12)


# --- Where the states are ---------------------------------------------------------------------------


def test_the_states_stand_under_the_paths_of_the_numbers():
    optimizer = mx.SGD(Sum(), momentum=Cautious(0.9))
    state: Any = optimizer.init(G)
    assert set(state.schedule_states) == {"learning_rate", "momentum"}
    assert set(state.schedule_states) <= set(optimizer.addresses())
    assert {"schedule_states.learning_rate.total", "schedule_states.momentum.mean"} < set(mx.tree.leaf_paths(state))
    bare = mx.Scheduled(mx.Chain(rate=mx.ScaleByLearningRate(Sum())))
    assert mx.tree.leaf_paths(bare.init(G)) == ["step", "schedule_states.parts.rate.learning_rate.total"]
    injected: Any = mx.Injected(optimizer).init(G)
    assert set(injected.schedule_states) == {"learning_rate", "momentum"}


def test_without_one_nothing_is_added():
    for transform in (mx.SGD(schedules.Linear(1.0, 0.0, 4)), mx.Scheduled(mx.Scale(1.0)), mx.Injected(mx.SGD(0.1))):
        state: Any = transform.init(G)
        assert state.schedule_states is None
        assert not [path for path in mx.tree.leaf_paths(state) if "schedule_states" in path]


def test_the_numbers_in_force_through_any_nesting():
    transform: Any = mx.Chain(
        both=mx.Partition(
            {"a": mx.SGD(Sum()), "b": mx.MultiSteps(mx.Injected(mx.SGD(Sum())), 2)}, {"a": "a", "b": "b"}
        ),
        half=mx.Scheduled(mx.Scale(Sum(0.5))),
    )
    params = {"a": G, "b": G}
    state = transform.init(params)
    for value in (1.0, 2.0, 4.0):
        _, state = transform.update(params, state, params, value=value)
    now = transform.hyperparameters(state)
    assert now["parts.both.transforms.a.learning_rate"] == 7
    assert now["parts.both.transforms.b.inner.inner.learning_rate"] == 2  # one step was made, with the second batch
    assert now["parts.half.inner.step_size"] == 7.5


def test_a_transform_that_counts_its_own_steps_has_its_states_kept_outside():
    numbers: Any = {"eta": Cautious(1.0), "gamma": schedules.Constant(0.5)}
    noisy = mx.Scheduled(mx.AddNoise(**numbers))
    state: Any = noisy.init(G)
    _, state = noisy.update(G, state, value=3.0)
    assert set(state.schedule_states) == {"eta"}
    assert noisy.hyperparameters(state)["inner.eta"] == 1 / 2.5


def test_schedules_inside_of_schedules():
    """A schedule of the step in a stateful one, such as a decay that follows losses, and the other way round."""
    decaying: Any = mx.SGD(Sum(schedules.Linear(8.0, 0.0, 8)))
    assert decaying.init(G).schedule_states["learning_rate"]["total"] == 8

    class Scaled(mx.AbstractStatefulSchedule):
        base: mx.Hyperparameter = mx.number()

        def init(self) -> Any:
            return jnp.ones(())

        def update(self, state: Any, **extra: Any) -> Any:
            return state / 2

        def __call__(self, state: Any, **extra: Any) -> Any:
            return self.base * state

    line = schedules.Linear(8.0, 0.0, 8)
    assert _rates(mx.SGD(Scaled(line))) == [8, 7 / 2, 6 / 4]
    assert _rates(mx.SGD(schedules.Linear(Scaled(8.0), 0.0, 8))) == [8, 4 * 7 / 8, 2 * 6 / 8]


class Climbing(mx.AbstractStatefulSchedule):
    """The sum of the gains of the steps before this one."""

    gain: mx.Hyperparameter = mx.number()

    def init(self) -> Any:
        return jnp.zeros(())

    def update(self, state: Any, **extra: Any) -> Any:
        return state + self.gain

    def __call__(self, state: Any, **extra: Any) -> Any:
        return state


def test_the_numbers_of_an_update_are_those_of_its_step():
    climbing = Climbing(schedules.Linear(4.0, 0.0, 4))
    for transform in (mx.SGD(climbing), mx.Scheduled(mx.ScaleByLearningRate(climbing)), mx.Injected(mx.SGD(climbing))):
        assert _rates(transform) == [0, 4, 4 + 3]
    _, state = mx.SGD(climbing).update(G, mx.SGD(climbing).init(G))  # which needs neither parameters nor the loss
    assert mx.SGD(climbing).hyperparameters(state)["learning_rate"] == 4


# --- Programs ---------------------------------------------------------------------------------------


def test_a_weak_or_narrow_state_keeps_its_dtype_and_can_be_donated():
    class Halving(mx.AbstractStatefulSchedule):
        rate: mx.Hyperparameter = mx.number(1.0)

        def init(self) -> Any:
            return jnp.asarray(1.0), jnp.asarray(1.0, jnp.bfloat16), self.rate

        def update(self, state: Any, **extra: Any) -> Any:
            weak, narrow, rate = state
            return weak * 0.5, narrow.astype(jnp.float32) * 0.5, rate

        def __call__(self, state: Any, **extra: Any) -> Any:
            return state[0]

    optimizer = mx.SGD(Halving(jnp.asarray(1.0, jnp.float32)))
    state, p = optimizer.init(G), jnp.copy(G)
    before = jax.tree.map(lambda x: (x.dtype, x.aval.weak_type), state)
    for _ in range(2):
        p, state = optimizer.step(G, state, p, donate=True)
    assert jax.tree.map(lambda x: (x.dtype, x.aval.weak_type), state) == before
    np.testing.assert_array_equal(p, G - 1.5 * G)
    assert optimizer.hyperparameters()["learning_rate.rate"] == 1.0


def test_it_is_saved_and_restored(tmp_path: Path):
    optimizer = mx.Injected(mx.SGD(Sum(), momentum=0.9))
    state: Any = optimizer.init(G)
    for value in (1.0, 2.0):
        _, state = optimizer.update(G, state, G, value=value)
    file = io.BytesIO()
    eqx.tree_serialise_leaves(file, state)
    file.seek(0)
    checkpoint.save(tmp_path / "state", state)
    blank = optimizer.init(G)
    restored, _ = checkpoint.restore(tmp_path / "state", blank)
    for other in (eqx.tree_deserialise_leaves(file, blank), restored):
        assert eqx.tree_equal(other, state)
        assert optimizer.hyperparameters(other)["inner.learning_rate"] == 3


def test_describe_names_it():
    assert mx.describe(mx.SGD(Sum()), G).leaves[0].learning_rate == "Sum"


# --- Errors -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "transform, text",
    [
        (mx.Scale(Sum()), r"`Scale\(step_size=...\)` is a stateful schedule.*`Scheduled\(Scale\(step_size=...\)\)`"),
        (mx.ScaleByLearningRate(Sum()), r"keeps no state for it"),
        (mx.AddNoise(eta=Sum(), gamma=0.5), r"`AddNoise\(eta=...\)` is a stateful schedule"),
        (mx.Scheduled(mx.MultiSteps(mx.SGD(0.1), Sum())), r"`MultiSteps` counts its steps"),
        (mx.MultiSteps(mx.Chain(mx.Scale(Sum())), 1), r"`Scale` keeps no state"),
        (mx.SGD(Cautious(0.1)), r"`Cautious`, the schedule of `learning_rate`, needs `value`.*value=...\)"),
    ],
    ids=["scale", "rate", "noise", "every_k", "inside", "value"],
)
def test_errors_teach(transform: Any, text: str):
    state = jax.eval_shape(lambda: mx.SGD(0.1).init(G)) if isinstance(transform, mx.AddNoise) else transform.init(G)
    with pytest.raises(ValueError, match=text):
        transform.update(G, state, G)


def test_a_schedule_that_came_after_init_is_refused():
    optimizer = mx.SGD(0.1)
    state = optimizer.init(G)
    changed = optimizer.replace(learning_rate=Sum())
    for call in (lambda: changed.update(G, state, G), lambda: changed.hyperparameters(state)):
        with pytest.raises(ValueError, match=r"`SGD\(learning_rate=...\)` is a stateful schedule.*Call `init` again"):
            call()
    back, new = changed.replace(learning_rate=0.1), changed.init(G)
    assert back.update(G, new, G)[1].schedule_states is None


def test_a_state_that_would_be_cut_to_another_dtype_is_refused():
    """0.3 is not 0; an integer fits into a float."""

    class Counting(mx.AbstractStatefulSchedule):
        first: Any = eqx.field(static=True)
        step: Any = eqx.field(static=True)

        def init(self) -> Any:
            return jnp.zeros((), self.first)

        def update(self, state: Any, **extra: Any) -> Any:
            return jnp.asarray(self.step)

        def __call__(self, state: Any, **extra: Any) -> Any:
            return state

    fine = {("float32", 1), ("int32", True)}
    for first, step in (*fine, ("int32", 0.3), ("float32", 1j), ("bool", 2)):
        optimizer = mx.SGD(Counting(first, step))
        state = optimizer.init(G)
        if (first, step) in fine:
            state: Any = optimizer.update(G, state, G)[1]
            assert float(state.schedule_states["learning_rate"]) == step
        else:
            with pytest.raises(ValueError, match=r"`Counting.update` returned \w+ for a value of the state that is"):
                optimizer.update(G, state, G)


def test_a_state_of_another_shape_is_refused():
    class Growing(mx.AbstractStatefulSchedule):
        def init(self) -> Any:
            return jnp.zeros(2)

        def update(self, state: Any, **extra: Any) -> Any:
            return jnp.zeros(3)

        def __call__(self, state: Any, **extra: Any) -> Any:
            return state[0]

    optimizer = mx.SGD(Growing())
    with pytest.raises(ValueError, match=r"`Growing.update` must return a state with the structure and the shapes"):
        optimizer.update(G, optimizer.init(G), G)
