"""`roles`: what each parameter is, and everything that reads it."""

import copy
import dataclasses
import inspect
import pickle
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from flax import linen, nnx

import modulax as mx
import modulax.nnx

KEY = jax.random.key(0)
MUON = mx.Muon(1.0, adam_learning_rate=1e-3)


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


def groups_of(optimizer: Any, params: Any) -> dict[str, str]:
    return {row.path: row.group for row in mx.describe(optimizer, params).leaves}


def shapes(tree: Any) -> Any:
    """A tree of arrays with these shapes."""
    return jax.tree.map(jnp.ones, tree, is_leaf=lambda x: isinstance(x, tuple))


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


class Declared(eqx.Module):
    """Arrays that a user's module holds."""

    readout: jax.Array = eqx.field(metadata={"role": mx.Head(fan_in=1, fan_out=0)})
    w: jax.Array
    kernels: jax.Array
    gamma: jax.Array
    my_bias: jax.Array
    cls_token: jax.Array
    positions: jax.Array
    slope: eqx.nn.PReLU


def declared() -> Declared:
    x = jnp.ones((2, 3))
    return Declared(x, x, jnp.ones((2, 3, 4)), jnp.ones(3), x, x, x, eqx.nn.PReLU())


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

TRANSFORMER = {
    "embedding.weight": "embedding 0>1",
    "pos_embed": "position",
    **{f"blocks.{i}.{path}": role for i in range(2) for path, role in BLOCK.items()},
    "lm_head.weight": "head 1>0",
}
EQUINOX = {
    "MLP": (lambda: eqx.nn.MLP(3, 2, 4, 1, key=KEY), {p[4:]: r for p, r in BLOCK.items() if p.startswith("mlp")}),
    "transformer": (lambda: Transformer(KEY), TRANSFORMER),
    "layers": (
        lambda: {
            "patches": eqx.nn.Conv2d(3, 4, 2, key=KEY),
            "up": eqx.nn.ConvTranspose1d(2, 3, 4, key=KEY),
            "word_embeddings": eqx.nn.Embedding(7, 4, key=KEY),
            "position_embeddings": eqx.nn.Embedding(5, 4, key=KEY),
            "blocks": eqx.filter_vmap(Block)(jax.random.split(KEY, 3)),
            "gru": eqx.nn.GRUCell(3, 4, key=KEY),
            "lstm": eqx.nn.LSTMCell(3, 4, key=KEY),
            "groups": eqx.nn.GroupNorm(2, 4),
            "norm": eqx.nn.RMSNorm(4),
            "normed": eqx.nn.WeightNorm(eqx.nn.Linear(3, 4, use_bias=False, key=KEY)),
            "qkv": eqx.nn.Linear(4, 12, key=KEY),
            "pooler": eqx.nn.Linear(4, 4, key=KEY),
            "classifier": eqx.nn.Linear(4, 2, key=KEY),
            "head": eqx.nn.MLP(4, 2, 3, 1, key=KEY),
        },
        {
            "patches.weight": "convolution 1,2,3>0",
            "up.weight": "convolution 1,2>0",
            "word_embeddings.weight": "embedding 0>1",
            "position_embeddings.weight": "position 0>1",
            **{f"blocks.{path}": role for path, role in STACKED.items()},
            **dict.fromkeys(["gru.weight_ih", "gru.weight_hh", "lstm.weight_ih", "lstm.weight_hh"], "hidden 1>0"),
            **dict.fromkeys(["groups.weight", "norm.weight", "normed.g"], "gain"),
            "normed.layer.weight": "hidden 1>0",
            "qkv.weight": "qkv 1>0",
            "pooler.weight": "hidden 1>0",
            **dict.fromkeys(["classifier.weight", "head.layers.0.weight", "head.layers.1.weight"], "head 1>0"),
            **dict.fromkeys(["gru.bias", "gru.bias_n", "lstm.bias"], "bias"),
            **{f"{x}.bias": "bias" for x in ("patches", "up", "groups", "norm", "qkv", "pooler", "classifier")},
            **{f"head.layers.{i}.bias": "bias" for i in range(2)},
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
            "cls_token": "embedding 0>1",
            "positions": "position",
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
        lambda: nnx.Dict(
            general=nnx.LinearGeneral((2, 3), (4, 5), axis=(-2, -1), rngs=nnx.Rngs(0)),
            batched=nnx.LinearGeneral(3, 4, batch_axis={0: 2}, use_bias=False, rngs=nnx.Rngs(0)),
            einsum=nnx.Einsum("bti,hio->btho", (2, 3, 4), rngs=nnx.Rngs(0)),
            conv=nnx.Conv(2, 3, (3, 3), rngs=nnx.Rngs(0)),
            up=nnx.ConvTranspose(2, 3, (4,), rngs=nnx.Rngs(0)),
            down=nnx.ConvTranspose(2, 3, (4,), transpose_kernel=True, rngs=nnx.Rngs(0)),
            lstm=nnx.OptimizedLSTMCell(3, 4, rngs=nnx.Rngs(0)),
            gru=nnx.GRUCell(3, 4, rngs=nnx.Rngs(0)),
            batch_norm=nnx.BatchNorm(3, rngs=nnx.Rngs(0)),
            lora=nnx.LoRALinear(3, 4, lora_rank=2, rngs=nnx.Rngs(0)),
            stack=nnx.vmap(lambda key: nnx.Linear(3, 4, rngs=nnx.Rngs(key)))(jax.random.split(KEY, 2)),
            readout=nnx.Param(jnp.ones((2, 3)), role=mx.Head(fan_in=1, fan_out=0)),
        ),
        {
            "general.kernel": "hidden 0,1>2,3",
            "batched.kernel": "[0] hidden 1>2",
            "einsum.kernel": "hidden 1>0,2",
            "conv.kernel": "convolution 0,1,2>3",
            "up.kernel": "convolution 0,1>2",
            "down.kernel": "convolution 0,2>1",
            **{f"{cell}.dense_{x}.kernel": "hidden 0>1" for cell in ("lstm", "gru") for x in "ih"},
            "batch_norm.scale": "gain",
            "lora.kernel": "hidden 0>1",
            "lora.lora.lora_a": "lora 0>1",
            "lora.lora.lora_b": "lora 0>1",
            "stack.kernel": "[0] hidden 1>2",
            "readout": "head 1>0",
            **{f"{x}.bias": "bias" for x in ("general", "conv", "up", "down", "batch_norm", "lora", "stack")},
            **dict.fromkeys(["lstm.dense_h.bias", "gru.dense_i.bias"], "bias"),
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


MODELS = {f"{library}: {x}": case for library, cases in (("eqx", EQUINOX), ("nnx", NNX)) for x, case in cases.items()}


@pytest.mark.parametrize("name", MODELS)
def test_the_role_of_every_parameter(name: str):
    make, expected = MODELS[name]
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


def test_kernels_of_flax_with_three_axes():
    """The axes of a bias tell those of the outputs; names tell those of attention; else nothing is known."""
    tree = shapes({
        "general": {"kernel": (8, 4, 2), "bias": (4, 2)},
        "projection": {"kernel": (4, 2, 8), "bias": (8,)},
        "several": {"kernel": (4, 2, 8, 3), "bias": (8, 3)},
        "ensemble": {"kernel": (4, 2, 8), "bias": (4, 8)},
        "attn": {**{f"{x}_proj": {"kernel": (8, 4, 2)} for x in "qkv"}, "o_proj": {"kernel": (4, 2, 8)}},
        "key_proj": {"kernel": (8, 4, 2)},
        "adapted": {"kernel": (3, 4), "lora_a": (3, 2), "lora_b": (2, 4)},
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
        "adapted.kernel": "hidden 0>1",
        "adapted.lora_a": "lora 0>1",
        "adapted.lora_b": "lora 0>1",
        "haiku.w": "[0] hidden 1>2 ?",
        "haiku.b": "[0] - ?",
        "second.up.kernel": "[1] hidden 0>2",
        "second.to.kernel": "[1] hidden 0>2",
    }
    assert mx.roles(tree)["attn.q_proj.kernel"] == mx.Attention("query", heads=4, fan_in=0, fan_out=(1, 2))


def test_a_given_role_knows_better_than_the_name_of_a_layer():
    """Grouped queries in a layer that is called `qkv`, and negative axes."""
    model = {"qkv": eqx.nn.Linear(8, 24, key=jax.random.key(0))}
    grouped = mx.roles(model, {"qkv": mx.Attention("qkv", heads=4, kv_heads=1)})
    assert grouped["qkv.weight"].blocks == (16, 4, 4)
    role = mx.roles(model, {"qkv": mx.Hidden(fan_in=-1, fan_out=-2)})["qkv.weight"]
    assert (role.fan_in, role.fan_out, role.batch) == ((1,), (0,), ())


def test_roles_of_a_model_for_its_parameters_in_a_dict():
    model = Transformer(KEY)
    roles = mx.roles(model, {"blocks.1.mlp": mx.Other()})
    assert roles["blocks.1.mlp.layers.0.weight"].kind == ""
    assert roles["blocks.1.mlp.layers.0.bias"].kind == "bias"
    assert [roles[x].depth for x in ("embedding.weight", "blocks.1.norm.bias", "lm_head.weight")] == [0, 2, 3]
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


@pytest.mark.parametrize("role", [mx.Matrix, mx.Hidden, mx.Attention, mx.Embedding, mx.Bias, mx.Other])
def test_the_arguments_of_every_role_are_documented(role: Any):
    own, _, arguments = (inspect.getdoc(role) or "").partition("\n\nArgs:\n")
    assert own
    assert "Args:" not in arguments
    for field in dataclasses.fields(role):
        assert arguments.count(f"    {field.name}: ") == 1
