"""Containers around an optimizer, and what `step` takes."""

import jax
import jax.numpy as jnp

import modulax as mx

params = {"w": jnp.ones(3), "b": jnp.zeros(2)}
wrapped = [
    mx.MultiSteps(mx.AdamW(1e-3), every_k=4),
    mx.ApplyIfFinite(mx.AdamW(1e-3), max_consecutive_errors=5),
    mx.Chain(mx.AdamW(1e-3), mx.ReduceOnPlateau(patience=3)),
    mx.ParamEMA(mx.AdamW(1e-3), mx.schedules.EMAWarmup(0.99), start=100, dtype=jnp.float32),
    mx.ParamAverage(mx.SGD(0.1), every=10, window=3),
    mx.ScheduleFreeAdamW(1e-3),
    mx.Muon(1e-3),
    mx.AdamW(1e-3, mu_dtype=jnp.bfloat16),
    mx.AdamW(1e-3, mu_dtype="bfloat16", nesterov=True),
]
for optimizer in wrapped:
    state = optimizer.init(params)
    trained, state = optimizer.step(params, state, params, value=jnp.array(1.0))
    print(optimizer.eval_params(state, trained)["w"])
lbfgs = mx.LBFGS()
step = jax.jit(lbfgs.init)
print(step(params), mx.citation(lbfgs), mx.card("adamw").summary)
