"""Lookahead with plain parameters and with a pair, SAM in both modes, Mechanic at the edges."""

from typing import Any

import chex
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import optax
import pytest

import modulax as mx

from .settings import jax_defaults
from .test_averaging import PARAMS, adversary, train


def gradient(params: Any, t: Any = 0) -> Any:
    return jtu.tree_map(lambda p: p + jnp.cos(t).astype(p.dtype), params)


# --- Lookahead -------------------------------------------------------------------------------------


@pytest.mark.parametrize("reset", [False, True])
def test_both_modes_make_the_same_steps(reset: bool):
    transform = mx.Lookahead(mx.SGD(0.1, 0.9), 3, 0.4, reset)
    plain, pair = PARAMS, mx.LookaheadParams.init_synced(PARAMS)
    plain_state, pair_state = transform.init(plain), transform.init(pair)
    assert pair_state.slow is None
    for t in range(7):
        grads = gradient(plain, float(t))
        plain, plain_state = transform.step(grads, plain_state, plain)
        pair, pair_state = transform.step(grads, pair_state, pair)
        chex.assert_trees_all_equal(pair.fast, plain)
        chex.assert_trees_all_equal(pair.slow, transform.eval_params(plain_state, plain))
        chex.assert_trees_all_equal(transform.eval_params(pair_state, pair), pair.slow)
        met = bool(jnp.allclose(pair.fast["w"], pair.slow["w"], rtol=1e-6))
        assert met == (t % 3 == 2)
        # Within a round the fast optimizer goes on, and it begins anew only where the two meet.
        assert plain_state.fast_state.step == ((t + 1) % 3 if reset else t + 1)
    chex.assert_trees_all_equal(transform.eval_params(pair_state, pair.slow), pair.slow)


def test_a_pair_of_models_can_be_donated():
    model = {**jtu.tree_map(jnp.copy, PARAMS), "activation": jax.nn.relu, "steps": jnp.asarray(3)}
    pair = mx.LookaheadParams.init_synced(model)
    transform = mx.Lookahead(mx.SGD(0.1), 2, 0.5)
    state = transform.init(pair)
    grads = {**PARAMS, "activation": None, "steps": None}
    for _ in range(2):
        pair, state = transform.step(grads, state, pair, donate=True)
    np.testing.assert_allclose(pair.fast["w"], 0.9 * PARAMS["w"], rtol=1e-6)
    assert pair.slow["activation"] is jax.nn.relu
    assert pair.fast["steps"] == 3
    assert transform.eval_params(state, pair)["activation"] is jax.nn.relu
    updates, _ = transform.update(grads, state, pair)
    chex.assert_trees_all_equal(mx.apply_updates(pair, updates).slow["w"], pair.slow["w"])


def test_a_pair_is_for_lookahead_alone():
    pair = mx.LookaheadParams.init_synced(PARAMS)
    lookahead = mx.Lookahead(mx.SGD(0.1), 2, 0.5)
    others: tuple[Any, ...] = (mx.SGD(0.1), mx.Chain(mx.Clip(1.0), lookahead), mx.Scheduled(lookahead))
    for transform in others:
        state = transform.init(PARAMS)
        for call in (
            lambda t=transform: t.init(pair),
            lambda t=transform, s=state: t.update(PARAMS, s, pair),
            lambda t=transform, s=state: t.step(PARAMS, s, pair),
        ):
            with pytest.raises(ValueError, match=r"Put `Lookahead` outermost.*or give plain parameters"):
                call()
    with pytest.raises(ValueError, match=r"with respect to the fast ones, `jax\.grad\(loss\)\(params\.fast\)`"):
        lookahead.step(pair, lookahead.init(pair), pair)
    with pytest.raises(ValueError, match=r"was given a pair, and `init` plain parameters\. Give both the same"):
        lookahead.step(PARAMS, lookahead.init(PARAMS), pair)
    with pytest.raises(ValueError, match="was given plain parameters, and `init` `LookaheadParams`"):
        lookahead.step(PARAMS, lookahead.init(pair), PARAMS)
    with pytest.raises(ValueError, match=r"`Lookahead\(sync_period=\.\.\.\)` must be a whole number of at least 1"):
        mx.Lookahead(mx.SGD(0.1), 0, 0.5)


def test_nothing_to_train_is_no_pair():
    """Where a mask leaves out a single array, the parameters inside are None."""
    inside: tuple[Any, ...] = (
        mx.Lookahead(mx.SGD(0.1), 2, 0.5),
        mx.ScheduleFreeSGD(0.1),
        mx.SAM(mx.SGD(0.1), adversary()),
        mx.Mechanize(mx.SGD(1.0)),
    )
    for transform in inside:
        masked = mx.Masked(transform, False)
        state = masked.init(PARAMS["w"])
        updates, state = masked.update(PARAMS["w"], state, PARAMS["w"])
        chex.assert_trees_all_equal(updates, PARAMS["w"])
        chex.assert_trees_all_equal(masked.eval_params(state, PARAMS["w"]), PARAMS["w"])


def test_a_round_of_other_length_is_no_other_program():
    """The period is a number: sweeps of it are one `vmap`."""
    periods = jnp.asarray([1.0, 2.0, 3.0])
    ends = jax.vmap(lambda k: train(mx.Lookahead(mx.SGD(0.1), k, 0.5))[0]["w"])(periods)
    for k, end in zip((1, 2, 3), ends, strict=True):
        np.testing.assert_allclose(end, train(mx.Lookahead(mx.SGD(0.1), k, 0.5))[0]["w"], rtol=1e-6)


def test_a_fresh_state_is_one_for_the_parameters_where_the_round_begins():
    """Optax makes it for those before the last step, which matters where a state depends on them."""
    transform = mx.Lookahead(mx.DoG(), 2, 0.5, reset_state=True)
    params, state = train(transform, steps=4)
    chex.assert_trees_all_equal(state.fast_state.inner["scale_by_dog"].init_params, params)
    assert state.fast_state.step == 0


# --- SAM -------------------------------------------------------------------------------------------


def test_sam_on_a_quadratic():
    """f = w'Aw / 2: the gradient nearby is A w + rho A A w / |A w|, and w contracts by that."""
    curvature, rho, eta = jnp.asarray([1.0, 4.0, 0.1]), 0.05, 0.1
    w = np.asarray([1.0, -2.0, 0.5])
    opaque = mx.SAM(mx.SGD(eta), mx.Chain(mx.Normalize(), mx.SGD(rho)), opaque_mode=True)
    transparent = mx.SAM(mx.SGD(eta), mx.Chain(mx.Normalize(), mx.SGD(rho)))
    one, two = jnp.asarray(w, jnp.float32), jnp.asarray(w, jnp.float32)
    one_state, two_state = opaque.init(one), transparent.init(two)
    assert one_state.cache is None

    def grad_fn(params: Any, i: Any) -> Any:
        del i
        return curvature * params

    for _ in range(5):
        one, one_state = opaque.step(curvature * one, one_state, one, grad_fn=grad_fn)
        before = two
        two, two_state = transparent.step(curvature * two, two_state, two)
        np.testing.assert_allclose(jnp.linalg.norm(two - before), rho, rtol=1e-4)
        np.testing.assert_array_equal(transparent.eval_params(two_state, two), before)
        two, two_state = transparent.step(curvature * two, two_state, two)
        np.testing.assert_array_equal(transparent.eval_params(two_state, two), two)
        a = np.asarray(curvature, float)
        w = w - eta * (a * w + rho * a * a * w / np.linalg.norm(a * w))
        np.testing.assert_allclose(one, w, rtol=1e-4)
        np.testing.assert_allclose(two, w, rtol=1e-4)


def test_zero_gradients_are_no_end():
    """Optax divides zero by zero in `normalize`."""
    zeros = jtu.tree_map(jnp.zeros_like, PARAMS)
    for transform in (
        mx.SAM(mx.SGD(0.1), adversary()),
        mx.SAM(mx.SGD(0.1), adversary(), 3, opaque_mode=True),
        mx.Mechanize(mx.SGD(1.0)),
        mx.Mechanize(mx.SGD(1.0), follow="optax"),
    ):
        params, state = PARAMS, transform.init(PARAMS)
        for _ in range(3):
            params, state = transform.step(zeros, state, params, grad_fn=lambda params, i: zeros)
        chex.assert_trees_all_equal(params, PARAMS)
        chex.assert_tree_all_finite(state)


def test_an_opaque_round_needs_a_gradient():
    transform = mx.SAM(mx.SGD(0.1), adversary(), opaque_mode=True)
    with pytest.raises(ValueError, match=r"`SAM\(opaque_mode=True\)` needs `grad_fn`: call `update"):
        transform.update(PARAMS, transform.init(PARAMS), PARAMS)
    with pytest.raises(ValueError, match=r"`SAM\(sync_period=\.\.\.\)` must be a positive integer, got 0"):
        mx.SAM(mx.SGD(0.1), adversary(), 0)


def test_an_opaque_round_in_a_container_sees_all_parameters():
    """Where it moves a part of them, the others are held, and the function gets the whole."""
    weights = mx.by_path({"w": True, "*": False})
    masked = mx.Masked(mx.SAM(mx.SGD(0.1), mx.SGD(0.5), opaque_mode=True), weights, otherwise="zero")

    def loss(params: Any, i: Any) -> Any:
        del i
        return 0.5 * jnp.sum((params["b"] * params["w"]) ** 2)

    grads = jax.grad(loss)(PARAMS, 0)
    params, _ = masked.step(grads, masked.init(PARAMS), PARAMS, grad_fn=jax.grad(loss))
    b2 = 0.3**2
    np.testing.assert_allclose(params["w"], PARAMS["w"] * (1 - 0.1 * b2 * (1 + 0.5 * b2)), rtol=1e-6)
    assert params["b"] == PARAMS["b"]


def test_gradients_are_averaged_over_an_axis():
    data = jnp.asarray([1.0, 2.0, 6.0])

    def round_of(name: str | None) -> Any:
        transform = mx.SAM(mx.SGD(0.1), mx.SGD(0.5), opaque_mode=True, batch_axis_name=name)

        def one(x: Any) -> Any:
            def grad_fn(params: Any, i: Any) -> Any:
                del i
                return x * params

            params = jnp.ones(2)
            mean = jax.lax.pmean(grad_fn(params, 0), "batch")
            return transform.step(mean, transform.init(params), params, grad_fn=grad_fn)[0]

        return jax.vmap(one, axis_name="batch")(data)

    np.testing.assert_allclose(round_of("batch"), np.full((3, 2), 1 - 0.1 * 3 * (1 + 0.5 * 3)), rtol=1e-6)
    alone = np.asarray(data)[:, None] * np.ones(2)
    np.testing.assert_allclose(round_of(None), 1 - 0.1 * alone * (1 + 0.5 * 3), rtol=1e-6)


def test_the_gradients_of_an_opaque_round_are_those_after_each_step_of_the_adversary():
    """The function is given the point and the index of the step; between two calls the mode by steps stands at w."""

    def grad_fn(params: Any, i: int) -> Any:
        return {"w": params["w"] * 10.0 ** (i + 1)}

    params, grads = {"w": jnp.zeros(2)}, {"w": jnp.ones(2)}
    opaque = mx.SAM(mx.SGD(1.0), mx.SGD(1.0), 3, opaque_mode=True)
    out, _ = opaque.update(grads, opaque.init(params), params, grad_fn=grad_fn)
    np.testing.assert_array_equal(out["w"], -100 * (1 + 10))
    sam = mx.SAM(mx.SGD(1.0), mx.SGD(1.0), 3)
    state, p = sam.init(params), params
    for factor, evaluated in ((1.0, 0), (10.0, 0), (100.0, -100), (1.0, -100)):
        p, state = sam.step({"w": jnp.full(2, factor)}, state, p)
        np.testing.assert_array_equal(sam.eval_params(state, p)["w"], evaluated)


def test_the_adversary_is_fresh_or_goes_on():
    for opaque in (False, True):
        momenta = []
        for reset in (False, True):
            transform = mx.SAM(mx.SGD(0.1), mx.SGD(0.1, 0.9), 2, reset, opaque)
            params, state = PARAMS, transform.init(PARAMS)
            for t in range(1 if opaque else 2):
                params, state = transform.step(gradient(params, float(t)), state, params, grad_fn=lambda p, i: p)
            momenta.append(float(jnp.max(jnp.abs(state.adv_state.inner["trace"].trace["w"]))))
        assert momenta[0] > 0
        assert momenta[1] == 0


# --- Mechanic --------------------------------------------------------------------------------------


def test_mechanic_learns_in_low_precision():
    """Its steps are tiny at first; the parameters cannot hold them, a separate sum can."""
    params = jnp.asarray([1.0, -1.5], jnp.bfloat16)

    def run(transform: Any) -> Any:
        def body(carry: Any, _: None) -> Any:
            params, state = carry
            updates, state = transform.update(params, state, params)
            return (optax.apply_updates(params, updates), state), None

        return jax.lax.scan(body, (params, transform.init(params)), length=200)[0][0]

    with jax_defaults():
        ours, theirs = run(mx.Mechanize(mx.SGD(1.0))), run(optax.contrib.mechanize(optax.sgd(1.0)))
    assert np.max(np.abs(ours)) < 0.1
    np.testing.assert_array_equal(theirs, params)


def test_mechanic_starts_from_the_parameters_of_the_first_step():
    transform = mx.Mechanize(mx.SGD(1.0), follow="paper")  # whose first step has length zero
    loaded = jtu.tree_map(lambda p: 7 * p, PARAMS)
    params, state = transform.step(loaded, transform.init(PARAMS), loaded)
    chex.assert_trees_all_equal(params, loaded)
    chex.assert_trees_all_equal(state.x0, loaded)
    _, state = transform.step(loaded, state, jtu.tree_map(jnp.zeros_like, params))
    chex.assert_trees_all_equal(state.x0, loaded)
    with pytest.raises(ValueError, match=r"`Mechanize\(num_betas=\.\.\.\)` must be a positive integer, got 0"):
        mx.Mechanize(mx.SGD(1.0), num_betas=0)


def test_mechanic_follows_a_schedule_of_its_own():
    """Its numbers and those of a bare chain inside follow its count."""
    decay: Any = mx.schedules.Linear(0.0, 1.0, 3)
    rate: Any = mx.schedules.Linear(1.0, 0.0, 3)
    transform = mx.Mechanize(mx.Chain(mx.ScaleByLearningRate(rate)), weight_decay=decay)
    _, state = train(transform, steps=2)
    now = transform.hyperparameters(state)
    np.testing.assert_allclose(now["weight_decay"], 2 / 3, rtol=1e-6)
    np.testing.assert_allclose(now["base_optimizer.parts.scale_by_learning_rate.learning_rate"], 1 / 3, rtol=1e-6)


def test_metrics_after_a_reset_are_those_of_the_step_before():
    """The state of the optimizer starts again, and the rate in force was that of the last step of the round."""
    rates = mx.schedules.Linear(1.0, 0.0, 10)
    optimizer = mx.Chain(mx.Identity(), mx.Lookahead(mx.SGD(rates), 3, 1.0, reset_state=True))
    params, found = {"w": jnp.ones(2)}, []
    state = optimizer.init(params)
    for _ in range(4):
        new, state = optimizer.step({"w": jnp.ones(2)}, state, params)
        found.append((optimizer.metrics(state)["learning_rate"], params["w"][0] - new["w"][0]))
        params = new
    np.testing.assert_allclose(found, [(x, x) for x in (1.0, 0.9, 0.8, 1.0)], rtol=1e-5)


def test_in_low_precision_the_fast_parameters_restart_from_the_slow_ones():
    params = jnp.asarray(0.02 * np.random.default_rng(0).normal(size=1024), jnp.bfloat16)
    optimizer = mx.Lookahead(mx.AdamW(1e-2), 4, 0.5)
    fast, state = params, optimizer.init(params)
    for _ in range(4):
        fast, state = optimizer.step(jnp.ones_like(params), state, fast)
    np.testing.assert_array_equal(np.asarray(fast), np.asarray(state.slow))
