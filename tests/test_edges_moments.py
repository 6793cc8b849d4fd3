"""Relatives of Adam and accumulators at the edges: low precision, zeros, huge gradients, complex numbers."""

from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import modulax as mx

from .transcriptions import SIZE, first_update, gradients, updates

in_double = pytest.mark.usefixtures("x64")


@pytest.mark.parametrize(
    "transform, sizes, degree",
    [
        (mx.ReduceVariance(), (1.0, 1e20, 1e37), 0),
        (mx.ScaleBySOAP(normalize_grads=True), (1.0, 1e-27), 0),
        (mx.ScaleByShampoo(grafting=mx.Identity()), (1.0, 1e20, 1e37), 1),
    ],
    ids=lambda x: type(x).__name__ if isinstance(x, mx.AbstractTransform) else None,
)
def test_norms_of_updates_do_not_over_or_underflow(transform: Any, sizes: tuple[float, ...], degree: int):
    """A norm that was infinite or zero erased the update, or made it huge."""
    norms = []
    for size in sizes:
        g = jnp.asarray([[3.0, -1.0], [1.0, 2.0]]) * size
        u, state = g, transform.init(g)
        for _ in range(2):
            u, state = transform.update(g, state)
        norms.append(np.linalg.norm(np.float64(u)) / size**degree)
    np.testing.assert_allclose(norms, norms[0], rtol=1e-4)
    assert norms[0] > 0.1


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_zero_gradients_past_the_threshold_of_radam_in_low_precision(dtype: Any):
    """ε underflows in float16: optax divides zero by zero from the sixth step on."""
    np.testing.assert_array_equal(np.asarray(updates(mx.RAdam(0.1), np.zeros((10, 3), dtype)), np.float32), 0)


@in_double
def test_adagrad_without_eps_is_zero_at_zero():
    """With no start and no ε, a coordinate that had no gradient stays, and its hypergradients are finite."""
    g = jnp.asarray([0.0, 2.0])

    def total(initial: Any, g: Any) -> Any:
        transform = mx.ScaleByRSS(initial, 0.0)
        return jnp.sum(transform.update(g, transform.init(g))[0])

    np.testing.assert_allclose(first_update(mx.ScaleByRSS(0.0, 0.0), np.asarray(g)), [0.0, 1.0])
    for slope in jax.tree.leaves(jax.grad(total, argnums=(0, 1))(jnp.asarray(0.0), g)):
        chex.assert_tree_all_finite(slope)


@in_double
@pytest.mark.parametrize("b2", [0.5, 0.9, 0.999])
def test_hypergradients_of_radam_are_finite_before_and_after_the_threshold(b2: float):
    def total(b2: Any) -> Any:
        transform = mx.ScaleByRAdam(b2=b2)
        g = jnp.asarray([0.0, 1.0, -2.0])
        state, u = transform.init(g), g
        for t in range(9):
            u, state = transform.update(g * (1 - 0.1 * t), state)
        return jnp.sum(u)

    slope = jax.grad(total)(jnp.asarray(b2))
    h = 1e-6
    difference = (total(jnp.asarray(b2 + h)) - total(jnp.asarray(b2 - h))) / (2 * h)
    np.testing.assert_allclose(slope, difference, rtol=1e-4, atol=1e-8)


@in_double
def test_complex_parameters_are_pairs_in_modulus():
    """A gradient turned by a phase turns the step by it, where the square is |g|²."""
    phase, zeros = np.exp(0.7j), np.zeros(SIZE, complex)
    g = gradients()[0] * np.exp(1j * np.arange(SIZE))
    adaptive = [mx.Adamax, mx.AMSGrad, mx.AdaBelief, mx.Yogi, mx.RAdam, mx.NovoGrad, mx.Adan, mx.Adagrad, mx.Adadelta]
    transforms = [(make(0.1), np.inf) for make in (*adaptive, mx.OptimisticAdam)]
    signs = [(mx.ScaleByLion(mode=mode), 1 + 1e-12) for mode in ("hard", "smooth", "refined")]
    for transform, bound in (*transforms, *signs):
        plain, turned = (first_update(transform, x, zeros) for x in (g, phase * g))
        np.testing.assert_allclose(turned, phase * plain, rtol=1e-12)
        assert np.all(np.abs(plain) <= bound)


# --- Words -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("transform", [mx.ScaleByAMSGrad(), mx.Adan(0.1)], ids=lambda x: type(x).__name__)
def test_a_wrong_source_is_refused(transform: Any):
    with pytest.raises(ValueError, match=r"follow=.*'paper'.*'optax'.*got 'Optax'.*Did you mean `optax`"):
        transform.replace(follow="Optax")
    with pytest.raises(ValueError, match=r"follow=.*got None"):
        transform.replace(follow=None)


@pytest.mark.parametrize("make", [mx.AdamW, mx.Adan, mx.NovoGrad], ids=lambda make: make.__name__)
def test_no_decay_of_an_infinite_parameter(make: Any):
    optimizer = make(0.1, weight_decay=0.0)
    params = jnp.asarray([jnp.inf, 1.0])
    u, _ = optimizer.update(jnp.ones(2), optimizer.init(params), params)
    np.testing.assert_array_equal(u[0], u[1])
