"""`layerwise_decay`: layer-wise learning rate decay, with the depth of every parameter read from its path."""

import collections
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax.tree_util as jtu

from .._protocol.container import check_part
from .._protocol.fields import ScalarOrSchedule
from .._protocol.masks import AbstractLabels
from .._protocol.patterns import by_path
from .._protocol.transform import AbstractTransform
from .._support.checks import listing
from .._support.types import Params
from .._transforms.by_path import ScaleByDepth
from ..tree._math import shapes_of
from ..tree._paths import Names, matches, named_leaves
from .chain import Chain

# Components of paths that tell where a parameter outside the blocks belongs; the first component that matches counts.
_HEAD = re.compile(r"head|unembed|embed_out|logits|classifier|output|readout|decode|score|pool")
_INPUT = re.compile(r"embed|patch|pos|cls|token|stem|wte|wpe|input|norm_pre|ln_pre|pre_norm|pre_ln")
_NORM = re.compile(r"norm|ln|bn")
_STACK = re.compile(r"(block|layer|stage)s?$", re.IGNORECASE)
_INDEXED = re.compile(r"(.*?)(\d+)")

Depth = str | Mapping[str, int] | Callable[[str], Any] | None


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
        depth: where to find the depths, if the paths don't tell: the path of the blocks, `"encoder.layers"`, be it a
            list or a stack; or the depth of every parameter, as a mapping from patterns to integers,
            `{"embed*": 0, "blocks.0.*": 1, ...}`, or a function of the dotted path.
        axis: the axis along which blocks are stacked.

    Raises:
        ValueError: if the depth of a parameter is not known.
    """
    check_part("`layerwise_decay`: the first argument", optimizer)
    shapes = shapes_of(params)
    leaves = {names: x.shape for names, x in named_leaves(shapes)}
    if not leaves:
        raise ValueError("`layerwise_decay` was given parameters without a floating-point array.")
    if isinstance(depth, Mapping):
        depths: dict[Names, Any] = dict(zip(leaves, by_path(depth).labels(shapes), strict=True))
    elif callable(depth):
        depths = {names: depth(".".join(names)) for names in leaves}
    else:
        depths = _from_paths(leaves, depth, axis)
    last = max(max(_integers(names, d)) for names, d in depths.items())
    exponents = jtu.tree_map(lambda d: last - d, list(depths.values()))
    return Chain(optimizer, ScaleByDepth(factor, _rule(dict(zip(leaves, exponents, strict=True))), axis))


def _integers(names: Names, depth: Any) -> tuple[int, ...]:
    """The depths in a leaf, which are several where blocks are stacked."""
    several = depth if isinstance(depth, tuple) else (depth,)
    if not all(type(x) is int for x in several):
        raise ValueError(f"`layerwise_decay(depth=...)` must give an integer for `{'.'.join(names)}`, got {depth!r}.")
    return several


Shapes = Mapping[Names, tuple[int, ...]]


def _from_paths(leaves: Shapes, where: str | None, axis: int) -> dict[Names, Any]:
    """The depth of every leaf, from a list or a stack of blocks and the names of the other leaves."""
    lists = _lists(leaves)
    if where is not None:
        blocks = lists.get(where, lists.get(f"{where}.*"))
    else:
        blocks = next(iter(lists.values())) if len(lists) == 1 else None
    if blocks is not None:
        # Blocks may be numbered with gaps or from 1. Depth 0 is that of the input.
        ranks = {i: rank for rank, i in enumerate(sorted(set(blocks.values())), 1)}
        return _with_others(leaves, {names: ranks[i] for names, i in blocks.items()}, len(ranks))
    if where is None and lists:
        first = next(iter(lists))
        raise ValueError(
            f"`layerwise_decay` found several lists of blocks, {listing(lists)}. Name the one that counts, "
            f"`depth={first!r}`, or give all depths: `depth={{{first!r}: 1, ...}}`."
        )
    nodes = _stacks(leaves, axis) if where is None else [where]
    if len(nodes) != 1:
        raise ValueError(
            "`layerwise_decay` found no list of blocks in the parameters. Name it, "
            '`depth="encoder.layers"` (also for blocks that are stacked in one array), or give all depths: '
            f'`depth={{"embed*": 0, "first.*": 1, ...}}`. The paths are {listing(map(".".join, leaves))}.'
        )
    return _from_stack(leaves, nodes[0], axis)


def _from_stack(leaves: Shapes, node: str, axis: int) -> dict[Names, Any]:
    """The depth of every leaf, from blocks that are stacked along an axis of the arrays in a node."""
    paths = {names: ".".join(names) for names in leaves}
    inside = [names for names, path in paths.items() if matches(path, node) or path.startswith(f"{node}.")]
    sizes = {leaves[names][axis] if len(leaves[names]) > axis else None for names in inside}
    if len(sizes) != 1 or None in sizes:
        raise ValueError(
            f"`layerwise_decay(depth={node!r})` must be the path of a list of blocks, or of blocks that are stacked "
            f"along axis {axis}: then all arrays in it have the same size there, and they have {listing(sizes)}. The "
            f"paths are {listing(paths.values())}."
        )
    n = leaves[inside[0]][axis]
    return _with_others(leaves, dict.fromkeys(inside, tuple(range(1, n + 1))), n)


def _lists(paths: Iterable[Names]) -> dict[str, dict[Names, int]]:
    """The outermost lists of at least two blocks, `blocks.*` or `layers_*`: the number of the block of each leaf."""
    candidates: dict[str, dict[Names, int]] = collections.defaultdict(dict)
    for names in paths:
        for i, name in enumerate(names):
            if match := _INDEXED.fullmatch(name):
                candidates[".".join((*names[:i], f"{match[1]}*"))][names] = int(match[2])
    lists: dict[str, dict[Names, int]] = {}
    for path, blocks in candidates.items():  # those outside come before those inside them
        if len(set(blocks.values())) > 1 and not any(blocks.keys() & outer.keys() for outer in lists.values()):
            lists[path] = blocks
    return lists


def _stacks(leaves: Shapes, axis: int) -> list[str]:
    """The outermost nodes that are named as blocks and hold arrays of one size along an axis."""
    candidates: dict[str, list[tuple[int, ...]]] = collections.defaultdict(list)
    for names, shape in leaves.items():
        i = next((i for i, name in enumerate(names[:-1]) if _STACK.search(name)), None)
        if i is not None:
            candidates[".".join(names[: i + 1])].append(shape)
    return [
        node
        for node, shapes in candidates.items()
        if all(len(shape) > 1 for shape in shapes) and len({shape[axis] for shape in shapes}) == 1
    ]


def _with_others(leaves: Shapes, blocks: Mapping[Names, Any], n: int) -> dict[Names, Any]:
    """The depths of the leaves in the blocks, and by their names those of the others."""
    depths = {names: blocks[names] if names in blocks else _by_name(names, n) for names in leaves}
    unknown = [".".join(names) for names, depth in depths.items() if depth is None]
    if unknown:
        raise ValueError(
            f"`layerwise_decay` doesn't know the depth of {listing(unknown)}, outside the {n} blocks. Give the depths, "
            f"0 for what comes before the blocks and {n + 1} for what comes after them, by pattern, "
            f'`depth={{"{unknown[0]}": {n + 1}, "{".".join(next(iter(blocks)))}": 1, ...}}`, or as a function of the '
            f"path."
        )
    return depths


def _by_name(names: Names, n: int) -> int | None:
    for name in map(str.lower, names):
        for pattern, depth in ((_HEAD, n + 1), (_INPUT, 0), (_NORM, n)):
            if pattern.search(name):
                return depth
    return None


def _rule(exponents: Mapping[Names, Any]) -> AbstractLabels:
    """Patterns for the exponents: one for each outermost part of the tree in which all parameters have the same."""
    patterns: dict[str, Any] = {}
    for names, exponent in exponents.items():
        for i in range(1, len(names) + 1):
            if all(e == exponent for other, e in exponents.items() if other[:i] == names[:i]):
                # `[` begins a set of characters in a shell-style pattern.
                text = ".".join(names[:i]).replace("[", "[[]")
                patterns[text if i == len(names) else f"{text}.*"] = exponent
                break
    return by_path(patterns)
