"""The depth of every parameter: the number of its block, from the paths."""

import collections
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from .._support.checks import listing
from ..tree._paths import Names, matches
from .stacks import Shapes, Stacks, stacks_in

# Words of names that tell where a parameter outside the blocks belongs. The first component of the path with such a
# word counts, without those in which the blocks are. Only whole words: "subnet" is no batch norm.
_HEAD = re.compile(
    r"(lm|mlp)?heads?|unembed(ding|dings)?|logits?|classifiers?|outputs?|readout|decode[rs]?|scores?|pool(er|ing)?"
)
_TABLE = re.compile(r"(?!un).*embed(s|der|ding|dings)?|embs?|wte|wpe")
_INPUT = re.compile(r"patch(es|ify)?|inputs?|stem|pos(ition|itions|itional)?|cls|tokens?")
_BEFORE = re.compile(r"pre|patch(es|ify)?|inputs?|stem")
_NORM = re.compile(r".*norms?|ln|bn|lnf")
_SCANNED = re.compile(r".*(block|layer|stage)s?(_?\d+)?|Scan.*", re.IGNORECASE)
_STACK = re.compile(r"(block|layer|stage)s?$", re.IGNORECASE)
_INDEXED = re.compile(r"(.*?)(\d+)")


def depths_from_paths(leaves: Shapes, where: str | None, axis: int) -> dict[Names, Any]:
    """The depth of every leaf, from a list or a stack of blocks and the names of the other leaves."""
    if flat := names_in_flat(leaves):
        depths = depths_from_paths({inside: leaves[names] for names, inside in flat.items()}, where, axis)
        return {names: depths[inside] for names, inside in flat.items()}
    lists, stacks = _blocks_in(leaves, (axis,))
    named = lists if where is None else lists | _indexed(leaves) | lists
    found = [*lists] if where is None else [name for name in (where, f"{where}.*") if name in named][:1]
    if len(found) == 1:
        return _with_others(leaves, *_ranked(named[found[0]]))
    if where is None and lists:
        first = next(iter(lists))
        raise ValueError(
            f"`layerwise_decay` found several lists of blocks, {listing(lists)}. Name the one that counts, "
            f"`depth={first!r}`, or give all depths: `depth={{{first!r}: 1, ...}}`."
        )
    nodes = list(map(".".join, stacks)) if where is None else [where]
    if len(nodes) != 1:
        raise ValueError(
            "`layerwise_decay` found no list of blocks in the parameters. Name it, "
            '`depth="encoder.layers"` (also for blocks that are stacked in one array), or give all depths: '
            f'`depth={{"embed*": 0, "first.*": 1, ...}}`. The paths are {listing(map(".".join, leaves))}.'
        )
    return _from_stack(leaves, nodes[0], axis)


def depths_in(leaves: Shapes) -> dict[Names, Any]:
    """Return the depths of the leaves of which the paths tell it."""
    if flat := names_in_flat(leaves):
        depths = depths_in({inside: leaves[names] for names, inside in flat.items()})
        return {names: depths[inside] for names, inside in flat.items() if inside in depths}
    lists, stacks = _blocks_in(leaves, (0, 1))
    if len(lists) == 1:
        blocks, n = _ranked(*lists.values())
    elif len(stacks) == 1 and not lists:
        ((axis, inside),) = stacks.values()
        blocks, n = _stacked(inside, leaves[inside[0]][axis])
    else:
        return {}
    return {names: depth for names, depth in _all_depths(leaves, blocks, n).items() if depth is not None}


def _ranked(blocks: Mapping[Names, int]) -> tuple[dict[Names, Any], int]:
    """The depths of leaves in a list of blocks, and the number of blocks."""
    # Blocks may be numbered with gaps or from 1. Depth 0 is that of the input.
    ranks = {i: rank for rank, i in enumerate(sorted(set(blocks.values())), 1)}
    return {names: ranks[i] for names, i in blocks.items()}, len(ranks)


def _stacked(inside: Iterable[Names], n: int) -> tuple[dict[Names, Any], int]:
    """The depths of leaves in which blocks are stacked, and the number of blocks."""
    return dict.fromkeys(inside, tuple(range(1, n + 1))), n


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
    return _with_others(leaves, *_stacked(inside, leaves[inside[0]][axis]))


def lists_of_blocks(paths: Collection[Names]) -> dict[str, dict[Names, int]]:
    """The outermost lists of blocks, `blocks.*` or `layers_*`: the number of the block of each leaf.

    A list of one block counts if it is called so, and takes the place of the numbers inside it; beside a list of
    several blocks it doesn't count otherwise. One that holds all leaves is around the model, like a `Sequential`.
    """
    indexed = _indexed(paths)
    several = {path: blocks for path, blocks in indexed.items() if len(set(blocks.values())) > 1}
    in_several = set[Names]().union(*several.values())
    lists = _outermost(
        {
            path: blocks
            for path, blocks in indexed.items()
            if path in several or (_is_stack(path) and len(blocks) < len(paths))
        }
    )
    return {path: blocks for path, blocks in lists.items() if blocks.keys() & in_several} or lists


def _single_blocks(paths: Iterable[Names]) -> dict[str, dict[Names, int]]:
    """The outermost lists of one block, which their names tell from other numbers in a path."""
    return _outermost({path: blocks for path, blocks in _indexed(paths).items() if _is_stack(path)})


def _is_stack(path: str) -> bool:
    return _STACK.search(path.rstrip("*").rstrip("._")) is not None


def _indexed(paths: Iterable[Names]) -> dict[str, dict[Names, int]]:
    """Whatever has a number in its path, `blocks.*` or `layers_*`: the number of each leaf in it."""
    found: dict[str, dict[Names, int]] = collections.defaultdict(dict)
    for names in paths:
        for i, name in enumerate(names):
            if match := _INDEXED.fullmatch(name):
                found[".".join((*names[:i], f"{match[1]}*"))][names] = int(match[2])
    return dict(found)


def _outermost(lists: Mapping[str, dict[Names, int]]) -> dict[str, dict[Names, int]]:
    found: dict[str, dict[Names, int]] = {}
    for path, blocks in lists.items():  # those outside come before those inside them
        if not any(blocks.keys() & outer.keys() for outer in found.values()):
            found[path] = blocks
    return found


def names_in_flat(paths: Iterable[Names]) -> dict[Names, Names]:
    """The names in the keys of a flat dict, such as `"layers.0.weight"` in a state dict; empty for another tree."""
    paths = list(paths)
    if not all(len(names) == 1 for names in paths) or not any("." in names[0] for names in paths):
        return {}
    return {names: tuple(names[0].split(".")) for names in paths}


def _blocks_in(leaves: Shapes, axes: tuple[int, ...]) -> tuple[dict[str, dict[Names, int]], Stacks]:
    """The lists of blocks, and the stacks, each with its axis and the names of its arrays.

    What is numbered in a stack is no list of blocks; and experts, or the members of an ensemble, are no blocks.
    """
    found = {node: stack for node, stack in stacks_in(leaves, axes).items() if node and _SCANNED.fullmatch(node[-1])}
    outside = leaves.keys() - set().union(*(inside for _, inside in found.values()))
    paths = [names for names in leaves if names in outside]
    return lists_of_blocks(paths) or _single_blocks(paths), found


def _with_others(leaves: Shapes, blocks: Mapping[Names, Any], n: int) -> dict[Names, Any]:
    """The depths of the leaves in the blocks, and by their names those of the others."""
    depths = _all_depths(leaves, blocks, n)
    unknown = [".".join(names) for names, depth in depths.items() if depth is None]
    if unknown:
        raise ValueError(
            f"`layerwise_decay` doesn't know the depth of {listing(unknown)}, outside the {n} blocks. Give the depths, "
            f"0 for what comes before the blocks and {n + 1} for what comes after them, by pattern, "
            f'`depth={{"{unknown[0]}": {n + 1}, "{".".join(next(iter(blocks)))}": 1, ...}}`, or as a function of the '
            f"path."
        )
    return depths


def _all_depths(leaves: Iterable[Names], blocks: Mapping[Names, Any], n: int) -> dict[Names, Any]:
    around = {names[:i] for names in blocks for i in range(1, len(names))}

    def own(names: Names) -> Names:
        return names[next((i for i in range(len(names)) if names[: i + 1] not in around), len(names)) :]

    return {names: blocks[names] if names in blocks else _by_name(own(names), n) for names in leaves}


def _by_name(names: Names, n: int) -> int | None:
    for i, name in enumerate(names):
        words = _words(name)
        if words == ["cls"] and i < len(names) - 1:  # the layers of a classifier, and not a token
            return n + 1
        if _has(words, _NORM):
            return 0 if _has(words, _TABLE, _BEFORE) and not _has(words, _HEAD) else n
        if _has(words, _HEAD) or words[:2] == ["embed", "out"]:
            return n + 1
        if _has(words, _TABLE, _INPUT):
            return 0
    return None


def _has(words: Sequence[str], *patterns: re.Pattern[str]) -> bool:
    return any(pattern.fullmatch(word) for pattern in patterns for word in words)


def _words(name: str) -> list[str]:
    """The words of a name, in lower case: `PatchEmbed_0` has two."""
    return [word.lower() for word in re.findall(r"[A-Z]*[a-z]+|[A-Z]+", name)]
