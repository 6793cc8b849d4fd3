"""The learning rate is halved when the loss of an epoch has not improved."""

import numpy as np
from flax import nnx

import modulax as mx
import modulax.nnx

from . import Net, Normed, eqx_loss, nnx_grads

LOSSES = (3.0, 2.0, 2.0, 2.0, 2.0)  # of each epoch; two without improvement halve the rate
STEPS = 2
SCALES = (1.0, 1.0, 1.0, 0.5, 0.5)


def plateau():
    return mx.Chain(mx.SGD(0.1), mx.ReduceOnPlateau(factor=0.5, patience=2, accumulation_size=STEPS))


def test_equinox():
    model, optimizer = Normed(), plateau()
    state = optimizer.init(model)
    _, grads = eqx_loss(model)
    scales, updates = [], grads
    for loss in LOSSES:
        for _ in range(STEPS):
            updates, state = optimizer.update(grads, state, model, value=loss)
        scales.append(float(state["reduce_on_plateau"].scale))
        bias, of_bias = updates.mlp.layers[1].bias, grads.mlp.layers[1].bias
        np.testing.assert_allclose(bias, -0.1 * scales[-1] * of_bias, rtol=1e-5)
    assert tuple(scales) == SCALES


def test_nnx():
    model = Net(nnx.Rngs(0))
    optimizer = modulax.nnx.Optimizer(model, plateau())
    _, grads = nnx_grads(model)
    scales, before = [], np.zeros(())
    for loss in LOSSES:
        for _ in range(STEPS):
            before = np.array(model.out.kernel[...])
            optimizer.update(model, grads, value=loss)
        scales.append(float(optimizer.state["reduce_on_plateau"].scale))
        expected = before - 0.1 * scales[-1] * np.asarray(grads["out"]["kernel"][...])
        np.testing.assert_allclose(model.out.kernel[...], expected, rtol=1e-5)
    assert tuple(scales) == SCALES
