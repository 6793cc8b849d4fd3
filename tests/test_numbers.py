"""Facts about numbers: precision, hypergradients, leaves in groups, complex gradients."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest

import modulax as mx
from modulax import schedules

# --- Low precision ---------------------------------------------------------------------------------


def test_the_second_moment_does_not_stall_in_bfloat16():
    """1 - 0.999²⁰⁰⁰ = 0.865; an accumulator in bfloat16 stops at 0.5, where it cannot hold 1e-3 more."""
    w, transform = jnp.ones((2,), jnp.bfloat16), mx.AdamW(1e-5)

    def body(carry: Any, _: None) -> Any:
        w, state = carry
        return transform.step(jnp.ones_like(w), state, w), None

    (w, state), _ = jax.jit(lambda w: jax.lax.scan(body, (w, transform.init(w)), length=2000))(w)
    nu = state.inner["scale_by_adam"].nu
    assert (w.dtype, nu.dtype) == (jnp.bfloat16, jnp.float32)
    np.testing.assert_allclose(nu, 1 - 0.999**2000, rtol=1e-3)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
@pytest.mark.parametrize("make", [mx.Adam, mx.AdamW, mx.NAdam, mx.RMSProp, mx.Lion, mx.SGD])
def test_low_precision_follows_float32(make: Callable[[float], Any], dtype: Any):
    """Twenty steps end where float32 ends, up to the rounding of the parameters."""
    ends = []
    for d in (dtype, jnp.float32):
        transform, w = make(1e-2), jnp.asarray([1.0, -2.0, 0.5], d)
        state = transform.init(w)
        for _ in range(20):
            w, state = transform.step(w * jnp.asarray([1, 0, 1], d), state, w)
        assert w.dtype == d
        ends.append(np.asarray(w, np.float32))
    np.testing.assert_allclose(ends[0], ends[1], atol=20 * 2 * float(jnp.finfo(dtype).eps))


def test_a_decay_close_to_one_survives_bfloat16():
    """bfloat16(0.999) is 1, which would make the bias correction divide by zero."""
    w = jnp.ones((2,), jnp.bfloat16)
    transform = mx.ScaleByAdam(b2=0.999)
    u, _ = transform.update(w, transform.init(w))
    np.testing.assert_array_equal(u, jnp.ones((2,), jnp.bfloat16))


def test_the_global_norm_does_not_overflow_in_float16():
    g = jnp.full((4,), 300.0, jnp.float16)  # 4 · 300² is more than float16 holds
    u, _ = mx.ClipByGlobalNorm(1.0).update(g, mx.ClipByGlobalNorm(1.0).init(g))
    np.testing.assert_allclose(u, 0.5, rtol=1e-3)


# --- Hypergradients --------------------------------------------------------------------------------


def _hyper_loss(numbers: Any, make: Callable[..., Any]) -> jax.Array:
    """The loss after 30 steps; one leaf never has a gradient, so its moments are exactly zero."""
    transform = make(*numbers)
    params = {"used": jnp.asarray([1.0, -2.0, 0.3]), "unused": jnp.ones(2)}

    def loss(params: Any) -> jax.Array:
        return jnp.sum(jnp.cosh(params["used"] - 0.5)) + 0.0 * jnp.sum(params["unused"])

    def body(carry: Any, _: None) -> Any:
        params, state = carry
        return transform.step(jax.grad(loss)(params), state, params), None

    start = (params, transform.init(params))
    (params, _), _ = jax.lax.scan(body, start, length=30)
    return loss(params) + jnp.sum(params["unused"] ** 2)


@pytest.mark.usefixtures("x64")
def test_hypergradients_through_a_schedule_are_right():
    def scheduled(peak: Any, warmup: Any, end: Any) -> Any:
        return mx.AdamW(schedules.WarmupCosineDecay(0.0, peak, warmup, 30, end))

    numbers = np.asarray([0.05, 4.5, 0.01])
    value = jax.jit(lambda v: _hyper_loss(tuple(v), scheduled))
    gradient = np.asarray(jax.jit(jax.grad(value))(numbers))
    for i, x in enumerate(numbers):
        h = 1e-5 * x * np.eye(len(numbers))[i]
        difference = (value(numbers + h) - value(numbers - h)) / (2 * h[i])
        np.testing.assert_allclose(gradient[i], difference, rtol=1e-5)


@pytest.mark.parametrize("make", [mx.Adam, mx.AdamW, mx.NAdamW, mx.RMSProp, mx.SGD, mx.Lion])
def test_hypergradients_are_finite_in_float32(make: Callable[[Any], Any]):
    gradient = jax.jit(jax.grad(lambda lr: _hyper_loss((lr,), make)))(0.01)
    assert np.isfinite(gradient)
    assert gradient != 0


# --- Many leaves -----------------------------------------------------------------------------------


@pytest.mark.parametrize("transform", [mx.AdamW(0.1), mx.Chain(mx.Clip(0.5), mx.Trace(0.9))], ids=["AdamW", "Chain"])
def test_many_leaves_of_one_shape_are_each_their_own(transform: Any):
    """Leaves are traced once per shape and called in groups: none may get another's numbers."""
    random = np.random.default_rng(0)
    n = 37
    params = {f"leaf{i:02}": jnp.asarray(random.normal(size=3), jnp.float32) for i in range(n)}
    params["odd"] = jnp.ones((2, 2))
    grads = jtu.tree_map(lambda p: jnp.asarray(random.normal(size=p.shape), jnp.float32), params)
    together, state = transform.update(grads, transform.init(params), params)
    together, _ = transform.update(grads, state, params)
    for key in ("leaf00", "leaf15", "leaf16", "leaf31", "leaf36", "odd"):
        g, p = grads[key], params[key]
        alone, own = transform.update(g, transform.init(p), p)
        alone, _ = transform.update(g, own, p)
        np.testing.assert_allclose(together[key], alone, rtol=1e-6)


# --- Edges of single transforms --------------------------------------------------------------------


def test_complex_gradients_keep_their_phases_when_their_norm_is_clipped():
    """The one array of 5 becomes one of 1, and of two arrays both are divided by their common norm."""
    for grads, norm in (
        ({"a": jnp.asarray([3.0 + 4.0j])}, 5.0),
        ({"a": jnp.asarray([3.0j]), "b": jnp.asarray([4.0])}, 5.0),
    ):
        clip = mx.ClipByGlobalNorm(1.0)
        clipped, _ = clip.update(grads, clip.init(grads))
        for name, g in grads.items():
            np.testing.assert_allclose(clipped[name], g / norm, rtol=1e-6)


def test_clipping_by_norm_at_the_edges():
    zero, g = jnp.zeros(2), jnp.asarray([3.0, 4.0])

    def clip(bound: float, g: jax.Array) -> np.ndarray:
        return np.asarray(mx.ClipByGlobalNorm(bound).update(g, mx.EmptyState())[0])

    np.testing.assert_array_equal(clip(0.0, zero), zero)  # not 0/0
    np.testing.assert_array_equal(clip(0.0, g), zero)
    np.testing.assert_array_equal(clip(5.0, g), g)
    np.testing.assert_allclose(clip(2.5, g), [1.5, 2.0], rtol=1e-6)
    np.testing.assert_array_equal(clip(1.0, jnp.asarray([jnp.inf, 1.0])), zero)
    assert np.all(np.isnan(clip(1.0, jnp.asarray([jnp.nan, 1.0]))))  # a NaN is not hidden


@pytest.mark.parametrize("make", [mx.Adam, mx.RMSProp, mx.SGD])
def test_complex_parameters_are_pairs_of_real_ones_where_the_method_is_linear(make: Any):
    """|g|² keeps the phase: a rotated gradient gives the rotated update."""
    g = jnp.asarray([1.0 + 2.0j, -0.5j], jnp.complex64)
    turn = jnp.asarray(np.exp(0.7j), jnp.complex64)
    transform = make(0.1)
    u, _ = transform.update(g, transform.init(g), g)
    v, _ = transform.update(g * turn[None], transform.init(g), g)
    np.testing.assert_allclose(v, u * turn[None], rtol=1e-5)
