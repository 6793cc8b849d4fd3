"""A dry run: what an optimizer will do to each parameter, and what it will cost."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.tree_util as jtu
from jaxtyping import PyTree

from .._protocol.hyperparameters import format_value
from .._protocol.leafwise import AbstractLeafwise
from .._protocol.masks import select
from .._protocol.optimizer import AbstractOptimizer
from .._protocol.schedule import is_schedule
from .._protocol.transform import AbstractTransform
from .._support.types import Params
from ..tree._math import trainable
from ..tree._paths import leaves_with_paths
from ..tree._state import owners


@dataclasses.dataclass
class LeafDescription:
    """What happens to one parameter.

    Args:
        path: its dotted path.
        shape: its dtype and shape, such as `float32[3,4]`.
        group: its label in a `Partition`, or `frozen`.
        learning_rate: the learning rate, or the name of its schedule; empty where there is none.
        weight_decay: likewise the weight decay.
        state_bytes: the size of what the state holds for it.
    """

    path: str
    shape: str
    group: str = ""
    learning_rate: str = ""
    weight_decay: str = ""
    state_bytes: int = 0


@dataclasses.dataclass
class Description:
    """What an optimizer does to each parameter; printed, it is a table.

    Args:
        leaves: a row for each parameter.
        shared_bytes: the size of the part of the state that belongs to no single parameter, such as counters.
        total_bytes: the size of the whole state.
        parameters: how many numbers the parameters are.
    """

    leaves: list[LeafDescription]
    shared_bytes: int
    total_bytes: int
    parameters: int

    def __str__(self) -> str:
        head = ("path", "shape", "group", "learning rate", "weight decay", "state bytes")
        rows = [head] + [
            (x.path, x.shape, x.group, x.learning_rate, x.weight_decay, f"{x.state_bytes:,}") for x in self.leaves
        ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        kept = [i for i, column in enumerate(zip(*rows[1:], strict=True)) if any(column)] if self.leaves else []
        lines = ["  ".join(f"{row[i]:{'>' if i == 5 else '<'}{widths[i]}}" for i in kept).rstrip() for row in rows]
        if self.leaves:
            lines.insert(1, "-" * max(map(len, lines)))
        total = f"{self.parameters:,} parameters, {self.total_bytes:,} bytes of state"
        return "\n".join([*lines, "", f"{total} ({self.shared_bytes:,} of them shared)"]).lstrip("\n")

    __repr__ = __str__


def describe(optimizer: AbstractTransform, params: Params) -> Description:
    """What an optimizer would do to each parameter, without doing it.

        print(describe(AdamW(1e-3, mask=by_path({"*.bias": False, "*": True})), model))

    Nothing is computed or allocated. The bytes are exact: their total is the size of the arrays of the state.

    Args:
        optimizer: any transform.
        params: the parameters, or a whole model; shapes (`jax.ShapeDtypeStruct`) are enough.
    """
    params = jtu.tree_map(_shape_of, params)
    found = leaves_with_paths(params)
    rows = [LeafDescription(path, f"{x.dtype}[{','.join(map(str, x.shape))}]") for path, x in found]
    _walk(optimizer, params, rows)
    state = jax.eval_shape(optimizer.init, params)
    shared = 0
    for i, x in zip(owners(state, params), jtu.tree_leaves(state), strict=True):
        size = math.prod(x.shape) * x.dtype.itemsize
        if i is None:
            shared += size
        else:
            rows[i].state_bytes += size
    total = shared + sum(row.state_bytes for row in rows)
    return Description(rows, shared, total, sum(math.prod(x.shape) for _, x in found))


def _shape_of(x: Any) -> jax.ShapeDtypeStruct | None:
    is_shape = isinstance(x, jax.ShapeDtypeStruct) and jax.numpy.issubdtype(x.dtype, jax.numpy.inexact)
    return jax.ShapeDtypeStruct(x.shape, x.dtype) if is_shape or trainable(x) is not None else None


def _walk(transform: AbstractTransform, tree: PyTree, rows: Sequence[LeafDescription]) -> None:
    """Write what the transform does into the rows of the tree's leaves: first its parts, then the transform itself."""
    is_whole = True
    for part in transform.each_part():
        is_whole = False
        if part.auxiliary:
            continue
        seen = transform.seen_by(part, tree)
        if seen is None:
            _walk(part.transform, tree, rows)
        else:
            shown = _those(rows, seen)
            if part.key is not None:
                for row in shown:
                    row.group = f"{row.group}/{part.key}" if row.group else str(part.key)
            _walk(part.transform, select(tree, seen), shown)
    _write_numbers(transform, _those(rows, _where(transform, tree)), is_whole)
    frozen = transform.freezes(tree)
    for row in [] if frozen is None else _those(rows, frozen):
        row.group, row.learning_rate, row.weight_decay = "frozen", "", ""


def _those(rows: Sequence[LeafDescription], chosen: Sequence[bool] | None) -> list[LeafDescription]:
    return list(rows) if chosen is None else [row for row, c in zip(rows, chosen, strict=True) if c]


def _where(transform: AbstractTransform, tree: PyTree) -> Sequence[bool] | None:
    return transform.where(tree) if isinstance(transform, AbstractLeafwise) else None


def _write_numbers(transform: AbstractTransform, rows: Sequence[LeafDescription], is_whole: bool) -> None:
    """Write a learning rate and a weight decay that are the transform's own, and not handed on to a part.

    An optimizer hands them on as plain numbers. Where one of its parts has written such a number, the schedule that it
    comes from is of more interest.
    """
    for name in ("learning_rate", "weight_decay"):
        value = getattr(transform, name, None)
        if is_whole and value is not None:
            _write(rows, name, type(value).__name__ if is_schedule(value) else format_value(value))
        elif isinstance(transform, AbstractOptimizer) and is_schedule(value):
            _write([row for row in rows if getattr(row, name)], name, type(value).__name__)


def _write(rows: Sequence[LeafDescription], name: str, text: str) -> None:
    for row in rows:
        setattr(row, name, text)
