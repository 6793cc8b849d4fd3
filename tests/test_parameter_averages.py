"""`ParamEMA` and `ParamAverage`: which parameters are averaged, with which weights, and what the rest of a run sees."""

from pathlib import Path
from typing import Any

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

import modulax as mx
import modulax.linen
import modulax.nnx
from modulax import checkpoint, schedules

from .settings import jax_defaults
from .test_averaging import PARAMS, train

STEPS = 12


def path_of(transform: Any, params: Any = None, steps: int = STEPS) -> tuple[Any, Any, Any]:
    """The parameters and the evaluation parameters after each step, and the last state."""
    params = {"w": jnp.asarray([1.0, -2.0, 0.5])} if params is None else params

    @jax.jit
    def run(transform: Any, params: Any) -> Any:
        def body(carry: Any, t: Any) -> Any:
            params, state = carry
            grads = jtu.tree_map(lambda p: p + jnp.cos(t).astype(p.dtype), params)
            params, state = transform.step(grads, state, params)
            return (params, state), (params, transform.eval_params(state, params))

        (_, state), paths = jax.lax.scan(body, (params, transform.init(params)), jnp.arange(float(steps)))
        return *paths, state

    return run(transform, params)


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
def test_without_debias_it_starts_from_the_parameters():
    initial = np.asarray([1.0, -2.0, 0.5])
    for start, every in ((0, 1), (3, 2)):
        points, means, _ = path_of(mx.ParamEMA(mx.SGD(0.3), 0.9, debias=False, start=start, every=every))
        points, mean = np.asarray(points["w"]), initial
        for n, (point, found) in enumerate(zip(points, means["w"], strict=True), 1):
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


def test_the_average_of_bfloat16_parameters_is_of_the_rounded_ones_in_float32():
    for transform in (
        mx.ParamEMA(mx.SGD(0.3), 0.9),
        mx.ParamAverage(mx.SGD(0.3)),
        mx.ParamAverage(mx.SGD(0.3), window=5),
    ):
        points, means, state = path_of(transform, {"w": BF16["w"]})
        rounded = np.asarray(points["w"]).astype(np.float64)
        if isinstance(state, mx.states.ParamEMAState):
            expected, mean = weighted_means(rounded, lambda _: 0.9, 0, 1)[-1], state.ema["w"]
        else:
            last = rounded[-5:] if state.average is None else rounded
            expected, mean = last.mean(0), None if state.average is None else state.average["w"]
        if mean is not None:
            assert mean.dtype == jnp.float32
            np.testing.assert_allclose(mean, expected, rtol=1e-6, atol=1e-7)
        assert means["w"].dtype == jnp.bfloat16
        np.testing.assert_array_equal(means["w"][-1], expected.astype(np.float32).astype(jnp.bfloat16))


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


def test_parameters_that_are_not_averaged_have_no_influence():
    """Not even NaN, and a window forgets a NaN that was averaged."""
    params, bad = {"w": jnp.ones(2)}, {"w": jnp.full(2, jnp.nan)}
    transforms: Any = mx.ParamEMA(mx.Identity(), 0.5, every=2), mx.ParamAverage(mx.Identity(), every=2)
    for transform in transforms:
        state = transform.init(params)
        for g in (bad, params):
            _, state = transform.update(g, state, params)
        np.testing.assert_array_equal(transform.eval_params(state, params)["w"], 2)
    window = mx.ParamAverage(mx.Identity(), window=2)
    state = window.init(params)
    for g in (bad, params, params):
        _, state = window.update(g, state, params)
    np.testing.assert_array_equal(window.eval_params(state, params)["w"], 2)


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


def test_numbers_are_live():
    """One program for all decays, starts and periods; a sweep averages each run with its own."""
    decays = jnp.asarray([0.5, 0.9])
    batch = jax.vmap(lambda d: mx.ParamEMA(mx.SGD(0.3), d))(decays)
    swept = jax.vmap(lambda t: path_of(t)[1]["w"][-1])(batch)
    for decay, found in zip(decays, swept, strict=True):
        np.testing.assert_allclose(found, path_of(mx.ParamEMA(mx.SGD(0.3), decay))[1]["w"][-1], rtol=1e-6)
    optimizer = mx.ParamEMA(mx.SGD(0.1), schedules.EMAWarmup(0.99))
    _, state = train(optimizer)
    np.testing.assert_allclose(optimizer.metrics(state)["decay"], 6 / 15, rtol=1e-6)
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


def test_an_average_is_added_to_a_run_that_was_saved_without_one(tmp_path: Path):
    with jax_defaults():
        params, state = train(mx.AdamW(0.1))
        checkpoint.save(tmp_path / "run", {"params": params, "state": state})
        for optimizer in (mx.ParamEMA(mx.AdamW(0.1)), mx.ParamAverage(mx.AdamW(0.1))):
            template = {"params": PARAMS, "state": optimizer.init(PARAMS)}
            restored, report = checkpoint.restore(tmp_path / "run", template, strict=False)
            assert not report.unused
            chex.assert_trees_all_equal(restored["state"].inner_state, state)
            chex.assert_trees_all_equal(optimizer.eval_params(restored["state"], restored["params"]), params)
            # The average begins with the first step, and knows nothing of the parameters of the template.
            params_1, state_1 = optimizer.step(PARAMS, restored["state"], restored["params"])
            chex.assert_trees_all_equal(optimizer.eval_params(state_1, params_1), params_1)


def test_snapshots_are_sharded_like_the_parameters():
    """So is the memory of L-BFGS, which has a leading axis too."""
    mesh = jax.make_mesh((8,), ("data",))
    over = NamedSharding(mesh, PartitionSpec("data"))
    params = {"w": jax.device_put(jnp.ones((8, 4)), over)}
    transform = mx.ParamAverage(mx.SGD(0.1), window=3)
    state = jax.jit(transform.init, out_shardings=mx.state_sharding(transform, params))(params)
    for _ in range(2):
        params, state = transform.step(params, state, params)
    assert state.snapshots["w"].sharding.shard_shape((3, 8, 4)) == (3, 1, 4)
    assert transform.eval_params(state, params)["w"].sharding.shard_shape((8, 4)) == (1, 4)
    np.testing.assert_allclose(transform.eval_params(state, params)["w"], (0.9 + 0.81) / 2, rtol=1e-6)
    memory = mx.tree.get(mx.state_sharding(mx.LBFGS(linesearch=None), params), "diff_params_memory")
    assert memory["w"].shard_shape((10, 8, 4)) == (10, 1, 4)


# --- Flax ------------------------------------------------------------------------------------------


class Net(nnx.Module):
    """A small convolutional network with batch normalization."""

    def __init__(self, rngs: nnx.Rngs):
        self.conv = nnx.Conv(1, 4, (3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(4, rngs=rngs)
        self.out = nnx.Linear(4, 2, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.out(nnx.relu(self.norm(self.conv(x))).mean((1, 2)))


def images(seed: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), (8, 6, 6, 1))


def update_batch_norm(model: Any, batches: Any) -> None:
    """As in the documentation."""
    norms = [m for _, m in nnx.iter_modules(model) if isinstance(m, nnx.BatchNorm)]
    model.train()
    for i, x in enumerate(batches):
        for norm in norms:
            norm.momentum = i / (i + 1)
        model(x)
    model.eval()


def test_a_flax_nnx_model_with_batch_normalization_under_its_average():
    with jax_defaults():
        model = Net(nnx.Rngs(0))
        optimizer = modulax.nnx.Optimizer(model, mx.ParamEMA(mx.AdamW(1e-2), 0.9))

        @nnx.jit
        def step(model: Any, optimizer: Any, x: jax.Array) -> Any:
            optimizer.update(model, nnx.grad(lambda m: jnp.mean((m(x) - x.mean((1, 2))) ** 2))(model))
            return nnx.state(model, nnx.Param)

        points = [nnx.to_pure_dict(step(model, optimizer, images(i))) for i in range(5)]
        averaged = nnx.clone(model)
        nnx.update(averaged, optimizer.eval_params(model))
        weights = 0.9 ** np.arange(5)[::-1]
        expected = jtu.tree_map(lambda *p: np.average(np.stack(p), axis=0, weights=weights), *points)
        chex.assert_trees_all_close(nnx.to_pure_dict(nnx.state(averaged, nnx.Param)), expected, rtol=1e-5, atol=1e-7)
        update_batch_norm(averaged, [images(i) for i in range(3)])
        activations = np.concatenate([averaged.conv(images(i)) for i in range(3)])
        np.testing.assert_allclose(averaged.norm.mean[...], activations.mean((0, 1, 2)), rtol=1e-5, atol=1e-6)


def test_a_linen_model_under_its_average():
    with jax_defaults():
        model = nn.Sequential([nn.Dense(4), jnp.tanh, nn.Dense(1)])
        x = jnp.linspace(-1, 1, 8)[:, None]
        tx = mx.ParamAverage(mx.AdamW(1e-2), window=2)
        params = model.init(jax.random.key(0), x)
        state: Any = modulax.linen.TrainState.create(apply_fn=model.apply, params=params, tx=tx)

        def loss(params: Any) -> jax.Array:
            output: Any = model.apply(params, x)
            return jnp.mean((output - x**2) ** 2)

        step = jax.jit(lambda state: state.apply_gradients(grads=jax.grad(loss)(state.params)))
        points = []
        for _ in range(3):
            state = step(state)
            points.append(state.params)
        chex.assert_trees_all_close(
            state.eval_params, jtu.tree_map(lambda a, b: (a + b) / 2, *points[1:]), rtol=1e-6, atol=1e-7
        )
