"""Parameters and states that are chex dataclasses."""

import dataclasses
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import modulax as mx
from modulax import checkpoint, tree
from modulax.testing import LAWS, Case


@chex.dataclass
class Params:
    kernel: Any
    bias: Any


@chex.dataclass(frozen=True)
class FrozenParams:
    kernel: Any
    bias: Any


@chex.dataclass(frozen=True, mappable_dataclass=False)
class BareParams:
    """Parameters in a dataclass that is neither mutable nor a mapping."""

    kernel: Any
    bias: Any


each_class = pytest.mark.parametrize("cls", [Params, FrozenParams, BareParams])
DICT = {"kernel": np.full((2, 3), 2.0, np.float32), "bias": np.arange(3, dtype=np.float32)}
GRADS = {"kernel": np.full((2, 3), 0.5, np.float32), "bias": np.ones(3, np.float32)}
KERNELS = mx.by_path({"kernel": True, "*": False})


def optimizer() -> mx.AbstractTransform:
    return mx.AdamW(0.1, weight_decay=0.1, mask=KERNELS)


def as_dict(params: Any) -> dict[str, Any]:
    return {field.name: getattr(params, field.name) for field in dataclasses.fields(params)}


# --- Parameters ------------------------------------------------------------------------------------


@each_class
def test_a_step_is_that_of_a_dict(cls: type):
    """Also with gradients in a dict, and for parameters in one: trees are paired by path."""
    expected, states = optimizer().step(GRADS, optimizer().init(DICT), DICT)
    for grads in (cls(**GRADS), GRADS):
        new, state = optimizer().step(grads, optimizer().init(cls(**DICT)), cls(**DICT))
        assert type(new) is cls
        chex.assert_trees_all_close(as_dict(new), expected)
        chex.assert_trees_all_close(as_dict(tree.get(state, "mu")), tree.get(states, "mu"))
        assert type(optimizer().update(grads, state, cls(**DICT))[0]) is type(grads)
    new, _ = optimizer().step(cls(**GRADS), optimizer().init(DICT), DICT)
    chex.assert_trees_all_close(new, expected)
    with pytest.raises(ValueError, match="kernel"):
        optimizer().update({"bias": GRADS["bias"]}, optimizer().init(cls(**DICT)), cls(**DICT))


@each_class
def test_masks_and_labels(cls: type):
    params = cls(**DICT)
    groups = mx.Partition({"a": mx.Trace(0.9), "b": mx.SetToZero()}, mx.by_path({"kernel": "a", "*": "b"}))
    flags = {"kernel": True, "bias": False}
    masked = [mx.Masked(mx.Trace(0.9), mask) for mask in (KERNELS, cls(**flags), flags)]
    for transform in (groups, *masked):
        assert tree.leaf_paths(tree.get(jax.eval_shape(transform.init, params), "trace")) == ["kernel"]


@each_class
def test_names_are_those_of_a_dict(cls: type, tmp_path: Any):
    """In descriptions and checkpoints, which are restored into a dict as well."""
    assert str(mx.describe(optimizer(), cls(**DICT))) == str(mx.describe(optimizer(), DICT))
    state, plain = optimizer().init(cls(**DICT)), optimizer().init(DICT)
    assert checkpoint.state_dict(state).keys() == checkpoint.state_dict(plain).keys()
    checkpoint.save(tmp_path / "state", state)
    for template in (plain, state):
        restored, _ = checkpoint.restore(tmp_path / "state", template)
        chex.assert_trees_all_equal(restored, template, strict=True)


# Those that read the parameters as a tree with names.
LAWS_OF_PARAMETERS = (
    "structure_shapes_and_dtypes_are_kept",
    "absent_leaves_stay_absent",
    "the_state_says_what_is_like_the_parameters",
    "inputs_are_not_modified",
    "sharding_is_kept",
)


def test_laws():
    for law in LAWS_OF_PARAMETERS:
        LAWS[law].check(Case(optimizer(), FrozenParams(**DICT)))


# --- States ----------------------------------------------------------------------------------------


@chex.dataclass
class MomentumState:
    count: Any
    momentum: Any


class Momentum(mx.AbstractTransform):
    """Keeps its state in a dataclass, as transforms written with chex do."""

    decay: mx.Hyperparameter = mx.number(0.9)

    def init(self, params: Any) -> MomentumState:
        return MomentumState(count=jnp.zeros((), jnp.int32), momentum=jax.tree.map(jnp.zeros_like, params))

    def update(self, updates: Any, state: Any, params: Any = None, **extra: Any) -> Any:
        del params, extra
        momentum = jax.tree.map(lambda m, g: self.decay.astype(g.dtype) * m + g, state.momentum, updates)
        return momentum, MomentumState(count=mx.numerics.safe_increment(state.count), momentum=momentum)


def chain() -> mx.Chain:
    return mx.Chain(mx.Clip(10.0), Momentum())


def test_a_state_is_found_changed_and_mapped():
    _, state = chain().update(GRADS, chain().init(DICT))
    chex.assert_trees_all_close(tree.get(state, "MomentumState.momentum"), GRADS)
    assert tree.get(tree.set(state, count=7), "count") == 7
    flags = tree.map_params(chain(), lambda x: True, state, transform_non_params=lambda x: False)
    assert as_dict(flags["momentum"]) == {"count": False, "momentum": {"kernel": True, "bias": True}}


def test_a_state_is_saved_described_and_placed(tmp_path: Any):
    _, state = chain().update(GRADS, chain().init(DICT))
    names = [f"parts.momentum.{name}" for name in ("count", "momentum.bias", "momentum.kernel")]
    assert list(checkpoint.state_dict(state)) == names
    checkpoint.save(tmp_path / "state", state)
    restored, _ = checkpoint.restore(tmp_path / "state", chain().init(DICT))
    chex.assert_trees_all_equal(restored, state, strict=True)
    assert "40 bytes of state (4 of them shared)" in str(mx.describe(chain(), DICT))
    params = jax.tree.map(jnp.asarray, DICT)
    assert tree.get(mx.state_sharding(chain(), params), "momentum.kernel") == params["kernel"].sharding


LAWS_OF_STATES = (
    "structure_shapes_and_dtypes_are_kept",
    "state_is_a_module_of_arrays",
    "absent_leaves_stay_absent",
    "the_state_says_what_is_like_the_parameters",
    "scan_carries_the_state",
    "a_second_step_is_not_traced",
    "counters_saturate",
)


def test_laws_of_states():
    for law in LAWS_OF_STATES:
        LAWS[law].check(Case(Momentum()))
