"""`vmap` over optimizers, and a gradient with respect to one."""

import equinox as eqx
import jax
import jax.numpy as jnp

import modulax as mx

params = {"w": jnp.ones(3)}
rates = jnp.logspace(-4, -1, 4)
optimizers = eqx.filter_vmap(mx.AdamW)(rates)


def loss_after(optimizer: mx.AbstractTransform) -> jax.Array:
    trained, _ = optimizer.step(params, optimizer.init(params), params)
    return jnp.sum(trained["w"] ** 2)


def make(peak: jax.Array, weight_decay: jax.Array) -> mx.AdamW:
    return mx.AdamW(mx.schedules.WarmupCosineDecay(0.0, peak, 10, 100), weight_decay=weight_decay)


print(optimizers.learning_rate.shape, eqx.filter_vmap(loss_after)(optimizers))
print(jax.grad(loss_after)(mx.AdamW(1e-3)))
grid = eqx.filter_vmap(make)(rates, 10 * rates)
print(jax.tree.map(lambda x: x[1], grid))

sweep = mx.sweeps.grid(mx.AdamW(1e-3), learning_rate=[1e-3, 1e-2])
batch: mx.AdamW = sweep.batched()
