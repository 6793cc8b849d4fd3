"""Our transforms inside optax's containers, and optax's inside ours: the same steps, and no extra argument is lost."""

import functools
from pathlib import Path
from typing import Any

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import optax as typed_optax
import pytest

import modulax as mx
from modulax import checkpoint
from modulax.testing._case import counting_traces

from . import settings

optax: Any = typed_optax  # whose types know a tree of parameters as an array, a number, a mapping or an iterable
STEPS = 60
PARAMS = {"a": {"bias": np.asarray([0.3, -0.2]), "kernel": np.asarray([[-2.5, 1.0], [0.4, 3.0]])}, "b": np.asarray(0.7)}
KERNELS = mx.by_path({"*bias": False, "*": True})


def not_bias(tree: Any) -> Any:
    return {"a": {"bias": False, "kernel": True}, "b": True}


def kinds(tree: Any) -> Any:
    return {"a": {"bias": "bias", "kernel": "rest"}, "b": "rest"}


def loss(params: Any) -> Any:
    return sum(jnp.sum(p**2) for p in jax.tree.leaves(params)) / 2


def trajectory(transform: Any, *, is_broken: Any = lambda t: False) -> Any:
    """The updates of 60 steps on a noisy bowl, with the loss as `value`; NaNs where the gradient is broken."""

    def body(carry: Any, t: Any) -> Any:
        params, state = carry
        noise = jax.random.normal(jax.random.fold_in(jax.random.key(0), t))
        grads = jax.tree.map(lambda p: jnp.where(is_broken(t), jnp.nan, p + noise), params)
        updates, state = transform.update(grads, state, params, value=loss(params))
        return (optax.apply_updates(params, updates), state), updates

    params = jax.tree.map(jnp.asarray, PARAMS)
    with settings.jax_defaults():
        return jax.jit(lambda p: jax.lax.scan(body, (p, transform.init(p)), jnp.arange(STEPS))[1])(params)


assert_equal = functools.partial(chex.assert_trees_all_close, rtol=1e-12, atol=1e-13)


def ours() -> Any:
    """PolyakSGD refuses to step without the loss: an argument that is lost is an error here."""
    return mx.Chain(mx.PolyakSGD(0.3), mx.Trace(0.5), mx.AddDecayedWeights(0.01, mask=KERNELS))


def theirs() -> Any:
    return optax.chain(optax.polyak_sgd(0.3), optax.trace(0.5), optax.add_decayed_weights(0.01, mask=not_bias))


def _in_optax() -> dict[str, Any]:
    """Functions of a transformation, each with one of optax's containers around it."""
    return {
        "chain": lambda tx: optax.chain(optax.clip(1.0), tx, optax.scale(0.5)),
        "masked": lambda tx: optax.masked(tx, not_bias),
        "partition": lambda tx: optax.partition({"bias": optax.sgd(0.1), "rest": tx}, kinds),
        "MultiSteps": lambda tx: optax.MultiSteps(tx, 3, accumulator_dtype=float),
        "apply_if_finite": lambda tx: optax.apply_if_finite(tx, 3),
        "conditionally_mask": lambda tx: optax.transforms.conditionally_mask(tx, lambda step, **_: step % 2 == 0),
        "as it is": lambda tx: optax.with_extra_args_support(tx),
    }


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", list(_in_optax()))
def test_ours_inside_of_optax(name: str):
    around = _in_optax()[name]
    is_broken = (lambda t: (t % 7) == 3) if name == "apply_if_finite" else (lambda t: False)
    found = trajectory(around(mx.to_optax(ours())), is_broken=is_broken)
    assert_equal(found, trajectory(around(theirs()), is_broken=is_broken))


@pytest.mark.usefixtures("x64")
def test_ours_inside_of_inject_hyperparams():
    with settings.jax_defaults():
        injected = optax.inject_hyperparams(lambda rate: mx.to_optax(mx.PolyakSGD(rate)))(0.3)
        twin = optax.inject_hyperparams(optax.polyak_sgd)(0.3)
    assert_equal(trajectory(injected), trajectory(twin))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    "around, twin",
    [
        (lambda tx: mx.Chain(mx.Clip(1.0), tx, mx.Scale(0.5)), "chain"),
        (lambda tx: mx.Masked(tx, KERNELS), "masked"),
        (
            lambda tx: mx.Partition({"bias": mx.SGD(0.1), "rest": tx}, mx.by_path({"*bias": "bias", "*": "rest"})),
            "partition",
        ),
        (lambda tx: mx.MultiSteps(tx, 3), "MultiSteps"),
        (mx.Injected, "as it is"),
        (mx.Scheduled, "as it is"),
        (lambda tx: mx.from_optax(mx.to_optax(tx)), "as it is"),
    ],
    ids=["Chain", "Masked", "Partition", "MultiSteps", "Injected", "Scheduled", "both ways"],
)
def test_optax_inside_of_ours(around: Any, twin: str):
    tx = optax.chain(theirs(), optax.scale_by_adam())
    assert_equal(trajectory(around(mx.from_optax(tx))), trajectory(_in_optax()[twin](tx)))


def test_a_line_search_gets_its_functions():
    """Extra arguments that are functions and trees pass both adapters."""
    params = {"x": jnp.asarray([3.0, -1.0])}
    search = optax.scale_by_backtracking_linesearch(20)

    def run(transform: Any) -> Any:
        state, p = transform.init(params), params
        for _ in range(2):
            value, grad = jax.value_and_grad(loss)(p)
            u, state = transform.update(grad, state, p, value=value, grad=grad, value_fn=loss)
            p = optax.apply_updates(p, u)
        return p

    with settings.jax_defaults():
        expected = run(optax.chain(optax.sgd(4.0), search))
        chain = mx.Chain(mx.SGD(4.0), mx.from_optax(search))
        for transform in (chain, optax.chain(mx.to_optax(chain))):
            jax.tree.map(np.testing.assert_allclose, run(transform), expected)


# --- What the adapters keep -------------------------------------------------------------------------


def test_the_state_is_that_of_optax():
    transform: Any = mx.from_optax(optax.adam(0.1))
    state = transform.init({"w": jnp.ones(2)})
    assert isinstance(state, mx.states.FromOptaxState)
    assert isinstance(state.inner_state[0], optax.ScaleByAdamState)
    assert mx.tree.leaf_paths(state) == ["inner_state.0.count", "inner_state.0.mu.w", "inner_state.0.nu.w"]


def test_dtypes_are_kept_where_optax_changes_them():
    """A rate in float32 makes float32 of a bfloat16 update, and of a trace."""
    params = {"w": jnp.ones(2, jnp.bfloat16)}
    tx = optax.chain(optax.scale(jnp.asarray(0.5, jnp.float32)), optax.trace(0.5))
    with settings.jax_defaults():
        assert tx.update(params, tx.init(params))[0]["w"].dtype == jnp.float32
    transform = mx.from_optax(tx)  # under the strict promotion of the tests
    u, state = transform.update(params, transform.init(params))
    assert {x.dtype for x in jax.tree.leaves((u, state))} == {jnp.dtype(jnp.bfloat16)}


def test_optax_without_extra_arguments_ignores_them():
    halve = optax.GradientTransformation(optax.init_empty_state, lambda u, state, params=None: (-0.5 * u, state))
    for tx in (halve, optax.GradientTransformation(*optax.sgd(0.5)), optax.MultiSteps(optax.sgd(0.5), 1)):
        transform = mx.from_optax(tx)
        u, _ = transform.update(jnp.ones(2), transform.init(jnp.ones(2)), jnp.ones(2), value=1.0, name="text")
        np.testing.assert_array_equal(u, -0.5)


def test_what_optax_masks_out_is_absent_for_ours():
    """So that a rule on paths knows it, as inside our own `Masked`."""
    with settings.jax_defaults():
        tx = optax.masked(mx.to_optax(mx.AdamW(0.1, mask=KERNELS)), not_bias)
        state = tx.init(PARAMS)
        updates, _ = tx.update(PARAMS, state, PARAMS)
    assert not [path for path in mx.tree.leaf_paths(state) if "bias" in path]
    np.testing.assert_array_equal(updates["a"]["bias"], PARAMS["a"]["bias"])


def test_optax_maps_over_the_parameters_in_our_states():
    params = {"w": jnp.ones(2)}
    tx = mx.to_optax(mx.AdamW(0.1))
    state = optax.tree_map_params(tx, lambda x: x + 7, tx.init(params), transform_non_params=lambda x: x - 1)
    assert [float(jnp.max(x)) for x in jax.tree.leaves(state)] == [-1, 7, 7, -1]


def test_the_numbers_that_optax_injects():
    """They are listed, through any nesting, and changed in the state, where nothing is traced again."""
    with settings.jax_defaults():
        injected = optax.inject_hyperparams(optax.sgd)(0.5, momentum=0.25)
        alone: Any = mx.from_optax(injected)
        chain: Any = mx.Chain(mx.Clip(9.0), last=mx.from_optax(optax.chain(optax.scale(1.0), injected)))
    g = jnp.ones(2)
    state = alone.init(g)
    assert alone.hyperparameters() == {}
    assert alone.hyperparameters(state) == {"hyperparams.learning_rate": 0.5, "hyperparams.momentum": 0.25}
    assert (
        repr(alone.at(state)) == "FromOptax(inject_hyperparams, hyperparams={'learning_rate': 0.5, 'momentum': 0.25})"
    )
    now = chain.hyperparameters(chain.init(g))
    assert list(now)[1:] == ["parts.last.hyperparams.1.learning_rate", "parts.last.hyperparams.1.momentum"]
    _, before = alone.update(g, alone.init(g), g)
    before.inner_state.hyperparams["learning_rate"] = 3.0
    alone.update(g, before, g)  # the program for arrays refuses a number, once
    _, state = alone.update(g, state, g)
    with counting_traces() as traces:
        state.inner_state.hyperparams["learning_rate"] = 2.0
        u, state = alone.update(g, state, g)
    assert not traces
    np.testing.assert_array_equal(u, -2 * (1 + 0.25))


def test_arrays_and_keys_that_optax_injects_are_not_listed():
    def noisy(rate: Any, rates: Any, key: Any) -> Any:
        del key
        return optax.chain(optax.scale(rate), optax.scale(rates[0]))

    with settings.jax_defaults():
        transform = mx.from_optax(optax.inject_hyperparams(noisy)(0.5, rates=jnp.ones(2), key=jax.random.key(0)))
    assert transform.hyperparameters(transform.init(jnp.ones(2))) == {"hyperparams.rate": 0.5}


def test_a_state_has_no_weak_types():
    """So that the second step is not traced; also where the state of the first step has another structure."""
    params, half = jnp.ones(2), jnp.asarray(0.5)
    keeping = mx.from_optax(optax.GradientTransformation(lambda params: half, lambda g, s, p=None: (g, {"n": half})))
    state = keeping.init(params)
    assert not state.inner_state.aval.weak_type
    _, state = keeping.update(params, state)
    assert not state.inner_state["n"].aval.weak_type


def test_the_state_of_optax_is_saved_and_restored(tmp_path: Path):
    transform: Any = mx.Chain(mx.Trace(0.5), mx.from_optax(optax.adamw(0.1)))
    params = {"w": jnp.ones(2)}
    _, state = transform.update(params, transform.init(params), params)
    checkpoint.save(tmp_path / "state", state)
    restored, _ = checkpoint.restore(tmp_path / "state", transform.init(params))
    assert eqx.tree_equal(restored, state)
    assert isinstance(restored["from_optax"].inner_state[0], optax.ScaleByAdamState)


def test_updates_of_each_example():
    with settings.jax_defaults():
        tx = optax.contrib.differentially_private_aggregate(1e9, 0.0, 0)
        chain = mx.Chain(mx.from_optax(tx, takes_examples=True), mx.SGD(1.0))
    state = chain.init({"w": jnp.ones(1)})
    for transform in (chain, chain.at(state)):
        u, _ = transform.update({"w": jnp.asarray([[1.0], [3.0]])}, state, {"w": jnp.ones(1)})
        np.testing.assert_allclose(u["w"], -2.0)


@pytest.mark.parametrize(
    "make, text",
    [
        (lambda: mx.from_optax(mx.SGD(0.1)), r"`from_optax` needs an optax transformation.*use it as it is"),
        (lambda: mx.from_optax(optax.adam), r"`from_optax` needs an optax.*Write `from_optax\(optax.adamw\(1e-3\)\)`"),
        (lambda: mx.to_optax(optax.sgd(0.1)), r"`to_optax` needs a modulax transform such as `AdamW\(1e-3\)`"),
        (lambda: mx.Chain(optax.sgd(0.1)), r"`Chain`: argument 0 is not a modulax transform.*`from_optax\(...\)`"),
        (lambda: mx.Masked(mx.SGD(0.1), KERNELS).replace(inner=optax.sgd(0.1)), r"`Masked\(inner=...\)`.*`from_optax"),
        (
            lambda: mx.Partition({"a": mx.SGD(0.1)}, {}).replace(transforms={"a": optax.sgd(0.1)}),
            r"`Partition`: the part 'a' .*`from_optax",
        ),
    ],
    ids=["ours", "function", "theirs", "Chain", "Masked", "Partition"],
)
def test_errors_teach(make: Any, text: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as for users: the error message is ours
    with pytest.raises(ValueError, match=text):
        make()


def test_python_numbers_are_parameters_as_in_optax():
    params, grads = {"a": 0.5, "b": jnp.ones(2)}, {"a": 0.25, "b": jnp.ones(2)}
    ours, theirs = mx.to_optax(mx.AdamW(0.1)), optax.adamw(0.1)
    with settings.jax_defaults():
        found, _ = ours.update(grads, ours.init(params), params)
        expected, _ = theirs.update(grads, theirs.init(params), params)
    chex.assert_trees_all_close(found, expected, rtol=1e-5)
    assert optax.apply_updates(params, found)["a"] == pytest.approx(0.4, rel=0.01)
