"""Parameters and gradients in bfloat16 and float16: masters, stochastic rounding, loss scaling, warnings."""

import warnings
from collections.abc import Callable
from typing import Any

import chex
import equinox as eqx
import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import modulax as mx
from modulax import checkpoint

from .compositions import CONTAINERS, extra
from .settings import jax_defaults

LOW = (jnp.bfloat16, jnp.float16)
SIZE = 16


def bits(x: Any) -> np.ndarray:
    return np.asarray(x).view(np.uint16)


def assert_rounded(params: Any, master: Any) -> None:
    """Every parameter is its rounded master, bit for bit; NaN is NaN."""
    for p, m in zip(jax.tree.leaves(params), jax.tree.leaves(master), strict=True):
        p, m = np.asarray(p), np.asarray(m)
        with np.errstate(over="ignore"):
            rounded = m.astype(p.dtype)
        np.testing.assert_array_equal(bits(p)[~np.isnan(m)], bits(rounded)[~np.isnan(m)])
        assert np.isnan(p.astype(np.float32))[np.isnan(m)].all()


def mixed() -> dict[str, Any]:
    """Parameters in three dtypes."""
    x = jnp.linspace(-2.0, 3.0, 6)
    return {"b": x.astype(jnp.bfloat16), "f": x, "h": (x / 100).astype(jnp.float16)}


def low_part(tree: Any) -> dict[str, Any]:
    return {key: tree[key] for key in ("b", "h")}


# --- Masters ----------------------------------------------------------------------------------------


@jax.jit
def _three_steps(params: Any, updates: Any) -> Any:
    optimizer = mx.MasterWeights(mx.Scale(1.0))
    state, seen = optimizer.init(params), []
    for u in updates:
        start = state.master
        step, state = optimizer.update(u, state, params)
        params = mx.apply_updates(params, step)
        seen.append((step, start, params, state.master))
    return seen


@hypothesis.given(st.integers(0, 2**32 - 1))
def test_the_parameter_is_the_rounded_master_whatever_the_numbers(seed: int):
    """Numbers of all sizes, infinite ones too, and updates that nearly cancel the parameter."""
    random = np.random.default_rng(seed)
    with np.errstate(all="ignore"):
        start = random.integers(0, 2**32, SIZE, np.uint32).view(np.float32)
        start[::2] = random.normal(size=start[::2].shape)
        near = -start * (1 + 2.0 ** -random.integers(0, 24, SIZE)).astype(np.float32)
        wild = random.integers(0, 2**32, SIZE, np.uint32).view(np.float32)
        small = start * 2.0 ** -random.integers(0, 30, SIZE).astype(np.float32)
        params = {str(jnp.dtype(d)): start.astype(d) for d in LOW}
        kinds = random.permutation(np.stack([near, wild, small]))
        updates = [{"bfloat16": u, "float16": u} for u in kinds]
        results = jax.device_get(_three_steps(params, updates))
    for (step, before, after, master), u in zip(results, updates, strict=True):
        assert_rounded(after, master)
        for name in params:
            m, m0, s = (np.asarray(x[name], np.float64) for x in (master, before, step))
            with np.errstate(all="ignore"):
                exact = m0 + u[name]
                size = np.abs(m0) + np.abs(u[name].astype(np.float64)) + np.abs(s)
                is_close = np.abs(m - exact) <= 2.0**-22 * size + 1e-37
            is_right = is_close | (s == 0)  # 0 where the parameter is infinite
            assert is_right[np.isfinite(m) & np.isfinite(exact)].all()


def test_the_masters_are_those_of_training_in_float32():
    """The inner transform has its moments and its parameters in float32, and sees the same gradients."""
    plain = mx.AdamW(1e-3, weight_decay=0.1)
    optimizer, p = mx.MasterWeights(plain), mixed()
    wide = jax.tree.map(lambda x: x.astype(jnp.float32), p)
    state, plain_state = optimizer.init(p), plain.init(wide)
    for i in range(5):
        grads = jax.tree.map(lambda x, i=i: jnp.cos(i + jnp.arange(6.0)).astype(x.dtype), p)
        p, state = optimizer.step(grads, state, p)
        wide, plain_state = plain.step(jax.tree.map(lambda g: g.astype(jnp.float32), grads), plain_state, wide)
    assert_rounded(low_part(p), low_part(state.master))
    assert state.master["f"] is None
    np.testing.assert_array_equal(p["f"], wide["f"])
    for key in ("b", "h"):
        np.testing.assert_allclose(state.master[key], wide[key], rtol=1e-6)
    assert {x.dtype.name for x in jax.tree.leaves(state.inner_state)} == {"float32", "int32"}


FROM_TABLE = ("MultiSteps", "Masked", "Partition", "ApplyIfFinite", "ConditionallyMask", "ParamEMA", "SkipSpikes")
INSIDE: dict[str, Callable[[Any], Any]] = {name: CONTAINERS[name] for name in FROM_TABLE} | {
    "Chain": lambda t: mx.Chain(mx.ClipByGlobalNorm(1.0), t),
    "LossScaling": lambda t: mx.LossScaling(t, 2.0),
    "MultiSteps of Masked": lambda t: mx.MultiSteps(CONTAINERS["Masked"](t), 2),
    "ApplyIfFinite of MultiSteps": lambda t: mx.ApplyIfFinite(mx.MultiSteps(t, 2), 3),
}


@pytest.mark.parametrize("name", INSIDE)
def test_the_parameter_is_the_rounded_master_inside(name: str):
    optimizer = INSIDE[name](mx.MasterWeights(mx.SGD(1e-3, 0.9)))
    p = mixed() | {"h": jnp.asarray([0.0, -0.0, 1e-3], jnp.float16)}
    state = optimizer.init(p)

    def body(carry: Any, i: Any) -> Any:
        p, state = carry
        grads = jax.tree.map(lambda x: (1e-5 * jnp.cos(i + jnp.arange(float(x.size))) + 1e-5).astype(x.dtype), p)
        updates, state = optimizer.update(grads, state, p)
        p = mx.apply_updates(p, updates)
        return (p, state), (p, mx.tree.get(state, "master"))

    (_, state), (ps, masters) = jax.lax.scan(body, (p, state), jnp.arange(8.0))
    assert_rounded(low_part(ps), low_part(masters))
    start, end = np.asarray(mixed()["b"], np.float32), np.asarray(masters["b"][-1])
    assert (start != end).any()
    assert np.abs(start - end).max() < 2.0**-10  # what bfloat16 cannot show


def test_the_bits_are_right_when_optax_applies_the_updates_and_under_vmap():
    p = low_part(mixed())
    grads = jax.tree.map(jnp.ones_like, p)
    many = eqx.filter_vmap(lambda r: mx.MasterWeights(mx.SGD(r)))(jnp.asarray([1e-3, 1e-4]))
    updates, states = eqx.filter_vmap(lambda o: o.update(grads, o.init(p), p))(many)
    with jax_defaults():
        assert_rounded(jax.vmap(lambda u: optax.apply_updates(p, u))(updates), states.master)


def test_masters_follow_parameters_that_somebody_changed():
    optimizer, p = mx.MasterWeights(mx.SGD(1e-4)), jnp.ones(4, jnp.bfloat16)
    p, state = optimizer.step(jnp.ones_like(p), optimizer.init(p), p)
    changed = p.at[1].set(-0.5).at[2].set(0.0)
    assert state.master[0] != 1
    for given, master in ((p, [0.9998] * 4), (changed, [0.9998, -0.5001, -1e-4, 0.9998])):
        _, after = optimizer.update(jnp.ones_like(p), state, given)
        np.testing.assert_allclose(after.master, master, rtol=1e-6)
        np.testing.assert_array_equal(bits(optimizer.eval_params(state, given)), bits(given))


def test_a_zero_of_the_other_sign_is_no_change():
    """-1e-9 is -0.0 in float16; adding 0.0 to the parameter makes it 0.0, and the master goes on."""
    optimizer, zero = mx.MasterWeights(mx.Scale(1.0)), jnp.zeros(1, jnp.float16)
    state = optimizer.init(zero)
    for _ in range(3):
        _, state = optimizer.update(jnp.full(1, -1e-9), state, zero)
    np.testing.assert_allclose(state.master, -3e-9, rtol=1e-6)


def test_evaluation_parameters_come_from_the_masters():
    """Those of Schedule-Free are its average, rounded once."""
    optimizer, p = mx.MasterWeights(mx.ScheduleFreeSGD(1e-3)), {"w": jnp.ones(3, jnp.bfloat16), "v": jnp.ones(2)}
    state = optimizer.init(p)
    for _ in range(3):
        p, state = optimizer.step(p, state, p)
    found = optimizer.eval_params(state, p)
    assert found["w"].dtype == jnp.bfloat16
    average = mx.tree.get(state, "x")
    np.testing.assert_array_equal(bits(found["w"]), bits(average["w"].astype(jnp.bfloat16)))
    np.testing.assert_array_equal(found["v"], average["v"])


def test_a_run_without_masters_continues_with_them():
    """The moments are found by name, and the masters are the parameters of the template."""
    p, plain = low_part(mixed()), mx.AdamW(1e-2, mu_dtype=jnp.float32)
    _, state = plain.step(jax.tree.map(jnp.ones_like, p), plain.init(p), p)
    template = mx.MasterWeights(plain).init(p)
    found, _ = checkpoint.load_state_dict(template, checkpoint.state_dict(state), strict=False)
    chex.assert_trees_all_equal(mx.tree.get(found, "mu"), mx.tree.get(state, "mu"))
    chex.assert_trees_all_equal(found.master, jax.tree.map(lambda x: x.astype(jnp.float32), p))


@pytest.mark.parametrize("container", [mx.MasterWeights, mx.StochasticRounding])
def test_functions_of_the_parameters_get_them_in_their_own_dtype(container: Any):
    optimizer, seen = container(mx.LBFGS()), []

    def loss(p: Any) -> Any:
        seen.append(p["w"].dtype)
        return jnp.sum(p["w"].astype(jnp.float32) ** 2)

    def step(p: Any) -> Any:
        grads = jax.grad(loss)(p)
        return optimizer.step(grads, optimizer.init(p), p, value=loss(p), grad=grads, value_fn=loss)

    jax.eval_shape(step, {"w": jnp.asarray([1.0, -2.0], jnp.bfloat16)})
    assert set(seen) == {jnp.dtype(jnp.bfloat16)}


def test_masters_are_at_least_float32():
    with pytest.raises(ValueError, match=r"`MasterWeights\(dtype=...\)` is the dtype of the masters.* got bfloat16"):
        mx.MasterWeights(mx.SGD(0.1), jnp.bfloat16)
    assert mx.describe(mx.MasterWeights(mx.SGD(0.1)), mixed()).total_bytes == 2 * 6 * 4 + 4
    with pytest.raises(ValueError, match="`MasterWeights` needs `params`"):
        mx.MasterWeights(mx.SGD(0.1)).update(mixed(), mx.MasterWeights(mx.SGD(0.1)).init(mixed()))


# --- Stochastic rounding ----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", LOW)
def test_the_expectation_is_right(dtype: Any):
    """100,000 draws: only the two neighbours, and their mean within five standard errors of p + u."""
    tiny, largest, eps = (float(getattr(jnp.finfo(dtype), name)) for name in ("smallest_normal", "max", "eps"))
    # Everyday numbers, a step below the spacing, one that crosses zero, what is exact, subnormals, the largest.
    p = np.asarray([1.0, -1.0, 0.125, 0.0, 1.5, -tiny, tiny / 4, 1e-3, largest, -largest], dtype)
    u = np.asarray(
        [1e-4, 1e-4, -0.2, -1e-7, 0.25, tiny * eps / 3, 0, 3e-6, largest * 0.003, -largest * 0.003], np.float32
    )
    if dtype == jnp.bfloat16:  # subnormal numbers of float32, which a CPU takes for zero
        p[5:7], u[5:7] = 1.0, eps / 3
    n, optimizer = 100_000, mx.StochasticRounding(mx.Scale(1.0), key=1)

    @jax.jit
    def draw(p: Any, u: Any) -> Any:
        many = jnp.broadcast_to(p, (n, p.size)), jnp.broadcast_to(u, (n, p.size))
        updates, state = optimizer.update(many[1], optimizer.init(many[0]), many[0])
        return mx.apply_updates(many[0], updates), state.rng_key

    new, kept = draw(p, u)
    new, sums = np.asarray(new).astype(np.float64), p.astype(np.float64) + u.astype(np.float64)
    for i, exact in enumerate(np.clip(sums, -largest, largest)):
        near = np.asarray(exact).astype(dtype)
        way = near if near == exact else np.asarray(np.inf if near < exact else -np.inf, dtype)
        low, high = sorted((float(near), float(np.nextafter(near, way))))
        assert {low, high} >= set(new[:, i]), i
        up = (exact - low) / (high - low) if high > low else 0.0
        deviation = (high - low) * np.sqrt(up * (1 - up) / n)
        assert abs(new[:, i].mean() - exact) <= 5 * deviation + 2.0**-24 * abs(exact), i
    assert not np.array_equal(kept, optimizer.key)


def _fit(optimizer: Any, dtype: Any) -> float:
    """The loss of a regression after 400 steps of a small learning rate."""
    x = jnp.sin(jnp.outer(jnp.arange(8.0), jnp.arange(1.0, 5.0)))
    target = x @ jnp.asarray([1.0, -1.0, 0.5, 1.5])

    def loss(w: Any) -> Any:
        return jnp.mean((x @ w.astype(jnp.float32) - target) ** 2)

    def body(carry: Any, _: None) -> Any:
        w, state = carry
        return optimizer.step(jax.grad(loss)(w), state, w), None

    w = jnp.asarray([0.8, -0.8, 0.8, 1.2]).astype(dtype)
    (w, _), _ = jax.lax.scan(body, (w, optimizer.init(w)), length=400)
    return float(loss(w))


def test_stochastic_rounding_trains_where_nearest_stands_still():
    plain = mx.SGD(2e-3)
    exact = _fit(plain, jnp.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert _fit(plain, jnp.bfloat16) > 1.2 * exact
    assert _fit(mx.MasterWeights(plain), jnp.bfloat16) == pytest.approx(exact, rel=0.05)
    assert _fit(mx.StochasticRounding(plain), jnp.bfloat16) == pytest.approx(exact, rel=0.15)


def test_stochastic_rounding_leaves_float32_alone():
    optimizer, p = mx.StochasticRounding(mx.SGD(1e-5)), {"f": jnp.ones(3), "b": jnp.ones(1000, jnp.bfloat16)}
    updates, _ = optimizer.update(p, optimizer.init(p), p)
    np.testing.assert_array_equal(updates["f"], np.full(3, -1e-5, np.float32))
    assert set(np.unique(updates["b"])) <= {0.0, -0.00390625}
    bad, _ = optimizer.update({**p, "b": p["b"] * jnp.nan}, optimizer.init(p), p)
    assert np.isnan(bad["b"]).all()


# --- Loss scaling -----------------------------------------------------------------------------------

# `torch.amp.GradScaler("cpu", init_scale=1024, growth_interval=3)` of torch 2.13: `get_scale()` after each step, in
# which the gradient was infinite where it says so.
IS_INFINITE = [False, False, False, False, True, False, False, False, True, True, False, False, False, False]
TORCH_SCALES = [1024, 1024, 2048, 2048, 1024, 1024, 1024, 2048, 1024, 512, 512, 512, 1024, 1024]


def test_the_scale_is_that_of_torch():
    optimizer, p = mx.LossScaling(mx.SGD(0.5), 1024.0, growth_interval=3), jnp.ones(2, jnp.float16)
    state, scales, ends = optimizer.init(p), [], []
    for is_infinite in IS_INFINITE:
        scale = mx.loss_scale(state)
        grads = jnp.full(2, jnp.inf if is_infinite else 0.25 * scale).astype(jnp.float16)
        p, state = optimizer.step(grads, state, p)
        scales.append(float(mx.loss_scale(state)))
        ends.append(float(p[0]))
    assert scales == TORCH_SCALES
    assert int(state.skipped_steps) == sum(IS_INFINITE)
    assert optimizer.metrics(state).keys() >= {"loss_scale", "skipped_steps"}
    taken = np.cumsum(np.logical_not(IS_INFINITE))
    np.testing.assert_array_equal(ends, 1 - 0.125 * taken)


def test_a_skipped_step_leaves_the_inner_state():
    optimizer, p = mx.LossScaling(mx.MasterWeights(mx.AdamW(1e-3))), jnp.ones(2, jnp.float16)
    state = optimizer.init(p)
    after, skipped = optimizer.step(jnp.asarray([1.0, jnp.nan], jnp.float16), state, p)
    jax.tree.map(np.testing.assert_array_equal, skipped.inner_state, state.inner_state)
    np.testing.assert_array_equal(bits(after), bits(p))


@pytest.mark.parametrize("first, g", [(2.0**127, 1.0), (2.0**-126, np.inf)])
def test_the_scale_stays_finite_and_positive(first: float, g: float):
    optimizer, p = mx.LossScaling(mx.SGD(0.1), first, growth_interval=1), jnp.ones(1)
    _, state = optimizer.update(jnp.full(1, g), optimizer.init(p), p)
    assert float(mx.loss_scale(state)) == first


def test_the_scale_is_found_at_any_depth():
    p = mixed()
    optimizer = mx.MultiSteps(mx.Masked(mx.LossScaling(mx.SGD(0.1), 8.0), mx.by_path({"*": True})), 2)
    assert float(mx.loss_scale(optimizer.init(p))) == 8
    with pytest.raises(ValueError, match=r"exactly one state of `LossScaling`, and found 0 in `OptimizerState`"):
        mx.loss_scale(mx.SGD(0.1).init(p))


# --- Learning rates that are too small ---------------------------------------------------------------


def test_init_compares_no_rate_whose_factor_is_traced():
    params = {"w": jnp.ones(3, jnp.bfloat16)}
    states = jax.vmap(lambda c: mx.Chain(mx.Adam(1e-3), mx.Scale(c)).init(params))(jnp.array([0.5, 1.0]))
    assert mx.tree.get(states, "mu.w").shape == (2, 3)


def test_init_warns_of_a_learning_rate_below_the_resolution():
    p = mixed()
    message = r"`Chain.init`: a learning rate of 0.001 is too small for parameters in bfloat16, `b`: .* exceeds 0.5, "
    with pytest.warns(UserWarning, match=message):
        mx.Chain(mx.ClipByGlobalNorm(1.0), mx.AdamW(1e-3)).init(p)
    with pytest.warns(UserWarning, match="0.0001 .* float16, `h`: .* exceeds 0.25"):
        mx.Partition({"a": mx.AdamW(1e-4), "z": mx.SGD(0.1)}, mx.by_path({"h": "a", "*": "z"})).init(p)
    for schedule in (mx.schedules.WarmupCosineDecay(0.0, 2e-4, 100, 1000), lambda step: 2e-4):
        for optimizer in (mx.AdamW(schedule), mx.Scheduled(mx.ScaleByLearningRate(schedule))):
            with pytest.warns(UserWarning, match=r"a learning rate of 0.0002 .* bfloat16, `b`:"):
                optimizer.init({"b": p["b"]})
    # With the factors that follow, of which a multiplier by path has one for each parameter.
    for factor in (mx.Scale(1e-2), mx.ScaleByPath({"b": 1e-2, "*": 1.0}), mx.ScaleBySchedule(lambda step: 1e-2)):
        inside = mx.FromFactory(lambda rate, factor=factor: mx.Chain(mx.AdamW(rate), factor), rate=1e-2)
        for optimizer in (mx.Chain(mx.AdamW(1e-2), factor), inside):
            with pytest.warns(UserWarning, match=r"a learning rate of 0.0001 .* bfloat16, `b`:"):
                optimizer.init({"b": p["b"]})
    deep = {"embed": p["b"], "blocks": jnp.zeros((2, 3), jnp.bfloat16)}
    with pytest.warns(UserWarning, match="learning rates of 5e-05 to 0.0005 are .* `blocks`, `embed`: .* exceeds 0.25"):
        mx.layerwise_decay(mx.AdamW(5e-3), deep, 0.1, "blocks").init(deep)
    # A step of Scion has a size of its own.
    square = {"b": p["b"], "w": jnp.zeros((64, 64), jnp.bfloat16)}
    with pytest.warns(UserWarning, match=r"steps of about 0.0001525879 to 0.00122\d* are .* `b`, `w`: .* exceeds 0.5"):
        mx.Scion(scale=5.0).init(square)


@pytest.mark.parametrize(
    "optimizer",
    [
        mx.MasterWeights(mx.AdamW(1e-4)),
        mx.StochasticRounding(mx.AdamW(1e-4)),
        mx.ScheduleFreeSGD(1e-4),
        mx.AdamW(mx.schedules.Linear(1e-5, 1e-2, 5)),
        mx.AdamW(jnp.asarray(1e-4)),
        mx.AdamW(0.0),
        mx.Scion(),
        mx.Scion(2.0**-12, scale=jnp.asarray(1.0)),
        mx.AdamW(1e-2),
        mx.Masked(mx.AdamW(1e-4), mx.by_path({"f": True, "*": False})),
        mx.Chain(mx.AdamW(1e-4), mx.Freeze(mx.by_path({"f": False, "*": True}))),
        mx.Chain(mx.AdamW(1e-4), mx.Scale(100.0)),
        mx.Chain(mx.AdamW(1e-2), mx.ReduceOnPlateau()),
        mx.MasterWeights(mx.Chain(mx.AdamW(1e-2), mx.Scale(1e-2))),
        mx.Flatten(mx.Chain(mx.AdamW(1e-2), mx.ScaleByPath({"*float*": 1e-2}))),
        mx.Flatten(mx.Masked(mx.AdamW(1e-4), mx.by_path({"float32": True, "*": False}))),
    ],
    ids=range(16),
)
def test_init_does_not_warn(optimizer: Any):
    optimizer.init(mixed())


def test_a_traced_init_does_not_warn():
    jax.eval_shape(mx.AdamW(1e-4).init, mixed())
    assert "too small for parameters in float16" in str(mx.describe(mx.AdamW(1e-4), mixed()))


@pytest.mark.parametrize("wide", [mx.MasterWeights, mx.StochasticRounding])
def test_every_container_hands_wide_updates_on(wide: Any):
    """The update of a bfloat16 parameter is in float32, whatever is around what makes it."""
    params = {name: jnp.ones(shape, jnp.bfloat16) for name, shape in (("a", (2, 3)), ("b", (3,)), ("c", (2, 3)))}
    # The gradients of one vector or stack may have two dtypes.
    mixed = {**params, "a": jnp.ones((2, 3))}

    def through_optax(inner: Any) -> mx.AbstractTransform:
        return mx.from_optax(optax.chain(mx.to_optax(mx.Scale(0.5)), optax.chain(mx.to_optax(inner))))

    def updates(grads: Any) -> Any:
        given = extra(params, params) | {"grad": grads}
        return optimizer.update(grads, optimizer.init(params), params, **given)[0]

    around = {name: make for name, make in CONTAINERS.items() if name not in NOT_HANDED_ON}
    if wide is mx.StochasticRounding:
        del around["Stacked"]  # refuses random numbers
    for name, make in {**around, "FromOptax": through_optax}.items():
        optimizer = make(wide(mx.AdamW(1e-3)))
        for grads in (params, mixed):
            new = jax.eval_shape(updates, grads)
            narrow = {"b"} if name in ("Masked", "Partition") else set()  # what another part has
            assert all(x.dtype == jnp.float32 for leaf, x in new.items() if leaf not in narrow), (name, new)


# They keep parameters in float32 themselves, give another tree to what they hold, or sum updates of several parts.
NOT_HANDED_ON = ("ScheduleFree", "Mechanize", "ScaleByGaLore", "ScaleBySophia", "ScaleByAdaHessian", "Mean")
