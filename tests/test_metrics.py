"""`metrics(state)`: what it lists, under which names, and what it costs inside a compiled step."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import modulax as mx
from modulax.testing import default_params
from modulax.tree import norm

from .instances import TRANSFORMS, Instance
from .loops import each

PARAMS = {"w": jnp.ones((3, 2)), "b": jnp.ones(2)}
FALLING = mx.schedules.Linear(0.2, 0.0, transition_steps=4)


def by_layer(updates: Any) -> Any:
    return {name: norm(layer) for name, layer in updates.items()}


def guarded(inner: mx.AbstractTransform) -> mx.AbstractTransform:
    return mx.ApplyIfFinite(inner, 3)


def test_everything_is_of_the_last_step_that_was_taken():
    """Also the rates."""
    optimizer = mx.Chain(
        mx.Monitor({"grad_norm": norm, "norms": by_layer, "gradient_of_b": lambda u: u["b"]}),
        guarded(mx.AdamW(FALLING, b1=mx.schedules.Linear(0.9, 0.94, transition_steps=4))),
        mx.ReduceOnPlateau(0.5, patience=1),
    )

    @jax.jit
    def train_step(optimizer, params, state, scale):
        grads = jax.tree.map(lambda p: scale * jnp.ones_like(p), params)
        params, state = optimizer.step(grads, state, params, value=1.0)
        return params, state, optimizer.metrics(state)

    params, state, last = PARAMS, optimizer.init(PARAMS), {}
    for scale in (1.0, math.nan, 2.0):
        params, state, last = train_step(optimizer, params, state, scale)
    expected = {
        "learning_rate": 0.15,  # two steps were taken
        "b1": 0.91,
        "grad_norm": 2.0 * math.sqrt(8),
        "norms.w": 2.0 * math.sqrt(6),
        "norms.b": 2.0 * math.sqrt(2),
        "notfinite_count": 0,
        "total_notfinite": 1,
        "step": 2,
        "scale": 0.25,
    }
    assert last.keys() == expected.keys()
    np.testing.assert_allclose([last[name] for name in expected], list(expected.values()), rtol=1e-6)


def test_names_are_as_short_as_they_can_be():
    """A key of a part tells two apart; where no key does, the whole path; what all have in common is left out."""
    groups = mx.Partition(
        {"body": guarded(mx.AdamW(1e-3)), "head": guarded(mx.SGD(FALLING))}, mx.by_path({"w": "body", "b": "head"})
    )
    chain = mx.Chain(groups, mx.ReduceOnPlateau())
    names = ["learning_rate", "notfinite_count", "total_notfinite", "step"]
    found = chain.metrics(chain.init(PARAMS))
    assert found.keys() == {f"{group}.{name}" for group in ("body", "head") for name in names} | {"scale"}
    np.testing.assert_allclose([found["body.learning_rate"], found["head.learning_rate"]], [1e-3, 0.2], rtol=1e-6)

    twice = guarded(guarded(mx.SGD(0.1)))
    counters = ["notfinite_count", "total_notfinite"]
    found = twice.metrics(twice.init(PARAMS))
    assert found.keys() == {"learning_rate", "step", *counters, *(f"inner_state.{name}" for name in counters)}

    of_steps = mx.MultiSteps(mx.AdamW(1e-3), 2, should_skip=mx.skip_not_finite)
    found = of_steps.metrics(of_steps.init(PARAMS))
    assert found.keys() == {"learning_rate", "gradient_step", "step", "should_skip", "num_not_finite"}


def test_those_of_flattened_parameters_are_those_without():
    inner = mx.Chain(mx.Monitor({"norm": norm}), mx.SkipSpikes(mx.AdamW(1e-3), 4))
    found, expected = (x.metrics(x.update(PARAMS, x.init(PARAMS), PARAMS)[1]) for x in (mx.Flatten(inner), inner))
    assert found.keys() == expected.keys()
    np.testing.assert_allclose([*found.values()], [*expected.values()], rtol=1e-6)


def test_nothing_is_lost_where_a_name_looks_like_a_path():
    def of_name(name: str, value: float) -> mx.AbstractTransform:
        return mx.Monitor({name: lambda updates: value})

    optimizer = mx.Chain(a=of_name("norm", 1.0), b=of_name("norm", 2.0), c=of_name("a.norm", 3.0))
    _, state = optimizer.update(PARAMS, optimizer.init(PARAMS))
    assert sorted(float(x) for x in optimizer.metrics(state).values()) == [1.0, 2.0, 3.0]


def assert_rates(optimizer: Any, params: Any, steps: int, expected: dict[str, float]) -> None:
    """The learning rates that are listed after some steps, by what stands before `learning_rate` in their names."""
    state = optimizer.init(params)
    for _ in range(steps):
        _, state = optimizer.update(params, state, params)
    found = {name: x for name, x in optimizer.metrics(state).items() if name.split(".")[-1] == "learning_rate"}
    names = {f"{name}.learning_rate".lstrip("."): x for name, x in expected.items()}
    assert found.keys() == names.keys()
    np.testing.assert_allclose([found[name] for name in names], list(names.values()), rtol=1e-6)


def test_the_rate_of_every_group_is_listed():
    """Those of groups, of layers, of stacked blocks, and of the AdamW of Muon, at the step that was made."""
    params = {"blocks": [jnp.ones(2), jnp.ones(2)], "embed": jnp.ones(2)}
    groups = mx.groups(mx.SGD(FALLING), {"embed": {"learning_rate": 0.3}})
    layers = mx.layerwise_decay(mx.SGD(FALLING), params, 0.5)
    stacked = mx.Chain(mx.SGD(FALLING), mx.ScaleByDepth(0.5, mx.by_path({"embed": (1, 0), "*": 0})))
    by_path = mx.Chain(mx.SGD(FALLING), mx.ScaleByPath({"embed": 2.0, "*": 1.0}))
    blocks = {"embed": 0.25, "blocks.0": 0.5, "blocks.1": 1.0}
    cases = [
        (groups, {"default": 0.15, "embed": 0.3}),
        (layers, {"": 0.15} | {name: 0.15 * x for name, x in blocks.items()}),
        (stacked, {"": 0.15, "embed.0": 0.075, "embed.1": 0.15, "*": 0.15}),
        (by_path, {"": 0.15, "embed": 0.3, "*": 0.15}),
        # Which of the multipliers apply in which group, or beside others, is not known without the parameters.
        (mx.Chain(*by_path, mx.ScaleByPath({"blocks.*": 0.5, "*": 1.0})), {"": 0.15}),
        (mx.Chain(groups, by_path[1]), {"default": 0.15, "embed": 0.3}),
    ]
    for optimizer, expected in cases:
        assert_rates(optimizer, params, 2, expected)
    muon = mx.Muon(0.1, adam_learning_rate=FALLING)
    assert muon.metrics(muon.init(params)).keys() >= {"learning_rate", "adam_learning_rate"}


def test_a_listed_rate_is_that_of_a_parameter():
    """Beside groups and frozen parameters, moments tell which there are; and all factors count that follow."""
    params = {"blocks": [jnp.ones((2, 2)), jnp.ones(2)], "embed": jnp.ones(2)}
    layers = mx.layerwise_decay(mx.AdamW(1.0), params, 0.5)
    of_layers = {"blocks.0": 0.5, "blocks.1": 1.0}
    half = mx.ScaleByPath({"embed": mx.schedules.Linear(0.5, 0.25, 1), "*": 1.0})
    not_embed = mx.by_path({"embed": True, "*": False})

    made = lambda lr: mx.Chain(mx.SGD(lr), half)  # noqa: E731
    two = mx.Chain(mx.Muon(0.1, adam_learning_rate=0.2), mx.ScaleByPath({"*": 0.5}))
    by_regex = mx.ScaleByDepth(0.5, mx.by_regex({"embed": 1, "blocks.*": 0}))
    cases = [
        (mx.selective_transform(layers, freeze_mask=not_embed), {"": 1.0, **of_layers}),
        (mx.Chain(layers, mx.Freeze(not_embed)), {"": 1.0, **of_layers}),
        (mx.LowBit(layers), {"": 1.0, "embed": 0.25, **of_layers}),
        (
            mx.groups(layers, {"embed": {"learning_rate": 2.0}}),
            {"embed.adamw": 2.0, "default.adamw": 1.0, "embed.adamw.embed": 0.5}
            | {f"default.adamw.{name}": x for name, x in of_layers.items()},
        ),
        (mx.groups(made(1.0), {"embed": {"learning_rate": 2.0}}), {"embed.sgd": 2.0, "default.sgd": 1.0}),
        (mx.Chain(mx.SGD(1.0), mx.Scale(0.5), half), {"": 1.0, "embed": 0.25, "*": 0.5}),
        (mx.Chain(mx.SGD(1.0), mx.Scheduled(half), mx.Scale(0.5)), {"": 1.0, "embed": 0.25, "*": 0.5}),
        (mx.Chain(mx.Adam(1.0), half, half), {"": 1.0, "embed.embed": 0.25, "*.*": 1.0}),
        (mx.Chain(mx.SGD(1.0), by_regex), {"": 1.0, "embed": 0.5, "blocks.*": 1.0}),
        (mx.FromFactory(made, lr=0.1), {"": 0.1, "embed": 0.05, "*": 0.1}),
        (mx.inject_hyperparams(lambda lr: mx.Adam(lr))(lr=0.1), {"": 0.1}),
        (two, {"": 0.1, "*.muon": 0.05, "*.adam": 0.1}),
    ]
    for optimizer, expected in cases:
        assert_rates(optimizer, params, 1, expected)


def test_learning_rates_that_a_state_holds_are_listed_too():
    searched = mx.Chain(mx.Scale(-1.0), mx.ScaleByBacktrackingLinesearch(max_backtracking_steps=2))
    assert searched.metrics(searched.init(PARAMS)).keys() == {"learning_rate"}
    injected = mx.inject_hyperparams(mx.SGD)(learning_rate=FALLING)
    assert float(injected.metrics(injected.init(PARAMS))["learning_rate"]) == pytest.approx(0.2)
    prodigy = mx.Prodigy()
    assert float(prodigy.metrics(prodigy.init(PARAMS))["estim_lr"]) == pytest.approx(1e-6)


def test_the_rate_of_schedule_free_optimizers_has_their_warm_up():
    inners = mx.ScheduleFreeSGD(FALLING, 10), mx.ScheduleFreeSGD(FALLING, 10, follow="optax")
    for inner, first in zip(inners, (1, 0), strict=True):
        optimizer = mx.Chain(mx.Clip(1.0), inner)
        state, seen = optimizer.init(PARAMS), []
        for _ in range(2):
            _, state = optimizer.update(PARAMS, state, PARAMS)
            seen.append(float(optimizer.metrics(state)["learning_rate"]))
        rates = [float(FALLING(t)) * (t + first) / 10 for t in range(2)]
        np.testing.assert_allclose(seen, rates, rtol=1e-6)
        assert optimizer.hyperparameters(state)["warmup_steps"] == 10
        for module in (inner, optimizer):  # the mapping of `Injected` has what is given, alone and in a chain
            injected: Any = mx.Injected(module)
            _, inside = injected.update(PARAMS, injected.init(PARAMS), PARAMS)
            assert inside.hyperparams["learning_rate"] == FALLING(0)


def test_a_stateful_schedule_of_a_schedule_has_its_value_at_the_next_step():
    class Halved(mx.AbstractStatefulSchedule):
        first: Any = mx.required_number()

        def init(self):
            return jnp.ones(())

        def update(self, state, **extra):
            return state / 2

        def __call__(self, state, **extra):
            return self.first * state

    rates = Halved(FALLING), FALLING * Halved(1.0), (2 * FALLING).clip(high=0.3) * Halved(0.5)
    for rate, after in zip(rates, (FALLING(1) / 2, FALLING(1) / 2, 0.075), strict=True):
        optimizer: Any = mx.SGD(rate, momentum=FALLING)
        _, state = optimizer.update(PARAMS, optimizer.init(PARAMS))
        found, following = optimizer.metrics(state), optimizer.hyperparameters(state)
        assert found["learning_rate"] == following["learning_rate"] == pytest.approx(float(after))
        assert found["momentum"] == FALLING(0)  # at the last step


def test_a_state_declares_its_own():
    class CountingState(mx.AbstractState):
        calls: jax.Array = mx.shared(metric=True)
        hidden: jax.Array = mx.shared()

    class Counting(mx.AbstractTransform):
        def init(self, params):
            return CountingState(jnp.zeros((), jnp.int32), jnp.zeros(()))

        def update(self, updates, state, params=None, **extra):
            return updates, CountingState(state.calls + 1, state.hidden)

    counting = Counting()
    assert counting.metrics(counting.update(PARAMS, counting.init(PARAMS))[1]) == {"calls": 1}


def test_in_a_program_only_schedules_are_computed():
    optimizer = mx.Chain(mx.Monitor({"norm": norm}), guarded(mx.AdamW(1e-3)), mx.ReduceOnPlateau())
    state = optimizer.init(PARAMS)
    program = jax.make_jaxpr(lambda optimizer, state: optimizer.metrics(state))(optimizer, state)
    assert not program.eqns


@each({i.cls: i for i in reversed(TRANSFORMS)}.values())
def test_all_are_scalars(instance: Instance):
    def of_start(optimizer: Any, params: Any) -> Any:
        return optimizer.metrics(optimizer.init(params))

    metrics = jax.eval_shape(of_start, instance.make(), default_params())
    assert all(isinstance(name, str) and x.shape == () for name, x in metrics.items())
