"""Blocks or experts that are stacked in the arrays of a node, as after `jax.lax.scan`, `linen.scan` or `vmap`."""

import collections
import re
from collections.abc import Mapping

from ..tree._paths import Names

Shape = tuple[int, ...]
Shapes = Mapping[Names, Shape]
Stacks = dict[Names, tuple[int, list[Names]]]

CONVOLUTION = re.compile(r"(.*_)?conv.*", re.IGNORECASE)
_STACK = re.compile(r"(block|layer|stage|expert)s?$", re.IGNORECASE)
_MATRIX_OF = {"bias": "kernel", "b": "w"}  # of Flax, and of Haiku and plain JAX


def stacks_in(leaves: Shapes, axes: Shape = (0, 1)) -> Stacks:
    """Return the outermost nodes that are stacks, each with the axis that counts blocks, and the names of its arrays.

    All arrays in a stack have one length along this axis; and that there is one is told by the name of the node, such
    as `layers`, or by vectors with two axes: a `scale`, or a bias beside its kernel.

    Args:
        leaves: the shapes of all arrays.
        axes: the axes that may count blocks; the second one does only where vectors tell.
    """
    if all(len(shape) < 3 for shape in leaves.values()):
        return {}
    nodes: dict[Names, dict[Names, Shape]] = collections.defaultdict(dict)
    for names, shape in leaves.items():
        for n in range(len(names)):
            nodes[names[:n]][names] = shape
    found: Stacks = {}
    for node, inside in nodes.items():  # the outer ones come first
        axis = _axis(node, inside, axes)
        if axis is not None and found.keys().isdisjoint(node[:n] for n in range(len(node))):
            found[node] = axis, list(inside)
    return found


def stack_axes(leaves: Shapes) -> dict[Names, Shape]:
    """Return the axes of the arrays in stacks that count blocks or experts, also of stacks in stacks."""
    found: dict[Names, Shape] = {}
    for node, (axis, inside) in stacks_in(leaves).items():
        further = stack_axes({names[len(node) :]: without(leaves[names], (axis,)) for names in inside})
        for names in inside:
            found[names] = (axis, *(i + (i >= axis) for i in further.get(names[len(node) :], ())))
    return found


def without(shape: Shape, axes: Shape) -> Shape:
    """Return a shape without some of its axes."""
    return tuple(n for i, n in enumerate(shape) if i not in axes)


def is_followed(shape: Shape, bias: Shape) -> bool:
    """Whether the last axes of a kernel of Flax are those of its bias."""
    return 0 < len(bias) < len(shape) and shape[-len(bias) :] == bias


def _axis(node: Names, inside: Shapes, axes: Shape) -> int | None:
    """The axis along which the arrays in a node are stacked."""
    # A matrix has three axes there, and so has every kernel.
    most = max(map(len, inside.values()), default=0)
    if most < 3 or any(len(x) < 2 + (names[-1] == "kernel") for names, x in inside.items()):
        return None
    even = [axis for axis in axes if len({shape[axis : axis + 1] for shape in inside.values()}) == 1]
    return next((i for i in even if _is_shown(inside, i) or (i == axes[0] and _is_named(node, inside))), None)


def _is_named(node: Names, inside: Shapes) -> bool:
    # Numbers inside are those of a list, and kernels of convolutions have further axes without a stack.
    return bool(node and _STACK.search(node[-1])) and not any(
        names[len(node)].isdigit() or any(map(CONVOLUTION.fullmatch, names)) for names in inside
    )


def _is_shown(inside: Shapes, axis: int) -> bool:
    """Whether a vector has an axis more than in one layer."""
    for names, shape in inside.items():
        kernel = inside.get((*names[:-1], _MATRIX_OF.get(names[-1], "")), ())
        is_stacked = is_followed(without(kernel, (axis,)), without(shape, (axis,))) and not is_followed(kernel, shape)
        if names[-1] == "scale" or is_stacked:
            return True
    return False
