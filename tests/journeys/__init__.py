"""Programs that a user writes from the documentation alone, with Equinox or with Flax.

What the user relies on is checked against an independent reading: NumPy, optax, or a continuation bit for bit.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

X: Any = np.random.default_rng(0).normal(size=(16, 2)).astype(np.float32)
Y: Any = np.sin(X[:, :1]) * X[:, 1:]


class Net(nnx.Module):
    """Linear, batch norm, linear."""

    def __init__(self, rngs: nnx.Rngs):
        self.hidden = nnx.Linear(2, 3, use_bias=False, rngs=rngs)  # the norm has one
        self.norm = nnx.BatchNorm(3, rngs=rngs)
        self.out = nnx.Linear(3, 1, rngs=rngs)

    def __call__(self, x):
        return self.out(nnx.relu(self.norm(self.hidden(x))))


class Normed(eqx.Module):
    """An MLP after a layer norm."""

    norm: eqx.nn.LayerNorm
    mlp: eqx.nn.MLP

    def __init__(self):
        self.norm, self.mlp = eqx.nn.LayerNorm(2), eqx.nn.MLP(2, 1, 3, 1, key=jax.random.key(0))

    def __call__(self, x):
        return self.mlp(self.norm(x))


@eqx.filter_jit
@eqx.filter_value_and_grad
def eqx_loss(model, x=X, y=Y):
    return jnp.mean((jax.vmap(model)(x) - y) ** 2)


def nnx_loss(model):
    return jnp.mean((model(X) - Y) ** 2)


nnx_grads = nnx.jit(nnx.value_and_grad(nnx_loss))
