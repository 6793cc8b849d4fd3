"""Chains, masks, partitions: how they are built, read and addressed."""

from collections import OrderedDict
from typing import Any

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest
from flax.core import FrozenDict

import modulax as mx
from modulax import schedules

PARAMS = {"dense": {"bias": jnp.ones(2), "kernel": jnp.ones((3, 2))}, "scale": jnp.ones(())}


def _update(transform: Any, params: Any = None) -> Any:
    params = PARAMS if params is None else params
    return transform.update(params, transform.init(params), params)[0]


# --- Chain -----------------------------------------------------------------------------------------


def test_parts_are_named_after_their_classes():
    chain = mx.Chain(mx.ScaleByAdam(), mx.ClipByGlobalNorm(1.0), mx.ScaleByAdam(), mx.AdamW(0.1))
    names = ["scale_by_adam", "clip_by_global_norm", "scale_by_adam_2"]
    assert list(chain.parts)[:3] == names
    assert chain.init(PARAMS).names == tuple(chain.parts)


def test_a_name_that_is_given_is_that_of_no_other_part():
    a, b, c = mx.Scale(2.0), mx.Scale(3.0), mx.Scale(5.0)
    for chain in (mx.Chain(a, b, scale=c), mx.Chain(a, b, scale_2=c), mx.Chain(a, scale=b, scale_2=c)):
        assert [*chain.parts.values()] == [a, b, c]
        assert chain[list(chain.parts)[-1]] is c


def test_a_chain_is_a_sequence_and_a_mapping():
    clip, adam, rate = mx.Clip(1.0), mx.ScaleByAdam(), mx.ScaleByLearningRate(0.1)
    chain = mx.Chain(clip, adam=adam, rate=rate)
    assert len(chain) == 3
    assert [*chain.parts.values()] == [*chain] == [clip, adam, rate]
    assert chain[0] is clip
    assert chain[-1] is chain["rate"] is rate
    assert "adam" in chain
    assert "adamw" not in chain
    assert list(chain[1:].parts) == ["adam", "rate"]
    assert isinstance(chain[:1], mx.Chain)
    with pytest.raises(IndexError):
        chain[3]


def test_a_state_is_read_by_index_and_by_name():
    chain = mx.Chain(mx.Clip(1.0), adam=mx.ScaleByAdam())
    state = chain.init(PARAMS)
    assert state[1] is state["adam"] is state[-1]
    assert len(state) == 2
    assert state["adam"].count == 0
    with pytest.raises(KeyError, match="no part 'clp'; it has `clip`, `adam`"):
        state["clp"]


def test_a_part_without_state_takes_no_place_in_the_state():
    state = mx.Chain(mx.Clip(1.0), mx.ScaleByAdam(), mx.Scale(2.0)).init(PARAMS)
    assert list(state.parts) == ["scale_by_adam"]
    assert state["clip"] == state[2] == mx.EmptyState()
    assert jtu.tree_structure(state.parts) == jtu.tree_structure({"scale_by_adam": mx.ScaleByAdam().init(PARAMS)})


def test_the_state_of_a_chain_in_another_order_is_refused():
    a, b = mx.Trace(0.5), mx.Trace(0.9)
    with pytest.raises(ValueError, match="it holds `b`, `a`, and the parts are `a`, `b`"):
        mx.Chain(a=a, b=b).update(PARAMS, mx.Chain(b=b, a=a).init(PARAMS), PARAMS)


def test_the_order_survives_a_tree_map():
    """Dicts would be sorted by their keys."""
    chain = mx.Chain(z=mx.Scale(2.0), a=mx.Clip(1.0))
    mapped = jtu.tree_map(lambda x: x, chain)
    assert list(mapped.parts) == ["z", "a"]
    assert _update(mapped)["scale"] == 1  # twice, then clipped
    state = jax.jit(lambda s: s)(chain.init(PARAMS))
    assert state.names == ("z", "a")


def test_a_part_that_is_inserted_renames_none():
    """So that a checkpoint of the shorter chain fits the longer one by its paths."""
    short = mx.Chain(mx.ScaleByAdam(), mx.Trace(0.9))
    long = mx.Chain(mx.Clip(1.0), mx.ScaleByAdam(), mx.Ema(0.9), mx.Trace(0.9))

    def paths(chain: Any) -> set[str]:
        return {jtu.keystr(p) for p, _ in jtu.tree_leaves_with_path(chain.init(PARAMS))}

    assert paths(short) < paths(long)


def test_an_extra_argument_reaches_every_part():
    class Times(mx.AbstractStatelessTransform):
        def apply(self, updates: Any, params: Any, **extra: Any) -> Any:
            return jtu.tree_map(lambda u: u * extra["value"], updates)

    chain = mx.Chain(mx.Clip(1.0), mx.Masked(Times(), lambda _: True), Times())
    u, _ = chain.update(PARAMS, chain.init(PARAMS), PARAMS, value=jnp.asarray(3.0))
    np.testing.assert_array_equal(u["scale"], 9)


def test_a_fused_chain_in_float32():
    """Between rules the update stays in float32, also for bfloat16 parameters."""
    parts = [mx.Scale(1 / 3), mx.Scale(3.0)]
    g = {"w": jnp.asarray(np.random.default_rng(0).normal(size=64), jnp.bfloat16)}
    fused = _update(mx.Chain(*parts), g)
    np.testing.assert_array_equal(fused["w"], g["w"])
    alone = _update(parts[1], _update(parts[0], g))
    assert not np.array_equal(alone["w"], g["w"])
    full = {"w": jnp.asarray(np.random.default_rng(0).normal(size=64), jnp.float32)}
    chain = [mx.Trace(0.9), mx.ScaleByAdam(), mx.AddDecayedWeights(0.1), mx.ScaleByLearningRate(0.1)]
    one_by_one = full
    for part in chain:
        one_by_one = part.update(one_by_one, part.init(full), full)[0]
    np.testing.assert_allclose(_update(mx.Chain(*chain), full)["w"], one_by_one["w"], rtol=1e-6)


# --- Masks and labels ------------------------------------------------------------------------------

MASKS = {
    "tree": {"dense": {"bias": False, "kernel": True}, "scale": True},
    "prefix": {"dense": True, "scale": False},
    "numpy": {"dense": np.bool_(True), "scale": np.bool_(False)},
    "frozen": FrozenDict({"dense": FrozenDict({"bias": False, "kernel": True}), "scale": True}),
    "everything": True,
    "function": lambda tree: jtu.tree_map(lambda x: x.ndim > 0, tree),
    "prefix function": lambda tree: {"dense": False, "scale": True},
    "rules": mx.by_path({"dense.kernel": True, "*": False}),
}
CHOSEN = {
    "tree": {"dense.kernel", "scale"},
    "prefix": {"dense.bias", "dense.kernel"},
    "numpy": {"dense.bias", "dense.kernel"},
    "frozen": {"dense.kernel", "scale"},
    "everything": {"dense.bias", "dense.kernel", "scale"},
    "function": {"dense.bias", "dense.kernel"},
    "prefix function": {"scale"},
    "rules": {"dense.kernel"},
}


def _paths_where(tree: Any, condition: Any) -> set[str]:
    return {
        ".".join(key.key for key in path) for path, x in jtu.tree_leaves_with_path(tree) if condition(np.asarray(x))
    }


@pytest.mark.parametrize("name", MASKS)
def test_a_mask_can_be_written_in_many_ways(name: str):
    mask = MASKS[name]
    doubled = _update(mx.Masked(mx.Scale(2.0), mask))
    assert _paths_where(doubled, lambda x: np.all(x == 2)) == CHOSEN[name]
    assert _paths_where(doubled, lambda x: np.all(x == 1)) == CHOSEN["everything"] - CHOSEN[name]
    frozen = _update(mx.Freeze(mask))
    assert _paths_where(frozen, lambda x: np.all(x == 0)) == CHOSEN[name]
    decayed = _update(mx.AddDecayedWeights(1.0, mask))
    assert _paths_where(decayed, lambda x: np.all(x == 2)) == CHOSEN[name]


def test_equal_masks_are_one_program_and_others_are_not():
    """A mask is part of the program: equal ones must not compile it again, and another one must."""

    masks = MASKS | {"a, b": {"a": True, "b": False}, "a, c": {"a": True, "c": False}, "list": [True, False]}

    def structures() -> dict[str, Any]:
        masked = {name: mx.Masked(mx.Scale(2.0), mask) for name, mask in masks.items()}
        frozen = {
            f"not {name}": mx.selective_transform(mx.Scale(2.0), freeze_mask=mask) for name, mask in masks.items()
        }
        return {name: jtu.tree_structure(transform) for name, transform in (masked | frozen).items()}

    first, again = structures(), structures()
    assert first == again
    assert first.pop("numpy") == first["prefix"]
    assert first.pop("not numpy") == first["not prefix"]
    assert len({*first.values(), *again.values()}) == len(first)


@pytest.mark.parametrize("name", MASKS)
def test_masked_leaves_have_no_state(name: str):
    state = mx.Masked(mx.Trace(0.9), MASKS[name]).init(PARAMS)
    assert _paths_where(state.inner_state.trace, lambda _: True) == CHOSEN[name]


def test_a_masked_out_parameter_is_unknown_to_the_norm():
    """The inner transform receives its own leaves only."""
    g = {"a": jnp.asarray([3.0, 4.0]), "b": jnp.asarray([100.0])}
    u = _update(mx.Masked(mx.ClipByGlobalNorm(5.0), {"a": True, "b": False}), g)
    np.testing.assert_array_equal(u["a"], g["a"])
    np.testing.assert_array_equal(u["b"], g["b"])


def test_a_partition_runs_each_on_its_own():
    labels = {"dense": {"bias": "b", "kernel": "a"}, "scale": "b"}
    transform = mx.Partition({"b": mx.Scale(3.0), "a": mx.Trace(0.9), "idle": mx.Adam(0.1)}, labels)
    state = transform.init(PARAMS)
    assert list(state.inner_states) == ["b", "a", "idle"]
    assert _paths_where(state.inner_states["a"].trace, lambda _: True) == {"dense.kernel"}
    assert not jtu.tree_leaves(state.inner_states["idle"].inner["scale_by_adam"].mu)
    u, _ = transform.update(PARAMS, state, PARAMS)
    assert _paths_where(u, lambda x: np.all(x == 3)) == {"dense.bias", "scale"}


def test_labels_may_be_a_callable_module():
    """A Module that can be called is a tree of labels, never a function."""

    class Model(eqx.Module):
        weight: Any
        bias: Any

        def __call__(self, x: Any) -> Any:
            raise AssertionError("the model was called")

    params, mask = Model(jnp.ones(2), jnp.ones(2)), Model(True, False)
    u = _update(mx.Masked(mx.Scale(2.0), mask), params)
    np.testing.assert_array_equal(u.weight, 2)
    np.testing.assert_array_equal(u.bias, 1)


def test_the_groups_of_a_partition_find_their_labels_together(monkeypatch: pytest.MonkeyPatch):
    """Each looked for those of all, which took 7 s in each `init` for 50 groups of 500 arrays."""
    count, groups = [], mx.Partition.groups
    monkeypatch.setattr(mx.Partition, "groups", lambda self, tree: count.append(1) or groups(self, tree))
    labels = mx.by_path({"*kernel": "a", "*bias": "b", "*": "c"})
    transform = mx.Partition({name: mx.SGD(0.1) for name in "abc"}, labels)
    state = transform.init(PARAMS)
    assert len(count) == 2, "for the states, and for the warnings"
    transform.eval_params(state, PARAMS)
    assert len(count) == 3
    mx.describe(transform, PARAMS)
    assert len(count) <= 7


def test_the_first_pattern_wins():
    rules = OrderedDict({"dense.bias": "a", "dense.*": "b", "*": "c"})
    transform = mx.Partition({"a": mx.Scale(1.0), "b": mx.Scale(2.0), "c": mx.Scale(3.0)}, mx.by_path(rules))
    u = _update(transform)
    found = (u["dense"]["bias"][0], u["dense"]["kernel"][0, 0], u["scale"])
    assert found == (1, 2, 3)


def test_a_pattern_fits_at_the_root_and_below():
    for params in ({"bias": jnp.ones(2)}, {"layers": [{"bias": jnp.ones(2)}]}):
        u = _update(mx.Masked(mx.Scale(2.0), mx.by_path({"*.bias": True})), params)
        np.testing.assert_array_equal(jtu.tree_leaves(u)[0], 2)


def test_a_partition_has_a_group_for_the_rest():
    transforms = {"double": mx.Scale(2.0), "rest": mx.Scale(-1.0)}
    for labels in (mx.by_path({"*kernel": "double"}), {"dense": {"kernel": "double"}}, lambda _: {"dense": None}):
        updates = _update(mx.Partition(transforms, labels, default="rest"))
        assert updates["scale"] == updates["dense"]["bias"][0] == -1
        assert updates["dense"]["kernel"][0, 0] == (-1 if callable(labels) else 2)
    with pytest.raises(ValueError, match=r"no pattern matches the leaf `dense\.bias`"):
        _update(mx.Partition(transforms, mx.by_path({"*kernel": "double"})))
    with pytest.raises(ValueError, match=r"`Partition\(default='others'\)` must be the label of a transform"):
        mx.Partition(transforms, mx.by_path({"*": "rest"}), default="others")


def test_a_label_that_is_false_is_checked_too():
    with pytest.raises(ValueError, match=r"`Partition\(default=0\)` must be the label of a transform; there are `1`"):
        mx.Partition({1: mx.Identity()}, {}, default=0)


def test_partitions_nest():
    inner = mx.Partition({"a": mx.Scale(2.0), "b": mx.Scale(3.0)}, mx.by_path({"*bias": "a", "*": "b"}))
    outer = mx.Partition({"dense": inner, "rest": mx.Scale(-1.0)}, mx.by_path({"dense.*": "dense"}), default="rest")
    updates = _update(outer)
    assert [updates["dense"]["bias"][0], updates["dense"]["kernel"][0, 0], updates["scale"]] == [2, 3, -1]


def test_what_is_masked_out_may_become_zero():
    updates = _update(mx.Masked(mx.Scale(2.0), mx.by_path({"*.bias": True, "*": False}), otherwise="zero"))
    assert [updates["dense"]["bias"][0], updates["scale"]] == [2, 0]


def test_frozen_parameters_have_no_state():
    frozen = {"dense": {"bias": True, "kernel": False}, "scale": True}
    for mask in (frozen, lambda _: frozen, mx.by_path({"*kernel": False, "*": True})):
        transform = mx.selective_transform(mx.Trace(0.9), freeze_mask=mask)
        updates = _update(transform)
        assert [updates["dense"]["bias"][0], updates["dense"]["kernel"][0, 0], updates["scale"]] == [0, 1, 0]
        assert [p.shape for p in jtu.tree_leaves(transform.init(PARAMS))] == [(3, 2)]


def test_frozen_parameters_beside_gradients_of_every_example():
    """Their updates are zeros of the shapes of the parameters, as those of the others."""
    params = {"base": jnp.ones((2, 3)), "lora": jnp.ones(3)}
    rule: Any = mx.DPSGD(0.1, l2_norm_clip=1.0, noise_multiplier=0.0, key=0)
    pairs: Any = mx.Chain(mx.aggregate.AveragePerElementUpdates((0, 1)), mx.SGD(0.1))
    labels, is_frozen = {"base": "f", "lora": "t"}, {"base": True, "lora": False}
    for inner, axes in ((rule, (4,)), (pairs, (4, 2))):
        grads = {name: jnp.broadcast_to(jnp.arange(3.0), (*axes, *p.shape)) for name, p in params.items()}
        alone, _ = inner.update({"lora": grads["lora"]}, inner.init({"lora": params["lora"]}))
        transforms: list[Any] = [
            mx.selective_transform(inner, freeze_mask=is_frozen),
            mx.ApplyIfFinite(mx.selective_transform(inner, freeze_mask=is_frozen), 2),
            mx.Partition({"t": inner, "f": mx.SetToZero()}, labels),
            mx.Partition({"f": mx.Freeze(mx.by_path({"base": True})), "t": inner}, labels),
        ]
        for transform in transforms:
            updates, _ = transform.update(grads, transform.init(params))
            assert updates["base"].shape == (2, 3)
            assert not np.any(updates["base"])
            np.testing.assert_allclose(updates["lora"], alone["lora"], rtol=1e-6)
            moved, _ = transform.step(grads, transform.init(params), params)
            np.testing.assert_array_equal(moved["base"], params["base"])

    def is_matrix(tree: Any) -> Any:  # asked about the parameters, and not about the gradients of all examples
        return jax.tree.map(lambda p: p.ndim > 1, tree)

    grads = {name: jnp.broadcast_to(jnp.arange(3.0), (4, *p.shape)) for name, p in params.items()}
    by_tree = mx.selective_transform(rule, freeze_mask=is_frozen)
    all_by_shape: list[Any] = [
        mx.selective_transform(rule, freeze_mask=is_matrix),
        mx.Partition({True: mx.SetToZero(), False: rule}, is_matrix),
    ]
    for by_shape in all_by_shape:
        found, expected = (x.update(grads, x.init(params))[0] for x in (by_shape, by_tree))
        chex.assert_trees_all_equal(found, expected)
    with pytest.raises(ValueError, match=r'Write `Masked\(..., otherwise="zero"\)`'):
        mx.Masked(rule, {"base": False, "lora": True}).init(params)
    mx.Masked(rule, True).init(params)
    frozen = mx.Freeze(lambda tree: jax.tree.map(lambda p: p.ndim > 1, tree))
    found, _ = (x := mx.Partition({"t": rule, "f": frozen}, labels)).update(grads, x.init(params))
    assert found["base"].shape == (2, 3)
    with pytest.raises(ValueError, match="takes per-example gradients, and `SGD` of the group 'f' would take them"):
        mx.Partition({"t": rule, "f": mx.SGD(0.1)}, labels).init(params)
    half: Any = mx.Freeze(mx.by_path({"base": True, "*": False}))
    with pytest.raises(ValueError, match="takes per-example gradients, and `Freeze` of the group 'f'"):
        mx.Partition({"t": rule, "f": half}, mx.by_path({"lora": "t", "*": "f"})).init(params | {"a": jnp.ones(3)})
    mx.Partition({"t": rule, "f": pairs}, labels).init(params)
    for container in (mx.Mechanize, mx.SkipSpikes):
        with pytest.raises(ValueError, match=f"Leave `{container.__name__}` out"):
            container(rule)
    mx.SkipSpikes(rule, by="loss")


def test_functions_of_the_parameters_see_all_of_them():
    """Also where the transform that calls them receives only some parameters: the others are held constant."""

    class Probe(mx.AbstractStatelessTransform):
        def apply(self, updates, params, **extra):
            value, gradient = jax.value_and_grad(extra["value_fn"])(params, power=2)
            value = 0.5 * (value + extra["obj_fn"](params, power=2))
            from_caller = extra["grad_fn"](params)
            trees = updates, gradient, extra["grad"], from_caller, extra["curvature"]
            return jtu.tree_map(lambda *xs: value + sum(xs), *trees)

    def loss(params, power):
        return sum(jnp.sum(p**power) for p in jtu.tree_leaves(params))

    def expected(n):
        return 1.0 + 9.0 + 2.0 + n + 2.0 + 3.0

    extra = {"grad": jtu.tree_map(lambda p: 5 * p, PARAMS), "value_fn": loss, "obj_fn": loss}
    extra["grad_fn"] = lambda params: jax.grad(loss)(params, 2)
    extra["curvature"] = jtu.tree_map(lambda p: 3 * p, PARAMS)  # known by its structure and shapes
    masked = mx.Masked(Probe(), mx.by_path({"*.bias": True, "*": False}))
    partition = mx.Partition({"a": Probe(), "b": mx.Chain(Probe())}, mx.by_path({"*.bias": "a", "*": "b"}))
    transforms: tuple[Any, ...] = (masked, mx.Chain(mx.Masked(masked, True)), partition)
    for transform in transforms:
        updates, _ = transform.update(PARAMS, transform.init(PARAMS), PARAMS, **extra)
        np.testing.assert_allclose(updates["dense"]["bias"], expected(5.0))
        np.testing.assert_allclose(updates["scale"], expected(5.0) if transform is partition else 1.0)


def test_gradients_of_the_caller_may_be_wider():
    """As those of a loss in float32 at parameters in bfloat16: the round goes on in the dtype of the updates."""
    params = jnp.ones(2, jnp.bfloat16)
    seen: list[Any] = []

    def see(updates, params):
        del params
        seen.append(updates.dtype)
        return updates

    see_all = mx.Stateless(see)
    round_of_three = mx.SAM(see_all, see_all, sync_period=3, opaque_mode=True)
    updates, _ = round_of_three.update(
        params, round_of_three.init(params), params, grad_fn=lambda p, i: p.astype(float)
    )
    assert {updates.dtype, *seen} == {jnp.dtype(jnp.bfloat16)}


# --- Numbers ---------------------------------------------------------------------------------------


def test_labels_need_not_be_comparable():
    transforms = {1: mx.Scale(1.0), "c": mx.Scale(2.0), None: mx.Scale(3.0)}
    partition = mx.Partition(transforms, mx.by_path({"*bias": 1, "*kernel": "c"}, default=1))
    params = {"bias": jnp.ones(2), "kernel": jnp.ones(2)}
    u, state = jax.jit(partition.update)(params, partition.init(params))
    np.testing.assert_array_equal([u["bias"], u["kernel"]], [[1, 1], [2, 2]])
    assert list(state.inner_states) == [1, "c", None]
    assert partition.replace(transforms=transforms).hyperparameters() == partition.hyperparameters()
    assert "transforms.None.step_size" in partition.hyperparameters()
    with pytest.raises(ValueError, match="the labels 1 and '1' have the same name"):
        mx.Partition({1: mx.Scale(1.0), "1": mx.Scale(2.0)}, {})


def test_numbers_are_listed_by_path():
    transform = mx.Chain(clip=mx.ClipByGlobalNorm(1.0), opt=mx.SGD(schedules.Linear(1.0, 0.0, 4), momentum=0.5))
    assert dict(transform.hyperparameters()) == {
        "parts.clip.max_norm": 1.0,
        "parts.opt.learning_rate.init_value": 1.0,
        "parts.opt.learning_rate.end_value": 0.0,
        "parts.opt.learning_rate.transition_steps": 4.0,
        "parts.opt.learning_rate.transition_begin": 0.0,
        "parts.opt.momentum": 0.5,
    }


def test_the_numbers_in_force():
    transform = mx.AdamW(schedules.Linear(1.0, 0.0, 4), weight_decay=lambda step: jnp.asarray(0.5))
    state = transform.init(PARAMS)
    rates = []
    for _ in range(3):
        rates.append(float(transform.hyperparameters(state)["learning_rate"]))
        _, state = transform.update(PARAMS, state, PARAMS)
    assert rates == [1.0, 0.75, 0.5]
    assert transform.hyperparameters(state)["weight_decay"] == 0.5
    assert "learning_rate.init_value" in transform.hyperparameters()


def test_a_number_may_become_a_schedule_and_back():
    transform = mx.SGD(0.1)
    scheduled = transform.replace(learning_rate=schedules.Linear(1.0, 0.0, 4))
    assert isinstance(scheduled.learning_rate, mx.AbstractSchedule)
    state = scheduled.init(PARAMS)
    assert jtu.tree_structure(state) == jtu.tree_structure(transform.init(PARAMS))
    assert scheduled.replace(learning_rate=0.1).learning_rate == transform.learning_rate
    wrapped = transform.replace(learning_rate=lambda step: jnp.asarray(0.5))
    np.testing.assert_allclose(_update(wrapped)["scale"], -0.5)


def test_addresses_read_and_change():
    chain: Any = mx.Chain(mx.Clip(1.0), adam=mx.Adam(0.1))
    address = chain.addresses()["parts.adam.b1"]
    assert address(chain) is chain["adam"].b1
    changed: Any = eqx.tree_at(address, chain, np.float32(0.5))
    assert changed["adam"].b1 == 0.5
    assert chain["adam"].b1 == np.float32(0.9)
    assert "b1" in address.codify("chain")


def test_many_numbers_by_one_pattern():
    chain: Any = mx.Chain(mx.AdamW(0.1), mx.Lion(0.2))
    changed: Any = chain.replace(**{"*.weight_decay": 0.0, "lion.b1": 0.5})
    assert changed[0].weight_decay == changed[1].weight_decay == 0
    assert changed["lion"].b1 == 0.5
    assert changed["adamw"].b1 == chain["adamw"].b1


# --- Parameters to evaluate ------------------------------------------------------------------------


class _Doubled(mx.AbstractStatelessTransform):
    """Its parameters to evaluate are marked by their state, which here is none: the absolute values, doubled."""

    def apply(self, updates, params, **extra):
        return updates

    def eval_params(self, state, params):
        return jtu.tree_map(lambda p: 2 * jnp.abs(p), params)


class _Optimizer(mx.AbstractOptimizer):
    learning_rate: mx.Hyperparameter = mx.number()

    def transform(self):
        return mx.Chain(_Doubled(), mx.ScaleByLearningRate(self.learning_rate))


BIAS = mx.by_path({"*.bias": True, "*": False})


@pytest.mark.parametrize(
    "transform, bias, scale",
    [
        (mx.AdamW(0.1), 1, 1),
        (_Doubled(), 2, 2),
        (mx.Chain(mx.Clip(1.0), _Doubled()), 2, 2),
        (mx.Chain(_Doubled(), _Optimizer(0.1)), 4, 4),
        (mx.Masked(_Doubled(), BIAS), 2, 1),
        (mx.Partition({True: _Optimizer(schedules.Linear(1.0, 0.0, 4)), False: mx.Scale(1.0)}, BIAS), 2, 1),
        (mx.MultiSteps(mx.Scheduled(_Doubled()), 2), 2, 2),
        (mx.Injected(_Optimizer(0.1)), 2, 2),
    ],
)
def test_parameters_to_evaluate_through_any_nesting(transform: Any, bias: float, scale: float):
    model = {**PARAMS, "activation": jax.nn.relu, "steps": 3, "table": jnp.arange(2)}
    state = transform.init(model)
    for averaged in (transform.eval_params(state, model), jax.jit(transform.eval_params)(state, PARAMS)):
        np.testing.assert_allclose(averaged["dense"]["bias"], bias)
        np.testing.assert_allclose(averaged["scale"], scale)
    whole = transform.eval_params(state, model)
    assert whole["activation"] is jax.nn.relu
    assert whole["steps"] == 3
    np.testing.assert_array_equal(whole["table"], [0, 1])


def test_the_program_of_a_chain_grows_linearly():
    """Each clip reads whole leaves; the work before it is not repeated in the sums of every later one."""
    clip = mx.AdaptiveGradClip(0.1)

    def size(n: int) -> int:
        chain = mx.Chain(*[clip] * n)
        update = jax.jit(lambda g: chain.update(g, chain.init(g), g)[0])
        return len(str(update.lower(PARAMS).compile().as_text()))

    assert size(24) < 2.5 * size(12)
