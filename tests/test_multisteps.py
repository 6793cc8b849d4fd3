"""MultiSteps: what it accumulates, when it steps, and what it leaves out."""

import functools
from typing import Any

import chex
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
    """In bfloat16 it is kept in float32: there, 256 + 1 is 256."""
    transform = mx.MultiSteps(mx.Identity(), 2, use_grad_mean=False)
    assert _steps(transform, [1.0, 2.0, 3.0, 4.0]) == [0, 3, 0, 7]
    out, state = _feed(transform.replace(every_k=4), [256.0, 1.0, 1.0, 2.0], jnp.zeros(2, jnp.bfloat16))
    assert (state.acc_grads.dtype, out[-1].dtype) == (jnp.float32, jnp.bfloat16)
    np.testing.assert_array_equal(out[-1], 260)


def test_a_schedule_of_steps():
    """One batch for the first step, two for the second, three for the third: it counts steps."""
    transform = mx.MultiSteps(mx.Identity(), schedules.Linear(1.0, 3.0, 2))
    state, out, due = transform.init(jnp.zeros(2)), [], []
    assert not transform.has_updated(state)
    for g in [1.0] * 6 + [5.0] * 3:
        due.append([int(transform.at(state).every_k), int(transform.hyperparameters(state)["every_k"])])
        u, state = transform.update(jnp.full(2, g), state)
        out.append(float(u[0]))
        assert bool(transform.has_updated(state)) == (out[-1] != 0)
    assert [u != 0 for u in out] == [True, False, True, False, False, True, False, False, True]
    assert due == [[k, k] for k in (1, 2, 2, 3, 3, 3, 3, 3, 3)]
    assert out[-1] == pytest.approx(5.0)


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_a_gradient_that_is_not_finite_spoils_one_step_and_no_more(bad: float):
    """Between steps the updates are zeros, whatever the gradients."""
    out, state = _feed(mx.MultiSteps(mx.SGD(1.0), 2), [bad, 1.0, 1.0, 3.0])
    assert not np.any(np.isfinite(out[1]))
    np.testing.assert_array_equal([out[0], out[2], out[3]], [[0, 0], [0, 0], [-2, -2]])
    chex.assert_tree_all_finite(state)


@pytest.mark.parametrize("bad", [np.inf, np.nan])
@pytest.mark.parametrize("mean", [True, False])
def test_a_batch_can_be_left_out(bad: float, mean: bool):
    """It counts for nothing: the step is made of the others, and comes one call later."""
    transform = mx.MultiSteps(mx.Identity(), 2, use_grad_mean=mean, should_skip=mx.skip_not_finite)
    out, state = _feed(transform, [1.0, bad, 3.0, bad])
    np.testing.assert_array_equal([u[0] for u in out], [0, 0, 2 if mean else 4, 0])
    assert state.skip_state["should_skip"]
    assert (state.mini_step, state.gradient_step) == (0, 1)
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
@pytest.mark.parametrize("name, settings", [("skip_not_finite", {}), ("skip_large_updates", {"max_squared_norm": 9.0})])
def test_the_functions_that_skip_are_those_of_optax(name: str, settings: dict[str, float]):
    """NaN, infinities and large batches that come and go, with a k that grows, over 60 batches."""
    random = np.random.default_rng(0)
    grads: Any = {"w": random.normal(size=(60, 3)), "b": random.normal(size=60)}
    for step in (0, 5, 6, 7, 20, 21, 33, 34, 35, 36, 59):
        grads["w"][step, : step % 3 + 1] = [np.nan, np.inf, -np.inf][step % 3]
    grads["b"][[3, 11, 12, 40]] = 1e3
    grads = jtu.tree_map(jnp.asarray, grads)
    ours, theirs = (functools.partial(getattr(library, name), **settings) for library in (mx, optax))
    found, state = _trajectory(mx.MultiSteps(mx.Adam(0.1), growing, should_skip=ours), grads)
    with jax_defaults():
        options: Any = {"should_skip_update_fn": theirs, "accumulator_dtype": jnp.float64}
        twin, their_state = _trajectory(optax.MultiSteps(optax.adam(0.1), growing, **options), grads)
    chex.assert_tree_all_finite(found)
    chex.assert_trees_all_close(found, twin, rtol=1e-10, atol=1e-14)
    assert state.skip_state.keys() == their_state.skip_state.keys()
    chex.assert_trees_all_close(state.skip_state, dict(their_state.skip_state), rtol=1e-7)
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


def test_inside_out():
    """Two levels: four batches make a step."""
    transform = mx.MultiSteps(mx.MultiSteps(mx.Identity(), 2), 2)
    assert _steps(transform, [1.0, 2.0, 3.0, 6.0]) == [0, 0, 0, 3]
