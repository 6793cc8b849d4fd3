"""The roles of arrays from the names in their paths, where no class of a layer is known.

Flax calls the arrays of its layers `kernel`, `embedding`, `scale` and `bias`, and that is all that is left in a dict of
parameters. The axes follow from the number of axes and from the name of the layer: `query`, `key`, `value` and `out`
for attention, `Conv_0` for a convolution; and from the axes of a bias.
"""

import math
import re
from collections.abc import Mapping

from ..tree._paths import Names
from .role import AbstractRole, Attention, Bias, Convolution, Embedding, Gain, Head, Hidden, LoRA, Other, Position, axes
from .stacks import CONVOLUTION, Shape, is_followed

_HEAD = re.compile(r"(.*_)?(head|unembed|unembedding|embed_out|logits|classifier|readout)_?\d*")
_POSITION = re.compile(r"(.*_)?(wpe|pe|pos(ition)?(al|s)?(_?(emb|enc|table).*)?)|pos(ition)?_.*", re.IGNORECASE)
_EMBEDDING = re.compile(r".*embed.*|(.*_)?embs?|wte|(.*_)?tokens?|token_types?|cls", re.IGNORECASE)
_GAIN = re.compile(r"scale|gain|gamma", re.IGNORECASE)
_BIAS = re.compile(r"(.*_)?bias|beta", re.IGNORECASE)
_FUSED = re.compile(r"w?qkv(_proj|_kernel)?|to_qkv|c_attn|in_proj", re.IGNORECASE)
_PROJECTION = re.compile(r"(?:w|to_)?(q|k|v|o|query|key|value|out)(?:_proj)?")
_QUERIES = ("query", "q", "wq", "to_q", "q_proj", "query_proj")


def in_flax_dict(names: Names, shapes: Mapping[Names, Shape | None]) -> AbstractRole | None:
    """Return the role of an array in a dict of parameters of Flax; None if its name is not one of Flax.

    Args:
        names: the names of its path.
        shapes: the shapes of all arrays of the tree, without the axes of stacked blocks; None for absent leaves.
    """
    shape = shapes[names] or ()
    name, layer = names[-1], names[-2] if len(names) > 1 else ""
    match name:
        case "bias":
            return Bias()
        case "scale":
            return Gain()
        case "embedding":
            return table(layer, len(shape))
        case "lora_a" | "lora_b":
            return LoRA(**axes(len(shape), [0], [1], 2))
        case "kernel":
            return _kernel(names, layer, shape, shapes)
    return None


def _kernel(names: Names, layer: str, shape: Shape, shapes: Mapping[Names, Shape | None]) -> AbstractRole:
    """The role of a `kernel`: a projection if there is a layer of queries beside its own."""
    bias = shapes.get((*names[:-1], "bias")) or ()
    n_out = len(bias) if is_followed(shape, bias) else None
    is_attention = any((*names[:-2], query, "kernel") in shapes for query in _QUERIES)
    role = _projection(layer, shape, n_out) if is_attention else None
    return role or _by_layer(layer, shape, n_out)


def _projection(layer: str, shape: Shape, n_out: int | None) -> AbstractRole | None:
    """The role of a `kernel` in attention; None if the name of its layer, or the number of axes, is another one."""
    match = _PROJECTION.fullmatch(layer)
    if match is None or len(shape) <= 2:
        return None
    part = next(x for x in ("query", "key", "value", "out") if x[0] == match[1][0])
    fan_in, fan_out, head = ([0, 1], [2], -3) if part == "out" else ([0], [1, 2], -2)
    fits = n_out in (None, len(fan_out))
    return Attention(part, heads=shape[head], **axes(len(shape), fan_in, fan_out, 3)) if fits else None


def table(layer: str, ndim: int) -> AbstractRole:
    """Return the role of the table of an embedding layer, which is one of positions if the layer is called so."""
    return (Position if _POSITION.fullmatch(layer) else Embedding)(**axes(ndim, [0], [1], 2))


def _by_layer(layer: str, shape: Shape, n_out: int | None) -> AbstractRole:
    """The role of a `kernel`, from the name of its layer, its number of axes, and the number of those of its bias."""
    n = len(shape)
    is_convolution = CONVOLUTION.fullmatch(layer) is not None
    if n_out in (1, None) and (n > 3 or (is_convolution and n > 2)):
        return Convolution(fan_in=tuple(range(n - 1)), fan_out=(n - 1,), is_known=is_convolution)
    if n == 2 or n_out is not None:
        first = n - (n_out or 1)
        return Hidden(fan_in=tuple(range(first)), fan_out=tuple(range(first, n)))
    return unknown(shape)


def in_module(names: Names, shape: Shape) -> AbstractRole | None:
    """Return the role of an array that a user's own module holds, from its name; None if the name doesn't tell."""
    name = names[-1]
    if _BIAS.fullmatch(name):
        return Bias()
    if _GAIN.fullmatch(name):
        return Gain()
    if _POSITION.fullmatch(name):
        return Position()
    if not _EMBEDDING.fullmatch(name):
        return None
    # `unembed` and `embed_out`: an array has no layer that tells which of its axes are the inputs.
    if _HEAD.fullmatch(name):
        return Head(is_known=False).like(unknown(shape), tuple(shape))
    return Embedding(**axes(len(shape), [0], [1], 2))


def unknown(shape: Shape) -> AbstractRole:
    """Return the role of an array of which nothing is known: with two axes, a matrix of shape `(inputs, outputs)`."""
    return Hidden(fan_in=(0,), fan_out=(1,), is_known=False) if len(shape) == 2 else Other(is_known=False)


def by_name(role: AbstractRole, names: Names, shape: tuple[int, ...], block: int | None) -> AbstractRole:
    """Return the role of a parameter, of which the name of the layer may say more, if the layer is linear.

    Args:
        role: the role by the class or the kind of the layer.
        names: the names of its path.
        shape: its shape.
        block: number of the names that lead to the block in which it is, if it is in one of several: nothing inside a
            block is the head of the model.
    """
    if not (role.is_linear and role.is_known):
        return role
    if any(_HEAD.fullmatch(name) for name in names[:-1][:block]):
        return Head().like(role, shape)
    inputs, outputs = (math.prod(shape[i] for i in axes) for axes in (role.fan_in, role.fan_out))
    is_fused = outputs == 3 * inputs and len(names) > 1 and _FUSED.fullmatch(names[-2])
    return Attention("qkv").like(role, shape) if is_fused else role


def looks_like_another(names: Names) -> str | None:
    """Return the name in a path by which what is trained as a matrix looks like something else, if there is one."""
    patterns = (_EMBEDDING, _HEAD, _BIAS, _GAIN, _POSITION)
    return next((name for name in reversed(names) for x in patterns if x.fullmatch(name)), None)
