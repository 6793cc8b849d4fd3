"""A second set of parameters: what is evaluated, through any nesting, and what it costs in low precision."""

from typing import Any

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import optax
import pytest

import modulax as mx
from modulax import compat, schedules

from .instances.averaging import TRANSFORMS
from .settings import jax_defaults

PARAMS = {"w": jnp.asarray([1.0, -2.0, 0.5]), "b": jnp.asarray(0.3, jnp.float32)}
BIAS = mx.by_path({"b": "bias", "*": "rest"})


def train(transform: Any, params: Any = None, steps: int = 6, rate_of_change: float = 1.0) -> tuple[Any, Any]:
    """Parameters and state after some steps down a bowl, and noise that depends on the step."""
    params = PARAMS if params is None else params

    @jax.jit
    def run(transform: Any, params: Any) -> Any:
        def body(carry: Any, t: Any) -> Any:
            params, state = carry
            grads = jtu.tree_map(lambda p: rate_of_change * p + jnp.cos(t).astype(p.dtype), params)
            return transform.step(grads, state, params), None

        return jax.lax.scan(body, (params, transform.init(params)), jnp.arange(steps, dtype=float))[0]

    return run(transform, params)


# --- Parameters to evaluate ------------------------------------------------------------------------


class AveragedState(mx.AbstractState):
    """The state of the transform inside, and the average."""

    inner_state: Any
    ema: Any


class Averaged(mx.AbstractContainer):
    """The moving average of the parameters that another transform would have evaluated."""

    inner: mx.AbstractTransform = mx.part()

    def init(self, params):
        return AveragedState(self.inner.init(params), jtu.tree_map(jnp.copy, params))

    def update(self, updates, state, params=None, **extra):
        updates, inner_state = self.inner.update(updates, state.inner_state, params, **extra)
        point = self.inner.eval_params(inner_state, mx.apply_updates(params, updates))
        return updates, AveragedState(inner_state, mx.incremental_update(point, state.ema, 0.5))

    def eval_params(self, state, params):
        return state.ema


def adversary() -> mx.Chain:
    return mx.Chain(mx.Normalize(), mx.SGD(0.05))


NESTED = {
    "alone": mx.ScheduleFreeAdamW(0.1),
    "chain": mx.Chain(mx.ClipByGlobalNorm(1.0), mx.ScheduleFree(mx.SGD(0.1), 0.1)),
    "partition": mx.Partition({"bias": mx.SGD(0.1), "rest": mx.ScheduleFreeSGD(0.1)}, BIAS),
    "two": mx.Partition({"bias": mx.Lookahead(mx.SGD(0.1), 4, 0.5), "rest": mx.ScheduleFreeSGD(0.1)}, BIAS),
    "masked": mx.Masked(mx.ScheduleFreeSGD(0.1), mx.by_path({"b": False, "*": True})),
    "multisteps": mx.MultiSteps(mx.Chain(mx.ScheduleFreeSGD(0.1)), 2),
    "injected": mx.Injected(mx.ScheduleFreeAdamW(schedules.Linear(0.1, 0.2, 5))),
    "scheduled": mx.Scheduled(mx.Lookahead(mx.Chain(mx.Trace(0.9), mx.Scale(-0.1)), 4, 0.5)),
    "adversary": mx.SAM(mx.ScheduleFreeSGD(0.1), adversary(), sync_period=4),
    "mechanic": mx.Lookahead(mx.Mechanize(mx.SGD(1.0)), 5, 0.5),
    "average": Averaged(mx.ScheduleFreeSGD(0.1)),
    "average of a chain": mx.Chain(mx.Clip(1.0), Averaged(mx.Chain(mx.ScheduleFreeAdamW(0.1)))),
}


@pytest.mark.parametrize("name", NESTED)
def test_what_was_evaluated_once_is_evaluated_again(name: str):
    transform = NESTED[name]
    params, state = train(transform)
    once = transform.eval_params(state, params)
    assert np.any(once["w"] != params["w"]), "these are the parameters that are trained"
    chex.assert_trees_all_equal(transform.eval_params(state, once), once)
    unmoved = once["b"] == params["b"]
    assert unmoved == (name in ("partition", "masked"))


def test_where_the_average_lies():
    """For each of the containers, the mean that it keeps, found by hand."""
    for name in ("alone", "chain", "multisteps", "injected"):
        params, state = train(NESTED[name])
        chex.assert_trees_all_equal(
            NESTED[name].eval_params(state, params), compat.contrib.schedule_free_eval_params(state, params)
        )
    params, state = train(NESTED["average"])
    chex.assert_trees_all_equal(NESTED["average"].eval_params(state, params), state.ema)
    optimizer, ema = mx.ScheduleFreeSGD(0.1), PARAMS
    for n in range(1, 7):
        params, inner = train(optimizer, steps=n)
        ema = mx.incremental_update(optimizer.eval_params(inner, params), ema, 0.5)
    chex.assert_trees_all_close(state.ema, ema, rtol=1e-6)


@pytest.mark.filterwarnings("ignore:.*two optimizers")
def test_evaluation_returns_the_whole_model():
    model = {**PARAMS, "activation": jax.nn.relu, "steps": 3}
    optimizer = mx.ScheduleFreeSGD(0.1)
    params, state = train(optimizer)
    trained = {**model, **params}
    for found in (optimizer.eval_params(state, trained), compat.contrib.schedule_free_eval_params(state, trained)):
        assert found["activation"] is jax.nn.relu
        assert found["steps"] == 3
        np.testing.assert_array_equal(found["w"], state.inner.x["w"])
    with pytest.raises(ValueError, match=r"needs exactly one state of `schedule_free`, and found 0"):
        compat.contrib.schedule_free_eval_params(mx.SGD(0.1).init(PARAMS), PARAMS)
    with pytest.raises(ValueError, match="found 2"):
        compat.contrib.schedule_free_eval_params(mx.Chain(optimizer, optimizer).init(PARAMS), PARAMS)


def test_what_is_evaluated_has_the_dtypes_of_the_parameters():
    """Also where the state is kept in float32, and for parameters that were cast since."""
    shapes = {"w": (3, 4), "bias": (4,), "scalar": ()}
    for instance in TRANSFORMS:
        transform = instance.make()
        for before, after in ((jnp.bfloat16, jnp.bfloat16), (jnp.float32, jnp.float16)):
            params, wanted = ({n: jax.ShapeDtypeStruct(x, d) for n, x in shapes.items()} for d in (before, after))
            found = jax.eval_shape(transform.eval_params, jax.eval_shape(transform.init, params), wanted)
            assert {name: (x.shape, x.dtype) for name, x in found.items()} == {
                name: (x.shape, x.dtype) for name, x in wanted.items()
            }, instance


# --- Schedule-Free ---------------------------------------------------------------------------------


@pytest.mark.usefixtures("x64")
def test_the_average_is_the_weighted_mean_of_the_points():
    rates = jnp.asarray([0.0, 0.1, 0.3, 0.2, 0.4, 0.1])
    transform = mx.ScheduleFree(
        mx.SGD(lambda t: rates[t]), lambda t: rates[t], lambda t: 1 / (t.astype(float) + 1), 1.5
    )
    params = jnp.asarray([1.0, -2.0])
    state, points = transform.init(params), []
    for t in range(6):
        params, state = transform.step(params + jnp.cos(t), state, params)
        points.append(np.asarray(state.z))
    weights = np.maximum.accumulate(rates) ** 1.5
    mean = np.average(points, axis=0, weights=weights)
    np.testing.assert_allclose(transform.eval_params(state, params), mean, rtol=1e-12)
    # At the last step the interpolation was 1/6.
    np.testing.assert_allclose(params, 5 / 6 * state.z + 1 / 6 * mean, rtol=1e-12)


def test_no_interpolation_is_plain_averaging():
    """Optax divides by b1, so that for 0 there is no average."""
    transform = mx.ScheduleFree(mx.SGD(0.1), 0.1, b1=0.0)
    params, state = train(transform)
    plain, _ = train(mx.SGD(0.1))
    chex.assert_trees_all_close(params, plain, rtol=1e-5)
    every = [train(mx.SGD(0.1), steps=n)[0]["w"] for n in range(1, 7)]
    np.testing.assert_allclose(transform.eval_params(state, params)["w"], np.mean(every, axis=0), rtol=1e-5)
    with jax_defaults():
        twin = optax.contrib.schedule_free(optax.sgd(0.1), 0.1, b1=0.0)
        theirs = twin.init(PARAMS)
        assert np.all(np.isnan(optax.contrib.schedule_free_eval_params(theirs, PARAMS)["w"]))


def test_low_precision_loses_nothing():
    """Steps of 1e-3 on parameters of 1, which bfloat16 rounds to multiples of 1/128."""
    params = jnp.asarray([1.0, -1.5, 0.25], jnp.bfloat16)
    gradient = jnp.asarray([0.5, -1.0, 2.0], jnp.bfloat16)
    steps = 200

    def run(transform: Any) -> Any:
        def body(carry: Any, _: None) -> Any:
            params, state = carry
            updates, state = transform.update(gradient, state, params)
            return (optax.apply_updates(params, updates), state), None

        return jax.lax.scan(body, (params, transform.init(params)), length=steps)[0]

    with jax_defaults():
        _, ours = run(mx.ScheduleFree(mx.SGD(1e-3), 1e-3))
        final, theirs = run(optax.contrib.schedule_free(optax.sgd(1e-3), 1e-3, state_dtype=jnp.float32))
        derived = optax.contrib.schedule_free_eval_params(theirs, final)
    exact = np.asarray(params, float) - 1e-3 * np.asarray(gradient, float) * (steps + 1) / 2
    np.testing.assert_allclose(ours.x, exact, atol=1e-5)
    assert ours.x.dtype == ours.z.dtype == jnp.float32
    assert np.max(np.abs(np.asarray(derived, float) - exact)) > 1e-2


def test_what_the_base_is_given():
    """Its extra arguments, and updates that are not rounded; a dtype for the state is obeyed."""

    class Probe(mx.AbstractStatelessTransform):
        def apply(self, updates, params, **extra):
            assert {u.dtype for u in jtu.tree_leaves(updates)} == {jnp.dtype(jnp.float32)}
            return jtu.tree_map(lambda u: -extra["value"] * u, updates)

    params = jtu.tree_map(lambda p: p.astype(jnp.bfloat16), PARAMS)
    transforms: tuple[Any, ...] = (mx.ScheduleFree(Probe(), 0.1, state_dtype=jnp.bfloat16), mx.Mechanize(Probe()))
    for transform in transforms:
        state = transform.init(params)
        updates, state = transform.update(params, state, params, value=jnp.asarray(2.0))
        assert {u.dtype for u in jtu.tree_leaves(updates)} == {jnp.dtype(jnp.bfloat16)}
        if isinstance(transform, mx.ScheduleFree):
            np.testing.assert_array_equal(state.z["w"], -params["w"])
            assert state.z["w"].dtype == state.x["w"].dtype == jnp.bfloat16
        else:
            np.testing.assert_array_equal(state.delta["w"], -2 * params["w"].astype(jnp.float32))


def test_bare_schedules_inside_follow_the_container():
    rate = schedules.Linear(0.1, 0.5, 4)
    decay: Any = schedules.Linear(0.5, 0.9, 4)
    follows: tuple[Any, ...] = ("paper", "optax")
    for follow in follows:
        bare = mx.ScheduleFree(mx.Chain(mx.Trace(decay), mx.ScaleByLearningRate(rate)), rate, follow=follow)
        wrapped = mx.Chain(mx.Scheduled(mx.Trace(decay)), mx.SGD(rate))
        same = mx.ScheduleFree(wrapped, rate, follow=follow)
        chex.assert_trees_all_equal(train(bare)[0], train(same)[0])


def test_the_numbers_in_force():
    rate = schedules.Linear(0.0, 1.0, 10)
    cases: tuple[Any, ...] = (("paper", 0.0), ("optax", 0.1))
    for follow, expected in cases:
        transform = mx.ScheduleFree(mx.SGD(rate), rate, follow=follow)
        now = transform.hyperparameters(transform.init(PARAMS))
        assert now["learning_rate"] == np.float32(expected)
        assert now["base_optimizer.learning_rate"] == 0
    mechanic = mx.Mechanize(mx.SGD(rate))
    assert mechanic.hyperparameters(mechanic.init(PARAMS))["s_init"] == np.float32(1e-6)


# --- Averages that the caller keeps ----------------------------------------------------------------


def test_an_incremental_update_is_an_exponential_average():
    @jax.jit
    @chex.assert_max_traces(n=1)
    def step(new: Any, mean: Any, step_size: Any) -> Any:
        return mx.incremental_update(new, mean, step_size)

    mean = PARAMS
    for t in range(1, 5):
        mean = step(jtu.tree_map(lambda p, t=t: t * p, PARAMS), mean, 0.25)
    weights = [0.75**4] + [0.25 * 0.75 ** (4 - t) for t in range(1, 5)]
    np.testing.assert_allclose(mean["w"], np.dot(weights, [1, 1, 2, 3, 4]) * PARAMS["w"], rtol=1e-6)
    step(PARAMS, PARAMS, 0.5)


def test_averages_of_whole_models_keep_their_dtype():
    def model(scale: float, dtype: Any, f: Any) -> Any:
        w = jnp.asarray([1.0, 3.0], dtype) * jnp.asarray(scale, dtype)
        return {"w": w, "z": jnp.asarray([1.0j]) * scale, "f": f, "n": jnp.asarray(int(scale))}

    new, old = model(2.0, jnp.float32, jax.nn.relu), model(1.0, jnp.bfloat16, jax.nn.tanh)
    mean = mx.incremental_update(new, old, 0.5)
    assert mean["w"].dtype == jnp.bfloat16
    np.testing.assert_array_equal(mean["w"].astype(float), [1.5, 4.5])
    np.testing.assert_array_equal(mean["z"], [1.5j])
    assert mean["f"] is jax.nn.relu
    assert mean["n"] == 2
    for steps, expected in ((0, new), (3, old), (4, new)):
        for period in (4, jnp.asarray(4)):
            held = mx.periodic_update(new, old, steps, period)
            assert held["w"].dtype == jnp.bfloat16
            np.testing.assert_array_equal(held["w"].astype(float), expected["w"].astype(float))
            np.testing.assert_array_equal(held["n"], expected["n"])
            assert held["f"] is jax.nn.relu


def test_averages_are_those_of_optax():
    old = jtu.tree_map(lambda p: 3 * p, PARAMS)
    with jax_defaults():
        theirs = optax.incremental_update(PARAMS, old, 0.1)
        periodic = [optax.periodic_update(PARAMS, old, jnp.asarray(t), 3) for t in range(4)]
    jtu.tree_map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), mx.incremental_update(PARAMS, old, 0.1), theirs
    )
    for t in range(4):
        chex.assert_trees_all_equal(mx.periodic_update(PARAMS, old, jnp.asarray(t), 3), periodic[t])
    assert eqx.tree_equal(mx.periodic_update(PARAMS, PARAMS, 0, 1), PARAMS)
    assert mx.periodic_update(np.ones(2), jnp.zeros(2), 1, 2).sum() == 0
