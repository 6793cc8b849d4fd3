"""`roles`: what each parameter is, and everything that reads it."""

import copy
import dataclasses
import pickle
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

import modulax as mx
import modulax.nnx
from modulax._roles.labels import with_roles

KEY = jax.random.key(0)


def table(model: Any, given: Any = None) -> dict[str, str]:
    """The role of each parameter, with its axes: `query 0>1,2` for inputs and outputs, `[0]` before for a batch."""

    def axes(x: tuple[int, ...]) -> str:
        return ",".join(map(str, x))

    return {
        path: " ".join(
            x
            for x in (
                f"[{axes(role.batch)}]" * bool(role.batch),
                role.kind or "-",
                f"{axes(role.fan_in)}>{axes(role.fan_out)}" * bool(role.fan_in),
                "" if role.is_known else "?",
            )
            if x
        )
        for path, role in mx.roles(model, given).items()
    }


# --- Equinox -------------------------------------------------------------------------------------


class Block(eqx.Module):
    attention: eqx.nn.MultiheadAttention
    norm: eqx.nn.LayerNorm
    mlp: eqx.nn.MLP

    def __init__(self, key: Any):
        self.attention = eqx.nn.MultiheadAttention(2, 4, use_query_bias=True, key=key)
        self.norm = eqx.nn.LayerNorm(4)
        self.mlp = eqx.nn.MLP(4, 4, 8, 1, key=key)


class Transformer(eqx.Module):
    """A GPT in Equinox, with a table of positions of its own."""

    embedding: eqx.nn.Embedding
    pos_embed: jax.Array
    blocks: list[Block]
    lm_head: eqx.nn.Linear

    def __init__(self, key: Any):
        self.embedding = eqx.nn.Embedding(7, 4, key=key)
        self.pos_embed = jnp.ones((5, 4))
        self.blocks = [Block(key), Block(key)]
        self.lm_head = eqx.nn.Linear(4, 7, use_bias=False, key=key)


class ViT(eqx.Module):
    patches: eqx.nn.Conv2d
    cls_token: jax.Array
    positions: jax.Array
    blocks: Block
    norm: eqx.nn.RMSNorm
    head: eqx.nn.MLP

    def __init__(self, key: Any):
        self.patches = eqx.nn.Conv2d(3, 4, 2, key=key)
        self.cls_token = jnp.ones((1, 4))
        self.positions = jnp.ones((5, 4))
        self.blocks = eqx.filter_vmap(Block)(jax.random.split(key, 3))
        self.norm = eqx.nn.RMSNorm(4)
        self.head = eqx.nn.MLP(4, 2, 3, 1, key=key)


class Declared(eqx.Module):
    """Arrays that a user's module holds."""

    readout: jax.Array = eqx.field(metadata={"role": mx.Head(fan_in=1, fan_out=0)})
    w: jax.Array
    kernels: jax.Array
    gamma: jax.Array
    my_bias: jax.Array
    slope: eqx.nn.PReLU


class BERT(eqx.Module):
    word_embeddings: eqx.nn.Embedding
    position_embeddings: eqx.nn.Embedding
    layer: list[Block]
    pooler: eqx.nn.Linear
    classifier: eqx.nn.Linear

    def __init__(self, key: Any):
        self.word_embeddings, self.position_embeddings = (eqx.nn.Embedding(n, 4, key=key) for n in (7, 5))
        self.layer = [Block(key), Block(key)]
        self.pooler, self.classifier = eqx.nn.Linear(4, 4, key=key), eqx.nn.Linear(4, 2, key=key)


class Cells(eqx.Module):
    gru: eqx.nn.GRUCell
    lstm: eqx.nn.LSTMCell
    up: eqx.nn.ConvTranspose1d
    groups: eqx.nn.GroupNorm
    qkv: eqx.nn.Linear
    normed: eqx.nn.WeightNorm

    def __init__(self, key: Any):
        self.normed = eqx.nn.WeightNorm(eqx.nn.Linear(3, 4, use_bias=False, key=key))
        self.gru = eqx.nn.GRUCell(3, 4, key=key)
        self.lstm = eqx.nn.LSTMCell(3, 4, key=key)
        self.up = eqx.nn.ConvTranspose1d(2, 3, 4, key=key)
        self.groups = eqx.nn.GroupNorm(2, 4)
        self.qkv = eqx.nn.Linear(4, 12, key=key)


def declared() -> Declared:
    x = jnp.ones((2, 3))
    return Declared(x, x, jnp.ones((2, 3, 4)), jnp.ones(3), x, eqx.nn.PReLU())


BLOCK = {
    "attention.query_proj.weight": "query 1>0",
    "attention.query_proj.bias": "bias",
    "attention.key_proj.weight": "key 1>0",
    "attention.value_proj.weight": "value 1>0",
    "attention.output_proj.weight": "out 1>0",
    "norm.weight": "gain",
    "norm.bias": "bias",
    "mlp.layers.0.weight": "hidden 1>0",
    "mlp.layers.0.bias": "bias",
    "mlp.layers.1.weight": "hidden 1>0",
    "mlp.layers.1.bias": "bias",
}
STACKED = {path: f"[0] {role.replace('1>0', '2>1')}" if ">" in role else role for path, role in BLOCK.items()}

EQUINOX = {
    "MLP": (lambda: eqx.nn.MLP(3, 2, 4, 1, key=KEY), {p[4:]: r for p, r in BLOCK.items() if p.startswith("mlp")}),
    "transformer": (
        lambda: Transformer(KEY),
        {
            "embedding.weight": "embedding 0>1",
            "pos_embed": "position",
            **{f"blocks.{i}.{path}": role for i in range(2) for path, role in BLOCK.items()},
            "lm_head.weight": "head 1>0",
        },
    ),
    "ViT": (
        lambda: ViT(KEY),
        {
            "patches.weight": "convolution 1,2,3>0",
            "patches.bias": "bias",
            "cls_token": "embedding 0>1",
            "positions": "position",
            **{f"blocks.{path}": role for path, role in STACKED.items()},
            "norm.weight": "gain",
            "norm.bias": "bias",
            "head.layers.0.weight": "head 1>0",
            "head.layers.0.bias": "bias",
            "head.layers.1.weight": "head 1>0",
            "head.layers.1.bias": "bias",
        },
    ),
    "BERT": (
        lambda: BERT(KEY),
        {
            "word_embeddings.weight": "embedding 0>1",
            "position_embeddings.weight": "position 0>1",
            **{f"layer.{i}.{path}": role for i in range(2) for path, role in BLOCK.items()},
            "pooler.weight": "hidden 1>0",
            "pooler.bias": "bias",
            "classifier.weight": "head 1>0",
            "classifier.bias": "bias",
        },
    ),
    "cells": (
        lambda: Cells(KEY),
        {
            **dict.fromkeys(["gru.weight_ih", "gru.weight_hh"], "hidden 1>0"),
            **dict.fromkeys(["gru.bias", "gru.bias_n"], "bias"),
            **dict.fromkeys(["lstm.weight_ih", "lstm.weight_hh"], "hidden 1>0"),
            "lstm.bias": "bias",
            "up.weight": "convolution 1,2>0",
            "up.bias": "bias",
            "groups.weight": "gain",
            "groups.bias": "bias",
            "qkv.weight": "qkv 1>0",
            "qkv.bias": "bias",
            "normed.layer.weight": "hidden 1>0",
            "normed.g": "gain",
        },
    ),
    "declared": (
        declared,
        {
            "readout": "head 1>0",
            "w": "hidden 0>1 ?",
            "kernels": "- ?",
            "gamma": "gain",
            "my_bias": "bias",
            "slope.negative_slope": "- ?",
        },
    ),
}

# --- Flax ----------------------------------------------------------------------------------------


class NBlock(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.attention = nnx.MultiHeadAttention(2, 4, decode=False, rngs=rngs)
        self.norm = nnx.LayerNorm(4, rngs=rngs)
        self.up = nnx.Linear(4, 8, rngs=rngs)


class NTransformer(nnx.Module):
    """A GPT in NNX."""

    def __init__(self, rngs: nnx.Rngs):
        self.embedding = nnx.Embed(7, 4, rngs=rngs)
        self.pos_embed = nnx.Param(jnp.ones((5, 4)))
        self.blocks = nnx.List([NBlock(rngs), NBlock(rngs)])
        self.lm_head = nnx.Linear(4, 7, use_bias=False, rngs=rngs)


class NLayers(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.general = nnx.LinearGeneral((2, 3), (4, 5), axis=(-2, -1), rngs=rngs)
        self.batched = nnx.LinearGeneral(3, 4, batch_axis={0: 2}, use_bias=False, rngs=rngs)
        self.einsum = nnx.Einsum("bti,hio->btho", (2, 3, 4), rngs=rngs)
        self.conv = nnx.Conv(2, 3, (3, 3), rngs=rngs)
        self.up = nnx.ConvTranspose(2, 3, (4,), rngs=rngs)
        self.down = nnx.ConvTranspose(2, 3, (4,), transpose_kernel=True, rngs=rngs)
        self.lstm = nnx.OptimizedLSTMCell(3, 4, rngs=rngs)
        self.gru = nnx.GRUCell(3, 4, rngs=rngs)
        self.batch_norm = nnx.BatchNorm(3, rngs=rngs)
        self.lora = nnx.LoRALinear(3, 4, lora_rank=2, rngs=rngs)
        self.stack = nnx.vmap(lambda key: nnx.Linear(3, 4, rngs=nnx.Rngs(key)))(jax.random.split(KEY, 2))
        self.readout = nnx.Param(jnp.ones((2, 3)), role=mx.Head(fan_in=1, fan_out=0))


NBLOCK = {
    **{f"attention.{name}.kernel": f"{name} 0>1,2" for name in ("query", "key", "value")},
    "attention.out.kernel": "out 0,1>2",
    **{f"attention.{name}.bias": "bias" for name in ("query", "key", "value", "out")},
    "norm.scale": "gain",
    "norm.bias": "bias",
    "up.kernel": "hidden 0>1",
    "up.bias": "bias",
}
NTRANSFORMER = {
    "embedding.embedding": "embedding 0>1",
    "pos_embed": "position",
    **{f"blocks.{i}.{path}": role for i in range(2) for path, role in NBLOCK.items()},
    "lm_head.kernel": "head 0>1",
}
NNX = {
    "transformer": (lambda: NTransformer(nnx.Rngs(0)), NTRANSFORMER),
    "layers": (
        lambda: NLayers(nnx.Rngs(0)),
        {
            "general.kernel": "hidden 0,1>2,3",
            "batched.kernel": "[0] hidden 1>2",
            "einsum.kernel": "hidden 1>0,2",
            "conv.kernel": "convolution 0,1,2>3",
            "up.kernel": "convolution 0,1>2",
            "down.kernel": "convolution 0,2>1",
            **dict.fromkeys(["lstm.dense_i.kernel", "lstm.dense_h.kernel"], "hidden 0>1"),
            **dict.fromkeys(["gru.dense_i.kernel", "gru.dense_h.kernel"], "hidden 0>1"),
            "batch_norm.scale": "gain",
            "lora.kernel": "hidden 0>1",
            "lora.lora.lora_a": "lora 0>1",
            "lora.lora.lora_b": "lora 0>1",
            "stack.kernel": "[0] hidden 1>2",
            "readout": "head 1>0",
            **{
                f"{layer}.bias": "bias"
                for layer in (
                    "general",
                    "conv",
                    "up",
                    "down",
                    "lstm.dense_h",
                    "gru.dense_i",
                    "batch_norm",
                    "lora",
                    "stack",
                )
            },
        },
    ),
}


class Layer(linen.Module):
    """What `linen.scan` stacks."""

    @linen.compact
    def __call__(self, x: Any, _: Any) -> Any:
        x = linen.MultiHeadDotProductAttention(2, name="attention")(x)
        return linen.Dense(4, name="mlp")(x), None


class Linen(linen.Module):
    @linen.compact
    def __call__(self, tokens: Any) -> Any:
        x = linen.Embed(7, 4, name="embed")(tokens) + linen.Embed(5, 4, name="pos_embed")(jnp.arange(5))
        x = linen.MultiHeadDotProductAttention(2, name="attention")(x)
        x = linen.Conv(4, (3,))(linen.LayerNorm()(x))
        broadcast: Any = linen.broadcast
        layers = linen.scan(
            Layer, variable_axes={"params": 0}, split_rngs={"params": True}, length=3, in_axes=broadcast
        )
        x, _ = layers(name="layers")(x, None)
        x = linen.RNN(linen.LSTMCell(4), name="rnn")(x)
        return linen.Dense(7, name="lm_head")(x)


SCANNED = {
    **{f"{name} 0>1,2": f"[0] {name} 1>2,3" for name in ("query", "key", "value")},
    "out 0,1>2": "[0] out 1,2>3",
    "bias": "bias",
}
LINEN = {
    "embed.embedding": "embedding 0>1",
    "pos_embed.embedding": "position 0>1",
    **{path: role for path, role in NBLOCK.items() if path.startswith("attention")},
    "Conv_0.kernel": "convolution 0,1>2",
    "Conv_0.bias": "bias",
    "LayerNorm_0.scale": "gain",
    "LayerNorm_0.bias": "bias",
    **{f"layers.{path}": SCANNED[role] for path, role in NBLOCK.items() if path.startswith("attention")},
    "layers.mlp.kernel": "[0] hidden 1>2",
    "layers.mlp.bias": "bias",
    **{f"LSTMCell_0.{x}.kernel": "hidden 0>1" for x in ("ii", "if", "ig", "io", "hi", "hf", "hg", "ho")},
    **{f"LSTMCell_0.{x}.bias": "bias" for x in ("hi", "hf", "hg", "ho")},
    "lm_head.kernel": "head 0>1",
    "lm_head.bias": "bias",
}


@pytest.mark.parametrize("name", EQUINOX)
def test_equinox(name: str):
    make, expected = EQUINOX[name]
    assert table(make()) == expected


@pytest.mark.parametrize("name", NNX)
def test_nnx(name: str):
    make, expected = NNX[name]
    assert table(make()) == expected


def test_linen():
    params = Linen().init(KEY, jnp.zeros(5, jnp.int32))["params"]
    assert table(params) == LINEN


def test_arrays_of_a_module_by_their_names():
    class Net(eqx.Module):
        embed: jax.Array
        unembed: jax.Array
        embed_out: jax.Array
        token_mix: jax.Array
        cls_token: jax.Array

    model = Net(*[jnp.ones((6, 4))] * 5)
    found = mx.roles(model)
    assert [found[name].kind for name in ("embed", "cls_token")] == ["embedding"] * 2
    # It isn't known which axis of an array is that of the inputs.
    for name, kind in (("unembed", "head"), ("embed_out", "head"), ("token_mix", "hidden")):
        assert (found[name].kind, found[name].is_known) == (kind, False)
    optimizer = mx.AdamW(1.0, weight_decay=0.5, mask=mx.decays)
    updates, _ = optimizer.update(jax.tree.map(jnp.zeros_like, model), optimizer.init(model), model)
    assert [float(x[0, 0]) for x in jax.tree.leaves(updates)] == [0.0, -0.5, -0.5, -0.5, 0.0]


def test_nothing_in_a_block_is_the_head():
    """Also in a list of one block, but in a list around the whole model."""
    head = {"kernel": jnp.ones((4, 4))}
    for n in (1, 2):
        found = table({"blocks": [{"fc1": head, "fc2": head, "head": head}] * n, "head": head})
        assert {path for path, role in found.items() if role == "head 0>1"} == {"head.kernel"}
    assert table({"layers": {"1": {"fc1": head, "fc2": head, "head": head}}})["layers.1.head.kernel"] == "head 0>1"


def shapes(tree: Any) -> Any:
    """A tree of arrays with these shapes."""
    return jax.tree.map(jnp.ones, tree, is_leaf=lambda x: isinstance(x, tuple))


PLAIN_STACK = {
    "layers": {
        "ln": {"weight": (3, 4)},
        "wq": (3, 4, 4),
        "mlp": {"w1": (3, 4, 8), "b1": (3, 8)},
        "experts": {"wi": (3, 2, 4, 8), "bi": (3, 2, 8)},
        "tensor": (3, 2, 2, 4),
    },
    "wte": (9, 4),
}


def test_blocks_and_experts_stacked_in_a_plain_dict():
    """The first axis counts blocks: vectors of a block are no matrices, and its matrices are a batch."""
    tree = shapes(PLAIN_STACK)
    assert table(tree) == {
        "layers.ln.weight": "[0] - ?",
        "layers.wq": "[0] hidden 1>2 ?",
        "layers.mlp.w1": "[0] hidden 1>2 ?",
        "layers.mlp.b1": "[0] - ?",
        "layers.experts.wi": "[0,1] hidden 2>3 ?",
        "layers.experts.bi": "[0,1] - ?",
        "layers.tensor": "- ?",
        "wte": "hidden 0>1 ?",
    }
    rows = mx.describe(mx.AdamW(1e-3, weight_decay=0.1, mask=mx.decays), tree).leaves
    assert {row.path for row in rows if row.weight_decay} == {
        *("layers.wq", "layers.mlp.w1", "layers.experts.wi", "layers.tensor", "wte")
    }
    muon = {path for path, group in groups_of(MUON, tree).items() if group == "muon"}
    assert muon == {"layers.wq", "layers.mlp.w1", "layers.experts.wi", "wte"}
    assert {role.depth for path, role in mx.roles(tree).items() if path != "wte"} == {(1, 2, 3)}
    # One length along the first axis is no stack, if no array has three axes, or one is a vector, or they are in lists.
    for plain in ({"layer": {"w": (4, 4), "u": (4, 4)}}, {"layers": {"w": (3, 4), "u": (3, 4, 4), "b": (3,)}}):
        assert table(shapes(plain))["layer" + "s" * ("layers" in plain) + ".w"] == "hidden 0>1 ?"
    lists = {"layers": {"0": {"w": (3, 4, 4)}, "1": {"w": (3, 4, 4)}}, "block": {"conv": (3, 2, 4), "w": (3, 4)}}
    assert {*table(shapes(lists)).values()} == {"- ?", "hidden 0>1 ?"}


def test_stacked_vectors_are_vectors_for_whoever_reads_roles():
    narrow, wide = ({"layers": {"w": jnp.ones((3, n, n)), "b": jnp.ones((3, n))}} for n in (2, 4))
    scaled, _ = mx.mup(mx.SGD(1.0), wide, narrow, layout="in_out")
    updates, _ = scaled.update(wide, scaled.init(wide))
    np.testing.assert_allclose(updates["layers"]["b"], -2.0)


def test_kernels_of_flax_with_three_axes():
    """The axes of a bias tell those of the outputs; names tell those of attention; else nothing is known."""
    tree = shapes({
        "general": {"kernel": (8, 4, 2), "bias": (4, 2)},
        "projection": {"kernel": (4, 2, 8), "bias": (8,)},
        "several": {"kernel": (4, 2, 8, 3), "bias": (8, 3)},
        "ensemble": {"kernel": (4, 2, 8), "bias": (4, 8)},
        "attn": {**{f"{x}_proj": {"kernel": (8, 4, 2)} for x in "qkv"}, "o_proj": {"kernel": (4, 2, 8)}},
        "key_proj": {"kernel": (8, 4, 2)},
        "haiku": {"w": (3, 4, 2), "b": (3, 2)},
        "second": {"up": {"kernel": (4, 3, 2), "bias": (2, 3)}, "norm": {"scale": (4, 3)}, "to": {"kernel": (2, 3, 4)}},
    })  # fmt: skip
    found = {path: role for path, role in table(tree).items() if path[-4:] not in ("bias", "cale")}
    assert found == {
        "general.kernel": "hidden 0>1,2",
        "projection.kernel": "hidden 0,1>2",
        "several.kernel": "hidden 0,1>2,3",
        "ensemble.kernel": "[0] hidden 1>2",
        "attn.q_proj.kernel": "query 0>1,2",
        "attn.k_proj.kernel": "key 0>1,2",
        "attn.v_proj.kernel": "value 0>1,2",
        "attn.o_proj.kernel": "out 0,1>2",
        "key_proj.kernel": "- ?",
        "haiku.w": "[0] hidden 1>2 ?",
        "haiku.b": "[0] - ?",
        "second.up.kernel": "[1] hidden 0>2",
        "second.to.kernel": "[1] hidden 0>2",
    }
    assert mx.roles(tree)["attn.q_proj.kernel"] == mx.Attention("query", heads=4, fan_in=0, fan_out=(1, 2))


def test_what_may_be_matrices_and_is_left_to_adamw():
    tree = shapes({"key_proj": {"kernel": (8, 4, 2)}, "pos_embed": (2, 5, 4), "w": (2, 1, 4)})
    remedy = r'AdamW trains `key_proj.kernel`: .*`Muon\(roles={"key_proj.kernel": Hidden\(fan_in=-2, fan_out=-1\)}\)`'
    with pytest.warns(UserWarning, match=remedy) as found:
        MUON.init(tree)
    assert len(found) == 1 == len(mx.check(MUON, tree))
    for role, group in ((mx.Hidden(fan_in=-2, fan_out=-1), "muon"), (mx.Other(), "adam")):
        optimizer = MUON.replace(roles={"key_proj.kernel": role})
        optimizer.init(tree)
        assert groups_of(optimizer, tree)["key_proj.kernel"] == group


class ScannedBlock(linen.Module):
    """Without a bias, and with the names that Linen gives."""

    @linen.compact
    def __call__(self, x: Any, _: Any) -> Any:
        heads = [linen.DenseGeneral((2, 3), use_bias=False, name=f"{part}_proj")(x) for part in "qkv"]
        x = linen.DenseGeneral(4, axis=(-2, -1), use_bias=False, name="o_proj")(sum(heads))
        return linen.RMSNorm()(linen.Dense(4, use_bias=False)(x)), None


@pytest.mark.parametrize("axis", [0, 1])
def test_a_model_of_linen_that_is_scanned_trains_as_its_blocks(axis: int):
    """Also in groups that see a part of it."""

    class Model(linen.Module):
        @linen.compact
        def __call__(self, x: Any) -> Any:
            settings: Any = {"variable_axes": {"params": axis}, "split_rngs": {"params": True}, "length": 3}
            settings |= {"in_axes": linen.broadcast}
            x, _ = linen.scan(ScannedBlock, **settings)()(x, None)
            return linen.DenseGeneral((2, 2), name="last")(x)

    stacked = random_like(jax.eval_shape(Model().init, KEY, jnp.ones(4))["params"])
    depths = [role.depth for role in jax.tree.leaves(mx.roles(stacked).tree)]
    assert depths == [(1, 2, 3)] * 6 + [None] * 2

    def apart(tree: Any) -> Any:
        rest, blocks = dict(tree), [tree["ScanScannedBlock_0"]] * 3
        del rest["ScanScannedBlock_0"]
        return rest | {f"b{i}": jax.tree.map(lambda x, i=i: x.take(i, axis), x) for i, x in enumerate(blocks)}

    groups = mx.by_path({"*bias": "sgd", "*scale": "sgd", "*": "muon"})
    optimizers: tuple[Any, ...] = (mx.SOAP(0.1), mx.Partition({"muon": MUON, "sgd": mx.SGD(0.1)}, groups))
    for optimizer in optimizers:
        step = jax.jit(lambda tree, o=optimizer: o.update(tree, o.init(tree), tree)[0])
        jax.tree.map(
            lambda x, y: np.testing.assert_allclose(x, y, atol=1e-4), apart(step(stacked)), step(apart(stacked))
        )


# --- The axes are what the layers do -------------------------------------------------------------


LAYERS: dict[str, Any] = {
    "eqx.Linear": (lambda: eqx.nn.Linear(3, 4, key=KEY), (3,), 0, 0),
    "eqx.Conv": (lambda: eqx.nn.Conv2d(3, 4, 2, key=KEY), (3, 4, 4), 0, 0),
    "eqx.ConvTranspose": (lambda: eqx.nn.ConvTranspose2d(3, 4, 2, key=KEY), (3, 4, 4), 0, 0),
    "nnx.Linear": (lambda: nnx.Linear(3, 4, rngs=nnx.Rngs(0)), (3,), 0, 0),
    "nnx.Conv": (lambda: nnx.Conv(3, 4, (2, 2), rngs=nnx.Rngs(0)), (1, 4, 4, 3), -1, -1),
    "nnx.ConvTranspose": (lambda: nnx.ConvTranspose(3, 4, (2,), rngs=nnx.Rngs(0)), (1, 4, 3), -1, -1),
    "nnx.ConvTranspose, transposed": (
        lambda: nnx.ConvTranspose(3, 4, (2,), transpose_kernel=True, rngs=nnx.Rngs(0)),
        (1, 4, 3),
        -1,
        -1,
    ),
    "nnx.LinearGeneral": (lambda: nnx.LinearGeneral(3, (4, 2), rngs=nnx.Rngs(0)), (3,), 0, -2),
    "nnx.Einsum": (lambda: nnx.Einsum("bti,hio->btho", (2, 3, 4), (2, 4), rngs=nnx.Rngs(0)), (1, 2, 3), -1, -1),
    "linen.Dense": (lambda: linen.Dense(4), (3,), 0, 0),
    "linen.Conv": (lambda: linen.Conv(4, (2, 2), name="conv"), (1, 4, 4, 3), -1, -1),
}


@pytest.mark.parametrize("name", LAYERS)
def test_an_input_and_an_output_touch_one_slice_of_the_weight(name: str):
    """With one input channel, the gradient of one output channel lives where the role has these channels."""
    make, shape, channel, out = LAYERS[name]
    layer: Any = make()
    library = name.partition(".")[0]
    if library == "linen":
        variables: Any = layer.init(KEY, jnp.ones(shape))
        found, path = mx.roles({"conv": variables["params"]}), "conv.kernel"

        def call(weight: Any, x: Any) -> Any:
            return layer.apply({"params": {**variables["params"], "kernel": weight}}, x)

        weight = variables["params"]["kernel"]
    elif library == "nnx":
        found, path, weight = mx.roles(layer), "kernel", layer.kernel[...]

        def call(weight: Any, x: Any) -> Any:
            graph, _ = nnx.split(layer)
            bias = {"bias": layer.bias[...]}
            return nnx.merge(graph, nnx.State({"kernel": weight, **bias}))(x)

    else:
        found, path, weight = mx.roles(layer), "weight", layer.weight

        def call(weight: Any, x: Any) -> Any:
            return eqx.tree_at(lambda m: m.weight, layer, weight)(x)

    role = found[path]
    x = jnp.moveaxis(jnp.zeros(shape), channel, 0).at[1].set(1.0)
    x = jnp.moveaxis(x, 0, channel)
    sizes = [weight.shape[i] for i in role.fan_in]
    fan_in = role.fan_in[sizes.index(3)]  # the others are the window

    def of_one_output(weight: Any) -> Any:
        return jnp.moveaxis(call(weight, x), out, 0)[2].sum()

    grad = np.abs(np.asarray(jax.jacobian(of_one_output)(weight)))
    fan_out = next(i for i in role.fan_out if weight.shape[i] == 4)
    for axis, index in ((fan_in, 1), (fan_out, 2)):
        sums = grad.sum(tuple(i for i in range(grad.ndim) if i != axis))
        assert sums[index] > 0
        np.testing.assert_array_equal(np.delete(sums, index), 0)


# --- Muon ----------------------------------------------------------------------------------------


class Shapes(eqx.Module):
    wide: eqx.nn.Linear
    tall: eqx.nn.Linear
    conv: eqx.nn.Conv2d
    stack: eqx.nn.Linear
    attention: eqx.nn.MultiheadAttention

    def __init__(self):
        self.wide, self.tall = eqx.nn.Linear(4, 64, key=KEY), eqx.nn.Linear(64, 4, key=KEY)
        self.conv = eqx.nn.Conv2d(2, 40, 2, key=KEY)
        self.stack = eqx.filter_vmap(lambda key: eqx.nn.Linear(4, 64, key=key))(jax.random.split(KEY, 2))
        self.attention = eqx.nn.MultiheadAttention(2, 4, qk_size=18, key=KEY)


class NShapes(nnx.Module):
    def __init__(self):
        rngs = nnx.Rngs(0)
        self.wide, self.tall = nnx.Linear(4, 64, rngs=rngs), nnx.Linear(64, 4, rngs=rngs)
        self.conv = nnx.Conv(2, 40, (2, 2), rngs=rngs)
        self.stack = nnx.vmap(lambda key: nnx.Linear(4, 64, rngs=nnx.Rngs(key)))(jax.random.split(KEY, 2))
        self.attention = nnx.MultiHeadAttention(2, 4, qkv_features=36, decode=False, rngs=rngs)


FACTORS = {"wide": 4.0, "tall": 1.0, "conv": np.sqrt(5), "stack": 4.0, "query": 3.0, "out": 1.0}


def as_matrices(x: Any, role: Any) -> np.ndarray:
    """A batch of matrices of shape `(inputs, outputs)`."""
    order = role.batch + role.fan_in + role.fan_out
    inputs = int(np.prod([x.shape[i] for i in role.fan_in]))
    return np.asarray(x).transpose(order).reshape(-1, inputs, x.size // inputs // (x.shape[0] if role.batch else 1))


def by_path(tree: Any) -> dict[str, Any]:
    return dict(zip(mx.tree.leaf_paths(tree), jax.tree.leaves(tree), strict=True))


def check_norms(steps: dict[str, Any], roles: mx.Roles) -> None:
    """The singular values are those of Newton and Schulz times the factor of Jordan's code."""
    seen = set()
    for path, role in roles.items():
        name = next((x for x in FACTORS if x in path and role.fan_in), None)
        if name:
            values = np.linalg.svd(as_matrices(steps[path], role), compute_uv=False) / FACTORS[name]
            assert 0.6 < values.min() < values.max() < 1.25, (path, values)
            seen.add(name)
    assert seen == {*FACTORS}


def random_like(tree: Any) -> Any:
    leaves, treedef = jax.tree.flatten(tree)
    keys = jax.random.split(KEY, len(leaves))
    return treedef.unflatten([jax.random.normal(k, x.shape) for k, x in zip(keys, leaves, strict=True)])


MUON = mx.Muon(1.0, adam_learning_rate=1e-3)


def test_the_step_of_muon_has_the_norm_of_the_layer_in_equinox():
    model = eqx.filter(Shapes(), eqx.is_inexact_array)
    updates, _ = MUON.update(random_like(model), MUON.init(model), model)
    check_norms(by_path(updates), mx.roles(model))


def test_the_step_of_muon_has_the_norm_of_the_layer_in_flax():
    """In NNX from the classes, and in the dict of its parameters, as in Linen, from the names."""
    model = NShapes()
    roles, before = mx.roles(model), nnx.as_pure(nnx.state(model, nnx.Param))
    grads = random_like(before)
    variables = nnx.state(nnx.clone(model), nnx.Param)
    nnx.update(variables, grads)
    modulax.nnx.Optimizer(model, MUON).update(model, variables)
    after = nnx.as_pure(nnx.state(model, nnx.Param))
    steps = jax.tree.map(jnp.subtract, after, before)
    check_norms(by_path(steps), roles)
    del before["stack"], grads["stack"], steps["stack"]  # a kernel with three axes might be a convolution
    updates, _ = MUON.update(grads, MUON.init(before), before)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5), updates, steps)


def groups_of(optimizer: Any, params: Any) -> dict[str, str]:
    return {row.path: row.group for row in mx.describe(optimizer, params).leaves}


def test_who_is_trained_by_muon():
    expected = {path: "muon" if role.split()[0] in BY_MUON else "adam" for path, role in NTRANSFORMER.items()}
    model = NTransformer(nnx.Rngs(0))
    optimizer = modulax.nnx.Optimizer(model, MUON)
    shown = mx.describe(optimizer.transform, nnx.as_pure(nnx.state(model, nnx.Param)))
    assert {row.path: row.group for row in shown.leaves} == expected
    assert {row.path: row.role for row in shown.leaves} == {p: r.split()[0] for p, r in NTRANSFORMER.items()}
    roles = EQUINOX["transformer"][1]
    assert groups_of(MUON, Transformer(KEY)) == {
        path: "muon" if role.split()[0] in BY_MUON else "adam" for path, role in roles.items()
    }


def test_describe_says_what_may_be_the_head():
    mlp = eqx.nn.MLP(3, 2, 4, 1, key=KEY)
    head = '{"layers.1.weight": Head()}'
    for optimizer, advice in (
        (MUON, f"roles={head}"),
        (mx.GaLore(0.1), f"weight_dimension_numbers=roles(model, {head})"),
        (mx.ScaleByMuon(), f"weight_dimension_numbers=roles(model, {head})"),
        (
            MUON.replace(muon_weight_dimension_numbers=mx.roles(mlp)),
            f"muon_weight_dimension_numbers=roles(model, {head})",
        ),
    ):
        note = f"no layer is called `head`: if `layers.1.weight` is the last one, write `{advice}`."
        assert note in mx.describe(optimizer, mlp).notes
    assert mx.check(MUON, mlp) == mx.describe(MUON, mlp).notes
    assert mx.check(mx.SOAP(1e-3, weight_decay=0.0), mlp) == ()
    for role in (mx.Head(), mx.Hidden()):  # what is given is meant
        assert mx.check(MUON.replace(roles={"layers.1": role}), mlp) == ()
    assert not mx.describe(MUON.replace(roles={"layers.1": mx.Head()}), mlp).notes
    assert not mx.describe(mx.AdamW(0.1, mask=mx.decays), mlp).notes


BY_MUON = ("hidden", "query", "key", "value", "out")


def test_describe_counts_what_is_trained_of_an_nnx_model():
    """No batch statistics, a shared layer once, and the roles that its classes tell."""

    class Net(nnx.Module):
        def __init__(self, rngs: nnx.Rngs):
            self.a = nnx.Linear(4, 4, rngs=rngs)
            self.norm = nnx.BatchNorm(4, rngs=rngs)
            self.b = self.a

    model = Net(nnx.Rngs(0))
    optimizer = mx.Muon(0.02, adam_learning_rate=3e-4)
    found = mx.describe(optimizer, model)
    assert found.parameters == 28
    assert [row.path for row in found.leaves] == ["a.bias", "a.kernel", "norm.bias", "norm.scale"]
    assert found.leaves[1].role == "hidden"
    state = modulax.nnx.Optimizer(model, optimizer).state
    assert found.total_bytes == sum(x.nbytes for x in jax.tree.leaves(state))


def test_query_key_and_value_in_one_array_are_three_matrices():
    """By the name of the layer, by a given role, and with fewer heads of keys and values; and head by head."""
    w = {"qkv": jax.random.normal(KEY, (4, 12)), "kv": jax.random.normal(KEY, (4, 8))}
    given = {"qkv": mx.Attention("qkv", heads=4, kv_heads=1), "kv": mx.Attention("kv", heads=2)}
    for per_head, sizes in (
        (False, {"qkv": [8, 2, 2], "kv": [4, 4]}),
        (True, {"qkv": [2] * 6, "kv": [2] * 4}),
    ):
        optimizer = MUON.replace(roles=given, per_head=per_head)
        updates, _ = optimizer.update(w, optimizer.init(w), w)
        for name, x in w.items():
            parts = dict(enumerate(jnp.split(x, np.cumsum(sizes[name])[:-1], axis=1)))
            wanted, _ = MUON.update(parts, MUON.init(parts), parts)
            np.testing.assert_allclose(updates[name], jnp.concatenate([*wanted.values()], axis=1), atol=1e-5)
    by_name = Cells(KEY)
    updates, _ = MUON.update(eqx.filter(by_name, eqx.is_array), MUON.init(by_name), by_name)
    parts = dict(enumerate(jnp.split(by_name.qkv.weight.T, 3, axis=1)))
    wanted, _ = MUON.update(parts, MUON.init(parts), parts)
    np.testing.assert_allclose(updates.qkv.weight.T, jnp.concatenate([*wanted.values()], axis=1), atol=1e-5)


def test_the_factor_of_shape_without_a_clamp():
    w = {"x": jnp.ones((8, 2))}
    steps = [opt.update(w, opt.init(w), w)[0]["x"] for opt in (MUON, MUON.replace(clamped=False))]
    np.testing.assert_allclose(steps[1], steps[0] / 2, rtol=1e-6)


def test_init_warns_of_what_is_trained_as_a_matrix_by_mistake():
    for name in ("tok_emb", "embed"):
        w = {name: jnp.ones((2, 3)), "x": jnp.ones((2, 3))}
        with pytest.warns(UserWarning, match=rf"`{name}` is trained as a matrix") as found:
            MUON.init(w)
        assert len(found) == 1
    for role, group in ((mx.Embedding(), "adam"), (mx.Hidden(), "muon")):
        optimizer = MUON.replace(roles={"embed": role})
        optimizer.init(w)
        assert groups_of(optimizer, w) == {"embed": group, "x": "muon"}
    with pytest.warns(UserWarning, match=r"AdamW trains the other parameters .* 0.02, .*`Muon\(0.02, adam_learning"):
        mx.Muon(0.02).init({"b": jnp.ones(3)})
    assert mx.describe(mx.Muon(0.02), {"b": jnp.ones(3)}).notes
    twice = MUON.replace(roles={"w": mx.Head()}, muon_weight_dimension_numbers=mx.MuonDimensionNumbers())
    with pytest.warns(UserWarning, match="`roles` mean nothing beside `muon_weight_dimension_numbers`"):
        twice.init({"w": jnp.ones((2, 2))})
    for optimizer in (mx.Muon(0.02, adam_learning_rate=3e-4), mx.Muon(0.02, consistent_rms=0.2), mx.Muon(1e-3)):
        optimizer.init({"b": jnp.ones(3)})


def test_adapters_in_a_plain_dict_are_matrices():
    """Flax's LoRA has `lora_a` and `lora_b` beside the kernel; other names say nothing."""
    found = mx.roles({"q": {"kernel": jnp.ones((3, 4)), "lora_a": jnp.ones((3, 2)), "lora_b": jnp.ones((2, 4))}})
    assert {path: role.kind for path, role in found.items()} == {
        "q.kernel": "hidden",
        "q.lora_a": "lora",
        "q.lora_b": "lora",
    }


def test_a_given_role_knows_better_than_the_name_of_a_layer():
    """Grouped queries in a layer that is called `qkv`, negative axes, and roles that don't fit."""
    model = {"qkv": eqx.nn.Linear(8, 24, key=jax.random.key(0))}
    grouped = mx.roles(model, {"qkv": mx.Attention("qkv", heads=4, kv_heads=1)})
    assert grouped["qkv.weight"].blocks == (16, 4, 4)
    role = mx.roles(model, {"qkv": mx.Hidden(fan_in=-1, fan_out=-2)})["qkv.weight"]
    assert (role.fan_in, role.fan_out, role.batch) == ((1,), (0,), ())
    with pytest.raises(ValueError, match=r"at `qkv.weight`: .* shape \(24, 8\) has no axis 5"):
        mx.roles(model, {"qkv": mx.Hidden(fan_in=0, fan_out=5)})
    with pytest.raises(ValueError, match=r"`Hidden\(fan_in=...\)` needs `fan_out` too"):
        mx.Hidden(fan_in=0)
    by_head = MUON.replace(roles={"qkv": mx.Attention("query", heads=5)}, per_head=True)
    with pytest.raises(ValueError, match=r"at `qkv.weight`: .*24 outputs are not 5 heads"):
        by_head.init(model)


def test_roles_of_complex_parameters_split_in_two():
    """The real and the imaginary part of a weight have the axes of its layer, and those of a table stay out of Muon."""
    layer = {"linear": eqx.nn.Linear(5, 12, key=KEY), "embedding": eqx.nn.Embedding(4, 3, key=KEY)}
    model = jax.tree.map(lambda x: x.astype(jnp.complex64), eqx.filter(layer, eqx.is_inexact_array))
    grads = jax.tree.map(lambda x: jax.random.normal(jax.random.key(1), x.shape, x.dtype).real.astype(x.dtype), model)
    whole, split = MUON.replace(learning_rate=1.0), mx.SplitRealAndImaginary(MUON.replace(learning_rate=1.0))
    steps = [o.update(grads, o.init(model), model)[0] for o in (whole, split)]
    norms = [np.linalg.norm(step["linear"].weight, 2) for step in steps]
    np.testing.assert_allclose(norms[0], norms[1], rtol=1e-4)
    assert set(groups_of(split, model).values()) == {"muon", "adam"}
    assert groups_of(split, model)["embedding.weight"] == "adam"


def test_a_mask_by_role_means_nothing_in_a_vector():
    with pytest.raises(ValueError, match=r"can't be told.* `Partition\(\{True: Flatten\(AdamW.*, decays\)`"):
        mx.Flatten(mx.AdamW(0.1, mask=mx.decays))
    for inner in (MUON, mx.Chain(mx.ScaleBySOAP()), mx.Partition({"a": mx.AdamMini(0.1)}, {"w": "a"})):
        with pytest.raises(ValueError, match=r"can't be told.* False: Flatten\(Adam\(...\)\)}, by_role"):
            mx.Flatten(inner)
    model = {"kernel": jnp.ones((2, 2)), "bias": jnp.ones(2)}
    mx.Flatten(MUON.replace(follow="optax")).init(model)  # there, a vector has one axis
    mixed = mx.Partition({True: MUON, False: mx.Flatten(mx.AdamW(0.1))}, mx.by_role({mx.Matrix: True}))
    assert groups_of(mixed, model) == {"kernel": "True/muon", "bias": "False"}
    apart = mx.Partition(
        {True: mx.Flatten(mx.AdamW(0.1, weight_decay=0.5)), False: mx.Flatten(mx.Adam(0.1))}, mx.decays
    )
    zeros = jax.tree.map(jnp.zeros_like, model)
    updates, _ = apart.update(zeros, apart.init(model), model)
    np.testing.assert_allclose(updates["kernel"], -0.05)
    np.testing.assert_array_equal(updates["bias"], 0)


# --- Masks, labels, groups -----------------------------------------------------------------------


def test_decays():
    """The recipe of every trainer in one word."""
    model = Transformer(KEY)
    rows = mx.describe(mx.AdamW(1e-3, weight_decay=0.1, mask=mx.decays), model).leaves
    found = {row.path for row in rows if row.weight_decay}
    roles = EQUINOX["transformer"][1]
    assert found == {path for path, role in roles.items() if role.split()[0] in (*BY_MUON, "head")}
    nmodel = NTransformer(nnx.Rngs(0))
    optimizer = modulax.nnx.Optimizer(nmodel, mx.Chain(mx.SGD(0.1), mx.AddDecayedWeights(0.1, mask=mx.decays)))
    rows = mx.describe(optimizer.transform, nnx.as_pure(nnx.state(nmodel, nnx.Param))).leaves
    assert {row.path for row in rows if row.weight_decay} == {
        path for path, role in NTRANSFORMER.items() if role.split()[0] in (*BY_MUON, "head")
    }


def test_groups_and_labels_by_role():
    model = Transformer(KEY)
    optimizer = mx.groups(mx.AdamW(1e-3), {"lm_head.*": {"b1": 0.5}, mx.Embedding: {"learning_rate": 0.1}})
    assert optimizer.hyperparameters()["embedding.learning_rate"] == 0.1
    found = groups_of(optimizer, model)
    assert found.pop("embedding.weight") == "embedding"
    assert found.pop("lm_head.weight") == "lm_head.*"
    assert {*found.values()} == {"default"}
    with pytest.raises(ValueError, match=r"'bias' has the name of the group of `Bias`.* such as `\[b\]ias`"):
        mx.groups(mx.SGD(0.1), {"bias": {"learning_rate": 0.1}, mx.Bias: {"learning_rate": 0.2}})
    found = groups_of(mx.Partition({"by": MUON, "rest": mx.SGD(0.1)}, mx.by_role({mx.Matrix: "by"}, "rest")), model)
    assert {path for path, group in found.items() if group == "by/muon"} == {
        path for path, role in EQUINOX["transformer"][1].items() if role.split()[0] in BY_MUON
    }
    labels = mx.by_role({mx.Head: "last", mx.Attention: "attention"}, default="rest")
    partition = mx.Partition({x: mx.SGD(0.1) for x in ("last", "attention", "rest")}, labels)
    found = groups_of(partition, model)
    assert found["lm_head.weight"] == "last"
    assert {path for path, group in found.items() if group == "attention"} == {
        path for path, role in EQUINOX["transformer"][1].items() if role.split()[0] in BY_MUON[1:]
    }


@pytest.mark.parametrize("make", [
    lambda labels: mx.Partition({True: mx.SGD(0.1), False: mx.Lion(0.1)}, labels),
    lambda labels: mx.Masked(mx.SGD(0.1), labels),
    lambda labels: mx.selective_transform(mx.SGD(0.1), freeze_mask=labels),
    lambda labels: mx.Chain(mx.SGD(0.1), mx.Freeze(labels)),
], ids=["Partition", "Masked", "selective_transform", "Freeze"])  # fmt: skip
def test_a_role_that_no_parameter_has_is_refused(make: Any):
    tree = {"dense": {"kernel": jnp.ones((3, 4)), "bias": jnp.ones(4)}}
    both = mx.by_role({mx.Bias: True, mx.Embedding: True})
    with pytest.raises(ValueError, match=r"no parameter has the role `Embedding`; there are `Bias`, `Hidden`"):
        make(both).init(tree)
    make(mx.by_role({mx.Bias: True})).init(tree)
    # A group lacks the roles of the others, and a model without biases has None in their places.
    groups = mx.Partition({"a": make(both), "b": mx.SGD(0.1)}, {"dense": {"kernel": "a", "bias": "b"}})
    groups.init(tree)
    make(both).init({"dense": {"kernel": jnp.ones((3, 4)), "bias": None}})


def test_a_group_of_a_role_is_never_empty_by_mistake():
    """What is called `bias` is one in every dict; an error names the parameters of which nothing is known."""
    w, v = jnp.ones((3, 4)), jnp.ones(4)
    torch = {"fc.weight": w, "fc.bias": v, "norm.weight": v, "norm.bias": v}
    for tree, biases in ((torch, {"fc.bias", "norm.bias"}), ({"w": w, "bias": v}, {"bias"})):
        found = groups_of(mx.groups(mx.AdamW(1e-3), {mx.Bias: {"b1": 0.5}}), tree)
        assert {path for path, group in found.items() if group == "bias"} == biases
    both = mx.groups(mx.AdamW(1e-3), {mx.Gain: {"b1": 0.5}, mx.Bias: {"b1": 0.5}})
    with pytest.raises(ValueError, match=r"no parameter has the role `Gain`, .* of `norm.weight`. .*{'norm.weight': "):
        both.init(torch)
    with pytest.raises(ValueError, match=r"no parameter has the role `Embedding`, and nothing is known of `w`"):
        mx.groups(mx.AdamW(1e-3), {mx.Embedding: {"b1": 0.5}}).init({"w": w, "bias": v})
    for known in ({"w": w, "bias": v}, eqx.nn.Linear(2, 2, key=KEY)):  # there is no gain
        assert "gain" not in groups_of(both, known).values()


def test_roles_of_a_model_for_its_parameters_in_a_dict():
    model = Transformer(KEY)
    roles = mx.roles(model, {"blocks.1.mlp": mx.Other()})
    assert roles["blocks.1.mlp.layers.0.weight"].kind == ""
    assert roles["blocks.1.mlp.layers.0.bias"].kind == "bias"
    assert (roles["embedding.weight"].depth, roles["blocks.1.norm.bias"].depth, roles["lm_head.weight"].depth) == (
        0,
        2,
        3,
    )
    with pytest.raises(KeyError, match=r"Did you mean `lm_head.weight`\?"):
        roles["lm_head.wieght"]
    assert roles.tree.lm_head.weight == roles["lm_head.weight"]
    assert "lm_head.weight" in str(roles)
    assert repr(mx.Attention("kv", heads=4)) == "Attention(part='kv', heads=4)"
    assert len(roles) == len([*roles]) == len(str(roles).splitlines()) - 2
    nested = {"embedding": {"weight": model.embedding.weight}, "lm_head": {"weight": model.lm_head.weight}}
    assert groups_of(MUON.replace(roles=roles), nested) == {"embedding.weight": "adam", "lm_head.weight": "adam"}


def test_roles_from_another_process_are_found_among_equal_ones():
    """Their hash is made of strings, of which each process has another one."""
    found, other = (mx.roles({"w": jnp.ones((2, 3))}) for _ in range(2))
    object.__setattr__(other, "_hash", 0)
    for loaded in (pickle.loads(pickle.dumps(other)), copy.copy(other)):
        assert {loaded: 1} == {found: 1}
        assert loaded.is_given


WRONG: dict[str, Any] = {
    "no such parameter": (lambda: mx.roles(Transformer(KEY), {"haed": mx.Head()}), "matches no parameter and no layer"),
    "not a role": (lambda: mx.Muon(0.1, roles={"w": "head"}), r"such as `\{\"readout\": Head\(\)\}`"),
    "not a role to label": (lambda: mx.by_role({"head": 1}), r"`by_role\(\{Bias: False\}, True\)`"),
    "not a role to group": (lambda: mx.groups(mx.SGD(0.1), {3: {"learning_rate": 1.0}}), "class of a role"),
    "not a part": (lambda: mx.Attention("queries"), '"query", "key", "value" or "out"'),
    "parts that don't fit": (
        lambda: mx.roles({"w": jnp.ones((2, 7))}, {"w": mx.Attention("qkv", heads=2)}),
        "7 outputs .* are not 6 parts",
    ),
    "another model": (
        lambda: MUON.replace(roles=mx.roles({"v": jnp.ones((2, 2))})).init({"w": jnp.ones((2, 2))}),
        "knows no parameter `w`",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_mistakes(name: str):
    call, message = WRONG[name]
    with pytest.raises(ValueError, match=message):
        call()


def test_fewer_heads_of_keys_and_values():
    """Of NNX: each head is one of the axes of the kernel; the layer knows the heads of queries only."""
    for kv_heads, size in ((2, 8), (1, 6)):
        model = nnx.MultiHeadAttention(
            num_heads=4, num_kv_heads=kv_heads, in_features=size, qkv_features=2 * size, decode=False, rngs=nnx.Rngs(0)
        )
        found = mx.roles(model)
        for name, heads in (("query", 4), ("key", kv_heads), ("value", kv_heads)):
            role, outputs = found[f"{name}.kernel"], heads * size // 2
            assert (role.kind, role.by_head(outputs)) == (name, (size // 2,) * heads)
        modulax.nnx.Optimizer(model, MUON.replace(per_head=True))


class Holding(eqx.Module):
    final: eqx.nn.Linear = eqx.field(metadata={"role": mx.Head()})
    tables: list[jax.Array] = eqx.field(metadata={"role": mx.Embedding()})
    other: eqx.nn.Linear = eqx.field(metadata={"role": "not one of ours"})


def test_metadata_of_a_field_that_holds_layers():
    """As a pattern of a layer, it means the weight; the innermost field wins."""
    outer = eqx.nn.Linear(2, 3, key=KEY)
    found = mx.roles({"model": Holding(outer, [jnp.ones((2, 3)), jnp.ones((2, 3))], outer)})
    assert {path: role.kind for path, role in found.items()} == {
        "model.final.weight": "head",
        "model.final.bias": "bias",
        "model.tables.0": "embedding",
        "model.tables.1": "embedding",
        "model.other.weight": "hidden",
        "model.other.bias": "bias",
    }
    head = found["model.final.weight"]
    assert (head.fan_in, head.fan_out) == ((1,), (0,))


@pytest.mark.parametrize("follow", ["paper", "optax"])
def test_the_result_of_roles_counts_as_given(follow: Any):
    """In every argument that takes it; what an optimizer finds by itself in a model doesn't."""
    model = {"embedding": eqx.nn.Embedding(6, 4, key=KEY), "linear": eqx.nn.Linear(4, 12, key=KEY)}
    found = mx.roles(model)
    plain = {name: {"weight": layer.weight} for name, layer in model.items()}
    muon = MUON.replace(follow=follow)
    for optimizer in (muon.replace(roles=found), muon.replace(muon_weight_dimension_numbers=found)):
        assert groups_of(optimizer, plain) == {"embedding.weight": "adam", "linear.weight": "muon"}
    given = {"weight_dimension_numbers": found, "follow": follow}
    state = jax.eval_shape(mx.ScaleByMuon(**given).init, plain)
    assert (state.mu["embedding"]["weight"], state.mu["linear"]["weight"].shape) == (None, (12, 4))
    ones = {name: {"weight": jnp.ones((12, 4))} for name in plain}
    scaled, _ = mx.ScaleByShape(**given).update(ones, mx.EmptyState())
    np.testing.assert_allclose(scaled["embedding"]["weight"], 1.0)
    np.testing.assert_allclose(scaled["linear"]["weight"], np.sqrt(3), rtol=1e-6)
    state = jax.eval_shape(mx.ScaleByGaLore(2, **given).init, plain)
    # The side that is projected: `(inputs, outputs)` is (4, 12).
    assert state.projector["embedding"]["weight"] is None
    assert state.projector["linear"]["weight"].shape == ((4, 2) if follow == "paper" else (12, 2))
    bound = with_roles(muon, lambda given: mx.roles(model, given))
    assert groups_of(bound, plain)["embedding.weight"] == ("adam" if follow == "paper" else "muon")
    assert bound.roles != found


@pytest.mark.parametrize("role", [mx.Matrix, mx.Hidden, mx.Attention, mx.Embedding, mx.Bias, mx.Other])
def test_the_arguments_of_every_role_are_documented(role: Any):
    own, _, arguments = role.__doc__.partition("\n\n    Args:\n")
    assert own
    assert "Args:" not in arguments
    for field in dataclasses.fields(role):
        assert arguments.count(f"        {field.name}: ") == 1
