"""Roles in use: who is trained by Muon, who decays, and what a mask, a label or a group by role selects."""

from typing import Any

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

import modulax as mx
import modulax.nnx
from modulax._roles.labels import with_roles

from .test_roles import KEY, MUON, NTRANSFORMER, TRANSFORMER, NTransformer, Transformer, groups_of, shapes


def test_stacked_vectors_are_vectors_for_whoever_reads_roles():
    narrow, wide = ({"layers": {"w": jnp.ones((3, n, n)), "b": jnp.ones((3, n))}} for n in (2, 4))
    scaled, _ = mx.mup(mx.SGD(1.0), wide, narrow, layout="in_out")
    updates, _ = scaled.update(wide, scaled.init(wide))
    np.testing.assert_allclose(updates["layers"]["b"], -2.0)


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
        chex.assert_trees_all_close(apart(step(stacked)), step(apart(stacked)), atol=1e-4, rtol=1e-7)


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


def test_the_step_of_muon_has_the_norm_of_the_layer_in_equinox():
    layers = {
        "wide": eqx.nn.Linear(4, 64, key=KEY),
        "tall": eqx.nn.Linear(64, 4, key=KEY),
        "conv": eqx.nn.Conv2d(2, 40, 2, key=KEY),
        "stack": eqx.filter_vmap(lambda key: eqx.nn.Linear(4, 64, key=key))(jax.random.split(KEY, 2)),
        "attention": eqx.nn.MultiheadAttention(2, 4, qk_size=18, key=KEY),
    }
    model = eqx.filter(layers, eqx.is_inexact_array)
    updates, _ = MUON.update(random_like(model), MUON.init(model), model)
    check_norms(by_path(updates), mx.roles(model))


def test_the_step_of_muon_has_the_norm_of_the_layer_in_flax():
    """In NNX from the classes, and in the dict of its parameters, as in Linen, from the names."""
    rngs = nnx.Rngs(0)
    model = nnx.Dict(
        wide=nnx.Linear(4, 64, rngs=rngs),
        tall=nnx.Linear(64, 4, rngs=rngs),
        conv=nnx.Conv(2, 40, (2, 2), rngs=rngs),
        stack=nnx.vmap(lambda key: nnx.Linear(4, 64, rngs=nnx.Rngs(key)))(jax.random.split(KEY, 2)),
        attention=nnx.MultiHeadAttention(2, 4, qkv_features=36, decode=False, rngs=rngs),
    )
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
    chex.assert_trees_all_close(updates, steps, atol=1e-5, rtol=1e-7)


BY_MUON = ("hidden", "query", "key", "value", "out")


@pytest.mark.parametrize("library", ["Equinox", "NNX"])
def test_roles_decide_who_is_trained_by_muon_and_who_decays(library: str):
    decay = mx.Chain(mx.SGD(0.1), mx.AddDecayedWeights(0.1, mask=mx.decays))
    roles, params, transforms = TRANSFORMER, Transformer(KEY), [MUON, decay]
    if library == "NNX":
        roles, model = NTRANSFORMER, NTransformer(nnx.Rngs(0))
        params = nnx.as_pure(nnx.state(model, nnx.Param))
        transforms = [modulax.nnx.Optimizer(model, x).transform for x in transforms]
    kinds = {path: role.split()[0] for path, role in roles.items()}
    by_muon, decayed = (mx.describe(x, params).leaves for x in transforms)
    assert {row.path: row.role for row in by_muon} == kinds
    assert {row.path: row.group for row in by_muon} == {x: "muon" if k in BY_MUON else "adam" for x, k in kinds.items()}
    assert {row.path for row in decayed if row.weight_decay} == {x for x, k in kinds.items() if k in (*BY_MUON, "head")}


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
    by_name = {"qkv": eqx.nn.Linear(4, 12, key=KEY)}
    updates, _ = MUON.update(by_name, MUON.init(by_name), by_name)
    parts = dict(enumerate(jnp.split(by_name["qkv"].weight.T, 3, axis=1)))
    wanted, _ = MUON.update(parts, MUON.init(parts), parts)
    np.testing.assert_allclose(updates["qkv"].weight.T, jnp.concatenate([*wanted.values()], axis=1), atol=1e-5)


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
    twice = MUON.replace(roles={"w": mx.Head()}, muon_weight_dimension_numbers=mx.MuonDimensionNumbers())
    with pytest.warns(UserWarning, match="`roles` mean nothing beside `muon_weight_dimension_numbers`"):
        twice.init({"w": jnp.ones((2, 2))})
    for optimizer in (mx.Muon(0.02, adam_learning_rate=3e-4), mx.Muon(0.02, consistent_rms=0.2), mx.Muon(1e-3)):
        optimizer.init({"b": jnp.ones(3)})


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


def test_groups_and_labels_by_role():
    model = Transformer(KEY)
    optimizer = mx.groups(mx.AdamW(1e-3), {"lm_head.*": {"b1": 0.5}, mx.Embedding: {"learning_rate": 0.1}})
    assert optimizer.hyperparameters()["embedding.learning_rate"] == 0.1
    found = groups_of(optimizer, model)
    assert found.pop("embedding.weight") == "embedding"
    assert found.pop("lm_head.weight") == "lm_head.*"
    assert {*found.values()} == {"default"}
    found = groups_of(mx.Partition({"by": MUON, "rest": mx.SGD(0.1)}, mx.by_role({mx.Matrix: "by"}, "rest")), model)
    assert {path for path, group in found.items() if group == "by/muon"} == {
        path for path, role in TRANSFORMER.items() if role.split()[0] in BY_MUON
    }
    labels = mx.by_role({mx.Head: "last", mx.Attention: "attention"}, default="rest")
    partition = mx.Partition({x: mx.SGD(0.1) for x in ("last", "attention", "rest")}, labels)
    found = groups_of(partition, model)
    assert found["lm_head.weight"] == "last"
    assert {path for path, group in found.items() if group == "attention"} == {
        path for path, role in TRANSFORMER.items() if role.split()[0] in BY_MUON[1:]
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
