"""Learn a learning rate by its hypergradient."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import modulax as mx

from . import X, Y

W0 = np.asarray([[0.5, -1.0]])
GRAM, RIGHT = X.T @ X / len(X), X.T @ Y / len(X)


def by_hand(rate, steps=3):
    """The loss after steps of gradient descent, in double precision."""
    w = W0.T.astype(np.float64)
    for _ in range(steps):
        w = w - rate * 2 * (GRAM @ w - RIGHT)
    return np.mean((X @ w - Y) ** 2)


def check(final_loss):
    meta = eqx.filter_jit(eqx.filter_value_and_grad(final_loss))
    optimizer = mx.SGD(0.05)
    loss, derivatives = meta(optimizer)
    np.testing.assert_allclose(loss, by_hand(0.05), rtol=1e-5)
    difference = (by_hand(0.0501) - by_hand(0.0499)) / 2e-4
    np.testing.assert_allclose(derivatives.learning_rate, difference, rtol=1e-3)
    for _ in range(3):
        loss, derivatives = meta(optimizer)
        optimizer = optimizer.replace(learning_rate=optimizer.learning_rate - 0.01 * derivatives.learning_rate)
    assert float(meta(optimizer)[0]) < by_hand(0.05)


def test_equinox():
    linear = eqx.nn.Linear(2, 1, use_bias=False, key=jax.random.key(0))
    linear = eqx.tree_at(lambda m: m.weight, linear, jnp.asarray(W0, jnp.float32))

    def loss(model):
        return jnp.mean((jax.vmap(model)(X) - Y) ** 2)

    def final_loss(optimizer):
        model, state = linear, optimizer.init(linear)
        for _ in range(3):
            model, state = optimizer.step(eqx.filter_grad(loss)(model), state, model)
        return loss(model)

    check(final_loss)


def test_nnx():
    model = nnx.Linear(2, 1, use_bias=False, rngs=nnx.Rngs(0))
    model.kernel[...] = jnp.asarray(W0.T, jnp.float32)
    graphdef, start = nnx.split(model)

    def loss(params):
        return jnp.mean((nnx.merge(graphdef, params)(X) - Y) ** 2)

    def final_loss(optimizer):
        params, state = start, optimizer.init(start)
        for _ in range(3):
            params, state = optimizer.step(jax.grad(loss)(params), state, params)
        return loss(params)

    check(final_loss)
