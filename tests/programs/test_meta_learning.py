"""A learning rate that is learnt: the outer loss is differentiated through injected hyperparameters.

In float64, since the inner training feeds every rounding error back to the learning rate.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax as typed_optax
import pytest

import modulax as mx

from .comparison import assert_same

optax: Any = typed_optax
INNER_STEPS, META_STEPS = 3, 12


# For each meta-step, inputs of a linear regression for the inner steps, and others to validate on.
INPUTS = np.random.default_rng(0).normal(size=(META_STEPS, 2, 8, 3))
TARGETS = INPUTS @ np.asarray([1.0, -2.0, 0.5])


def mean_squared_error(params: Any, x: Any, y: Any) -> Any:
    return jnp.mean((x @ params["w"] + params["b"] - y) ** 2)


def learn_the_rate(library: Any, inner: Any, outer: Any) -> Any:
    """The learnt learning rate after each meta-step, and the parameters and the validation losses."""

    def validation_loss(eta: Any, params: Any, state: Any, inputs: Any, targets: Any) -> Any:
        (x, validation_x), (y, validation_y) = inputs, targets
        for _ in range(INNER_STEPS):
            state.hyperparams["learning_rate"] = jax.nn.sigmoid(eta)
            grads = jax.grad(mean_squared_error)(params, x, y)
            updates, state = inner.update(grads, state, params)
            params = library.apply_updates(params, updates)
        return mean_squared_error(params, validation_x, validation_y), (params, state)

    @jax.jit
    def meta_step(carry: Any, inputs: Any, targets: Any) -> Any:
        eta, meta_state, params, state = carry
        differentiated = jax.value_and_grad(validation_loss, has_aux=True)
        (loss, (params, state)), grad = differentiated(eta, params, state, inputs, targets)
        update, meta_state = outer.update(grad, meta_state, eta)
        eta = library.apply_updates(eta, update)
        return (eta, meta_state, params, state), (jax.nn.sigmoid(eta), loss, state.hyperparams["learning_rate"])

    params, eta = {"w": jnp.zeros(3), "b": jnp.zeros(())}, jnp.asarray(-4.0)
    carry = (eta, outer.init(eta), params, inner.init(params))
    history = []
    for inputs, targets in zip(INPUTS, TARGETS, strict=True):
        carry, now = meta_step(carry, inputs, targets)
        history.append(now)
    return carry[2], jax.tree.map(lambda *x: jnp.stack(x), *history)


def of_optax(learning_rate: Any) -> Any:
    """A factory that computes with its argument: weight decay follows the learning rate."""
    decay = optax.add_decayed_weights(0.1 * learning_rate)
    return optax.chain(optax.trace(0.5), decay, optax.scale(-learning_rate))


def of_modulax(learning_rate: Any) -> Any:
    return mx.Chain(mx.Trace(0.5), mx.AddDecayedWeights(0.1 * learning_rate), mx.Scale(-learning_rate))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    "theirs, ours",
    [(optax.sgd, mx.SGD), (of_optax, of_modulax)],
    ids=["a class", "a function that computes with the learning rate"],
)
def test_meta_learning(theirs: Any, ours: Any):
    expected = learn_the_rate(optax, optax.inject_hyperparams(theirs)(learning_rate=0.5), optax.adam(0.2))
    found = learn_the_rate(mx, mx.inject_hyperparams(ours)(learning_rate=0.5), mx.Adam(0.2))
    assert_same(found, expected, 1e-9)
    rates, losses, written = expected[1]
    assert rates[-1] > 2 * rates[0]
    assert losses[-1] < 0.5 * losses[0]
    np.testing.assert_allclose(written[1:], rates[:-1], rtol=1e-6)
