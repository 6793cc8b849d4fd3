"""L-BFGS in a `while_loop` that reads `count` and `grad` from the state, as the documentation of optax writes it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import modulax as mx

from .comparison import assert_same

START = jnp.asarray([600.0, 700.0, 200.0, 100.0, 90.0, 1e4])


def stiff(w: Any) -> Any:
    """A bowl with a quartic ridge: in float32, line searches fail from the second step on."""
    ridge = jnp.sum(0.5 * jnp.arange(1.0, w.size + 1) * w)
    return jnp.sum(w**2) + ridge**2 + ridge**4


def rosenbrock(w: Any) -> Any:
    return jnp.sum(100 * (w[1:] - w[:-1] ** 2) ** 2 + (1 - w[:-1]) ** 2)


def minimize(library: Any, solver: Any, function: Any, start: Any, *, max_iter: int, tolerance: float) -> Any:
    """The parameters, the number of iterations, and `count`; more than 3 × max_iter iterations don't end by `count`."""
    value_and_grad = library.value_and_grad_from_state(function)

    def step(carry: Any) -> Any:
        params, state, iterations = carry
        value, grads = value_and_grad(params, state=state)
        updates, state = solver.update(grads, state, params, value=value, grad=grads, value_fn=function)
        return library.apply_updates(params, updates), state, iterations + 1

    def proceeds(carry: Any) -> Any:
        _, state, iterations = carry
        count = library.tree.get(state, "count")
        error = library.tree.norm(library.tree.get(state, "grad"))
        return ((count == 0) | ((count < max_iter) & (error >= tolerance))) & (iterations < 3 * max_iter)

    @jax.jit
    def run(params: Any) -> Any:
        params, state, iterations = jax.lax.while_loop(proceeds, step, (params, solver.init(params), 0))
        return params, iterations, library.tree.get(state, "count")

    return run(start)


@pytest.mark.usefixtures("x64")
def test_lbfgs_converges_in_as_many_steps():
    start = np.asarray([-1.2, 1.0, 0.5])
    theirs = minimize(optax, optax.lbfgs(), rosenbrock, start, max_iter=60, tolerance=1e-4)
    ours = minimize(mx, mx.LBFGS(), rosenbrock, start, max_iter=60, tolerance=1e-4)
    assert_same(ours, theirs, 1e-7)
    assert 10 < theirs[1] < 60
    np.testing.assert_allclose(ours[0], 1, atol=1e-4)


def test_the_loop_ends_where_line_searches_fail():
    """`count` counts steps, so that the loop ends after `max_iter` of them, whatever pairs L-BFGS keeps."""
    for library, solver in ((optax, optax.lbfgs(scale_init_precond=False)), (mx, mx.LBFGS(scale_init_precond=False))):
        _, iterations, count = minimize(library, solver, stiff, START, max_iter=6, tolerance=1e-8)
        assert (iterations, count) == (6, 6)
