"""Saving and restoring, with and without orbax."""

import tempfile
from pathlib import Path

import equinox as eqx
import jax.numpy as jnp

import modulax as mx

folder = Path(tempfile.mkdtemp())
params = {"encoder": {"w": jnp.ones((2, 3))}, "head": jnp.zeros(3)}
optimizer = mx.AdamW(1e-3)
state = optimizer.init(params)
params, state = optimizer.step(params, state, params)
mx.checkpoint.save(folder / "first", {"params": params, "state": state, "step": 1})
template = {"params": params, "state": optimizer.init(params), "step": 0}
restored, report = mx.checkpoint.restore(folder / "first", template)
print(restored["step"], report)
restored, report = mx.checkpoint.restore(folder / "first", template, strict=False)
flat = mx.checkpoint.state_dict(state)
print(sorted(flat), mx.checkpoint.load_state_dict(state, flat)[0])
eqx.tree_serialise_leaves(folder / "run.eqx", (params, optimizer, state))
