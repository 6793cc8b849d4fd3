"""`modulax.compat` with functions and schedules of the caller, which see what they see in optax."""

import pickle
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.experimental
import pytest
from flax import nnx
from jax.core import Tracer

import modulax as mx
from modulax import compat

from . import settings

pytestmark = pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")

PARAMS = {"w": jnp.asarray([1.0, -2.0]), "b": jnp.asarray(0.5)}


def test_a_pair_of_functions():
    """State and arguments are the caller's own: Python numbers, also in a chain; traced under the caller's `jit`."""
    seen: list[Any] = []

    def init(params: Any) -> Any:
        del params
        return {"steps": 0}

    def update(updates: Any, state: Any, params: Any = None, *, loss: Any = None, **extra: Any) -> Any:
        del params, extra
        seen.append(loss)
        return updates, {"steps": state["steps"] + 1}

    tx = compat.chain(compat.GradientTransformationExtraArgs(init, update), compat.sgd(0.5))
    start, step = tx
    state = start(PARAMS)
    updates, state = step(PARAMS, state, PARAMS, loss=1)
    updates, state = step(PARAMS, state, PARAMS, loss=2.5)
    assert (seen, state[0]) == ([1, 2.5], {"steps": 2})
    assert [type(x) for x in seen] == [int, float]
    np.testing.assert_allclose(updates["w"], [-0.5, 1.0])
    updates, state = jax.jit(lambda s, x: tx.update(PARAMS, s, PARAMS, loss=x))(state, 3.0)
    assert isinstance(seen[-1], Tracer)
    assert int(state[0]["steps"]) == 3


def test_errors_in_functions_of_the_caller_are_shown_as_they_are():
    tx = compat.GradientTransformation(lambda params: (), lambda updates, state, params=None: updates.nope)
    for chain in (compat.chain(tx), compat.chain(compat.clip(1.0), tx)):
        with pytest.raises(AttributeError, match="'dict' object has no attribute 'nope'"):
            chain.update(PARAMS, chain.init(PARAMS), PARAMS)


def test_every_transformation_is_a_pair():
    for tx in (compat.sgd(0.5), compat.chain(compat.clip(1.0), compat.scale(2.0)), compat.adam(0.1)):
        init, update = tx
        assert jax.tree.structure(jax.jit(update)(PARAMS, init(PARAMS), PARAMS)[0]) == jax.tree.structure(PARAMS)
        assert isinstance(tx, compat.GradientTransformation)
        assert isinstance(tx, compat.GradientTransformationExtraArgs)
        assert isinstance(tx.transform, mx.AbstractTransform)
        assert pickle.loads(pickle.dumps(tx)) == tx
        assert tx._replace(update=None).init is tx.init
        assert not [x for x in jax.tree.leaves(tx) if isinstance(x, jax.Array | float)]
        nnx.Optimizer(nnx.Linear(1, 1, rngs=nnx.Rngs(0)), tx, wrt=nnx.Param)
    sgd = compat.sgd(0.5)
    assert (sgd[0], sgd[1], len(sgd)) == (*sgd, 2)
    assert isinstance(sgd.transform, mx.SGD)
    assert mx.from_optax(sgd) is sgd.transform
    assert issubclass(compat.GradientTransformationExtraArgs, compat.GradientTransformation)
    pair = compat.GradientTransformation(init, lambda updates, state: (updates, state))
    assert not isinstance(pair, compat.GradientTransformationExtraArgs)
    wrapped = compat.with_extra_args_support(pair)
    assert isinstance(wrapped, compat.GradientTransformationExtraArgs)
    assert compat.with_extra_args_support(wrapped) is wrapped
    assert pair.update(PARAMS, 3)[1] == 3
    aggregating = compat.experimental.aggregating
    mean = aggregating.average_per_element_updates(0)
    process = aggregating.process(compat.identity(), mean, compat.sgd(0.1))
    for tx in (mean, process, aggregating.Aggregator(init, update)):
        assert isinstance(tx, aggregating.Aggregator)
    assert not isinstance(compat.sgd(0.1), aggregating.Aggregator)


class Own(compat.GradientTransformationExtraArgs):
    """A transformation of a user, with a method."""

    def described(self) -> str:
        """Return a text."""
        return "own"


class Duck(NamedTuple):
    """Another NamedTuple with the two functions."""

    init: Callable[..., Any]
    update: Callable[..., Any]


def test_what_has_the_two_functions_goes_into_a_chain():
    halves = [
        optax.scale(0.5),
        compat.scale(0.5),
        Own(*optax.scale(0.5)),
        Duck(*compat.scale(0.5)),
        tuple(compat.scale(0.5)),
    ]
    halves.append(compat.MultiSteps(compat.scale(0.5), 1))
    tx = compat.chain(*halves)
    with settings.jax_defaults():
        updates, state = tx.update(PARAMS, tx.init(PARAMS), PARAMS)
    np.testing.assert_array_equal(updates["w"], PARAMS["w"] / 2**6)
    assert isinstance(state[-1], compat.MultiStepsState)
    assert Own(*tx).described() == "own"


class Boxed:
    """A leaf of the caller's own, around an array, like `OptParam` of AXLearn."""

    def __init__(self, value: jax.Array):
        self.value, self.shape, self.dtype = value, value.shape, value.dtype


class Variable(Boxed):
    """A leaf that refuses to say its `value`, like the variables of NNX that JAX takes for arrays."""

    def __getattribute__(self, name: str) -> Any:
        if name == "value":
            raise NotImplementedError
        return vars(self)["value"].copy if name == "get_value" else super().__getattribute__(name)


def seen_by_functions(o: Any) -> list[Any]:
    """What functions of the caller get within chains, masks and groups, and the states that come back."""
    seen: list[Any] = []

    def kinds(tree: Any) -> tuple[str, list[str]]:
        return str(jax.tree.structure(tree)), [type(x).__name__ for x in jax.tree.leaves(tree)]

    def init(params: Any) -> Any:
        seen.append(kinds(params))
        return params

    def update(updates: Any, state: Any, params: Any) -> Any:  # to which optax gives None
        seen.append((kinds(updates), kinds(params)))
        return updates, state

    def update_at(updates: Any, state: Any, params: Any = None, *, step: Any, **extra: Any) -> Any:
        seen.append((kinds(updates), kinds(params), kinds(step), kinds(extra)))
        return updates, state

    plain, at = o.GradientTransformation(init, update), o.GradientTransformationExtraArgs(init, update_at)
    boxed = {"w": Boxed(jnp.ones(2)), "b": o.MaskedNode()}
    grads = {"w": jnp.ones(2), "b": o.MaskedNode()}
    for tx in (
        o.chain(o.chain(plain, at), plain),
        o.named_chain(("a", o.chain(plain)), ("b", at)),
        o.chain(o.chain(o.scale(2.0), plain), o.named_chain(("a", at)), o.scale(2.0)),
    ):
        _, state = tx.update(grads, tx.init(boxed), boxed, step=3)
        updates, state = tx.update(grads, state, step=2.5)
        seen.append((kinds(state), np.asarray(updates["w"]).tolist()))
    mask = {"b": False, "w": True}
    for tx in (
        o.masked(plain, mask),
        o.masked(at, mask, mask_compatible_extra_args=True),
        o.masked(at, mask),
        o.flatten(plain),
        o.transforms.selective_transform(at, freeze_mask={"b": True, "w": False}),
        o.transforms.selective_transform(plain, freeze_mask=True),
        o.multi_transform({"a": plain, "b": o.sgd(0.5)}, {"b": "a", "w": "b"}),
    ):
        updates, state = tx.update(PARAMS, tx.init(PARAMS), step=PARAMS, ignored="a string")
        seen.append((kinds(state), jax.tree.map(lambda x: np.asarray(x).tolist(), updates)))
    tx, n = o.masked(plain, mask), len(seen)
    seen[n:] = [o.tree_map_params(tx, lambda _: "moment", tx.init(PARAMS)).inner_state["w"]]
    return seen


def test_functions_within_functions_get_what_they_get_in_optax():
    with settings.jax_defaults():
        theirs, ours = seen_by_functions(optax), seen_by_functions(compat)
    assert ours == theirs


def test_a_mask_may_name_the_layers_of_another_group():
    """As the mask functions of trainers do, which walk through a whole model."""
    params = {"norm": {"g": jnp.ones(2), "b": jnp.ones(2)}, "w": jnp.ones(2)}
    updates = []
    for o in (optax, compat):
        pair = o.GradientTransformation(lambda params: (), lambda updates, state, params=None: (updates, state))
        decay = o.add_decayed_weights(0.5, lambda tree: {"norm": {"g": False, "b": False}, "w": True})
        tx = o.multi_transform({"w": o.chain(pair, decay), "n": o.sgd(0.5)}, {"norm": {"g": "n", "b": "n"}, "w": "w"})
        with settings.jax_defaults():
            updates.append(tx.update(params, tx.init(params), params)[0])
    jax.tree.map(np.testing.assert_array_equal, *updates)
    whole = mx.Masked(mx.Scale(2.0), {"norm": {"g": True}, "w": True})
    assert whole.update(params | {"norm": {}}, whole.init(params | {"norm": {}}))[0]["w"][0] == 2.0


class Epochs:
    """A schedule of epochs, as braintools has."""

    rate = 0.1

    def __call__(self, step: Any) -> Any:
        return self.rate

    def of(self, step: Any) -> Any:
        return self.rate


def test_a_schedule_that_reads_what_changes_is_called_at_every_step():
    """Outside of `jit`, as in optax."""

    def steps(o: Any, make: Callable[[Any], Any], read: Callable[[Epochs], Any]) -> list[Any]:
        epochs, updates = Epochs(), []
        tx = make(read(epochs))
        state = tx.init(PARAMS)
        for epochs.rate in (0.1, 0.2, 0.3):
            new, state = tx.update(PARAMS, state, PARAMS)
            updates.append(new["b"])
        return updates

    def makers(o: Any) -> list[Any]:
        return [
            lambda f: o.chain(o.clip(1.0), o.sgd(f)),
            lambda f: o.inject_hyperparams(o.sgd)(f),
            lambda f: o.scale_by_schedule(o.join_schedules([f, o.constant_schedule(1.0)], [2])),
        ]

    rate = {"now": 0.1}

    def read_now(epochs: Epochs) -> Any:
        return lambda step: rate["now"] * epochs.rate

    for theirs, ours in zip(makers(optax), makers(compat), strict=True):
        for read in (lambda x: x, lambda x: x.of, lambda x: lambda step: x.rate, read_now):
            expected = steps(optax, theirs, read)
            np.testing.assert_allclose(steps(compat, ours, read), expected, rtol=1e-6)
            assert len({float(x) for x in expected}) == 3


epoch = 1.0


class Settings:
    """Settings of a program, in a class; a module has them in the same way."""

    rate = 1.0


def decayed(step: Any) -> Any:
    return 0.1 / epoch


def rates_that_are_read(o: Any, make: Callable[[Any], Any]) -> list[Any]:
    """Updates with schedules that read numbers elsewhere, which are set between the steps."""
    global epoch
    settings: Any = ModuleType("settings")
    local, array = 1.0, jnp.ones(())
    epoch = settings.rate = Settings.rate = 1.0
    functions = [
        lambda step: 0.1 / epoch,
        jax.named_call(decayed),
        partial(lambda factor, step: factor * decayed(step), 0.5),
        lambda step: sum(0.1 / epoch for _ in range(2)),
        lambda step: 0.1 * settings.rate,
        lambda step: 0.1 * Settings.rate + local,
        lambda step: 0.1 / array,
    ]
    optimizers = [make(f) for f in functions]
    states = [tx.init(PARAMS) for tx in optimizers]
    seen = []
    for now in (1.0, 2.0, 3.0):
        epoch = settings.rate = Settings.rate = local = now
        array = jnp.asarray(now)
        both = [tx.update(PARAMS, state, PARAMS) for tx, state in zip(optimizers, states, strict=True)]
        again = make(functions[0])  # with a function that an earlier program has read
        seen.append([updates["b"] for updates, _ in both] + [again.update(PARAMS, again.init(PARAMS), PARAMS)[0]["b"]])
        states = [state for _, state in both]
    return seen


def test_a_schedule_follows_the_numbers_that_it_reads():
    """Globals, attributes of modules and classes, and variables of the enclosing function, as in optax."""
    expected = rates_that_are_read(optax, optax.sgd)
    assert all(len({float(x) for x in rates}) == 3 for rates in zip(*expected, strict=True))
    np.testing.assert_allclose(rates_that_are_read(compat, compat.sgd), expected, rtol=1e-6)


def test_a_number_that_changes_at_every_step_is_not_compiled_for_ever():
    rate, times, seen = 0.1, 0, []

    def traced(step: Any) -> Any:
        nonlocal times
        times += isinstance(step, Tracer)
        return rate

    tx = compat.sgd(traced)
    state = tx.init(PARAMS)
    for i in range(30):
        rate = 0.1 / (1 + i)
        updates, state = tx.update(PARAMS, state, PARAMS)
        np.testing.assert_allclose(updates["b"], -0.5 * rate, rtol=1e-6)
        seen.append(times)
    assert seen[-1] == seen[22] > 20


def test_a_function_of_numbers_is_compiled():
    def schedule(step: Any, peak: float = 0.1) -> Any:
        assert isinstance(step, Tracer)
        return jnp.where(step == 0, 0.5, peak)

    tx = compat.adam(schedule)
    state = tx.init(PARAMS)
    for expected in (-0.5, -0.1):
        updates, state = tx.update(PARAMS, state, PARAMS)
        np.testing.assert_allclose(updates["b"], expected, rtol=1e-5)
