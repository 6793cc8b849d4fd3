"""Train the head alone, then everything: in groups, so that the head keeps its moments, or with a fresh AdamW."""

import chex
import numpy as np
from flax import nnx

import modulax as mx
import modulax.nnx
from modulax import checkpoint

from . import Net, Normed, eqx_loss, nnx_grads


def chain(inner):
    return mx.Chain(mx.ClipByGlobalNorm(10.0), inner)


def test_equinox():
    model = Normed()
    frozen = mx.by_path({"mlp.layers.1.*": False, "*": True})
    first = chain(mx.selective_transform(mx.AdamW(0.01), freeze_mask=frozen))
    labels = mx.by_path({"mlp.layers.1.*": "trained", "*": "thawed"})
    then = chain(mx.Partition({"trained": mx.AdamW(0.01), "thawed": mx.AdamW(0.01)}, labels))
    body = model.mlp.layers[0].weight
    state = first.init(model)
    for _ in range(2):
        model, state = first.step(eqx_loss(model)[1], state, model)
    np.testing.assert_array_equal(model.mlp.layers[0].weight, body)

    thawed, report = checkpoint.load_state_dict(then.init(model), checkpoint.state_dict(state), strict=False)
    assert not report.unused
    assert all(".thawed." in name for name in report.fresh)
    head = lambda tree: tree.mlp.layers[1].weight  # noqa: E731
    rules = {key: group.inner["scale_by_adam"] for key, group in thawed["partition"].inner_states.items()}
    np.testing.assert_array_equal(head(rules["trained"].nu), head(mx.tree.get(state, "nu")))
    assert (rules["trained"].count, rules["thawed"].count) == (2, 0)
    grads = eqx_loss(model)[1]
    new, _ = then.step(grads, thawed, model)
    # Adam's third step, by hand.
    m, v = (np.asarray(head(mx.tree.get(state, name)), np.float64) for name in ("mu", "nu"))
    g, w = np.asarray(head(grads), np.float64), np.asarray(head(model), np.float64)
    m, v = (0.9 * m + 0.1 * g) / (1 - 0.9**3), (0.999 * v + 0.001 * g**2) / (1 - 0.999**3)
    np.testing.assert_allclose(head(new), w - 0.01 * (m / (np.sqrt(v) + 1e-8) + 1e-4 * w), rtol=1e-5)
    # The first step of Adam, and that of a fresh AdamW where no group keeps the moments of the head.
    g, w = np.asarray(grads.mlp.layers[0].weight, np.float64), np.asarray(body, np.float64)
    np.testing.assert_allclose(new.mlp.layers[0].weight, w - 0.01 * (g / (np.abs(g) + 1e-8) + 1e-4 * w), rtol=1e-5)
    adam = chain(mx.AdamW(0.01))
    whole, report = checkpoint.load_state_dict(adam.init(model), checkpoint.state_dict(state), strict=False)
    chex.assert_trees_all_equal(mx.tree.set(whole, step=0), adam.init(model))
    assert "To keep the former" in report.remarks[0]


def test_nnx():
    model = Net(nnx.Rngs(0))
    frozen = modulax.nnx.labels(model, {nnx.PathContains("out"): False, ...: True})
    optimizer = modulax.nnx.Optimizer(model, chain(mx.selective_transform(mx.AdamW(0.01), freeze_mask=frozen)))
    body = np.array(model.hidden.kernel[...])
    for _ in range(2):
        optimizer.update(model, nnx_grads(model)[1])
    np.testing.assert_array_equal(model.hidden.kernel[...], body)

    labels = modulax.nnx.labels(model, {nnx.PathContains("out"): "trained", ...: "thawed"})
    both = mx.Partition({"trained": mx.AdamW(0.01), "thawed": mx.AdamW(0.01)}, labels)
    thawed = modulax.nnx.Optimizer(model, chain(both))
    old = checkpoint.state_dict(nnx.as_pure(nnx.state(optimizer)))
    new, report = checkpoint.load_state_dict(nnx.as_pure(nnx.state(thawed)), old, strict=False)
    nnx.update(thawed, new)
    kept = checkpoint.state_dict(nnx.as_pure(nnx.state(thawed)))
    for field in ("mu", "nu"):
        (name,) = [n for n in kept if f".{field}." in n and n.endswith("out.kernel")]
        assert np.any(kept[name])
        np.testing.assert_array_equal(kept[name], old[report.restored[name]])
    thawed.update(model, nnx_grads(model)[1])
    assert np.all(np.asarray(model.hidden.kernel[...]) != body)
