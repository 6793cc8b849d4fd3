"""A transform of one's own: written, checked by the laws, and trained with."""

import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest
from flax import nnx
from jaxtyping import Array, PyTree

import modulax as mx
import modulax.nnx
from modulax.testing import LAWS, check_transform

from . import Net, Normed, eqx_loss, nnx_grads


class SoftSign(mx.AbstractLeafwise):
    """tanh(sharpness * g)"""

    sharpness: float = mx.number(10.0)

    def update_leaf(self, now, g, s, p):
        del now, p
        return jnp.tanh(self.sharpness * g), s


class FlipState(mx.AbstractState):
    count: Array = mx.shared()
    inner_state: PyTree = mx.nested()


class Flip(mx.AbstractContainer):
    """Multiplies every second step by a factor, as in write_your_own.md."""

    inner: mx.AbstractTransform = mx.required_part()
    factor: float = mx.number(-1.0)

    def init(self, params):
        return FlipState(jnp.zeros((), jnp.int32), self.inner.init(params))

    def update(self, updates, state, params=None, **extra):
        updates, inner_state = self.inner.update(updates, state.inner_state, params, **extra)
        factor = jnp.where(state.count % 2 == 1, self.factor, 1.0)
        updates = jtu.tree_map(lambda u: jnp.asarray(factor, u.dtype) * u, updates)
        return updates, FlipState(mx.safe_increment(state.count), inner_state)


class Wide(mx.AbstractStatelessTransform):
    """Forgets the dtype of its updates."""

    def apply(self, updates, params=None, **extra):
        return {name: x.astype(jnp.float32) for name, x in updates.items()}


def test_the_laws():
    check_transform(SoftSign(2.0), params={"w": jnp.ones((2, 2))})


def test_the_laws_of_a_container():
    """Those that containers of users broke, for the sake of time; it obeys all of them."""
    mine = {
        "structure_shapes_and_dtypes_are_kept",
        "updates_keep_their_dtype_beside_other_parameters",
        "hyperparameters_change_no_dtype",
        "strict_promotion_is_obeyed",
        "counters_saturate",
        "state_is_a_module_of_arrays",
    }
    exempt = dict.fromkeys(LAWS.keys() - mine, "takes longer")
    check_transform(Flip(mx.SGD(0.5)), params={"w": jnp.ones((2, 2))}, exempt=exempt)


def test_the_laws_name_a_mistake():
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
