"""AdamW with warm-up and cosine, no decay on biases and norms, clipped by the global norm."""

import equinox as eqx
import jax.tree_util as jtu
import numpy as np
import optax
from flax import nnx

import modulax as mx
import modulax.nnx

from . import Net, Normed, eqx_loss, nnx_grads

SCHEDULE = optax.warmup_cosine_decay_schedule(0.0, 0.01, 2, 6)


def recipe(mask):
    rate = mx.schedules.WarmupCosineDecay(0.0, 0.01, warmup_steps=2, decay_steps=6)
    return mx.Chain(mx.ClipByGlobalNorm(0.1), mx.AdamW(rate, weight_decay=0.1, mask=mask))


def theirs(params, decays):
    """optax, as an independent reading: a mask that is written out."""
    mask = jtu.tree_map_with_path(lambda path, _: decays(jtu.keystr(path)), params)
    tx = optax.chain(optax.clip_by_global_norm(0.1), optax.adamw(SCHEDULE, weight_decay=0.1, mask=mask))
    return tx, tx.init(params)


def test_equinox():
    model = Normed()
    optimizer = recipe(mx.by_path({"*bias": False, "norm.*": False, "*": True}))
    decayed = [row.path for row in mx.describe(optimizer, model).leaves if row.weight_decay]
    assert decayed == ["mlp.layers.0.weight", "mlp.layers.1.weight"]
    state = optimizer.init(model)
    params, static = eqx.partition(model, eqx.is_inexact_array)
    tx, their_state = theirs(params, lambda path: "mlp" in path and "weight" in path)
    for _ in range(4):
        _, grads = eqx_loss(model)
        model, state = optimizer.step(grads, state, model)
        _, their_grads = eqx_loss(eqx.combine(params, static))
        updates, their_state = tx.update(their_grads, their_state, params)
        params = eqx.apply_updates(params, updates)
    for ours, expected in zip(jtu.tree_leaves(eqx.filter(model, eqx.is_array)), jtu.tree_leaves(params), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-6)


def test_nnx():
    model, twin = Net(nnx.Rngs(0)), Net(nnx.Rngs(0))
    mask = modulax.nnx.labels(model, {nnx.PathContains("norm"): False, nnx.PathContains("bias"): False, ...: True})
    optimizer = modulax.nnx.Optimizer(model, recipe(mask), wrt=nnx.Param)
    params = nnx.as_pure(nnx.state(twin, nnx.Param))
    tx, their_state = theirs(params, lambda path: "kernel" in path)
    for _ in range(4):
        optimizer.update(model, nnx_grads(model)[1])
        updates, their_state = tx.update(nnx.as_pure(nnx_grads(twin)[1]), their_state, params)
        params = optax.apply_updates(params, updates)
        nnx.update(twin, params)
    ours = jtu.tree_leaves(nnx.as_pure(nnx.state(model, nnx.Param)))
    for found, expected in zip(ours, jtu.tree_leaves(params), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
