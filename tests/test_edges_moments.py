"""Relatives of Adam and accumulators at the edges: low precision, zeros, huge gradients, wrong words."""

from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import modulax as mx

from . import settings
from .transcriptions import SIZE, compiled, first_update, gradients

in_double = pytest.mark.usefixtures("x64")


EDGES: dict[str, Callable[[], Any]] = {
    "Adamax": lambda: mx.Adamax(0.1),
    "AMSGrad": lambda: mx.AMSGrad(0.1),
    "AdaBelief": lambda: mx.AdaBelief(0.1),
    "Yogi": lambda: mx.Yogi(0.1),
    "RAdam": lambda: mx.RAdam(0.1),
    "NovoGrad": lambda: mx.NovoGrad(0.1),
    "Adan": lambda: mx.Adan(0.1),
    "Adagrad": lambda: mx.Adagrad(0.1),
    "Adadelta": lambda: mx.Adadelta(0.1),
    "OptimisticAdam": lambda: mx.OptimisticAdam(0.1),
}
UNSOUND = {
    "Adamax": lambda: optax.adamax(0.1),
    "AMSGrad": lambda: optax.amsgrad(0.1),
    "AdaBelief": lambda: optax.adabelief(0.1),
    "RAdam": lambda: optax.radam(0.1),
    "NovoGrad": lambda: optax.novograd(0.1),
    "Adan": lambda: optax.adan(0.1),
}


def run(transform: Any, grads: list[jax.Array], dtype: Any) -> Any:
    w = np.ones(3, dtype)
    state, u = transform.init(w), w
    for g in grads:
        u, state = transform.update(np.asarray(g).astype(dtype), state, w)
    return u


@pytest.mark.parametrize("name", EDGES)
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_ten_zero_gradients_in_low_precision(name: str, dtype: Any):
    """ε underflows in float16: 0 / 0 in optax, for RAdam from the sixth step on."""
    zeros = [jnp.zeros(3)] * 10
    u = run(EDGES[name](), zeros, dtype)
    assert u.dtype == dtype
    assert np.all(np.isfinite(np.asarray(u, np.float32)))


@pytest.mark.parametrize("name", UNSOUND)
def test_optax_divides_zero_by_zero_in_float16(name: str):
    with settings.jax_defaults():
        u = run(compiled(UNSOUND[name]()), [jnp.zeros(3)] * 10, jnp.float16)
    assert not np.any(np.isfinite(np.asarray(u, np.float32)))


@pytest.mark.parametrize("name", EDGES)
def test_gradients_whose_squares_overflow(name: str):
    huge = jnp.full(3, 1e30)
    for grads in ([huge, huge, huge], [huge, jnp.ones(3), huge], [jnp.zeros(3), huge, jnp.zeros(3)]):
        assert np.all(np.isfinite(run(EDGES[name](), grads, jnp.float32)))


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


@pytest.mark.parametrize("name", EDGES)
def test_second_moments_do_not_stall_in_bfloat16(name: str):
    """In bfloat16, which has three digits, an average with weight 0.001 would never move."""
    w = jnp.ones(3, jnp.bfloat16)
    state = EDGES[name]().init(w)
    second = {"nu", "nu_max", "n", "e_g", "e_x", "sum_of_squares"}
    found = {
        str(path[-1].name if hasattr(path[-1], "name") else path[-1]): x.dtype
        for path, x in jax.tree_util.tree_leaves_with_path(state)
    }
    assert found.keys() & second
    assert all(found[name] == jnp.float32 for name in found.keys() & second)


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
    phase = np.exp(0.7j)
    g = gradients()[0] * np.exp(1j * np.arange(SIZE))
    for make in EDGES.values():
        transform = make()
        plain, turned = (first_update(transform, x, jnp.zeros(SIZE, complex)) for x in (g, phase * g))
        np.testing.assert_allclose(turned, phase * plain, rtol=1e-12)
    for mode in ("hard", "smooth", "refined"):
        lion = mx.ScaleByLion(mode=mode)
        plain, turned = (first_update(lion, x, jnp.zeros(SIZE, complex)) for x in (g, phase * g))
        np.testing.assert_allclose(turned, phase * plain, rtol=1e-12)
        assert np.all(np.abs(plain) <= 1 + 1e-12)


# --- Words -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "transform", [mx.ScaleByAMSGrad(), mx.ScaleByAdan(), mx.AMSGrad(0.1), mx.Adan(0.1)], ids=lambda x: type(x).__name__
)
def test_a_wrong_source_is_refused(transform: Any):
    with pytest.raises(ValueError, match=r"follow=.*'paper'.*'optax'.*got 'Optax'.*Did you mean `optax`"):
        transform.replace(follow="Optax")
    with pytest.raises(ValueError, match=r"follow=.*got None"):
        transform.replace(follow=None)


def test_a_wrong_mode_is_refused():
    with pytest.raises(ValueError, match=r"`ScaleByLion\(mode=...\)` must be one of .*'hard'.*'smooth'.*'refined'"):
        mx.ScaleByLion().replace(mode="soft")


@pytest.mark.parametrize("make", [mx.AdamW, mx.Adan, mx.NovoGrad], ids=lambda make: make.__name__)
def test_no_decay_of_an_infinite_parameter(make: Any):
    optimizer = make(0.1, weight_decay=0.0)
    params = jnp.asarray([jnp.inf, 1.0])
    updates, _ = optimizer.update(jnp.ones(2), optimizer.init(params), params)
    np.testing.assert_array_equal(updates[0], updates[1])
