"""L-BFGS on a small fit, whose solution is known by least squares."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import modulax as mx
import modulax.nnx

from . import X, Y

DESIGN = np.c_[X, np.ones(len(X))].astype(np.float64)
SOLUTION = np.linalg.lstsq(DESIGN, Y[:, 0].astype(np.float64), rcond=None)[0]


def test_equinox():
    model = eqx.nn.Linear(2, 1, key=jax.random.key(0))
    params, static = eqx.partition(model, eqx.is_inexact_array)

    @jax.jit
    def loss(params):
        return jnp.mean((jax.vmap(eqx.combine(params, static))(X) - Y) ** 2)

    optimizer = mx.LBFGS()
    state = optimizer.init(params)
    for _ in range(8):
        value, grads = jax.value_and_grad(loss)(params)
        params, state = optimizer.step(grads, state, params, value=value, grad=grads, value_fn=loss)
    np.testing.assert_allclose(np.r_[params.weight[0], params.bias], SOLUTION, atol=1e-4)


def test_nnx():
    model = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
    optimizer = modulax.nnx.Optimizer(model, mx.LBFGS())
    graphdef, _ = nnx.split(model)

    @jax.jit
    def of_params(params):
        return jnp.mean((nnx.merge(graphdef, params)(X) - Y) ** 2)

    @nnx.jit
    def train_step(model, optimizer):
        value, grads = nnx.value_and_grad(lambda model: jnp.mean((model(X) - Y) ** 2))(model)
        optimizer.update(model, grads, value=value, grad=grads, value_fn=of_params)

    for _ in range(8):
        train_step(model, optimizer)
    kernel, bias = (np.asarray(x) for x in jax.tree.leaves(nnx.as_pure(nnx.state(model)))[::-1])
    found = np.r_[kernel[:, 0], bias]
    np.testing.assert_allclose(found, SOLUTION, atol=1e-4)
