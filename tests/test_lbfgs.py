"""L-BFGS: the equations, optax, and the pairs that are no use."""

import dataclasses
from typing import Any

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import optax
import pytest

import modulax as mx

from . import settings
from .refusals import refused
from .test_linesearch import START, given, logistic, rosenbrock


def run(transform: Any, loss: Any, start: Any, steps: int) -> Any:
    """The points after each step, and the states."""

    def body(carry: Any, _: None) -> Any:
        x, state = carry
        extra = given(loss, x)
        extra["grad"] = jtu.tree_map(jnp.conj, extra["grad"])
        u, state = transform.update(extra["grad"], state, x, **extra)
        x = jtu.tree_map(lambda x, u: x + u, x, u)
        return (x, state), (x, state)

    return jax.jit(lambda x: jax.lax.scan(body, (x, transform.init(x)), length=steps)[1])(start)


# --- The equations ---------------------------------------------------------------------------------------------------


def dense(pairs: Any, g: np.ndarray) -> np.ndarray:
    """Nocedal and Wright, (6.17) with (6.20): the inverse Hessian as a matrix, times the gradient."""
    s, y = pairs[-1]
    identity = np.eye(len(g))
    inverse = identity * (s @ y) / (y @ y)
    for s, y in pairs:
        rho = 1 / (s @ y)
        inverse = (identity - rho * np.outer(s, y)) @ inverse @ (identity - rho * np.outer(y, s)) + rho * np.outer(s, s)
    return inverse @ g


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("memory", [12, 3])
def test_the_direction_is_that_of_the_dense_matrix(memory: int):
    """Also in trees, and where old pairs are forgotten."""
    random = np.random.default_rng(0)
    root = random.normal(size=(5, 5))
    hessian = root @ root.T + np.eye(5)
    points = random.normal(size=(12, 5))
    gradients = points @ hessian + 0.1 * points**3
    transform = mx.ScaleByLBFGS(memory)

    def tree(x: Any) -> Any:
        return {"a": x[:3], "b": (x[3:].reshape(1, 2), None)}

    def body(state: Any, step: Any) -> Any:
        x, g = step
        u, state = transform.update(tree(g), state, tree(x))
        return state, jnp.concatenate([u["a"], u["b"][0][0]])

    steps = jnp.asarray(points), jnp.asarray(gradients)
    state, found = jax.jit(lambda steps: jax.lax.scan(body, transform.init(tree(steps[0][0])), steps))(steps)
    np.testing.assert_allclose(found[0], gradients[0] * min(1, 1 / np.linalg.norm(gradients[0])), rtol=1e-12)
    pairs = list(zip(np.diff(points, axis=0), np.diff(gradients, axis=0), strict=True))
    for k in range(1, 12):
        np.testing.assert_allclose(found[k], dense(pairs[max(0, k - memory) : k], gradients[k]), rtol=1e-12)
    assert state.count == 12
    weights = [1 / (s @ y) for s, y in pairs]
    np.testing.assert_allclose(state.weights_memory[10 % memory], weights[10], rtol=1e-12)


# --- Optax -------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("loss", [rosenbrock, logistic], ids=["rosenbrock", "logistic"])
def test_sixty_steps_equal_those_of_optax(loss: Any):
    """All of them: from rounding error to rounding error both are where the minimum is."""
    points, states = run(mx.LBFGS(), loss, jnp.asarray(START), 60)
    with settings.jax_defaults():
        expected, _ = run(optax.lbfgs(), loss, jnp.asarray(START), 60)
    np.testing.assert_allclose(points, expected, rtol=1e-12, atol=2e-12)
    assert jnp.all(jnp.isfinite(states.inner[0].weights_memory))


# --- Pairs that are no use -------------------------------------------------------------------------------------------


def test_a_pair_of_negative_curvature_is_left_out():
    """The direction stays one of descent; optax keeps the pair and goes uphill."""
    points = jnp.asarray([[0.1, 0.2], [0.11, 0.21], [0.2, 0.1]])
    gradients = jnp.asarray([[1.0, 1.0], [0.9, 0.9], [1.5, 0.1]])

    def directions(transform: Any) -> Any:
        state, out = transform.init(points[0]), []
        for x, g in zip(points, gradients, strict=True):
            u, state = transform.update(g, state, x)
            out.append((float(jnp.vdot(u, g)), state))
        return out

    ours = directions(mx.ScaleByLBFGS(3))
    assert all(descent > 0 for descent, _ in ours)
    np.testing.assert_array_equal(ours[1][1].weights_memory, 0)
    assert [(int(state.count), int(state.skipped)) for _, state in ours] == [(1, 0), (2, 1), (3, 1)]
    assert ours[2][1].weights_memory[0] > 0
    with settings.jax_defaults():
        theirs = directions(optax.scale_by_lbfgs(3))
    assert theirs[1][0] < 0


def test_a_pair_that_is_left_out_displaces_no_other():
    x, g = jnp.asarray([1.0, 2.0]), jnp.asarray([3.0, 1.0])
    transform = mx.ScaleByLBFGS(2)
    state = transform.init(x)
    for moved, changed in ((0.0, 0.0), (1.0, 2.0), (3.0, 7.0)):
        _, state = transform.update(g + changed, state, x + moved)
    before, u = state, g
    for _ in range(4):  # nothing moves, and nothing changes
        u, state = transform.update(g + 7.0, state, x + 3.0)
    assert (int(state.count), int(state.skipped)) == (7, 4)
    assert eqx.tree_equal(dataclasses.replace(state, count=before.count, skipped=before.skipped), before)
    expected = dense([(np.ones(2), 2 * np.ones(2)), (2 * np.ones(2), 5 * np.ones(2))], np.asarray(g) + 7)
    np.testing.assert_allclose(u, expected, rtol=1e-5)


def test_after_no_step_there_is_still_a_direction():
    """optax's scale is then 0 / 0 or 0."""
    x, g = jnp.ones(2), jnp.asarray([0.3, 0.4])
    ours, theirs = mx.ScaleByLBFGS(), optax.scale_by_lbfgs()
    _, state = ours.update(g, ours.init(x), x)
    update, _ = ours.update(2 * g, state, x)
    np.testing.assert_allclose(update, 2 * g)
    with settings.jax_defaults():
        _, stuck = theirs.update(g, theirs.init(x), x)
        update, _ = theirs.update(2 * g, stuck, x)
    np.testing.assert_array_equal(update, 0)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.float32])
def test_pairs_of_any_size_leave_everything_finite(dtype: Any):
    """Products that vanish or overflow, gradients that are zero, and steps far below the rounding error of 1."""
    sizes = [0.0, 1e-30, 1e-20, 1e-7, 1.0, 1e3, 1e4] + ([1e19, 1e30] if dtype == jnp.float32 else [])
    pairs = jnp.asarray([(s, y) for s in sizes for y in sizes], dtype)
    base = jnp.asarray([1.0, -0.5, 0.25], dtype)
    transform = mx.ScaleByLBFGS(4)

    def follow(size: Any) -> Any:
        def body(state: Any, step: Any) -> Any:
            u, state = transform.update(base * step[1], state, base * step[0])
            return state, (u, state.weights_memory)

        zero = jnp.zeros_like(size)
        steps = jnp.stack([zero, size, zero, size, jnp.ones_like(size), size])
        return jax.lax.scan(body, transform.init(base), steps)

    state, (updates, weights) = jax.jit(jax.vmap(follow))(pairs)
    for x in jtu.tree_leaves((state, updates)):
        assert not np.any(np.isnan(np.asarray(x, float)))
    chex.assert_tree_all_finite(weights)


@pytest.mark.parametrize("size", [1.0, 1e20, 8e37, 2e38])
def test_the_first_direction_is_short(size: float):
    """Also where the reciprocal of the norm would be denormal, which XLA makes zero."""
    params = {"w": jnp.asarray([0.6, 0.8])}
    lbfgs = mx.ScaleByLBFGS(2)
    grads = jax.tree.map(lambda p: p * size, params)
    direction = lbfgs.update(grads, lbfgs.init(params), params)[0]["w"]
    length = jnp.linalg.norm(direction)
    np.testing.assert_allclose(direction / length, params["w"], rtol=1e-5)
    assert length == pytest.approx(1, rel=1e-5) or (size > 8.5e37 and 1 < length < 4)


@pytest.mark.usefixtures("x64")
def test_converged_it_stays():
    """Long after, in float32 under x64 too, whose dtypes stay what they are."""
    dtype = jnp.float32
    start = jnp.asarray([-1.2, 1.0], dtype)
    points, states = run(mx.LBFGS(memory_size=3), rosenbrock, start, 150)
    for x in jtu.tree_leaves((points, states)):
        chex.assert_tree_all_finite(x)
    np.testing.assert_allclose(points[-1], 1, rtol=1e-5)
    assert points.dtype == states.inner[0].diff_params_memory.dtype == dtype
    assert states.inner[2].value.dtype == states.inner[0].weights_memory.dtype == jnp.float64


def test_what_has_no_gradient_does_not_move():
    x = jnp.ones(3)
    points, states = run(mx.LBFGS(), lambda x: jnp.zeros(()), x, 5)
    np.testing.assert_array_equal(points, 1)
    chex.assert_tree_all_finite(states)


def test_memories_are_in_float32():
    params = {"a": jnp.ones(2, jnp.bfloat16), "b": jnp.ones((2, 1), jnp.float32)}
    state = mx.ScaleByLBFGS(3).init(params)
    for field in ("updates", "diff_params_memory", "diff_updates_memory"):
        assert {x.dtype for x in jtu.tree_leaves(getattr(state, field))} == {jnp.dtype("float32")}
    assert state.params["a"].dtype == jnp.bfloat16
    assert state.diff_params_memory["b"].shape == (3, 2, 1)


# --- With others -----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("x64")
def test_complex_parameters_are_their_parts():
    matrix = np.asarray([[1, -2], [3, 4], [-4 + 2j, 5 - 3j], [-2 - 2j, 6]], np.complex128)
    z = jnp.asarray(np.asarray([1 - 1j, 1j], np.complex128))

    def loss(z: Any) -> Any:
        return jnp.sum(jnp.sqrt(1 + jnp.abs(jnp.asarray(matrix) @ z - 1) ** 2))

    def of_parts(x: Any) -> Any:
        return loss(jax.lax.complex(x[0], x[1]))

    points, _ = run(mx.LBFGS(), of_parts, jnp.stack([z.real, z.imag]), 12)
    found, _ = run(mx.LBFGS(), loss, z, 12)
    np.testing.assert_allclose(found, np.asarray(points[:, 0]) + 1j * np.asarray(points[:, 1]), rtol=1e-6)
    np.testing.assert_allclose(jnp.abs(jax.grad(loss)(found[-1])), 0, atol=1e-3)


def test_several_batches_for_one_step():
    """`MultiSteps` hands the loss on at the last of them."""
    halves = jnp.asarray([[1.0, 2.0, 3.0], [3.0, -1.0, 0.5]])

    def loss(x: Any, rows: Any = halves) -> Any:
        return jnp.mean((rows @ x - 1) ** 2)

    many, one = mx.MultiSteps(mx.LBFGS(), 2), mx.LBFGS()
    x = y = jnp.zeros(3)
    accumulated, state = many.init(x), one.init(y)
    for _ in range(3):
        extra = given(loss, y)
        for row in halves:
            x, accumulated = many.step(jax.grad(loss)(y, row[None]), accumulated, x, **extra)
        y, state = one.step(extra["grad"], state, y, **extra)
    np.testing.assert_allclose(x, y, rtol=1e-5)


def test_without_a_line_search_it_takes_a_learning_rate():
    """Or a schedule."""

    def bowl(x: Any) -> Any:
        return jnp.sum(jnp.asarray([1.0, 10.0]) * x**2)

    optimizer = mx.LBFGS(mx.schedules.Linear(1.0, 0.5, 10), linesearch=None)
    points, _ = run(optimizer, bowl, jnp.ones(2), 20)
    np.testing.assert_allclose(points[-1], 0, atol=1e-4)
    first = optimizer.update(jnp.full(2, 2.0), optimizer.init(jnp.ones(2)), jnp.ones(2))[0]
    np.testing.assert_allclose(first, -np.full(2, np.sqrt(0.5)), rtol=1e-6)


def test_wrong_arguments_are_refused():
    with refused("`ScaleByLBFGS(memory_size=...)` must be a positive integer, got 0"):
        mx.ScaleByLBFGS(0)
    with refused("`LBFGS(linesearch=...)` is not a modulax transform"):
        mx.LBFGS().replace(linesearch=optax.scale_by_zoom_linesearch(20))
    transform = mx.ScaleByLBFGS()
    with refused("`ScaleByLBFGS.update`: at the tree itself the update has shape (2,)"):
        transform.update(jnp.ones(2), transform.init(jnp.ones(3)), jnp.ones(2))
