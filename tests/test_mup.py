"""muP: multipliers and initial weights against microsoft/mup, the meaning of axes, and the coordinate check."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pytest
from flax import nnx

import modulax as mx
from modulax import schedules, sweeps

# Losses of mup 1.0.0 (`MuReadout`, `set_base_shapes`, `MuAdam`, `MuSGD`) with torch 2.13.0 in float64, before each of
# four steps, at the width 4 of the narrow model and at 16; `tests/oracles/freeze_groups.py` computes them.
LOSSES = {
    ("adam", 4): [0.7211971979, 0.6620138786, 0.614160978, 0.5781167607],
    ("adam", 16): [0.6470924767, 0.6147388044, 0.5891481309, 0.5705746417],
    ("sgd", 4): [0.7211971979, 0.6773310472, 0.6174925153, 0.5683125058],
    ("sgd", 16): [0.6470924767, 0.6303003403, 0.6033927793, 0.5744704888],
}
X = np.sin(np.arange(15) * 0.9).reshape(5, 3)
Y = np.cos(np.arange(10) * 0.7).reshape(5, 2)


def mlp(width):
    """The network of the frozen losses: weights of any width, without random numbers."""
    model = eqx.nn.MLP(3, 2, width, 2, key=jax.random.key(0))
    for k, (rows, columns) in enumerate([(width, 3), (width, width), (2, width)]):
        w = np.sin(1.0 + k + np.arange(rows * columns) * 1.7).reshape(rows, columns) / np.sqrt(columns)
        b = np.cos(2.0 + k + np.arange(rows) * 1.3) / np.sqrt(columns)
        where = lambda m, k=k: (m.layers[k].weight, m.layers[k].bias)  # noqa: E731
        model = eqx.tree_at(where, model, (jnp.asarray(w), jnp.asarray(b)))
    return model


@eqx.filter_jit
@eqx.filter_value_and_grad
def loss_and_grad(model):
    return jnp.mean((jax.vmap(model)(jnp.asarray(X)) - Y) ** 2)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("like", ["adam", "sgd"])
def test_the_losses_are_those_of_the_released_code(like):
    optimizer = mx.Adam(0.02) if like == "adam" else mx.SGD(0.05, momentum=0.9)
    for width in (4, 16):
        scaled, model = mx.mup(optimizer, mlp(width), mlp(4))
        state, losses = scaled.init(model), []
        for _ in range(4):
            loss, grads = loss_and_grad(model)
            losses.append(float(loss))
            model, state = scaled.step(grads, state, model)
        # Adam's `eps` is added to another multiple of the gradient of the output weights there.
        np.testing.assert_allclose(losses, LOSSES[like, width], rtol=1e-9 if like == "sgd" else 1e-7)


def multipliers(tree, base, **arguments):
    optimizer, scaled = mx.mup(mx.Adam(1.0), tree, base, **arguments)
    found = optimizer["scale_by_path"].multipliers_of(eqx.filter(tree, eqx.is_inexact_array))
    arrays = eqx.filter(scaled, eqx.is_inexact_array)
    scales = [float(jnp.max(x)) for x in jax.tree.leaves(arrays)]
    return {p: (float(m), s) for p, m, s in zip(mx.tree.leaf_paths(arrays), found, scales, strict=True)}


def test_flax_layers_and_the_table():
    """Table 3 of the paper for Adam and SGD, at 4 times the width; kernels are (in, out)."""

    def tree(width, heads):
        return {
            "embed": {"embedding": jnp.ones((7, width))},
            "layers_0": {
                "query": {"kernel": jnp.ones((width, heads, 3)), "bias": jnp.ones((heads, 3))},
                "out": {"kernel": jnp.ones((heads, 3, width)), "bias": jnp.ones(width)},
                "up": {"kernel": jnp.ones((width, 2 * width))},
                "conv": {"kernel": jnp.ones((3, 3, width, width))},
            },
            "norm": {"scale": jnp.ones(width)},
            "head": {"kernel": jnp.ones((width, 7)), "bias": jnp.ones(7)},
        }

    found = multipliers(tree(8, 4), tree(2, 1))
    assert found == {
        "embed.embedding": (1.0, 1.0),
        "head.bias": (1.0, 2.0),
        "head.kernel": (0.25, 0.5),
        "layers_0.conv.kernel": (0.25, 1.0),
        "layers_0.out.bias": (1.0, 2.0),
        "layers_0.out.kernel": (0.25, 1.0),
        "layers_0.query.bias": (1.0, 2.0),
        "layers_0.query.kernel": (0.25, 1.0),
        "layers_0.up.kernel": (0.25, 1.0),
        "norm.scale": (1.0, 1.0),
    }
    optimizer, _ = mx.mup(mx.Adam(1.0), tree(8, 4), tree(2, 1))
    hidden = [f"layers_*.{x}.kernel" for x in ("conv", "out", "query", "up")]
    assert list(optimizer["scale_by_path"].multipliers) == ["head.kernel", *hidden, "*"]
    rates = mx.mup(mx.Adam(1.0), tree(8, 4), tree(2, 1), like="sgd")[0]["scale_by_path"].multipliers_of(tree(8, 4))
    assert rates == [4.0, 1.0, 0.25, 1.0, 4.0, 1.0, 4.0, 1.0, 1.0, 4.0]


def test_equinox_layers():
    class Net(eqx.Module):
        embed: eqx.nn.Embedding
        conv: eqx.nn.Conv1d
        stacked: eqx.nn.Linear
        norm: eqx.nn.LayerNorm
        head: eqx.nn.Linear
        pos_embed: jax.Array

        def __init__(self, width):
            key = jax.random.key(0)
            self.pos_embed = jnp.ones((7, width))
            self.embed = eqx.nn.Embedding(7, width, key=key)
            self.conv = eqx.nn.Conv1d(2, width, 3, key=key)
            self.stacked = eqx.filter_vmap(lambda key: eqx.nn.Linear(2, width, key=key))(jax.random.split(key, 3))
            self.norm = eqx.nn.LayerNorm((5, width))
            self.head = eqx.nn.Linear(width, 5, use_bias=False, key=key)

    wide = jax.tree.map(lambda x: jnp.ones(x.shape) if eqx.is_inexact_array(x) else x, Net(8))
    # Only the fan-out grows in all but one; biases, gains and positions are vectors, of whatever shape.
    for layout in (None, "out_in", "in_out", {"norm*": "out_in", "pos*": "out_in", "*bias": "in_out"}):
        found = multipliers(wide, eqx.filter_eval_shape(Net, 2), layout=layout)
        assert {path: x for path, x in found.items() if x != (1.0, 1.0)} == {"head.weight": (0.25, 0.5)}
    same = mx.mup(mx.Adam(1.0), wide, wide)
    assert same[0]["scale_by_path"] == mx.ScaleByPath({"*": 1.0})


def test_nnx():
    def net(width):
        rngs = nnx.Rngs(0)
        return nnx.Sequential(nnx.Linear(3, width, rngs=rngs), nnx.relu, nnx.Linear(width, 2, rngs=rngs))

    params = nnx.state(net(8), nnx.Param)
    optimizer, scaled = mx.mup(mx.SGD(1.0), params, nnx.state(nnx.eval_shape(lambda: net(2)), nnx.Param))
    assert optimizer["scale_by_path"].multipliers_of(params) == [4.0, 4.0, 1.0, 0.25]
    before, after = (mx.tree.get(state, "layers.2.kernel") for state in (params, scaled))
    np.testing.assert_allclose(after, 0.5 * before)


def test_the_state_of_a_batch_norm_is_no_parameter():
    def net(width):
        key = jax.random.key(0)
        norm = eqx.nn.BatchNorm(width, "batch", mode="batch")
        return eqx.nn.Sequential([eqx.nn.Linear(3, width, key=key), norm, eqx.nn.Linear(width, 2, key=key)])

    optimizer, model = mx.mup(mx.SGD(1.0), net(8), net(2))
    np.testing.assert_allclose(model.layers[2].weight, 0.5 * net(8).layers[2].weight)
    rates = {row.path: row.learning_rate for row in mx.describe(optimizer, model).leaves}
    assert list(rates.values()) == ["4.0", "4.0", "4.0", "4.0", "0.25", "1.0"]
    optimizer.init(model)


def test_the_layout_of_other_arrays_can_be_given():
    def tree(width):
        return {"inside": jnp.ones((width, 3 * width)), "out": jnp.ones((width, 5)), "table": jnp.ones((5, width))}

    assert multipliers(tree(4), tree(2), layout="in_out") == {
        "inside": (0.5, 1.0),
        "out": (0.5, pytest.approx(0.5**0.5)),
        "table": (1.0, 1.0),
    }
    swapped = multipliers(tree(4), tree(2), layout={"table": "in_out", "*": "out_in"})
    assert [rate for rate, _ in swapped.values()] == [0.5, 1.0, 1.0]
    ragged = {"w": jnp.ones((4, 9))}, {"w": jnp.ones((2, 3))}
    assert multipliers(*ragged, layout="in_out")["w"][0] == 0.5
    assert multipliers(*ragged, layout="out_in")["w"][0] == pytest.approx(1 / 3)

    def with_bias(n: int) -> dict[str, Any]:
        return {"b": jnp.ones(n), "w[0]": jnp.ones((3, n)), "w[1]": jnp.ones((n, 2))}

    for layout in ("in_out", {"*": "in_out"}):
        found = multipliers(with_bias(4), with_bias(2), layout=layout)
        assert [rate for rate, _ in found.values()] == [1.0, 1.0, 0.5]


def test_the_keys_of_a_state_dict_are_paths():
    def tree(width):
        return {"fc": {"weight": jnp.ones((width, width)), "bias": jnp.ones(width)}, "bias": jnp.ones(width)}

    flat = [{"fc.weight": x["fc"]["weight"], "fc.bias": x["fc"]["bias"], "bias": x["bias"]} for x in map(tree, (8, 2))]
    wanted = {"fc.weight": (0.25, 1.0), "fc.bias": (1.0, 2.0), "bias": (1.0, 1.0)}
    assert multipliers(tree(8), tree(2), layout="out_in") == multipliers(*flat, layout="out_in") == wanted


@pytest.mark.parametrize(
    "optimizer, like",
    [
        (mx.AdamW(schedules.WarmupCosineDecay(0.0, 1e-3, 5, 9), mask=mx.by_path({"b": False, "*": True})), "adam"),
        (mx.Chain(mx.ClipByGlobalNorm(1.0), mx.SGD(0.1, momentum=0.9)), "sgd"),
        (mx.Chain(mx.ClipByGlobalNorm(1.0), mx.SGD(schedules.WarmupCosineDecay(0.0, 1e-3, 5, 9))), "sgd"),
        (mx.Chain(mx.ClipByGlobalNorm(1.0), mx.Adam(schedules.CosineDecay(0.1, 100))), "adam"),
        (mx.Muon(0.1), None),
        (mx.PolyakSGD(), None),
        (mx.Chain(mx.Clip(1.0), mx.SGD(0.1, momentum=0.9)), None),  # like SGD or like Adam, by the size of the gradient
        (mx.LARS(0.1), None),
        (mx.LAMB(0.1), None),
        (mx.Adagrad(0.1), "adam"),  # begins like SGD, as RAdam does
        (mx.RAdam(0.1), "adam"),
        (mx.SGD(1e-12), "sgd"),
        (mx.MultiSteps(mx.AdamW(0.1, weight_decay=0.5), 4), "adam"),
    ],
    ids=[
        *("AdamW", "SGD", "clipped SGD", "clipped Adam", "Muon", "PolyakSGD", "clipped entries", "LARS", "LAMB"),
        *("Adagrad", "RAdam", "tiny SGD", "MultiSteps"),
    ],
)
def test_the_column_of_the_table_is_found_by_a_trial(optimizer, like):
    tree, base = ({"w": jnp.ones((n, n)), "b": jnp.ones(n)} for n in (4, 2))
    if like is None:
        with pytest.raises(ValueError, match=r'`mup` .* Write `like="adam"` if'):
            mx.mup(optimizer, tree, base)
        like = "adam"
        found = mx.mup(optimizer, tree, base, like=like)
    else:
        found = mx.mup(optimizer, tree, base)
        traced = []
        jax.make_jaxpr(lambda o: traced.append(mx.mup(o, tree, base)[0]["scale_by_path"].multipliers))(optimizer)
        assert traced == [found[0]["scale_by_path"].multipliers]  # in a sweep, the numbers are unknown
    wanted = {"w": 0.5, "*": 1.0} if like == "adam" else {"b": 2.0, "*": 1.0}
    assert found[0]["scale_by_path"] == mx.ScaleByPath(wanted)


def test_each_group_has_the_column_of_its_optimizer():
    tree, base = ({"w": jnp.ones((n, n)), "b": jnp.ones(n), "c": jnp.ones(n)} for n in (4, 2))
    labels = mx.by_path({"w": "adam", "b": "sgd", "*": "frozen"})
    groups = mx.Partition({"adam": mx.AdamW(0.1), "sgd": mx.SGD(0.1), "frozen": mx.SetToZero()}, labels)
    assert mx.mup(groups, tree, base)[0]["scale_by_path"] == mx.ScaleByPath({"b": 2.0, "w": 0.5, "*": 1.0})
    with pytest.raises(ValueError, match="depends on the size of the parameters"):
        mx.mup(mx.groups(mx.LAMB(0.1), {"b": {"learning_rate": 0.2}}), tree, base)
    with pytest.raises(ValueError, match="took no step in 100 calls"):
        mx.mup(mx.SGD(0.0), tree, base)


def test_mistakes():
    one, two = {"w": jnp.ones((4, 3))}, {"w": jnp.ones((2, 3))}
    with pytest.raises(ValueError, match=r"doesn't know which axis of `w` is the input: .* Write `layout=.in_out.`"):
        mx.mup(mx.Adam(1.0), one, two)
    with pytest.raises(ValueError, match="the first is in the model alone"):
        mx.mup(mx.Adam(1.0), {**one, "extra": jnp.ones(2)}, two)
    with pytest.raises(ValueError, match="3 axes of `w` grow"):
        mx.mup(mx.Adam(1.0), {"w": jnp.ones((4, 4, 4))}, {"w": jnp.ones((2, 2, 2))})
    with pytest.raises(ValueError, match="has the shapes"):
        mx.mup(mx.Adam(1.0), {"w": jnp.ones((4, 4, 4))}, {"w": jnp.ones((2, 2))})


def test_coordinates_are_flat_in_mup_and_grow_without():
    def maker(scales):
        def make(width, key):
            model, optimizer = eqx.nn.MLP(3, 2, width, 2, key=key), mx.Adam(1e-3)
            if scales:
                narrow = eqx.filter_eval_shape(eqx.nn.MLP, 3, 2, 32, 2, key=key)
                optimizer, model = mx.mup(optimizer, model, narrow)

            def loss_fn(model):
                hidden = jax.nn.relu(jax.vmap(model.layers[0])(jnp.asarray(X, np.float32)))
                second = jax.vmap(model.layers[1])(hidden)
                output = jax.vmap(model.layers[2])(jax.nn.relu(second))
                return jnp.mean((output - jnp.asarray(Y, np.float32)) ** 2), {"second": second, "output": output}

            return optimizer, model, loss_fn

        return make

    check = sweeps.coordinate_check(maker(True), [512, 32], steps=2, seeds=2)
    np.testing.assert_array_equal(check.widths, [32, 512])
    assert {x.shape for x in (*check.sizes.values(), *check.changes.values())} == {(2, 3)}
    assert all(x[0, 0] == 0 for x in check.changes.values())
    assert all(abs(power) < 0.15 for power in check.growth().values())
    growing = sweeps.coordinate_check(maker(False), [32, 512], steps=2, seeds=2)
    assert all(power > 0.5 for power in growing.growth().values())
    assert repr(growing).startswith("CoordinateCheck(widths 32, 512; powers of the width: output: +1.0")
    ax = growing.plot(plt.figure().add_subplot())
    assert [line.get_label().split()[0] for line in ax.get_lines()] == ["output", "second"]
    assert ax.get_ylabel() == "mean |change| after 2 steps"
    with pytest.raises(ValueError, match="compares several widths"):
        sweeps.coordinate_check(maker(True), [32])
