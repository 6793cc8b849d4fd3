"""`flax.serialization` of states, transforms and training states: by the names in checkpoints, or an error."""

import itertools
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest
from flax import nnx, serialization
from flax.core import freeze
from flax.training import train_state
from flax.traverse_util import flatten_dict

import modulax as mx
import modulax.linen
import modulax.nnx
from modulax import checkpoint
from modulax._support.flax_nodes import NNX, _Finder

from .instances import EVERYTHING, TRANSFORMS
from .settings import jax_defaults

PARAMS = {"kernel": jnp.ones((4, 3)), "bias": jnp.zeros(3), "embedding": jnp.ones((5, 4)), "none": None}


@pytest.fixture(autouse=True)
def _defaults() -> Iterator[None]:
    with jax_defaults():
        yield


def numbered(tree: Any) -> Any:
    """A tree with other numbers in all arrays, made of their shapes, so that nothing is compiled."""
    start = itertools.count(1)

    def other(x: Any) -> Any:
        if isinstance(x, (jax.Array, jax.ShapeDtypeStruct)):
            return jnp.asarray(np.arange(next(start), x.size + 1000)[: x.size].reshape(x.shape) % 100, x.dtype)
        if isinstance(x, np.ndarray):
            return np.full(x.shape, next(start), x.dtype)
        return x

    return jtu.tree_map(other, tree)


def assert_equal(a: Any, b: Any) -> None:
    chex.assert_trees_all_equal(a, b, strict=True)
    assert [isinstance(x, jax.Array) for x in jtu.tree_leaves(a)] == [
        isinstance(x, jax.Array) for x in jtu.tree_leaves(b)
    ]


def assert_back(tree: Any, target: Any) -> None:
    """Assert that a tree is the same after a file, which has its names in a checkpoint."""
    stored = serialization.msgpack_restore(serialization.to_bytes(tree))
    names = checkpoint.state_dict(tree)
    assert {".".join(key) for key in flatten_dict(stored)} == set(names)
    assert_equal(serialization.from_bytes(target, serialization.to_bytes(tree)), tree)
    assert_equal(checkpoint.load_state_dict(target, flatten_dict(stored, sep="."))[0], tree)


def test_states_of_all_transforms():
    # Most states of optimizers are those of the transforms that they are made of.
    of_each_class = {i.cls: i for i in reversed(TRANSFORMS) if not issubclass(i.cls, mx.AbstractOptimizer)}
    assert len(of_each_class) > 50
    for instance in of_each_class.values():
        shapes = jax.eval_shape(instance.make().init, PARAMS)
        assert_back(numbered(shapes), shapes)


def test_all_transforms_and_schedules():
    for instance in EVERYTHING:
        transform = instance.make()
        assert serialization.is_serializable(transform)
        assert_back(numbered(transform), transform)


class Pair(NamedTuple):
    first: Any
    second: Any


class Everything(mx.AbstractState):
    """What a user may put into a state."""

    mu: Any
    key: Any = mx.shared(None)
    count: Any = mx.shared(None)
    nothing: Any = mx.shared(None)
    function: Any = mx.shared(None)
    name: str = eqx.field(static=True, default="name")


def everything(n: int) -> Everything:
    model = nnx.Linear(2, 2, param_dtype=jnp.bfloat16, rngs=nnx.Rngs(n))
    mu = {
        "linen": freeze({"params": {"kernel": jnp.full((2, 1), n, jnp.bfloat16)}}),
        "nnx": nnx.state(model, nnx.Param),
        "list": [jnp.zeros((0, 2)), Pair(np.full(2, n), (None, jnp.float32(n)))],
        "a.b": {"c": jnp.full(1, n)},
        "a": {"b.c": jnp.full(1, -n)},
        "integers": {1: jnp.full(1, n), 10: jnp.full(1, n + 1)},
    }
    return Everything(mu, jax.random.key(n), n, function=jnp.tanh)


def test_whatever_is_in_a_state():
    state, target = everything(1), everything(2)
    back: Any = serialization.from_bytes(target, serialization.to_bytes(state))
    assert jtu.tree_structure(back) == jtu.tree_structure(target)
    np.testing.assert_array_equal(jax.random.key_data(back.key), jax.random.key_data(state.key))
    assert_equal(eqx.tree_at(lambda x: x.key, back, state.key), state)


def test_fewer_bits_are_filled_from_full_precision():
    optimizer, params = mx.LowBit(mx.ScaleByAdam()), {"w": jnp.linspace(-1.0, 1.0, 4096)}
    _, state = optimizer.update(params, optimizer.init(params))
    wide = mx.tree.dequantize(state)
    back = serialization.from_state_dict(optimizer.init(params), serialization.to_state_dict(wide))
    chex.assert_trees_all_equal(mx.tree.dequantize(back), wide, strict=True)
    assert_equal(serialization.from_state_dict(wide, serialization.to_state_dict(state)), wide)


def test_results_share_no_memory_with_what_is_read():
    state = mx.Adam(1e-3).init(PARAMS)
    back = serialization.from_state_dict(state, serialization.to_state_dict(state))
    for x, y in zip(jtu.tree_leaves(back), jtu.tree_leaves(state), strict=True):
        assert x.unsafe_buffer_pointer() != y.unsafe_buffer_pointer()


def test_under_a_trace():
    state = mx.Adam(1e-3).init(PARAMS)
    names = [jax.eval_shape(lambda x: serialization.from_state_dict(x, serialization.to_state_dict(x)), state)]
    names += [jax.eval_shape(lambda x: serialization.from_state_dict(state, serialization.to_state_dict(x)), state)]
    for back in names:
        assert eqx.tree_equal(back, jax.eval_shape(lambda: state))


# --- Errors --------------------------------------------------------------------------------------


def without_bias(state: Any) -> Any:
    del state["inner"]["parts"]["scale_by_adam"]["mu"]["bias"]
    return state


MISTAKES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "missing": (without_bias, r"lacks `inner\.parts\.scale_by_adam\.mu\.bias`"),
    "shape": (lambda state: state | {"step": np.zeros(2, np.int32)}, r"`step` has shape \(2,\)"),
    "an array": (lambda _: np.ones(3), r"lacks .*`step`"),
    "None": (lambda _: None, r"lacks .*`step`"),
}


@pytest.mark.parametrize("change, message", MISTAKES.values(), ids=MISTAKES)
def test_mistakes(change: Callable[[Any], Any], message: str):
    state = {"states": [mx.Adam(1e-3).init(PARAMS)]}
    stored = serialization.to_state_dict(state)
    stored["states"]["0"] = change(stored["states"]["0"])
    with pytest.raises(ValueError, match=rf"from_state_dict` at `\./states/0` \(`OptimizerState`\): .*{message}"):
        serialization.from_state_dict(state, stored)


# --- Training states -----------------------------------------------------------------------------


@pytest.mark.parametrize("cls", [train_state.TrainState, modulax.linen.TrainState], ids=["flax", "modulax"])
def test_a_training_state_goes_on(cls: Any):
    params = {"params": {"kernel": jnp.ones(3)}}

    has_data = cls is modulax.linen.TrainState

    @jax.jit
    @chex.assert_max_traces(n=1 if has_data else 2)  # the step count of Flax has a weak type, which no file keeps
    def step(state: Any) -> Any:
        return state.apply_gradients(grads=state.params)

    def create(rate: float) -> Any:
        return cls.create(apply_fn=len, params=params, tx=optimizer.replace(learning_rate=rate))

    optimizer = mx.Chain(mx.ClipByGlobalNorm(1.0), mx.AdamW(0.1))
    saved = step(create(0.1))
    restored: Any = serialization.from_bytes(create(0.5 if has_data else 0.1), serialization.to_bytes(saved))
    assert not has_data or restored.tx["adamw"].learning_rate == np.float32(0.1)
    if not has_data:  # whose optimizer is a constant of the program
        restored = restored.replace(tx=saved.tx)
    chex.assert_trees_all_equal(step(restored), step(saved), strict=True)


def test_the_optimizer_of_nnx():
    model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    optimizer = modulax.nnx.Optimizer(model, mx.AdamW(1e-3))
    state = nnx.state(optimizer)
    names = set(checkpoint.state_dict(state))
    filled = numbered(nnx.to_pure_dict(state))
    data = serialization.to_bytes(filled)
    assert {".".join(key) for key in flatten_dict(serialization.msgpack_restore(data))} == names
    nnx.replace_by_pure_dict(state, serialization.from_bytes(nnx.to_pure_dict(state), data))
    chex.assert_trees_all_equal(nnx.to_pure_dict(state), filled, strict=True)


# --- Imports -------------------------------------------------------------------------------------

LATE = """
import importlib, sys
import jax.numpy as jnp
import modulax as mx
optimizer = mx.Chain(mx.Clip(1.0), mx.SGD(mx.schedules.Linear(0.5, 0.0, 10)))
transform, state = mx.Identity(), mx.states.ScaleByAdamState(mu={"w": jnp.ones(2)}, nu={"w": jnp.ones(2)})
assert not any(name.partition(".")[0] == "flax" for name in sys.modules)

import flax

class Later(mx.AbstractState):
    mu: dict

def check():
    for x in (transform, state, Later({"w": jnp.ones(3)}), mx.schedules.Linear(0.0, 1.0, 10)):
        back = flax.serialization.from_bytes(x, flax.serialization.to_bytes(x))
        assert type(back) is type(x) and back == x
    try:
        flax.serialization.from_state_dict(state, {})
    except ValueError as error:
        assert "lacks" in str(error)
    else:
        raise AssertionError

check()
importlib.reload(flax.serialization)
check()
assert flax.serialization.__spec__.loader.get_source("flax.serialization")
from flax import nnx
stock = nnx.Optimizer(model := nnx.Linear(1, 1, rngs=nnx.Rngs(0)), optimizer, wrt=nnx.Param)
stock.update(model, nnx.state(model, nnx.Param))
assert stock.step[...] == 1
"""


def test_flax_may_be_imported_later():
    """The imports of this file are in the other order."""
    run = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True, check=False, timeout=300)
    assert run.returncode == 0, run.stderr


def test_a_flax_without_nnx():
    assert _Finder().find_spec(NNX, []) is None
