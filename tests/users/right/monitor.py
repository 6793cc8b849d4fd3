"""Measurements in the state."""

import jax.numpy as jnp

import modulax as mx

params = {"w": jnp.ones(3), "b": jnp.zeros(2)}
norm = mx.tree.norm
optimizer = mx.Chain(
    mx.Monitor({"norm": norm, "usual": mx.MeasureWithEma(norm, decay=0.99)}),
    mx.ClipByGlobalNorm(1.0),
    mx.AdamW(1e-3),
    step=mx.Monitor({"ratio": mx.Stateless(lambda updates, params: norm(updates) / norm(params))}),
)
state = optimizer.init(params)
_, state = optimizer.step(params, state, params)
print(state["monitor"].measurements["norm"], mx.tree.get(state, "ratio"))
empty = mx.Monitor({})
print(empty.init(params).measurements)
