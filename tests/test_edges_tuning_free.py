"""Methods that find their own step size at the edges: zeros, low precision, scalars, huge gradients."""

from collections.abc import Callable
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

from . import settings
from .transcriptions import gradients, start

contrib = optax.contrib

pytestmark = pytest.mark.usefixtures("x64")


def test_a_nan_is_not_hidden():
    """A gradient of NaN shows in its parameter, and nothing is frozen or skipped in silence."""
    optimizers = [
        *(mx.Adagrad(0.1), mx.COCOB(), mx.DoG(), mx.DoWG(), mx.PolyakSGD(), mx.MoMo(1.0), mx.MoMoAdam(1.0)),
        *(
            mx.Prodigy(),
            mx.DAdaptAdamW(),
            mx.StableAdamW(0.1),
            mx.ScheduleFreeSGD(0.1),
            mx.MultiSteps(mx.Adagrad(0.1), 2),
        ),
    ]
    one, bad = jnp.ones(2), jnp.asarray([np.nan, 1.0])

    @jax.jit
    def after_a_nan():
        out = []
        for optimizer in optimizers:
            x, state = one, optimizer.init(one)
            for g in (one, bad):
                x, state = optimizer.step(g, state, x, value=jnp.asarray(1.0))
            out.append(x)
        return out

    for optimizer, x in zip(optimizers, after_a_nan(), strict=True):
        assert np.isnan(x[0]), optimizer


@pytest.mark.parametrize("name", ["prodigy", "dadapt_adamw"])
def test_zeros_at_first_are_no_end(name: str):
    """A zero gradient, or a rate that warms up from zero: optax divides zero by zero, and is NaN for ever."""
    ours, twin = {
        "prodigy": (mx.Prodigy, contrib.prodigy),
        "dadapt_adamw": (mx.DAdaptAdamW, contrib.dadapt_adamw),
    }[name]
    w = jnp.asarray(start())
    warmup = schedules.Linear(0.0, 1.0, 3)
    for transform, first in ((ours(), 0.0), (ours(warmup), 1.0)):
        state, x = transform.init(w), w
        for i, g in enumerate(gradients()[:5]):
            x, state = transform.step((first if i == 0 else 1.0) * jnp.asarray(g), state, x)
        chex.assert_tree_all_finite(x)
        assert np.any(x != w)
    with settings.jax_defaults():
        theirs = twin()
        _, state = theirs.update(0 * w, theirs.init(w), w)
        assert np.all(np.isnan(theirs.update(w, state, w)[0]))


LOW: dict[str, Callable[[], Any]] = {
    "Prodigy": mx.Prodigy,
    "DAdaptAdamW": mx.DAdaptAdamW,
    "DoG": mx.DoG,
    "DoWG": mx.DoWG,
    "COCOB": mx.COCOB,
    "PolyakSGD": mx.PolyakSGD,
    "MoMo": mx.MoMo,
    "MoMoAdam": mx.MoMoAdam,
}


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
@pytest.mark.parametrize("name", LOW)
def test_low_precision_keeps_the_step_size(name: str, dtype: Any):
    """The numbers of all leaves do not have the dtype of the parameters: float16 has no 1e-8."""
    transform = LOW[name]()
    w = jnp.asarray([1.0, -2.0, 0.5], dtype)
    state, x = transform.init(w), w
    for g in (0 * w, w, w, 0 * w):
        x, state = transform.step(g, state, x, value=1.0)
        assert np.all(np.isfinite(np.asarray(x, float)))
    shared = [leaf for leaf in jtu.tree_leaves(state) if leaf.ndim == 0 and jnp.issubdtype(leaf.dtype, jnp.floating)]
    assert all(leaf.dtype == jnp.float64 and np.isfinite(leaf) for leaf in shared)  # the default float under x64


def test_a_scalar_stays_a_scalar():
    w = jnp.asarray(2.0)
    ours, twin = mx.ScaleByDistanceOverGradients(), optax.scale_by_distance_over_gradients()
    updates, _ = ours.update(w, ours.init(w), w)
    assert updates.shape == ()
    with settings.jax_defaults():
        theirs: Any = twin.update(w, twin.init(w), w)[0]
    assert jnp.shape(theirs) == (1,)
    np.testing.assert_allclose(updates, theirs[0], rtol=1e-12)


def test_huge_gradients_leave_the_bound_finite():
    """The squared norm overflows in float32; the step is zero then, and must not be multiplied by infinity."""
    for make in (lambda: mx.MoMo(adapt_lower_bound=True), lambda: mx.MoMoAdam(adapt_lower_bound=True)):
        transform, w = make(), jnp.ones(3, jnp.float32)
        with jax.enable_x64(False):
            state = transform.init(w)
            updates, state = transform.update(1e30 * w, state, w, value=1.0)
        chex.assert_tree_all_finite((updates, state.inner[0].lb))


def test_the_start_is_stored_in_the_dtype_that_is_given():
    """Made complex for complex parameters, whatever their precision is."""
    for dtype, wanted in ((jnp.float32, jnp.complex64), (jnp.float64, jnp.complex128), (jnp.bfloat16, jnp.complex64)):
        for p in (jnp.ones(2, jnp.complex64), jnp.ones(2, jnp.complex128), jnp.ones(2)):
            state = mx.ScaleByDistanceOverGradients(param_dtype=dtype).init(p)
            chex.assert_type(state.init_params, wanted if jnp.iscomplexobj(p) else dtype)
