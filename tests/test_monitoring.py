"""Snapshot, Monitor, MeasureWithEma: what they keep, and where it is read."""

from types import MappingProxyType
from typing import Any

import chex
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import optax
import pytest
from flax.core import FrozenDict

import modulax as mx
from modulax.tree import norm

from .settings import jax_defaults

STEPS = 60
PARAMS = {"dense": {"kernel": jnp.ones((3, 2)), "bias": jnp.ones(2)}, "scale": jnp.ones(())}


def is_long(updates: Any) -> Any:
    return norm(updates) > 2.5


def largest(updates: Any) -> Any:
    return jtu.tree_map(lambda u: jnp.max(jnp.abs(u)), updates)


def ratio(updates: Any, params: Any) -> Any:
    return norm(updates) / norm(params)


@pytest.mark.usefixtures("x64")
def test_measurements_are_those_of_optax():
    """In a chain, after momentum and before clipping; averages of numbers, of booleans and of trees."""
    random = np.random.default_rng(0)
    gradients = {"w": jnp.asarray(random.normal(size=(STEPS, 3))), "b": jnp.asarray(random.normal(size=STEPS))}

    def chain(library: Any, momentum: Any, snapshot: Any, monitor: Any, ema: Any, clip: Any) -> Any:
        measures = {
            "norm": norm,
            "often": ema(is_long, 0.9),
            "slow": ema(norm, 0.95, debias=False),
            "largest": ema(largest, 0.5),
        }
        return library(momentum(0.9), snapshot("seen", largest), monitor(measures), clip(1.0))

    ours = chain(mx.Chain, mx.Trace, mx.Snapshot, mx.Monitor, mx.MeasureWithEma, mx.ClipByGlobalNorm)
    params = jtu.tree_map(lambda g: g[0], gradients)

    def body(state: Any, g: Any) -> Any:
        updates, state = ours.update(g, state)
        return state, (updates, state["snapshot"].measurement["seen"], state["monitor"].measurements)

    found = jax.jit(lambda: jax.lax.scan(body, ours.init(params), gradients)[1])()
    with jax_defaults():
        functions = (optax.trace, optax.snapshot, optax.monitor, optax.measure_with_ema, optax.clip_by_global_norm)
        theirs = chain(optax.chain, *functions)
        state, update = theirs.init(params), jax.jit(theirs.update)
        for step in range(STEPS):
            updates, state = update(jtu.tree_map(lambda g, i=step: g[i], gradients), state)
            twin = (updates, state[1].measurement["seen"], state[2].measurements)
            now = jtu.tree_map(lambda x, i=step: x[i], found)
            assert jtu.tree_structure(now) == jtu.tree_structure(twin)
            chex.assert_trees_all_close(now, twin, rtol=1e-12)
    assert 0 < found[2]["often"][-1] < 1


def test_before_the_first_step():
    """There are zeros of the right shapes, so that `scan` can carry the state; optax's monitor has nothing."""
    snapshot, monitor = mx.Snapshot("norm", norm), mx.Monitor({"largest": largest, "long": is_long})
    assert snapshot.init(PARAMS).measurement["norm"] == 0
    zeros = {"largest": jtu.tree_map(lambda _: 0.0, PARAMS), "long": False}
    chex.assert_trees_all_equal(monitor.init(PARAMS).measurements, zeros)
    with jax_defaults():
        begin: Any = optax.snapshot("norm", norm).init(PARAMS)
        assert begin.measurement["norm"] == 3
        twin: Any = optax.monitor({"norm": norm})
        assert twin.init(PARAMS).measurements == {}
        with pytest.raises(TypeError, match="same pytree structure"):
            jax.lax.scan(lambda state, _: twin.update(PARAMS, state)[::-1], twin.init(PARAMS), length=2)


def test_the_relative_length_of_the_step_in_any_nesting():
    watched = mx.Chain(
        mx.SGD(0.1),
        step=mx.Monitor({"ratio": mx.Stateless(ratio), "average": mx.MeasureWithEma(mx.Stateless(ratio), 0.9)}),
    )
    g = jtu.tree_map(lambda p: 2 * p, PARAMS)
    nested: tuple[tuple[Any, Any], ...] = (
        (mx.ApplyIfFinite(mx.Masked(watched, True), 3), lambda s: s.inner_state.inner_state),
        (mx.MultiSteps(mx.Scheduled(watched), 1), lambda s: s.inner_opt_state.inner),
        (mx.Partition({"all": watched}, lambda _: "all"), lambda s: s.inner_states["all"]),
    )
    for transform, where in nested:
        _, state = transform.step(g, transform.init(PARAMS), PARAMS)
        for name in ("ratio", "average"):
            np.testing.assert_allclose(where(state)["step"].measurements[name], 0.2, rtol=1e-6)


def test_an_average_counts_what_its_container_lets_through():
    """Inside `ApplyIfFinite` a bad batch is not seen; outside it, it stays in the average."""
    measure = {"mean": mx.MeasureWithEma(norm, 0.5)}
    inside: Any = mx.ApplyIfFinite(mx.Chain(mx.Monitor(measure), mx.SGD(0.1)), 3)
    outside: Any = mx.Chain(mx.Monitor(measure), mx.ApplyIfFinite(mx.SGD(0.1), 3))
    states = [inside.init(jnp.zeros(2)), outside.init(jnp.zeros(2))]
    for g in ([3.0, 4.0], [jnp.nan, 1.0], [3.0, 4.0]):
        states = [t.update(jnp.asarray(g), s)[1] for t, s in zip((inside, outside), states, strict=True)]
    np.testing.assert_allclose(states[0].inner_state["monitor"].measurements["mean"], 5.0, rtol=1e-6)
    assert np.isnan(states[1]["monitor"].measurements["mean"])


class Loss(mx.AbstractMeasure):
    """The loss, scaled by a number, and how often it was seen."""

    scale: mx.Number = mx.number(1.0)
    needs = ("value",)

    def init(self, params: Any) -> Any:
        del params
        return jnp.zeros((), jnp.int32)

    def update(self, updates: Any, state: Any, params: Any = None, **extra: Any) -> Any:
        return {"loss": self.scale * extra["value"], "seen": state + 1}, state + 1


def test_a_measure_of_ones_own_with_extra_arguments():
    measures = {"loss": Loss(2.0), "smooth": mx.MeasureWithEma(Loss(), 0.5)}
    transform = mx.Chain(mx.Monitor(measures), mx.PolyakSGD())
    state = transform.init(jnp.zeros(2))
    for value in (4.0, 1.0):
        _, state = transform.update(jnp.ones(2), state, jnp.zeros(2), value=jnp.asarray(value))
    seen = state["monitor"].measurements
    assert seen["loss"] == {"loss": 2, "seen": 2}
    np.testing.assert_allclose(seen["smooth"]["loss"], 2.0, rtol=1e-6)
    path = "parts.monitor.measures.loss.scale"
    assert transform.hyperparameters()[path] == 2
    changed = transform.replace(**{path: 3.0})
    _, state = changed.update(jnp.ones(2), state, jnp.zeros(2), value=jnp.asarray(1.0))
    assert state["monitor"].measurements["loss"]["loss"] == 3


def test_a_transform_may_measure():
    """Its result is measured, and the updates pass unchanged; before the first step there are zeros."""
    transform = mx.Monitor({"adam": mx.ScaleByAdam()})
    state = transform.init(PARAMS)
    for _ in range(3):
        updates, state = transform.update(PARAMS, state)
        chex.assert_trees_all_equal(updates, PARAMS)
    jtu.tree_map(lambda x: np.testing.assert_allclose(x, 1, rtol=1e-5), state.measurements["adam"])
    assert state.measure_states[0].count == 3
    needs_params = mx.Monitor({"decayed": mx.AddDecayedWeights(0.5)}).init(PARAMS)
    chex.assert_trees_all_equal(needs_params.measurements["decayed"], jtu.tree_map(jnp.zeros_like, PARAMS))


def test_the_decay_may_follow_a_schedule():
    decay = mx.schedules.Linear(0.0, 0.9, 9)
    transform = mx.Monitor({"mean": mx.MeasureWithEma(norm, decay, debias=False)})
    state, mean = transform.init(jnp.zeros(1)), 0.0
    for step in range(4):
        b = 0.1 * step
        found = transform.hyperparameters(state)["measures.mean.decay"]
        np.testing.assert_allclose(found, b, rtol=1e-6)
        mean = b * mean + (1 - b) * (step + 1)
        _, state = transform.update(jnp.full(1, step + 1.0), state)
        np.testing.assert_allclose(state.measurements["mean"], mean, rtol=1e-6)
    nested = mx.Monitor({"mean": mx.MeasureWithEma(mx.MeasureWithEma(norm, decay), 0.5)})
    state = nested.update(jnp.ones(1), nested.init(jnp.zeros(1)))[1]
    found = nested.hyperparameters(state)
    np.testing.assert_allclose([found["measures.mean.measure.decay"], found["measures.mean.decay"]], [0.1, 0.5])


def test_dtypes_and_structures_are_those_of_the_first_state():
    """Whatever the updates are like; and an average of bfloat16 numbers does not stall."""

    def first(updates: Any) -> Any:
        return {"least": updates["b"][0], "all": updates}

    params = {"b": jnp.ones(2), "a": jnp.ones(1)}
    grads = FrozenDict(jtu.tree_map(lambda p: p.astype(jnp.bfloat16), params))
    transform = mx.Monitor({"first": first, "mean": mx.MeasureWithEma(lambda u: u["b"][0], 0.999)})
    begin = transform.init(params)
    _, state = transform.update(grads, begin, params)
    assert jtu.tree_structure(state) == jtu.tree_structure(begin)
    assert jtu.tree_map(lambda x: x.dtype, state) == jtu.tree_map(lambda x: x.dtype, begin)
    low = transform.init(jtu.tree_map(lambda p: p.astype(jnp.bfloat16), params))
    assert low.measurements["first"]["least"].dtype == jnp.bfloat16
    assert low.measurements["mean"].dtype == low.measure_states[1].ema_state.ema.dtype == jnp.float32


def test_a_snapshot_is_a_copy():
    """The updates themselves may be kept: donating the state deletes no other array."""
    transform = mx.Snapshot("updates", lambda updates: updates)
    state = transform.init(PARAMS)
    grads = jtu.tree_map(jnp.copy, PARAMS)
    for _ in range(3):
        _, state = transform.step(grads, state, jtu.tree_map(jnp.copy, PARAMS), donate=True)
    chex.assert_trees_all_equal(state.measurement["updates"], grads)


def test_measures_are_functions_in_a_mapping():
    monitor: Any = mx.Monitor
    with pytest.raises(ValueError, match=r"A measure must be a function of the updates.*got 3\.0"):
        monitor({"norm": 3.0})
    with pytest.raises(ValueError, match=r"`Monitor\(measures=\.\.\.\)` must be a mapping from names to measures"):
        monitor(norm)
    assert repr(mx.Monitor({"norm": norm})) == "Monitor(measures={'norm': norm})"
    assert list(mx.Monitor(MappingProxyType({"norm": norm, "long": is_long})).measures) == ["norm", "long"]


@pytest.mark.parametrize("transform", [mx.Snapshot("seen", largest), mx.Monitor({"seen": largest})])
def test_a_measurement_of_another_structure_is_reported_by_its_owner(transform: Any):
    with pytest.raises(ValueError, match=f"`{type(transform).__name__}.update`"):
        transform.update({"dense": jnp.ones(2)}, transform.init(PARAMS))


def test_an_average_is_kept_in_the_dtype_that_is_given():
    transform = mx.Monitor({"mean": mx.MeasureWithEma(norm, 0.5, debias=False, accumulator_dtype=jnp.float16)})
    state = transform.init(PARAMS)
    for s in (state, transform.update(PARAMS, state)[1]):
        chex.assert_type(s.measure_states[0].ema_state.ema, jnp.float16)
    now: Any = transform.at(state).measures["mean"]
    assert (now.debias, now.accumulator_dtype) == (False, jnp.float16)


def test_the_step_in_which_an_array_first_was_not_finite():
    """Per array, counted from 1; a later bad step changes nothing, and the state keeps its types in a scan."""
    gradients = {
        "clean": jnp.ones((5, 2)),
        "late": jnp.ones((5, 2), jnp.bfloat16).at[3, 1].set(jnp.inf),
        "nested": [jnp.ones(5).at[1].set(jnp.nan).at[4].set(-jnp.inf)],
    }
    optimizer = mx.Chain(mx.Monitor({"bad": mx.FirstNotFinite()}), mx.ApplyIfFinite(mx.SGD(0.1), 9))
    state = optimizer.init(jtu.tree_map(lambda g: g[0], gradients))
    state, found = jax.lax.scan(
        lambda state, g: (optimizer.update(g, state)[1], state["monitor"].measurements["bad"]), state, gradients
    )
    assert optimizer.metrics(state)["bad.late"] == 4
    assert state["monitor"].measurements["bad"] == {"clean": 0, "late": 4, "nested": [2]}
    assert found["nested"][0].tolist() == [0, 0, 2, 2, 2]


def test_a_measure_may_return_a_number_of_python():
    monitor = mx.Monitor({"one": mx.MeasureWithEma(lambda updates: 1, 0.5, debias=False)})
    params = {"w": jnp.ones(2)}
    assert monitor.update(params, monitor.init(params))[1].measurements["one"] == 0.5
