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
    mx.MultiSteps(mx.RMSProp(1e-2), 2),
    mx.Partition(
        {"bias": mx.SGD(1e-2), "weight": mx.Adam(1e-2)},
        mx.by_path({"*.bias": "bias", "*": "weight"}),
    ),
]


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


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda t: type(t).__name__)
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


class Normed(eqx.Module):
    """A model with state of its own."""

    linear: eqx.nn.Linear
    norm: eqx.nn.BatchNorm

    def __init__(self, key: Any):
        self.linear = eqx.nn.Linear(3, 2, key=key)
        self.norm = eqx.nn.BatchNorm(2, "batch", mode="batch")


def test_a_state_may_be_made_before_the_statistics_of_a_model_are_split_off(key: Any):
    """Equinox issue 1118; docs/frameworks.md trains with a state that is made afterwards."""
    optimizer, (model, _) = mx.AdamW(1e-2), eqx.nn.make_with_state(Normed)(key)
    grads = eqx.filter(model, eqx.is_inexact_array)
    states = optimizer.init(Normed(key)), optimizer.init(model)
    assert not any("norm.batch_state_index.init.0" in path for path in mx.tree.leaf_paths(states))
    one, other = (optimizer.step(grads, state, model)[0] for state in states)
    chex.assert_trees_all_equal(one.linear, other.linear)


# --- Several devices -------------------------------------------------------------------------------


def test_what_nobody_placed_is_on_every_device():
    """An array that was created without a sharding is on the first device, and its moments join those of the others."""
    mesh = Mesh(np.array(jax.devices("cpu")), ("data",))
    placed, everywhere = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())
    params = {"w": jax.device_put(np.ones(8, np.float32), placed), "b": jnp.ones(2)}
    found = mx.state_sharding(mx.Trace(0.9), params)
    assert jtu.tree_leaves(found) == [everywhere, placed]


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
