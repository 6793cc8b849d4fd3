"""`describe`: a table of how an optimizer treats each parameter, and of the size of its state.

`describe` makes one row per parameter from the shapes alone. `_walk` follows the parts of the transform
(`parts_over_run`), restricts the rows to the leaves that a part `receives`, and appends the key of the part to their
group. A transform without parts writes its weight decay into the rows, and any transform marks the leaves that it
freezes. The learning rate is that of `rates_of`, with the factors that follow, such as `Scale`, `ScaleByPath` or
`ReduceOnPlateau`. Finally, `owners` assigns every array of the state to its parameter, or to the shared bytes.
"""

import collections
import contextlib
import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer
from jaxtyping import PyTree

from .. import Part
from .._plugin.arrays import State
from .._plugin.labels import (
    AbstractLabels,
    mask_of,
    model_of,
    roles_read_by,
    select,
    table_of,
    taken_as_hidden,
    with_roles,
)
from .._plugin.messages import explained, format_value, html_table, table
from .._plugin.states import init_even_if_empty, owners, stacked_states
from .._plugin.transforms import (
    AbstractHyperparameters,
    batched_number,
    check_optimizer,
    is_schedule,
    known_values,
)
from .._plugin.trees import leaves_with_paths, shapes_of
from ..authoring import AbstractLeafwise, AbstractTransform, Params
from ..schedules import AbstractSchedule
from ..tree import unstack
from .likely_mistakes import lost_steps, warnings_in
from .order import clips_of_steps
from .rates import Rate, parts_over_run, rates_of

_RIGHT = ("state bytes",)


@dataclasses.dataclass
class LeafDescription:
    """How an optimizer treats one parameter: a row of `Description`.

    Args:
        path: dotted path of the parameter.
        shape: its dtype and shape, such as `float32[3,4]`.
        role: its role, as in `roles`; empty if the optimizer doesn't ask, or if it could not be classified.
        group: its label in a `Partition`, or `frozen`.
        learning_rate: learning rate, times the factors that follow in a chain, such as `Scale`; of a schedule the
            values where it begins, turns and ends, `0 → 0.001 → 0`, or its name; empty if there is none.
        weight_decay: weight decay, or the values of the schedule; empty if there is none.
        state_bytes: size in bytes of its optimizer state.
    """

    path: str
    shape: str
    role: str = ""
    group: str = ""
    learning_rate: str = ""
    weight_decay: str = ""
    state_bytes: int = 0


@dataclasses.dataclass
class Description:
    """How an optimizer treats each parameter, printed as a table.

    Args:
        leaves: one row for each parameter.
        shared_bytes: size in bytes of the state that belongs to no single parameter, such as counters.
        total_bytes: size in bytes of the whole state.
        parameters: total number of scalar parameters.
        notes: what a reader of the table should know, such as a mask that excludes every parameter.
    """

    leaves: list[LeafDescription]
    shared_bytes: int
    total_bytes: int
    parameters: int
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = table(*self._cells(), right=_RIGHT)
        return "\n".join([*lines, *[""][: len(lines)], *self._summary()])

    def _repr_html_(self) -> str:
        return html_table(*self._cells(), right=_RIGHT, notes=self._summary())

    def _cells(self) -> tuple[list[str], list[list[str]]]:
        """The header and the rows of the table."""
        names = [field.name for field in dataclasses.fields(LeafDescription)]
        rows = [[f"{getattr(x, n):{',' if n == 'state_bytes' else ''}}" for n in names] for x in self.leaves]
        return [name.replace("_", " ") for name in names], rows

    def _summary(self) -> list[str]:
        total = f"{self.parameters:,} parameters, {self.total_bytes:,} bytes of state"
        return [f"{total} ({self.shared_bytes:,} of them shared)", *(f"note: {note}" for note in self.notes)]

    __repr__ = __str__


@explained
def describe(optimizer: AbstractTransform, params: Params, state: State | None = None) -> Description:
    """Show learning rate, weight decay, parameter group and state size for each parameter, without running a step.

        print(describe(AdamW(1e-3, mask=by_path({"*.bias": False, "*": True})), model))
        print(describe(optimizer, model, state))  # the values at the next step

    The learning rate is the one in force: it includes multipliers that follow the optimizer in a chain, such as
    `ScaleByPath` or `Masked(Scale(0.1), mask)`. No state is allocated. The sizes are exact: their total is the size of
    all arrays in the state.

    Args:
        optimizer: any transform.
        params: the parameters, or a whole model; a tree of `jax.ShapeDtypeStruct` is enough.
        state: the state of the optimizer. If given, schedules are replaced by their values at the next step, and the
            factor of `ReduceOnPlateau` by its current value; otherwise a note gives the range of each schedule.

    Raises:
        ValueError: if `optimizer` is a batch of transforms.
    """
    check_optimizer("describe(optimizer, params)", optimizer, params)
    if path := batched_number(optimizer):
        raise ValueError(
            f"`describe` was given a batch of transforms: `{path}` of `{type(optimizer).__name__}` is not a scalar. "
            f"Describe one of them: `describe(jax.tree.map(lambda x: x[0], batch), params)`."
        )
    seen = model_of(params)  # of an NNX model, the variables, which no longer tell their roles
    optimizer = with_roles(optimizer, lambda given: table_of(seen, given))
    params = shapes_of(seen.params)
    leaves = leaves_with_paths(params)
    rows = [LeafDescription(path, f"{x.dtype}[{','.join(map(str, x.shape))}]") for path, x in leaves]
    notes: list[str] = []
    now = optimizer if state is None else optimizer.at(state)
    _walk(Part("", None, now, state), params, rows, notes)
    for row, rate in zip(rows, rates_of(now, params, state), strict=True):
        row.learning_rate = "" if rate is None else _rate_text(rate)
    notes += _name_roles(optimizer, params, rows)
    if any(row.weight_decay for row in rows):  # as in a group of embeddings
        notes = [note for note in notes if not note.startswith(NO_LEAF_DECAYS)]
    notes += [*warnings_in(optimizer, params), *lost_steps(optimizer, params)]
    state = jax.eval_shape(functools.partial(init_even_if_empty, optimizer), params)
    notes += _stacked(state, {row.path: row.shape for row in rows})
    sizes = _bytes_of(unstack(state), params)
    for i, row in enumerate(rows):
        row.state_bytes = sizes[i]
    return Description(rows, sizes[None], sizes.total(), sum(x.size for _, x in leaves), tuple(notes))


def _name_roles(optimizer: AbstractTransform, tree: PyTree, rows: Sequence[LeafDescription]) -> Iterator[str]:
    """Write the roles that the optimizer reads into the rows; yield a note if no layer is known to be the head."""
    for row, role in zip(rows, roles_read_by(optimizer, tree), strict=False):
        row.role = role.kind if role.is_known else ""
    if (last := taken_as_hidden(optimizer, tree)) is not None:
        i, argument = last
        given = f'{{"{rows[i].path}": Head()}}'
        # A mapping is for `roles` only.
        value = given if argument == "roles" else f"roles(model, {given})"
        yield f"{NO_HEAD}: if `{rows[i].path}` is the last one, write `{argument}={value}`."


def _bytes_of(state: Any, tree: PyTree) -> "collections.Counter[int | None]":
    """The bytes of a state that belong to each parameter; under None, of what belongs to none."""
    sizes = collections.Counter[int | None]()
    for i, x in zip(owners(state, tree), jtu.tree_leaves(state), strict=True):
        sizes[i] += x.size * x.dtype.itemsize
    return sizes


def _walk(outer: Part, tree: PyTree, rows: Sequence[LeafDescription], notes: list[str]) -> None:
    """Fill the rows of the leaves of this tree: first from the parts of the transform, then from its own fields."""
    transform, state = outer.transform, outer.state
    parts = parts_over_run(transform, state)
    for part in parts:
        # Inside `Flatten`, patterns are for the paths of other arrays.
        with contextlib.suppress(*() if transform._gives_gradients else (ValueError,)):
            if not part.auxiliary:
                _walk_part(part, tree, rows, notes)
    own_rows = _own_rows(transform, tree, rows)
    decay = getattr(transform, "weight_decay", None)
    if decay is not None and not parts:
        _write_decay(_text(decay), own_rows)
    effect = transform._effect(tree)
    if rows:
        found = (*_notes(transform, own_rows), *effect.suspects, *clips_of_steps(transform), *effect.notes)
        notes += [note for note in found if note not in notes]
    for row in _chosen(rows, effect.frozen or ()):
        row.group, row.weight_decay = FROZEN, ""


def _own_rows(transform: AbstractTransform, tree: PyTree, rows: Sequence[LeafDescription]) -> Sequence[LeafDescription]:
    """The rows of the leaves that a rule applies to, or that its mask selects: a direction may decay some of them."""
    if not isinstance(transform, AbstractLeafwise):
        return rows
    labels = getattr(transform, "mask", None)
    is_mask = isinstance(labels, AbstractLabels)
    return _chosen(rows, mask_of(transform, labels, tree) if is_mask else transform._reached(tree)[0])


def _walk_part(part: Part, tree: PyTree, rows: Sequence[LeafDescription], notes: list[str]) -> None:
    """Fill the rows of the leaves that a part receives."""
    mask = part._received(tree)
    inner_rows = _chosen(rows, mask)
    for row in inner_rows if part.key is not None and part.receives is not None else ():
        row.group = f"{row.group}/{part.key}" if row.group else str(part.key)
    _walk(part, select(tree, mask), inner_rows, notes)


def _write_decay(text: str, rows: Sequence[LeafDescription]) -> None:
    """Write a weight decay into the rows where it is in force."""
    for row in rows:
        if text not in _ZEROS:
            row.weight_decay = text
            row.group = "" if row.group == FROZEN else row.group  # a decay after a `Freeze` moves what it froze
        elif not row.weight_decay:  # a decay of 0, as in the trust ratio of LAMB, leaves that of other parts in force
            row.weight_decay = text


def _stacked(state: Any, shapes: Mapping[str, str]) -> Iterator[str]:
    """A note for each dtype and shape of which parameters are updated in stacks."""
    groups: dict[str, list[int]] = {}
    for stacked in stacked_states(state):
        for group in stacked.together():
            groups.setdefault(shapes[".".join(group[0])], []).append(len(group))
    for kind, sizes in groups.items():
        stacks = f"{len(sizes)} stacks" if len(sizes) > 1 else "one stack"
        yield f"`Stacked` updates {sum(sizes)} parameters {kind} in {stacks}."


def _chosen(rows: Sequence[LeafDescription], where: Sequence[bool]) -> list[LeafDescription]:
    return list(itertools.compress(rows, where))


def _notes(transform: AbstractTransform, own_rows: Sequence[LeafDescription]) -> Iterator[str]:
    """A note for a decay that reaches no leaf, and one for each schedule in the fields of a transform."""
    decay = getattr(transform, "weight_decay", None)
    if not own_rows and decay is not None and _text(decay) not in _ZEROS:
        yield f"{NO_LEAF_DECAYS}: the mask of `{type(transform).__name__}` excludes every parameter."
    groups = {row.group for row in own_rows}
    of_group = f" of `{groups.pop()}`" if len(groups) == 1 and groups != {""} else ""
    for label, x in _numbers_of(transform):
        if (course := _course(x)) and not hasattr(x, "fields_of_optimizer"):
            yield f"`{label}`{of_group} follows `{x._title()}`: {course}."


def _numbers_of(transform: AbstractTransform) -> Iterator[tuple[str, Any]]:
    """The values of the fields, those in a mapping by their names."""
    for name, value in vars(transform).items():
        yield from value.items() if isinstance(value, Mapping) else [(name, value)]


def _course(schedule: Any) -> str | None:
    """The values where a schedule begins, turns and ends; None if they are not known, as of a stateful schedule."""
    is_traced = any(isinstance(x, Tracer) for x in jtu.tree_leaves(schedule))
    return _known_course(schedule) if isinstance(schedule, AbstractSchedule) and not is_traced else None


@functools.lru_cache(64)  # the rows of a table and its notes ask for the same schedule
def _known_course(schedule: AbstractSchedule) -> str | None:
    values = known_values(schedule)
    if values is None:
        return None
    values = values + 0.0  # without the sign of -0
    low, high, (first, last) = values.min(), values.max(), values[[0, -1]]
    turns = [v for v in (high, low) if not np.isclose(v, [first, last], rtol=0.05, atol=0.01 * high).any()]
    texts = dict.fromkeys([f"{first:.2g}", *(f"{v:.2g}" for v in turns)])
    ends = [] if np.isclose(first, last) and not turns else [f"{last:.2g}"]
    return _THEN.join([*texts, *ends])


def _text(value: Any) -> str:
    """A number, the values of a schedule, or the name of the schedule or transform that computes it."""
    if is_schedule(value):
        return _course(value) or value._title()
    if isinstance(value, tuple):
        return f"{_text(value[0])}{_TO}{_text(value[-1])}"
    return type(value).__name__ if isinstance(value, AbstractHyperparameters) else format_value(value)


def _rate_text(rate: Rate) -> str:
    """A learning rate, times the factors that follow."""
    text = _text(rate.value)
    if rate.sign < 0:
        text = _product(text, "-1.0") if _THEN in text else f"-{_factor(text)}"
    return functools.reduce(_product, map(_text, rate.factors), text)


def _product(*factors: str) -> str:
    if any(_TO in text for text in factors):  # from the first to the last of the stacked blocks
        return _TO.join(_product(*(text.split(_TO)[i] for text in factors)) for i in (0, -1))
    if course := _scaled_course(factors):
        return course
    try:
        return str(float(f"{math.prod(map(float, factors)):.7g}"))
    except ValueError:
        return " × ".join(_factor(text) for text in factors if text != "1.0")


def _scaled_course(factors: Sequence[str]) -> str | None:
    """The values of one schedule times the other factors; None if these are not all numbers."""
    courses = [text.split(_THEN) for text in factors]
    try:
        numbers = math.prod(float(course[0]) for course in courses if len(course) == 1)
        (values,) = [[float(x) for x in course] for course in courses if len(course) > 1]
    except ValueError:
        return None
    return _THEN.join(f"{numbers * x + 0.0:.3g}" for x in values)  # without the sign of -0


def _factor(text: str) -> str:
    """A text of a table in a product or after a sign: a sum of schedules needs parentheses."""
    return f"({text})" if any(sign in text for sign in (" + ", " - ", _THEN)) else text


NO_HEAD = "no layer is called `head`"
NO_LEAF_DECAYS = "no leaf decays"
_ZEROS = ("0.0", "0")  # of a number and of a schedule
FROZEN = "frozen"
_TO = " … "
_THEN = " → "
