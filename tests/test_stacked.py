"""`Stacked`: the same numbers with the state in stacks, fewer operations, and the names of single parameters."""

import collections
import copy
import pickle
import re
from typing import Any

import chex
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import modulax as mx
from modulax import checkpoint
from modulax.testing import LAWS, Case

from .operations import operations

SIZES = {"a": (4, 3), "b": (5,)}


def tree(seed: int, count: int = 3) -> dict[str, jax.Array]:
    rng = np.random.default_rng(seed)
    names = [(f"{kind}{i}", shape) for i in range(count) for kind, shape in SIZES.items()]
    return {name: jnp.asarray(rng.normal(size=shape), jnp.float32) for name, shape in names}


PARAMS, GRADS = tree(0), [tree(1), tree(2)]
INNER: dict[str, mx.AbstractTransform] = {
    "norms of single arrays": mx.LAMB(0.1),
    "weight decay of the rows": mx.AdamW(0.1),
    "factors": mx.ScaleByFactoredRMS(min_dim_size_to_factor=2),
    "several arrays for a parameter": mx.ScaleBySM3(),
    "a mask through a stack": mx.AdamW(0.1, weight_decay=0.1, mask=mx.by_path({"a0": False, "b*": True, "*": True})),
    "one multiplier for each": mx.Chain(mx.Trace(0.9), mx.ScaleByPath({"a0": 0.5, "*": 1.0})),
    "an average, and a branch": mx.MultiSteps(mx.ParamEMA(mx.SGD(0.1, 0.9), 0.5), 2),
    "codes": mx.LowBit(mx.Lion(0.1), min_size=0, stochastic=False),
}


def steps(optimizer: mx.AbstractTransform) -> Any:
    def step(carry: Any, grads: Any) -> Any:
        return optimizer.step(grads, carry[1], carry[0]), None

    stacked = jtu.tree_map(lambda *xs: jnp.stack(xs), *GRADS)
    (params, state), _ = jax.lax.scan(step, (PARAMS, optimizer.init(PARAMS)), stacked)
    return params, state, optimizer.eval_params(state, params)


def test_numbers_and_names_are_those_without_stacks():
    pairs = {name: (inner, mx.Stacked(inner, 3)) for name, inner in INNER.items()}
    results = jax.jit(lambda: {name: tuple(map(steps, pair)) for name, pair in pairs.items()})()
    for name, ((params, state, average), (new, found, new_average)) in results.items():
        # Of the 3 parameters of a shape, 2 are in a stack.
        assert len(jtu.tree_leaves(found)) < len(jtu.tree_leaves(state)), name
        single = mx.tree.unstack(found).inner_state
        assert jtu.tree_structure(single) == jtu.tree_structure(state), name
        chex.assert_trees_all_close((new, single, new_average), (params, state, average), rtol=1e-5, atol=1e-6)


def test_nothing_is_stacked_where_nothing_shall_be():
    """With chunks of one parameter, above the size, and of a single parameter of a shape."""
    inner = mx.AdamW(0.1)
    large = {"a": jnp.ones(8193), "b": jnp.ones(8193)}
    for transform, params in (
        (mx.Stacked(inner, 1), PARAMS),
        (mx.Stacked(inner), large),
        (mx.Stacked(inner), tree(0, 1)),
    ):
        state = jax.eval_shape(transform.init, params)
        assert jtu.tree_structure(state.inner_state) == jtu.tree_structure(jax.eval_shape(inner.init, params))


def test_stacks_of_one_shape_have_one_size():
    """Every size is compiled: 11 kernels more for a stack of 11 after two of 16."""
    params = {f"w{i}": jnp.ones(3) for i in range(43)}
    state = jax.eval_shape(mx.Stacked(mx.Trace(0.9)).init, params)
    assert sorted(x.shape for x in jtu.tree_leaves(state)) == [(3,), (14, 3), (14, 3), (14, 3)]


def test_a_step_has_an_operation_for_each_stack():
    params = {f"w{i}": jnp.ones(32) for i in range(64)}

    def of(optimizer: mx.AbstractTransform) -> collections.Counter[str]:
        return operations(optimizer.update, params, optimizer.init(params), params)

    plain, stacked = of(mx.AdamW(0.1)), of(mx.Stacked(mx.AdamW(0.1)))
    assert (plain["sqrt"], stacked["sqrt"]) == (64, 4)
    assert plain["div"] >= 64
    assert stacked["div"] < 16
    assert stacked["stack"] == 4, "the gradients: the state is in stacks, and weight decay needs none"
    assert of(mx.Stacked(mx.SGD(0.1, 0.9)))["add"] < 16, "a cheap rule with a state is computed on stacks"
    assert of(mx.Stacked(mx.LAMB(0.1)))["sqrt"] <= 16, "so is one without, if it is not cheap"


def test_the_update_is_wide_from_the_moments_to_the_decay():
    """In bfloat16, one rounding at the end, as without stacks."""
    params, *grads = (jtu.tree_map(lambda x: x.astype(jnp.bfloat16), x) for x in (PARAMS, *GRADS))

    @jax.jit
    def second(optimizer: mx.AbstractTransform) -> Any:
        _, state = optimizer.update(grads[0], optimizer.init(params), params)
        return optimizer.update(grads[1], state, params)[0]

    inner = mx.AdamW(0.1, weight_decay=0.3)
    chex.assert_trees_all_equal(second(mx.Stacked(inner)), second(inner))


@pytest.mark.parametrize("law", ["states_can_be_donated", "a_batch_of_transforms_is_a_loop"])
def test_a_law_holds_with_stacks(law: str):
    case = Case(mx.Stacked(mx.ParamEMA(mx.LAMB(0.1)), 2), tree(0, 2))
    assert LAWS[law].speaks_of(case)
    LAWS[law].check(case)


def test_a_run_continues_with_and_without_stacks():
    inner = mx.AdamW(0.1)
    stacked, others = mx.Stacked(inner, 2), mx.Stacked(inner, 3)
    state = jtu.tree_map(lambda x: jnp.arange(x.size, dtype=x.dtype).reshape(x.shape), stacked.init(PARAMS))
    flat = checkpoint.state_dict(state)
    assert flat["inner_state.inner.parts.scale_by_adam.mu.a2"].shape == (4, 3)
    plain, report = checkpoint.load_state_dict(inner.init(PARAMS), flat, strict=False)
    assert (report.fresh, report.unused) == ((), ())
    chex.assert_trees_all_equal(plain, mx.tree.unstack(state).inner_state)
    shapes = jax.eval_shape(stacked.init, PARAMS)
    for like, saved in ((shapes, checkpoint.state_dict(plain)), (stacked.init(PARAMS), flat)):
        again, report = checkpoint.load_state_dict(like, saved, strict=False)
        assert (report.fresh, report.unused) == ((), ())
        chex.assert_trees_all_equal(again, state)
    other, _ = checkpoint.load_state_dict(others.init(PARAMS), flat)
    chex.assert_trees_all_equal(mx.tree.get(other, "nu"), mx.tree.get(state, "nu"))
    for same in (pickle.loads(pickle.dumps(state)), copy.deepcopy(state)):
        assert same.layout == state.layout
        assert hash(same.layout) == hash(state.layout)


def test_trees_in_the_state_have_single_parameters():
    optimizer = mx.Stacked(mx.AdamW(0.1), 2)
    state = optimizer.init(PARAMS)
    mu = mx.tree.get(state, "mu")
    chex.assert_trees_all_equal_shapes(mu, PARAMS)
    moved = mx.tree.set(state, mu=GRADS[0], **{"nu.a1": PARAMS["a1"]})
    assert jtu.tree_structure(moved) == jtu.tree_structure(state)
    chex.assert_trees_all_equal(mx.tree.get(moved, "mu"), GRADS[0])
    np.testing.assert_array_equal(mx.tree.get(moved, "nu.a1"), PARAMS["a1"])
    summed = mx.tree.map_params(optimizer, lambda x, p: x + jnp.sum(p), state, PARAMS)
    assert jtu.tree_structure(summed) == jtu.tree_structure(state)
    np.testing.assert_allclose(mx.tree.get(summed, "nu.b2"), np.full(5, PARAMS["b2"].sum()), rtol=1e-6)
    # Of another shape, they are no stacks any more.
    sizes = mx.tree.map_params(optimizer, lambda x: x.size, state)
    assert mx.tree.get(sizes, "mu.a2") == 12
    # A batch of states has its axis first.
    batch = jax.eval_shape(lambda: jax.vmap(optimizer.init)(jtu.tree_map(lambda x: jnp.stack([x] * 3), PARAMS)))
    assert mx.tree.get(batch, "mu.a0").shape == (3, 4, 3)
    single = mx.tree.unstack(state)
    _, after = optimizer.update(GRADS[0], single, PARAMS)
    assert jtu.tree_structure(after) == jtu.tree_structure(single)


def test_it_is_described():
    found = mx.describe(mx.Stacked(mx.AdamW(0.1), 2), PARAMS)
    assert "`Stacked` updates 2 parameters float32[5] in one stack." in found.notes
    assert {row.path: row.state_bytes for row in found.leaves}["b2"] == 2 * 4 * 5


def test_parameters_of_one_stack_have_one_sharding():
    mesh = Mesh(np.array(jax.devices()[:2]), ("data",))
    specs = {"w0": PartitionSpec(), "w1": PartitionSpec("data"), "w2": PartitionSpec("data"), "w3": PartitionSpec()}
    params = {k: jax.device_put(jnp.ones((4, 3)), NamedSharding(mesh, spec)) for k, spec in specs.items()}
    with pytest.raises(ValueError, match=r"`w0` and `w1` are in one stack.*Partition\(.*jax\.tree\.map"):
        mx.state_sharding(mx.Stacked(mx.AdamW(0.1)), params)
    labels = jax.tree.map(lambda p: str(p.sharding), params)
    optimizer = mx.Partition({label: mx.Stacked(mx.AdamW(0.1)) for label in set(labels.values())}, labels)
    found = mx.state_sharding(optimizer, params)

    def moment(state: Any, name: str) -> Any:
        return getattr(state.inner_states[labels["w1"]].inner_state.inner[0], name)["w1"]

    assert moment(found, "mu").spec == PartitionSpec(None, "data")
    state = jax.jit(optimizer.init, out_shardings=found)(params)
    new, after = optimizer.step(params, state, params)
    assert all(new[k].sharding.is_equivalent_to(params[k].sharding, 2) for k in params)
    assert moment(after, "nu").sharding.spec == PartitionSpec(None, "data")


def test_mistakes():
    with pytest.raises(ValueError, match=r"`Stacked\(chunk=...\)` must be a positive integer such as 16, got 0"):
        mx.Stacked(mx.AdamW(0.1), 0)
    with pytest.raises(ValueError, match=r"Write `Masked\(LowBit\(Stacked\(\.\.\.\)\), mask\)`"):
        mx.LowBit(mx.Stacked(mx.AdamW(0.1)), where=mx.by_path({"*": True})).init(PARAMS)
    optimizer = mx.Stacked(mx.SGD(0.1, 0.9), 3)
    wrong = PARAMS | {"a1": jnp.ones(3)}
    with pytest.raises(ValueError, match=r"shape \(3,\) at `a1`, where the parameter has shape \(4, 3\)"):
        optimizer.update(wrong, optimizer.init(PARAMS))


FIRST = mx.by_path({"a0": True, "*": False})
ADAM, CLIP, FREEZE = mx.Adam(0.1), mx.ClipByGlobalNorm(0.1), mx.Freeze(FIRST)
DOUBLED = mx.ScaleByPath({"a0": 2.0, "*": 1.0})
DECAYED = mx.AdamW(0.1, weight_decay=0.1, mask=FIRST)
LABELS = mx.by_path({"a0": "x", "*": "y"})
REFUSED: dict[str, tuple[mx.AbstractTransform, mx.AbstractTransform]] = {
    "`ScaleByPath` tells arrays apart. Put it around `Stacked`, as in `Chain(Stacked(Adam(...)), ScaleByPath(...))`": (
        mx.Chain(ADAM, DOUBLED),
        mx.Chain(mx.Stacked(ADAM), DOUBLED),
    ),
    "as in `Chain(ClipByGlobalNorm(...), Stacked(Chain(Clip(...), Adam(...))), Freeze(...), Scale(...))`": (
        mx.Chain(CLIP, mx.Clip(0.1), ADAM, FREEZE, mx.Scale(0.5)),
        mx.Chain(CLIP, mx.Stacked(mx.Chain(mx.Clip(0.1), ADAM)), FREEZE, mx.Scale(0.5)),
    ),
    "`AdamW` chooses parameters by `mask`. Put it around `Stacked`, as in `ParamEMA(Stacked(AdamW(...)), ...)`": (
        mx.ParamEMA(DECAYED, 0.5),
        mx.ParamEMA(mx.Stacked(DECAYED), 0.5),
    ),
    "as in `Partition({'x': Stacked(Adam(...)), 'y': Chain(ClipByGlobalNorm(...), Stacked(SGD(...)))}, ...)`": (
        mx.Partition({"x": ADAM, "y": mx.Chain(CLIP, mx.SGD(0.1, 0.9))}, LABELS),
        mx.Partition({"x": mx.Stacked(ADAM), "y": mx.Chain(CLIP, mx.Stacked(mx.SGD(0.1, 0.9)))}, LABELS),
    ),
}


def test_what_to_write_trains_what_was_refused():
    for message, (inner, _) in REFUSED.items():
        with pytest.raises(ValueError, match=re.escape(message)):
            mx.Stacked(inner)
    results = jax.jit(lambda: {message: tuple(map(steps, pair)) for message, pair in REFUSED.items()})()
    for message, ((params, _, average), (new, _, new_average)) in results.items():
        chex.assert_trees_all_close((new, new_average), (params, average), rtol=1e-5, atol=1e-6, custom_message=message)
    with pytest.raises(ValueError, match=r"`Muon` tells arrays apart\. Leave `Stacked` out\."):
        mx.Stacked(mx.Muon(0.1))
    drawing = mx.LowBit(ADAM, min_size=0)
    with pytest.raises(ValueError, match=r"`LowBit` draws random numbers, .* `LowBit\(Stacked\(Adam\(...\)\), ...\)`"):
        mx.Stacked(drawing).init(PARAMS)
