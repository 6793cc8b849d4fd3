"""Chains: by class and by name, indexing, slices, states of parts."""

import jax.numpy as jnp

import modulax as mx

params = {"w": jnp.ones(3), "b": jnp.zeros(2)}
chain = mx.Chain(mx.ClipByGlobalNorm(1.0), mx.AdamW(1e-3))
named = mx.Chain(clip=mx.Clip(0.5), adam=mx.ScaleByAdam(b1=0.95), rate=mx.ScaleByLearningRate(1e-3))
state = chain.init(params)
updates, state = chain.update(params, state, params)
params = mx.apply_updates(params, updates)
print(params["w"].shape, state["adamw"].step, state[1], len(chain), "adamw" in chain)
print(chain["adamw"].learning_rate, chain[0].max_norm, named[1:].init(params), list(named.parts))
chain = chain.replace(**{"adamw.b1": 0.95})
frozen = mx.Chain(mx.AdamW(1e-3), mx.Freeze(mx.by_path({"b": True, "*": False})))
print(frozen.init(params)[0].inner, chain.at(state).hyperparameters())
