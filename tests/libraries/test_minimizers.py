"""optimistix and jaxopt take our optimizers as they are, with the loss and its gradient as extra arguments."""

# pyright: reportMissingImports=false

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import optimistix
import pytest

import modulax as mx

from ..programs.comparison import assert_same

pytestmark = pytest.mark.usefixtures("x64")


def rosenbrock(w: Any, scale: Any) -> Any:
    return jnp.sum(scale * (w[1:] - w[:-1] ** 2) ** 2 + (1 - w[:-1]) ** 2)


START = np.asarray([-1.2, 1.0, 0.5])
# Made inside the test, so that the hyperparameters are in float64.
PAIRS = {
    "Adam": lambda: (optax.adam(0.1), mx.Adam(0.1)),
    "MoMo, which needs the loss": lambda: (optax.contrib.momo(0.1), mx.MoMo(0.1, follow="optax")),
    "L-BFGS, which calls the function": lambda: (optax.lbfgs(), mx.LBFGS()),
}


def minimize(tx: Any, scale: Any = 10.0, **options: Any) -> Any:
    solver = optimistix.OptaxMinimiser(tx, rtol=1e-5, atol=1e-5)
    options = {"max_steps": 60, "throw": False, **options}
    solution = optimistix.minimise(rosenbrock, solver, START, scale, **options)
    return solution.value, solution.stats["num_steps"]


@pytest.mark.parametrize("name", PAIRS)
def test_optimistix(name: str):
    theirs, ours = PAIRS[name]()
    expected = minimize(theirs)
    assert_same(minimize(ours), expected, 1e-9)
    assert_same(minimize(mx.to_optax(ours)), expected, 1e-9)


def test_optimistix_implicit_gradient_and_a_batch_of_learning_rates():
    @jax.jit
    def sensitivity(scale: Any) -> Any:
        return jax.grad(lambda s: jnp.sum(minimize(mx.LBFGS(), s)[0] ** 2))(scale)

    expected = jax.jit(jax.grad(lambda s: jnp.sum(minimize(optax.lbfgs(), s)[0] ** 2)))(10.0)
    np.testing.assert_allclose(sensitivity(10.0), expected, atol=1e-3)

    rates = jnp.asarray([0.03, 0.1])
    found = eqx.filter_vmap(lambda rate: minimize(mx.Adam(rate)))(rates)
    alone = [minimize(optax.adam(rate)) for rate in rates.tolist()]
    assert_same(found, jax.tree.map(lambda *x: jnp.stack(x), *alone), 1e-9)


def solve(tx: Any, **options: Any) -> Any:
    import jaxopt  # which warns at import that it is no longer maintained

    x = np.random.default_rng(0).normal(size=(30, 3))
    y = x @ np.asarray([1.0, 0.5, -1.0])

    def ridge(params: Any, penalty: Any) -> Any:
        return jnp.mean((x @ params - y) ** 2) + penalty * jnp.sum(params**2)

    solver = jaxopt.OptaxSolver(ridge, tx, **options)

    def solution(penalty: Any) -> Any:
        return solver.run(jnp.zeros(3), penalty).params

    return solution(0.1), jax.jacobian(solution)(0.1)


@pytest.mark.filterwarnings("ignore:JAXopt is no longer maintained:DeprecationWarning")
@pytest.mark.parametrize("implicit", [True, False], ids=["implicit", "unrolled"])
def test_jaxopt(implicit: bool):
    options: Any = {"maxiter": 500 if implicit else 20, "tol": 1e-6, "implicit_diff": implicit}
    options |= {"unroll": not implicit, "jit": implicit}
    expected = solve(optax.sgd(0.1, momentum=0.5), **options)
    assert_same(solve(mx.SGD(0.1, momentum=0.5), **options), expected, 1e-9)
    assert_same(solve(mx.to_optax(mx.SGD(0.1, momentum=0.5)), **options), expected, 1e-9)
