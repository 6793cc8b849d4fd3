"""LoRA: train adapters and the head, merge the adapters, and train everything with the moments that exist."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np

import modulax as mx
import modulax.nnx
from modulax import checkpoint

from . import Normed, eqx_loss


def adams_step(state, where, w, g, t, rate):
    """The step number `t` of Adam by hand, from the moments of a state."""
    m, v = (np.asarray(where(mx.tree.get(state, name)), np.float64) for name in ("mu", "nu"))
    m, v = (0.9 * m + 0.1 * g) / (1 - 0.9**t), (0.999 * v + 0.001 * g**2) / (1 - 0.999**t)
    return w - rate * m / (np.sqrt(v) + 1e-8)


class Adapted(eqx.Module):
    base: eqx.nn.Linear
    a: jnp.ndarray
    b: jnp.ndarray

    def __call__(self, x):
        return self.base(x) + self.b @ (self.a @ x)

    def merge(self):
        return eqx.tree_at(lambda layer: layer.weight, self.base, self.base.weight + self.b @ self.a)


def test_the_head_keeps_its_moments_when_the_adapters_are_merged():
    def hidden(model):
        return model.mlp.layers[0]

    def head(model):
        return model.mlp.layers[1].weight

    base = Normed()
    model = eqx.tree_at(hidden, base, Adapted(hidden(base), jnp.ones((1, 2)), jnp.zeros((3, 1))))
    frozen = mx.by_path({"*.base.*": True, "norm.*": True, "*": False})
    optimizer = mx.selective_transform(mx.Adam(0.1), freeze_mask=frozen)
    state = optimizer.init(model)
    for _ in range(2):
        model, state = optimizer.step(eqx_loss(model)[1], state, model)
    np.testing.assert_array_equal(hidden(model).base.weight, hidden(base).weight)
    assert np.any(np.asarray(hidden(model).b) != 0)

    merged = eqx.tree_at(hidden, model, hidden(model).merge())
    (loss, grads), (before, _) = eqx_loss(merged), eqx_loss(model)
    np.testing.assert_allclose(loss, before, rtol=1e-5)
    labels = mx.by_path({"mlp.layers.0.*": "merged", "norm.*": "merged", "*": "head"})
    full = mx.Partition({"merged": mx.Adam(0.01), "head": mx.Adam(0.01)}, labels)
    kept, report = checkpoint.load_state_dict(full.init(merged), checkpoint.state_dict(state), strict=False)
    assert {name.split(".mlp.")[-1] for name in report.unused} == {"layers.0.a", "layers.0.b"}
    new, _ = full.step(grads, kept, merged)
    expected = adams_step(state, head, head(merged), np.asarray(head(grads)), 3, 0.01)
    np.testing.assert_allclose(head(new), expected, rtol=1e-5)
    # The merged weight takes the first step of Adam, by the counter of its group.
    w, g = hidden(merged).weight, np.asarray(hidden(grads).weight)
    np.testing.assert_allclose(hidden(new).weight, w - 0.01 * np.sign(g), rtol=1e-3)
