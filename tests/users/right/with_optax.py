"""modulax in optax, and optax in modulax."""

import jax
import jax.numpy as jnp
import optax

import modulax as mx

params = {"w": jnp.ones(3), "b": jnp.zeros(2)}
grads = jax.tree.map(jnp.ones_like, params)
tx = optax.chain(optax.clip(1.0), mx.to_optax(mx.PolyakSGD(1.0)))
updates, opt_state = tx.update(grads, tx.init(params), params, value=2.5)
chain = mx.Chain(mx.Clip(1.0), mx.from_optax(optax.adamw(1e-3)))
updates, state = chain.update(grads, chain.init(params), params)
print(optax.apply_updates(params, updates), mx.apply_updates(params, updates)["b"].shape)
