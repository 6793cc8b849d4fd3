"""Where modulax differs from optax on purpose: each test shows what both do.

`docs/differences_from_optax.md` lists the differences; those of a family are shown beside its equations.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import modulax as mx
from modulax import schedules

from .settings import jax_defaults
from .transcriptions import ETA, compiled, points


@pytest.fixture(autouse=True)
def _defaults():
    with jax_defaults():
        yield


def run(transform: Any, grads: Any, params: Any) -> Any:
    """The last updates, and the state."""
    state, updates = transform.init(params), None
    for g in grads:
        updates, state = transform.update(g, state, params)
    return updates, state


def test_second_moments_do_not_stall():
    p, grads = jnp.ones(2, jnp.bfloat16), [jnp.ones(2, jnp.bfloat16)] * 2000
    _, ours = run(mx.ScaleByRMS(0.999), grads, p)
    _, theirs = run(optax.scale_by_rms(0.999), grads, p)
    np.testing.assert_allclose(ours.nu, 1 - 0.999**2000, rtol=1e-3)
    assert float(theirs.nu[0]) < 0.6


def test_moments_stored_in_bfloat16_are_updated_in_float32():
    grads = jnp.asarray(np.random.default_rng(0).normal(size=(40, 50)), jnp.float32)

    def trained(transform: Any) -> Any:
        def body(carry: Any, g: Any) -> Any:
            p, state = carry
            u, state = transform.update(g + p, state, p)
            return (p + u, state), None

        p = jnp.ones(50)
        return jax.lax.scan(body, (p, transform.init(p)), grads)[0][0]

    low: dict[str, Any] = {"mu_dtype": jnp.bfloat16}
    ours, wide = mx.AdamW(1e-2, **low), mx.AdamW(1e-2)
    theirs = optax.adamw(1e-2, **low)
    kinds = [
        (ours, wide, theirs),
        (mx.MultiSteps(ours, 2), mx.MultiSteps(wide, 2), optax.MultiSteps(theirs, 2)),
    ]
    for near, exact, far in np.asarray(jax.jit(lambda: [[trained(t) for t in kind] for kind in kinds])()):
        distance = np.max(np.abs(near - exact))
        assert 0 < 2 * distance < np.max(np.abs(far - exact))
        assert np.max(np.abs(near - far)) > 1e-3


def _has_nu(x: Any) -> bool:
    return hasattr(x, "nu")


def test_the_rounding_of_a_decay_rate_cancels():
    """The first update of Adam is the learning rate times g / (|g| + eps), whatever `b2` is."""
    p = jnp.ones(())
    for b2 in (0.999, 0.9999):
        ours, theirs = mx.Adam(1.0, b2=b2), optax.adam(1.0, b2=b2)
        near, state = ours.update(p, ours.init(p), p)
        far, other = theirs.update(p, theirs.init(p), p)
        nu, moment = (next(x.nu for x in jax.tree.leaves(s, is_leaf=_has_nu) if _has_nu(x)) for s in (state, other))
        assert 1e-5 < abs(nu / moment - 1) < 2e-4
        assert np.abs(np.asarray(near) + 1) < 1e-6 < 5e-6 < np.abs(np.asarray(far) + 1) < 1e-4


def test_zero_gradients_in_half_precision():
    p = jnp.ones(2, jnp.float16)
    ours, _ = run(mx.ScaleByAdam(), [0 * p], p)
    theirs, _ = run(optax.scale_by_adam(), [0 * p], p)
    np.testing.assert_array_equal(ours, 0)
    assert np.isnan(theirs).all()


def test_clipping_makes_no_nan():
    p = jnp.ones(2)
    for bound, g in ((1.0, jnp.asarray([jnp.inf, 1.0])), (0.0, jnp.zeros(2))):
        ours, _ = run(mx.ClipByGlobalNorm(bound), [g], p)
        theirs, _ = run(optax.clip_by_global_norm(bound), [g], p)
        np.testing.assert_array_equal(ours, 0)
        assert np.isnan(theirs).any()


def test_an_empty_chain_is_the_identity():
    p = jnp.ones(2)
    ours, _ = run(mx.Chain(), [2 * p], p)
    np.testing.assert_array_equal(ours, 2)
    with pytest.raises(ValueError, match="not enough values to unpack"):
        run(optax.chain(), [2 * p], p)


class Layer(eqx.Module):
    """A model that can be called, as most are; also a tree of labels for itself."""

    weight: Any
    bias: Any

    def __call__(self, x: Any) -> Any:
        return self.weight * x + self.bias


def test_labels_may_be_a_module_that_can_be_called():
    model, labels = Layer(jnp.ones(2), jnp.ones(2)), Layer("fast", "slow")
    ours, _ = run(mx.Partition({"fast": mx.SGD(1.0), "slow": mx.SGD(0.1)}, labels), [model], model)
    np.testing.assert_allclose([ours.weight[0], ours.bias[0]], [-1.0, -0.1], rtol=1e-6)
    with pytest.raises(TypeError):  # it calls the labels
        run(optax.partition({"fast": optax.sgd(1.0), "slow": optax.sgd(0.1)}, labels), [model], model)


def test_multisteps_recovers():
    p, bad, good = jnp.ones(2), jnp.full(2, jnp.inf), jnp.ones(2)
    grads = [bad, good, good, good]
    ours, _ = run(mx.MultiSteps(mx.SGD(0.1), 2), grads, p)
    theirs, _ = run(optax.MultiSteps(optax.sgd(0.1), 2), grads, p)
    np.testing.assert_allclose(ours, -0.1, rtol=1e-6)
    assert np.isnan(theirs).all()


def test_injected_numbers_keep_their_dtype():
    p = jnp.ones(2, jnp.bfloat16)
    ours, state = run(mx.Injected(mx.Adam(0.1)), [p], p)
    theirs, their_state = run(optax.inject_hyperparams(optax.adam)(0.1), [p], p)
    np.testing.assert_allclose(np.asarray(ours, np.float32), -0.1, rtol=1e-2)
    assert np.isnan(np.asarray(theirs, np.float32)).all()
    assert {x.dtype for x in jax.tree.leaves(state.hyperparameters)} == {jnp.dtype("float32")}
    assert their_state.hyperparams["b2"].dtype == jnp.bfloat16


def test_schedules_are_as_precise_as_asked_for(x64: None):
    del x64
    count = jnp.asarray(7, jnp.int32)  # which is what a state counts in
    ours, theirs = (np.asarray(s(count)) for s in (schedules.Linear(1.0, 0.1, 20), optax.linear_schedule(1.0, 0.1, 20)))
    assert abs(float(ours) - (1 - 0.9 * 7 / 20)) < 1e-15
    assert abs(float(theirs) - (1 - 0.9 * 7 / 20)) > 1e-9


@pytest.mark.usefixtures("x64")
def test_the_optimism_of_the_first_version_is_beta_times_the_rate():
    with pytest.warns(DeprecationWarning, match="optimistic_adam_v2"):
        theirs = points(compiled(optax.optimistic_adam(ETA, 0.02, 0.8)))
    np.testing.assert_allclose(points(mx.OptimisticAdam(ETA, beta=0.02 / ETA, b1=0.8)), theirs, rtol=1e-12)


def test_states_are_modules_and_masked_leaves_are_none():
    params = {"a": jnp.ones(2), "b": jnp.ones(2)}
    mask = {"a": True, "b": False}
    ours = mx.Chain(mx.Masked(mx.Trace(0.9), mask), mx.Scale(1.0)).init(params)
    theirs: Any = optax.chain(optax.masked(optax.trace(0.9), mask), optax.scale(1.0)).init(params)
    assert isinstance(theirs, tuple)
    assert isinstance(ours, mx.AbstractState)
    assert ours[0].inner_state.trace["b"] is None
    assert isinstance(theirs[0].inner_state.trace["b"], optax.MaskedNode)
    labels = {"a": "x", "b": "y"}
    ours = mx.Partition({"x": mx.Trace(0.9), "y": mx.Identity()}, labels).init(params)
    theirs = optax.partition({"x": optax.trace(0.9), "y": optax.identity()}, labels).init(params)
    assert isinstance(ours.inner_states["x"], mx.states.TraceState)
    assert isinstance(theirs.inner_states["x"], optax.MaskedState)


def test_moments_of_complex_gradients_are_complex():
    p = jnp.ones(2, jnp.complex64)
    assert mx.ScaleByAdam(mu_dtype=jnp.bfloat16).init(p).mu.dtype == jnp.complex64
    theirs: Any = optax.scale_by_adam(mu_dtype=jnp.bfloat16).init(p)
    assert theirs.mu.dtype == jnp.bfloat16


def test_what_is_no_array_is_not_trained():
    with pytest.raises(ValueError, match="nothing to train"):
        mx.ScaleByAdam().init({"a": 1})
    theirs: Any = optax.scale_by_adam().init({"a": 1})
    assert theirs.mu == {"a": 0}
    shapes: Any = jax.ShapeDtypeStruct((2,), jnp.float32)
    assert mx.Trace(0.9).init(shapes).trace == shapes
    theirs = optax.trace(0.9).init(shapes)
    assert isinstance(theirs.trace, jax.Array)
    integers = jnp.ones(2, jnp.int32)
    assert mx.Scale(2.0).update(integers, mx.EmptyState())[0] is None
    np.testing.assert_array_equal(optax.scale(2.0).update(integers, optax.EmptyState())[0], 2)


def test_mistakes_are_value_errors_where_they_are_made():
    g = jnp.ones(2)
    with pytest.raises(ValueError, match="must be positive"):
        mx.schedules.Polynomial(1.0, 0.0, 1, -3)
    assert optax.polynomial_schedule(1.0, 0.0, 1, -3)(5) == 1.0
    with pytest.raises(ValueError, match="needs `value`"):
        mx.ScaleByPolyak().update(g, mx.EmptyState(), g)
    with pytest.raises(TypeError, match="value"):
        optax.scale_by_polyak().update(g, optax.EmptyState(), g)
    with pytest.raises(ValueError, match="unknown"):
        mx.apply_updates(None, g)
    params: Any = None
    assert optax.apply_updates(params, g) is None


def test_a_wrapped_function_is_a_schedule():
    assert schedules.WrappedSchedule(lambda step: 0.5 * step)(2) == 1
    assert not isinstance(schedules.WrappedSchedule(lambda step: step), mx.AbstractStatefulSchedule)
    assert optax.schedules.WrappedSchedule(lambda step: 0.5 * step).init().count == 0
