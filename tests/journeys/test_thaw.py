"""Train the head alone, then everything, with the moments of the head kept; and low-rank adapters."""

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import optax
from flax import nnx

import modulax as mx
import modulax.nnx
from modulax import checkpoint

from . import Net, Normed, X, Y, eqx_loss, nnx_grads


def chain(inner):
    return mx.Chain(mx.ClipByGlobalNorm(10.0), inner)


def test_equinox():
    model = Normed()
    frozen = mx.by_path({"mlp.layers.1.*": False, "*": True})
    first, then = chain(mx.selective_transform(mx.AdamW(0.01), freeze_mask=frozen)), chain(mx.AdamW(0.01))
    body = model.mlp.layers[0].weight
    state = first.init(model)
    for _ in range(2):
        model, state = first.step(eqx_loss(model)[1], state, model)
    np.testing.assert_array_equal(model.mlp.layers[0].weight, body)

    thawed, report = checkpoint.load_state_dict(then.init(model), checkpoint.state_dict(state), strict=False)
    assert not report.unused
    assert {name.split(".mlp.")[-1] for name in report.fresh if "mlp" in name} == {"layers.0.weight", "layers.0.bias"}
    head = lambda tree: tree.mlp.layers[1].weight  # noqa: E731
    np.testing.assert_array_equal(head(mx.tree.get(thawed, "nu")), head(mx.tree.get(state, "nu")))
    assert mx.tree.get(thawed, "count") == 2
    grads = eqx_loss(model)[1]
    new, _ = then.step(grads, thawed, model)
    # Adam's third step, by hand.
    m, v = (np.asarray(head(mx.tree.get(state, name)), np.float64) for name in ("mu", "nu"))
    g, w = np.asarray(head(grads), np.float64), np.asarray(head(model), np.float64)
    m, v = (0.9 * m + 0.1 * g) / (1 - 0.9**3), (0.999 * v + 0.001 * g**2) / (1 - 0.999**3)
    np.testing.assert_allclose(head(new), w - 0.01 * (m / (np.sqrt(v) + 1e-8) + 1e-4 * w), rtol=1e-5)
    assert np.all(new.mlp.layers[0].weight != body)


def test_nnx():
    model = Net(nnx.Rngs(0))
    frozen = modulax.nnx.labels(model, {nnx.PathContains("out"): False, ...: True})
    optimizer = modulax.nnx.Optimizer(model, chain(mx.selective_transform(mx.AdamW(0.01), freeze_mask=frozen)))
    body = np.array(model.hidden.kernel[...])
    for _ in range(2):
        optimizer.update(model, nnx_grads(model)[1])
    np.testing.assert_array_equal(model.hidden.kernel[...], body)

    thawed = modulax.nnx.Optimizer(model, chain(mx.AdamW(0.01)))
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


def test_lora_in_nnx():
    linear = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
    model = nnx.LoRA(2, 1, 1, base_module=linear, rngs=nnx.Rngs(1))
    base = np.array(linear.kernel[...])
    groups = modulax.nnx.labels(model, {nnx.LoRAParam: "adapter", ...: "base"})
    tx = mx.Partition({"adapter": mx.Adam(0.1), "base": mx.SetToZero()}, groups)
    optimizer = modulax.nnx.Optimizer(model, tx)
    loss = nnx.value_and_grad(lambda model: jnp.mean((model(X) - Y) ** 2))
    adapter = nnx.as_pure(nnx.state(model, nnx.LoRAParam))
    twin, state = optax.adam(0.1), optax.adam(0.1).init(adapter)
    for _ in range(2):
        grads = loss(model)[1]
        optimizer.update(model, grads)
        updates, state = twin.update(nnx.as_pure(nnx.filter_state(grads, nnx.LoRAParam)), state, adapter)
        adapter = optax.apply_updates(adapter, updates)
    np.testing.assert_array_equal(linear.kernel[...], base)
    found = jtu.tree_leaves(nnx.as_pure(nnx.state(model, nnx.LoRAParam)))
    for x, expected in zip(found, jtu.tree_leaves(adapter), strict=True):
        np.testing.assert_allclose(x, expected, rtol=1e-5, atol=1e-6)


class Adapted(eqx.Module):
    base: eqx.nn.Linear
    a: jnp.ndarray
    b: jnp.ndarray

    def __call__(self, x):
        return self.base(x) + self.b @ (self.a @ x)


def test_lora_in_equinox():
    base = Normed().mlp.layers[0]
    model = Adapted(base, jnp.ones((1, 2)), jnp.zeros((3, 1)))
    optimizer = mx.selective_transform(mx.Adam(0.1), freeze_mask=mx.by_path({"base.*": True, "*": False}))
    state = optimizer.init(model)
    new, state = optimizer.step(eqx_loss(model)[1], state, model)
    np.testing.assert_array_equal(new.base.weight, base.weight)
    np.testing.assert_allclose(np.abs(new.b), 0.1, rtol=1e-4)  # the first step of Adam is the rate
    assert {x.shape for x in jtu.tree_leaves(mx.tree.get(state, "mu"))} == {(1, 2), (3, 1)}
