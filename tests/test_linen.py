"""Flax Linen: its `TrainState` as it is, and `modulax.linen.TrainState` with the optimizer as data."""

from typing import Any

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.training import train_state

import modulax as mx
import modulax.linen

from .probes import Proportional
from .settings import jax_defaults

MODEL = nn.Sequential([nn.Dense(8), jnp.tanh, nn.Dense(1)])
X = jnp.linspace(-1, 1, 16)[:, None]
PARAMS = MODEL.init(jax.random.key(0), X)


@pytest.fixture(autouse=True)
def _defaults():
    with jax_defaults():
        yield


def loss(params: Any) -> jax.Array:
    output: Any = MODEL.apply(params, X)
    return jnp.mean((output - jnp.sin(3 * X)) ** 2)


def step(state: Any, _: Any = None) -> Any:
    value, grads = jax.value_and_grad(loss)(state.params)
    return state.apply_gradients(grads=grads), value


def create(cls: Any, tx: Any) -> Any:
    return cls.create(apply_fn=MODEL.apply, params=PARAMS, tx=tx)


@pytest.mark.parametrize("cls", [train_state.TrainState, modulax.linen.TrainState], ids=["flax", "modulax"])
def test_it_trains_like_optax(cls: Any):
    ours, theirs = create(cls, mx.AdamW(1e-2)), create(train_state.TrainState, optax.adamw(1e-2))
    jitted = jax.jit(step)
    for _ in range(100):
        (ours, a), (theirs, b) = jitted(ours), jitted(theirs)
        np.testing.assert_allclose(a, b, atol=1e-5)
    assert ours.step == 100


def test_numbers_are_data():
    train_step = jax.jit(chex.assert_max_traces(step, n=1))
    state = create(modulax.linen.TrainState, mx.SGD(0.1))
    for rate in (0.1, 0.01, 0.0):
        before = state.params
        state, _ = train_step(state.replace(tx=state.tx.replace(learning_rate=rate)))
    assert {name: float(x) for name, x in state.metrics().items()} == {"learning_rate": 0, "step": 3}
    chex.assert_trees_all_equal(state.params, before)


def test_parameters_to_evaluate():
    state, _ = jax.lax.scan(step, create(modulax.linen.TrainState, mx.ScheduleFreeSGD(0.5)), length=50)
    chex.assert_trees_all_equal(state.eval_params, state.opt_state.inner.x)
    assert loss(state.eval_params) < 0.5 * loss(PARAMS)
    plain = create(modulax.linen.TrainState, mx.SGD(0.5))
    chex.assert_trees_all_equal(plain.eval_params, plain.params)
    # Beside statistics that Flax overwrites by their gradients, as for float8.
    apart = {"_overwrite_with_gradient": {"scale": jnp.ones(2)}}
    params = {**PARAMS, **apart}
    fp8 = modulax.linen.TrainState.create(apply_fn=MODEL.apply, params=params, tx=mx.ParamEMA(mx.SGD(0.5)))
    fp8 = fp8.apply_gradients(grads=params)
    average = {"params": fp8.tx.eval_params(fp8.opt_state, fp8.params["params"])}
    chex.assert_trees_all_equal(fp8.eval_params, average | apart)


def test_a_sweep_is_one_vmap():
    rates = jnp.array([1e-3, 1e-2, 1e-1])

    @jax.vmap
    def train(rate):
        return jax.lax.scan(step, create(modulax.linen.TrainState, mx.AdamW(rate)), length=10)[1]

    for row, rate in zip(train(rates), rates, strict=True):
        alone = jax.lax.scan(step, create(modulax.linen.TrainState, mx.AdamW(float(rate))), length=10)[1]
        np.testing.assert_allclose(row, alone, rtol=5e-3)


def test_a_step_transfers_nothing_from_the_host():
    """Nor after a number has been replaced."""
    state: Any = modulax.linen.TrainState.create(apply_fn=jnp.multiply, params={"w": jnp.ones(2)}, tx=mx.AdamW(0.1))
    step = jax.jit(lambda state, grads: state.apply_gradients(grads=grads))
    grads = {"w": jnp.ones(2)}
    for changed in (state, state.replace(tx=state.tx.replace(learning_rate=0.2))):
        with jax.transfer_guard("disallow"):
            new = step(changed, grads)
        assert new.step == 1


def test_extra_arguments_go_to_the_optimizer():
    params = {"w": jnp.ones(2)}
    optimizer = mx.Chain(mx.SGD(0.1), mx.ReduceOnPlateau(patience=1, factor=0.5))
    state = modulax.linen.TrainState.create(apply_fn=MODEL.apply, params=params, tx=optimizer)
    step = jax.jit(lambda state, loss: state.apply_gradients(grads=params, value=loss))
    for _ in range(3):
        state = step(state, 1.0)
    assert jax.tree.structure(state.opt_state) == jax.tree.structure(optimizer.init(params))
    assert float(state.params["w"][0]) == pytest.approx(1 - 0.1 - 0.05 - 0.025)
    plain = modulax.linen.TrainState.create(apply_fn=MODEL.apply, params=params, tx=mx.SGD(0.1))
    with pytest.raises(TypeError, match="valu"):
        plain.apply_gradients(grads=params, valu=1.0)


class Largest(mx.AbstractMeasure):
    """The largest loss so far, as in docs/monitoring.md."""

    needs = ("value",)

    def init(self, params: Any) -> jax.Array:
        del params
        return jnp.asarray(-jnp.inf)

    def update(self, updates: Any, state: Any, params: Any = None, **extra: Any) -> Any:
        del updates, params
        state = jnp.maximum(state, extra["value"])
        return state, state


def objective(params: Any, x: Any, y: Any) -> jax.Array:
    return jnp.sum((params["w"] * x - y) ** 2)


class ByTemperature(mx.AbstractStatelessTransform):
    """A transform with an argument that it doesn't require."""

    def apply(self, updates: Any, params: Any = None, **extra: Any) -> Any:
        del params
        return jax.tree.map(lambda g: g / extra.get("temperature", 1.0), updates)


def is_small(step: Any, value: Any, **extra: Any) -> Any:
    del step, extra
    return value < 1


LOSS: dict[str, Any] = {"value": 5.0}
BATCH: dict[str, Any] = {"x": jnp.ones(2), "y": jnp.zeros(2)}
LINE: dict[str, Any] = {"value": 8.0, "grad": {"w": 4 * jnp.ones(2)}, "value_fn": objective, **BATCH}


STEPS: dict[str, tuple[Any, dict[str, Any]]] = {
    "polyak of optax": (lambda: mx.from_optax(optax.polyak_sgd(1.0)), LOSS),
    "stateful rate": (lambda: mx.SGD(Proportional()), LOSS),
    "stateful decay": (lambda: mx.AdamW(1e-2, b1=Proportional(0.01)), LOSS),
    "measure": (lambda: mx.Chain(mx.Monitor({"loss": Largest()}), mx.SGD(0.1)), LOSS),
    "condition": (lambda: mx.ConditionallyMask(mx.SGD(0.1), is_small, forward_extra_args=True), LOSS),
    "plateau of optax": (lambda: mx.from_optax(optax.contrib.reduce_on_plateau()), LOSS),
    "L-BFGS of optax": (lambda: mx.from_optax(optax.lbfgs()), {**LINE, "value_fn": objective}),
    "L-BFGS": (mx.LBFGS, LINE),
    "AdaHessian": (lambda: mx.AdaHessian(0.1), {"obj_fn": lambda params: objective(params, **BATCH), "value": 1.0}),
    "SGD": (lambda: mx.SGD(0.1), LOSS),
    "own transform": (lambda: mx.Chain(ByTemperature(), mx.SGD(0.1)), {"temperature": 2.0}),
}


@pytest.mark.parametrize("optimizer, extra", STEPS.values(), ids=STEPS.keys())
def test_every_argument_that_a_step_takes(optimizer: Any, extra: dict[str, Any]):
    tx, params, grads = optimizer(), {"w": 2 * jnp.ones(2)}, {"w": 4 * jnp.ones(2)}
    state = modulax.linen.TrainState.create(apply_fn=MODEL.apply, params=params, tx=tx)
    expected, kept = params, tx.init(params)
    for _ in range(2):
        state = state.apply_gradients(grads=grads, **extra)
        expected, kept = tx.step(grads, kept, expected, **extra)
    chex.assert_trees_all_close(state.params, expected, rtol=1e-6)
    chex.assert_trees_all_close(state.opt_state, kept, rtol=1e-5)


class WithStatistics(modulax.linen.TrainState):
    batch_stats: Any = None
    value: Any = None


def test_fields_and_arguments_in_one_call():
    params: dict[str, Any] = {"w": jnp.ones(2)}

    def made(tx: Any) -> Any:
        return WithStatistics.create(apply_fn=MODEL.apply, params=params, tx=tx, batch_stats=0.0)

    largest = mx.Chain(mx.Monitor({"loss": Largest()}), mx.SGD(0.1))
    state = made(largest).apply_gradients(grads=params, batch_stats=1.0, value=3.0)
    assert (state.batch_stats, state.value, state.step) == (1.0, 3.0, 1)
    assert state.opt_state["monitor"].measurements["loss"] == 3.0
    assert state.tx == jax.device_put(largest)
    state = made(mx.from_optax(optax.polyak_sgd(1.0))).apply_gradients(grads=params, value=1.0)
    np.testing.assert_allclose(state.params["w"], 0.5)
    state = made(mx.SGD(0.1)).apply_gradients(grads=params, value=3.0, tx=mx.SGD(0.2))
    assert (state.value, state.tx) == (3.0, mx.SGD(0.2))
    for name, value in (("step", 5), ("params", params), ("opt_state", ())):
        with pytest.raises(TypeError, match=rf"apply_gradients\(grads=grads\).replace\({name}=...\)"):
            made(mx.SGD(0.1)).apply_gradients(grads=params, value=1.0, **{name: value})


@pytest.mark.parametrize(
    "tx, name, message",
    [
        (lambda: mx.SGD(0.1), "batch_stat", "Did you mean `batch_stats`"),
        (
            lambda: mx.AdamW(0.1, mask=lambda params: {"w": True} if params else {}),
            "metrics",
            "nothing in the optimizer reads",
        ),
        (lambda: mx.SGD(lambda step: 0.1 / (step + 1)), "lossy", "declare it in a subclass"),
        (lambda: mx.from_optax(optax.adam(0.1)), "batch_stat", "Did you mean `batch_stats`"),
        (lambda: mx.Chain(mx.SGD(0.1), mx.ReduceOnPlateau()), "valu", "Did you mean `value`"),
    ],
    ids=["a field", "another", "a letter more", "optax", "an argument"],
)
def test_an_argument_that_nothing_reads(tx: Any, name: str, message: str):
    params = {"w": jnp.ones(2)}
    state = WithStatistics.create(apply_fn=MODEL.apply, params=params, tx=tx())
    with pytest.raises(TypeError, match=rf"apply_gradients\({name}=...\).*{message}"):
        state.apply_gradients(grads=params, **{name: 1.0})
