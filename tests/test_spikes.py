"""Skipped and clipped spikes: `SkipSpikes`, `ClipByRunningNorm`, `ClipByNormPercentile`, `StableAdamW`.

That their rules are those of the released code is tested in `test_released_code.py`; here is what happens at the edges.
"""

import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import jaxtyping
import numpy as np
import pytest

import modulax as mx
from modulax.tree import norm

PARAMS = {"w": jnp.ones(3), "b": jnp.ones(())}  # gradients are multiples of it: the norm is twice the factor
NAN, INF = math.nan, math.inf
USUAL = (1.0, 1.1, 0.9, 1.0, 1.05, 0.95)


def run(transform: Any, factors: Any, losses: Any = None) -> tuple[Any, Any]:
    """The norms of the updates, and the states, after gradients of these sizes."""

    def body(state: Any, now: Any) -> Any:
        factor, loss = now
        grads = jtu.tree_map(lambda p: factor * p, PARAMS)
        updates, state = transform.update(grads, state, PARAMS, value=loss)
        return state, (norm(updates), state)

    each = jnp.array(factors), jnp.array(factors if losses is None else losses)
    return jax.jit(lambda: jax.lax.scan(body, transform.init(PARAMS), each)[1])()


def skips(transform: mx.SkipSpikes, factors: Any, losses: Any = None) -> list[int]:
    """The steps that were skipped: those with zero updates, which are counted, and in which the inner step waits."""
    norms, states = run(transform, factors, losses)
    skipped = [i for i, x in enumerate(np.asarray(norms)) if x == 0]
    counts = np.cumsum(np.isin(np.arange(np.size(factors)), skipped))
    np.testing.assert_array_equal(states.skipped, counts)
    np.testing.assert_array_equal(states.inner_state.step, np.arange(1, np.size(factors) + 1) - counts)
    return skipped


def test_a_spike_is_skipped_once_the_window_is_full():
    factors = (*USUAL[:2], 10.0, *USUAL, 1.3, *USUAL, 10.0, NAN, 1.0)
    spikes = skips(mx.SkipSpikes(mx.SGD(0.1), window=6, factor=3.0), factors)
    assert spikes == [9, 16, 17]  # not the first, nor one within the deviation that it has caused
    assert skips(mx.SkipSpikes(mx.SGD(0.1), 6, 3.0, warmup_steps=2), (1.0, 1.1, 10.0)) == [2]
    _, states = run(mx.SkipSpikes(mx.SGD(0.1), 6, 3.0), factors)
    assert states.consecutive_skips[-3:].tolist() == [1, 2, 0]


def test_the_threshold_is_that_of_numpy():
    factors = np.random.default_rng(0).uniform(0.5, 1.5, 12)
    _, states = run(mx.SkipSpikes(mx.SGD(0.1), 5, 2.0, "both", warmup_steps=3), factors, 7 - factors)
    found = states.measurements
    for name, values in (("norm", 2 * factors), ("loss", 7 - factors)):
        last = [values[max(i - 5, 0) : i] for i in range(12)]
        expected = [np.finfo(np.float32).max if len(x) < 3 else np.mean(x) + 2 * np.std(x, ddof=1) for x in last]
        np.testing.assert_allclose(found[f"{name}_threshold"], expected, rtol=1e-5)
        np.testing.assert_allclose(found[name], values, rtol=1e-6)
        np.testing.assert_allclose(states.window[name][-1], values[-5:], rtol=1e-6)


def test_a_new_level_is_accepted():
    """After about n / (1 + k^2) steps, as the docstring says."""
    levels = (*USUAL, *USUAL, *USUAL[:4], *(20.0 + x for x in USUAL))
    assert skips(mx.SkipSpikes(mx.SGD(0.1), window=16, factor=2.0), levels) == [16, 17, 18, 19]


def test_what_is_not_finite_is_skipped_at_once_and_forgotten():
    factors = (NAN, 1.0, INF, 1.1, NAN, 0.9, 1.2)
    spikes = mx.SkipSpikes(mx.SGD(0.1), window=3, factor=1.0)
    assert skips(spikes, factors) == [0, 2, 4, 6]
    _, states = run(spikes, factors)
    assert np.isfinite(states.window["norm"]).all()
    assert states.count[-1] == 4


@pytest.mark.parametrize("by,skipped", [("norm", [4, 5]), ("loss", [3, 4]), ("both", [3, 4, 5])])
def test_by_the_norm_by_the_loss_or_by_both(by: Any, skipped: list[int]):
    spikes = mx.SkipSpikes(mx.SGD(0.1), window=3, factor=2.0, by=by)
    losses = (1.0, 1.1, 0.9, NAN, 9.0, 1.0)
    assert skips(spikes, (1.0, 1.1, 0.9, 1.0, 9.0, NAN), losses) == skipped


def test_rounding_is_no_spike_and_large_values_do_not_overflow():
    constant = mx.SkipSpikes(mx.SGD(0.1), window=7, factor=2.0, by="loss")
    assert skips(constant, [1.0] * 30, [0.1 + 1e-8 * (i % 9 == 8) for i in range(30)]) == []
    by_loss = mx.SkipSpikes(mx.SGD(0.1), window=3, factor=2.0, by="loss")
    assert skips(by_loss, [1.0] * 6, (1e37, 1.1e37, 0.9e37, 1e37, 5e37, 1.0)) == [4]
    assert skips(by_loss, [1.0] * 6, (-3.0, -3.1, -2.9, -3, 0.0, -math.inf)) == [4, 5]


def test_numbers_follow_schedules():
    strict = mx.SkipSpikes(mx.SGD(0.1), 4, mx.schedules.PiecewiseConstant(100.0, {6: 0.01}), warmup_steps=2)
    factors = (*USUAL, 1.5, 1.5)
    assert skips(strict, factors) == [6, 7]
    assert float(strict.hyperparameters(strict.init(PARAMS))["factor"]) == 100


def test_a_nan_is_skipped_while_jax_looks_for_nans():
    gates = (mx.SkipSpikes(mx.SGD(0.1), 4), mx.ApplyIfFinite(mx.SGD(0.1), 3), mx.LossScaling(mx.SGD(0.1)))
    for gate in gates:
        params, state = {"w": jnp.ones(2)}, gate.init({"w": jnp.ones(2)})
        with jax.debug_nans(True):
            params, state = jax.jit(lambda x, p, s, t=gate: t.step({"w": x / x}, s, p))(jnp.zeros(2), params, state)
        np.testing.assert_array_equal(params["w"], 1.0)
        assert float(gate.metrics(state).get("norm", INF)) == INF


CLIPPED = mx.Chain(mx.ClipByGlobalNorm(1.0), mx.SGD(0.1))


@pytest.mark.parametrize("gate", [mx.SkipSpikes(CLIPPED, 4), mx.LossScaling(mx.SkipSpikes(CLIPPED, 4))], ids=type)
def test_a_clip_inside_shares_the_norm(gate: Any):
    grads = {"w": jnp.ones((8, 128))}  # the window has one axis
    compiled: Any = jax.jit(gate.update).lower(grads, gate.init(grads)).compile()
    assert len(re.findall(r" reduce\(.*dimensions=\{0,1\}.*/reduce_sum", compiled.as_text())) == 1


GATES = [mx.SkipSpikes(CLIPPED, 4), mx.ApplyIfFinite(CLIPPED, 3), mx.LossScaling(CLIPPED, 1.0)]


@pytest.mark.parametrize("gate", GATES, ids=type)
def test_the_derivative_through_a_shared_norm_is_that_of_the_clip_or_zero(gate: Any):
    def moved(optimizer: Any, grads: Any) -> Any:
        updates, _ = optimizer.update(grads, optimizer.init(PARAMS))
        return updates["b"] - 2 * updates["w"][0]

    found, plain = (jax.jit(lambda g, t=t: jax.grad(moved, 1)(t, g)) for t in (gate, CLIPPED))
    for factor in (3.0, 0.1, 0.0):
        grads = {"w": factor * jnp.array([1.0, 2.0, 0.5]), "b": jnp.array(factor)}
        jtu.tree_map(lambda x, y: np.testing.assert_allclose(x, y, 1e-6), found(grads), plain(grads))
    for bad in (NAN, INF):
        jtu.tree_map(lambda x: np.testing.assert_array_equal(x, 0.0), found({**PARAMS, "b": jnp.array(bad)}))


def test_counters_are_metrics():
    spikes = mx.SkipSpikes(mx.AdamW(1e-3), 3, 2.0, by="both")
    names = {"skipped", "consecutive_skips", "norm", "norm_threshold", "loss", "loss_threshold"}
    assert spikes.metrics(spikes.init(PARAMS)).keys() == names | {"learning_rate", "step"}


def test_a_fixed_clip_logs_its_norm_on_request():
    """Without a state by default, so that it can be put into the chain of a checkpoint."""
    plain, logged = (mx.Chain(mx.ClipByGlobalNorm(1.0, logged=x), mx.SGD(1.0)) for x in (False, True))
    state = logged.init(PARAMS)
    for scale, clipped in ((3.0, 1), (0.5, 1), (1.0, 1), (INF, 2)):
        grads = {"w": jnp.asarray([scale, 0.0, 0.0]), "b": jnp.zeros(())}
        updates, state = logged.update(grads, state)
        found = logged.metrics(state)
        assert (float(found["norm"]), int(found["clipped"])) == (scale, clipped)
        np.testing.assert_array_equal(updates["w"], plain.update(grads, plain.init(PARAMS))[0]["w"])
    assert plain.metrics(plain.init(PARAMS)).keys() == {"learning_rate", "step"}


def test_errors_say_what_to_write(monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as for users: annotations are not checked
    spikes: Any = mx.SkipSpikes
    by_loss = spikes(mx.SGD(0.1), by="loss")
    for call, message in (
        (lambda: by_loss.step(PARAMS, by_loss.init(PARAMS), PARAMS), "`SkipSpikes` needs `value`"),
        (lambda: by_loss.update(PARAMS, by_loss.init(PARAMS)), "`SkipSpikes` needs `value`"),
        (lambda: spikes(mx.SGD(0.1), 1), r"`SkipSpikes\(window=...\)` must be an integer of at least 2"),
        (lambda: spikes(mx.SGD(0.1), by="norms"), r"SkipSpikes\(by=...\)` must be one of `'norm'`, `'loss'`, `'both'`"),
        (lambda: mx.ClipByNormPercentile(101.0), r"percentile=...\)` must be in \[0, 100\]"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


ELSEWHERE = {"ZClip": "ClipByRunningNorm", "AutoClip": "ClipByNormPercentile", "ClipUpdateRMS": "StableAdamW"}


@pytest.mark.parametrize("name", [*ELSEWHERE, "skip_step_on_spikes"])
def test_names_from_elsewhere_are_answered(name: str):
    with pytest.raises(AttributeError, match=f"Write `modulax.{ELSEWHERE.get(name, 'SkipSpikes')}`"):
        getattr(mx, name)


# --- Clipping -------------------------------------------------------------------------------------


def test_outliers_are_clipped_towards_the_mean():
    clip = mx.ClipByRunningNorm(z_threshold=2.0, warmup_steps=6)
    norms, states = run(clip, (*USUAL, 5.0, 10.0, 1.0))
    usual = 2 * np.array(USUAL)
    np.testing.assert_allclose(norms[:6], usual, rtol=1e-6)  # nothing is clipped in the warm-up
    np.testing.assert_allclose(states.mean[5], usual.mean(), rtol=1e-6)
    np.testing.assert_allclose(states.variance[5], usual.var(), rtol=1e-5)
    assert usual.mean() < norms[7] < norms[6] < usual.mean() + 2 * usual.std()  # the larger, the closer to the mean
    assert states.clipped.tolist() == [0] * 6 + [1, 2, 2]
    np.testing.assert_allclose(states.norm, 2 * np.array([*USUAL, 5.0, 10.0, 1.0]), rtol=1e-6)


@pytest.mark.parametrize("clip", [mx.ClipByRunningNorm(warmup_steps=3), mx.ClipByNormPercentile(100.0, 3)], ids=str)
def test_what_is_not_finite_is_not_recorded(clip: Any):
    """An infinite norm is erased, also before there is any other, and a NaN stays visible."""
    norms, states = run(clip, (INF, NAN, 1.0, 1e30, INF, 1.1, 0.9, NAN, 1.0))
    np.testing.assert_array_equal(np.isnan(norms), np.isin(np.arange(9), [1, 7]))
    assert norms[0] == norms[4] == 0
    assert states.seen[-1] == 4
    assert all(np.isfinite(x).all() for name, x in vars(states).items() if name in ("mean", "variance", "window"))


def test_the_percentile_is_that_of_numpy():
    factors = np.random.default_rng(1).uniform(0.5, 1.5, 12)
    for percentile in (0.0, 35.0, 100.0):
        norms, _ = run(mx.ClipByNormPercentile(percentile, 5), factors)
        bounds = [np.percentile(2 * factors[max(i - 4, 0) : i + 1], percentile) for i in range(12)]
        np.testing.assert_allclose(norms, np.minimum(2 * factors, bounds), rtol=1e-5)


def test_stable_adamw_at_zero_and_where_squares_overflow():
    norms, _ = run(mx.StableAdamW(1.0, eps=1e-30, weight_decay=0.0), (0.0, 1e25, 1.0))
    assert norms[0] == 0
    assert np.isfinite(norms).all()


def test_the_weight_decay_of_stable_adamw_is_reduced_and_masked():
    """A step of the gradient that is twice as large as its second moment says is halved, and its decay with it."""
    params = {"w": jnp.full(3, 2.0), "b": jnp.full(3, 2.0)}
    optimizer = mx.StableAdamW(0.1, 0.0, 0.75, 0.0, weight_decay=0.5, mask=mx.by_path({"w": True, "b": False}))
    state = optimizer.init(params)
    for size in (1.0, 10.0):
        grads = jax.tree.map(lambda p, size=size: size * jnp.ones_like(p), params)
        updates, state = optimizer.update(grads, state, params)
    rms = 10 / np.sqrt((0.25 * 0.75 + 0.25 * 100) / (1 - 0.75**2))
    assert rms > 1
    np.testing.assert_allclose(updates["b"], -0.1, rtol=1e-5)
    np.testing.assert_allclose(updates["w"], -0.1 * (1 + 0.5 * 2.0 / rms), rtol=1e-5)
    rows = {row.path: row.weight_decay for row in mx.describe(optimizer, params).leaves}
    assert rows == {"w": "0.5", "b": ""}
