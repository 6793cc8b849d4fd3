"""Hypergradients within the ranges of hyperparameters, and the checkpointed scan."""

import ast
import math
from typing import Any

import chex
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

import modulax as mx
from modulax import sweeps

CURVATURES = jnp.linspace(0.1, 1.0, 4)
INF = math.inf


def train(optimizer: Any, scale: Any = 1.0, *, scan: Any = sweeps.checkpointed_scan, steps: int = 20) -> Any:
    """The loss after some steps on a quadratic."""

    def step(carry: Any, _: None) -> Any:
        params, state = carry
        return optimizer.step(CURVATURES * params, state, params), None

    params = scale * jnp.ones(4)
    (params, _), _ = scan(step, (params, optimizer.init(params)), length=steps)
    return 0.5 * jnp.sum(CURVATURES * params**2)


def test_derivatives_follow_the_chain_rule():
    optimizer = mx.SGD(0.05, momentum=0.6)
    loss_and_grad = sweeps.hypergradient(train, optimizer, "learning_rate", momentum=(0.5, 0.9))
    assert repr(loss_and_grad) == "Hypergradient(SGD: learning_rate, momentum)"
    assert loss_and_grad.bounds == {"learning_rate": (0, INF), "momentum": (0.5, 0.9)}
    np.testing.assert_allclose(loss_and_grad.start["learning_rate"], math.log(0.05), rtol=1e-6)
    np.testing.assert_allclose(loss_and_grad.start["momentum"], math.log(0.1 / 0.3), rtol=1e-5)
    loss, grads = loss_and_grad(loss_and_grad.start)
    expected, direct = jax.jit(jax.value_and_grad(lambda o: train(o, scan=jax.lax.scan)))(optimizer)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    np.testing.assert_allclose(grads["learning_rate"], 0.05 * direct.learning_rate, rtol=1e-4)
    np.testing.assert_allclose(grads["momentum"], direct.momentum * 0.1 * 0.3 / 0.4, rtol=1e-4)
    frozen = sweeps.hypergradient(train, mx.freeze_hyperparameters(optimizer), "learning_rate", momentum=(0.5, 0.9))
    chex.assert_trees_all_close(frozen(frozen.start), (loss, grads), rtol=1e-5)
    # Further arguments of the training, here the size of the parameters.
    np.testing.assert_allclose(loss_and_grad(loss_and_grad.start, jnp.array(2.0))[0], 4 * loss, rtol=1e-5)


def test_only_what_is_named_is_learned():
    schedule = mx.schedules.PiecewiseInterpolate("linear", 0.1, {10: 0.5, 20: 0.2})
    optimizer = mx.Chain(mx.ClipByGlobalNorm(1.0), mx.AdamW(schedule, weight_decay=0.0))
    every = sweeps.hypergradient(train, optimizer, "learning_rate")
    prefix = next(iter(every.start)).rpartition(".")[0]
    inside = {"init_value", "boundaries.0", "boundaries.1", "scales.0", "scales.1"}
    assert every.start.keys() == {f"{prefix}.{name}" for name in inside}
    some = sweeps.hypergradient(train, optimizer, "learning_rate.scales", "b?", weight_decay=(-INF, INF))
    learned = {"learning_rate.scales.0", "learning_rate.scales.1", "b1", "b2", "weight_decay"}
    assert {name.rpartition("adamw.")[2] for name in some.start} == learned
    assert {pair for name, pair in some.bounds.items() if "scales" in name} == {(0, INF)}
    assert {pair for name, pair in some.bounds.items() if name.endswith(("b1", "b2"))} == {(0, 1)}
    changed = some.optimizer({name: x + 0.5 for name, x in some.start.items()}).hyperparameters()
    same = some.optimizer(some.start).hyperparameters()
    for name, value in optimizer.hyperparameters().items():
        np.testing.assert_allclose(same[name], value, rtol=1e-5)
        assert (changed[name] != value) == (name in some.start)
        assert changed[name].dtype == value.dtype


def test_numbers_of_a_schedule_at_an_end_of_their_interval_stay(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as for users: annotations are not checked
    schedule = (0.5 * mx.schedules.Linear(0.1, 0.2, 0.9)).over(10)
    found = sweeps.hypergradient(train, mx.SGD(schedule), "learning_rate")
    begin = "learning_rate.schedule.right.transition_begin"
    assert begin in mx.SGD(schedule).hyperparameters()
    assert "learning_rate.schedule.right.end_value" in found.start
    assert begin not in found.start
    changed = found.optimizer({name: x + 0.1 for name, x in found.start.items()}).hyperparameters()
    assert changed[begin] == 0
    with pytest.raises(ValueError, match="is learned within the open interval") as refused:
        sweeps.hypergradient(train, mx.SGD(schedule), begin)
    assert call_in(refused, "**") == f'**{{"{begin}": (low, high)}}'
    bounds: dict[str, Any] = {begin: (-1.0, 1.0)}
    assert sweeps.hypergradient(train, mx.SGD(schedule), **bounds).bounds == bounds
    with pytest.raises(ValueError, match="must be a pair of bounds") as refused:
        sweeps.hypergradient(train, mx.SGD(schedule), **{begin: 0.0})  # type: ignore
    assert call_in(refused, "**") == f'**{{"{begin}": (0.5, 0.99)}}'


def call_in(refused: Any, begin: str) -> str:
    """The code in a message that begins with something, which Python must be able to read."""
    (code,) = (part for part in str(refused.value).split("`") if part.startswith(begin))
    ast.parse(f"f({code})")
    return code


def test_values_stay_inside_their_interval():
    optimizer = mx.AdamW(0.1, weight_decay=-0.5)
    found = sweeps.hypergradient(train, optimizer, "b2", "weight_decay", learning_rate=(1e-3, 1.0), b1=(-INF, INF))
    assert found.bounds["weight_decay"] == (-INF, INF)  # neither its declaration nor its sign forbids a negative one
    for x in (-200.0, -20.0, 20.0, 200.0):
        inside = found.optimizer(dict.fromkeys(found.start, jnp.array(x)))
        assert 0 <= inside.b2 < 1
        assert 1e-3 <= inside.learning_rate < 1
        assert inside.b1 == inside.weight_decay == x


def test_learns_a_learning_rate_that_is_a_hundred_times_too_small():
    rates = sweeps.grid(mx.SGD(1.0), learning_rate=np.geomspace(1e-3, 10.0, 32))
    row = sweeps.run(rates, lambda o, key: train(o, steps=4), progress=False, devices=1).best()[1]
    begin = mx.SGD(row["learning_rate"] / 100)
    loss_and_grad = sweeps.hypergradient(lambda o: train(o, steps=4), begin, "learning_rate")
    values, outer = loss_and_grad.start, mx.Lion(mx.schedules.CosineDecay(0.3, 50), b1=0.5, b2=0.5)
    state = outer.init(values)
    for _ in range(50):
        _, grads = loss_and_grad(values)
        values, state = outer.step(grads, state, values)
    assert loss_and_grad(values)[0] < 1.05 * row["metric"]


def test_what_train_returns():
    optimizer = mx.SGD(0.1)
    with_aux = sweeps.hypergradient(
        lambda o: (train(o, steps=2), {"rate": o.learning_rate}), optimizer, "learning_rate", has_aux=True
    )
    (loss, aux), grads = with_aux(with_aux.start)
    np.testing.assert_allclose(aux["rate"], 0.1, rtol=1e-6)
    assert loss.shape == grads["learning_rate"].shape == ()
    for wrong, message in (
        (lambda o: {"loss": o.learning_rate}, r"a real scalar, and it returned an object of type `dict`"),
        (lambda o: o.learning_rate * jnp.ones(3), r"it returned float32\[3\]"),
        (lambda o: (o.learning_rate * 1, None), r"of type `tuple`. For metrics .* `has_aux=True`"),
    ):
        with pytest.raises(TypeError, match=message):
            sweeps.hypergradient(wrong, optimizer, "learning_rate")(with_aux.start)
    with pytest.raises(TypeError, match=r"must return a pair, `\(loss, aux\)`"):
        sweeps.hypergradient(train, optimizer, "learning_rate", has_aux=True)(with_aux.start)


def test_wrong_calls(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as for users: annotations are not checked
    call: Any = sweeps.hypergradient
    sgd = mx.SGD(0.1)
    for wrong, message in (
        (lambda: call(train, sgd, "lr"), r"\(lr=...\)`.*Did you mean `learning_rate`"),
        (lambda: call(train, sgd, "nesterov"), "is not a hyperparameter, so the loss has"),
        (lambda: call(train, sgd), "needs the name of at least one hyperparameter"),
        (lambda: call(train, mx.AdamW(0.1, b1=0.0), "b1"), r"interval \(0, 1\).*`b1=\(low, high\)`"),
        (lambda: call(train, sgd, learning_rate=(0.2, 1)), r"is 0.1, and it is learned within"),
        (lambda: call(train, sgd, learning_rate=0.2), "must be a pair of bounds"),
        (lambda: call(train, sgd, learning_rate=(1.0, 0.2)), "with the lower bound first"),
        (lambda: call(train, sgd, learning_rate=(-INF, 1.0)), "so must be the other"),
    ):
        with pytest.raises(ValueError, match=message):
            wrong()
    with pytest.raises(TypeError, match="needs the training as a function"):
        call(sgd, sgd, "learning_rate")
    with pytest.raises(TypeError, match="must be a transform"):
        call(train, train, "learning_rate")


@pytest.mark.parametrize("n, segments", [(1, None), (11, None), (3, 20), (10, 3)])
def test_the_checkpointed_scan_is_a_scan(n: int, segments: int | None):
    def body(carry: Any, x: Any) -> Any:
        carry = jnp.sin(carry + x["a"])
        return carry, (carry**2, x["a"])

    xs = {"a": jnp.linspace(0.0, 1.0, 2 * n).reshape(n, 2)}

    def total(scan: Any, init: Any, xs: Any) -> Any:
        carry, (squares, copies) = scan(body, init, xs)
        return jnp.sum(carry) + jnp.sum(squares * jnp.arange(n)[:, None].astype(float)), copies

    def ours(*args: Any) -> Any:
        return sweeps.checkpointed_scan(*args, segments=segments)

    given = jnp.ones(2), xs
    expected, copies = jax.value_and_grad(lambda *x: total(jax.lax.scan, *x), (0, 1), has_aux=True)(*given)
    found, same = jax.jit(jax.value_and_grad(lambda *x: total(ours, *x), (0, 1), has_aux=True))(*given)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), (expected, copies), (found, same))


def test_the_checkpointed_scan_needs_less_memory():
    def bytes_of(scan: Any) -> int:
        def loss(x: Any) -> Any:
            carry, _ = scan(lambda c, _: (jnp.sin(c), None), x, length=400)
            return jnp.sum(carry)

        need: Any = jax.jit(jax.grad(loss)).lower(jnp.ones(1000)).compile().memory_analysis()
        return need.temp_size_in_bytes

    assert bytes_of(sweeps.checkpointed_scan) < bytes_of(jax.lax.scan) / 5


def test_the_length_of_a_checkpointed_scan():
    calls: list[tuple[Any, dict[str, Any], str]] = [
        ((jnp.ones(3),), {"length": 4}, "one number of steps, by `length` or by the leading axis"),
        ((), {}, "one number of steps"),
        ((), {"length": 4, "segments": 0}, r"segments=...\)` must be a positive integer"),
    ]
    for given, options, message in calls:
        with pytest.raises(ValueError, match=message):
            sweeps.checkpointed_scan(lambda c, x: (c, x), 0.0, *given, **options)
