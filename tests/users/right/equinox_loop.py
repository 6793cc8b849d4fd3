"""The README's loop: an Equinox model keeps its class through `step`."""

import equinox as eqx
import jax
import jax.numpy as jnp

import modulax as mx

model = eqx.nn.MLP(2, "scalar", width_size=4, depth=1, key=jax.random.key(0))
x = jax.random.normal(jax.random.key(1), (8, 2))
y = jnp.sin(x[:, 0]) * x[:, 1]


@eqx.filter_value_and_grad
def loss_and_grads(model: eqx.nn.MLP, x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.mean((jax.vmap(model)(x) - y) ** 2)


@eqx.filter_jit
def train_step(model, state, optimizer, x, y):
    loss, grads = loss_and_grads(model, x, y)
    model, state = optimizer.step(grads, state, model, donate=False)
    return model, state, loss


optimizer = mx.AdamW(1e-2)
state = optimizer.init(model)
model, state, loss = train_step(model, state, optimizer, x, y)
optimizer = optimizer.replace(learning_rate=1e-3, weight_decay=jnp.array(0.1))

_, grads = loss_and_grads(model, x, y)
trained, new_state = optimizer.step(grads, optimizer.init(model), model)
print(trained.width_size, new_state.step, mx.describe(optimizer, trained))
evaluated = optimizer.eval_params(new_state, trained)
print(evaluated.depth)
