"""Save with orbax in the background, continue bit for bit, and go on with Lion and the first moment of AdamW."""

import equinox as eqx
import jax.tree_util as jtu
import numpy as np
import orbax.checkpoint as ocp
from flax import nnx

import modulax as mx
import modulax.nnx
from modulax import checkpoint

from . import Net, Normed, eqx_loss, nnx_grads

RENAME = {"scale_by_adam": "scale_by_lion"}


def save(folder, tree):
    with ocp.CheckpointManager(folder) as manager:
        manager.save(2, args=ocp.args.StandardSave(tree))  # in the background; the end of `with` waits


def assert_equal(found, expected):
    for x, y in zip(jtu.tree_leaves(found), jtu.tree_leaves(expected), strict=True):
        np.testing.assert_array_equal(x, y)


def test_equinox(tmp_path):
    optimizer = mx.AdamW(0.01)
    arrays, static = eqx.partition(Normed(), eqx.is_array)

    def train(arrays, state, steps):
        for _ in range(steps):
            _, grads = eqx_loss(eqx.combine(arrays, static))
            arrays, state = optimizer.step(grads, state, arrays)
        return arrays, state

    saved = train(arrays, optimizer.init(arrays), 2)
    save(tmp_path, {"model": saved[0], "state": saved[1]})
    template = {"model": arrays, "state": optimizer.init(arrays)}
    restored, report = checkpoint.restore(tmp_path / "2", template)
    assert not report.fresh
    assert_equal(train(restored["model"], restored["state"], 2), train(*saved, 2))

    template = {"model": arrays, "state": mx.Lion(0.001).init(arrays)}
    lion, report = checkpoint.restore(tmp_path / "2", template, strict=False)
    assert report.proposed == RENAME
    lion, report = checkpoint.restore(tmp_path / "2", template, rename=RENAME, strict=False)
    assert_equal(mx.tree.get(lion["state"], "mu"), mx.tree.get(saved[1], "mu"))
    _, grads = eqx_loss(eqx.combine(lion["model"], static))
    new, _ = mx.Lion(0.001, weight_decay=0.0).step(grads, lion["state"], lion["model"])
    bias, g = (np.asarray(tree.mlp.layers[1].bias) for tree in (lion["model"], grads))
    mu = np.asarray(mx.tree.get(saved[1], "mu").mlp.layers[1].bias)
    np.testing.assert_allclose(new.mlp.layers[1].bias, bias - 0.001 * np.sign(0.9 * mu + 0.1 * g), rtol=1e-6)


def test_nnx(tmp_path):
    def start(tx):
        model = Net(nnx.Rngs(0))
        return model, modulax.nnx.Optimizer(model, tx)

    def tree(model, optimizer):
        return nnx.as_pure({"model": nnx.state(model), "optimizer": nnx.state(optimizer)})

    def train(model, optimizer):
        for _ in range(2):
            optimizer.update(model, nnx_grads(model)[1])
        return tree(model, optimizer)

    run, other, lion = start(mx.AdamW(0.01)), start(mx.AdamW(0.5)), start(mx.Lion(0.001))
    saved = train(*run)
    save(tmp_path, saved)
    restored, _ = checkpoint.restore(tmp_path / "2", tree(*other))
    nnx.update(other[0], restored["model"])
    nnx.update(other[1], restored["optimizer"])
    assert_equal(train(*other), train(*run))

    restored, _ = checkpoint.restore(tmp_path / "2", tree(*lion), rename=RENAME, strict=False)
    nnx.update(lion[1], restored["optimizer"])
    before, after = (checkpoint.state_dict(tree["optimizer"]) for tree in (saved, nnx.as_pure(restored)))
    names = [name for name in after if ".mu." in name]
    assert len(names) == 5
    for name in names:
        np.testing.assert_array_equal(after[name], before[name.replace("scale_by_lion", "scale_by_adam")])
