"""Masks and labels: trees, functions and rules on paths, and what they say when they do not fit."""

from collections import OrderedDict

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from flax.core import FrozenDict

import modulax
from modulax import by_path
from modulax._protocol.masks import AbstractLabels, as_labels

from .settings import jax_defaults


def params():
    return {"layer": {"w": jnp.ones((2, 2)), "bias": jnp.ones(2)}, "bias": jnp.ones(()), "norm": [jnp.ones(2)]}


def labels_of(x) -> AbstractLabels:
    found = as_labels(x)
    assert found is not None
    return found


def labels(rule, tree=None):
    tree = params() if tree is None else tree
    return dict(zip(modulax.tree.leaf_paths(tree), labels_of(rule).labels(tree), strict=True))


def test_the_first_pattern_that_fits_wins():
    assert labels(by_path({"*.bias": "b", "norm*": "n", "layer.*": "w", "*": "rest"})) == {
        "bias": "b",
        "layer.bias": "b",
        "layer.w": "w",
        "norm.0": "n",
    }


def test_a_rule_about_what_is_absent_is_no_mistake(key):
    model = eqx.nn.Linear(2, 2, use_bias=False, key=key)
    assert labels(by_path({"*.bias": 1, "*": 2}), eqx.filter(model, eqx.is_array)) == {"weight": 2}


def test_a_tree_may_be_a_prefix_and_may_have_other_containers():
    expected = {"bias": 1, "layer.bias": 2, "layer.w": 2, "norm.0": 3}
    assert labels({"layer": 2, "bias": 1, "norm": 3}) == expected
    assert labels(FrozenDict({"layer": 2, "bias": 1, "norm": (3,)})) == expected
    assert set(labels("all").values()) == {"all"}


def test_trees_that_do_not_fit_say_where():
    with pytest.raises(ValueError, match=r"has no label for the leaf `norm\.0`; it has `bias`, `layer`"):
        labels({"layer": 2, "bias": 1})
    with pytest.raises(ValueError, match=r"has `nrom`, which the parameters don't have"):
        labels({"layer": 2, "bias": 1, "norm": 1, "nrom": 1})


def test_keys_with_dots_are_not_paths():
    """Trees of one structure are paired by position, others by the names of their keys."""
    tree = {"a.b": jnp.ones(2), "a": {"b": jnp.ones(2)}}
    mask = {"a.b": True, "a": {"b": False}}
    for m in (mask, FrozenDict(mask), lambda tree: FrozenDict(mask)):
        assert labels_of(m).labels(tree) == [False, True]  # in JAX's order: `a`, then `a.b`
    assert labels_of({"a.b": 1, "a": 2}).labels(tree) == [2, 1]
    with pytest.raises(ValueError, match=r"has no label for the leaf `a\.b`; it has `a`"):
        labels_of({"a": 2}).labels(tree)
    with pytest.raises(ValueError, match=r"has `a\.b`\. A key that contains a dot is not a path; use `by_path"):
        labels_of({"a.b": 2}).labels({"a": tree["a"]})


def test_labels_of_one_name_are_refused():
    twice = OrderedDict([("1", True), (1, False)])
    assert labels_of(twice).labels(OrderedDict([("1", jnp.ones(2)), (1, jnp.ones(2))])) == [True, False]
    with pytest.raises(ValueError, match="`tree of labels`: two leaves have the path `1`"):
        labels_of(twice).labels([jnp.ones(2), jnp.ones(2)])


def test_a_layer_without_parameters_may_have_a_label():
    tree = {"pool": {}, "drop": (), "dense": {"w": jnp.ones(2)}}
    for mask in ({"pool": False, "drop": False, "dense": True}, by_path({"pool": False, "drop": False, "*": True})):
        assert labels_of(mask).labels(tree) == [True]
    model = {"pool": eqx.nn.MaxPool1d(2), "dense": tree["dense"]}
    assert labels_of({"pool": False, "dense": True}).labels(eqx.filter(model, eqx.is_array)) == [True]
    with pytest.raises(ValueError, match="has `pol`, which the parameters don't have"):
        labels_of({"pol": False, "pool": False, "drop": False, "dense": True}).labels(tree)
    with pytest.raises(ValueError, match="the pattern `pol` matches no leaf"):
        labels_of(by_path({"pol": False, "*": True})).labels(tree)


def test_labels_may_be_booleans_of_numpy_and_jax():
    tree = params()["layer"]
    for flag in (jnp.bool_, np.bool_):
        assert labels_of({"w": flag(True), "bias": flag(False)}).labels(tree) == [False, True]
    masked = modulax.Freeze(lambda tree: jax.tree.map(lambda x: jnp.bool_(x.ndim > 1), tree))
    updates, _ = jax.jit(masked.update)(tree, masked.init(tree))
    assert float(updates["bias"].sum()) == 2
    assert float(updates["w"].sum()) == 0
    depends = modulax.Freeze(lambda tree: jax.tree.map(lambda x: jnp.all(x > 0), tree))
    with pytest.raises(ValueError, match="must not depend on the values of the parameters"):
        depends.init(tree)


def test_a_function_is_called_with_the_tree():
    assert labels(lambda tree: jax.tree.map(lambda x: x.ndim > 1, tree)) == {
        "bias": False,
        "layer.bias": False,
        "layer.w": True,
        "norm.0": False,
    }


def test_a_callable_module_is_a_tree_and_is_never_called(key):
    model = eqx.nn.MLP(2, 2, 4, 1, key=key)  # callable, and of the same structure as its labels
    mask = jax.tree.map(lambda x: eqx.is_array(x) and x.ndim > 1, model)
    optimizer = modulax.AdamW(1e-3, weight_decay=1.0, mask=mask)
    zeros = jax.tree.map(lambda x: jnp.zeros_like(x) if eqx.is_array(x) else None, model)
    updates, _ = optimizer.update(zeros, optimizer.init(model), model)
    assert bool(jnp.any(updates.layers[0].weight != 0))
    assert not bool(jnp.any(updates.layers[0].bias != 0))


@pytest.mark.parametrize("make", [by_path, lambda labels: {"w": labels["w"], "b": labels["*"]}])
def test_equal_rules_are_equal_and_do_not_retrace(make):
    assert as_labels(make({"w": True, "*": False})) == as_labels(make({"w": True, "*": False}))
    assert hash(as_labels(make({"w": True, "*": False}))) == hash(as_labels(make({"w": True, "*": False})))
    assert as_labels(make({"w": True, "*": False})) != as_labels(make({"w": True, "*": True}))


@pytest.mark.parametrize("make", [lambda yes: {"w": yes}, lambda yes: by_path({"w": yes})], ids=["tree", "by_path"])
def test_one_is_not_true(make):
    """They are equal in Python, so the program for one could be taken for the other."""
    assert as_labels(make(1)) != as_labels(make(True))
    tree = {"w": jnp.ones(2)}
    modulax.Masked(modulax.Scale(1.0), make(True)).init(tree)
    with pytest.raises(ValueError, match="needs `True` or `False` for every leaf, got 1 at `w`"):
        modulax.Masked(modulax.Scale(1.0), make(1)).init(tree)


def test_a_mask_of_something_else_than_booleans_is_refused():
    mask = by_path({"*.bias": "no", "*": True})
    for transform in (
        modulax.Masked(modulax.Scale(1.0), mask),
        modulax.selective_transform(modulax.SGD(0.1), freeze_mask=mask),
    ):
        with pytest.raises(ValueError, match=r"`Masked\(mask=...\)` needs `True` or `False` .* got 'no' at `bias`"):
            transform.init(params())
    with pytest.raises(ValueError, match=r"must hold Python values such as `True`, got an array of shape \(3,\)"):
        modulax.Freeze({"w": jnp.ones(3, bool)})


def test_an_unknown_label_is_refused_with_the_known_ones():
    transform = modulax.Partition(
        {"a": modulax.Scale(1.0), "b": modulax.Scale(2.0)}, by_path({"*.bias": "c", "*": "a"})
    )
    with pytest.raises(ValueError, match=r"the leaf `bias` has the label 'c'.*there are `a`, `b`"):
        transform.init(params())


def test_paths_of_an_nnx_model_have_no_box_of_the_variable():
    with jax_defaults():
        state = nnx.state(nnx.Linear(2, 3, rngs=nnx.Rngs(0)), nnx.Param)
    assert modulax.tree.leaf_paths(state) == ["bias", "kernel"]
    assert modulax.tree.leaf_paths(nnx.as_pure(state)) == ["bias", "kernel"]


def test_paths_of_modules_and_containers_read_alike(key):
    linear = eqx.nn.Linear(2, 3, key=key)
    assert modulax.tree.leaf_paths({"a": [linear]}) == ["a.0.weight", "a.0.bias"]
    assert modulax.tree.leaf_paths({"a": [{"weight": jnp.ones(1), "bias": jnp.ones(1)}]}) == ["a.0.bias", "a.0.weight"]
