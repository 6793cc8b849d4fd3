"""The roles of the arrays in a layer of Equinox or of NNX, from its class.

Classes of Flax are known by their names, so that Flax is never imported here. Where a layer has more axes than its
class says, as after `eqx.filter_vmap` or `nnx.vmap` over its construction, the first ones are a batch of layers.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx

from .names import table
from .role import AbstractRole, Attention, Bias, Convolution, Gain, Hidden, LoRA, Other, axes

_NORMS = (eqx.nn.LayerNorm, eqx.nn.RMSNorm, eqx.nn.GroupNorm, eqx.nn.BatchNorm, eqx.nn.WeightNorm)
_PROJECTIONS = {"query_proj": "query", "key_proj": "key", "value_proj": "value", "output_proj": "out"}
_GATES = {"OptimizedLSTMCell": 4, "GRUCell": 3}  # NNX joins the gates of these cells in one layer
_FLAX_PROJECTIONS = ("query", "key", "value", "out")


def role_in_layer(owners: Sequence[Any], names: Sequence[str], shape: tuple[int, ...]) -> AbstractRole | None:
    """Return the role of an array in a layer of Equinox or NNX; None if the class is not known.

    Args:
        owners: the nodes of the model on the path to the array, from the model to the layer.
        names: the names of the keys of this path, one more.
        shape: the shape of the array.
    """
    if not owners:
        return None
    *_, outer, owner = None, *owners
    layer = _layer(names)
    flax = [cls.__name__ for cls in type(owner).__mro__ if cls.__module__.startswith("flax.nnx.nn")]
    if not flax and not isinstance(owner, _EQUINOX):
        return None
    if names[-1] in ("bias", "bias_n"):
        return Bias()
    if not flax:
        role = _in_equinox(owner, names, len(shape))
        is_head = isinstance(outer, eqx.nn.MultiheadAttention)
        return Attention(_PROJECTIONS[layer], heads=outer.num_heads).like(role, shape) if is_head else role
    role = table(layer, len(shape)) if "Embed" in flax else _in_flax(flax, owner, names[-1], shape)
    return _joined(role, outer, layer, shape)


def _layer(names: Sequence[str]) -> str:
    """The name of the layer; nothing if the model is the layer."""
    return names[-2] if len(names) > 1 else ""


def _joined(role: AbstractRole, outer: Any, layer: str, shape: tuple[int, ...]) -> AbstractRole:
    """The role of an array of NNX in a layer that joins several: a projection of attention, or the gates of a cell."""
    kind = type(outer).__name__
    if kind == "MultiHeadAttention" and layer in _FLAX_PROJECTIONS:
        # Of its own kernel: there may be fewer heads of keys and values.
        heads = shape[role.fan_out[0]] if len(role.fan_out) == 2 else outer.num_heads
        return Attention(layer, heads=heads).like(role, shape)
    gates = _GATES.get(kind, 1) if layer.startswith("dense_") else 1
    return role if gates == 1 else dataclasses.replace(role, blocks=(shape[-1] // gates,) * gates)


def _in_flax(classes: Sequence[str], owner: Any, name: str, shape: tuple[int, ...]) -> AbstractRole:
    """The role of an array in a layer of NNX, one of whose classes has a known name."""
    if name == "scale":
        return Gain()
    if name.startswith("lora_"):
        return LoRA(**axes(len(shape), [0], [1], 2))
    return next((_FLAX[cls](owner, shape) for cls in classes if cls in _FLAX), Other(is_known=False))


def _in_equinox(owner: Any, names: Sequence[str], ndim: int) -> AbstractRole:
    """The role of an array in a layer of Equinox; weights have the shape `(outputs, inputs)`."""
    if isinstance(owner, _NORMS):
        return Gain()
    if isinstance(owner, eqx.nn.Embedding):
        return table(_layer(names), ndim)
    if isinstance(owner, eqx.nn.Linear):
        return Hidden(**axes(ndim, [1], [0], 2))
    if isinstance(owner, (eqx.nn.Conv, eqx.nn.ConvTranspose)):
        rank = 2 + owner.num_spatial_dims
        return Convolution(**axes(ndim, range(1, rank), [0], rank))
    if isinstance(owner, (eqx.nn.GRUCell, eqx.nn.LSTMCell)) and names[-1].startswith("weight"):
        gates = 3 if isinstance(owner, eqx.nn.GRUCell) else 4
        return Hidden(**axes(ndim, [1], [0], 2), blocks=(owner.hidden_size,) * gates)
    return Other()


_EQUINOX = (
    *_NORMS,
    eqx.nn.Embedding,
    eqx.nn.Linear,
    eqx.nn.Conv,
    eqx.nn.ConvTranspose,
    eqx.nn.GRUCell,
    eqx.nn.LSTMCell,
)


def _linear(owner: Any, shape: tuple[int, ...]) -> AbstractRole:
    del owner
    return Hidden(**axes(len(shape), [0], [1], 2))


def _linear_general(owner: Any, shape: tuple[int, ...]) -> AbstractRole:
    """A kernel of NNX's `LinearGeneral`: batch axes, inputs, outputs."""
    n_batch, n_in, n_out = len(owner.batch_axis), len(owner.in_features), len(owner.out_features)
    rank = n_batch + n_in + n_out
    return Hidden(**axes(len(shape), range(n_batch, n_batch + n_in), range(n_batch + n_in, rank), rank))


def _einsum(owner: Any, shape: tuple[int, ...]) -> AbstractRole:
    """A kernel of NNX's `Einsum`: the inputs are the axes that it sums over, a batch those in all three operands."""
    operands, outputs = owner.einsum_str.replace(" ", "").split("->")
    inputs, kernel = operands.split(",")
    if "." in kernel:
        return Other(is_known=False)
    fan_in = [i for i, x in enumerate(kernel) if x not in outputs]
    fan_out = [i for i, x in enumerate(kernel) if x in outputs and x not in inputs]
    return Hidden(**axes(len(shape), fan_in, fan_out, len(kernel))) if fan_in and fan_out else Other(is_known=False)


def _conv(owner: Any, shape: tuple[int, ...]) -> AbstractRole:
    """A kernel of a convolution of NNX: window, inputs, outputs; or outputs, inputs with `transpose_kernel`."""
    kernel_size = (owner.kernel_size,) if isinstance(owner.kernel_size, int) else owner.kernel_size
    rank = len(kernel_size) + 2
    out = rank - 2 if getattr(owner, "transpose_kernel", False) else rank - 1
    return Convolution(**axes(len(shape), [i for i in range(rank) if i != out], [out], rank))


_FLAX: dict[str, Callable[[Any, tuple[int, ...]], AbstractRole]] = {
    "Linear": _linear,
    "LinearGeneral": _linear_general,
    "Einsum": _einsum,
    "Conv": _conv,
    "ConvTranspose": _conv,
}
