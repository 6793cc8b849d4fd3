"""Optimizers and states as trees of optree, in the namespace "modulax"."""

import functools
import typing
from collections import OrderedDict
from typing import Any

import chex
import equinox as eqx
import flax.core
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optree
import pytest

import modulax as mx

from .instances import EVERYTHING

NAMESPACE: Any = {"namespace": "modulax"}
PARAMS: dict[str, Any] = {"w": jnp.ones((2, 3)), "b": jnp.zeros(3)}


@functools.cache
def chain() -> Any:
    return mx.Chain(mx.ClipByGlobalNorm(1.0), mx.AdamW(mx.schedules.Linear(0.0, 1e-3, 100)))


def assert_same_leaves(tree: Any) -> None:
    """optree takes a tree apart as JAX does, and puts it together again."""
    leaves, spec = optree.tree_flatten(tree, **NAMESPACE)
    expected, treedef = jax.tree.flatten(tree)
    assert list(map(id, leaves)) == list(map(id, expected))
    assert jax.tree.structure(spec.unflatten(leaves)) == treedef
    assert optree.tree_structure(spec.unflatten(leaves), **NAMESPACE) == spec


def test_every_class_is_a_node():
    schedules = mx.AbstractSchedule | mx.AbstractStatefulSchedule
    for instance in EVERYTHING:
        made = instance.make()
        assert_same_leaves(made)
        accessors = {".".join(map(str, a.path)): a for a in optree.tree_accessors(made, **NAMESPACE)}
        addresses = made.addresses()
        assert {path: addresses[path] for path in accessors} == accessors, instance
        others = addresses.keys() - accessors.keys()
        assert all(isinstance(addresses[path](made), schedules) for path in others), instance


def test_accessors_print_as_code_and_read():
    accessors = optree.tree_accessors(chain(), **NAMESPACE)
    assert [a.codify() for a in accessors][:3] == [
        "*.parts['clip_by_global_norm'].max_norm",
        "*.parts['adamw'].learning_rate.init_value",
        "*.parts['adamw'].learning_rate.end_value",
    ]
    assert accessors[2](chain()) == np.float32(1e-3)
    assert eqx.tree_at(accessors[2], chain(), 0.5)["adamw"].learning_rate.end_value == 0.5
    state: Any = chain().init(PARAMS)
    texts = [a.codify("state") for a in optree.tree_accessors(state, **NAMESPACE)]
    assert "state.parts['adamw'].inner.parts['scale_by_adam'].mu['w']" in texts


def test_paths_and_leaves():
    paths, leaves, spec = optree.tree_flatten_with_path(chain(), **NAMESPACE)
    assert paths[0] == ("parts", "clip_by_global_norm", "max_norm")
    assert leaves[0] == 1.0
    assert spec.paths() == paths == optree.tree_paths(chain(), **NAMESPACE)
    assert optree.tree_leaves(chain()) == [chain()]  # in another namespace


def test_absent_leaves():
    transform: Any = mx.Chain(mx.SGD(0.1), mx.Masked(mx.Trace(0.9), {"w": True, "b": False}))
    state = transform.init(PARAMS | {"none": None})
    assert_same_leaves(transform)
    assert_same_leaves(state)
    path = ("parts", "masked", "inner_state", "trace", "b")
    assert path not in optree.tree_paths(state, **NAMESPACE)
    assert path in optree.tree_paths(state, none_is_leaf=True, **NAMESPACE)


def test_static_fields_are_metadata():
    traces: list[Any] = [mx.Trace(0.9, nesterov=flag) for flag in (True, False, False)]
    structures = [optree.tree_structure(trace, **NAMESPACE) for trace in traces]
    assert structures[0] != structures[1] == structures[2]
    assert hash(structures[1]) == hash(structures[2])
    assert "('nesterov', True)" in str(structures[0])
    with pytest.raises(ValueError, match="Mismatch"):
        optree.tree_map(jnp.add, *traces[:2], **NAMESPACE)


class Pair(typing.NamedTuple):
    w: Any
    b: Any


@chex.dataclass
class ChexPair:
    w: Any
    b: Any


@flax.struct.dataclass
class FlaxPair:
    w: Any
    b: Any
    name: str = flax.struct.field(pytree_node=False, default="pair")


class Model(eqx.Module):
    layers: list[Any]
    activation: Any = eqx.field(static=True, default=jax.nn.relu)


def test_a_state_may_hold_any_of_jaxs_trees():
    """Also trees of classes that only JAX knows, such as those of a model."""
    trees: tuple[tuple[Any, str], ...] = (
        (Pair(**PARAMS), "*.mu.w"),
        (ChexPair(**PARAMS), "*.mu.w"),
        (FlaxPair(**PARAMS), "*.mu.w"),
        (Model([PARAMS, FlaxPair(**PARAMS)]), "*.mu.layers[1].w"),
        (flax.core.freeze(PARAMS), "*.mu['w']"),
        (OrderedDict(PARAMS), "*.mu['w']"),
        ([PARAMS["w"], None], "*.mu[0]"),
    )
    for params, text in trees:
        state = jax.eval_shape(mx.ScaleByAdam().init, params)
        assert_same_leaves(state)
        accessors = optree.tree_accessors(state, **NAMESPACE)
        assert text in [a.codify() for a in accessors]
        assert [a(state) for a in accessors] == jax.tree.leaves(state)


def test_classes_of_a_user():
    def make():
        class Mine(mx.AbstractStatelessTransform):
            gain: mx.Hyperparameter = mx.number(2.0)
            name: str = eqx.field(static=True, default="mine")

            def apply(self, updates: Any, params: Any = None, **extra: Any) -> Any:
                del params, extra
                return jax.tree.map(lambda u: u * self.gain, updates)

        return Mine()

    for _ in range(2):  # a cell of a notebook that is run again
        mine: Any = make()
        assert_same_leaves(mx.Chain(mine))
        assert [a.codify("mine") for a in optree.tree_accessors(mine, **NAMESPACE)] == ["mine.gain"]
