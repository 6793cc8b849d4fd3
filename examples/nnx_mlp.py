"""Use a modulax optimizer in the stock `flax.nnx.Optimizer`.

Import `flax.nnx` before constructing the optimizer: on construction, modulax registers the fields as data with NNX. The
hyperparameters are then live: assign a new learning rate, and nothing is recompiled.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

import modulax as mx


class MLP(nnx.Module):
    def __init__(self, width: int, rngs: nnx.Rngs):
        self.hidden = nnx.Linear(1, width, rngs=rngs)
        self.out = nnx.Linear(width, 1, rngs=rngs)

    def __call__(self, x: Float[Array, "n 1"]) -> Float[Array, "n 1"]:
        return self.out(jnp.tanh(self.hidden(x)))


traces = 0


@nnx.jit
def train_step(model: MLP, optimizer: nnx.Optimizer, x: Float[Array, "n 1"], y: Float[Array, "n 1"]) -> Array:
    global traces
    traces += 1  # runs when the function is traced, not when it is called
    loss, grads = nnx.value_and_grad(lambda model: jnp.mean((model(x) - y) ** 2))(model)
    optimizer.update(model, grads)
    return loss


def main() -> None:
    model = MLP(32, nnx.Rngs(0))
    adamw: Any = mx.AdamW(1e-2, weight_decay=1e-4, mask=mx.decays)  # Any: NNX annotates optax's type
    optimizer = nnx.Optimizer(model, adamw, wrt=nnx.Param)
    print(mx.describe(adamw, nnx.state(model, nnx.Param)), "\n")

    x = jnp.linspace(-3, 3, 64)[:, None]
    y = jnp.sin(x) + 0.05 * jax.random.normal(jax.random.key(0), x.shape)
    loss = jnp.inf
    for learning_rate in (1e-2, 1e-3):
        optimizer.tx = adamw.replace(learning_rate=learning_rate)
        for _ in range(300):
            loss = train_step(model, optimizer, x, y)
        print(f"learning rate {learning_rate:g}: loss {loss:.5f}")
    assert loss < 0.02
    assert traces == 1
    print(f"600 steps with two learning rates, traced {traces} time.")


if __name__ == "__main__":
    main()
