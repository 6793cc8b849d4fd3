"""Sophia, and the estimate of the Hessian's diagonal: when it is made, the key, the objective."""

import itertools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import optax
import pytest

import modulax as mx
from modulax import schedules
from modulax._support.keys import as_key, next_keys
from modulax.testing._case import counting_traces

from . import settings
from .transcriptions import SIZE, gradients, start

A = np.linspace(-1.0, 3.0, SIZE)


def separable(w: Any) -> Any:
    """Its Hessian is diagonal, so that every estimate is exact: A + w²."""
    return jnp.sum(jnp.asarray(A, w.dtype) * w**2 / 2 + w**4 / 12)


def coupled(w: Any) -> Any:
    return jnp.sum(w) ** 2 / 2 + separable(w)


# --- Liu et al. 2023, algorithm 3 ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("x64")
def test_an_estimate_is_used_at_once():
    """optax's first step divides by eps, whatever the curvature, and so takes a step of the bound."""
    w, g = jnp.full(SIZE, 2.0), jnp.full(SIZE, 0.3)
    numbers: dict[str, Any] = {"gamma": 100.0, "weight_decay": 0.0}
    ours = mx.Sophia(1.0, **numbers)
    u, _ = ours.update(g, ours.init(w), w, obj_fn=separable)
    np.testing.assert_allclose(u, -(0.035 * 0.3) / (100.0 * 0.01 * (A + 4)), rtol=1e-12)
    with settings.jax_defaults():
        theirs: Any = optax.contrib.sophia(1.0, **numbers)
        u, _ = theirs.update(g, theirs.init(w), w, obj_fn=separable)
    np.testing.assert_allclose(u, -1.0)
    follower = mx.Sophia(1.0, **numbers, follow="optax")
    np.testing.assert_allclose(follower.update(g, follower.init(w), w, obj_fn=separable)[0], -1.0)


def test_negative_curvature_gives_a_step_of_the_bound():
    w = jnp.zeros(SIZE)
    transform = mx.ScaleBySophia(gamma=1e6)
    u, _ = transform.update(jnp.full(SIZE, -1e-3), transform.init(w), w, obj_fn=separable)
    np.testing.assert_array_equal(u[A < 0], -1.0)
    assert np.all(np.abs(u[A > 0]) < 1e-3)


def test_an_estimate_is_made_in_every_kth_step():
    transform, w = mx.ScaleBySophia(update_interval=3), jnp.asarray(start(), jnp.float32)
    state = transform.init(w)
    keys = [np.asarray(state.hessian_fn_state.key)]
    for g in jnp.asarray(gradients()[:7], jnp.float32):
        _, state = transform.update(g, state, w, obj_fn=separable)
        keys.append(np.asarray(state.hessian_fn_state.key))
    changed = [not np.array_equal(a, b) for a, b in itertools.pairwise(keys)]
    assert changed == [True, False, False, True, False, False, True]


def test_another_estimator():
    """Any transform will do: here the squares of the gradients, which need no objective."""
    squares = mx.Stateless(lambda updates, params: jtu.tree_map(jnp.square, updates))
    transform = mx.ScaleBySophia(b1=0.0, b2=0.0, gamma=1.0, clip_threshold=None, hessian_diagonal_fn=squares)
    g = jnp.asarray([0.5, 4.0])
    u, _ = transform.update(g, transform.init(g), g)
    np.testing.assert_allclose(u, 1 / g, rtol=1e-6)


def test_a_schedule_in_the_bare_transform():
    bound: Any = schedules.Linear(1.0, 3.0, 2)
    transform = mx.ScaleBySophia(b1=0.0, eps=1.0, clip_threshold=bound)
    g, state, found = jnp.asarray([9.0]), transform.init(jnp.zeros(1)), []
    for _ in range(4):
        u, state = transform.update(g, state, jnp.zeros(1), obj_fn=lambda w: jnp.sum(w))
        found.append(float(u[0]))
    assert found == [1.0, 2.0, 3.0, 3.0]


# --- The estimate ----------------------------------------------------------------------------------------------------


def _estimate(key: Any, w: Any, objective: Any = coupled) -> Any:
    transform = mx.HutchinsonDiagonal(key)
    return transform.update(w, transform.init(w), w, obj_fn=objective)[0]


def test_an_estimate_of_a_diagonal_is_exact():
    w = jnp.asarray(start(), jnp.float32)
    np.testing.assert_allclose(_estimate(3, w, separable), A + start() ** 2, rtol=1e-5)


def test_an_estimate_is_right_on_average():
    """Over many keys, which are as easy to map over as numbers."""
    w = jnp.asarray(start(), jnp.float32)
    estimates = jax.vmap(lambda seed: _estimate(seed, w))(jnp.arange(4000))
    assert np.std(estimates, axis=0).min() > 1  # one by one they are wrong
    np.testing.assert_allclose(np.mean(estimates, axis=0), A + start() ** 2 + 1, atol=0.2)


def test_an_objective_with_its_batch_is_compiled_once():
    def loss(w: Any, batch: Any) -> Any:
        return jnp.sum(jnp.cos(w * batch))

    w = jnp.ones(3)
    optimizer = mx.Sophia(1e-2)
    state = optimizer.init(w)
    for step in range(3):
        obj_fn = jtu.Partial(loss, batch=jnp.full(3, 1.0 + step))
        with counting_traces() as traces:
            w, state = optimizer.step(w, state, w, obj_fn=obj_fn)
        assert step == 0 or not traces


def test_a_whole_model():
    model = eqx.nn.MLP(2, "scalar", 4, 1, key=jax.random.key(0))
    x = jnp.asarray([0.5, -1.0])

    def loss(params: Any) -> Any:
        return eqx.combine(params, model)(x) ** 2

    optimizer = mx.Sophia(1e-2)
    grads = eqx.filter_grad(lambda m: m(x) ** 2)(model)
    new, state = optimizer.step(grads, optimizer.init(model), model, obj_fn=loss)
    assert new(x) ** 2 < model(x) ** 2
    assert np.asarray(state.step) == 1


def test_the_objective_is_needed():
    w = jnp.ones(2)
    transforms: list[Any] = [mx.HutchinsonDiagonal(), mx.ScaleBySophia(), mx.Sophia(0.1)]
    for transform in transforms:
        with pytest.raises(ValueError, match="`HutchinsonDiagonal` needs `obj_fn`: call `update"):
            transform.update(w, transform.init(w), w)


# --- The key ---------------------------------------------------------------------------------------------------------


def test_a_key_is_given_as_a_seed_or_as_a_key():
    expected = np.asarray(jax.random.key_data(jax.random.key(5)))
    for given in (5, np.int32(5), jnp.asarray(5), jax.random.key(5), jax.random.PRNGKey(5), expected):
        np.testing.assert_array_equal(mx.HutchinsonDiagonal(given).key, expected)
    w = jnp.asarray(start(), jnp.float32)
    assert not np.array_equal(_estimate(5, w), _estimate(6, w))
    np.testing.assert_array_equal(_estimate(5, w), _estimate(jax.random.key(5), w))


@pytest.mark.parametrize("seed", [0, 7, 2**31 + 3, 2**40 + 5, -3])
def test_a_seed_is_what_jax_makes_of_it(x64: None, seed: int):
    np.testing.assert_array_equal(as_key(seed), jax.random.key_data(jax.random.key(seed)))


def test_another_generator():
    key = jax.random.key(1, impl="rbg")
    w = jnp.asarray(start(), jnp.float32)
    assert np.all(np.isfinite(_estimate(key, w)))
    kept, used = next_keys(as_key(key), 2)
    assert kept.shape == (4,)
    assert {str(jax.random.key_impl(k)) for k in used} == {"rbg"}


def test_no_key_is_needed_for_no_leaf():
    raw = jnp.asarray(as_key(3))
    kept, used = next_keys(raw, 0)
    assert used == []
    np.testing.assert_array_equal(kept, next_keys(raw, 2)[0])
    with pytest.raises(ValueError, match="read-only"):
        as_key(3)[0] = 1


@pytest.mark.parametrize("wrong", [0.5, True, None, "seed", np.zeros(3, np.uint32)])
def test_a_wrong_key_is_refused(wrong: Any):
    with pytest.raises(ValueError, match=r"`key` must be a seed such as `0`, or a key such as `jax.random.key\(0\)`"):
        mx.HutchinsonDiagonal(wrong)


def test_a_key_is_no_number():
    optimizer = mx.Sophia(1e-3)
    assert "hessian_diagonal_fn.key" not in optimizer.hyperparameters()
    assert "HutchinsonDiagonal(key=0)" in f"{optimizer:all}"
    other: Any = optimizer.replace(key=7)
    assert "HutchinsonDiagonal(key=7)" in repr(other)
    assert optimizer.addresses()["hessian_diagonal_fn.key"](other) is other.hessian_diagonal_fn.key


def test_another_seed_is_not_traced():
    w, objective = jnp.ones(3), jax.jit(separable_of_any_size)
    for seed in range(3):
        optimizer = mx.Sophia(1e-3, hessian_diagonal_fn=mx.HutchinsonDiagonal(seed))
        with counting_traces() as traces:
            optimizer.update(w, optimizer.init(w), w, obj_fn=objective)
        assert seed == 0 or not traces


def separable_of_any_size(w: Any) -> Any:
    return jnp.sum(w**4)


def test_numbers_in_the_state_leave_the_key_a_key():
    w = jnp.asarray(start(), jnp.float32)
    plain, injected = mx.Sophia(1e-2), mx.Injected(mx.Sophia(1e-2))
    state = injected.init(w)
    assert state.hyperparameters.hessian_diagonal_fn.key.dtype == jnp.uint32
    expected, _ = plain.update(w, plain.init(w), w, obj_fn=coupled)
    np.testing.assert_allclose(injected.update(w, state, w, obj_fn=coupled)[0], expected, rtol=1e-6)
