"""Chains, masks, partitions: how they are built, read and addressed."""

from typing import Any

import chex
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest
from flax.core import FrozenDict

import modulax as mx

PARAMS = {"dense": {"bias": jnp.ones(2), "kernel": jnp.ones((3, 2))}, "scale": jnp.ones(())}


def _update(transform: Any, params: Any = None) -> Any:
    params = PARAMS if params is None else params
    return transform.update(params, transform.init(params), params)[0]


# --- Chain -----------------------------------------------------------------------------------------


def test_parts_are_named_after_their_classes():
    chain = mx.Chain(mx.ScaleByAdam(), mx.ClipByGlobalNorm(1.0), mx.ScaleByAdam(), mx.AdamW(0.1))
    assert list(chain.parts) == ["scale_by_adam", "clip_by_global_norm", "scale_by_adam_2", "adamw"]
    assert chain.init(PARAMS).names == tuple(chain.parts)


def test_a_chain_and_its_state_are_sequences_and_mappings():
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
    state = chain.init(PARAMS)
    assert len(state) == 3
    assert state[1] is state["adam"] is state[-2]
    # A part without a state takes no place.
    assert list(state.parts) == ["adam"]
    assert state["clip"] == state[2] == mx.EmptyState()
    with pytest.raises(KeyError, match="no part 'clp'; it has `clip`, `adam`, `rate`"):
        state["clp"]


def test_a_name_that_is_given_is_that_of_no_other_part():
    a, b, c = mx.Scale(2.0), mx.Scale(3.0), mx.Scale(5.0)
    for chain in (mx.Chain(a, b, scale=c), mx.Chain(a, b, scale_2=c), mx.Chain(a, scale=b, scale_2=c)):
        assert [*chain.parts.values()] == [a, b, c]
        assert chain[list(chain.parts)[-1]] is c


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


def test_between_rules_the_update_of_a_bfloat16_parameter_stays_in_float32():
    parts = [mx.Scale(1 / 3), mx.Scale(3.0)]
    g = {"w": jnp.asarray(np.random.default_rng(0).normal(size=64), jnp.bfloat16)}
    np.testing.assert_array_equal(_update(mx.Chain(*parts), g)["w"], g["w"])
    alone = _update(parts[1], _update(parts[0], g))
    assert not np.array_equal(alone["w"], g["w"])


# --- Masks and labels ------------------------------------------------------------------------------

BIAS, KERNEL, SCALE = "dense.bias", "dense.kernel", "scale"
# Ways to write a mask, and what it selects.
MASKS: dict[str, tuple[Any, set[str]]] = {
    "tree": ({"dense": {"bias": False, "kernel": True}, "scale": True}, {KERNEL, SCALE}),
    "prefix": ({"dense": True, "scale": False}, {BIAS, KERNEL}),
    "numpy": ({"dense": np.bool_(True), "scale": np.bool_(False)}, {BIAS, KERNEL}),
    "frozen": (FrozenDict({"dense": FrozenDict({"bias": False, "kernel": True}), "scale": True}), {KERNEL, SCALE}),
    "everything": (True, {BIAS, KERNEL, SCALE}),
    "function": (lambda tree: jtu.tree_map(lambda x: x.ndim > 0, tree), {BIAS, KERNEL}),
    "prefix function": (lambda tree: {"dense": False, "scale": True}, {SCALE}),
    "rules": (mx.by_path({KERNEL: True, "*": False}), {KERNEL}),
}


IS_BIAS = mx.by_path({"*.bias": True, "*": False})


def values(tree: Any) -> dict[str, Any]:
    """The one value that all entries of a leaf have, by path."""
    return {path: np.unique(x).item() for path, x in zip(mx.tree.leaf_paths(tree), jtu.tree_leaves(tree), strict=True)}


def by_name(bias: float, kernel: float, scale: float) -> dict[str, float]:
    return {BIAS: bias, KERNEL: kernel, SCALE: scale}


@pytest.mark.parametrize("name", MASKS)
def test_a_mask_can_be_written_in_many_ways(name: str):
    mask, chosen = MASKS[name]
    for transform, inside, outside in (
        (mx.Masked(mx.Scale(2.0), mask), 2, 1),
        (mx.Masked(mx.Scale(2.0), mask, otherwise="zero"), 2, 0),
        (mx.Freeze(mask), 0, 1),
        (mx.AddDecayedWeights(1.0, mask), 2, 1),
    ):
        assert values(_update(transform)) == {path: inside if path in chosen else outside for path in by_name(0, 0, 0)}
    # What is not selected has no state.
    assert values(mx.Masked(mx.Trace(0.9), mask).init(PARAMS).inner_state.trace).keys() == chosen


def test_equal_masks_are_one_program_and_others_are_not():
    """A mask is part of the program: equal ones must not compile it again, and another one must."""
    masks = [mask for mask, _ in MASKS.values()]
    masks += [{"a": True, "b": False}, {"a": True, "c": False}, [True, False]]

    def structures() -> list[Any]:
        masked = [mx.Masked(mx.Scale(2.0), mask) for mask in masks]
        frozen = [mx.selective_transform(mx.Scale(2.0), freeze_mask=mask) for mask in masks]
        return [jtu.tree_structure(transform) for transform in (*masked, *frozen)]

    first, again = structures(), structures()
    assert first == again
    assert len({*first, *again}) == len(first) - 2, "flags of NumPy are those of Python"


def test_a_masked_out_parameter_is_unknown_to_the_norm():
    """The inner transform receives its own leaves only."""
    g = {"a": jnp.asarray([3.0, 4.0]), "b": jnp.asarray([100.0])}
    u = _update(mx.Masked(mx.ClipByGlobalNorm(5.0), {"a": True, "b": False}), g)
    chex.assert_trees_all_equal(u, g)


def test_a_partition_runs_each_on_its_own():
    labels = {"dense": {"bias": "b", "kernel": "a"}, "scale": "b"}
    transform = mx.Partition({"b": mx.Scale(3.0), "a": mx.Trace(0.9), "idle": mx.Adam(0.1)}, labels)
    state = transform.init(PARAMS)
    assert list(state.inner_states) == ["b", "a", "idle"]
    assert values(state.inner_states["a"].trace) == {KERNEL: 0}
    assert not jtu.tree_leaves(state.inner_states["idle"].inner["scale_by_adam"].mu)
    assert values(_update(transform)) == by_name(3, 1, 3)
    inner = mx.Partition({"a": mx.Scale(2.0), "b": mx.Scale(3.0)}, mx.by_path({"*bias": "a", "*": "b"}))
    outer = mx.Partition({"dense": inner, "rest": mx.Scale(-1.0)}, mx.by_path({"dense.*": "dense"}), default="rest")
    assert values(_update(outer)) == by_name(2, 3, -1)


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


def test_a_partition_has_a_group_for_the_rest():
    transforms = {"double": mx.Scale(2.0), "rest": mx.Scale(-1.0)}
    for labels in (mx.by_path({"*kernel": "double"}), {"dense": {"kernel": "double"}}, lambda _: {"dense": None}):
        updates = _update(mx.Partition(transforms, labels, default="rest"))
        assert values(updates) == by_name(-1, -1 if callable(labels) else 2, -1)
    with pytest.raises(ValueError, match=r"no pattern matches the leaf `dense\.bias`"):
        _update(mx.Partition(transforms, mx.by_path({"*kernel": "double"})))
    with pytest.raises(ValueError, match=r"`Partition\(default='others'\)` must be the label of a transform"):
        mx.Partition(transforms, mx.by_path({"*": "rest"}), default="others")
    with pytest.raises(ValueError, match=r"`Partition\(default=0\)` must be the label of a transform; there are `1`"):
        mx.Partition({1: mx.Identity()}, {}, default=0)


def test_frozen_parameters_have_no_state():
    frozen = {"dense": {"bias": True, "kernel": False}, "scale": True}
    for mask in (frozen, lambda _: frozen, mx.by_path({"*kernel": False, "*": True})):
        transform = mx.selective_transform(mx.Trace(0.9), freeze_mask=mask)
        assert values(_update(transform)) == by_name(0, 1, 0)
        assert [p.shape for p in jtu.tree_leaves(transform.init(PARAMS))] == [(3, 2)]


LORA = {"base": jnp.ones((2, 3)), "lora": jnp.ones(3)}
DPSGD: Any = mx.DPSGD(0.1, l2_norm_clip=1.0, noise_multiplier=0.0, key=0)
PAIRS: Any = mx.Chain(mx.aggregate.AveragePerElementUpdates((0, 1)), mx.SGD(0.1))  # of examples along two axes
LABELS, IS_FROZEN = {"base": "f", "lora": "t"}, {"base": True, "lora": False}


def is_matrix(tree: Any) -> Any:
    """Asked about the parameters, and not about the gradients of all examples."""
    return jax.tree.map(lambda p: p.ndim > 1, tree)


FROZEN: dict[str, Any] = {
    "a tree": lambda t: mx.selective_transform(t, freeze_mask=IS_FROZEN),
    "inside": lambda t: mx.ApplyIfFinite(mx.selective_transform(t, freeze_mask=IS_FROZEN), 2),
    "zeros": lambda t: mx.Partition({"t": t, "f": mx.SetToZero()}, LABELS),
    "a part that freezes": lambda t: mx.Partition({"f": mx.Freeze(mx.by_path({"base": True})), "t": t}, LABELS),
    "a function": lambda t: mx.selective_transform(t, freeze_mask=is_matrix),
    "labels by a function": lambda t: mx.Partition({True: mx.SetToZero(), False: t}, is_matrix),
    "a part that freezes by a function": lambda t: mx.Partition({"t": t, "f": mx.Freeze(is_matrix)}, LABELS),
}


@pytest.mark.parametrize("name", FROZEN)
def test_frozen_parameters_beside_gradients_of_every_example(name: str):
    """Their updates are zeros of the shapes of the parameters, as those of the others."""
    for inner, axes in ((DPSGD, (4,)), (PAIRS, (4, 2))):
        grads = {name: jnp.broadcast_to(jnp.arange(3.0), (*axes, *p.shape)) for name, p in LORA.items()}
        alone, _ = inner.update({"lora": grads["lora"]}, inner.init({"lora": LORA["lora"]}))
        transform = FROZEN[name](inner)
        updates, _ = transform.update(grads, transform.init(LORA))
        chex.assert_trees_all_close(updates, {"base": jnp.zeros((2, 3))} | alone, rtol=1e-6)
        moved, _ = transform.step(grads, transform.init(LORA), LORA)
        np.testing.assert_array_equal(moved["base"], LORA["base"])


def test_what_would_not_know_the_gradients_of_every_example_is_refused():
    with pytest.raises(ValueError, match=r'Write `Masked\(..., otherwise="zero"\)`'):
        mx.Masked(DPSGD, {"base": False, "lora": True}).init(LORA)
    mx.Masked(DPSGD, True).init(LORA)
    with pytest.raises(ValueError, match="takes per-example gradients, and `SGD` of the group 'f' would take them"):
        mx.Partition({"t": DPSGD, "f": mx.SGD(0.1)}, LABELS).init(LORA)
    half: Any = mx.Freeze(mx.by_path({"base": True, "*": False}))
    with pytest.raises(ValueError, match="takes per-example gradients, and `Freeze` of the group 'f'"):
        mx.Partition({"t": DPSGD, "f": half}, mx.by_path({"lora": "t", "*": "f"})).init(LORA | {"a": jnp.ones(3)})
    mx.Partition({"t": DPSGD, "f": PAIRS}, LABELS).init(LORA)
    for container in (mx.Mechanize, mx.SkipSpikes):
        with pytest.raises(ValueError, match=f"Leave `{container.__name__}` out"):
            container(DPSGD)
    mx.SkipSpikes(DPSGD, by="loss")


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

    extra = {"grad": jtu.tree_map(lambda p: 5 * p, PARAMS), "value_fn": loss, "obj_fn": loss}
    extra["grad_fn"] = lambda params: jax.grad(loss)(params, 2)
    extra["curvature"] = jtu.tree_map(lambda p: 3 * p, PARAMS)  # known by its structure and shapes
    masked = mx.Masked(Probe(), IS_BIAS)
    partition = mx.Partition({True: Probe(), False: mx.Chain(Probe())}, IS_BIAS)
    expected = 9.0 + 1.0 + 2.0 + 5.0 + 2.0 + 3.0  # the value at all parameters, and the five trees
    transforms: tuple[Any, ...] = (masked, mx.Chain(mx.Masked(masked, True)), partition)
    for transform in transforms:
        updates, _ = transform.update(PARAMS, transform.init(PARAMS), PARAMS, **extra)
        np.testing.assert_allclose(updates["dense"]["bias"], expected)
        np.testing.assert_allclose(updates["scale"], expected if transform is partition else 1.0)


def test_gradients_of_the_caller_may_be_wider():
    """As those of a loss in float32 at parameters in bfloat16: the round goes on in the dtype of the updates."""
    params, seen = jnp.ones(2, jnp.bfloat16), list[Any]()
    see_all = mx.Stateless(lambda updates, params: seen.append(updates.dtype) or updates)
    round_of_three = mx.SAM(see_all, see_all, sync_period=3, opaque_mode=True)
    state = round_of_three.init(params)
    updates, _ = round_of_three.update(params, state, params, grad_fn=lambda p, i: p.astype(float))
    assert {updates.dtype, *seen} == {jnp.dtype(jnp.bfloat16)}


def test_labels_need_not_be_comparable():
    transforms = {1: mx.Scale(1.0), "c": mx.Scale(2.0), None: mx.Scale(3.0)}
    partition = mx.Partition(transforms, mx.by_path({"*bias": 1, "*kernel": "c"}, default=1))
    assert values(_update(partition)) == by_name(1, 2, 1)
    assert list(partition.init(PARAMS).inner_states) == [1, "c", None]
    assert partition.replace(transforms=transforms).hyperparameters() == partition.hyperparameters()
    assert "transforms.None.step_size" in partition.hyperparameters()
    with pytest.raises(ValueError, match="the labels 1 and '1' have the same name"):
        mx.Partition({1: mx.Scale(1.0), "1": mx.Scale(2.0)}, {})


def test_the_program_of_a_chain_grows_linearly():
    """Each clip reads whole leaves; the work before it is not repeated in the sums of every later one."""
    clip = mx.AdaptiveGradClip(0.1)

    def size(n: int) -> int:
        chain = mx.Chain(*[clip] * n)
        update = jax.jit(lambda g: chain.update(g, chain.init(g), g)[0])
        return len(str(update.lower(PARAMS).compile().as_text()))

    assert size(24) < 2.5 * size(12)
