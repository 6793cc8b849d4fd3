"""Lookahead with plain parameters and with a pair, SAM in both modes, Mechanic at the edges, DiLoCo on a mesh."""

from typing import Any

import chex
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, Mesh, PartitionSpec

import modulax as mx

from .instances.averaging import TRANSFORMS, adversary
from .settings import jax_defaults
from .test_averaging import PARAMS, descended, train

# --- Lookahead -------------------------------------------------------------------------------------


@pytest.mark.parametrize("reset", [False, True])
def test_both_modes_make_the_same_steps(reset: bool):
    transform = mx.Lookahead(mx.SGD(0.1, 0.9), 3, 0.4, reset)
    plain, pair = PARAMS, mx.LookaheadParams.init_synced(PARAMS)
    plain_state, pair_state = transform.init(plain), transform.init(pair)
    assert pair_state.slow is None
    for t in range(7):
        grads = jtu.tree_map(lambda p, t=t: p + jnp.cos(float(t)), plain)
        plain, plain_state = transform.step(grads, plain_state, plain)
        pair, pair_state = transform.step(grads, pair_state, pair)
        slow = transform.eval_params(plain_state, plain)
        chex.assert_trees_all_equal(
            [pair.fast, pair.slow, transform.eval_params(pair_state, pair)], [plain, slow, slow]
        )
        met = bool(jnp.allclose(pair.fast["w"], pair.slow["w"], rtol=1e-6))
        assert met == (t % 3 == 2)
        # Within a round the fast optimizer goes on, and it starts again only where the two meet.
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
        for method, *arguments in (
            (transform.init,),
            (transform.update, PARAMS, state),
            (transform.step, PARAMS, state),
        ):
            with pytest.raises(ValueError, match=r"Put `Lookahead` outermost.*or give plain parameters"):
                method(*arguments, pair)
    of_plain, of_pair = lookahead.init(PARAMS), lookahead.init(pair)
    for grads, state, params, says in (
        (pair, of_pair, pair, r"with respect to the fast ones, `jax\.grad\(loss\)\(params\.fast\)`"),
        (PARAMS, of_plain, pair, r"was given a pair, and `init` plain parameters\. Give both the same"),
        (PARAMS, of_pair, PARAMS, "was given plain parameters, and `init` `LookaheadParams`"),
    ):
        with pytest.raises(ValueError, match=says):
            lookahead.step(grads, state, params)
    with pytest.raises(ValueError, match=r"`Lookahead\(sync_period=\.\.\.\)` must be a whole number of at least 1"):
        mx.Lookahead(mx.SGD(0.1), 0, 0.5)


@pytest.mark.parametrize("name", ["Lookahead", "ScheduleFreeSGD", "SAM", "Mechanize"])
def test_nothing_to_train_is_no_pair(name: str):
    """Where a mask leaves out a single array, the parameters inside are None."""
    transform = next(instance.make() for instance in TRANSFORMS if instance.name == name)
    masked, w = mx.Masked(transform, False), PARAMS["w"]
    updates, state = masked.update(w, masked.init(w), w)
    chex.assert_trees_all_equal([updates, masked.eval_params(state, w)], [w, w])


def test_a_fresh_state_is_one_for_the_parameters_where_the_round_begins():
    """Optax makes it for those before the last step, which matters where a state depends on them."""
    transform = mx.Lookahead(mx.DoG(), 2, 0.5, reset_state=True)
    params, state = train(transform, steps=4)
    chex.assert_trees_all_equal(state.fast_state.inner["scale_by_dog"].init_params, params)
    assert state.fast_state.step == 0


# --- SAM -------------------------------------------------------------------------------------------


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
    slope = jax.grad(lambda params, i: 0.5 * jnp.sum((params["b"] * params["w"]) ** 2))
    params, _ = masked.step(slope(PARAMS, 0), masked.init(PARAMS), PARAMS, grad_fn=slope)
    b2 = 0.3**2
    np.testing.assert_allclose(params["w"], PARAMS["w"] * (1 - 0.1 * b2 * (1 + 0.5 * b2)), rtol=1e-6)
    assert params["b"] == PARAMS["b"]


@pytest.mark.parametrize("name, second", [("batch", [3.0, 3.0, 3.0]), (None, [1.0, 2.0, 6.0])])
def test_gradients_are_averaged_over_an_axis(name: str | None, second: list[float]):
    transform = mx.SAM(mx.SGD(0.1), mx.SGD(0.5), opaque_mode=True, batch_axis_name=name)
    params = jnp.ones(2)

    def one(x: Any) -> Any:
        mean = jax.lax.pmean(x * params, "batch")
        return transform.step(mean, transform.init(params), params, grad_fn=lambda params, i: x * params)[0]

    found = jax.vmap(one, axis_name="batch")(jnp.asarray([1.0, 2.0, 6.0]))
    expected = 1 - 0.1 * np.asarray(second) * (1 + 0.5 * 3)
    np.testing.assert_allclose(found, np.stack([expected] * 2, axis=1), rtol=1e-6)


def test_the_gradients_of_an_opaque_round_are_those_after_each_step_of_the_adversary():
    """The function is given the point and the index of the step; between two calls the mode by steps stands at w."""

    def grad_fn(params: Any, i: int) -> Any:
        return {"w": params["w"] * 10.0 ** (i + 1)}

    params, grads = {"w": jnp.zeros(2)}, {"w": jnp.ones(2)}
    opaque = mx.SAM(mx.SGD(1.0), mx.SGD(1.0), 3, opaque_mode=True)
    opaque_state = opaque.init(params)
    assert opaque_state.cache is None
    out, _ = opaque.update(grads, opaque_state, params, grad_fn=grad_fn)
    np.testing.assert_array_equal(out["w"], -100 * (1 + 10))
    sam = mx.SAM(mx.SGD(1.0), mx.SGD(1.0), 3)
    state, p = sam.init(params), params
    for factor, evaluated in ((1.0, 0), (10.0, 0), (100.0, -100), (1.0, -100)):
        p, state = sam.step({"w": jnp.full(2, factor)}, state, p)
        np.testing.assert_array_equal(sam.eval_params(state, p)["w"], evaluated)


@pytest.mark.parametrize("opaque", [False, True])
@pytest.mark.parametrize("reset", [False, True])
def test_the_adversary_is_fresh_or_goes_on(opaque: bool, reset: bool):
    transform = mx.SAM(mx.SGD(0.1), mx.SGD(0.1, 0.9), 2, reset, opaque)
    params, state = PARAMS, transform.init(PARAMS)
    for _ in range(1 if opaque else 2):
        params, state = transform.step(params, state, params, grad_fn=lambda p, i: p)
    assert np.any(state.adv_state.inner["trace"].trace["w"]) != reset


# --- Mechanic --------------------------------------------------------------------------------------


def test_mechanic_learns_in_low_precision():
    """Its steps are tiny at first; the parameters cannot hold them, a separate sum can."""
    params = jnp.asarray([1.0, -1.5], jnp.bfloat16)
    with jax_defaults():
        ours, _ = descended(mx.Mechanize(mx.SGD(1.0)), params, lambda params: params, 200)
        theirs, _ = descended(optax.contrib.mechanize(optax.sgd(1.0)), params, lambda params: params, 200)
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


# --- DiLoCo, over the devices of a mesh --------------------------------------------------------------

WORKERS = 2
START = {"w": jnp.asarray([[0.4, -0.1], [1.5, 3.0]]), "b": jnp.asarray([0.3, -0.2])}
DILOCO = mx.DiLoCo(mx.AdamW(0.1), 3, axis_name="workers")


def test_workers_on_a_mesh_meet_at_the_end_of_a_round():
    mesh = Mesh(np.asarray(jax.devices()[:WORKERS]), ("workers",), axis_types=(AxisType.Auto,))
    targets = jnp.asarray([0.5, -1.0])

    def step(params: Any, state: Any, target: Any) -> Any:
        return DILOCO.step(jtu.tree_map(lambda p: p - target, params), state, params)

    def of_one(*trees: Any) -> Any:
        return jtu.tree_map(lambda x: x[None], step(*jtu.tree_map(lambda x: x[0], trees)))

    spec = PartitionSpec("workers")
    on_mesh = jax.jit(jax.shard_map(of_one, mesh=mesh, in_specs=spec, out_specs=spec))
    batched = jax.jit(jax.vmap(step, axis_name="workers"))
    params = jtu.tree_map(lambda p: jnp.stack([p] * WORKERS), START)
    state = jax.vmap(DILOCO.init)(params)
    # Workers communicate in one branch of a condition only.
    before, _, branches = str(jax.make_jaxpr(on_mesh)(params, state, targets)).partition("cond[")
    assert "psum" in branches
    assert "psum" not in before
    for n in range(1, 6):
        found, (params, state) = on_mesh(params, state, targets), batched(params, state, targets)
        chex.assert_trees_all_close(found, (params, state), rtol=1e-5, atol=1e-6)
        evaluated = jax.vmap(DILOCO.eval_params)(state, params)["w"]
        assert np.array_equal(evaluated[0], evaluated[1])
        assert np.allclose(params["w"][0], params["w"][1], rtol=1e-6, atol=0) == (n == 3)


def test_an_axis_must_be_mapped():
    with pytest.raises(ValueError, match=r"not mapped here.* `jax.vmap\(..., axis_name='workers'\)`"):
        DILOCO.step(START, DILOCO.init(START), START)


def test_workers_in_low_precision_are_at_the_parameters_of_the_round():
    """The way there is wider than these, and is not rounded to the same precision."""
    random = np.random.default_rng(0)
    params = jnp.asarray(0.02 * random.normal(size=1024), jnp.bfloat16)
    optimizer = mx.DiLoCo(mx.AdamW(1e-2), sync_period=4, axis_name="w")

    @jax.jit
    def train(key: Any) -> Any:
        def of_worker(key: Any) -> Any:
            def step(carry: Any, key: Any) -> Any:
                g = jax.random.normal(key, params.shape, jnp.bfloat16)
                return optimizer.step(g, carry[1], carry[0]), None

            (p, state), _ = jax.lax.scan(step, (params, optimizer.init(params)), jax.random.split(key, 4))
            return p, state.outer

        return jax.vmap(of_worker, axis_name="w")(jax.random.split(key, 2))

    reached, outer = map(np.asarray, train(jax.random.key(0)))
    np.testing.assert_array_equal(reached, outer)
    np.testing.assert_array_equal(reached[0], reached[1])
