"""MultiSteps: what it accumulates, when it steps, and what it leaves out."""

import functools
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
from modulax import schedules

from .probes import Noted, runs
from .settings import jax_defaults


def _feed(transform: Any, gradients: Any, params: Any = None) -> tuple[list[Any], Any]:
    params = jnp.zeros(2) if params is None else params
    state, out = transform.init(params), []
    for g in gradients:
        u, state = transform.update(jnp.full_like(params, g), state, params)
        out.append(u)
    jax.effects_barrier()
    return out, state


def _steps(transform: Any, gradients: Any) -> list[float]:
    return [float(u[0]) for u in _feed(transform, gradients)[0]]


def test_the_inner_transform_runs_only_when_a_step_is_made():
    runs.clear()
    out = _steps(mx.MultiSteps(Noted(), 3), [1.0, 2.0, 6.0, 1.0, 1.0])
    assert out == [0, 0, 3, 0, 0]
    assert len(runs) == 1


def test_the_sum_instead_of_the_mean():
    transform = mx.MultiSteps(mx.Identity(), 2, use_grad_mean=False)
    assert _steps(transform, [1.0, 2.0, 3.0, 4.0]) == [0, 3, 0, 7]


def test_a_schedule_of_steps():
    """One batch for the first step, two for the second, three for the third: it counts steps."""
    transform = mx.MultiSteps(mx.Identity(), schedules.Linear(1.0, 3.0, 2))
    out = _steps(transform, [1.0] * 6 + [5.0] * 3)
    assert [u != 0 for u in out] == [True, False, True, False, False, True, False, False, True]
    assert out[-1] == pytest.approx(5.0)


def test_a_schedule_is_seen_in_the_numbers_in_force():
    transform = mx.MultiSteps(mx.SGD(0.1), schedules.Linear(1.0, 3.0, 2))
    state = transform.init(jnp.zeros(2))
    assert transform.hyperparameters(state)["every_k"] == 1
    _, state = transform.update(jnp.ones(2), state)
    assert transform.hyperparameters(state)["every_k"] == 2


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_an_infinite_gradient_spoils_one_step_and_no_more(bad: float):
    out, state = _feed(mx.MultiSteps(mx.SGD(1.0), 2), [1.0, bad, 1.0, 3.0])
    assert not np.any(np.isfinite(out[1]))
    np.testing.assert_array_equal(out[2], 0)
    np.testing.assert_array_equal(out[3], -2)
    chex.assert_tree_all_finite(state)


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_nothing_leaks_between_two_steps(bad: float):
    """Between steps the updates are zeros, whatever the gradients."""
    out, _ = _feed(mx.MultiSteps(mx.SGD(1.0), 3), [bad, 1.0])
    np.testing.assert_array_equal(out, 0)


def _not_finite(updates: Any, step: Any, params: Any) -> tuple[Any, Any]:
    del step, params
    bad = jnp.logical_not(jnp.all(jnp.isfinite(updates)))
    return bad, {"bad": bad}


@pytest.mark.parametrize("bad", [np.inf, np.nan])
@pytest.mark.parametrize("mean", [True, False])
def test_a_batch_can_be_left_out(bad: float, mean: bool):
    """It counts for nothing: the step is made of the others, and comes one call later."""
    transform = mx.MultiSteps(mx.Identity(), 2, use_grad_mean=mean, should_skip=_not_finite)
    out, state = _feed(transform, [1.0, bad, 3.0, bad])
    scale = 1 if mean else 2
    np.testing.assert_array_equal([u[0] for u in out], [0, 0, 2 * scale, 0])
    assert state.skip_state["bad"]
    assert state.mini_step == 0
    assert state.gradient_step == 1
    np.testing.assert_array_equal(state.acc_grads, 0)


def test_what_should_skip_sees():
    def after_two(updates: Any, step: Any, params: Any) -> tuple[Any, Any]:
        return step >= 2, {"sum": jnp.sum(updates) + jnp.sum(params)}

    transform = mx.MultiSteps(mx.Identity(), 1, should_skip=after_two)
    out, state = _feed(transform, [1.0, 2.0, 3.0, 4.0], jnp.ones(2))
    assert [float(u[0]) for u in out] == [1, 2, 0, 0]
    assert state.skip_state["sum"] == 2 * 4 + 2


def growing(step: Any) -> Any:
    return jnp.where(step < 5, 2, 4)


def _trajectory(transform: Any, grads: Any) -> Any:
    """The updates and the states of all steps."""

    def body(state: Any, g: Any) -> Any:
        updates, state = transform.update(g, state, params)
        return state, (updates, state)

    params = jtu.tree_map(lambda g: g[0] * 0, grads)
    return jax.jit(lambda: jax.lax.scan(body, transform.init(params), grads)[1])()


@pytest.mark.usefixtures("x64")
def test_the_functions_that_skip_are_those_of_optax():
    """NaN, infinities and large batches that come and go, with a k that grows, over 60 batches."""
    random = np.random.default_rng(0)
    grads = {"w": random.normal(size=(60, 3)), "b": random.normal(size=60)}
    for step in (0, 5, 6, 7, 20, 21, 33, 34, 35, 36, 59):
        grads["w"][step, : step % 3 + 1] = [np.nan, np.inf, -np.inf][step % 3]
    grads["b"][[3, 11, 12, 40]] = 1e3
    grads = jtu.tree_map(jnp.asarray, grads)
    pairs: tuple[Any, ...] = (
        (mx.skip_not_finite, optax.skip_not_finite),
        *((functools.partial(f, max_squared_norm=9.0) for f in (mx.skip_large_updates, optax.skip_large_updates)),),
    )
    for ours, theirs in pairs:
        found, state = _trajectory(mx.MultiSteps(mx.Adam(0.1), growing, should_skip=ours), grads)
        with jax_defaults():
            multi = optax.MultiSteps(
                optax.adam(0.1),
                growing,
                should_skip_update_fn=theirs,
                accumulator_dtype=jnp.float64,
            )
            twin, their_state = _trajectory(multi, grads)
        for a, b in zip(jtu.tree_leaves(found), jtu.tree_leaves(twin), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-14)
            chex.assert_tree_all_finite(a)
        assert state.skip_state.keys() == their_state.skip_state.keys()
        for name, seen in state.skip_state.items():
            np.testing.assert_allclose(seen, their_state.skip_state[name], err_msg=name)
        np.testing.assert_array_equal(state.mini_step, their_state.mini_step)
        np.testing.assert_array_equal(state.gradient_step, their_state.gradient_step)
        assert 0 < np.sum(state.skip_state["should_skip"]) < 30


def test_a_large_batch_in_half_precision_and_of_complex_numbers():
    """The square of the norm is real and in float32: it neither overflows nor loses its imaginary part."""
    skip, seen = mx.skip_large_updates(jnp.full(4, 300.0, jnp.float16), 0, None, 400_000.0)
    assert not skip
    assert seen["norm_squared"] == 360_000
    skip, seen = mx.skip_large_updates({"z": jnp.asarray([3.0 + 4.0j])}, 0, None, 25.0)
    assert skip
    assert seen["norm_squared"] == 25
    skip, seen = mx.skip_not_finite({"z": jnp.asarray([1.0, complex(0, np.nan)]), "none": None}, 0, None)
    assert skip
    assert seen["num_not_finite"] == 1


def test_a_step_on_nothing_but_skipped_batches_is_never_made():
    runs.clear()
    transform = mx.MultiSteps(mx.Chain(Noted(), mx.Adam(0.1)), 2, should_skip=mx.skip_not_finite)
    out, state = _feed(transform, [np.nan, 1.0, np.inf, np.nan, 2.0, np.nan])
    assert [bool(u[0]) for u in out] == [False, False, False, False, True, False]
    assert len(runs) == 1
    assert state.inner_opt_state["adam"].step == 1


def test_the_inner_transform_sees_the_accumulators_dtype():
    """A mean of bfloat16 numbers lies between them; optax rounds it before the inner transform receives it."""

    def beyond_one(updates: Any, params: Any) -> Any:
        del params
        return jtu.tree_map(lambda u: 128 * (u - 1), updates)

    params = jnp.zeros(2, jnp.bfloat16)
    grads = [1.0, 1.0078125]  # neighbours in bfloat16
    ours, _ = _feed(mx.MultiSteps(mx.Stateless(beyond_one), 2), grads, params)
    np.testing.assert_array_equal(ours[-1], jnp.full(2, 0.5, jnp.bfloat16))
    with jax_defaults():
        twin = optax.MultiSteps(optax.stateless(beyond_one), 2)
        theirs, _ = _feed(twin, grads, params)
    assert theirs[-1][0] in (0, 1)
    coarse, state = _feed(mx.MultiSteps(mx.Identity(), 2, accumulator_dtype=jnp.bfloat16), grads, params)
    assert state.acc_grads.dtype == coarse[-1].dtype == jnp.bfloat16


def test_extra_arguments_reach_the_inner_transform():
    """The extra arguments of the batch that makes the step are used; the others are not."""
    transform = mx.MultiSteps(mx.PolyakSGD(max_learning_rate=10.0), 2)
    g = jnp.asarray([1.0, 1.0])
    state = transform.init(g)
    for value in (100.0, 4.0):
        updates, state = transform.update(g, state, g, value=value)
    np.testing.assert_allclose(updates, -2.0, rtol=1e-6)


def test_should_skip_must_return_a_boolean():
    transform = mx.MultiSteps(mx.Identity(), 2, should_skip=lambda u, s, p: (jnp.sum(u), ()))
    with pytest.raises(ValueError, match=r"`MultiSteps\(should_skip=\.\.\.\)` must return a boolean"):
        transform.init(jnp.zeros(2))


def test_whether_it_has_updated():
    transform = mx.MultiSteps(mx.SGD(0.1), 2)
    state = transform.init(jnp.zeros(2))
    seen = []
    for _ in range(5):
        _, state = transform.update(jnp.ones(2), state)
        seen.append(bool(transform.has_updated(state)))
    assert seen == [False, True, False, True, False]


def test_a_bfloat16_mean_is_accumulated_in_float32():
    """256 + 1 is 256 in bfloat16."""
    transform = mx.MultiSteps(mx.Identity(), 4, use_grad_mean=False)
    out, state = _feed(transform, [256.0, 1.0, 1.0, 2.0], jnp.zeros(2, jnp.bfloat16))
    assert state.acc_grads.dtype == jnp.float32
    assert out[-1].dtype == jnp.bfloat16
    np.testing.assert_array_equal(out[-1], 260)


def test_one_batch_per_step_is_the_transform_itself():
    alone, _ = _feed(mx.Adam(0.1), [1.0, -2.0, 3.0])
    wrapped, _ = _feed(mx.MultiSteps(mx.Adam(0.1), 1), [1.0, -2.0, 3.0])
    np.testing.assert_allclose(wrapped, alone, rtol=1e-6)


def test_inside_out():
    """Two levels: four batches make a step."""
    transform = mx.MultiSteps(mx.MultiSteps(mx.Identity(), 2), 2)
    assert _steps(transform, [1.0, 2.0, 3.0, 6.0]) == [0, 0, 0, 3]


def test_k_can_be_swept():
    """The number of batches is a number: transforms with different ones run as one program."""
    many = eqx.filter_vmap(lambda k: mx.MultiSteps(mx.Identity(), k))(jnp.asarray([1.0, 2.0]))

    def run(transform: Any) -> Any:
        state = transform.init(jnp.zeros(2))
        first, state = transform.update(jnp.ones(2), state)
        second, _ = transform.update(3 * jnp.ones(2), state)
        return first[0], second[0]

    first, second = eqx.filter_vmap(run)(many)
    np.testing.assert_array_equal(first, [1, 0])
    np.testing.assert_array_equal(second, [3, 2])


def test_the_number_of_batches_follows_the_steps_done():
    transform = mx.MultiSteps(mx.SGD(0.1), schedules.Linear(2.0, 10.0, 4))
    p = {"w": jnp.ones(1)}
    state, found = transform.init(p), []
    for _ in range(4):
        found.append(float(transform.at(state).every_k))
        _, state = transform.update(p, state, p)
    assert found == [2, 2, 4, 4]
