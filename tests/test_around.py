"""What goes around an optimizer: which direction the signs of the gradient act on, and what is refused."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import modulax as mx

PARAMS = {"a": jnp.asarray([0.4, -0.1, 1.5]), "b": jnp.asarray([[0.3, -0.2]])}
GRADS = [
    {"a": jnp.asarray([1.0, -2.0, 0.5]), "b": jnp.asarray([[0.2, 1.0]])},
    {"a": jnp.asarray([-0.5, -1.0, 0.1]), "b": jnp.asarray([[-0.1, 2.0]])},
]
RATE = mx.schedules.Linear(0.1, 0.2, 5)
AROUND = {"Cautious": mx.Cautious, "Grams": mx.Grams}
each_container = pytest.mark.parametrize("around", AROUND.values(), ids=AROUND)


def ends(optimizers: dict[str, Any]) -> dict[str, Any]:
    """The parameters after two steps, between which some entries of the gradient change their sign."""

    def run(optimizer: Any, sign: float) -> Any:
        params, state = PARAMS, optimizer.init(PARAMS)
        for grads in GRADS:
            params, state = optimizer.step(jax.tree.map(lambda g: sign * g, grads), state, params)
        return params

    return jax.jit(lambda: {k: run(x, -1.0 if k == "maximized" else 1.0) for k, x in optimizers.items()})()


def assert_equal(a: Any, b: Any) -> None:
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-7), a, b)


@each_container
def test_it_knows_which_updates_point_against_the_gradient(around: Any):
    sgd, trace = mx.SGD(0.1, momentum=0.9), mx.Trace(0.9)
    found = ends(
        {
            "direction": mx.Chain(around(trace), mx.Scale(-0.1)),
            "optimizer": around(sgd),
            "plain": sgd,
            "container": around(mx.ApplyIfFinite(sgd, 3)),
            "another form": around(mx.Flatten(sgd)),
            "groups": around(
                mx.Partition({"x": sgd, "y": mx.Chain(trace, mx.Scale(-0.1))}, mx.by_path({"a": "x", "b": "y"}))
            ),
            "maximized": around(mx.Chain(mx.Scale(-1.0), sgd)),
            "optax": around(mx.from_optax(optax.sgd(0.1, 0.9)), descends=True),
            "a direction of optax": mx.Chain(around(mx.from_optax(optax.trace(0.9)), descends=False), mx.Scale(-0.1)),
        }
    )
    plain = found.pop("plain")
    for params in found.values():
        assert_equal(params, found["direction"])
    assert not np.allclose(plain["a"], found["direction"]["a"])


@each_container
def test_weight_decay_at_the_end_is_left_as_it_is(around: Any):
    decay, rate = mx.AddDecayedWeights(0.3), mx.ScaleByLearningRate(RATE)
    chain = mx.Chain(mx.Trace(0.9), decay, rate)
    found = ends(
        {
            "written out": mx.Chain(around(mx.Trace(0.9)), decay, rate),
            "chain": around(chain),
            "nested": around(mx.Chain(mx.Identity(), mx.Chain(mx.Trace(0.9), decay), rate, mx.Scale(1.0))),
            "schedule": around(mx.Chain(mx.Trace(0.9), decay, mx.ScaleBySchedule(-1.0 * RATE))),
            "whole": around(chain, descends=True),
            "whole container": around(mx.Scheduled(chain)),
        }
    )
    for name in ("chain", "nested", "schedule"):
        assert_equal(found[name], found["written out"])
    assert_equal(found["whole"], found["whole container"])
    assert not np.allclose(found["whole"]["a"], found["chain"]["a"])


@each_container
def test_what_it_says(around: Any):
    name = around.__name__
    notes = [
        (mx.AdamW(0.1), [f"`{name}` acts on the direction of `AdamW`, before its weight decay."]),
        (mx.Muon(0.01, weight_decay=0.1), [f"`{name}` acts on the whole step of `Muon`, weight decay included."]),
        (mx.SGD(0.1), []),
    ]
    for inner, said in notes:
        assert [x for x in mx.describe(around(inner), PARAMS).notes if "acts on" in x] == said
    remedies = [
        (mx.MultiSteps(mx.SGD(0.1), 2), rf"accumulates.* Write `MultiSteps\({name}\(\.\.\.\), \.\.\.\)`"),
        (mx.ParamEMA(mx.SGD(0.1)), rf"keeps parameters of its own.* Write `ParamEMA\({name}\(\.\.\.\)\)`"),
    ]
    for inner, remedy in remedies:
        with pytest.warns(mx.LikelyMistake, match=remedy):
            around(inner).init(PARAMS)
    around(mx.Tiger(1e-3)).init(PARAMS)  # whose `every_k` is no container's
    with pytest.raises(ValueError, match=rf"`{name}\(\.\.\., descends=True\)`"):
        around(mx.Chain(mx.Clip(1.0), mx.from_optax(optax.sgd(0.1))))
    with pytest.raises(ValueError, match=rf"`{name}` compares the updates.* takes those of each example"):
        around(mx.DPSGD(0.1, 1.0, 1.0, key=0))


def test_the_exact_form_of_variance_reduction_says_what_it_needs():
    params, grads = PARAMS, GRADS[0]
    optimizer = mx.MARS(0.1, exact=True)
    state = optimizer.init(params)
    with pytest.raises(
        ValueError, match=r"`MARS` needs `previous_grad`: call .*step\(grads, state, params, previous_g"
    ):
        optimizer.step(grads, state, params)
    rule = mx.ReduceVariance(exact=True)
    with pytest.raises(ValueError, match=r"gradient at the last parameters.* Missing, or of another shape: `b`"):
        rule.update(grads, rule.init(params), params, previous_grad=grads | {"b": jnp.ones(2)})
    with pytest.warns(mx.LikelyMistake, match="not `previous_grad`"):
        mx.MultiSteps(optimizer, 2).init(params)
    with pytest.raises(ValueError, match="`ReduceVariance` reads `previous_grad`"):
        mx.Stacked(mx.Chain(mx.ReduceVariance(exact=True), mx.ScaleByAdam()))
    with pytest.raises(ValueError, match=r"`MARSLion\(where=...\)` needs `True` or `False`"):
        mx.MARSLion(0.1, where=mx.by_path({"*": "matrix"})).init(params)


def test_a_filter_is_no_container():
    optimizer: Any = mx.AdamW(1e-3)
    with pytest.raises(ValueError, match=r"It is a transform.* write `Chain\(\.\.\., AdamW\(\.\.\.\)\)`"):
        mx.GrokFast(optimizer)


TURNING = mx.schedules.Linear(-0.1, 0.1, 1)


@pytest.mark.parametrize("after", [mx.ScaleBySchedule(TURNING), mx.Scale(TURNING)])
def test_the_sign_of_a_factor_is_that_of_its_step(after: Any):
    """Before a part that acts on whole arrays; the factor is negative at the first step, and positive after it."""
    chain = mx.Chain(mx.ScaleByAdam(), after, mx.Centralize())
    inner: Any = chain if isinstance(after, mx.ScaleBySchedule) else mx.Scheduled(chain)
    optimizer, params = mx.Cautious(inner), {"w": jnp.asarray([[1.0, -2.0], [3.0, 0.5]])}
    plain, state, states = inner.init(params), optimizer.init(params), []
    for _ in range(2):
        expected, plain = inner.update(params, plain, params)
        updates, state = optimizer.update(params, state, params)
        u, g = np.asarray(expected["w"]), np.asarray(params["w"])
        sign = -1 if not states else 1
        states.append(updates)
        agrees = sign * u * g > 0
        np.testing.assert_allclose(updates["w"], u * agrees / agrees.mean(), rtol=1e-6, atol=1e-6)
