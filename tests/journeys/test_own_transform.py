"""A transform of one's own: written, checked by the laws, and trained with."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import modulax as mx
import modulax.nnx
from modulax.testing import check_transform

from . import Net, Normed, eqx_loss, nnx_grads


class SoftSign(mx.AbstractLeafwise):
    """tanh(sharpness * g)"""

    sharpness: float = mx.number(10.0)

    def update_leaf(self, now, g, s, p):
        del now, p
        return jnp.tanh(self.sharpness * g), s


class Wide(mx.AbstractStatelessTransform):
    """Forgets the dtype of its updates."""

    def apply(self, updates, params=None, **extra):
        return {name: x.astype(jnp.float32) for name, x in updates.items()}


def test_the_laws():
    check_transform(SoftSign(2.0), params={"w": jnp.ones((2, 2))})


def test_the_laws_name_a_mistake():
    from modulax.testing import LAWS

    exempt = LAWS.keys() - {"structure_shapes_and_dtypes_are_kept"}
    with pytest.raises(AssertionError, match="structure_shapes_and_dtypes_are_kept"):
        check_transform(Wide(), params={"w": jnp.ones(2)}, exempt=exempt)


def test_equinox():
    model, optimizer = Normed(), mx.Chain(SoftSign(2.0), mx.SGD(0.1))
    _, grads = eqx_loss(model)
    new, _ = optimizer.step(grads, optimizer.init(model), model)
    weight, g = (np.asarray(tree.mlp.layers[0].weight, np.float64) for tree in (model, grads))
    np.testing.assert_allclose(new.mlp.layers[0].weight, weight - 0.1 * np.tanh(2 * g), rtol=1e-5)


def test_nnx():
    model = Net(nnx.Rngs(0))
    optimizer = modulax.nnx.Optimizer(model, mx.Chain(SoftSign(2.0), mx.SGD(0.1)))
    _, grads = nnx_grads(model)
    optimizer.hyperparameters["soft_sign"].sharpness[...] = 3.0
    before, g = np.array(model.out.kernel[...]), np.asarray(grads["out"]["kernel"][...])
    optimizer.update(model, grads)
    np.testing.assert_allclose(model.out.kernel[...], before - 0.1 * np.tanh(3 * g), rtol=1e-5)
