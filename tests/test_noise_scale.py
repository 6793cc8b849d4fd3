"""The gradient noise scale: near its true value where that is known, exact in every dtype and place, and never NaN."""

import functools
from collections.abc import Sequence
from typing import Any

import chex
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import modulax as mx
from modulax import checkpoint, compat, schedules
from modulax.microbatching import AccumulationType, micro_grad

# --- Linear regression, where G and Sigma are known -------------------------------------------------

DIMENSIONS, NOISE = 12, 0.5
AWAY = jnp.linspace(-0.5, 0.5, DIMENSIONS)  # the parameters minus the best ones
# With inputs of unit variance and the loss (x · w - y)^2 / 2, G is `AWAY`, and the trace of the covariance of the
# gradients of single examples is (d + 1) |G|^2 + d sigma^2.
TRUE = DIMENSIONS + 1 + DIMENSIONS * NOISE**2 / float(jnp.sum(AWAY**2))
SEEDS = jax.random.split(jax.random.key(0), 4)


def examples(key: Any, n: int) -> dict[str, Any]:
    x, error = jax.random.normal(key, (n, DIMENSIONS)), jax.random.normal(jax.random.fold_in(key, 1), (n,))
    return {"x": x, "y": NOISE * error}


def loss(params: Any, batch: Any) -> Any:
    w = jnp.concatenate([params["first"], params["rest"]])
    return jnp.mean((batch["x"] @ w - batch["y"]) ** 2) / 2


PARAMS = {"first": AWAY[:5], "rest": AWAY[5:]}


@pytest.mark.parametrize("size, every_k, mean", [(1, 16, True), (4, 8, False)])
def test_multi_steps_is_near_the_true_noise_scale(size: int, every_k: int, mean: bool):
    """Of each of several seeds, at fixed parameters; in units of microbatches."""
    optimizer = mx.MultiSteps(mx.SGD(0.0), every_k, use_grad_mean=mean, noise_scale=True)

    @jax.jit
    @jax.vmap
    def run(key: Any) -> Any:
        def step(carry: Any, key: Any) -> Any:
            params, state = carry
            return optimizer.step(jax.grad(loss)(params, examples(key, size)), state, params), None

        keys = jax.random.split(key, 400 * every_k)
        (_, state), _ = jax.lax.scan(step, (PARAMS, optimizer.init(PARAMS)), keys)
        return optimizer.metrics(state)

    found = run(SEEDS)
    np.testing.assert_allclose(size * found["noise_scale"], TRUE, rtol=0.15)
    np.testing.assert_allclose(found["grad_squared_norm"], jnp.sum(AWAY**2), rtol=0.15)


def test_critical_batch_is_near_the_true_noise_scale():
    """By the gradients of examples or microbatches, or by their mean and norms, in the memory of a part."""
    streamed = micro_grad(
        loss, accumulator=AccumulationType.MEAN, metrics_fn=mx.tree.norm, microbatch_size=500, keep_batch_dim=True
    )

    @jax.jit
    @jax.vmap
    def run(key: Any) -> Any:
        batch = examples(key, 4000)
        parts = jtu.tree_map(lambda x: x.reshape(1000, 4, *x.shape[1:]), batch)
        each = jax.vmap(jax.grad(loss), (None, 0))
        single = each(PARAMS, jtu.tree_map(lambda x: x[:, None], batch))
        mean, outputs = streamed(PARAMS, batch)
        in_parts = mx.critical_batch(each(PARAMS, parts), microbatch_size=4)
        return mx.critical_batch(single), mx.critical_batch(mean, norms=outputs.metrics), in_parts

    found = run(SEEDS)
    np.testing.assert_allclose(found, TRUE, rtol=0.15)
    np.testing.assert_allclose(found[0], found[1], rtol=1e-4)


# --- Exactness ---------------------------------------------------------------------------------------


def two_batch_sizes(gradients: np.ndarray) -> tuple[float, float]:
    """The equations of McCandlish et al., A.1, for one microbatch and for all of a step."""
    small, big = 1, len(gradients)
    of_small = np.mean([np.sum(np.abs(g) ** 2) for g in gradients])
    of_big = np.sum(np.abs(np.mean(gradients, axis=0)) ** 2)
    squared_norm = (big * of_big - small * of_small) / (big - small)
    return squared_norm, (of_small - of_big) / (1 / small - 1 / big)


def averaged(values: Sequence[float]) -> float:
    return np.average(values, weights=0.99 ** np.arange(len(values))[::-1])


def gradients_of(dtype: Any, n: int) -> np.ndarray:
    random = np.random.default_rng(0)
    values = 1 + 0.7 * random.normal(size=(n, 6))
    if jnp.issubdtype(dtype, jnp.complexfloating):
        values = values + 0.7j * random.normal(size=(n, 6))
    return np.asarray(jnp.asarray(values, dtype)).astype(values.dtype)  # rounded


def fed(optimizer: Any, gradients: Any, dtype: Any = jnp.float32, place: Any = None) -> Any:
    """The metrics after some microbatches, of which each has two arrays."""
    params = {"a": jnp.zeros(2, dtype), "b": jnp.zeros(4, dtype)}
    grads = {"a": jnp.asarray(gradients[:, :2], dtype), "b": jnp.asarray(gradients[:, 2:], dtype)}
    if place is not None:
        params, grads = jax.device_put(params, place), jax.device_put(grads, place.update(spec=(None, *place.spec)))

    @jax.jit
    def run(grads: Any) -> Any:
        step = lambda state, g: (optimizer.update(g, state, params)[1], None)  # noqa: E731
        state, _ = jax.lax.scan(step, optimizer.init(params), grads)
        return optimizer.metrics(state), state

    return run(grads)


@pytest.mark.parametrize("mean", [True, False], ids=["mean", "sum"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.complex64], ids=lambda d: d.__name__)
def test_the_estimates_are_those_of_the_paper(dtype: Any, mean: bool):
    """Over three steps of a growing number of microbatches, in float32 for bfloat16 too."""
    growing = schedules.PiecewiseConstant(2.0, {1: 1.5, 2: 2.0})  # 2, 3 and 6 microbatches
    gradients = gradients_of(dtype, 11)
    optimizer = mx.MultiSteps(mx.SGD(0.1), growing, use_grad_mean=mean, noise_scale=True)
    found, state = fed(optimizer, gradients, dtype)
    estimates = [two_batch_sizes(g) for g in (gradients[:2], gradients[2:5], gradients[5:])]
    squared_norm, variance = map(averaged, zip(*estimates, strict=True))
    assert state.gradient_step == 3
    assert {found[name].dtype for name in ("noise_scale", "grad_variance", "grad_squared_norm")} == {np.dtype("f4")}
    np.testing.assert_allclose(found["grad_squared_norm"], squared_norm, rtol=1e-5)
    np.testing.assert_allclose(found["grad_variance"], variance, rtol=1e-5)
    np.testing.assert_allclose(found["noise_scale"], variance / squared_norm, rtol=1e-5)
    np.testing.assert_allclose(mx.critical_batch(jnp.asarray(gradients[:2], dtype)), scale_of(gradients[:2]), rtol=1e-5)


def scale_of(gradients: Any) -> float:
    squared_norm, variance = two_batch_sizes(gradients)
    return variance / squared_norm


def test_a_skipped_microbatch_counts_for_nothing():
    gradients = gradients_of(jnp.float32, 6)
    bad = np.insert(gradients, [0, 2, 5], np.nan, axis=0)
    optimizer = mx.MultiSteps(mx.SGD(0.1), 3, should_skip=mx.skip_not_finite, noise_scale=True)
    (found, state), (wanted, _) = fed(optimizer, bad), fed(optimizer, gradients)
    assert state.gradient_step == 2
    assert not found["should_skip"]
    for name in ("noise_scale", "grad_variance", "grad_squared_norm"):
        np.testing.assert_allclose(found[name], wanted[name], rtol=1e-6)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_it_is_the_same_on_many_devices(kind: Any):
    gradients = gradients_of(jnp.float32, 6)
    optimizer = mx.MultiSteps(mx.SGD(0.1), 3, noise_scale=True)
    wanted, _ = fed(optimizer, gradients)
    mesh = jax.make_mesh((2,), ("d",), axis_types=(kind,), devices=jax.devices()[:2])
    with jax.set_mesh(mesh):
        found, _ = fed(optimizer, gradients, place=NamedSharding(mesh, PartitionSpec("d")))
    np.testing.assert_allclose(found["noise_scale"], wanted["noise_scale"], rtol=1e-6)


# --- Edges -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gradients, expected", [
    ([0.0, 0.0], 0.0),  # nothing
    ([2.0, 2.0], 0.0),  # no noise
    ([2.0, -2.0], np.inf),  # nothing but noise
    ([2.0], 0.0),  # no step yet
    ([3e38], 0.0),  # the same, with a square that overflows
    ([2.0, np.inf, 1.0, 3.0], 2.0 / 3.0),  # a step that is not finite is not counted
    ([2.0, np.nan, 1.0, 3.0], 2.0 / 3.0),
    ([1.0, 3.0, 3e38, -3e38], 2.0 / 3.0),  # nor is one whose squares overflow
])  # fmt: skip
def test_it_is_never_nan(gradients: list[float], expected: float):
    optimizer = mx.MultiSteps(mx.SGD(0.1), 2, noise_scale=True)
    found, state = fed(optimizer, np.tile(np.array(gradients)[:, None] / np.sqrt(6), (1, 6)))
    np.testing.assert_allclose(found["noise_scale"], expected, rtol=1e-5)
    chex.assert_tree_all_finite((found["grad_variance"], found["grad_squared_norm"], state.noise.deviations))
    if len(gradients) == 2:
        result = mx.critical_batch(jnp.array(gradients)[:, None], microbatch_size=8)
        np.testing.assert_allclose(result, 8 * np.float64(expected))
        mean, norms = jnp.mean(jnp.array(gradients)), jnp.abs(jnp.array(gradients))
        np.testing.assert_allclose(mx.critical_batch(mean, norms=norms), expected)


def test_steps_of_one_microbatch_measure_nothing():
    optimizer = mx.MultiSteps(mx.SGD(0.1), schedules.PiecewiseConstant(1.0, {2: 2.0}), noise_scale=True)
    gradients = gradients_of(jnp.float32, 4)
    found, _ = fed(optimizer, gradients[:2])
    assert (found["noise_scale"], found["grad_variance"]) == (0, 0)
    with jax.debug_nans(True), jax.disable_jit():  # no step on the way is NaN, where a user looks for one
        fed(optimizer, gradients[:1])
    found, _ = fed(optimizer, gradients)
    np.testing.assert_allclose(found["noise_scale"], scale_of(gradients[2:]), rtol=1e-5)


def test_little_noise_beside_a_large_gradient_does_not_cancel():
    """The difference of squared norms has no digit of it in float32."""
    gradients = 1000 + 1e-3 * np.array([[1.0], [-1.0], [3.0], [-3.0]])
    gradients = np.asarray(np.tile(gradients, (1, 6)), np.float32).astype(np.float64)
    found, _ = fed(mx.MultiSteps(mx.SGD(0.1), 4, noise_scale=True), gradients)
    np.testing.assert_allclose(found["grad_variance"], two_batch_sizes(gradients)[1], rtol=0.1)
    np.testing.assert_allclose(mx.critical_batch(jnp.asarray(gradients, jnp.float32)), scale_of(gradients), rtol=0.1)


# --- Where it is off, and where it is switched on ----------------------------------------------------


def test_without_it_the_state_is_as_before():
    optimizer = mx.MultiSteps(mx.SGD(0.1), 2)
    state = optimizer.init(jnp.zeros(2))
    assert (state.noise, len(jax.tree.leaves(state))) == (None, 4)
    assert optimizer.metrics(state).keys() == {"learning_rate", "gradient_step", "step"}
    (theirs, *_) = compat.chain(compat.MultiSteps(compat.sgd(0.1), 2).gradient_transformation()).init(jnp.zeros(2))
    assert theirs._fields == ("mini_step", "gradient_step", "inner_opt_state", "acc_grads", "skip_state")


def test_it_is_kept_in_a_chain_of_compat():
    optimizer = mx.MultiSteps(mx.SGD(0.1), 2, noise_scale=True)
    chain, params, gradients = compat.chain(optimizer), jnp.zeros(6), gradients_of(jnp.float32, 4)
    state, own = chain.init(params), optimizer.init(params)
    for g in map(jnp.asarray, gradients):
        _, state = chain.update(g, state, params)
        _, own = optimizer.update(g, own, params)
    chex.assert_trees_all_equal(state[0].noise, own.noise)


def test_it_can_be_switched_on_and_off_in_a_run():
    """The counters and the sums go on."""
    on, off = (mx.MultiSteps(mx.Adam(0.1), 2, noise_scale=x) for x in (True, False))
    params, gradients = jnp.zeros(6), gradients_of(jnp.float32, 5)
    step = functools.partial(on.update, params=params)
    state = off.init(params)
    for g in map(jnp.asarray, gradients[:3]):
        _, state = off.update(g, state, params)
    with pytest.raises(ValueError, match=r"of an optimizer without it\. .*`state, report = checkpoint\.carry"):
        step(jnp.asarray(gradients[3]), state)
    new, report = checkpoint.carry(on, params, off, state)
    assert (new.mini_step, new.gradient_step) == (1, 1)
    assert report.fresh.keys() == {f"noise.{name}" for name in vars(new.noise)}
    assert {*report.fresh.values()} == {"the old state has none"}
    chex.assert_trees_all_equal(new.acc_grads, state.acc_grads)
    _, new = step(jnp.asarray(gradients[3]), new)
    assert on.metrics(new)["noise_scale"] > 0
    back, report = checkpoint.carry(off, params, on, new)
    assert (back.noise, back.gradient_step, report.fresh) == (None, 2, {})


def test_numbers_that_are_not_measured_have_another_form_in_a_state_without_them():
    params = jnp.zeros(300)
    exact, random = (mx.LowBit(mx.Adam(0.1), stochastic=x) for x in (False, True))
    _, report = checkpoint.carry(random, params, exact, exact.init(params))
    assert report.fresh == {"rng_key": "the numbers that all parameters share have another form in the old state"}


def test_stacked_refuses_it():
    """The noise scale is that of all arrays, and `Stacked` has each alone."""
    with pytest.raises(ValueError, match=r"`MultiSteps` may combine arrays.*MultiSteps\(Stacked"):
        mx.Stacked(mx.MultiSteps(mx.SGD(0.1), 2, noise_scale=True))


@pytest.mark.parametrize("grads, says", [
    ({"a": np.zeros((3, 2)), "b": np.zeros(2)}, r"the shapes are \(3, 2\) in `a`, \(2,\) in `b`\. Write"),
    ({"a": np.zeros((3, 2)), "b": np.zeros(())}, r"\(\) in `b`\. Write"),
    (np.zeros(()), r"the shapes are \(\)\. Write"),
    ({}, r"the shapes are those of no array\. Write"),
    ({"a": np.zeros((1, 2))}, r"needs at least two gradients, and the arrays have shapes such as \(1, 2\)\. Write"),
])  # fmt: skip
def test_gradients_without_a_leading_axis_are_refused(grads: Any, says: str):
    with pytest.raises(ValueError, match=rf"`critical_batch`.*{says} `critical_batch\(jax\.vmap\(jax\.grad\(loss\)"):
        mx.critical_batch(grads)
