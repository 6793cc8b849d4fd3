"""L-BFGS in a `while_loop` that reads `count` and `grad` from the state, as the documentation of optax writes it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import modulax as mx

from .comparison import assert_same


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
