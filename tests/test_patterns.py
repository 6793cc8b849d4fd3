"""Labels by pattern: shell-style patterns and regular expressions on paths, and classes of modules."""

import re
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import modulax as mx


class Block(eqx.Module):
    norm: eqx.nn.LayerNorm
    linear: eqx.nn.Linear
    next: "Block | None" = None


def _block(seed: int, after: Block | None = None) -> Block:
    return Block(eqx.nn.LayerNorm(2), eqx.nn.Linear(2, 2, key=jax.random.key(seed)), after)


MODEL = _block(0, _block(1))
LAYERS = eqx.filter(MODEL, eqx.is_inexact_array)
NAMES = ["norm.weight", "norm.bias", "linear.weight", "linear.bias"]

X = np.ones(2, np.float32)
FLAX = {"params": {"Dense_0": {"bias": X, "kernel": X}, "norm": {"scale": X}}}
HAIKU = {"mlp/~/linear_0": {"b": X, "w": X}}
TORCH = {"layers[0].w": X, "layers[1].w": X, "layers0.w": X}
PATHS = "`params.Dense_0.bias`, `params.Dense_0.kernel`, `params.norm.scale`."

# A rule, a tree, and the labels of its leaves.
LABELS: list[tuple[Any, Any, list[Any]]] = [
    (mx.by_regex({r".*\.(bias|scale)": False}, default=True), FLAX, [False, True, False]),
    (mx.by_regex({".*/(bias|scale)": False}, default=True), FLAX, [False, True, False]),
    (mx.by_regex({".*bias": "a", ".*Dense.*": "b", ".*": "c"}), FLAX, ["a", "b", "c"]),
    (mx.by_regex({"params/[^/]+/kernel": 1}, default=0), FLAX, [0, 1, 0]),
    (mx.by_regex({re.compile(".*KERNEL", re.IGNORECASE): 1}, default=0), FLAX, [0, 1, 0]),
    (mx.by_regex({r"mlp/~/linear_\d\.w": 1}, default=0), HAIKU, [0, 1]),
    (mx.by_regex({r"mlp/~/linear_\d/w": 1}, default=0), HAIKU, [0, 1]),
    (mx.by_regex({r"layers\[\d\]\.w": 1}, default=0), TORCH, [0, 1, 1]),
    (mx.by_path({"*.bias": False}, default=True), FLAX, [False, True, True]),
    (mx.by_path({"params/*/bias": 1, "*/kernel": 2, "*": 3}), FLAX, [1, 2, 3]),
    (mx.by_path({"*/w": 1}, default=0), {"w": X, "v": X}, [0, 1]),
    (mx.by_path({"mlp/~/linear_0.w": 1}, default=0), HAIKU, [0, 1]),
    (mx.by_path({"mlp/~/*/w": 1}, default=0), HAIKU, [0, 1]),
    (mx.by_path({"layers[1].w": 1}, default=0), TORCH, [0, 0, 1]),
    (mx.by_path({"layers[[]*": 1}, default=0), TORCH, [0, 1, 1]),
    (mx.by_type(eqx.nn.Linear, "weight"), LAYERS, [0, 0, 1, 0] * 2),
    (mx.by_type(eqx.nn.Linear), LAYERS, [0, 0, 1, 1] * 2),
    (mx.by_type({eqx.nn.LayerNorm: 0, (eqx.nn.Linear, "bias"): 0}, default=1), LAYERS, [0, 0, 1, 0] * 2),
    (mx.by_type({(eqx.nn.Linear, "bias"): 2, eqx.nn.Linear: 1, eqx.Module: 0}), LAYERS, [0, 0, 1, 2] * 2),
    (mx.by_type({(Block, "next"): 1, Block: 0}), LAYERS, [0] * 4 + [1] * 4),
    (mx.by_type({(Block, "linear"): 1}, default=0), LAYERS, [0, 0, 1, 1] * 2),
]

# A rule that fits no leaf of a tree, and what the error says.
MISFITS: list[tuple[Any, Any, str]] = [
    (mx.by_regex({"bias": 1}, default=0), FLAX, f"{PATHS} It must match the whole path: write `.*bias.*`"),
    (mx.by_regex({"[^/]*kernel": 1}, default=0), FLAX, "It must match the whole path"),
    (mx.by_regex({"foo": 1}, default=0), FLAX, f"the pattern `foo` matches no leaf. The paths are {PATHS}"),
    (mx.by_regex({".*bias": False}), FLAX, "no pattern matches the leaf `params.Dense_0.kernel`"),
    (mx.by_path({"*.(bias|scale)": 1}, 0), FLAX, "regular expression: use `by_regex({'*.(bias|scale)': ...})`"),
    (mx.by_path({"params/.*/bias": 1}, 0), FLAX, "regular expression: use `by_regex({'params/.*/bias': ...})`"),
    (mx.by_path({r"params\.norm": 1}, 0), FLAX, "This looks like a regular expression"),
    (mx.by_path({"^params": 1}, 0), FLAX, "This looks like a regular expression"),
    (mx.by_path({"dense.*": 1}, 0), FLAX, f"the pattern `dense.*` matches no leaf. The paths are {PATHS}"),
    (mx.by_path({"*.bias": 1}), FLAX, "a label for the rest, `by_path(..., default=...)`"),
    (mx.by_path({"layers[0].*": 1}, 0), {"layers[0].w": X}, "write `layers[[]0].*` for the character itself"),
    (mx.by_type(eqx.nn.Linear), FLAX, "no `Linear` in the parameters. They consist of `dict`. Use `by_path`"),
    (mx.by_type(eqx.nn.Conv), LAYERS, "no `Conv` in the parameters. They consist of `Block`, `LayerNorm`, `Linear`."),
    (mx.by_type(eqx.nn.Linear, "wieght"), LAYERS, "no field `wieght`. Did you mean `weight`? It has `weight`, `bias`."),
    (mx.by_type({(eqx.nn.Linear, "use_bias"): 1}, default=0), LAYERS, "no parameters in its field `use_bias`."),
    (mx.by_type({eqx.nn.Linear: True}), LAYERS, "no class matches the leaf `norm.weight`"),
]


def test_labels():
    for rule, tree, labels in LABELS:
        assert rule.labels(tree) == labels, rule


def test_a_pattern_that_fits_nothing():
    for rule, tree, message in MISFITS:
        with pytest.raises(ValueError, match=re.escape(message)) as caught:
            rule.labels(tree)
        ends_there = message.endswith("scale`.")
        assert str(caught.value).startswith(f"`{rule!r}`: ")
        assert str(caught.value).endswith(message) or not ends_there, "a hint where nothing is known"


def test_a_field_that_is_none_is_not_missing():
    assert mx.tree.leaf_paths(LAYERS) == [*NAMES, *(f"next.{name}" for name in NAMES)]
    without = eqx.tree_at(lambda m: m.bias, LAYERS.linear, None)
    assert mx.by_type({(eqx.nn.Linear, "bias"): 0}, default=1).labels([without]) == [1]
    assert mx.by_type(eqx.nn.Linear, "weight").labels([]) == []


def test_classes_and_expressions_in_every_place():
    """The weights of linear layers alone decay, are in a group, and move; gradients are trees of modules too."""
    weights = mx.by_type(eqx.nn.Linear, "weight")
    transforms = [
        mx.Chain(mx.Scale(0.0), mx.AddDecayedWeights(2.0, weights)),
        mx.Partition({True: mx.Scale(2.0), False: mx.SetToZero()}, weights),
        mx.Partition(
            {"w": mx.Scale(2.0), "rest": mx.SetToZero()}, mx.by_type({(eqx.nn.Linear, "weight"): "w"}), "rest"
        ),
        mx.Masked(mx.Scale(2.0), mx.by_regex({r".*linear\.weight": True}, default=False), otherwise="zero"),
        mx.Chain(mx.Scale(2.0), mx.Freeze(mx.by_type({(eqx.nn.Linear, "weight"): False}, default=True))),
    ]

    @eqx.filter_jit
    def moved() -> Any:
        grads = eqx.filter_grad(lambda m: sum(jnp.sum(x**2) / 2 for x in jax.tree.leaves(eqx.filter(m, eqx.is_array))))
        return [t.update(grads(MODEL), t.init(MODEL), MODEL)[0] for t in transforms]

    for updates in moved():
        for name, u, p in zip(NAMES, jax.tree.leaves(updates), jax.tree.leaves(MODEL), strict=False):
            np.testing.assert_allclose(u, 2 * p if name == "linear.weight" else 0 * p, rtol=1e-6, err_msg=name)


def test_patterns_compare_by_value():
    same = [
        [mx.by_type(eqx.nn.Linear, "bias"), mx.by_type({(eqx.nn.Linear, "bias"): True}, default=False)],
        [mx.by_regex({"a": 1}), mx.by_regex({re.compile("a"): 1})],
        [mx.by_regex({"a": 1}, default=2), mx.by_regex({"a": 1}, 2)],
    ]
    for a, b in same:
        assert (a, hash(a), repr(a)) == (b, hash(b), repr(b))
    rules = [pair[0] for pair in same]
    rules += [mx.by_path({"a": 1}), mx.by_regex({"a": True}), mx.by_path({"a": 1}, 2), mx.by_type(eqx.nn.Linear)]
    assert len({*rules}) == len(rules)
    assert repr(mx.by_type(eqx.nn.Linear, "bias")) == "by_type({(Linear, 'bias'): True}, default=False)"
    assert repr(mx.by_regex({re.compile("a", re.I): 1})) == "by_regex({re.compile('a', re.IGNORECASE): 1})"
