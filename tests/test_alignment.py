"""Trees that belong together and differ in their containers, with leaves that are absent in one or in both."""

import re
from collections import OrderedDict
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest
from flax.core import FrozenDict

import modulax as mx
from modulax._transforms.line import line_of
from modulax.tree._align import align, paired


class Pair(NamedTuple):
    """A container whose fields are in another order than the keys of a dict."""

    right: Any
    left: Any


A, B, C, D = (jnp.full(n, float(n)) for n in (1, 2, 3, 4))
PER_LEAF = {"a": np.ones((3, 2)), "b": np.ones((2, 4)), "c": np.ones((3, 1))}
# A tree, the same in other containers, and in both what is absent.
WITH_ABSENT = {"b": (A, None, B), "a": {"x": None, "y": C}, "c": None}
IN_OTHERS = FrozenDict({"a": FrozenDict({"x": None, "y": C}), "b": [A, None, B], "c": None})


def test_absent_leaves_are_paired_with_absent_leaves():
    for tree, like in ((WITH_ABSENT, IN_OTHERS), (IN_OTHERS, WITH_ABSENT)):
        values, rebuild = align(tree, like, "test")
        assert [v.shape for v in values] == [x.shape for x in jtu.tree_leaves(like)]
        rebuilt = rebuild([2 * v for v in values])
        assert jtu.tree_structure(rebuilt) == jtu.tree_structure(tree)
        jax.tree.map(lambda x, y: np.testing.assert_array_equal(x, 2 * y), rebuilt, tree)


def test_what_is_absent_in_one_may_be_left_out_of_the_other():
    """An absent leaf is no leaf: a tree that does not name it has the same leaves."""
    without = {"b": [A, None, B], "a": {"y": C}}
    for tree, like in ((WITH_ABSENT, without), (without, WITH_ABSENT)):
        values, rebuild = align(tree, like, "test")
        assert [v.shape for v in values] == [x.shape for x in jtu.tree_leaves(like)]
        assert jtu.tree_structure(rebuild(values)) == jtu.tree_structure(tree)


def test_values_come_back_to_their_places():
    """The order of the leaves is another one in each."""
    tree, like = {"z": Pair(right=B, left=A), "n": None}, FrozenDict({"z": {"right": B, "left": A}, "n": None})
    values, rebuild = align(tree, like, "test")
    assert [v.shape for v in values] == [(1,), (2,)]
    assert [x.shape for x in rebuild(values)["z"]] == [(2,), (1,)]
    wide, fit = {"b": {"x": D}, "a": (A, B)}, {"a": [A, B], "b": {"x": D}}
    values, rebuild = align(wide, fit, "test")
    assert [v.shape for v in jtu.tree_leaves(rebuild(values))] == [(1,), (2,), (4,)]


def test_several_arrays_of_a_leaf_keep_their_order():
    """As a state has them: a list in the place of each parameter, or nothing."""
    state = Pair(right=None, left=[A, B])
    values, rebuild = align({"p": state, "q": [C]}, FrozenDict({"p": {"left": D}, "q": D}), "test")
    assert [[x.shape for x in v] for v in values] == [[(1,), (2,)], [(3,)]]
    rebuilt = rebuild([[A, B], [C]])
    assert [x.shape for x in jtu.tree_leaves(rebuilt)] == [(1,), (2,), (3,)]
    assert rebuilt["p"].right is None


@pytest.mark.parametrize(
    "tree, message",
    [
        ({"b": [A, None], "a": {"x": None, "y": C}, "c": None}, r"have an unknown `b.2`"),
        ({"b": [A, None, B], "a": {"x": D, "y": C}, "c": None}, r"lack `a.x`"),
        ({"b": [A, None, B], "a": {"x": None, "y": C}, "c": D}, r"lack `c`"),
    ],
)
def test_a_leaf_that_only_one_has_is_refused(tree: Any, message: str):
    with pytest.raises(ValueError, match=message):
        align(FrozenDict(tree), WITH_ABSENT, "test")
    with pytest.raises(ValueError, match=message):
        paired(FrozenDict(tree), WITH_ABSENT, "test")


@pytest.mark.parametrize("axes", [(0,), (1,), (-1,), (0, 2)])
def test_all_leaves_have_as_many_examples(axes: tuple[int, ...]):
    """Every leaf is counted along every example axis, and the message names the first leaf that differs."""

    def per_example(**counts: int) -> Any:
        return {name: np.expand_dims(PER_LEAF[name], axes).repeat(n, axes[-1]) for name, n in counts.items()}

    paired(PER_LEAF, per_example(a=2, b=2, c=2), "test", per_example=axes)
    where, needed = f"axes {re.escape(str(axes))}", "the same length"
    if axes == (0,):
        where, needed = "a leading axis", r"shape \(n, 2, 4\), with the same n for all"
    message = f"`test` needs per-example gradients, with the examples on {where}: at `b` .*{needed}"
    with pytest.raises(ValueError, match=message):
        paired(PER_LEAF, per_example(a=2, b=3, c=3), "test", per_example=axes)
    if len(axes) == 1 and axes != (1,):
        paired({"a": np.zeros(())}, {"a": np.zeros(3)}, "test", per_example=axes)
    with pytest.raises(ValueError, match=r"at `a` the update has shape \(\) and the parameter \(\)"):
        paired({"a": np.zeros(())}, {"a": np.zeros(())}, "test", per_example=axes)


# One of each way to hold a state: rules on one array, in shared and nested fields, copies of the parameters, a list.
TRANSFORMS = {
    "AdamW": lambda: mx.AdamW(0.1),
    "SM3": lambda: mx.SM3(0.1),
    "DoG": mx.DoG,
    "Adafactor": lambda: mx.Adafactor(0.1, min_dim_size_to_factor=1),
    "Muon": lambda: mx.Muon(0.1, adam_learning_rate=0.1),
    "GaLore": lambda: mx.GaLore(0.1, rank=1),
    "Lookahead": lambda: mx.Lookahead(mx.SGD(0.1, 0.9), 2, 0.5),
    "ScheduleFree": lambda: mx.ScheduleFreeSGD(0.1),
    "Mechanize": lambda: mx.Mechanize(mx.SGD(0.1)),
    "MultiSteps": lambda: mx.MultiSteps(mx.Adam(0.1), 2),
    "SAM": lambda: mx.SAM(mx.SGD(0.1), mx.SGD(0.05)),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_updates_in_other_containers_with_absent_leaves(name: str):
    """Three steps on updates in other containers are those in the parameters' own, and no state changes its form."""
    transform = TRANSFORMS[name]()
    params = {"b": (jnp.ones((3, 2)), None, jnp.ones(2)), "a": {"x": None, "y": jnp.ones(())}, "c": None}
    grads = jax.tree.map(lambda p: 0.5 * p, params)
    others = FrozenDict({"a": FrozenDict(grads["a"]), "b": list(grads["b"]), "c": None})

    @jax.jit
    def run() -> Any:
        state = own = transform.init(params)
        updates = steps = None
        for _ in range(3):
            updates, state = transform.update(others, state, params)
            steps, own = transform.update(grads, own, params)
        return updates, state, steps, own

    updates, state, steps, own = run()
    assert jtu.tree_structure(updates) == jtu.tree_structure(others)
    assert jtu.tree_structure(state) == jtu.tree_structure(own)
    expected = {"a": steps["a"], "b": list(steps["b"]), "c": None}
    for found, wanted in zip(jtu.tree_leaves(updates), jtu.tree_leaves(FrozenDict(expected)), strict=True):
        np.testing.assert_array_equal(found, wanted)
    jax.tree.map(np.testing.assert_array_equal, state, own)


# Two parameters with one dotted path, and gradients that tell them apart.
DOTTED = {"a.b": jnp.ones(2), "a": {"b": jnp.ones(2)}}
APART = FrozenDict({"a.b": 2 * jnp.ones(2), "a": {"b": 3 * jnp.ones(2)}})


def test_a_key_with_a_dot_is_not_a_path():
    """Wherever trees of other structures are paired: updates, parameters, arithmetic, a state, a search."""
    expected = {"a.b": -2.0, "a": {"b": -3.0}}
    means = lambda tree: jax.tree.map(lambda x: float(jnp.mean(x)), dict(tree))  # noqa: E731
    sgd = mx.SGD(1.0)
    assert means(mx.tree.sub(sgd.step(APART, sgd.init(DOTTED), DOTTED)[0], DOTTED)) == expected
    assert means(mx.tree.sub(mx.apply_updates(DOTTED, mx.tree.scale(-1, APART)), DOTTED)) == expected
    assert means(mx.tree.sub(mx.tree.zeros_like(DOTTED), APART)) == expected
    adam = mx.Adam(1.0)
    assert means(mx.tree.get(mx.tree.set(adam.init(DOTTED), mu=APART), "mu")) == {"a.b": 2.0, "a": {"b": 3.0}}
    along = {"a.b": jnp.ones(2), "a": {"b": jnp.zeros(2)}}
    _, _, slope = line_of("test", along, DOTTED, APART, lambda p: jnp.sum(p["a.b"]), {})
    assert float(slope) == 4


def test_a_flat_dict_of_paths_is_not_the_tree():
    sgd = mx.SGD(1.0)
    with pytest.raises(ValueError, match=r"lack `a\.b` and have an unknown `a\.b`\. A key that contains a dot"):
        sgd.step({"a": {"b": A}}, sgd.init({"a": {"b": A}}), {"a.b": A})


def test_leaves_of_one_name_are_paired_by_position_or_refused():
    twice = OrderedDict([("1", A), (1, A)])
    sgd = mx.SGD(1.0)
    found, _ = sgd.step(OrderedDict([("1", 2 * A), (1, 3 * A)]), sgd.init(twice), twice)
    assert [float(x[0]) for x in found.values()] == [-1.0, -2.0]
    with pytest.raises(ValueError, match="two leaves have the path `1`"):
        sgd.step(OrderedDict([(1, 3 * A), ("1", 2 * A)]), sgd.init(twice), twice)
    with pytest.raises(ValueError, match="two leaves have the path `1`"):
        mx.apply_updates(twice, OrderedDict([(1, 3 * A), ("1", 2 * A)]))
