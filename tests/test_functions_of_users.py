"""Functions that a user gives: among the extra arguments of a call, and in the fields of transforms."""

import dataclasses
import functools
import gc
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import modulax
from modulax._support import tracing


@dataclasses.dataclass
class Times:
    """A function that reads data which can change; it does not hash, and `==` of two with arrays is an error."""

    factor: Any

    def __call__(self, x: Any) -> Any:
        return self.factor * x


class Applied(modulax.AbstractStatelessTransform):
    """Calls a function among the extra arguments."""

    def apply(self, updates, params, *, function, **extra):
        return function(updates)


@pytest.mark.parametrize("caller", ["update", "step", "jit"])
def test_a_function_among_the_extra_arguments_is_read_at_every_call(caller: str):
    """Nobody compiled it. In a new program of the caller, it is read again too."""
    transform, data, ones = Applied(), Times(1.0), jnp.ones(2)

    def by(function: Any) -> Any:
        def update(g: Any) -> Any:
            return transform.update(g, transform.init(g), function=function)[0]

        if caller == "step":
            return transform.step(ones, transform.init(ones), jnp.zeros(2), function=function)[0]
        return jax.jit(update)(ones) if caller == "jit" else update(ones)

    functions = (data, data.__call__, lambda x: data.factor * x, functools.partial(Times.__call__, data))
    for factor in (2.0, 3.0):
        data.factor = factor
        for function in functions:
            np.testing.assert_array_equal(by(function), factor)
    for factor in (2.0, 3.0):
        np.testing.assert_array_equal(by(Times(jnp.full(2, factor))), factor)


def test_a_line_search_measures_the_loss_of_its_own_step():
    class Trainer:
        target = 0.0

        def loss(self, x: Any) -> Any:
            return jnp.sum((x - self.target) ** 2)

    trainer, x = Trainer(), jnp.zeros(1)
    optimizer = modulax.Chain(modulax.SGD(1.0), modulax.ScaleByBacktrackingLinesearch(20))
    state = optimizer.init(x)
    for trainer.target in (1.0, -5.0):
        value, grad = jax.value_and_grad(trainer.loss)(x)
        x, state = optimizer.step(grad, state, x, value=value, grad=grad, value_fn=trainer.loss)
        np.testing.assert_allclose(state[1].value, trainer.loss(x), rtol=1e-6)


def test_programs_of_functions_are_not_kept():
    """Nor what the functions hold: they would fill the memory."""

    class Data:
        factor = 2.0

    def held() -> Any:
        data = Data()
        Applied().update(jnp.ones(2), modulax.EmptyState(), function=lambda x: data.factor * x)
        return weakref.ref(data)

    found = held()
    gc.collect()
    assert found() is None


def test_a_compiled_function_among_the_extra_arguments_is_traced_once():
    """So is the function of a `Partial`, whose arrays are traced."""
    traces, ones = [], jnp.ones(2)

    class Traced(Applied):
        def apply(self, updates, params, **extra):
            traces.append(1)
            return super().apply(updates, params, **extra)

    def by(function: Any, **extra: Any) -> Any:
        return Traced().update(ones, modulax.EmptyState(), function=function, **extra)[0]

    compiled = jax.jit(lambda x: 2.0 * x)
    for _ in range(2):
        np.testing.assert_array_equal(by(compiled, flag=True, name="a", dtype=jnp.dtype("int8"), nothing=None), 2.0)
    assert len(traces) == 1
    for factor in (2.0, 3.0):
        np.testing.assert_array_equal(by(jax.tree_util.Partial(jnp.multiply, jnp.full(2, factor))), factor)
    assert len(traces) == 2
    for factor in (2.0, 3.0):
        np.testing.assert_array_equal(by(jax.tree_util.Partial(jnp.multiply, 1.0), other=[Times(factor)]), 1.0)
    assert len(traces) == 4


def test_in_a_function_of_the_user_entry_points_are_entry_points():
    """A whole model can have an optimizer of its own there."""
    where: dict[str, bool] = {}
    model = {"w": jnp.ones(2), "activation": jnp.tanh}

    def user(name: str, result: Any = None) -> Any:
        def function(*args: Any, **kwargs: Any) -> Any:
            where[name] = tracing.is_tracing()
            modulax.Adam(0.1).init(model)
            return args[0] if result is None else result(*args)

        return function

    def number(*args: Any) -> Any:
        return jnp.asarray(0.5)

    class Stateful:
        init = staticmethod(user("schedule.init", number))
        update = staticmethod(user("schedule.update", number))

        def __call__(self, state: Any, **extra: Any) -> Any:
            return user("schedule.call", number)()

    sgd, x = modulax.SGD(0.1), jnp.ones(2)
    skip = user("should_skip", lambda *args: (jnp.zeros((), bool), ()))
    transforms = {
        "value_fn": modulax.Chain(sgd, modulax.ScaleByBacktrackingLinesearch(2)),
        "obj_fn": modulax.HutchinsonDiagonal(0),
        "grad_fn": modulax.SAM(sgd, sgd, opaque_mode=True),
        "schedule": modulax.SGD(user("schedule", number)),
        "stateful": modulax.SGD(Stateful()),
        "mask": modulax.Masked(sgd, user("mask", lambda params: True)),
        "should_skip": modulax.MultiSteps(sgd, 1, should_skip=skip),
        "condition": modulax.ConditionallyMask(sgd, user("condition", lambda step: step >= 0)),
        "stateless": modulax.Stateless(user("stateless")),
        "leafwise": modulax.Stateless(user("leafwise"), leafwise=True),
        "snapshot": modulax.Snapshot("norm", user("snapshot", modulax.tree.norm)),
        "measure": modulax.Monitor({"norm": user("measure", modulax.tree.norm)}),
        "clip_value_fn": modulax.ScaleByADOPT(clip_value_fn=user("clip_value_fn", number)),
        "decay_rate_fn": modulax.ScaleByFactoredRMS(decay_rate_fn=user("decay_rate_fn", number)),
    }
    extra = {
        "value_fn": {"value_fn": user("value_fn", jnp.sum), "value": x.sum(), "grad": x},
        "obj_fn": {"obj_fn": user("obj_fn", jnp.sum)},
        "grad_fn": {"grad_fn": user("grad_fn", lambda x, i: x)},
    }
    for name, transform in transforms.items():
        transform.update(x, transform.init(x), x, **extra.get(name, {}))
    assert set(where) == transforms.keys() - {"stateful"} | {"schedule.init", "schedule.update", "schedule.call"}
    assert not any(where.values()), where
