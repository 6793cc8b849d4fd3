"""What stands in a field: `at` keeps it, an optimizer hands it on, and a dtype is one of the state.

The laws run here on instances with every static field away from its default, which are made from the registry.
"""

import copy
import dataclasses
import re
from collections.abc import Collection, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest

import modulax as mx
from modulax import aggregate, by_path, schedules
from modulax._protocol.schedule import is_schedule
from modulax._support.keys import is_key_data
from modulax._support.module import AbstractState
from modulax.testing import LAWS, Case, default_params
from modulax.testing._fields import (
    expect_same_fields,
    fields_of,
    is_same,
    other_static_value,
    other_value_of,
    with_optional_numbers,
)
from modulax.tree._paths import dotted
from modulax.tree._state import declarations

from .instances import EVERYTHING, FIRSTS, TRANSFORMS, Instance, firsts
from .instances._masks import is_huge
from .reach import small_params

PARAMS = default_params()
SHAPES = jax.eval_shape(lambda: PARAMS)

# What `other_static_value` cannot know, by the name of the field, or by the class and the name.
OTHER: dict[str, Any] = {
    "Flatten.chunk": 2,
    "ParamAverage.window": 2,
    "MasterWeights.dtype": "float32",
    "ScaleByDepth.axis": 1,
    "axis": 0,
    "axis_name": "workers",
    "batch_axis_name": "batch",
    "bits": 4,
    "default": "rest",
    "descends": True,
    "labels": lambda params: jtu.tree_map(lambda x: str(x.ndim), params),
    "hyperparam_dtype": jnp.float16,
    "over": (),
    "qr_iterations": 2,
    "rank": 1,
    "rank_fraction": 0.5,
    "start": 2,
    "Kron.block_size": 3,
    "ScaleByKron.block_size": 3,
    "preconditioning": "spectral",
    "should_skip": is_huge,
    "static_args": ("learning_rate",),
    "where": by_path({"*": True}),
}
# Fields with which an update needs what the registered instance is not given: other axes, a gradient function.
OF_OTHER_UPDATES = {"axis_name", "batch_axis_name", "per_elt_axis", "opaque_mode", "takes_examples"}


OPTIMIZERS = {instance.cls.__name__: instance for instance in FIRSTS if mx.AbstractOptimizer in instance.cls.__mro__}


def away(transform: Any, but: Collection[str] = ()) -> Any:
    """The transform with every static field away from its default, but for some."""
    for field in fields_of(transform, static=True):
        value = getattr(transform, field.name)
        if field.name in but or value != field.default:
            continue
        if isinstance(transform, aggregate.Process):
            transform = transform.replace(aggregator=aggregate.GetPerElementMeanAndSumSqDiffGrads())
        names = f"{type(transform).__name__}.{field.name}", field.name
        known = [OTHER[name] for name in names if name in OTHER]
        other = known[0] if known else other_static_value(field, value)
        transform = transform.replace(**{field.name: other})
    return transform


def zero_state(transform: mx.AbstractTransform) -> Any:
    """A state with zeros in it, without a program to compile."""
    shapes = jax.eval_shape(transform.init, SHAPES)
    return jtu.tree_map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)


# Fields that hold any string.
FREE_STRINGS = {("Snapshot", "measure_name")}


def test_a_string_that_is_not_an_option_is_refused():
    for instance in firsts(EVERYTHING):
        module = instance.made
        for name in (f.name for f in fields_of(module, static=True) if isinstance(getattr(module, f.name), str)):
            if (type(module).__name__, name) not in FREE_STRINGS:
                other = copy.copy(module)
                object.__setattr__(other, name, "spline")  # by `replace`, beartype would be the first to complain
                call = re.escape(f"`{type(module).__name__}({name}=...)` must be one of ")
                with pytest.raises(ValueError, match=f"{call}.*, got 'spline'"):
                    other.__check_init__()


@pytest.mark.parametrize("instance", firsts(EVERYTHING), ids=str)
def test_at_keeps_every_static_field(instance: Instance):
    """None has its default, so that what a method drops is missed."""
    transform = away(instance.made)
    for field in fields_of(transform, static=True):
        assert getattr(transform, field.name) != field.default, field.name
    if isinstance(transform, mx.AbstractTransform):
        expect_same_fields(transform.at(zero_state(transform)), transform, type(transform).__name__)


def composed() -> Iterator[Instance]:
    """Whatever writes trees or contains transforms: rules on one array and optimizers have one `at` for all."""
    for instance in FIRSTS:
        transform = instance.made
        is_rule = isinstance(transform, mx.AbstractLeafwise | mx.AbstractStatelessTransform)
        if not is_rule and not isinstance(transform, mx.AbstractOptimizer):
            yield instance


def case_of(instance: Instance, transform: Any) -> Case:
    return Case(transform, extra=instance.extra, rtol=instance.rtol, examples=instance.examples)


@pytest.mark.parametrize("instance", list(composed()), ids=str)
def test_the_next_update_is_that_of_at(instance: Instance):
    transform = away(instance.made, OF_OTHER_UPDATES)
    LAWS["at_is_the_transform_of_the_next_step"].check(case_of(instance, transform))


@pytest.mark.parametrize("instance", list(composed()), ids=str)
def test_each_part_has_its_own_state(instance: Instance):
    transform: Any = instance.made
    parts = list(transform.each_part(zero_state(transform)))
    assert [type(part.state) for part in parts] == [type(zero_state(part.transform)) for part in parts]


def counting() -> Iterator[Instance]:
    """The transforms that go by a counter of their own, and of rules on one array one that has a counter."""
    for instance in FIRSTS:
        transform = instance.made
        is_optimizer = isinstance(transform, mx.AbstractOptimizer)
        counts = transform.clock in ("steps", "pace") and not is_optimizer
        if counts or isinstance(transform, mx.ScaleByAdam):
            yield instance


def scheduled_everywhere(transform: Any) -> Any:
    """The transform with schedules in place of all numbers, those of its parts included."""
    curves = {}
    for path, x in jtu.tree_leaves_with_path(transform, is_leaf=is_schedule):
        if not is_schedule(x) and not is_key_data(x):
            curves[dotted(path)] = schedules.Linear(x, 0.75 * x + 0.25 * (x >= 1), 4)
    return transform.replace(**curves)


@pytest.mark.parametrize("instance", list(dict.fromkeys((*counting(), *composed()))), ids=str)
def test_no_schedule_is_left_and_each_is_at_the_step_of_the_next_update(instance: Instance):
    transform: Any = scheduled_everywhere(instance.made)
    transform = mx.Scheduled(transform) if transform.clock == "caller" else transform
    now = transform.at(zero_state(transform))
    assert not any(map(is_schedule, jtu.tree_leaves(now, is_leaf=is_schedule)))
    if not isinstance(transform, mx.Injected):  # whose state has the numbers of the step before
        LAWS["at_is_the_transform_of_the_next_step"].check(case_of(instance, transform))


def test_at_reaches_the_optimizer_that_an_optimizer_holds():
    b1, rate = schedules.Linear(0.8, 0.95, 10), schedules.Linear(0.1, 0.2, 10)
    for optimizer in (
        mx.GaLore(rate, 1, base_optimizer=mx.AdamW(1.0, b1=b1)),
        mx.LBFGS(linesearch=mx.Chain(mx.SGD(rate), mx.Scale(-1.0))),
    ):
        LAWS["at_is_the_transform_of_the_next_step"].check(Case(optimizer))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_an_optimizer_builds_is_kept_and_is_one_program(name: str):
    """Its structure is a key of the cache of `jit`, with rules that were made on the way."""
    optimizer: Any = OPTIMIZERS[name].made
    first, second = (jtu.tree_structure(optimizer.transform()) for _ in range(2))
    assert (first, hash(first)) == (second, hash(second))
    built = optimizer.at(zero_state(optimizer)).transform()
    expect_same_fields(built.at(zero_state(built)), built, name)


@pytest.mark.parametrize("instance", TRANSFORMS, ids=str)
def test_fields_reach_what_they_are_for(instance: Instance):
    """A dtype is one of the state; an optimizer, here without parameters, hands its fields on."""
    for name, params in (
        ("a_field_that_is_a_dtype_is_one_of_the_state", PARAMS),
        ("a_field_of_an_optimizer_is_handed_on", {}),
    ):
        case = dataclasses.replace(case_of(instance, instance.made), params=params)
        if LAWS[name].speaks_of(case) and name not in instance.exemptions:
            LAWS[name].check(case)


# --- Handed on under the same name -----------------------------------------------------------------

# Numbers of an optimizer that are others in the part with a field of this name.
TRANSFORMED = {
    ("Fromage", "learning_rate"),  # divided by a root
}


def values_of(name: str, tree: Any) -> Iterator[Any]:
    """What stands in the fields of this name, in every Module inside of a tree."""
    for module in jtu.tree_leaves(tree, is_leaf=lambda x: isinstance(x, eqx.Module)):
        if isinstance(module, eqx.Module):
            yield from (getattr(module, f.name) for f in dataclasses.fields(module) if f.name == name)
            for f in fields_of(module, static=False):
                yield from values_of(name, getattr(module, f.name))


def with_other_values(optimizer: Any) -> Any:
    """The optimizer with another value in every field, and no number twice."""
    optimizer = with_optional_numbers(optimizer)
    for i, field in enumerate(dataclasses.fields(optimizer)):
        optimizer = optimizer.replace(**{field.name: other_value_of(field, getattr(optimizer, field.name), i)})
    return optimizer


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_field_keeps_its_name_on_the_way(name: str):
    """Two arguments that are exchanged change the transform too, but not to this."""
    given: Any = OPTIMIZERS[name].made
    optimizer = with_other_values(given.at(zero_state(given)))
    transform = optimizer.transform()
    for field in dataclasses.fields(optimizer):
        value, found = getattr(optimizer, field.name), list(values_of(field.name, transform))
        if "dtype" in field.name:  # of one thing or of several, but then of all of them
            assert all(x == value for x in found), field.name
        elif (name, field.name) not in TRANSFORMED:
            given = [x for x in found if x is not None]
            assert not given or any(is_same(x, value) for x in given), field.name


# --- Fields of states ----------------------------------------------------------------------------


SIGNS = np.asarray([1.0, -2.0, -0.5, 3.0], np.float32)
SIGNED = {"ScaleBySophia": "an estimate of a Hessian, which is positive for the loss of the test"}


def test_every_field_of_a_state_says_what_it_holds():
    """Copies of the parameters are declared exact, and nonnegative fields are those declared so, and no others."""
    params = small_params()  # whose programs the laws have compiled
    considered = set[type]()

    def classes(state: Any) -> set[type]:
        children = [x for x in jtu.tree_leaves(state, is_leaf=lambda x: x is not state) if x is not state]
        own = {type(state)} if isinstance(state, AbstractState) else set[type]()
        return own.union(*map(classes, children))

    for instance in TRANSFORMS:
        if instance.examples:
            continue
        transform = instance.made
        state = jax.eval_shape(lambda p, t=transform: mx.tree.dequantize(t.init(p)), params)
        if classes(state) <= considered:
            continue
        considered |= classes(state)
        states = [transform.init(params)]
        for sign in (1.0, -1.0, 0.5):
            updates = jtu.tree_map(lambda p, s=sign: np.resize(np.float32(s) * SIGNS, p.shape), params)
            extra: Any = instance.extra(params, updates) if callable(instance.extra) else instance.extra
            states.append(transform.update(updates, states[-1], params, **extra)[1])
        declared = declarations(state)
        leaves = [list(map(np.asarray, jtu.tree_leaves(mx.tree.dequantize(s)))) for s in states]
        for field, *xs in zip(declared, *leaves, strict=True):
            if field is None or not jnp.issubdtype(xs[0].dtype, jnp.floating) or xs[0].ndim == 0:
                continue
            is_copy = any(np.array_equal(xs[0], p) for p in jtu.tree_leaves(params))
            assert field.get("exact") or not is_copy, f"{instance}: a copy of the parameters is not declared exact"
            is_nonnegative, is_zero = (
                all(bool(jnp.all(f(x))) for x in xs) for f in (lambda x: x >= 0, lambda x: x == 0)
            )
            # A root may happen to have no negative entry.
            is_quantized = not (field.get("exact") or field.get("preconditioner"))
            if field.get("nonnegative"):
                assert is_nonnegative, f"{instance}: a field is declared nonnegative and is {xs}"
            elif not is_zero and is_quantized and instance.name not in SIGNED:
                assert not is_nonnegative, f"{instance}: a field that is never negative is not declared so, {xs}"


def test_a_mask_of_arrays_is_refused():
    masked = [i.made for i in OPTIMIZERS.values() if "mask" in vars(i.made)]
    assert len(masked) > 30
    for optimizer in masked:
        with pytest.raises(ValueError, match="must hold Python values such as `True`"):
            optimizer.replace(mask=jnp.ones(2))
