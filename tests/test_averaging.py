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
from jax.sharding import NamedSharding, PartitionSpec

import modulax as mx
from modulax import checkpoint, compat, schedules

from .instances.averaging import TRANSFORMS, adversary
from .settings import jax_defaults


def start() -> dict[str, jax.Array]:
    """In the precision of now."""
    return {"w": jnp.asarray([1.0, -2.0, 0.5]), "b": jnp.asarray(0.3, float)}


PARAMS = start()
BIAS = mx.by_path({"b": "bias", "*": "rest"})


STEPS = 12


def path_of(transform: Any, params: Any = None, steps: int = STEPS) -> tuple[Any, Any, Any]:
    """The parameters and the evaluation parameters after each step down a bowl with noise, and the last state."""
    params = start() if params is None else params

    @jax.jit
    def run(transform: Any, params: Any) -> Any:
        def body(carry: Any, t: Any) -> Any:
            params, state = carry
            grads = jtu.tree_map(lambda p: p + jnp.cos(t).astype(p.dtype), params)
            params, state = transform.step(grads, state, params)
            return (params, state), (params, transform.eval_params(state, params))

        (_, state), paths = jax.lax.scan(body, (params, transform.init(params)), jnp.arange(steps, dtype=float))
        return *paths, state

    return run(transform, params)


def train(transform: Any, params: Any = None, steps: int = 6) -> tuple[Any, Any]:
    """Parameters and state after some steps."""
    points, _, state = path_of(transform, params, steps)
    return jtu.tree_map(lambda x: x[-1], points), state


# --- Parameters to evaluate ------------------------------------------------------------------------


NESTED = {
    "alone": mx.ScheduleFreeAdamW(0.1),
    "chain": mx.Chain(mx.ClipByGlobalNorm(1.0), mx.ScheduleFree(mx.SGD(0.1), 0.1)),
    "first in a chain": mx.Chain(mx.ScheduleFreeSGD(0.1), mx.Identity()),
    "partition": mx.Partition({"bias": mx.SGD(0.1), "rest": mx.ScheduleFreeSGD(0.1)}, BIAS),
    "two": mx.Partition({"bias": mx.Lookahead(mx.SGD(0.1), 4, 0.5), "rest": mx.ScheduleFreeSGD(0.1)}, BIAS),
    "masked": mx.Masked(mx.ScheduleFreeSGD(0.1), mx.by_path({"b": False, "*": True})),
    "multisteps": mx.MultiSteps(mx.Chain(mx.ScheduleFreeSGD(0.1)), 2),
    "injected": mx.Injected(mx.ScheduleFreeAdamW(schedules.Linear(0.1, 0.2, 5))),
    "scheduled": mx.Scheduled(mx.Lookahead(mx.Chain(mx.Trace(0.9), mx.Scale(-0.1)), 4, 0.5)),
    "adversary": mx.SAM(mx.ScheduleFreeSGD(0.1), adversary(), sync_period=4),
    "mechanic": mx.Lookahead(mx.Mechanize(mx.SGD(1.0)), 5, 0.5),
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
    if name in ("alone", "chain", "multisteps", "injected"):
        chex.assert_trees_all_equal(once, compat.contrib.schedule_free_eval_params(state, params))


@pytest.mark.filterwarnings("ignore:.*two optimizers")
def test_evaluation_returns_the_whole_model():
    optimizer = mx.ScheduleFreeSGD(0.1)
    params, state = train(optimizer)
    model = {**params, "activation": jax.nn.relu, "steps": 3}
    for found in (optimizer.eval_params(state, model), compat.contrib.schedule_free_eval_params(state, model)):
        assert (found["activation"], found["steps"]) == (jax.nn.relu, 3)
        np.testing.assert_array_equal(found["w"], state.inner.x["w"])
    for several, count in ((mx.SGD(0.1), 0), (mx.Chain(optimizer, optimizer), 2)):
        with pytest.raises(ValueError, match=rf"needs exactly one state of `schedule_free`, and found {count}"):
            compat.contrib.schedule_free_eval_params(several.init(PARAMS), PARAMS)


@pytest.mark.parametrize("before, after", [(jnp.bfloat16, jnp.bfloat16), (jnp.float32, jnp.float16)])
def test_what_is_evaluated_has_the_dtypes_of_the_parameters(before: Any, after: Any):
    """Also where the state is kept in float32, and for parameters that were cast since."""
    shapes = {"w": (3, 4), "bias": (4,), "scalar": ()}
    params, wanted = ({n: jax.ShapeDtypeStruct(x, d) for n, x in shapes.items()} for d in (before, after))
    for instance in TRANSFORMS:
        transform = instance.make()
        found = jax.eval_shape(transform.eval_params, jax.eval_shape(transform.init, params), wanted)
        chex.assert_trees_all_equal_shapes_and_dtypes(found, wanted)


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
    points, means, _ = path_of(mx.ScheduleFree(mx.SGD(0.1), 0.1, b1=0.0))
    plain, _, _ = path_of(mx.SGD(0.1))
    chex.assert_trees_all_close(points, plain, rtol=1e-5)
    so_far = np.cumsum(np.asarray(plain["w"]), axis=0) / np.arange(1, STEPS + 1)[:, None]
    np.testing.assert_allclose(means["w"], so_far, rtol=1e-5)
    with jax_defaults():
        theirs = optax.contrib.schedule_free(optax.sgd(0.1), 0.1, b1=0.0).init(PARAMS)
        assert np.all(np.isnan(optax.contrib.schedule_free_eval_params(theirs, PARAMS)["w"]))


def descended(transform: Any, params: Any, gradient: Any, steps: int) -> Any:
    """The parameters and the state after steps of a transform of ours or of optax, which applies the updates."""

    def body(carry: Any, _: None) -> Any:
        params, state = carry
        updates, state = transform.update(gradient(params), state, params)
        return (optax.apply_updates(params, updates), state), None

    return jax.lax.scan(body, (params, transform.init(params)), length=steps)[0]


def test_low_precision_loses_nothing():
    """Steps of 1e-3 on parameters of 1, which bfloat16 rounds to multiples of 1/128."""
    params = jnp.asarray([1.0, -1.5, 0.25], jnp.bfloat16)
    gradient = jnp.asarray([0.5, -1.0, 2.0], jnp.bfloat16)
    twin, steps = optax.contrib.schedule_free(optax.sgd(1e-3), 1e-3, state_dtype=jnp.float32), 200
    with jax_defaults():
        _, ours = descended(mx.ScheduleFree(mx.SGD(1e-3), 1e-3), params, lambda _: gradient, steps)
        final, theirs = descended(twin, params, lambda _: gradient, steps)
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
    free, mechanic = mx.ScheduleFree(Probe(), 0.1, state_dtype=jnp.bfloat16), mx.Mechanize(Probe())
    updates, state = free.update(params, free.init(params), params, value=jnp.asarray(2.0))
    chex.assert_trees_all_equal_dtypes(updates, params, state.z, state.x)
    np.testing.assert_array_equal(state.z["w"], -params["w"])
    updates, state = mechanic.update(params, mechanic.init(params), params, value=jnp.asarray(2.0))
    chex.assert_trees_all_equal_dtypes(updates, params)
    np.testing.assert_array_equal(state.delta["w"], -2 * params["w"].astype(jnp.float32))


@pytest.mark.parametrize("follow", ["paper", "optax"])
def test_bare_schedules_inside_follow_the_container(follow: Any):
    rate, decay = schedules.Linear(0.1, 0.5, 4), schedules.Linear(0.5, 0.9, 4)
    bare = mx.Chain(mx.Trace(decay), mx.ScaleByLearningRate(rate))
    wrapped = mx.Chain(mx.Scheduled(mx.Trace(decay)), mx.SGD(rate))
    chex.assert_trees_all_equal(*(train(mx.ScheduleFree(t, rate, follow=follow))[0] for t in (bare, wrapped)))


@pytest.mark.parametrize("follow, expected", [("paper", 0.0), ("optax", 0.1)])
def test_the_numbers_in_force(follow: Any, expected: float):
    rate = schedules.Linear(0.0, 1.0, 10)
    transform = mx.ScheduleFree(mx.SGD(rate), rate, follow=follow)
    now = transform.hyperparameters(transform.init(PARAMS))
    assert now["learning_rate"] == np.float32(expected)
    assert now["base_optimizer.learning_rate"] == 0


# --- Averages that the caller keeps ----------------------------------------------------------------


def test_averages_of_whole_models_keep_their_dtype():
    def model(scale: float, dtype: Any, f: Any) -> Any:
        w = jnp.asarray([1.0, 3.0], dtype) * jnp.asarray(scale, dtype)
        return {"w": w, "z": jnp.asarray([1.0j]) * scale, "f": f, "n": jnp.asarray(int(scale))}

    new, old = model(2.0, jnp.float32, jax.nn.relu), model(1.0, jnp.bfloat16, jax.nn.tanh)
    low = {**new, "w": new["w"].astype(jnp.bfloat16)}
    mean = mx.incremental_update(new, old, 0.5)
    assert eqx.tree_equal(mean, {**low, "w": jnp.asarray([1.5, 4.5], jnp.bfloat16), "z": jnp.asarray([1.5j])})
    for steps, expected in ((0, low), (3, {**old, "f": new["f"]}), (4, low)):
        for period in (4, jnp.asarray(4)):
            assert eqx.tree_equal(mx.periodic_update(new, old, steps, period), expected)


def test_averages_are_those_of_optax():
    old, steps = jtu.tree_map(lambda p: 3 * p, PARAMS), [jnp.asarray(t) for t in range(4)]
    with jax_defaults():
        theirs = optax.incremental_update(PARAMS, old, 0.1)
        periodic = [optax.periodic_update(PARAMS, old, t, 3) for t in steps]
    chex.assert_trees_all_close(mx.incremental_update(PARAMS, old, 0.1), theirs, rtol=1e-6)
    chex.assert_trees_all_equal([mx.periodic_update(PARAMS, old, t, 3) for t in steps], periodic)
    assert eqx.tree_equal(mx.periodic_update(PARAMS, PARAMS, 0, 1), PARAMS)
    assert mx.periodic_update(np.ones(2), jnp.zeros(2), 1, 2).sum() == 0


# --- ParamEMA, ParamAverage: which parameters are averaged, with which weights -----------------------


def weighted_means(points: np.ndarray, decay: Any, start: int, every: int) -> np.ndarray:
    """What each step evaluates: the mean of the points so far, with the product of the later decays as weights."""
    out, weights, used = [], np.zeros(0), points[:0]
    for n, point in enumerate(points, 1):
        if n > start and (n - start) % every == 0:
            beta = decay(n - 1)
            weights, used = np.append(beta * weights, 1 - beta), np.vstack([used, point])
        out.append(weights @ used / weights.sum() if weights.sum() > 0 else point)
    return np.stack(out)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    "decay, at",
    [(0.9, lambda t: 0.9), (schedules.EMAWarmup(0.7), lambda t: min(0.7, (1 + t) / (10 + t)))],
    ids=["number", "schedule"],
)
def test_it_is_the_mean_with_decaying_weights(decay: Any, at: Any):
    for start, every in ((0, 1), (3, 1), (2, 3)):
        points, means, state = path_of(mx.ParamEMA(mx.SGD(0.3, 0.9), decay, start=start, every=every))
        np.testing.assert_allclose(means["w"], weighted_means(np.asarray(points["w"]), at, start, every), rtol=1e-12)
        assert state.count == STEPS


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("start, every", [(0, 1), (3, 2)])
def test_without_debias_it_starts_from_the_parameters(start: int, every: int):
    points, means, _ = path_of(mx.ParamEMA(mx.SGD(0.3), 0.9, debias=False, start=start, every=every))
    mean = np.asarray([1.0, -2.0, 0.5])
    for n, (point, found) in enumerate(zip(points["w"], means["w"], strict=True), 1):
        if n <= start:
            mean = point
        elif (n - start) % every == 0:
            mean = 0.9 * mean + 0.1 * point
        np.testing.assert_allclose(found, mean, rtol=1e-12)


@pytest.mark.usefixtures("x64")
def test_the_uniform_mean_is_of_all_or_of_the_last():
    for start, every, window in ((0, 1, None), (3, 2, None), (0, 1, 3), (2, 2, 2), (0, 1, 50)):
        points, means, state = path_of(mx.ParamAverage(mx.SGD(0.3, 0.9), start, every, window))
        points = np.asarray(points["w"])
        for n in range(1, STEPS + 1):
            due = [points[i - 1] for i in range(1, n + 1) if i > start and (i - start) % every == 0]
            expected = np.mean(due[-(window or 99) :], axis=0) if due else points[n - 1]
            np.testing.assert_allclose(means["w"][n - 1], expected, rtol=1e-12)
        assert state.num_averaged == (STEPS - start) // every


BF16 = {"w": jnp.linspace(-2, 2, 7).astype(jnp.bfloat16), "z": jnp.asarray([1 + 2j, -0.5j])}


@pytest.mark.parametrize("wrap", [mx.ParamEMA, mx.ParamAverage, lambda t: mx.ParamAverage(t, window=1)])
def test_the_first_average_is_the_parameters_and_the_updates_are_those_of_the_optimizer(wrap: Any):
    """Bit for bit, in bfloat16, where the parameters are rounded, and for complex numbers."""
    inner = mx.SGD(0.3, 0.9)
    transform = wrap(inner)
    for params in (PARAMS, BF16):
        chex.assert_trees_all_equal(transform.eval_params(transform.init(params), params), params)
        points, means, _ = path_of(transform, params)
        alone, _, _ = path_of(inner, params)
        chex.assert_trees_all_equal(points, alone, strict=True)
        chex.assert_trees_all_equal(*[jtu.tree_map(lambda x: x[0], tree) for tree in (means, points)], strict=True)
        grads = jtu.tree_map(jnp.ones_like, params)
        ours, _ = transform.update(grads, transform.init(params), params)
        chex.assert_trees_all_equal(ours, inner.update(grads, inner.init(params), params)[0], strict=True)


@pytest.mark.parametrize(
    "transform, weights",
    [
        (mx.ParamEMA(mx.SGD(0.3), 0.9), 0.9 ** np.arange(STEPS)[::-1]),
        (mx.ParamAverage(mx.SGD(0.3)), np.ones(STEPS)),
        (mx.ParamAverage(mx.SGD(0.3), window=5), np.arange(STEPS) >= STEPS - 5),
    ],
    ids=["decaying", "uniform", "window"],
)
def test_the_average_of_bfloat16_parameters_is_of_the_rounded_ones_in_float32(transform: Any, weights: np.ndarray):
    points, means, state = path_of(transform, {"w": BF16["w"]})
    expected = np.average(np.asarray(points["w"]).astype(np.float64), axis=0, weights=weights)
    assert means["w"].dtype == jnp.bfloat16
    np.testing.assert_array_equal(means["w"][-1], expected.astype(np.float32).astype(jnp.bfloat16))
    mean = state.ema if isinstance(state, mx.states.ParamEMAState) else state.average
    if mean is not None:  # in a window there are snapshots
        assert mean["w"].dtype == jnp.float32
        np.testing.assert_allclose(mean["w"], expected, rtol=1e-6, atol=1e-7)


def test_a_decay_close_to_one_loses_no_digits():
    """Parameters that stay are their own average, and weights of a millionth are nearly those of the uniform mean."""
    still = mx.ParamEMA(mx.SetToZero(), 1 - 2.0**-20)
    _, means, _ = path_of(still, PARAMS, 50)
    chex.assert_trees_all_equal(jtu.tree_map(lambda x: x[-1], means), PARAMS)
    points, means, _ = path_of(still.replace(inner=mx.SGD(0.3)), {"w": PARAMS["w"]}, 50)
    np.testing.assert_allclose(means["w"][-1], np.mean(points["w"], axis=0, dtype=float), rtol=1e-4)
    # A schedule may reach 1, the decay of an average that never moves.
    points, means, state = path_of(mx.ParamEMA(mx.SGD(0.3), lambda t: jnp.where(t < 4, 1.0, 0.5)), {"w": PARAMS["w"]})
    np.testing.assert_array_equal(means["w"][:5], points["w"][:5])
    assert 0.99 < state.weight_sum < 1


@pytest.mark.parametrize(
    "transform, after_nan",
    [
        (mx.ParamEMA(mx.Identity(), 0.5, every=2), 1),
        (mx.ParamAverage(mx.Identity(), every=2), 1),
        (mx.ParamAverage(mx.Identity(), window=2), 2),
    ],
    ids=["decaying", "uniform", "window"],
)
def test_parameters_that_are_not_averaged_have_no_influence(transform: Any, after_nan: int):
    """Not even NaN, and a window forgets a NaN that was averaged."""
    params = {"w": jnp.ones(2)}
    _, state = transform.update({"w": jnp.full(2, jnp.nan)}, transform.init(params), params)
    for _ in range(after_nan):
        _, state = transform.update(params, state, params)
    np.testing.assert_array_equal(transform.eval_params(state, params)["w"], 2)


def test_what_is_inside_and_around():
    averaged = mx.ParamAverage(mx.SGD(0.1))
    # Once per optimizer step, not per mini-batch.
    _, state = train(mx.MultiSteps(averaged, 2))
    assert state.inner_opt_state.num_averaged == 3
    # Of the parameters that are trained, in place of those that the inner transform would evaluate.
    params, state = train(mx.ParamAverage(mx.ScheduleFreeSGD(0.1), window=1))
    chex.assert_trees_all_equal(mx.ParamAverage(mx.ScheduleFreeSGD(0.1), window=1).eval_params(state, params), params)
    # Of the unperturbed parameters, if SAM is around it.
    sam = mx.SAM(mx.ParamAverage(mx.SGD(0.1), window=1), mx.SGD(0.5))
    params, state = train(sam, steps=4)
    _, perturbed = sam.step(params, state, params)
    chex.assert_trees_all_close(sam.eval_params(perturbed, params), params, rtol=1e-6)
    # Of some parameters only.
    masked = mx.Masked(mx.ParamEMA(mx.SGD(0.1)), mx.by_path({"b": False, "*": True}))
    params, state = train(masked)
    found = masked.eval_params(state, params)
    assert found["b"] == params["b"]
    assert np.all(found["w"] != params["w"])


def test_metrics_of_averages():
    optimizer = mx.ParamEMA(mx.SGD(0.1), schedules.EMAWarmup(0.99))
    np.testing.assert_allclose(optimizer.metrics(train(optimizer)[1])["decay"], 6 / 15, rtol=1e-6)
    averaged = mx.ParamAverage(mx.SGD(0.1), 2)
    assert averaged.metrics(train(averaged)[1])["num_averaged"] == 4


@pytest.mark.parametrize(
    "make, says",
    [
        (lambda: mx.ParamEMA(mx.SGD(0.1), 1.0), r"`ParamEMA\(decay=...\)` must be in \[0, 1\), got 1.0"),
        (lambda: mx.ParamEMA(mx.SGD(0.1), dtype="floaty"), r"`ParamEMA\(dtype=...\)` must be a dtype"),
        (lambda: mx.ParamEMA(mx.SGD(0.1), every=0), r"`ParamEMA\(every=...\)` must be a whole number of at least 1"),
        (lambda: mx.ParamAverage(mx.SGD(0.1), window=0), r"`ParamAverage\(window=...\)` must be a positive integer"),
        (lambda: mx.ParamAverage(mx.SGD(0.1), start=-1), r"`ParamAverage\(start=...\)` must not be negative"),
    ],
)
def test_mistakes(make: Any, says: str):
    with pytest.raises(ValueError, match=says):
        make()


@pytest.mark.parametrize("wrap", [mx.ParamEMA, mx.ParamAverage])
def test_an_average_is_added_to_a_run_that_was_saved_without_one(wrap: Any):
    """It begins with the first step, and knows nothing of the parameters of the template."""
    params, state = train(mx.AdamW(0.1))
    optimizer = wrap(mx.AdamW(0.1))
    found, report = checkpoint.load_state_dict(optimizer.init(PARAMS), checkpoint.state_dict(state), strict=False)
    assert not report.unused
    chex.assert_trees_all_equal(found.inner_state, state)
    chex.assert_trees_all_equal(optimizer.eval_params(found, params), params)
    params, found = optimizer.step(PARAMS, found, params)
    chex.assert_trees_all_equal(optimizer.eval_params(found, params), params)


@pytest.mark.parametrize(
    "transform, name",
    [(mx.ParamAverage(mx.SGD(0.1), window=3), "snapshots"), (mx.LBFGS(linesearch=None), "diff_params_memory")],
    ids=["ParamAverage", "LBFGS"],
)
def test_arrays_with_a_leading_axis_are_sharded_like_the_parameters(transform: Any, name: str):
    over = NamedSharding(jax.make_mesh((8,), ("data",)), PartitionSpec("data"))
    params = {"w": jax.ShapeDtypeStruct((8, 4), jnp.float32, sharding=over)}
    assert mx.tree.get(mx.state_sharding(transform, params), name)["w"].shard_shape((3, 8, 4)) == (3, 1, 4)
