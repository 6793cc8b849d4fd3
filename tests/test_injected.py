"""Injected: numbers that live in the state, for callers that hold the optimizer static."""

import functools
from pathlib import Path
from typing import Any

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import serialization

import modulax as mx
from modulax import checkpoint, schedules
from modulax._containers.injected import with_hyperparams
from modulax.testing._case import counting_traces

from . import settings

G = jnp.asarray([1.0, -2.0])


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


@pytest.mark.parametrize("schedule", [schedules.ExponentialDecay(1.0, 1, 0.5), schedules.Join([0.5, 2.0], [1])])
def test_a_schedule_rules_in_a_part_with_its_own_counter(schedule: Any):
    """The mapping has the value that the schedule had at the last step of the part, and writing to it does nothing."""
    sgd = mx.SGD(schedule)
    for inner in (mx.Chain(mx.Clip(9.0), sgd), mx.ParamEMA(sgd), mx.Partition({"x": mx.Masked(sgd, True)}, "x")):
        transform = mx.Injected(inner)
        state: Any = transform.init(G)
        (name,) = (name for name in state.hyperparams if name.endswith("learning_rate"))
        assert state.hyperparams["learning_rate"] == schedule(0)
        structure = jax.tree.structure(state)
        state.hyperparams["learning_rate"] = 5.0
        state = with_hyperparams(state, {"hyperparams": {"learning_rate": 5.0}})
        assert jax.tree.structure(state) == structure
        for i in range(3):
            u, state = transform.update(G, state, G)
            np.testing.assert_allclose(u, -schedule(i) * G, rtol=1e-6)
            assert {key: float(x) for key, x in state.hyperparams.items()}[name] == schedule(i)
        assert not [key for key in state.hyperparams if "init_value" in key or "boundaries" in key]
    # What `static_args` leaves out of the state is not in it.
    state = mx.Injected(mx.Chain(sgd, mx.Clip(1.0)), static_args="learning_rate").init(G)
    assert dict(state.hyperparams) == {"parts.clip.max_delta": 1.0}


NUMBERS = (0.25, 1, np.float64(0.5), np.asarray(0.5), jnp.asarray(0.125), jnp.bfloat16(0.5), jnp.asarray(2))


@pytest.mark.parametrize("dtype", [None, jnp.bfloat16])
def test_a_number_that_is_set_by_name_traces_nothing(dtype: Any):
    transform: Any = mx.Injected(mx.SGD(0.1), hyperparam_dtype=dtype)

    @jax.jit
    @chex.assert_max_traces(n=1)
    def step(state: Any, g: Any) -> Any:
        return transform.update(g, state, g)

    state: Any = transform.init(G)
    for number in NUMBERS:
        state.hyperparams["learning_rate"] = number
        stored = state.hyperparameters.learning_rate
        assert (stored.dtype, stored.aval.weak_type) == (dtype or jnp.float32, False)
        u, state = step(state, G)
        np.testing.assert_allclose(u, -float(number) * G)
        state = with_hyperparams(state, {"hyperparams": {"learning_rate": number}})
        _, state = step(state, G)
    with jax.transfer_guard("disallow"):
        state.hyperparams["learning_rate"] = 0.5


def test_a_number_that_is_set_by_name_goes_to_the_devices_of_the_state():
    mesh = jax.make_mesh((2,), ("data",))
    where = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    transform: Any = mx.Injected(mx.SGD(0.1))
    state = jax.device_put(transform.init(G), where)
    state.hyperparams["learning_rate"] = 0.25
    assert state.hyperparameters.learning_rate.sharding == where
    state.hyperparams["learning_rate"] = jnp.asarray(0.5, jnp.float32)
    assert state.hyperparameters.learning_rate.sharding == where
    elsewhere = jax.device_put(jnp.asarray(0.5), jax.devices()[1])
    state.hyperparams["learning_rate"] = elsewhere
    assert state.hyperparameters.learning_rate.devices() == elsewhere.devices()


def test_what_is_not_a_number_is_set_as_it_is():
    state: Any = mx.Injected(mx.SGD(0.1)).init(G)
    for value in (jnp.arange(3.0), jax.ShapeDtypeStruct((), jnp.float32), 1j, "0.1"):
        state.hyperparams["learning_rate"] = value
        assert state.hyperparameters.learning_rate is value
    noisy: Any = mx.Injected(mx.AddNoise(0.1, 0.5, 3)).init(G)
    (name,) = (name for name in noisy.hyperparams if "key" in name or "seed" in name)
    noisy.hyperparams[name] = key = jax.random.key_data(jax.random.key(1))
    assert noisy.hyperparams[name] is key


def test_the_state_has_its_own_copy():
    """Donating the state does not take the transform's numbers away."""
    transform: Any = mx.Injected(mx.SGD(jnp.asarray(0.1, jnp.float32)))

    @functools.partial(jax.jit, donate_argnums=0)
    def step(state: Any, g: Any) -> Any:
        return transform.update(g, state)[1]

    step(transform.init(G), G)
    assert float(transform.inner.learning_rate) == pytest.approx(0.1)
    transform.init(G)


def test_gradients_through_the_state():
    transform: Any = mx.Injected(mx.SGD(0.1, momentum=0.5))

    def loss(rate: Any) -> Any:
        state = transform.init(G)
        state.hyperparams["learning_rate"] = rate
        _, state = transform.update(G, state)
        state.hyperparams["learning_rate"] = 2 * rate
        return jnp.sum(transform.update(G, state)[0])

    assert jax.grad(loss)(jnp.asarray(0.3)) == 3.0


# --- Schedules inside transforms that count their own steps ------------------------------------------


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
    """Inside MultiSteps that is the number of steps, not of calls, whatever is around it."""
    np.testing.assert_allclose(_updates(outer(inner)), _updates(inner), rtol=1e-6)


# --- Some of the numbers, in some dtype -------------------------------------------------------------


def test_some_numbers_stay_out_of_the_state():
    transform: Any = mx.Injected(mx.AdamW(0.1, b1=0.8), static_args=("b*", "eps"))
    state: Any = transform.init(G)
    numbers = state.hyperparameters
    assert numbers.b1 is None
    assert numbers.b2 is None
    assert numbers.eps is None
    assert numbers.learning_rate == np.float32(0.1)
    expected = mx.AdamW(0.1, b1=0.8)
    for of in (state, transform.update(G, state, G)[1]):
        u, _ = transform.update(G, of, G)
        inner: Any = mx.states.OptimizerState(of.count, of.inner_state.inner)
        np.testing.assert_allclose(u, expected.update(G, inner, G)[0], rtol=1e-6)
    # What the transform has there rules, and can be changed there.
    u, _ = transform.replace(b1=0.0).update(G, state, G)
    assert transform.replace(b1=0.0).hyperparameters(state)["inner.b1"] == 0
    np.testing.assert_allclose(u, expected.replace(b1=0.0).update(G, mx.AdamW(0.1, b1=0.0).init(G), G)[0], rtol=1e-6)


def test_a_schedule_and_a_part_may_stay_out_as_a_whole():
    inner = mx.Chain(clip=mx.ClipByGlobalNorm(1.0), sgd=mx.SGD(schedules.Linear(1.0, 0.0, 4), momentum=0.5))
    kept: Any = mx.Injected(inner, static_args="sgd").init(G).hyperparameters
    assert mx.tree.leaf_paths(kept) == ["parts.clip.max_norm"]
    transform: Any = mx.Injected(inner["sgd"], static_args="learning_rate")
    assert mx.tree.leaf_paths(transform.init(G).hyperparameters) == ["momentum"]
    np.testing.assert_allclose(_updates(transform, 3), _updates(inner["sgd"], 3))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
def test_the_dtype_of_the_numbers(dtype: Any):
    """It is that in the state; arithmetic, updates and the state of the transform keep theirs."""
    transform: Any = mx.Injected(mx.SGD(schedules.Constant(0.1), momentum=0.9), hyperparam_dtype=dtype)
    state: Any = transform.init(G)
    u, new = transform.update(G, state, G)
    for s in (state, new):
        assert s.hyperparameters.learning_rate.dtype == s.hyperparameters.momentum.dtype == dtype
    assert transform.hyperparameters(state)["inner.momentum"] == jnp.asarray(0.9, dtype).astype(jnp.float32)
    np.testing.assert_array_equal(u, -jnp.asarray(0.1, dtype).astype(jnp.float32) * G)
    assert mx.tree.leaf_paths(new) == mx.tree.leaf_paths(state)


@pytest.mark.parametrize(
    "inner, dtype, text",
    [
        (mx.AdamW(0.1), jnp.bfloat16, r"stores `b2`, 0.999, as 1\. `AdamW\(b2=...\)` must be in \[0, 1\)"),
        (mx.Chain(mx.Adam(0.1, b2=0.9)), jnp.float16, r"stores `parts.adam.eps`, 1e-08, as 0,.*'parts.adam.eps'"),
        (mx.Clip(1e9), jnp.float16, "stores `max_delta`, .*, as inf, which is out of the range"),
        (
            mx.FromFactory(lambda decay: mx.Adam(0.1, b2=decay), decay=0.999),
            jnp.bfloat16,
            "`arguments.decay`.*`Adam",
        ),
    ],
    ids=["decay", "zero", "infinite", "function"],
)
def test_a_hyperparameter_that_a_dtype_does_not_hold_is_refused(inner: Any, dtype: Any, text: str):
    with pytest.raises(ValueError, match=rf"`Injected\(hyperparam_dtype={jnp.dtype(dtype).name}\)` .*{text}"):
        mx.Injected(inner, hyperparam_dtype=dtype)
    mx.Injected(inner, hyperparam_dtype=jnp.float32)
    mx.Injected(inner, "*", hyperparam_dtype=dtype)  # nothing is stored


def test_overwriting_with_a_bare_number_is_not_traced():
    transform: Any = mx.Injected(mx.AdamW(0.1))
    _, state = transform.update(G, transform.init(G), G)
    transform.update(G, eqx.tree_at(lambda s: s.hyperparameters.learning_rate, state, 0.5), G)  # refused, once
    transform.update(G, state, G)
    with counting_traces() as traces:
        for value in (0.5, np.float32(0.25), np.asarray(0.125, np.float32), jnp.asarray(1.0, jnp.float32)):
            changed = eqx.tree_at(lambda s: s.hyperparameters.learning_rate, state, value)
            stored = transform.update(G, changed, G)[1].hyperparameters.learning_rate
            assert (stored, stored.dtype, stored.aval.weak_type) == (value, jnp.float32, False)
        _, new = transform.update(G, changed, G)
        transform.update(G, new, G)
    assert not [name for name in traces if "update" in name], traces
    assert new.hyperparameters.learning_rate == 1.0


@pytest.mark.parametrize(
    "given, text",
    [
        ({"static_args": "lerning_rate"}, r"no hyperparameter `lerning_rate`. Did you mean `learning_rate`\?.*`b1`"),
        ({"hyperparam_dtype": jnp.int32}, r"must be a floating dtype such as `jnp.float32`"),
    ],
    ids=["name", "dtype"],
)
def test_what_makes_no_sense_is_refused(given: Any, text: str):
    with pytest.raises(ValueError, match=text):
        mx.Injected(mx.AdamW(0.1), **given)


def test_by_the_name_it_has_in_optax():
    transform = mx.inject_hyperparams(mx.AdamW, static_args="b1", hyperparam_dtype=jnp.float32)(0.1, b2=0.99)
    assert eqx.tree_equal(transform, mx.Injected(mx.AdamW(0.1, b2=0.99), ("b1",), jnp.float32))
    with pytest.raises(ValueError, match=r"`Injected\(inner=...\)` is not a modulax transform.*`from_optax\(...\)`"):
        transform.replace(inner=optax.adamw(0.1))


def test_a_python_number_in_a_saved_state_comes_back_as_an_array(tmp_path: Path):
    """Like the one that the template has there."""
    transform: Any = mx.Injected(mx.MultiSteps(mx.AdamW(0.1, b1=schedules.Linear(0.0, 0.9, 4)), 2), "every_k")
    state = transform.init(G)
    as_array = eqx.tree_at(lambda s: s.hyperparameters.inner.learning_rate, state, jnp.float32(3e-4))
    state = eqx.tree_at(lambda s: s.hyperparameters.inner.learning_rate, state, 3e-4)
    checkpoint.save(tmp_path / "state", state)
    found = [
        checkpoint.restore(tmp_path / "state", transform.init(G))[0],
        checkpoint.load_state_dict(transform.init(G), checkpoint.state_dict(state), strict=False)[0],
        serialization.from_bytes(transform.init(G), serialization.to_bytes(state)),
    ]
    assert all(eqx.tree_equal(x, as_array) for x in found)


def test_numbers_that_are_frozen_are_restored():
    frozen = mx.freeze_hyperparameters(mx.AdamW(0.25))
    thawed, _ = checkpoint.load_state_dict(mx.AdamW(0.1), checkpoint.state_dict(frozen))
    assert eqx.tree_equal(thawed, mx.AdamW(0.25))


# --- Functions of hyperparameters -------------------------------------------------------------------


def tied(
    learning_rate: Any, weight_decay: Any = 0.1, *, kind: str, peak: Any = 0.2, mask: Any = None, nesterov: bool = False
) -> Any:
    """A transform with a weight decay that is relative to the learning rate, as in training frameworks."""
    direction = {"adam": mx.ScaleByAdam(nesterov=nesterov), "sgd": mx.Identity()}[kind]
    decay = mx.AddDecayedWeights(weight_decay * learning_rate / peak, mask)
    return mx.Chain(direction, decay, mx.Scale(-learning_rate))


def test_what_a_function_computes_follows_its_arguments():
    """The arguments that are numbers or schedules are in the state, with their defaults; the others are static."""
    line = schedules.Linear(0.5, 0.1, 4)
    mask = mx.by_path({"w": True, "b": False})
    transform: Any = mx.inject_hyperparams(tied, "mask")(line, kind="sgd", peak=0.5, mask=mask)
    p = {"w": jnp.ones(2), "b": jnp.ones(2)}
    state: Any = transform.init(p)
    assert dict(state.hyperparams) == {"learning_rate": 0.5, "weight_decay": np.float32(0.1), "peak": 0.5}
    assert repr(state.hyperparams) == repr(dict(state.hyperparams))
    assert len(state.hyperparams) == 3
    state.hyperparams["peak"] = 1.0
    for rate in (0.5, 0.4):
        u, state = transform.update(p, state, p)
        np.testing.assert_allclose(u["w"], -rate * (1 + 0.1 * rate / 1.0), rtol=1e-6)
        np.testing.assert_allclose(u["b"], -rate, rtol=1e-6)
        np.testing.assert_allclose(state.hyperparams["learning_rate"], rate, rtol=1e-6)
    np.testing.assert_allclose(transform.hyperparameters(state)["inner.arguments.learning_rate"], 0.3, rtol=1e-6)
    fixed: Any = mx.inject_hyperparams(tied, ("peak", "mask"))(line, kind="sgd", mask=mask)
    assert set(fixed.init(p).hyperparams) == {"learning_rate", "weight_decay"}


def test_the_numbers_of_a_function_are_swept_and_differentiated():
    """By name, as those of any transform: `FromFactory` is one. A changed number is not traced."""
    optimizer = mx.FromFactory(functools.partial(tied, kind="sgd"), learning_rate=0.1, weight_decay=0.5)
    p = jnp.ones(2)

    def stepped(rate: Any) -> Any:
        o: Any = optimizer.replace(learning_rate=rate)
        return o.step(p, o.init(p), p)[0][0]

    rates = jnp.asarray([0.1, 0.2])
    np.testing.assert_allclose(jax.vmap(stepped)(rates), 1 - rates * (1 + 2.5 * rates), rtol=1e-6)
    np.testing.assert_allclose(jax.vmap(jax.grad(stepped))(rates), -1 - 5 * rates, rtol=1e-6)
    state = optimizer.init(p)
    optimizer.update(p, state, p)
    with counting_traces() as traces:
        optimizer.replace(weight_decay=0.25).update(p, state, p)
    assert not traces


def theirs(learning_rate: Any) -> Any:
    return optax.sgd(learning_rate)


@pytest.mark.parametrize(
    "make, text",
    [
        (lambda: mx.inject_hyperparams(tied, "maskk")(0.1, kind="sgd"), r"no argument `maskk`.*did you mean `mask`"),
        (lambda: mx.inject_hyperparams(lambda *rates: mx.SGD(rates[0]))(0.1), r"the argument \(0.1,\) has no name"),
        (lambda: mx.FromFactory(mx.SGD, learning_rate="fast"), r"must be a number or a schedule, got 'fast'"),
        (lambda: mx.FromFactory(mx.SGD, learning_rate=jnp.ones(2)), r"must be a scalar"),
        (lambda: mx.FromFactory(theirs, learning_rate=0.1).init(G), r"`FromFactory\(theirs\)`.*`from_optax"),
    ],
)
def test_what_a_function_cannot_be_made_of_is_refused(make: Any, text: str):
    with pytest.raises(ValueError, match=rf"(?i){text}"):
        make()
    with pytest.raises(TypeError, match="missing a required argument: 'kind'"):
        mx.inject_hyperparams(tied)(0.1)


def test_a_static_field_may_be_named_as_static():
    """As in optax, where every argument is in the state unless it is named."""
    transform = mx.inject_hyperparams(mx.AdamW, static_args=("mask", "nesterov"))(0.1)
    assert set(transform.init(G).hyperparams) == set(mx.AdamW(0.1).addresses())
    chain = mx.Injected(mx.Chain(mx.Trace(0.9), mx.Scale(0.1)), "nesterov")
    assert len(chain.init(G).hyperparams) == 2


@pytest.mark.filterwarnings("ignore:.*two optimizers")
def test_a_name_in_the_state_is_a_path_or_the_end_of_one():
    chain: Any = mx.Injected(mx.Chain(mx.Adam(0.1), mx.ScaleByMuon(), mx.Adam(0.2)))
    state = chain.init(G)
    hyperparams = state.hyperparams
    hyperparams["adam.learning_rate"] = 0.5
    assert hyperparams["parts.adam.learning_rate"] == 0.5
    assert chain.hyperparameters(state)["inner.parts.adam.learning_rate"] == 0.5
    with pytest.raises(KeyError, match=r"ambiguous: it could be `parts.adam.b1`, `parts.adam_2.b1`"):
        hyperparams["b1"]
    with pytest.raises(KeyError, match=r"there is no hyperparameter `rate`.*There are `parts.adam.learning_rate`"):
        hyperparams["rate"] = 1.0
    with pytest.raises(TypeError, match="cannot be removed"):
        del hyperparams["adam.learning_rate"]
    with pytest.raises(TypeError, match=r"entry of a tuple. Change it with `equinox.tree_at`"):
        hyperparams[next(name for name in hyperparams if name.endswith(".0"))] = 0.5


# --- Against optax ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("x64")
def test_the_dtype_of_the_numbers_is_not_that_of_the_arithmetic():
    """A decay that is kept in float32 is that number in double precision; optax takes its powers in float32."""
    rounded = np.float32(0.999)
    g = jnp.asarray([1.0, -2.0])

    def second_update(transform: Any) -> Any:
        _, state = transform.update(g, transform.init(g), g)
        return transform.update(2 * g, state, g)[0]

    expected = second_update(mx.Adam(1.0, b1=0.5, b2=float(rounded)))
    np.testing.assert_allclose(
        second_update(mx.Injected(mx.Adam(1.0, b1=0.5), hyperparam_dtype=jnp.float32)), expected, rtol=1e-12
    )
    with settings.jax_defaults():
        float32: Any = jnp.float32
        theirs = second_update(optax.inject_hyperparams(optax.adam, hyperparam_dtype=float32)(1.0, b1=0.5))
    assert np.max(np.abs(theirs / expected - 1)) > 1e-7
