"""A learning rate for each group of parameters."""

import numpy as np
from flax import nnx

import modulax as mx
import modulax.nnx

from . import Net, Normed, eqx_loss, nnx_grads


def test_equinox():
    model = Normed()
    groups = mx.by_path({"mlp.layers.1.*": "head", "*": "body"})
    optimizer = mx.Partition({"head": mx.SGD(0.1), "body": mx.SGD(0.01)}, groups)
    _, grads = eqx_loss(model)
    new, state = optimizer.step(grads, optimizer.init(model), model)
    for rate, get in ((0.1, lambda m: m.mlp.layers[1].weight), (0.01, lambda m: m.mlp.layers[0].weight)):
        np.testing.assert_allclose(get(new), get(model) - rate * get(grads), rtol=1e-6)
    faster = optimizer.replace(**{"head.learning_rate": 0.5})
    new, _ = faster.step(grads, state, model)
    expected = model.mlp.layers[1].weight - 0.5 * grads.mlp.layers[1].weight
    np.testing.assert_allclose(new.mlp.layers[1].weight, expected, rtol=1e-6)


def test_nnx():
    model = Net(nnx.Rngs(0))
    groups = modulax.nnx.labels(model, {nnx.PathContains("out"): "head", ...: "body"})
    optimizer = modulax.nnx.Optimizer(model, mx.Partition({"head": mx.SGD(0.1), "body": mx.SGD(0.01)}, groups))
    _, grads = nnx_grads(model)
    head, body = np.array(model.out.kernel[...]), np.array(model.hidden.kernel[...])
    optimizer.update(model, grads)
    np.testing.assert_allclose(model.out.kernel[...], head - 0.1 * np.asarray(grads["out"]["kernel"][...]), rtol=1e-6)
    expected = body - 0.01 * np.asarray(grads["hidden"]["kernel"][...])
    np.testing.assert_allclose(model.hidden.kernel[...], expected, rtol=1e-6)
