"""Hyperparameters: stored as scalars, printed as written, listed and changed by path."""

import copy
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import modulax
from modulax import schedules


def chain():
    return modulax.Chain(modulax.ClipByGlobalNorm(1.0), modulax.AdamW(1e-3), modulax.Adam(1e-2))


@pytest.mark.parametrize("value", [1, 0.5, np.float64(0.25), np.asarray(2)], ids=repr)
def test_a_number_is_stored_as_a_scalar_of_the_default_float_dtype(value):
    stored: Any = modulax.Scale(value).step_size
    assert isinstance(stored, np.ndarray)
    assert (stored, stored.shape, stored.dtype) == (np.float32(value), (), np.float32)
    assert not stored.flags.writeable


def test_under_x64_a_number_keeps_double_precision(x64):
    stored: Any = modulax.Scale(0.1).step_size
    assert stored == 0.1
    assert stored.dtype == np.float64


def test_the_number_of_a_user_is_copied():
    mine: Any = np.asarray(0.5, np.float32)
    transform = modulax.Scale(mine)
    mine[...] = 2.0
    assert transform.step_size == 0.5


def test_a_jax_array_is_kept_and_loses_its_weak_type():
    weak: Any = jnp.asarray(0.5)
    assert weak.aval.weak_type
    strong: Any = modulax.Scale(weak).step_size
    assert not strong.aval.weak_type
    for integer in (jnp.asarray(2), jnp.asarray(2, jnp.uint8)):
        transform = modulax.Scale(integer)
        stored: Any = transform.step_size
        assert (stored.dtype, stored.aval.weak_type) == (jnp.float32, False)
        assert transform.update(jnp.ones(()), transform.init(jnp.ones(())))[0] == 2
    low: Any = modulax.Scale(jnp.asarray(0.5, jnp.bfloat16)).step_size
    assert low.dtype == jnp.bfloat16


LONG = modulax.AdamW(0.1, 0.91, 0.92, 1e-4, eps_root=1e-5, weight_decay=0.01, nesterov=True)


@pytest.mark.parametrize(
    "transform, text",
    [
        (modulax.Scale(0.1), "Scale(step_size=0.1)"),
        (modulax.Scale(1e-8), "Scale(step_size=1e-08)"),
        (modulax.Scale(100), "Scale(step_size=100.0)"),
        (modulax.Ema(0.99), "Ema(decay=0.99)"),
        (modulax.Trace(0.9, accumulator_dtype=jnp.bfloat16), "accumulator_dtype=bfloat16"),
        (modulax.Scheduled(modulax.Scale(0.5)), "Scheduled(inner=Scale(step_size=0.5))"),
        (modulax.Chain(modulax.Clip(1.0)), "Chain(clip=Clip(max_delta=1.0))"),
        (schedules.PiecewiseConstant(1.0, {10: 0.5}), "boundaries=(10.0,), scales=(0.5,)"),
        (modulax.Freeze(modulax.by_path({"*": True})), "Freeze(mask=by_path({'*': True}))"),
        (eqx.filter_vmap(modulax.Scale)(jnp.arange(3.0)), "Scale(step_size=float32[3])"),
        (modulax.AddNoise(0.1, 0.5, key=2**40 + 7), "key=1099511627783)"),
        (modulax.AddNoise(0.1, 0.5, key=jax.random.key(0, impl="rbg")), "key=uint32[4])"),
        (modulax.Freeze(lambda tree: tree), "<lambda>)"),
        (modulax.selective_transform(modulax.Clip(1.0), freeze_mask={"w": True}), "mask=not_in({'w': True})"),
        (modulax.Chain(LONG), "Chain(\n  adamw=AdamW(\n    learning_rate=0.1,\n    b1=0.91,\n"),
        (modulax.Partition({1: modulax.Clip(2.0)}, {"w": 1}), "{1: Clip(max_delta=2.0)}"),
    ],
    ids=str,
)
def test_the_repr_reads_as_it_was_written(transform, text):
    assert text in repr(transform)


def test_a_traced_number_prints_its_shape():
    seen = []
    jax.jit(lambda t: seen.append(repr(t)))(modulax.Scale(1.0))
    assert seen == ["Scale(step_size=float32[])"]


def test_the_numbers_are_listed_by_path():
    assert list(chain().hyperparameters())[:3] == [
        "parts.clip_by_global_norm.max_norm",
        "parts.adamw.learning_rate",
        "parts.adamw.b1",
    ]
    optimizer = modulax.SGD(schedules.Linear(0.0, 0.5, 10), momentum=0.9)
    assert optimizer.hyperparameters() == {
        "learning_rate.init_value": 0.0,
        "learning_rate.end_value": 0.5,
        "learning_rate.transition_steps": 10.0,
        "learning_rate.transition_begin": 0.0,
        "momentum": np.float32(0.9),
    }


def test_a_random_key_is_not_a_hyperparameter_and_has_an_address():
    noise = modulax.Chain(modulax.AddNoise(0.1, 0.5, key=3))
    assert list(noise.hyperparameters()) == ["parts.add_noise.eta", "parts.add_noise.gamma"]
    assert noise.addresses()["parts.add_noise.key"](noise).tolist() == [0, 3]


def test_with_a_state_the_numbers_are_those_in_force():
    optimizer = modulax.MultiSteps(modulax.SGD(schedules.Linear(0.0, 0.5, 10), momentum=0.9), 2)
    p = {"w": jnp.ones(2)}
    state = optimizer.init(p)
    for _ in range(6):
        _, state = optimizer.update(p, state, p)
    now = {name: float(x) for name, x in optimizer.hyperparameters(state).items()}
    assert now == pytest.approx({"inner.learning_rate": 0.15, "inner.momentum": 0.9, "every_k": 2.0})


@pytest.mark.parametrize(
    "name, changed",
    [
        ("parts.adamw.b1", ["parts.adamw.b1"]),
        ("adamw.b1", ["parts.adamw.b1"]),
        ("max_norm", ["parts.clip_by_global_norm.max_norm"]),
        ("*.b1", ["parts.adamw.b1", "parts.adam.b1"]),
        ("*adam.*b1", ["parts.adam.b1"]),
    ],
)
def test_replace_changes_what_the_name_fits(name, changed):
    new = chain().replace(**{name: 0.25}).hyperparameters()
    old = chain().hyperparameters()
    assert [path for path in old if new[path] != old[path]] == changed
    assert all(new[path] == 0.25 for path in changed)


def test_replace_takes_static_fields_whole_parts_and_schedules():
    assert modulax.Trace(0.9).replace(nesterov=True).nesterov
    optimizer = modulax.AdamW(1e-3).replace(learning_rate=schedules.Constant(0.5), mask=modulax.by_path({"*": True}))
    assert isinstance(optimizer.learning_rate, schedules.Constant)
    assert optimizer.replace(learning_rate=0.25).learning_rate == 0.25
    assert optimizer.replace(**{"learning_rate.constant": 0.125}).learning_rate(0) == 0.125
    nested = modulax.Chain(optimizer).replace(**{"adamw.learning_rate": lambda step: 1.0})
    assert isinstance(nested.addresses()["parts.adamw.learning_rate"](nested), schedules.WrappedSchedule)


def test_replace_checks_and_converts():
    with pytest.raises(ValueError, match=r"`AdamW\(b1=...\)` must be in \[0, 1\), got 1.5"):
        chain().replace(**{"adamw.b1": 1.5})
    changed: Any = modulax.Scale(1.0).replace(step_size=2).step_size
    assert changed.dtype == np.float32


def test_an_address_reads_prints_and_serves_tree_at():
    addresses = chain().addresses()
    assert addresses["parts.adam.b2"].codify("chain") == "chain.parts['adam'].b2"
    assert addresses["parts.adam.b2"](chain()) == np.float32(0.999)
    changed = eqx.tree_at(addresses["parts.adam.b2"], chain(), 0.5)
    assert changed.parts["adam"].b2 == 0.5
    both = modulax.SGD(schedules.PiecewiseConstant(1.0, {5: 0.5, 7: 0.1})).addresses()
    assert both["learning_rate.scales.1"].codify("sgd") == "sgd.learning_rate.scales[1]"
    assert "learning_rate" in both  # a schedule has an address as a whole, too


def test_a_name_means_the_same_wherever_a_value_is_read():
    tuned = modulax.groups(modulax.AdamW(0.5), {"head.*": {"learning_rate": 0.25}})
    injected: Any = modulax.Injected(tuned)
    for values in (tuned.hyperparameters(), tuned.addresses(), injected.init({}, allow_empty=True).hyperparams):
        assert values["head.*.b1"] is values["transforms.head.*.b1"]
        with pytest.raises(KeyError, match=r"`\['\*.b1'\]` is ambiguous.*`transforms.head.\*.b1`, `trans"):
            values["*.b1"]
        with pytest.raises(ValueError, match=r"no hyperparameter `lr`. Did you mean `learning_rate`\?"):
            values["lr"]
    found = copy.deepcopy(tuned.hyperparameters())
    del found["transforms.default.b1"]
    assert jax.tree.map(float, found)["*.b1"] == pytest.approx(0.9)
    part: Any = modulax.Injected(tuned, static_args=("default", "head.*.b1"))
    fixed = part.init({}, allow_empty=True).hyperparameters
    assert jax.tree.leaves(fixed.transforms["default"]) == []
    assert (fixed.transforms["head.*"].b1, fixed.transforms["head.*"].b2) == (None, pytest.approx(0.999))


@pytest.mark.parametrize("other", ["*_rate", "adamw.learning_rate", "adamw", "*.learning_rate.init_value"])
def test_two_names_of_one_value_are_refused(other: str):
    optimizer: Any = modulax.Chain(modulax.AdamW(schedules.Linear(0.0, 1.0, 10)))
    with pytest.raises(ValueError, match=r"replace\(learning_rate=..., .*=...\)`: both names refer to `parts.adamw"):
        optimizer.replace(learning_rate=0.5, **{other: 0.25})


def test_a_batch_is_made_by_vmap_and_refused_otherwise():
    with pytest.raises(ValueError, match=r"must be a scalar, got an array of shape \(2,\).*eqx.filter_vmap"):
        modulax.AdamW(jnp.asarray([0.1, 0.2]))
    batch = eqx.filter_vmap(modulax.AdamW)(jnp.asarray([0.1, 0.2]))
    assert batch.learning_rate.shape == (2,)
    one = {"w": jnp.ones(2)}
    state = modulax.AdamW(0.1).init(one)
    for call in (lambda: batch.init(one), lambda: batch.update(one, state, one), lambda: batch.step(one, state, one)):
        with pytest.raises(ValueError, match=r"`AdamW` is a batch of transforms: `learning_rate` is not a scalar"):
            call()
    rates = eqx.filter_vmap(lambda x: schedules.Linear(x, 1.0, 2), out_axes=eqx.if_array(0))(jnp.asarray([0.1, 0.2]))
    with pytest.raises(ValueError, match=r"`parts\.sgd\.learning_rate\.init_value` is not a scalar"):
        modulax.Chain(modulax.Clip(1.0), modulax.SGD(rates)).init(one)
    steps = eqx.tree_at(lambda s: s.scales, schedules.PiecewiseConstant(1.0, {5: 0.5}), (jnp.ones(2),))
    with pytest.raises(ValueError, match=r"`SGD` is a batch of transforms: `learning_rate\.scales\.0` is not a scalar"):
        modulax.SGD(steps).init(one)


NO_NUMBERS = {"text": "fast", "none": None, "list": [1.0], "object": object(), "bool": True, "numpy": np.True_}
NO_NUMBERS |= {"complex": 1j, "numpy complex": np.asarray(1j), "jax complex": jnp.asarray(1j), "jax": jnp.array(True)}


@pytest.mark.parametrize("value", NO_NUMBERS.values(), ids=NO_NUMBERS)
def test_what_is_no_number_is_refused(value):
    with pytest.raises(ValueError, match=r"`Scale\(step_size=...\)` must be a number or a schedule"):
        modulax.Scale(value)


def test_a_shape_may_stand_for_a_number():
    shapes = jax.eval_shape(lambda: modulax.AdamW(1e-3))
    assert shapes.learning_rate.shape == ()


def test_a_frozen_part_stays_frozen():
    freeze, ones = modulax.freeze_hyperparameters, jnp.ones(2)
    frozen, linear = freeze(modulax.AdamW(0.1)), freeze(schedules.Linear(1.0, 0.0, 3))

    def are_floats(tree: Any) -> set[bool]:
        return {type(x) is float for x in jax.tree.leaves(tree)}

    chain = modulax.Chain(modulax.Clip(1.0), modulax.MultiSteps(frozen, 2)).replace(learning_rate=0.5, max_delta=2.0)
    assert (are_floats(chain["clip"]), are_floats(chain["multi_steps"].inner)) == ({False}, {True})
    assert chain == modulax.Chain(modulax.Clip(2.0), modulax.MultiSteps(freeze(modulax.AdamW(0.5)), 2))
    assert are_floats(chain.replace(inner=modulax.SGD(0.1))["multi_steps"].inner) == {False}  # a part as it is given
    adamw = modulax.AdamW(linear).replace(**{"learning_rate.end_value": 0.5, "b1": 0.8})
    assert (are_floats(adamw.learning_rate), are_floats(adamw.b1)) == ({True}, {False})
    assert are_floats(freeze(modulax.SGD(0.1)).replace(learning_rate=linear.replace(end_value=1))) == {True}
    # A traced number stays one.
    rates = jnp.array([0.1, 0.2])
    state = frozen.init(ones)
    steps = jax.vmap(lambda rate: frozen.replace(learning_rate=rate, weight_decay=0).update(ones, state, ones)[0])
    np.testing.assert_allclose(steps(rates), -rates[:, None] * jnp.ones((2, 2)), rtol=1e-4)
    with pytest.raises(ValueError, match=r"`freeze_hyperparameters`: `learning_rate` of `SGD` is traced"):
        jax.jit(lambda rate: freeze(modulax.SGD(rate)))(0.1)


RELATIVE = [cls(0.02) for cls in (modulax.Amos, modulax.Tiger, modulax.CAME, modulax.Adafactor)]
CLIPPED = modulax.Chain(modulax.ClipByBlockRMS(0.1), modulax.SGD(0.02))


@pytest.mark.parametrize("optimizer", [*RELATIVE, CLIPPED], ids=type)
def test_hypergradients_beside_parameters_without_a_gradient_or_without_entries(optimizer: Any):
    params = {"w": jnp.ones((2, 2)), "frozen": jnp.ones((3, 3)), "empty": jnp.zeros((0, 2))}
    grads = {"w": 0.3 * jnp.ones((2, 2)), "frozen": jnp.zeros((3, 3)), "empty": jnp.zeros((0, 2))}

    @eqx.filter_jit
    @eqx.filter_grad
    def end(optimizer: Any) -> Any:
        state, reached = optimizer.init(params), params
        for _ in range(2):
            reached, state = optimizer.step(grads, state, reached)
        return sum(map(jnp.sum, jax.tree.leaves(reached)))

    assert all(map(jnp.isfinite, end(optimizer).hyperparameters().values()))


RISING = schedules.Linear(0.25, 0.5, 4)
BEGINNING = [
    modulax.ScaleByFTRL(0.1, initial_accumulator_value=RISING),
    modulax.ScaleByRMS(initial_scale=RISING),
    modulax.ScaleByStddev(initial_scale=RISING),
    modulax.ScaleByRSS(initial_accumulator_value=RISING),
    modulax.ScaleByYogi(initial_accumulator_value=RISING),
    modulax.ScaleByRprop(RISING),
]


@pytest.mark.parametrize("rule", BEGINNING, ids=type)
def test_an_initial_value_may_be_a_schedule(rule: Any):
    """Of a rule that counts its own steps, without an optimizer around it."""
    leaves = jax.tree.leaves(rule.init(jnp.ones(2)))
    assert any(np.array_equal(x, np.full(2, 0.25, np.float32)) for x in leaves)
