"""Whole models: Equinox networks with functions, flags and state go through every method."""

from typing import Any

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

import modulax as mx

OPTIMIZERS = [
    mx.AdamW(1e-2, mask=mx.by_path({"*.bias": False, "*": True})),
    mx.SGD(1e-2, momentum=0.9),
    mx.Chain(mx.ClipByGlobalNorm(1.0), mx.Lion(1e-3)),
    mx.MultiSteps(mx.RMSProp(1e-2), 2),
    mx.Partition(
        {"bias": mx.SGD(1e-2), "weight": mx.Adam(1e-2)},
        mx.by_path({"*.bias": "bias", "*": "weight"}),
    ),
]
each_optimizer = pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda t: type(t).__name__)


class Net(eqx.Module):
    """A model with everything that models hold."""

    mlp: eqx.nn.MLP
    embedding: eqx.nn.Embedding
    table: jax.Array
    name: str
    activation: Any
    is_training: bool
    missing: None
    dropout: float

    def __init__(self, key: Any):
        one, two = jax.random.split(key)
        self.mlp = eqx.nn.MLP(3, 1, 4, 1, key=one)
        self.embedding = eqx.nn.Embedding(5, 3, key=two)
        self.table = jnp.arange(4)
        self.name = "net"
        self.activation = jax.nn.gelu
        self.is_training = True
        self.missing = None
        self.dropout = 0.5

    def __call__(self, index: Any) -> Any:
        return self.activation(self.mlp(self.embedding(index)))


@eqx.filter_jit
def _loss(model: Any, indices: Any) -> Any:
    return jnp.mean((jax.vmap(model)(indices) - 1.0) ** 2)


_gradient = eqx.filter_jit(eqx.filter_grad(_loss))


@each_optimizer
def test_a_model_trains_unfiltered(optimizer: Any, key: Any):
    model, indices = Net(key), np.arange(5)
    state = optimizer.init(model)
    assert all(isinstance(x, jax.Array) for x in jtu.tree_leaves(state))
    before = _loss(model, indices)
    for _ in range(20):
        grads = _gradient(model, indices)
        model, state = optimizer.step(grads, state, model)
    assert _loss(model, indices) < before
    assert model.activation is jax.nn.gelu
    assert (model.name, model.is_training, model.missing, model.dropout) == ("net", True, None, 0.5)
    np.testing.assert_array_equal(model.table, np.arange(4))
    assert model.table.dtype == jnp.int32


def test_a_filtered_model_gives_the_same(key: Any):
    model, indices, optimizer = Net(key), np.arange(5), mx.AdamW(1e-2)
    params, static = eqx.partition(model, eqx.is_inexact_array)
    grads = _gradient(model, indices)
    whole, _ = optimizer.update(grads, optimizer.init(model), model)
    pure, _ = optimizer.update(grads, optimizer.init(params), params)
    chex.assert_trees_all_equal(whole, pure)
    applied = mx.apply_updates(model, whole)
    combined = eqx.combine(mx.apply_updates(params, pure), static)
    chex.assert_trees_all_equal(*(eqx.filter(model, eqx.is_array) for model in (applied, combined)))
    assert jtu.tree_structure(applied) == jtu.tree_structure(combined)


def test_a_step_in_one_jit(key: Any):
    """With `eqx.filter_jit` around the whole step, as Equinox's users write it."""
    optimizer = mx.AdamW(1e-2)

    @eqx.filter_jit(donate="all")
    def step(model: Any, state: Any, indices: Any) -> Any:
        value, grads = eqx.filter_value_and_grad(_loss)(model, indices)
        model, state = optimizer.step(grads, state, model)
        return model, state, value

    model = Net(key)
    state = optimizer.init(model)
    values = []
    for _ in range(5):
        model, state, value = step(model, state, np.arange(5))
        values.append(float(value))
    assert values == sorted(values, reverse=True)
    assert state.step == 5


@pytest.mark.parametrize("donate", [True, False])
def test_donation_of_a_model(donate: bool, key: Any):
    """Leaves that aren't parameters survive; parameters may be donated."""
    model, optimizer = Net(key), mx.SGD(1e-2)
    grads = _gradient(model, np.arange(5))
    new, _ = optimizer.step(grads, optimizer.init(model), model, donate=donate)
    assert model.mlp.layers[0].weight.is_deleted() == donate
    np.testing.assert_array_equal(new.table, jnp.arange(4))
    assert not any(x.is_deleted() for x in jtu.tree_leaves(grads))


class Normed(eqx.Module):
    """A model with state of its own."""

    linear: eqx.nn.Linear
    norm: eqx.nn.BatchNorm

    def __init__(self, key: Any):
        self.linear = eqx.nn.Linear(3, 2, key=key)
        self.norm = eqx.nn.BatchNorm(2, "batch", mode="batch")

    def __call__(self, x: Any, state: Any) -> Any:
        return self.norm(self.linear(x), state)


@pytest.mark.parametrize("order", ["before", "after"])
def test_batch_norm(order: str, key: Any):
    """`init` may come before or after the model's state is taken out (equinox issue 1118)."""
    optimizer = mx.AdamW(1e-2)
    model, model_state = eqx.nn.make_with_state(Normed)(key)
    state = optimizer.init(Normed(key) if order == "before" else model)
    assert "norm.batch_state_index.init.0" not in str(mx.tree.leaf_paths(state))
    x = jax.random.normal(key, (6, 3))

    def loss(model: Any, model_state: Any) -> Any:
        run = jax.vmap(model, axis_name="batch", in_axes=(0, None), out_axes=(0, None))
        y, model_state = run(x, model_state)
        return jnp.mean((y - 1) ** 2), model_state

    gradient = eqx.filter_jit(eqx.filter_grad(loss, has_aux=True))
    for _ in range(2):
        grads, model_state = gradient(model, model_state)
        model, state = optimizer.step(grads, state, model)
    chex.assert_tree_all_finite(model.linear.weight)
    assert state.step == 2


def test_frozen_parts(key: Any):
    """Leaves that `eqx.partition` left out have no gradient and no state, and do not change."""
    model = eqx.nn.MLP(2, 1, 4, 1, key=key)
    is_trained = eqx.tree_at(lambda m: m.layers[1], jtu.tree_map(lambda _: False, model), replace=True)
    part, rest = eqx.partition(model, is_trained)
    optimizer = mx.AdamW(1e-1)
    state = optimizer.init(eqx.filter(part, eqx.is_inexact_array))
    assert mx.tree.leaf_paths(state.inner["scale_by_adam"].mu) == ["layers.1.weight", "layers.1.bias"]
    grads = eqx.filter_jit(eqx.filter_grad(lambda part: jnp.sum(eqx.combine(part, rest)(jnp.ones(2)))))(part)
    part, state = optimizer.step(grads, state, part)
    new = eqx.combine(part, rest)
    np.testing.assert_array_equal(new.layers[0].weight, model.layers[0].weight)
    assert np.all(np.asarray(new.layers[1].weight) != np.asarray(model.layers[1].weight))


def test_an_ensemble_is_one_vmap(key: Any):
    """Models and optimizers in a batch, against a loop over them."""
    keys, rates = jax.random.split(key, 3), np.array([1e-3, 1e-2, 1e-1], np.float32)

    def make(key: Any) -> Any:
        return eqx.nn.MLP(2, 1, 4, 1, key=key)

    def train(model: Any, rate: Any) -> Any:
        optimizer = mx.AdamW(rate)
        state = optimizer.init(model)
        for _ in range(3):
            grads = eqx.filter_grad(lambda model: jnp.sum(model(jnp.ones(2)) ** 2))(model)
            model, state = optimizer.step(grads, state, model)
        return eqx.filter(model, eqx.is_array)

    together = eqx.filter_jit(eqx.filter_vmap(train))(eqx.filter_vmap(make)(keys), rates)
    train_one = eqx.filter_jit(lambda key, rate: train(make(key), rate))
    for i in range(3):
        alone = train_one(keys[i], rates[i])
        for a, b in zip(jtu.tree_leaves(together), jtu.tree_leaves(alone), strict=True):
            np.testing.assert_allclose(np.asarray(a)[i], b, rtol=1e-5)


def test_shared_layers(key: Any):
    """A weight that is used in two places is one parameter, with one state."""

    class Tied(eqx.Module):
        shared: eqx.nn.Shared

        def __init__(self, key: Any):
            one, two = jax.random.split(key)
            pair = (eqx.nn.Embedding(4, 3, key=one), eqx.nn.Linear(3, 4, use_bias=False, key=two))
            self.shared = eqx.nn.Shared(pair, lambda p: p[1].weight, lambda p: p[0].weight)

        def __call__(self, index: Any) -> Any:
            embedding, linear = self.shared()
            return linear(embedding(index))

    model, optimizer = Tied(key), mx.SGD(0.1, 0.9)
    grads = eqx.filter_jit(eqx.filter_grad(lambda m: jnp.sum(m(jnp.asarray(1)) ** 2)))(model)
    new, state = optimizer.step(grads, optimizer.init(model), model)
    assert len(jtu.tree_leaves(state.inner["trace"])) == 1
    embedding, linear = new.shared()
    np.testing.assert_array_equal(embedding.weight, linear.weight)


def test_updates_from_another_container_fit():
    """Trees are paired by path: a list for a tuple, a Module with other static fields."""
    params = {"layers": (jnp.ones(2), jnp.ones(3))}
    optimizer = mx.Adam(0.1)
    state = optimizer.init(params)
    as_list = {"layers": [jnp.ones(2), jnp.ones(3)]}
    updates, new_state = optimizer.update(as_list, state, params)
    assert jtu.tree_structure(updates) == jtu.tree_structure(as_list)
    assert jtu.tree_structure(new_state) == jtu.tree_structure(state)
    expected, _ = optimizer.update(params, state, params)
    chex.assert_trees_all_equal(jtu.tree_leaves(updates), jtu.tree_leaves(expected))


# --- Several devices -------------------------------------------------------------------------------


def test_eight_devices():
    """Parameters and moments stay spread over the devices, and the numbers are those of one device."""
    devices = jax.devices("cpu")
    assert len(devices) == 8
    mesh = Mesh(np.array(devices).reshape(4, 2), ("data", "model"))
    alone = {"w": np.ones((8, 4), np.float32), "b": np.ones(4, np.float32), "s": np.ones((), np.float32)}
    axes = {"w": P("data", "model"), "b": P("model"), "s": P()}
    params = {name: jax.device_put(x, NamedSharding(mesh, axes[name])) for name, x in alone.items()}
    alone = jax.device_put(alone, devices[0])
    optimizer = mx.AdamW(0.1)

    @jax.jit
    def step(params: Any, state: Any) -> Any:
        grads = jtu.tree_map(lambda p: p * 0.5 - 1.0, params)
        return optimizer.step(grads, state, params)

    def run(params: Any) -> Any:
        state = optimizer.init(params)
        for _ in range(3):
            new, state = step(params, state)
            assert_same_shardings(new, params)
            params = new
        return params, state

    (spread, state), (expected, _) = run(params), run(alone)
    chex.assert_trees_all_close(spread, expected, rtol=0, atol=1e-6)
    adam = state.inner["scale_by_adam"]
    assert_same_shardings([adam.mu["w"], adam.nu["w"]], [params["w"], params["w"]])
    updates, _ = optimizer.update(params, optimizer.init(params), params)
    assert_same_shardings(updates, params)


def test_what_nobody_placed_is_on_every_device():
    """An array that was created without a sharding is on the first device, and its moments join those of the others."""
    mesh = Mesh(np.array(jax.devices("cpu")), ("data",))
    placed, everywhere = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())
    params = {"w": jax.device_put(np.ones(8, np.float32), placed), "b": jnp.ones(2)}
    found = mx.state_sharding(mx.Trace(0.9), params)
    assert jtu.tree_leaves(found) == [everywhere, placed]


def assert_same_shardings(tree: Any, like: Any) -> None:
    for x, y in zip(jtu.tree_leaves(tree), jtu.tree_leaves(like), strict=True):
        assert x.sharding.is_equivalent_to(y.sharding, x.ndim)


# --- Leaves that are not arrays of JAX's usual dtypes


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float8_e4m3fn])
def test_numpy_arrays_of_narrow_floats_are_parameters(dtype: Any):
    """As safetensors and orbax restore them: NumPy itself does not know that they are floats."""
    params = {"w": np.ones(2, dtype)}
    optimizer = mx.ScheduleFreeAdamW(0.1)
    state = optimizer.init(params)
    assert "2 parameters" in str(mx.describe(optimizer, params))
    moved = mx.apply_updates(params, {"w": jnp.ones(2)})
    evaluated = optimizer.eval_params(state, params)
    for tree, value in ((moved, 2.0), (evaluated, 1.0)):
        assert tree["w"].dtype == dtype
        np.testing.assert_array_equal(np.asarray(tree["w"], np.float32), value)


@pytest.mark.parametrize("dtype", [jnp.float8_e4m3fn, jnp.float8_e5m2])
def test_float8_parameters_are_stepped_like_others(dtype: Any):
    params = {"w": jnp.ones(4, dtype), "b": jnp.ones(2)}
    wide = jax.tree.map(lambda x: x.astype(jnp.float32), params)
    for optimizer in (mx.SGD(0.5, momentum=0.5), mx.AdamW(0.25), mx.Chain(mx.ClipByGlobalNorm(8.0), mx.SGD(0.5))):
        found, _ = optimizer.step(params, optimizer.init(params), params)
        expected, _ = optimizer.step(wide, optimizer.init(wide), wide)
        assert found["w"].dtype == dtype
        chex.assert_trees_all_close(jax.tree.map(lambda x: x.astype(jnp.float32), found), expected, rtol=0.1)
    assert float(mx.tree.norm(params)) == pytest.approx(6**0.5)


def test_init_of_shapes_and_of_numbers():
    shapes = jax.eval_shape(lambda: {"w": jnp.ones(2), "b": jnp.ones(2)})
    optimizer = mx.Adam(0.1)
    state = optimizer.init(shapes)
    assert eqx.tree_equal(state, jax.eval_shape(optimizer.init, shapes))
    assert mx.tree.get(state, "mu") == shapes
    with pytest.raises(
        ValueError, match=r"`Adam.update` was given shapes in place .*`jax.eval_shape\(optimizer.update"
    ):
        optimizer.update(shapes, state, shapes)
    with pytest.raises(ValueError, match=r"`Adam.init` was given a Python number.*jnp.asarray"):
        optimizer.init(0.5)


def test_python_numbers_have_no_updates():
    """In a model they are settings, as the rate of a dropout."""
    params, grads = {"a": {"rate": 0.5}, "w": jnp.ones(2)}, {"a": {"rate": jnp.ones(())}, "w": jnp.ones(2)}
    optimizer = mx.SGD(0.1)
    state = optimizer.init(params)
    message = r"the updates have `a.rate`, which is a Python number in the parameters.*`equinox.filter_grad`"
    for call in (
        lambda: optimizer.update(grads, state, params),
        lambda: optimizer.step(grads, state, params),
        lambda: mx.apply_updates(params, grads),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    stepped, _ = optimizer.step({"a": {"rate": None}, "w": grads["w"]}, state, params)
    assert stepped["a"]["rate"] == 0.5
