"""The README's loop with Flax NNX."""

import jax
import jax.numpy as jnp
from flax import nnx

import modulax as mx


class Net(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.hidden = nnx.Linear(2, 4, rngs=rngs)
        self.out = nnx.Linear(4, 1, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.out(nnx.relu(self.hidden(x)))[:, 0]


net = Net(nnx.Rngs(0))
optimizer = mx.nnx.Optimizer(net, mx.AdamW(1e-2), wrt=nnx.Param)


@nnx.jit
def step(net, optimizer, x, y):
    loss, grads = nnx.value_and_grad(lambda net: jnp.mean((net(x) - y) ** 2))(net)
    optimizer.update(net, grads)
    return loss


step(net, optimizer, jnp.ones((8, 2)), jnp.ones(8))
optimizer.hyperparameters.learning_rate[...] = 1e-3
print(optimizer.step[...], optimizer.in_force()["learning_rate"])
