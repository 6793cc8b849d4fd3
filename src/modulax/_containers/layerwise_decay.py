"""`layerwise_decay`: layer-wise learning rate decay, with the depth of every parameter read from its path."""

from collections.abc import Callable, Mapping
from typing import Any

import jax.tree_util as jtu

from .._protocol.container import check_optimizer
from .._protocol.fields import ScalarOrSchedule
from .._protocol.masks import AbstractLabels
from .._protocol.patterns import by_path
from .._protocol.transform import AbstractTransform
from .._roles.depth import depths_from_paths
from .._support.types import Params
from .._support.wrong_calls import explained
from .._transforms.by_path import ScaleByDepth
from ..tree._math import shapes_of
from ..tree._paths import Names, as_pattern, named_leaves
from .chain import Chain
from .order import refuse_multipliers

Depth = str | Mapping[str, int] | Callable[[str], Any] | None


@explained
def layerwise_decay(
    optimizer: AbstractTransform, params: Params, factor: ScalarOrSchedule, depth: Depth = None, *, axis: int = 0
) -> Chain:
    r"""Multiply the learning rate of each layer by a power of a factor: layer-wise learning rate decay (LLRD).

        optimizer = layerwise_decay(AdamW(1e-3), model, 0.75)
        print(describe(optimizer, model))
        optimizer = optimizer.replace(factor=0.65)

    The deepest parameters have the learning rate $\eta$, those one layer above the input less $\eta\gamma$, and so on
    down to the embedding. The result is `Chain(optimizer, ScaleByDepth(factor, ...))`, in which `factor` is one
    hyperparameter. A decoupled weight decay is multiplied too, as timm and BEiT do.

    By default, the depths follow from the paths: the list of blocks, `blocks.0`, `blocks.1`, ... (in Flax `layers_0`,
    `layers_1`, ...), has the depths $1, \dots, n$. Outside it, embeddings (`embed`, `pos`, `cls`, `patch`, ...) have
    depth 0, a head (`head`, `logits`, `classifier`, ...) $n + 1$, and a norm the depth $n$ of the last block, as in
    timm. A path that says none of this is an error, which shows what to write.

    Blocks that are stacked in one array (scan over layers, `jax.vmap` or `nnx.vmap` over the keys) have a multiplier
    that varies along `axis`.

    Args:
        optimizer: the optimizer.
        params: the parameters, or the whole model; a tree of `jax.ShapeDtypeStruct` is enough.
        factor: factor $\gamma$ from one layer to the next, a number or a schedule.
        depth: where to find the depths, if the paths don't tell: the path of the blocks, `"encoder.layers"`, whether a
            list or a stack; or the depth of every parameter, as a mapping from patterns to integers, `{"embed*": 0,
            "blocks.0.*": 1, ...}`, or a function of the dotted path.
        axis: the axis along which blocks are stacked.

    Raises:
        ValueError: if the depth of a parameter is not known, or if nothing may change the updates of the optimizer,
            because it keeps its own copy of the parameters, such as an average. Write
            `ScheduleFree(layerwise_decay(SGD(0.1), ...), 0.1)` and `ParamEMA(layerwise_decay(AdamW(1e-3), ...))`.
    """
    check_optimizer("layerwise_decay(optimizer, params, factor)", optimizer, params, factor)
    refuse_multipliers("layerwise_decay", optimizer, "layerwise_decay({}, ...)")
    shapes = shapes_of(params)
    leaves = {names: x.shape for names, x in named_leaves(shapes)}
    if not leaves:
        raise ValueError("`layerwise_decay` was given parameters without a floating-point array.")
    if isinstance(depth, Mapping):
        depths: dict[Names, Any] = dict(zip(leaves, by_path(depth).labels(shapes), strict=True))
    elif callable(depth):
        depths = {names: depth(".".join(names)) for names in leaves}
    else:
        depths = depths_from_paths(leaves, depth, axis)
    last = max(max(_integers(names, d)) for names, d in depths.items())
    exponents = jtu.tree_map(lambda d: last - d, list(depths.values()))
    return Chain(optimizer, ScaleByDepth(factor, _rule(dict(zip(leaves, exponents, strict=True))), axis))


def _integers(names: Names, depth: Any) -> tuple[int, ...]:
    """The depths in a leaf, which are several where blocks are stacked."""
    several = depth if isinstance(depth, tuple) else (depth,)
    if not all(type(x) is int for x in several):
        raise ValueError(f"`layerwise_decay(depth=...)` must give an integer for `{'.'.join(names)}`, got {depth!r}.")
    return several


def _rule(exponents: Mapping[Names, Any]) -> AbstractLabels:
    """Patterns for the exponents: one for each outermost part of the tree in which all parameters have the same."""
    patterns: dict[str, Any] = {}
    for names, exponent in exponents.items():
        for i in range(1, len(names) + 1):
            if all(e == exponent for other, e in exponents.items() if other[:i] == names[:i]):
                text = as_pattern(".".join(names[:i]))
                patterns[text if i == len(names) else f"{text}.*"] = exponent
                break
    return by_path(patterns)
