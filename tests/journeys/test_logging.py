"""The learning rate and the norm of the gradient, logged at each step."""

import jax.tree_util as jtu
import numpy as np
import pytest
from flax import nnx

import modulax as mx
import modulax.nnx
from modulax.tree import norm

from . import Net, Normed, eqx_loss, nnx_grads


def monitored():
    rate = mx.schedules.Linear(0.1, 0.2, transition_steps=4)
    return mx.Chain(mx.Monitor({"norm": norm}), mx.ClipByGlobalNorm(0.01), mx.AdamW(rate))


def norm_by_hand(grads):
    return np.sqrt(sum(np.sum(np.square(np.asarray(x, np.float64))) for x in jtu.tree_leaves(grads)))


def test_equinox():
    model, optimizer = Normed(), monitored()
    state = optimizer.init(model)
    for step in range(3):
        _, grads = eqx_loss(model)
        rate = optimizer.hyperparameters(state)["parts.adamw.learning_rate"]
        model, state = optimizer.step(grads, state, model)
        assert float(rate) == pytest.approx(0.1 + 0.025 * step)
        np.testing.assert_allclose(state["monitor"].measurements["norm"], norm_by_hand(grads), rtol=1e-5)


def test_nnx():
    model = Net(nnx.Rngs(0))
    optimizer = modulax.nnx.Optimizer(model, monitored())
    for step in range(3):
        _, grads = nnx_grads(model)
        rate = optimizer.in_force()["parts.adamw.learning_rate"]
        optimizer.update(model, grads)
        assert float(rate) == pytest.approx(0.1 + 0.025 * step)
        logged = optimizer.state["monitor"].measurements["norm"]
        np.testing.assert_allclose(np.asarray(logged), norm_by_hand(nnx.as_pure(grads)), rtol=1e-5)
