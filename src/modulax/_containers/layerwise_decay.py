"""`layerwise_decay`: layer-wise learning rate decay, with the depth of every parameter read from its path."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

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

# What a component of a path says about a parameter outside the blocks; the first component that says something counts.
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
    leaves = [(names, x.shape) for names, x in named_leaves(shapes_of(params))]
    if not leaves:
        raise ValueError("`layerwise_decay` was given parameters without a floating-point array.")
    if isinstance(depth, Mapping):
        depths: list[Any] = by_path(depth).labels(shapes_of(params))
    elif callable(depth):
        depths = [depth(".".join(names)) for names, _ in leaves]
    else:
        depths = _from_paths(leaves, depth, axis)
    for (names, _), d in zip(leaves, depths, strict=True):
        if not all(type(x) is int for x in (d if isinstance(d, tuple) else (d,))):
            raise ValueError(f"`layerwise_decay(depth=...)` must give an integer for `{'.'.join(names)}`, got {d!r}.")
    last = max(_highest(d) for d in depths)
    exponents = [tuple(last - x for x in d) if isinstance(d, tuple) else last - d for d in depths]
    return Chain(optimizer, ScaleByDepth(factor, _rule([names for names, _ in leaves], exponents), axis))


def _highest(depth: Any) -> int:
    return max(depth) if isinstance(depth, tuple) else depth


def _from_paths(leaves: Sequence[tuple[Names, tuple[int, ...]]], where: str | None, axis: int) -> list[Any]:
    """The depth of every leaf, from a list or a stack of blocks and the names of the other leaves."""
    lists = _lists([names for names, _ in leaves])
    shown = {_shown(key): key for key in lists}
    if where is not None:
        key = shown.get(where, shown.get(f"{where}.*"))
    else:
        key = next(iter(shown.values())) if len(shown) == 1 else None
    if key is not None:
        ranks = {i: rank for rank, i in enumerate(sorted(lists[key]), 1)}
        indices = [_index(names, key) for names, _ in leaves]
        return _others(leaves, [None if i is None else ranks[i] for i in indices], len(ranks))
    if where is None and shown:
        raise ValueError(
            f"`layerwise_decay` found several lists of blocks, {listing(shown)}. Name the one that counts, "
            f"`depth={next(iter(shown))!r}`, or give all depths: `depth={{{next(iter(shown))!r}: 1, ...}}`."
        )
    nodes = _stacks(leaves, axis) if where is None else [where]
    if len(nodes) != 1:
        raise ValueError(
            "`layerwise_decay` found no list of blocks in the parameters. Name it, "
            '`depth="encoder.layers"` (also for blocks that are stacked in one array), or give all depths: '
            f'`depth={{"embed*": 0, "first.*": 1, ...}}`. The paths are {_paths(leaves)}.'
        )
    return _from_stack(leaves, nodes[0], axis)


def _from_stack(leaves: Sequence[tuple[Names, tuple[int, ...]]], node: str, axis: int) -> list[Any]:
    """The depth of every leaf, from blocks that are stacked along an axis of the arrays in a node."""
    paths = [".".join(names) for names, _ in leaves]
    inside = [matches(path, node) or path.startswith(f"{node}.") for path in paths]
    sizes = {shape[axis] if len(shape) > axis else None for (_, shape), i in zip(leaves, inside, strict=True) if i}
    if len(sizes) != 1 or None in sizes:
        raise ValueError(
            f"`layerwise_decay(depth={node!r})` must be the path of a list of blocks, or of blocks that are stacked "
            f"along axis {axis}: then all arrays in it have the same size there, and they have {listing(sizes)}. The "
            f"paths are {_paths(leaves)}."
        )
    (n,) = sizes
    assert n is not None
    return _others(leaves, [tuple(range(1, n + 1)) if i else None for i in inside], n)


def _paths(leaves: Iterable[tuple[Names, Any]]) -> str:
    return listing(".".join(names) for names, _ in leaves)


_Key = tuple[Names, str]  # the names before a numbered component, and its name without the number


def _index(names: Names, key: _Key) -> int | None:
    """The number of the block that a path is in."""
    before, stem = key
    if len(names) <= len(before) or names[: len(before)] != before:
        return None
    found = _INDEXED.fullmatch(names[len(before)])
    return int(found[2]) if found and found[1] == stem else None


def _lists(paths: Sequence[Names]) -> dict[_Key, set[int]]:
    """The outermost lists of at least two blocks, `blocks.0` or `layers_0`, each with the numbers of its blocks."""
    found: dict[_Key, set[int]] = {}
    keys: list[list[_Key]] = []
    for names in paths:
        numbered = [(i, _INDEXED.fullmatch(name)) for i, name in enumerate(names)]
        keys.append([(names[:i], match[1]) for i, match in numbered if match])
        for i, match in numbered:
            if match:
                found.setdefault((names[:i], match[1]), set()).add(int(match[2]))
    outermost = (next((key for key in each if len(found[key]) > 1), None) for each in keys)
    return {key: found[key] for key in dict.fromkeys(outermost) if key is not None}


def _shown(key: _Key) -> str:
    before, stem = key
    return ".".join((*before, f"{stem}*"))


def _stacks(leaves: Sequence[tuple[Names, tuple[int, ...]]], axis: int) -> list[str]:
    """The outermost nodes that are named as blocks and hold arrays of one size along an axis."""
    found: dict[str, list[tuple[int, ...]]] = {}
    for names, shape in leaves:
        i = next((i for i, name in enumerate(names[:-1]) if _STACK.search(name)), None)
        if i is not None:
            found.setdefault(".".join(names[: i + 1]), []).append(shape)
    return [
        node
        for node, shapes in found.items()
        if all(len(shape) > 1 for shape in shapes) and len({shape[axis] for shape in shapes}) == 1
    ]


def _others(leaves: Sequence[tuple[Names, Any]], found: Sequence[Any], n: int) -> list[Any]:
    """Fill in the depths of the leaves outside the blocks, by their names."""
    out = [_by_name(names, n) if d is None else d for (names, _), d in zip(leaves, found, strict=True)]
    unknown = [".".join(names) for (names, _), d in zip(leaves, out, strict=True) if d is None]
    if unknown:
        inside = next(".".join(names) for (names, _), d in zip(leaves, found, strict=True) if d is not None)
        raise ValueError(
            f"`layerwise_decay` doesn't know the depth of {listing(unknown)}, outside the {n} blocks. Give the depths, "
            f"0 for what comes before the blocks and {n + 1} for what comes after them, by pattern, "
            f'`depth={{"{unknown[0]}": {n + 1}, "{inside}": 1, ...}}`, or as a function of the path.'
        )
    return out


def _by_name(names: Names, n: int) -> int | None:
    for name in map(str.lower, names):
        for pattern, depth in ((_HEAD, n + 1), (_INPUT, 0), (_NORM, n)):
            if pattern.search(name):
                return depth
    return None


def _rule(paths: Sequence[Names], exponents: Sequence[Any]) -> AbstractLabels:
    """Patterns for the exponents: one for each outermost part of the tree in which all parameters have the same."""
    patterns: dict[str, Any] = {}
    for names, exponent in zip(paths, exponents, strict=True):
        for i in range(1, len(names) + 1):
            inside = {e for other, e in zip(paths, exponents, strict=True) if other[:i] == names[:i]}
            if inside == {exponent}:
                text = ".".join(names[:i]).replace("[", "[[]")
                patterns[text if i == len(names) else f"{text}.*"] = exponent
                break
    return by_path(patterns)
