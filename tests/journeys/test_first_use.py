"""What a new user tries first, written from the pages of the documentation alone."""

import functools
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import optax
import orbax.checkpoint as ocp
from flax import nnx

import modulax as mx
import modulax.linen
import modulax.nnx
from modulax import checkpoint, schedules
from modulax.tree import norm

from . import Net, Normed, X, Y, eqx_loss, nnx_grads, nnx_loss


def warm(peak):
    return schedules.WarmupCosineDecay(0.0, peak, warmup_steps=2, decay_steps=10)


def test_a_warm_up_with_a_peak_for_each_group():
    """Equinox; parameter_groups.md."""
    model: Any = Normed()
    special = {"*.bias": {"weight_decay": 0.0}, "mlp.layers.1.*": {"learning_rate": warm(0.001)}}
    optimizer = mx.groups(mx.AdamW(warm(0.01), weight_decay=0.1), special)
    rows = {row.path: row for row in mx.describe(optimizer, model).leaves}
    assert rows["mlp.layers.1.weight"].learning_rate == "0 → 0.001 → 0"
    assert rows["mlp.layers.0.weight"].learning_rate == "0 → 0.01 → 0"
    assert float(rows["mlp.layers.0.bias"].weight_decay) == 0 < float(rows["mlp.layers.0.weight"].weight_decay)

    optimizer = optimizer.replace(**{"mlp.layers.1.*.learning_rate.peak_value": 0.03, "*.weight_decay": 0.0})
    (_, grads), state = eqx_loss(model), optimizer.init(model)
    before, state = optimizer.step(grads, state, model)  # with a rate of zero
    new, _ = optimizer.step(grads, state, before)
    for layer, rate in ((0, 0.005), (1, 0.015)):  # half of the peak; Adam's step for a constant gradient
        g = grads.mlp.layers[layer].weight
        expected = before.mlp.layers[layer].weight - rate * np.sign(g) * (np.abs(g) > 0)
        np.testing.assert_allclose(new.mlp.layers[layer].weight, expected, atol=1e-5)


def test_accumulation_and_an_average_to_evaluate():
    """NNX; microbatching.md, weight_averaging.md."""
    model = Net(nnx.Rngs(0))
    tx = mx.MultiSteps(mx.ParamEMA(mx.SGD(0.1), decay=0.5), every_k=2)
    optimizer = modulax.nnx.Optimizer(model, tx, wrt=nnx.Param)
    weights, means = [np.array(model.out.kernel[...])], []
    for _ in range(3):
        gradients = []
        for _ in range(2):
            _, grads = nnx_grads(model)
            gradients.append(np.asarray(grads["out"]["kernel"][...]))
            optimizer.update(model, grads)
        means.append(np.mean(gradients, axis=0))
        weights.append(weights[-1] - 0.1 * means[-1])
    np.testing.assert_allclose(model.out.kernel[...], weights[-1], rtol=1e-5)
    averaged = nnx.clone(model)
    nnx.update(averaged, optimizer.eval_params(model))
    expected = np.tensordot([1, 2, 4], weights[1:], 1) / 7  # a decay of one half, without the bias of its start
    np.testing.assert_allclose(averaged.out.kernel[...], expected, rtol=1e-5)
    assert optimizer.metrics()["learning_rate"] == np.float32(0.1)


def test_bfloat16_with_masters_and_a_log():
    """Equinox; mixed_precision.md, monitoring.md. The masters are those of optax, the log has the rate of each step."""
    arrays, static = eqx.partition(Normed(), eqx.is_inexact_array)
    start = jtu.tree_map(lambda p: p.astype(jnp.bfloat16), arrays)
    model, rate = eqx.combine(start, static), schedules.Linear(0.1, 0.2, transition_steps=4)
    adamw = mx.AdamW(rate, weight_decay=0.0)
    optimizer = mx.Chain(mx.Monitor({"grad": norm}), mx.ClipByGlobalNorm(100.0), mx.MasterWeights(adamw))
    twin = optax.adamw(optax.linear_schedule(0.1, 0.2, 4), weight_decay=0)
    masters = jtu.tree_map(lambda p: p.astype(jnp.float32), start)
    state, twin_state, rows = optimizer.init(model), twin.init(masters), []
    gradient = eqx.filter_jit(eqx.filter_value_and_grad(lambda model: jnp.mean((jax.vmap(model)(XB) - YB) ** 2)))
    for _ in range(3):
        loss, grads = gradient(model)
        model, state = optimizer.step(grads, state, model)
        rows.append({"loss": loss, **optimizer.metrics(state)})
        wide = jtu.tree_map(lambda g: g.astype(jnp.float32), eqx.filter(grads, eqx.is_inexact_array))
        updates, twin_state = twin.update(wide, twin_state, masters)
        masters = optax.apply_updates(masters, updates)
    for master, expected in zip(jtu.tree_leaves(mx.tree.get(state, "master")), jtu.tree_leaves(masters), strict=True):
        np.testing.assert_allclose(master, expected, rtol=1e-4)
    np.testing.assert_allclose([row["learning_rate"] for row in rows], [0.1, 0.125, 0.15], rtol=1e-6)


XB, YB = jnp.asarray(X, jnp.bfloat16), jnp.asarray(Y, jnp.bfloat16)


def test_a_manager_of_orbax_and_another_schedule(tmp_path):
    """Linen; checkpoints.md. A fresh program restores parameters and state, and has a schedule of its own."""
    model = nn.Dense(1)

    def train(params, optimizer, state, steps):
        for _ in range(steps):
            grads = jax.grad(lambda params: jnp.mean((model.apply(params, X) - Y) ** 2))(params)
            params, state = optimizer.step(grads, state, params)
        return params, state

    start: Any = model.init(jax.random.key(0), X)
    old, new = mx.AdamW(0.01), mx.AdamW(schedules.Linear(0.02, 0.0, transition_steps=4))
    params, state = train(start, old, old.init(start), 2)
    with ocp.CheckpointManager(tmp_path) as manager:
        manager.save(2, args=ocp.args.StandardSave({"params": params, "state": state, "optimizer": old}))
    template = {"params": start, "state": new.init(start)}
    restored, report = checkpoint.restore(tmp_path / "2", template, strict=False)
    assert not report.fresh
    assert all(name.startswith("optimizer") for name in report.unused)
    found, _ = train(restored["params"], new, restored["state"], 1)
    expected, _ = train(params, mx.AdamW(0.01), state, 1)  # at the third step, the new rate is that of the old run
    for a, b in zip(jtu.tree_leaves(found), jtu.tree_leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_who_decays_and_who_is_frozen():
    """Equinox; parameter_groups.md."""
    model: Any = Normed()
    frozen = mx.by_path({"mlp.layers.0.*": True, "*": False})
    optimizer = mx.Chain(mx.AdamW(0.1, weight_decay=0.5, mask=mx.decays), mx.Freeze(frozen))
    rows = {row.path: row for row in mx.describe(optimizer, model).leaves}
    grads = jtu.tree_map(jnp.zeros_like, eqx.filter(model, eqx.is_inexact_array))
    new, _ = optimizer.step(grads, optimizer.init(model), model)
    decayed = {"mlp.layers.1.weight"}
    for path, row in rows.items():
        assert (row.group == "frozen") == path.startswith("mlp.layers.0.")
        before, after = (functools.reduce(at, path.split("."), tree) for tree in (model, new))
        np.testing.assert_allclose(after, before * (0.95 if path in decayed else 1.0), rtol=1e-6)
        assert row.group == "frozen" or (float(row.weight_decay or 0) > 0) == (path in decayed)


def at(tree: Any, name: str) -> Any:
    return tree[int(name)] if name.isdigit() else getattr(tree, name)


def test_no_decay_of_biases_and_norms():
    """NNX; parameter_groups.md. Beside optax with a mask that is written out."""
    model, twin = Net(nnx.Rngs(0)), Net(nnx.Rngs(0))
    mask = modulax.nnx.labels(model, {nnx.PathContains("norm"): False, nnx.PathContains("bias"): False, ...: True})
    adamw = mx.AdamW(schedules.WarmupCosineDecay(0.0, 0.01, 2, 6), weight_decay=0.1, mask=mask)
    optimizer = modulax.nnx.Optimizer(model, mx.Chain(mx.ClipByGlobalNorm(0.1), adamw), wrt=nnx.Param)
    params = nnx.as_pure(nnx.state(twin, nnx.Param))
    kernels = jtu.tree_map_with_path(lambda path, _: "kernel" in jtu.keystr(path), params)
    rate = optax.warmup_cosine_decay_schedule(0.0, 0.01, 2, 6)
    tx = optax.chain(optax.clip_by_global_norm(0.1), optax.adamw(rate, weight_decay=0.1, mask=kernels))
    their_state = tx.init(params)
    for _ in range(4):
        optimizer.update(model, nnx_grads(model)[1])
        updates, their_state = tx.update(nnx.as_pure(nnx_grads(twin)[1]), their_state, params)
        params = optax.apply_updates(params, updates)
        nnx.update(twin, params)
    ours = jtu.tree_leaves(nnx.as_pure(nnx.state(model, nnx.Param)))
    for found, expected in zip(ours, jtu.tree_leaves(params), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_lbfgs_finds_the_solution_of_least_squares():
    """NNX; line_searches.md."""
    model = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
    optimizer = modulax.nnx.Optimizer(model, mx.LBFGS())
    graphdef, _ = nnx.split(model)

    @jax.jit
    def of_params(params):
        return jnp.mean((nnx.merge(graphdef, params)(X) - Y) ** 2)

    @nnx.jit
    def train_step(model, optimizer):
        value, grads = nnx.value_and_grad(nnx_loss)(model)
        optimizer.update(model, grads, value=value, grad=grads, value_fn=of_params)

    for _ in range(8):
        train_step(model, optimizer)
    kernel, bias = (np.asarray(x) for x in jax.tree.leaves(nnx.as_pure(nnx.state(model)))[::-1])
    design = np.c_[X, np.ones(len(X))].astype(np.float64)
    solution = np.linalg.lstsq(design, Y[:, 0].astype(np.float64), rcond=None)[0]
    np.testing.assert_allclose(np.r_[kernel[:, 0], bias], solution, atol=1e-4)
