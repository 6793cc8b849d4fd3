"""Multipliers by path and by depth, and the optimizers with groups and layers that are made of them."""

import functools
from collections.abc import Iterable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx

import modulax as mx
from modulax import checkpoint, schedules, sweeps

from .settings import jax_defaults

BLOCK = {"w": jnp.ones((2, 2)), "bias": jnp.ones(2)}
PARAMS: Any = {
    "embed": jnp.ones((3, 2)),
    "blocks": [BLOCK, BLOCK],
    "norm": jnp.ones(2),
    "head": {"w": jnp.ones((2, 2))},
}
MULTIPLIERS = {"head.*": 10.0, "blocks.*.bias": 2.0, "blocks.0.*": 0.5, "*": 1.0}


def updated(optimizer, tree):
    return optimizer.update(tree, optimizer.init(tree), tree)[0]


def by_names(values, tree=PARAMS):
    return dict(zip(mx.tree.leaf_paths(tree), values, strict=True))


def test_the_first_pattern_that_matches_wins():
    found = by_names(mx.ScaleByPath(MULTIPLIERS).multipliers_of(PARAMS))
    assert found == {
        "blocks.0.bias": 2.0,
        "blocks.0.w": 0.5,
        "blocks.1.bias": 2.0,
        "blocks.1.w": 1.0,
        "embed": 1.0,
        "head.w": 10.0,
        "norm": 1.0,
    }


def test_multipliers_have_the_names_of_their_patterns():
    optimizer = mx.Chain(mx.AdamW(1e-3), mx.ScaleByPath(MULTIPLIERS))
    numbers = optimizer.hyperparameters()
    assert numbers["head.*"] == numbers["scale_by_path.multipliers.head.*"] == 10
    for name in ("head.*", "multipliers.head.*", "parts.scale_by_path.multipliers.head.*"):
        changed = optimizer.replace(**{name: 3.0})
        assert [float(x) for x in changed["scale_by_path"].multipliers.values()] == [3.0, 2.0, 0.5, 1.0]
    # `*` is the name of one of them, and `multipliers.*` of it too; a pattern that is no name selects several.
    assert list(optimizer.replace(**{"*": 7.0})["scale_by_path"].multipliers.values()) == [10.0, 2.0, 0.5, 7.0]
    assert optimizer.replace(**{"*": 7.0})["adamw"] == optimizer["adamw"]
    assert list(optimizer.replace(**{"scale_by_path.*": 7.0})["scale_by_path"].multipliers.values()) == [7.0] * 4
    grid = sweeps.grid(optimizer, **{"head.*": [1.0, 2.0]})
    assert [float(x.hyperparameters()["head.*"]) for x in grid] == [1.0, 2.0]
    # The order of the patterns survives JAX, which sorts the keys of plain dicts.
    assert list(jax.tree.map(lambda x: x, optimizer)["scale_by_path"].multipliers) == list(MULTIPLIERS)
    saved = checkpoint.state_dict(optimizer)
    new, report = checkpoint.load_state_dict(optimizer.replace(**{"head.*": 1.0}), saved)
    assert not report.fresh
    assert new.hyperparameters()["head.*"] == 10


def test_a_multiplier_may_be_a_schedule_and_a_new_one_does_not_retrace():
    line = schedules.Linear(1.0, 0.0, 4)
    optimizer = mx.Chain(mx.SGD(1.0), mx.ScaleByPath({"head.*": line, "*": 0.5}))
    state, heads, updates = optimizer.init(PARAMS), [], PARAMS
    for _ in range(3):
        updates, state = optimizer.update(PARAMS, state)
        heads.append(float(updates["head"]["w"][0, 0]))
    np.testing.assert_allclose(heads, [-1.0, -0.75, -0.5])
    np.testing.assert_allclose(updates["embed"], -0.5)
    traced = []

    @jax.jit
    def step(optimizer, state):
        traced.append(1)
        return optimizer.update(PARAMS, state)[0]["head"]["w"][0, 0]

    for factor in (0.5, 0.25):
        scaled = mx.Chain(mx.SGD(1.0), mx.ScaleByPath({"head.*": factor, "*": 0.5}))
        assert step(scaled, scaled.init(PARAMS)) == -factor
    assert len(traced) == 1


def test_powers_of_a_factor_that_is_a_schedule():
    factor = schedules.Linear(0.5, 1.0, 2)
    tree = {"a": jnp.ones(2), "b": jnp.ones(2), "c": jnp.ones((3, 2))}
    depth = mx.ScaleByDepth(factor, mx.by_path({"a": -1, "b": 2, "c": (0, 1, -2)}))
    optimizer = mx.Chain(mx.SGD(1.0), depth)
    state = optimizer.init(tree)
    for f in (0.5, 0.75):
        updates, state = optimizer.update(tree, state)
        np.testing.assert_allclose(updates["a"], -1 / f)
        np.testing.assert_allclose(updates["b"], -(f**2))
        np.testing.assert_allclose(updates["c"][:, 0], [-1.0, -f, -1 / f**2], rtol=1e-6)
    rates = optimizer.metrics(state)
    assert float(rates["a.learning_rate"]) == pytest.approx(1 / 0.75)
    assert float(rates["c.2.learning_rate"]) == pytest.approx(1 / 0.75**2)
    assert mx.describe(optimizer, tree).leaves[0].learning_rate == "2 → 1"


def test_a_multiplier_after_adamw_scales_the_weight_decay_as_a_learning_rate_of_torch_does():
    optimizer = mx.Chain(mx.AdamW(1e-2, weight_decay=0.1), mx.ScaleByPath({"head.*": 0.5, "*": 1.0}))
    grads = jax.tree.map(lambda p: 0.3 * p, PARAMS)
    updates, _ = optimizer.update(grads, optimizer.init(PARAMS), PARAMS)
    half: Any = optax.adamw(0.5e-2, weight_decay=0.1)
    with jax_defaults():
        expected, _ = half.update(grads["head"], half.init(PARAMS["head"]), PARAMS["head"])
    np.testing.assert_allclose(updates["head"]["w"], expected["w"], rtol=1e-5)


# --- layerwise_decay

# `timm.optim.param_groups_layer_decay(model, layer_decay=0.75)` of timm 1.0.31, for a `VisionTransformer` of depth 3:
# its `lr_scale` by the beginning of the name of a parameter.
TIMM = {
    "cls_token": 0.31640625,
    "pos_embed": 0.31640625,
    "patch_embed.proj.weight": 0.31640625,
    "blocks.0.norm1.weight": 0.421875,
    "blocks.0.attn.qkv.weight": 0.421875,
    "blocks.1.mlp.fc1.bias": 0.5625,
    "blocks.2.attn.proj.bias": 0.75,
    "norm.weight": 0.75,
    "head.weight": 1.0,
    "head.bias": 1.0,
}


def nested(paths: Iterable[str], shape: Any = 2) -> Any:
    """A tree of dicts with these paths."""
    tree: Any = {}
    for path in paths:
        *outer, name = path.split(".")
        functools.reduce(lambda node, key: node.setdefault(key, {}), outer, tree)[name] = jnp.ones(shape)
    return tree


def test_layers_have_the_multipliers_of_timm():
    tree = nested(TIMM)
    optimizer = mx.layerwise_decay(mx.AdamW(1e-3), tree, 0.75)
    found = by_names(optimizer["scale_by_depth"].multipliers_of(tree), tree)
    assert found == pytest.approx(TIMM)
    half = optimizer.replace(factor=0.5)["scale_by_depth"].multipliers_of(tree)
    assert by_names(half, tree)["cls_token"] == 0.5**4
    updates = updated(mx.layerwise_decay(mx.SGD(1.0), tree, 0.75), tree)
    found = by_names(jax.tree.leaves(updates), tree)
    assert {path: -float(x[0]) for path, x in found.items()} == pytest.approx(TIMM)


class Flax(linen.Module):
    @linen.compact
    def __call__(self, x):
        for i in range(2):
            x = linen.Dense(2, name=f"layers_{i}")(x)
        return linen.Dense(2, name="head")(x)


def exponents(tree, **arguments):
    optimizer = mx.layerwise_decay(mx.SGD(1.0), tree, 0.5, **arguments)
    return by_names(optimizer["scale_by_depth"].exponents.labels(tree), tree)


def test_layers_of_every_library():
    """A stack of blocks has an exponent for each of them."""
    keys = jax.random.split(jax.random.key(0), 3)
    model = {
        "token_embedding": jnp.ones((5, 2)),
        "layers": eqx.filter_vmap(lambda key: eqx.nn.Linear(2, 2, key=key))(keys),
        "lm_head": eqx.nn.Linear(2, 5, use_bias=False, key=keys[0]),
    }
    assert exponents(model) == {
        "token_embedding": 4,
        "layers.weight": (3, 2, 1),
        "layers.bias": (3, 2, 1),
        "lm_head.weight": 0,
    }
    updates = updated(mx.layerwise_decay(mx.SGD(1.0), model, 0.5), jax.tree.map(jnp.ones_like, model))
    np.testing.assert_allclose(updates["layers"].weight, -np.broadcast_to([[[0.125]], [[0.25]], [[0.5]]], (3, 2, 2)))
    np.testing.assert_allclose(updates["layers"].bias, -np.broadcast_to([[0.125], [0.25], [0.5]], (3, 2)))

    mlp = eqx.filter_eval_shape(lambda: eqx.nn.MLP(2, 2, 2, 2, key=jax.random.key(0)))
    rates = mx.layerwise_decay(mx.SGD(1.0), mlp, 0.5)["scale_by_depth"].exponents
    assert repr(rates) == "by_path({'layers.0.*': 2, 'layers.1.*': 1, 'layers.2.*': 0})"

    variables = jax.eval_shape(Flax().init, jax.random.key(0), jnp.ones((1, 2)))
    found = exponents(variables)
    assert [found[f"params.{name}"] for name in ("layers_0.kernel", "layers_1.bias", "head.bias")] == [2, 1, 0]

    blocks = nnx.List([nnx.Linear(2, 2, rngs=nnx.Rngs(0)) for _ in range(11)])
    found = exponents(nnx.state(nnx.Dict(blocks=blocks, out_norm=nnx.LayerNorm(2, rngs=nnx.Rngs(0))), nnx.Param))
    assert (found["blocks.0.kernel"], found["blocks.10.bias"], found["out_norm.scale"]) == (10, 0, 0)


def test_blocks_that_are_stacked_below_the_top_of_the_tree():
    inside = {"embed": (5, 4), "blocks": {"w": (3, 4, 4), "b": (3, 4)}, "norm": (4,)}
    tree = jax.tree.map(jnp.ones, {"encoder": inside, "head": (4, 5)}, is_leaf=lambda x: isinstance(x, tuple))
    assert exponents(tree) == {
        "encoder.embed": 4,
        "encoder.blocks.w": (3, 2, 1),
        "encoder.blocks.b": (3, 2, 1),
        "encoder.norm": 1,
        "head": 0,
    }


def test_embeddings_are_known_by_their_names():
    for name in ("emb", "tok_emb", "embs", "wte", "pos_emb", "embed_tokens"):
        assert exponents({"blocks": [jnp.ones(2)] * 2, name: jnp.ones(2)})[name] == 2
    for name in ("member", "subnet", "system", "walnut", "overhead", "spool"):  # no emb, bn, stem, ln, head, pool
        with pytest.raises(ValueError, match=f"doesn't know the depth of `{name}`"):
            exponents({"blocks": [jnp.ones(2)] * 2, name: jnp.ones(2)})


def test_norms_outside_the_blocks_are_before_or_after_them():
    before = ("embed_norm", "input_norm", "emb_ln", "pre_layernorm", "word_embeddings_layernorm", "LayerNormPre_0")
    after = ("norm", "LayerNorm_0", "ln_f", "norm1", "bn", "post_layernorm", "pre_head_norm")
    for names, wanted in ((before, 3), (after, 1)):
        tree = {"blocks": [jnp.ones(2)] * 2, "lmHead": jnp.ones(2)} | dict.fromkeys(names, jnp.ones(2))
        assert {name: exponents(tree)[name] for name in names} == dict.fromkeys(names, wanted)


def test_depths_of_usual_models():
    """OPT, CLIP and BERT: what the blocks are in says nothing, and a norm after them has the depth of the last one."""
    blocks, one = {"0": {"w": jnp.ones(2)}, "1": {"w": jnp.ones(2)}}, {"w": jnp.ones(2)}
    cases = [
        ({"decoder": {"embed_tokens": one, "layers": blocks, "final_layer_norm": one}}, [2, 0, 1, 0]),
        ({"embeddings": one, "encoder": {"layers": blocks}, "post_layernorm": one}, [2, 1, 0, 0]),
        ({"bert": {"embeddings": one, "encoder": {"layer": blocks}}, "cls": {"predictions": one}}, [3, 2, 1, 0]),
        ({"cls_token": jnp.ones(2), "blocks": blocks, "norm_pre": one, "output_norm": one}, [1, 0, 2, 2, 0]),
    ]
    for tree, wanted in cases:
        assert list(exponents(tree).values()) == wanted


def test_depths_can_be_given():
    tree = {"enc": [jnp.ones(2)] * 2, "dec": [jnp.ones(2)] * 2}
    wanted = {"dec.0": 1, "dec.1": 0, "enc.0": 2, "enc.1": 2}
    assert exponents(tree, depth={"enc.*": 0, "dec.0": 1, "*": 2}) == wanted
    assert exponents(tree, depth=lambda path: {"enc.0": 0, "enc.1": 0, "dec.0": 1, "dec.1": 2}[path]) == wanted
    inside = {"embed": jnp.ones(2), "x": {"first": {"w": jnp.ones((4, 2))}}}
    assert exponents(inside, depth="x.first") == {"embed": 4, "x.first.w": (3, 2, 1, 0)}
    by_second = {"embed": jnp.ones(2), "layers": {"w": jnp.ones((2, 3, 2)), "b": jnp.ones((2, 3))}}
    assert exponents(by_second, axis=1) == {"embed": 3, "layers.b": (2, 1, 0), "layers.w": (2, 1, 0)}
    updates = updated(mx.layerwise_decay(mx.SGD(1.0), by_second, 0.5, axis=1), by_second)
    np.testing.assert_allclose(updates["layers"]["b"], -np.broadcast_to([0.25, 0.5, 1.0], (2, 3)))


def test_a_list_of_one_block():
    """It is no stack, also where all of its arrays are matrices of one height."""
    for block in ({"q": jnp.ones((4, 4)), "norm": jnp.ones(4)}, {"q": jnp.ones((4, 4)), "k": jnp.ones((4, 4))}):
        tree = {"embed": jnp.ones((11, 4)), "blocks": [block], "head": jnp.ones((4, 2))}
        inside = dict.fromkeys([f"blocks.0.{name}" for name in block], 1)
        expected = inside | {"embed": 2, "head": 0}
        assert exponents(tree) == exponents(tree, depth="blocks") == exponents(tree, depth="blocks.*") == expected
    # Numbers inside the block are no list of blocks, in a tree and in a state dict.
    paths = ["embed.w", "blocks.0.fc1.w", "blocks.0.fc2.w", "blocks.0.mlp.layers.0.w", "blocks.0.mlp.layers.1.w"]
    for tree in (nested([*paths, "head.w"]), {path: jnp.ones(2) for path in (*paths, "head.w")}):
        assert exponents(tree) == dict.fromkeys(paths[1:], 1) | {"embed.w": 2, "head.w": 0}
    # A list around the whole model is no list of blocks.
    assert list(exponents(nested(["layers.1.layers.0.w", "layers.1.layers.2.w"])).values()) == [1, 0]
    # Beside other blocks, the list of one is another list if it has numbers inside.
    with pytest.raises(ValueError, match=r"several lists of blocks, `blocks.\*`, `layers.\*`"):
        exponents(nested([*paths, "layers.0.w", "layers.1.w"]))
    # A number that occurs once is one of a list only if the name says so.
    numbered = {"blocks": [jnp.ones((2, 2)), jnp.ones((2, 2))], "head1": jnp.ones((2, 2)), "embed2": jnp.ones((2, 2))}
    assert exponents(numbered) == {"blocks.0": 2, "blocks.1": 1, "embed2": 3, "head1": 0}


def test_the_keys_of_a_state_dict_are_paths():
    blocks = [f"model.layers.{i}.{name}.weight" for i in range(2) for name in "qk"]
    tree = nested(["model.embed_tokens.weight", *blocks, "lm_head.weight"], (4, 4))
    flat = by_names(jax.tree.leaves(tree), tree)
    for depth in (None, "model.layers"):
        assert exponents(flat, depth=depth) == exponents(tree, depth=depth)
    assert str(mx.roles(flat)) == str(mx.roles(tree))
    for params in (flat, tree):
        with pytest.warns(mx.LikelyMistake, match="`lm_head.weight` is trained as a matrix, and `lm_head` sounds"):
            mx.Muon(0.1, adam_learning_rate=0.1, roles={"model.embed*": mx.Embedding()}).init(params)


# --- groups

GROUPS = {"head.*": {"learning_rate": 1e-2, "weight_decay": 0.0}, "*.bias": {"weight_decay": 0.0}}


SGD = mx.SGD(0.1)


@pytest.mark.parametrize("optimizer, message", [
    (mx.ScheduleFreeSGD(0.1), r"`ScheduleFree\({}\(SGD\(...\), ...\)(\[0\])?, ...\)`"),
    (mx.ScheduleFreeAdamW(0.1), r"`ScheduleFree\({}\(AdamW\(..., b1=0.0\), ...\)(\[0\])?, ...\)`"),
    (mx.Chain(mx.Clip(1.0), mx.ParamEMA(SGD)), r"`ParamEMA\({}\(SGD\(...\), ...\)(\[0\])?\)`"),
    (mx.MADGRAD(0.1), r"`{}` multiplies .* `groups\(MADGRAD\(...\), \{{...\}}\)`"),
])  # fmt: skip
def test_multipliers_after_an_optimizer_with_parameters_of_its_own(optimizer: Any, message: str):
    params, depths = {"a": jnp.ones(2), "z": jnp.ones(2)}, {"a": 0, "z": 1}
    with pytest.raises(ValueError, match=message.format("layerwise_decay")):
        mx.layerwise_decay(optimizer, params, 0.5, depths)
    with pytest.raises(ValueError, match=message.format("mup")):
        mx.mup(optimizer, params, params, like="sgd")


def test_schedule_free_with_layerwise_decay_is_that_of_one_optimizer_each():
    params, depths = {"a": jnp.ones(2), "z": jnp.ones(2)}, {"a": 0, "z": 1}
    decayed: Any = mx.ScheduleFree(mx.layerwise_decay(SGD, params, 0.5, depths), 0.1)
    alone: Any = mx.groups(mx.ScheduleFreeSGD(0.1), {"a": {"learning_rate": 0.05}})
    results = []
    for optimizer in (decayed, alone):
        p, state = params, optimizer.init(params)
        for _ in range(3):
            p, state = optimizer.step(p, state, p)
        results.append((p, optimizer.eval_params(state, p)))
    for x, y in zip(*map(jax.tree.leaves, results), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-6)
    assert mx.check(decayed, params) == ()


def test_groups_are_those_of_one_optimizer_each():
    optimizer = mx.groups(mx.AdamW(1e-3, weight_decay=0.1), GROUPS)
    grads = jax.tree.map(lambda p: 0.3 * p, PARAMS)
    updates, state = optimizer.update(grads, optimizer.init(PARAMS), PARAMS)
    labels = jax.tree_util.tree_map_with_path(lambda path, x: jax.tree_util.keystr(path, simple=True), PARAMS)
    kind = jax.tree.map(lambda x: "head" if "head" in x else "bias" if "bias" in x else "rest", labels)
    twin = optax.multi_transform(
        {
            "head": optax.adamw(1e-2, weight_decay=0.0),
            "bias": optax.adamw(1e-3, weight_decay=0.0),
            "rest": optax.adamw(1e-3, weight_decay=0.1),
        },
        kind,
    )
    with jax_defaults():
        expected, _ = twin.update(grads, twin.init(PARAMS), PARAMS)
    for x, y in zip(jax.tree.leaves(updates), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5)
    assert list(state.inner_states) == ["head.*", "*.bias", "default"]
    assert optimizer.hyperparameters()["head.*.learning_rate"] == np.float32(1e-2)
    changed = optimizer.replace(**{"*.bias.learning_rate": 0.5})
    rates = [t.hyperparameters()["learning_rate"] for t in changed.transforms.values()]
    assert rates == pytest.approx([1e-2, 0.5, 1e-3])


def test_groups_share_what_is_traced():
    traced = []

    class Rule(mx.AbstractLeafwise):
        rate: mx.Number = mx.number(1.0)
        decay: mx.Number = mx.number(0.0)
        twice: bool = eqx.field(static=True, default=False)

        def update_leaf(self, now, g, s, p):
            traced.append(1)
            return self.rate * (2 * g if self.twice else g), s

    tree = {x: [jnp.ones(3)] * 2 for x in "abc"}
    optimizer = mx.groups(Rule(), {"a*": {"rate": 2.0}, "b*": {"rate": 3.0}})
    updates, _ = optimizer.update(tree, optimizer.init(tree))
    assert [float(x[0]) for x in jax.tree.leaves(updates)] == [2, 2, 3, 3, 1, 1]
    assert len(traced) == 1  # leaves of one shape, in three groups
    other = mx.groups(Rule(), {"a*": {"rate": 2.0}, "b*": {"twice": True}})
    updates, _ = other.update(tree, other.init(tree))
    assert [float(x[0]) for x in jax.tree.leaves(updates)] == [2, 2, 2, 2, 1, 1]
    assert len(traced) == 3  # another option is another rule


def test_groups_draw_different_numbers():
    """Also with noise on private gradients, whose difference would be free of it; a key that is given is kept."""
    params = {"a": jnp.zeros(64), "b": jnp.zeros(64), "c": jnp.zeros(64)}
    zeros = jax.tree.map(jnp.zeros_like, params)
    noisy: Any = mx.NoisySGD(1.0, key=0)
    optimizers: list[Any] = [noisy, mx.Chain(mx.AddNoise(1.0, 0.5, key=jax.random.key(3)), mx.SGD(1.0))]
    for optimizer in optimizers:
        made = mx.groups(optimizer, {"a": {"*learning_rate": 0.5}, "b": {"*learning_rate": 0.5}})
        updates, _ = made.update(zeros, made.init(params), params)
        a, b, c = updates.values()
        for x, y in ((a, b), (2 * a, c), (2 * b, c)):
            assert float(jnp.max(jnp.abs(x - y))) > 0.1 * float(jnp.max(jnp.abs(x)))
        alone, _ = optimizer.update({"c": zeros["c"]}, optimizer.init({"c": params["c"]}))
        np.testing.assert_array_equal(c, alone["c"])
    made = mx.groups(noisy, {"a": {"key": 0}, "b": {"key": 0}})
    updates, _ = made.update(zeros, made.init(params), params)
    np.testing.assert_array_equal(updates["a"], updates["b"])
    assert len({x.tobytes() for x in jax.tree.leaves(mx.groups(noisy, {"a": {"learning_rate": 0.5}})) if x.ndim}) == 2
