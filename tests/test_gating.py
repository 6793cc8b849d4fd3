"""Containers whose transform does not run at every step: what they let through, and what they remember."""

from typing import Any

import chex
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import optax
import pytest

import modulax as mx

from .probes import Noted, runs
from .settings import jax_defaults

STEPS = 60
PARAMS = {"w": np.asarray([1.0, -2.0]), "b": np.asarray(0.5)}


def gradients(bad: dict[int, float]) -> Any:
    """Gradients for all steps, in some of which one entry is NaN or infinite."""
    random = np.random.default_rng(0)
    grads = {"w": random.normal(size=(STEPS, 2)), "b": random.normal(size=STEPS)}
    for step, value in bad.items():
        (grads["w"][:, step % 2] if step % 3 else grads["b"])[step] = value
    return grads


def trajectory(transform: Any, grads: Any) -> Any:
    """The updates and the states of all steps, from the same parameters."""

    def body(state: Any, g: Any) -> Any:
        updates, state = transform.update(g, state, params, value=jnp.sum(g["w"]))
        return state, (updates, state)

    params = jtu.tree_map(jnp.asarray, PARAMS)
    grads = jtu.tree_map(jnp.asarray, grads)
    return jax.jit(lambda: jax.lax.scan(body, transform.init(params), grads)[1])()


def taken(updates: Any) -> list[int]:
    """The steps at which an infinity came through."""
    return np.flatnonzero(np.isinf(updates["w"]).any(axis=1) | np.isinf(updates["b"])).tolist()


# --- ApplyIfFinite -------------------------------------------------------------------------------

# One, two and three bad ones in a row, among them at the first step and at the last.
COME_AND_GO = {i: [np.nan, np.inf, -np.inf][i % 3] for i in (0, 7, 8, 15, 16, 17, 20, 22, 24, 40, 41, 42, 58, 59)}


@pytest.mark.usefixtures("x64")
def test_bad_gradients_that_come_and_go_are_ignored_as_in_optax():
    grads = gradients(COME_AND_GO)
    ours, state = trajectory(mx.ApplyIfFinite(mx.Adam(0.1), 3), grads)
    with jax_defaults():
        theirs, twin = trajectory(optax.apply_if_finite(optax.adam(0.1), 3), grads)
    chex.assert_trees_all_close(ours, theirs, rtol=1e-12)
    for field in ("notfinite_count", "last_finite", "total_notfinite"):
        np.testing.assert_array_equal(getattr(state, field), getattr(twin, field), field)
    assert state.total_notfinite[-1] == len(COME_AND_GO)
    chex.assert_tree_all_finite((ours, state))
    # What is ignored leaves no trace: the same as if these batches had never been.
    good = [i for i in range(STEPS) if i not in COME_AND_GO]
    alone, _ = trajectory(mx.Adam(0.1), jtu.tree_map(lambda g: g[good], grads))
    jtu.tree_map(lambda a, b: np.testing.assert_allclose(np.asarray(a)[good], b, rtol=1e-12), ours, alone)


def test_after_giving_up_it_counts_anew():
    """Two in a row are ignored, the third is taken; optax then takes the fourth and the fifth as well."""
    grads = gradients(dict.fromkeys([3, 4, 5, 6, 7, 9, 10], np.inf))
    ours, state = trajectory(mx.ApplyIfFinite(mx.Scale(1.0), 2), grads)
    with jax_defaults():
        theirs, twin = trajectory(optax.apply_if_finite(optax.scale(1.0), 2), grads)
    assert taken(ours) == [5]
    assert taken(theirs) == [5, 6, 7]
    assert state.notfinite_count[3:12].tolist() == [1, 2, 0, 1, 2, 0, 1, 2, 0]
    assert twin.notfinite_count[3:12].tolist() == [1, 2, 3, 4, 5, 0, 1, 2, 0]
    assert state.total_notfinite[-1] == 7
    np.testing.assert_array_equal(state.last_finite, [i not in (3, 4, 5, 6, 7, 9, 10) for i in range(STEPS)])


def test_none_or_all_may_be_ignored():
    bad = {"w": jnp.asarray([1.0, jnp.nan])}
    for limit, is_taken in ((0, True), (jnp.inf, False)):
        transform = mx.ApplyIfFinite(mx.Identity(), limit)
        state = transform.init(bad)
        assert state.last_finite
        for _ in range(3):
            updates, state = transform.update(bad, state)
            assert not state.last_finite
            assert np.isnan(updates["w"][1]) == is_taken
            assert updates["w"][0] == (1 if is_taken else 0)
        assert state.total_notfinite == 3


def test_the_transform_does_not_run_on_a_bad_batch():
    runs.clear()
    transform = mx.ApplyIfFinite(mx.Chain(Noted(), mx.ScaleByAdam()), 5)
    state = transform.init(jnp.zeros(2))
    for g in (1.0, jnp.nan, 1.0, jnp.inf, jnp.nan):
        updates, state = transform.update(jnp.full(2, g), state)
        np.testing.assert_allclose(updates, 1.0 if g == 1 else 0.0, rtol=1e-5)
    jax.effects_barrier()
    assert len(runs) == 2
    assert state.inner_state["scale_by_adam"].count == 2


def test_the_gradients_of_examples_may_be_bad_too():
    """A transform that takes a gradient for each example returns one for all of them."""
    inner = mx.DifferentiallyPrivateAggregate(1.0, 0.0, 0)
    transform = mx.ApplyIfFinite(inner, 1)
    params = jnp.zeros(2)
    grads = jnp.asarray([[0.1, 0.2], [0.3, 0.4]])
    updates, state = transform.update(grads, transform.init(params), params)
    np.testing.assert_allclose(updates, [0.2, 0.3], rtol=1e-6)
    updates, state = transform.update(grads.at[0].set(jnp.nan), state, params)
    np.testing.assert_array_equal(updates, [0, 0])
    assert state.notfinite_count == 1


def test_the_limit_can_be_swept_and_must_not_be_negative():
    def updates(limit: Any) -> Any:
        transform = mx.ApplyIfFinite(mx.Identity(), limit)
        return trajectory(transform, gradients(dict.fromkeys(range(4), jnp.inf)))[0]

    found = jax.vmap(updates)(jnp.asarray([0.0, 1.0, 2.0, 3.0]))
    each = [jtu.tree_map(lambda x, i=i: x[i], found) for i in range(4)]
    assert [taken(updates) for updates in each] == [[0, 1, 2, 3], [1, 3], [2], [3]]
    with pytest.raises(ValueError, match=r"`ApplyIfFinite\(max_consecutive_errors=.*\)` must be a whole number"):
        mx.ApplyIfFinite(mx.Identity(), -1)


# --- ApplyEvery ----------------------------------------------------------------------------------


def test_a_sum_recovers():
    """An infinity comes through with its sum, and is gone."""
    grads = gradients({6: np.inf})
    updates, state = trajectory(mx.ApplyEvery(3), grads)
    assert taken(updates) == [8]
    np.testing.assert_allclose(updates["w"][11], grads["w"][9:12].sum(axis=0), rtol=1e-5)
    between = [i for i in range(STEPS) if i % 3 < 2]
    np.testing.assert_array_equal(np.asarray(updates["w"])[between], 0)
    assert state.count.tolist() == [1, 2, 0] * (STEPS // 3)


later: Any = mx.schedules.WrappedSchedule(lambda step: jnp.where(step < 3, 1, 2))


def test_its_k_may_change_during_the_run():
    g, sums = jnp.ones(2), []
    transform = mx.ApplyEvery(3)
    state = transform.init(g)
    for k in (3, 3, 2, 1, 2, 2):
        updates, state = transform.replace(k=k).update(g, state)
        sums.append(float(updates[0]))
    assert sums == [0, 0, 3, 1, 0, 2]
    scheduled = mx.Scheduled(mx.ApplyEvery(later))
    state, sums = scheduled.init(g), []
    for _ in range(7):
        updates, state = scheduled.update(g, state)
        sums.append(float(updates[0]))
    assert sums == [1, 1, 1, 0, 2, 0, 2]
    with pytest.raises(ValueError, match=r"Write `Scheduled\(ApplyEvery\(k=\.\.\.\)\)`"):
        transform.replace(k=later).update(g, transform.init(g))


def test_a_sum_is_kept_in_float32():
    """256 + 1 is 256 in bfloat16."""
    transform = mx.ApplyEvery(4)
    state = transform.init(jnp.zeros(2, jnp.bfloat16))
    for g in (256.0, 1.0, 1.0, 2.0):
        updates, state = transform.update(jnp.full(2, g, jnp.bfloat16), state)
    np.testing.assert_array_equal(updates, jnp.full(2, 260, jnp.bfloat16))


# --- ConditionallyTransform, ConditionallyMask ----------------------------------------------------


def in_bursts(step: Any) -> Any:
    return (step % 7 < 3) | (step > 50)


def where_positive(step: Any, *, value: Any, **extra: Any) -> Any:
    del extra
    return (value > 0) & (step > 4)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("condition, forwards", [(in_bursts, False), (where_positive, True)])
def test_conditions_of_the_step_and_of_extra_arguments(condition: Any, forwards: bool):
    grads = gradients({})
    pairs: tuple[Any, ...] = (
        (mx.ConditionallyTransform, optax.conditionally_transform),
        (mx.ConditionallyMask, optax.conditionally_mask),
    )
    for ours, theirs in pairs:
        found = trajectory(ours(mx.ScaleByAdam(), condition, forwards), grads)
        with jax_defaults():
            twin = trajectory(theirs(optax.scale_by_adam(), condition, forwards), grads)
        chex.assert_trees_all_close(found[0], twin[0], rtol=1e-12)
        np.testing.assert_array_equal(found[1].step, twin[1].step)
        np.testing.assert_array_equal(found[1].inner_state.count, twin[1].inner_state.count)
        assert 0 < found[1].inner_state.count[-1] < STEPS


def test_between_the_steps_the_transform_does_not_run():
    """One lets the updates pass, one stops them; neither runs the transform, or gives it less to count."""
    g = jnp.asarray([3.0, 5.0])
    for cls, otherwise in ((mx.ConditionallyTransform, 1), (mx.ConditionallyMask, 0)):
        runs.clear()
        rate = mx.ScaleByLearningRate(mx.schedules.Linear(2.0, 4.0, 2), flip_sign=False)
        transform: Any = cls(mx.Chain(Noted(), rate), lambda step: step % 2 == 1)
        state = transform.init(g)
        factors = []
        for _ in range(6):
            updates, state = transform.update(g, state)
            factors.append(float(updates[0] / g[0]))
        jax.effects_barrier()
        assert factors == [otherwise, 2, otherwise, 3, otherwise, 4]
        assert len(runs) == 3
        assert state.step == 6
        assert transform.hyperparameters(state)["inner.parts.scale_by_learning_rate.learning_rate"] == 4


def test_a_condition_must_be_a_boolean():
    transform = mx.ConditionallyMask(mx.Identity(), lambda step: step % 2)
    with pytest.raises(ValueError, match=r"`ConditionallyMask\(should_transform_fn=\.\.\.\)` must return a boolean"):
        transform.update(jnp.ones(2), transform.init(jnp.ones(2)))


def test_the_gradients_of_examples_cannot_pass():
    inner = mx.DifferentiallyPrivateAggregate(1.0, 0.0, 0)
    with pytest.raises(ValueError, match=r"Write `ConditionallyMask\(\.\.\.\)`, which returns zeros then"):
        mx.ConditionallyTransform(inner, in_bursts)
    masked = mx.ConditionallyMask(inner, lambda step: step > 0)
    state = masked.init(jnp.zeros(2))
    for expected in (0.0, 0.5):
        updates, state = masked.update(jnp.full((3, 2), 0.5), state, jnp.zeros(2))
        np.testing.assert_allclose(updates, expected, rtol=1e-6)


def test_a_condition_is_a_function():
    for container in (mx.ConditionallyMask, mx.ConditionallyTransform):
        given: Any = 3
        with pytest.raises((ValueError, TypeError), match=r"must be a function of the step, got 3|should_transform_fn"):
            container(mx.SGD(0.1), given)
