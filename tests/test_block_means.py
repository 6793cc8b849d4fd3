"""Which numbers Adam-mini, AdaHessian and Amos keep, by the roles of the parameters."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import modulax as mx
from modulax._transforms.block_means import means, per_head, per_output, per_window, spread_over, whole
from modulax.tree._math import shapes_of
from modulax.tree._paths import named_leaves

KEY = jax.random.key(0)


class Model(eqx.Module):
    attention: eqx.nn.MultiheadAttention
    conv: eqx.nn.Conv2d
    embedding: eqx.nn.Embedding
    norm: eqx.nn.LayerNorm
    qkv: eqx.nn.Linear
    table: Any


def equinox_model() -> Any:
    return Model(
        eqx.nn.MultiheadAttention(2, 8, key=KEY),
        eqx.nn.Conv2d(3, 5, 2, key=KEY),
        eqx.nn.Embedding(11, 8, key=KEY),
        eqx.nn.LayerNorm(8),
        eqx.nn.Linear(8, 24, use_bias=False, key=KEY),
        jnp.zeros((6, 8)),
    )


def of_adam_mini(model: Any, **given: mx.AbstractRole) -> dict[str, tuple[int, ...]]:
    transform = mx.ScaleByAdamMini(roles=mx.roles(model, given))
    state = jax.eval_shape(transform.init, shapes_of(eqx.filter(model, eqx.is_array)))
    return {".".join(names): x.shape for names, x in named_leaves(state.nu)}


def test_blocks_of_a_model_of_equinox():
    found = of_adam_mini(equinox_model(), table=mx.Position(fan_in=0, fan_out=1))
    assert found == {
        "attention.query_proj.weight": (2, 1),
        "attention.key_proj.weight": (2, 1),
        "attention.value_proj.weight": (8, 1),
        "attention.output_proj.weight": (8, 1),
        "conv.weight": (1, 1, 1, 1),
        "conv.bias": (5, 1, 1),
        "embedding.weight": (11, 1),
        "norm.weight": (1,),
        "norm.bias": (8,),
        "qkv.weight": (24, 1),  # of which the number of heads is not known
        "table": (6, 1),
    }
    found = of_adam_mini(equinox_model(), qkv=mx.Attention(heads=4, kv_heads=2), table=mx.Other(), conv=mx.Hidden())
    assert (found["qkv.weight"], found["table"], found["conv.weight"]) == ((8, 1), (1, 1), (5, 1, 1, 1))
    found = of_adam_mini(equinox_model(), qkv=mx.Attention(heads=2, blocks=(4, 8, 12)))
    assert found["qkv.weight"] == (24, 1), "heads of several sizes"


def test_blocks_in_the_layout_of_flax():
    params = {
        "query": {"kernel": jnp.zeros((8, 2, 4)), "bias": jnp.zeros((2, 4))},
        "out": {"kernel": jnp.zeros((2, 4, 8))},
    }
    found = of_adam_mini({"attention": params | dict.fromkeys(("key", "value"), params["query"])})
    assert found == {
        "attention.query.kernel": (1, 2, 1),
        "attention.query.bias": (2, 4),
        "attention.key.kernel": (1, 2, 1),
        "attention.key.bias": (2, 4),
        "attention.value.kernel": (1, 2, 4),
        "attention.value.bias": (2, 4),
        "attention.out.kernel": (1, 1, 8),
    }


def test_windows_of_convolutions():
    for shape, role, expected in [
        ((5, 3, 2, 4), mx.Convolution(fan_in=(1, 2, 3), fan_out=0), (5, 3, 1, 1)),
        ((2, 4, 3, 5), mx.Convolution(fan_in=(0, 1, 2), fan_out=3), (1, 1, 3, 5)),
        ((2, 4, 5, 3), mx.Convolution(fan_in=(0, 1, 3), fan_out=2), (1, 1, 5, 3)),
        ((7, 5, 3, 2), mx.Convolution(fan_in=(2, 3), fan_out=1, batch=0), (7, 5, 3, 1)),
    ]:
        assert per_window(role, shape) == expected
    assert per_window(mx.Hidden(fan_in=0, fan_out=1), (3, 5)) is None
    assert per_output(mx.Gain(fan_in=0, fan_out=1), (3, 5)) is None
    assert whole((3, 5)) == (1, 1)


@pytest.mark.parametrize("numbers", [(1, 5), (4, 1), (4, 5), (12, 1), (6, 5), (12, 5), (1, 1)], ids=str)
def test_means_of_blocks(numbers: tuple[int, int]):
    x = np.random.default_rng(0).normal(size=(12, 5)).astype(np.float32)
    k, m = numbers
    expected = x.reshape(k, 12 // k, m, 5 // m).mean((1, 3))
    found = means(jnp.asarray(x), numbers)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    repeated = np.repeat(np.repeat(expected, 12 // k, 0), 5 // m, 1)
    np.testing.assert_allclose(np.broadcast_to(spread_over(found, x.shape), x.shape), repeated, rtol=1e-5, atol=1e-6)


def test_an_update_of_another_shape_is_named():
    """Not a leaf whose numbers are fewer than its entries, as they should be."""
    params = {"a": jnp.ones((3, 2)), "b": jnp.ones((4, 6))}
    transform = mx.ScaleByAdamMini()
    with pytest.raises(ValueError, match=r"at `b` the update has shape \(4, 5\)"):
        transform.update(params | {"b": jnp.ones((4, 5))}, transform.init(params))


def test_heads_that_are_no_whole_parts_of_an_axis_have_no_numbers():
    """Four heads of 24 outputs in six rows of four: a head is one and a half rows."""
    query = mx.Attention("query", heads=4, fan_in=0, fan_out=(1, 2))
    assert [per_head(query, shape) for shape in ((3, 6, 4), (3, 6, 2), (3, 8, 3))] == [None, None, (1, 4, 1)]
