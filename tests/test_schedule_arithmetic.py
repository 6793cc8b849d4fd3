"""Arithmetic on schedules: the values, the numbers that stay hyperparameters, what is printed and what is refused."""

import re
from typing import Any

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import modulax as mx
from modulax import schedules as S  # noqa: N812

s, t = S.Linear(1.0, 0.0, 10), S.CosineDecay(0.5, 8)


def by_hand(step: Any) -> tuple[Any, Any]:
    """The values of `s` and `t`."""
    return 1 - np.minimum(step / 10, 1), 0.25 * (1 + np.cos(np.pi * np.minimum(step / 8, 1)))


def f(step: Any) -> Any:
    return step + 1


# An expression, its values in terms of those of `s` and `t` and of the step, and what it prints as.
EXPRESSIONS: list[tuple[Any, Any, str]] = [
    (-s, lambda a, b, n: -a, "-s"),
    (+s, lambda a, b, n: a, "s"),
    (2 * s, lambda a, b, n: 2 * a, "2.0 * s"),
    (s * 2, lambda a, b, n: 2 * a, "s * 2.0"),
    (s / 4, lambda a, b, n: a / 4, "s / 4.0"),
    (3 / (1 + t), lambda a, b, n: 3 / (1 + b), "3.0 / (1.0 + t)"),
    (s + t, lambda a, b, n: a + b, "s + t"),
    (s - 1, lambda a, b, n: a - 1, "s - 1.0"),
    (1 - s - t, lambda a, b, n: 1 - a - b, "1.0 - s - t"),
    (1 - (s - t), lambda a, b, n: 1 - (a - b), "1.0 - (s - t)"),
    (-(s * t) / (s + 1), lambda a, b, n: -(a * b) / (a + 1), "-(s * t) / (s + 1.0)"),
    (s / (2 / (t + 1)), lambda a, b, n: a / (2 / (b + 1)), "s / (2.0 / (t + 1.0))"),
    (2 * (s + t) * -t, lambda a, b, n: 2 * (a + b) * -b, "2.0 * (s + t) * -t"),
    (np.float64(2) * s, lambda a, b, n: 2 * a, "2.0 * s"),
    (np.array(2) - s, lambda a, b, n: 2 - a, "2.0 - s"),
    (jnp.asarray(2.0) / (s + 1), lambda a, b, n: 2 / (a + 1), "2.0 / (s + 1.0)"),
    (s * jnp.asarray(2), lambda a, b, n: 2 * a, "s * 2.0"),
    (f * s, lambda a, b, n: (n + 1) * a, "WrappedSchedule(function=f) * s"),
    (s.clip(0.2, 0.5), lambda a, b, n: np.clip(a, 0.2, 0.5), "Clipped(schedule=s, low=0.2, high=0.5)"),
    (s.clip(high=t), lambda a, b, n: np.minimum(a, b), "Clipped(schedule=s, high=t)"),
]


def test_values():
    steps = jnp.arange(12)
    found = jax.jit(lambda: [jax.vmap(expression)(steps) for expression, _, _ in EXPRESSIONS])()
    for (expression, expected, _), values in zip(EXPRESSIONS, found, strict=True):
        wanted = expected(*by_hand(np.arange(12)), np.arange(12))
        np.testing.assert_allclose(values, wanted, rtol=1e-5, atol=1e-6, err_msg=repr(expression))


def test_an_expression_prints_as_it_is_written():
    for expression, _, text in EXPRESSIONS:
        pieces = [{"s": repr(s), "t": repr(t)}.get(x, x) for x in re.split(r"\b", text)]
        assert " ".join(repr(expression).split()).replace("( ", "(").replace(", )", ")") == "".join(pieces)
        if "function" not in text:
            assert eqx.tree_equal(eval(repr(expression), dict(vars(S))), expression), text


def test_numbers_of_an_expression_are_hyperparameters():
    optimizer = mx.AdamW(s, weight_decay=0.1 * s / 4)
    assert {k: float(x) for k, x in optimizer.weight_decay.hyperparameters().items() if "transition" not in k} == {
        "left.left": np.float32(0.1),
        "left.right.init_value": 1,
        "left.right.end_value": 0,
        "right": 4,
    }
    changed = optimizer.replace(**{"weight_decay.right": 2.0, "*.init_value": 3.0})
    np.testing.assert_allclose(changed.weight_decay(0), 0.1 * 3 / 2, rtol=1e-6)

    @jax.jit
    @chex.assert_max_traces(n=1)
    def value(optimizer: Any, step: Any) -> Any:
        return optimizer.weight_decay(step)

    for factor in (4.0, 5.0, jnp.asarray(6.0)):
        np.testing.assert_allclose(value(optimizer.replace(**{"weight_decay.right": factor}), 5), 0.05 / factor, 1e-6)
    derivative = jax.jit(jax.grad(lambda x: (x * s / 4 + 1 / x)(5)))(2.0)  # made from a tracer
    np.testing.assert_allclose(derivative, 0.5 / 4 - 1 / 4, rtol=1e-6)


def test_a_batch_of_expressions():
    batch = eqx.filter_vmap(lambda x: (x * s).clip(high=x / 4))(jnp.asarray([1.0, 2.0, 3.0]))
    np.testing.assert_allclose(eqx.filter_vmap(lambda b: b(9))(batch), [0.1, 0.2, 0.3], rtol=1e-6)
    assert "float32[3] * Linear" in repr(batch).replace("\n", "")


def test_an_optimizer_follows_an_expression():
    optimizer = mx.Chain(mx.SGD(2 * s, momentum=1 - s), mx.Identity())
    g = jnp.ones(2)
    state = optimizer.init(g)
    trace = 0.0
    for step in range(3):
        rate = 1 - step / 10
        now = {name.rpartition(".")[2]: float(x) for name, x in optimizer.hyperparameters(state).items()}
        assert now == pytest.approx({"learning_rate": 2 * rate, "momentum": step / 10}, abs=1e-6)
        u, state = optimizer.update(g, state)
        trace = 1 + step / 10 * trace
        np.testing.assert_allclose(u, -2 * rate * trace * g, rtol=1e-5)


def test_describe_shows_the_expression():
    description = mx.describe(mx.AdamW(-s, weight_decay=0.1 * s / 4 + t.clip(0, 1)), {"w": jnp.ones(2)})
    rows, notes = description.leaves, [note.partition(": ") for note in description.notes]
    assert ("`learning_rate` follows `-Linear`", f"{rows[0].learning_rate}.") in [(a, b) for a, _, b in notes]
    decay = "`weight_decay` follows `0.1 * Linear / 4.0 + Clipped`"
    assert (decay, f"{rows[0].weight_decay}.") in [(a, b) for a, _, b in notes]
    assert "→" in rows[0].learning_rate


class Sum(mx.AbstractStatefulSchedule):
    """The sum of the losses until now."""

    start: mx.Hyperparameter = mx.number(1.0)

    def init(self) -> Any:
        return self.start

    def update(self, state: Any, *, value: Any, **extra: Any) -> Any:
        return state + value

    def __call__(self, state: Any, **extra: Any) -> Any:
        return state


def test_a_stateful_schedule_is_an_operand():
    optimizer: Any = mx.SGD(((2 * Sum() - s) / 2).clip(high=5.0), momentum=-Sum(0.0))
    g = jnp.ones(2)
    state, rates = optimizer.init(g), []
    for value in (2.0, 1.0, 4.0, 0.0):
        now = optimizer.hyperparameters(state)
        rates.append(float(now["learning_rate"]))
        _, state = optimizer.update(g, state, value=value)
    np.testing.assert_allclose(rates, [1 - 0.5, 3 - 0.45, 4 - 0.4, 5], rtol=1e-6)
    names = mx.tree.leaf_paths(state.schedule_states)
    assert names == ["learning_rate.schedule.left.left.right", "momentum.right"]
    with pytest.raises(ValueError, match=r"`Sum` is a stateful schedule.*`optimizer.hyperparameters\(state\)`"):
        (2 * Sum())(3)


def test_other_operands_are_refused():
    for other in ("a", [1], None, True, 1j, mx.SGD(0.1), mx.SGD):
        for expression in (lambda x: s * x, lambda x: x / s, lambda x: s + x, lambda x: x - s):
            with pytest.raises(TypeError, match=r"unsupported operand type|can't multiply|can only concatenate"):
                expression(other)
    with pytest.raises(ValueError, match=r"`x / schedule`: `x` must be a scalar.*\(3,\).*lambda x: x / schedule\)"):
        _ = np.ones(3) / s
    with pytest.raises(ValueError, match=r"`schedule - x`: `x` must be a scalar.*lambda x: schedule - x\)"):
        _ = s - jnp.ones(3)
    with pytest.raises(ValueError, match=r"`Expression\(right=...\)` is a divisor: it must not be zero, got 0.0"):
        _ = s / 0
    with pytest.raises(ValueError, match='only `"-"` works without `left`'):
        S.Expression("+", None, s)
    with pytest.raises(ValueError, match="needs a bound"):
        s.clip()
