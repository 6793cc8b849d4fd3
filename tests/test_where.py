"""Each cell of the table in `docs/frameworks.md` is a test of this file."""

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import chex
import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest
from flax import nnx
from flax.training import train_state
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import modulax as mx
import modulax.linen
import modulax.nnx

from .settings import jax_defaults

X = jnp.linspace(-1, 1, 8)[:, None] * jnp.ones((8, 2))
Y = jnp.sin(3 * X[:, :1]) + 0.5  # so that no gradient is zero up to rounding, by which Adam would divide
PAGE = Path(__file__).parents[1] / "docs" / "frameworks.md"


def optimizer(rate: Any = 1e-2) -> Any:
    return mx.AdamW(rate)


class NNX:
    """A kind of `nnx.Optimizer`, in graph or in tree mode."""

    def __init__(self, cls: Any, graph: bool):
        self.cls, self.graph = cls, graph

    def make(self, rate: Any = 1e-2) -> Any:
        model = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
        return model, self.cls(model, optimizer(rate), wrt=nnx.Param, graph=self.graph)

    def step(self, carry: Any, _: Any = None) -> Any:
        model, optimizer = carry
        loss, grads = nnx.value_and_grad(lambda m: jnp.mean((m(X) - Y) ** 2), graph=self.graph)(model)
        optimizer.update(model, grads)
        return carry, loss

    def change(self, carry: Any, rate: float) -> Any:
        _, optimizer = carry
        if self.cls is nnx.Optimizer:
            optimizer.tx = optimizer.tx.replace(learning_rate=rate)
        else:
            optimizer.hyperparameters.learning_rate[...] = rate
        return carry

    def arrays(self, carry: Any) -> Any:
        return jtu.tree_leaves(nnx.as_pure(nnx.state(carry[0], nnx.Param)))

    def shard(self, sharding: Any) -> Any:
        model = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
        model.kernel.set_value(jax.device_put(model.kernel[...], sharding))
        return model, self.cls(model, optimizer(), wrt=nnx.Param, graph=self.graph)

    def jit(self, step: Any) -> Any:
        # What is changed in place need not be returned, and in tree mode must not.
        inside = nnx.jit(lambda model, optimizer: step((model, optimizer))[1], graph=self.graph)
        return lambda carry: (carry, inside(*carry))

    def many(self) -> Any:
        inside = nnx.vmap(lambda model, optimizer: self.step((model, optimizer))[1], graph=self.graph)
        inside = nnx.jit(inside, graph=self.graph)
        return lambda carry: (carry, inside(*carry))

    def make_many(self, rates: Any) -> Any:
        return nnx.vmap(self.make, graph=self.graph)(rates)

    def scan(self, carry: Any, length: int) -> Any:
        scanned = nnx.scan(self.step, in_axes=(nnx.Carry, 0), out_axes=(nnx.Carry, 0), length=length, graph=self.graph)
        return scanned(carry, jnp.arange(length))

    def moments(self, carry: Any) -> Any:
        ours = isinstance(carry[1], modulax.nnx.Optimizer)
        state = carry[1].state if ours else nnx.as_pure(carry[1].opt_state)
        return state.inner["scale_by_adam"].mu


class Functional:
    """A training step that returns what it changed: plain JAX transformations."""

    jit = staticmethod(jax.jit)
    make: Callable[..., Any]
    step: Callable[..., Any]

    def many(self) -> Any:
        return jax.jit(jax.vmap(self.step))

    def make_many(self, rates: Any) -> Any:
        return jax.vmap(self.make)(rates)

    def scan(self, carry: Any, length: int) -> Any:
        return jax.lax.scan(self.step, carry, length=length)


class Linen(Functional):
    """A `TrainState`."""

    def __init__(self, cls: Any):
        self.cls = cls

    def _state(self, params: Any, rate: Any) -> Any:
        # A step count that is an array from the first step on, as `scan` needs it.
        state = self.cls.create(apply_fn=nn.Dense(1).apply, params=params, tx=optimizer(rate))
        return state.replace(step=jnp.zeros((), jnp.int32))

    def make(self, rate: Any = 1e-2) -> Any:
        return self._state(nn.Dense(1).init(jax.random.key(0), X), rate)

    def step(self, state: Any, _: Any = None) -> Any:
        def loss_fn(params: Any) -> Any:
            output: Any = nn.Dense(params["params"]["bias"].size).apply(params, X)
            return jnp.mean((output - Y) ** 2)

        loss, grads = jax.value_and_grad(loss_fn)(state.params)
        return state.apply_gradients(grads=grads), loss

    def change(self, state: Any, rate: float) -> Any:
        return state.replace(tx=state.tx.replace(learning_rate=rate))

    def arrays(self, state: Any) -> Any:
        return jtu.tree_leaves(state.params)

    def shard(self, sharding: Any) -> Any:
        params = nn.Dense(2).init(jax.random.key(0), X)
        params["params"]["kernel"] = jax.device_put(params["params"]["kernel"], sharding)
        state = self._state(params, 1e-2)
        places = mx.state_sharding(state.tx, params)
        return state.replace(opt_state=jax.jit(state.tx.init, out_shardings=places)(params))

    def moments(self, state: Any) -> Any:
        return state.opt_state.inner["scale_by_adam"].mu


class Equinox(Functional):
    """A whole model, functions included; as a pytree of arrays and a static rest."""

    def make(self, rate: Any = 1e-2, size: Any = 1) -> Any:
        model = eqx.nn.MLP(2, size, 4, 1, key=jax.random.key(0))
        arrays, self.rest = eqx.partition(model, eqx.is_array)
        return optimizer(rate), arrays, optimizer(rate).init(arrays)

    def step(self, carry: Any, _: Any = None) -> Any:
        optimizer, arrays, state = carry

        def loss_fn(model: Any) -> Any:
            return jnp.mean((jax.vmap(model)(X) - Y) ** 2)

        model = eqx.combine(arrays, self.rest)
        loss, grads = eqx.filter_value_and_grad(loss_fn)(model)
        model, state = optimizer.step(grads, state, model)
        return (optimizer, eqx.filter(model, eqx.is_array), state), loss

    def change(self, carry: Any, rate: float) -> Any:
        return carry[0].replace(learning_rate=rate), *carry[1:]

    def arrays(self, carry: Any) -> Any:
        return jtu.tree_leaves(carry[1])

    def shard(self, sharding: Any) -> Any:
        optimizer, arrays, _ = self.make(size=2)
        arrays = eqx.tree_at(lambda m: m.layers[1].weight, arrays, replace_fn=lambda w: jax.device_put(w, sharding))
        places = mx.state_sharding(optimizer, arrays)
        return optimizer, arrays, jax.jit(optimizer.init, out_shardings=places)(arrays)

    def moments(self, carry: Any) -> Any:
        return carry[2].inner["scale_by_adam"].mu


ROWS: dict[str, Any] = {
    "`modulax.nnx.Optimizer`, graph mode": NNX(modulax.nnx.Optimizer, True),
    "`modulax.nnx.Optimizer`, tree mode": NNX(modulax.nnx.Optimizer, False),
    "`flax.nnx.Optimizer`, graph mode": NNX(nnx.Optimizer, True),
    "`flax.nnx.Optimizer`, tree mode": NNX(nnx.Optimizer, False),
    "`modulax.linen.TrainState`": Linen(modulax.linen.TrainState),
    "Flax's `TrainState`": Linen(train_state.TrainState),
    "Equinox": Equinox(),
}
# A static field: another number is another program, and a batch of numbers is none.
DOES_NOT = {
    ("Flax's `TrainState`", "live numbers"): "retraces",
    ("Flax's `TrainState`", "vmap"): "no",
}


@pytest.fixture(autouse=True)
def _defaults():
    with jax_defaults():
        yield


def jit(row: Any) -> None:
    step = row.jit(row.step)
    carry, losses = row.make(), []
    for _ in range(20):
        carry, loss = step(carry)
        losses.append(loss)
    assert losses[-1] < losses[0]


def live_numbers(row: Any) -> None:
    step = row.jit(chex.assert_max_traces(lambda carry: row.step(carry), n=1))
    carry = row.make()
    for rate in (1e-2, 1e-3, 0.0):
        carry = row.change(carry, rate)
        before = jtu.tree_map(np.asarray, row.arrays(carry))
        carry, _ = step(carry)
        moved = max(np.abs(a - b).max() for a, b in zip(row.arrays(carry), before, strict=True))
        assert moved == 0 if rate == 0 else 0 < moved < 1.1 * rate


def vmap(row: Any) -> None:
    rates = jnp.array([1e-3, 1e-2, 1e-1])
    carry, many, one = row.make_many(rates), row.many(), row.jit(row.step)
    losses = []
    for _ in range(5):
        carry, loss = many(carry)
        losses.append(loss)
    for i, rate in enumerate(rates):
        alone = row.make(float(rate))
        for loss in losses:
            alone, expected = one(alone)
            np.testing.assert_allclose(loss[i], expected, rtol=1e-4)


def scan(row: Any) -> None:
    _, losses = row.scan(row.make(), 10)
    carry, step = row.make(), row.jit(row.step)
    for expected in losses:
        carry, loss = step(carry)
        np.testing.assert_allclose(loss, expected, rtol=1e-4)


def sharded(row: Any) -> None:
    sharding = NamedSharding(Mesh(np.array(jax.devices()[:2]), ("data",)), PartitionSpec(None, "data"))
    if isinstance(row, Equinox):
        sharding = NamedSharding(sharding.mesh, PartitionSpec("data"))
    carry, step = row.shard(sharding), row.jit(row.step)
    for _ in range(2):
        carry, _ = step(carry)
        for arrays in (row.arrays(carry), jtu.tree_leaves(row.moments(carry))):
            (split,) = [x for x in arrays if x.ndim == 2 and not x.sharding.is_fully_replicated]
            assert split.sharding.is_equivalent_to(sharding, 2)


CELLS = {"jit": jit, "live numbers": live_numbers, "vmap": vmap, "scan": scan, "sharded": sharded}


@pytest.mark.parametrize("column", CELLS)
@pytest.mark.parametrize("row", ROWS)
def test_it_works(row: str, column: str):
    run = functools.partial(CELLS[column], ROWS[row])
    if (row, column) in DOES_NOT:
        with pytest.raises((AssertionError, TypeError, ValueError)):
            run()
    else:
        run()


def test_the_table_in_the_docs_is_this_one():
    rows = re.findall(r"^\| (.+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    written = {cells[0]: cells[1:] for cells in (row.split(" | ") for row in rows) if cells[0] in ROWS}
    expected = {row: [DOES_NOT.get((row, column), "yes") for column in CELLS] for row in ROWS}
    assert written == expected
