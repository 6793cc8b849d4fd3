"""An optimizer as plain values, and back."""

import collections
import dataclasses
import json
import re
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml

import modulax as mx
from modulax import schedules
from modulax._protocol.transform import everything_in

from .instances import EVERYTHING
from .loops import each


def again(transform: Any, classes: Any = ()) -> Any:
    """The optimizer after a way through JSON, whose keys a tracker may sort."""
    return mx.from_config(json.loads(json.dumps(mx.to_config(transform), allow_nan=False, sort_keys=True)), classes)


@each(lambda: mx.available())
def test_every_optimizer_is_made_again(name: str):
    cls: Any = mx.get(name)
    required = [f.name for f in dataclasses.fields(cls) if f.default is f.default_factory is dataclasses.MISSING]
    optimizer = cls(**dict.fromkeys(required, 1))
    assert again(optimizer) == optimizer


@each(lambda: [str(i) for i in EVERYTHING])
def test_every_transform_and_schedule_is_made_again(name: str):
    """Or is refused, because it holds a function."""
    made = next(i for i in EVERYTHING if str(i) == name).make()
    transform = made if isinstance(made, mx.AbstractTransform) else mx.Scheduled(mx.Scale(made))
    try:
        config = mx.to_config(transform)
    except ValueError as error:
        assert re.match(r"`to_config`: `[\w.]+` holds a (function|`_Function`|`WrappedSchedule`)", str(error))  # noqa: PT017
    else:
        assert not re.search(r"<.* at 0x", str(config))
        classes = [type(x) for t in everything_in(transform) for x in (t, *vars(t).values())]
        assert again(transform, classes) == transform


def test_all_fields_are_written():
    config = mx.to_config(mx.Chain(clip=mx.Clip(1.0), adamw=mx.AdamW(schedules.CosineDecay(1e-3, 10), mask=mx.decays)))
    adamw = dict(config["parts"]["items"])["adamw"]
    numbers = {"init_value": 0.001, "decay_steps": 10.0, "alpha": 0.0, "exponent": 1.0}
    assert config["version"] == 1
    assert adamw.pop("learning_rate") == {"name": "schedules.CosineDecay", **numbers}
    numbers = {"b1": 0.9, "b2": 0.999, "eps": 1e-8, "eps_root": 0.0, "weight_decay": 1e-4}
    assert adamw == {"name": "AdamW", "mu_dtype": None, "mask": {"name": "decays"}, "nesterov": False, **numbers}
    assert "clip_value_fn" not in mx.to_config(mx.ADOPT(1e-3))  # a function, the default


PLAIN = {
    "groups": mx.groups(mx.AdamW(1e-3), {"*.bias": {"weight_decay": 0.0}, "a*": {"learning_rate": 0.1}}),
    "mask": mx.AdamW(1e-3, mask={"w": True, "blocks": [{"b": False}], "pair": (True, False)}),
    "by_regex": mx.AdamW(1e-3, mask=mx.by_regex({r".*\.(bias|scale)": False}, default=True)),
    "by_role": mx.AdamW(1e-3, mask=mx.by_role({mx.Bias: False, mx.Gain: False}, default=True)),
    "all": mx.AdamW(1e-3, mask=True),
    "expression": mx.AdamW(0.5 * schedules.Linear(1.0, 0.0, 10) - 0.25, mu_dtype=jnp.bfloat16),
    "jax": mx.AdamW(jnp.float32(0.1)),
    "key": mx.AddNoise(0.1, 0.55, 2**40 + 3),
    "roles": mx.Muon(1e-3, roles={"readout": mx.Head(), "qkv": mx.Attention(heads=8)}),
    "function": mx.MultiSteps(mx.AdamW(1e-3), 2, should_skip=mx.skip_not_finite),
    "labels": mx.Partition({1: mx.SGD(0.1), 0: mx.Lion(1e-4)}, mx.by_path({"w": 1, "*": 0})),
    "infinite": mx.Chain(b=mx.Clip(float("inf")), a=mx.ScaleByPath({"w": float("inf")})),
    "frozen": mx.selective_transform(mx.AdamW(1e-3), freeze_mask=mx.by_path({"w": True}, default=False)),
    "frozen tree": mx.selective_transform(mx.AdamW(1e-3), freeze_mask={"w": True, "pair": [True, (False,)]}),
    "frozen roles": mx.selective_transform(mx.AdamW(1e-3), freeze_mask=mx.decays),
    "frozen by name": mx.from_config({"name": "selective_transform", "optimizer": mx.SGD(0.1), "freeze_mask": True}),
    "groups by role": mx.groups(mx.AdamW(1e-3), {mx.Bias: {"weight_decay": 0.0}, "a*": {"learning_rate": 0.1}}),
    "matrices": mx.Muon(1e-3, muon_weight_dimension_numbers=mx.MuonDimensionNumbers(0, (1, 2))),
    "some matrices": mx.GaLore(1e-3, 2, weight_dimension_numbers={"w": mx.GaLoreDimensionNumbers(0, 1), "b": False}),
    "boundaries": mx.AdamW(schedules.PiecewiseConstant(0.1, {30: 0.1, 60: 0.1})),
}


@pytest.mark.parametrize("transform", PLAIN.values(), ids=PLAIN)
def test_what_is_made_of_plain_values_is_made_again(transform: Any):
    assert again(transform) == transform
    assert f"{again(transform):all}" == f"{transform:all}"


def test_frozen_hyperparameters_stay_frozen():
    frozen = mx.freeze_hyperparameters(mx.Chain(mx.Clip(1.0), mx.AdamW(0.1)))
    made = again(frozen)
    assert made == frozen
    assert {type(x) for x in jax.tree.leaves(made)} == {float}
    assert "frozen" not in mx.to_config(mx.AdamW(0.1))
    part = mx.Chain(mx.Clip(1.0), mx.MultiSteps(mx.freeze_hyperparameters(mx.Adam(0.1)), 2))
    made = again(part)
    assert made == part
    assert type(made[1].inner.learning_rate) is float
    schedule = mx.AdamW(mx.freeze_hyperparameters(schedules.Linear(1.0, 0.0, 3)))
    assert list(map(type, jax.tree.leaves(again(schedule)))) == list(map(type, jax.tree.leaves(schedule)))
    of_that_name = mx.freeze_hyperparameters(mx.Chain(mx.Freeze({"frozen": True, "w": False}), mx.Adam(0.1)))
    assert again(of_that_name) == of_that_name


FASTER_HEAD = mx.groups(mx.SGD(1e-3), {"head": {"learning_rate": 1e-2}})
WITH_STRINGS = {
    "{name: groups, optimizer: {name: sgd, learning_rate: 1e-3}, changes: {head: {learning_rate: 1e-2}}}": FASTER_HEAD,
    "{name: ScaleByPath, multipliers: {head: 1e-1, 'nan': .inf}}": mx.ScaleByPath({"head": 0.1, "nan": float("inf")}),
    "{name: schedules.PiecewiseConstant, init_value: 1, boundaries_and_scales: {300: 1e-1, 4e2: 2}}": (
        schedules.PiecewiseConstant(1, {300: 0.1, 400: 2})
    ),
    "{name: schedules.Join, schedules: [1e-1, {name: schedules.Constant, constant: 1e-2}], boundaries: [1e2]}": (
        schedules.Join([0.1, schedules.Constant(0.01)], [100])
    ),
    "{name: muon, learning_rate: 1e-3, ns_coeffs: [34e-1, -4, 2]}": mx.Muon(1e-3, ns_coeffs=(3.4, -4, 2)),
    "{name: Partition, transforms: {'1': {name: Scale, step_size: 2}}, labels: {name: by_path, patterns: {w: '1'}}}": (
        mx.Partition({"1": mx.Scale(2.0)}, mx.by_path({"w": "1"}))
    ),
    "{name: muon, learning_rate: 1e-3, follow: optax}": mx.Muon(1e-3, follow="optax"),
}


@pytest.mark.parametrize("text", WITH_STRINGS)
def test_numbers_may_be_strings_wherever_they_are(text: str):
    """YAML reads `1e-3` as one; what isn't a number keeps its text."""
    assert mx.from_config(yaml.safe_load(text)) == WITH_STRINGS[text]


def test_a_configuration_is_written_by_hand():
    assert mx.from_config({"name": "adamw", "learning_rate": "1e-3"}) == mx.AdamW(1e-3)  # as YAML reads it
    chain = [{"name": "clip_by_global_norm", "max_norm": 1.0}, {"name": "sgd", "learning_rate": 0.1}]
    assert mx.from_config({"name": "Chain", "parts": chain}) == mx.Chain(mx.ClipByGlobalNorm(1.0), mx.SGD(0.1))
    named = {"clip": chain[0], "sgd": chain[1]}
    assert list(mx.from_config({"name": "Chain", "parts": named}).parts) == ["clip", "sgd"]
    scheduled = {"name": "schedules.Join", "schedules": [{"name": "schedules.Linear", "init_value": 0, "end_value": 1}]}
    scheduled["schedules"][0]["transition_steps"] = 5
    rate = mx.from_config({"name": "sgd", "learning_rate": scheduled | {"boundaries": []}}).learning_rate
    assert rate == schedules.Join([schedules.Linear(0.0, 1.0, 5)], [])


class Twice(mx.AbstractStatelessTransform):
    def apply(self, updates, params, **extra):
        return jax.tree.map(lambda u: 2 * u, updates)


def test_the_keys_of_hydra_and_patterns_are_read():
    patterns = {"*": True, "*.bias": False}  # as a tracker sorts them
    adamw = {"_target_": "modulax.AdamW", "learning_rate": {"name": "cosine_decay", "init_value": 1, "decay_steps": 9}}
    # OmegaConf's lists are no subclasses of `list`.
    parts = collections.UserList([{"_target_": "own.Twice"}, adamw])
    made = mx.from_config(collections.UserDict({"_target_": "modulax.Chain", "parts": parts}), [Twice])
    assert made == mx.Chain(Twice(), mx.AdamW(schedules.CosineDecay(1.0, 9)))
    mask = mx.by_path({"*.bias": False, "*": True})
    assert mx.from_config(adamw | {"mask": patterns}).mask == mask
    assert mx.from_config({"name": "freeze", "mask": patterns}).mask == mask
    tree = {"bias": False, "kernel": True}
    assert mx.from_config(adamw | {"mask": tree}) == mx.AdamW(schedules.CosineDecay(1.0, 9), mask=tree)
    parts = {"a": {"name": "sgd", "learning_rate": 1}, "b": {"name": "sgd", "learning_rate": 2}}
    labels = mx.from_config({"name": "Partition", "transforms": parts, "labels": {"*.bias": "a", "*": "b"}}).labels
    assert labels == mx.by_path({"*.bias": "a", "*": "b"})


def test_what_has_no_plain_values_is_refused_with_its_field():
    batch = eqx.filter_vmap(mx.SGD)(jnp.ones(3))
    with pytest.raises(ValueError, match=r"`parts\.sgd\.learning_rate` is a batch of numbers of shape \(3,\)"):
        mx.to_config(mx.Chain(batch))
    with pytest.raises(ValueError, match=r"`learning_rate` is traced"):
        jax.jit(lambda x: mx.to_config(mx.SGD(x)) and x)(1.0)
    with pytest.raises(ValueError, match=r"`mask` holds a `_Function`"):
        mx.to_config(mx.AdamW(1e-3, mask=lambda params: jax.tree.map(jnp.ndim, params)))
    with pytest.raises(ValueError, match=r"there is no optimizer or transform `Adamm`\. Did you mean"):
        mx.from_config({"name": "Adamm"})
    with pytest.raises(ValueError, match=r"`SGD\(learning_rate=...\)` must be a number or a schedule, got 'fast'"):
        mx.from_config({"name": "sgd", "learning_rate": "fast"})


def test_numbers_are_the_shortest_that_are_read_back():
    assert mx.to_config(mx.SGD(np.float32(0.1)))["learning_rate"] == 0.1
    assert mx.to_config(mx.Clip(float("inf")))["max_delta"] == "inf"
