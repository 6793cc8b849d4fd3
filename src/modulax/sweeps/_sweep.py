"""A sweep: many optimizers, grouped by structure, so that each group is one batch.

A `Sweep` holds its members as plain optimizers. `grid`, `zipped` and `sample` make them with `replace`, which finds the
hyperparameter and checks the value; `concat` puts sweeps together. Members of equal structure form a `Group`, which
`stacked` turns into one batched optimizer. The columns of the table are the hyperparameters that the caller named, and
whatever else differs between members.
"""

import abc
import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, overload

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from .._plugin.containers import is_chain
from .._plugin.messages import format_value, html_table, one_line
from .._plugin.transforms import (
    ARRAY_TYPES,
    BY_KEYWORD,
    AbstractHyperparameters,
    batched_number,
    fields_inside,
    find_all,
    part_fields,
    value_at,
)
from .._plugin.trees import NamingError, Path, as_argument, joined
from ..authoring import AbstractTransform

Members = Sequence[AbstractTransform]


class Group(NamedTuple):
    """Members of one structure: their places in the sweep, the members, and what they are called together.

    Attributes:
        places: the places in the sweep.
        members: the members.
        label: what they are called.
        shape: the values of `over`.
    """

    places: list[int]
    members: tuple[AbstractTransform, ...]
    label: str
    shape: Mapping[str, Any]


def label_of(optimizer: AbstractTransform) -> str:
    """What an optimizer is called in tables and plots: its class; of a container, also what is inside."""
    fields = [field for field in part_fields(optimizer) if not field.metadata["auxiliary"]]
    values = [getattr(optimizer, field.name) for field in fields]
    parts = itertools.chain(*(x.values() if isinstance(x, Mapping) else [x] for x in values))
    labels = [label_of(part) for part in parts if part is not None]
    if is_chain(optimizer):
        return " > ".join(labels) or "Chain()"
    inside = f"({', '.join(dict.fromkeys(labels))})" if labels else ""
    return f"{type(optimizer).__name__}{inside}"


def stacked(members: Members) -> AbstractTransform:
    """One optimizer with a leading axis in every hyperparameter, from optimizers of one structure."""
    columns = zip(*map(jtu.tree_leaves, members), strict=True)
    leaves = [(jnp if any(isinstance(x, jax.Array) for x in column) else np).stack(column) for column in columns]
    return jtu.tree_structure(members[0]).unflatten(leaves)


def grouped(members: Members, labels: Sequence[str], shapes: Sequence[Mapping[str, Any]]) -> tuple[Group, ...]:
    """Group members by structure, dtypes and shapes; a group is in the order of its first member."""
    structures: list[Any] = []  # which are not all hashable
    places: list[list[int]] = []
    for place, (member, shape) in enumerate(zip(members, shapes, strict=True)):
        leaves, treedef = jtu.tree_flatten(member)
        structure = treedef, [(np.shape(x), jnp.result_type(x)) for x in leaves], shown_shape(shape)
        if structure not in structures:
            structures.append(structure)
            places.append([])
        places[structures.index(structure)].append(place)
    groups = []
    for row in places:
        shape, label = shapes[row[0]], " / ".join(dict.fromkeys(labels[i] for i in row))
        label += f" with {', '.join(f'{name}={x}' for name, x in shown_shape(shape).items())}" if shape else ""
        groups.append(Group(row, tuple(members[i] for i in row), label, shape))
    return tuple(groups)


def shown_shape(shape: Mapping[str, Any]) -> dict[str, Any]:
    """The values of `over` as a table shows them."""
    return {name: _shown(x) for name, x in shape.items()}


class AbstractMembers(Sequence[Any]):
    """The members of a sweep, which show as a table.

    Attributes:
        names: the names of the hyperparameters that vary, as the caller wrote them, and their dotted paths.
        labels: what each member is called.
    """

    names: dict[str, tuple[str, ...]]
    labels: tuple[str, ...]

    @abc.abstractmethod
    def __getitem__(self, index: Any) -> Any:
        """Return a member."""

    @abc.abstractmethod
    def _all_values(self) -> list[dict[str, Any]]:
        """Return a dict per member: the values that may differ between members, by dotted path."""

    def __repr__(self) -> str:
        counts = dict.fromkeys(self.labels, 0) | Counter(self.labels)
        classes = ", ".join(f"{count} x {label}" for label, count in counts.items())
        return f"Sweep({classes}; varied: {', '.join(columns_of(self.table())[1:]) or 'nothing'})"

    def _repr_html_(self) -> str:
        return html_rows(repr(self), self.table())

    def table(self) -> list[dict[str, Any]]:
        """Return a dict per member: what it is called under `"optimizer"`, and the hyperparameters that vary.

        An optimizer is named by its class, a container also by its parts: `ClipByGlobalNorm > AdamW` is a chain. You
        can pass your own names to `concat`.

        `pandas.DataFrame` takes it as it is. A member has no entry for a hyperparameter that its class doesn't have.
        """
        values = self._all_values()
        columns = self.names | {path: (path,) for path in self._varied(values)}
        rows = []
        for label, of_one in zip(self.labels, values, strict=True):
            row: dict[str, Any] = {"optimizer": label}
            for name, paths in columns.items():  # of several values with one name, the first
                row.update((name, of_one[path]) for path in reversed(paths) if path in of_one)
            rows.append(row)
        return rows

    def _varied(self, values: Sequence[Mapping[str, Any]]) -> list[str]:
        """The paths of what differs between members, besides what the caller named."""
        explicit = [path for paths in self.names.values() for path in paths]
        seen: dict[tuple[str, str], Any] = {}
        varied = []
        for label, of_one in zip(self.labels, values, strict=True):
            for path, value in of_one.items():
                # Only within a class: that two classes have other defaults says nothing about the sweep.
                if seen.setdefault((label, path), value) != value:
                    varied.append(path)
        return [path for path in varied if not any(_contains(path, x) or _contains(x, path) for x in explicit)]


def _contains(path: str, other: str) -> bool:
    return f"{other}.".startswith(f"{path}.")


class Sweep(AbstractMembers):
    """A sequence of optimizers to be trained together: `grid`, `zipped`, `sample` and `concat` make it.

    `sweep[3]` is a plain optimizer, `sweep[2:5]` and `sweep[[0, 4]]` are sweeps. Members of one structure are trained
    as one batch, in one compiled program; members of different classes, or with other options, in several.

    Args:
        members: the optimizers.
        names: the names of the hyperparameters that vary, as the caller wrote them, and their dotted paths.
        labels: what each optimizer is called in tables and plots; by default its class, with what is inside.
        shapes: the values of `over` with which each member is trained; by default none.
    """

    def __init__(
        self,
        members: Iterable[AbstractTransform],
        names: Mapping[str, tuple[str, ...]] | None = None,
        labels: Sequence[str] | None = None,
        shapes: Sequence[Mapping[str, Any]] | None = None,
    ):
        self.members = tuple(members)
        self.names = dict(names or {})
        for member in self.members:
            _check_member(member)
        if not self.members:
            raise ValueError("A sweep needs at least one optimizer, and there is none.")
        self.labels = tuple(map(label_of, self.members) if labels is None else labels)
        self.shapes = tuple({} for _ in self.members) if shapes is None else tuple(shapes)
        self.groups = grouped(self.members, self.labels, self.shapes)

    def __len__(self) -> int:
        return len(self.members)

    @overload
    def __getitem__(self, index: int) -> Any: ...  # of the class that the caller put in
    @overload
    def __getitem__(self, index: slice | Sequence[int] | np.ndarray) -> "Sweep": ...
    def __getitem__(self, index: Any) -> Any:
        if not isinstance(index, slice) and np.ndim(index) == 0:
            return self.members[index]
        places = np.arange(len(self))[index] if isinstance(index, slice) else np.asarray(index)
        if places.dtype == bool:
            if places.shape != (len(self),):
                raise IndexError(
                    f"`sweep[mask]` needs a mask of shape ({len(self)},), with an entry for each member, and got one "
                    f"of shape {places.shape}."
                )
            places = np.flatnonzero(places)
        labels, shapes = [self.labels[i] for i in places], [self.shapes[i] for i in places]
        return Sweep([self.members[i] for i in places], self.names, labels, shapes)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.members)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sweep):
            return NotImplemented
        shapes = [[*map(shown_shape, sweep.shapes)] for sweep in (self, other)]
        return shapes[0] == shapes[1] and all(map(eqx.tree_equal, self.members, other.members))

    __hash__ = None  # type: ignore[assignment]

    def batched(self) -> Any:
        """Return the members as one optimizer whose hyperparameters have a leading axis, for `jax.vmap`.

        Raises:
            ValueError: if the members don't have one structure.
        """
        if len(self.groups) > 1:
            labels = ", ".join(group.label for group in self.groups)
            raise ValueError(
                f"`Sweep.batched()` needs members of one structure, and there are {len(self.groups)}: {labels}. "
                f"`sweeps.run` trains each as a batch of its own."
            )
        return stacked(self.members)

    def _all_values(self) -> list[dict[str, Any]]:
        """Return a dict per member: the values that may differ between members, by dotted path."""
        return [values_of(x) | shown_shape(shape) for x, shape in zip(self.members, self.shapes, strict=True)]


def _check_member(member: Any) -> None:
    if not isinstance(member, AbstractTransform):
        text = one_line(member)
        hint = " A sweep consists of optimizers, such as `[mx.AdamW(1e-3), mx.Lion(1e-4)]`."
        if isinstance(member, type):
            hint = f" It is a class: make an instance, `{member.__name__}(...)`."
        elif callable(getattr(member, "init", None)):
            hint = " Convert an optax optimizer with `mx.from_optax(...)`; its numbers can't be swept."
        raise TypeError(f"A member of a sweep must be a transform of modulax, got {text[:200]}.{hint}")
    if path := batched_number(member):
        raise ValueError(
            f"A member of a sweep must be one optimizer, and `{path}` of this {type(member).__name__} has several "
            f"values. Write `sweeps.zipped({type(member).__name__}(...), {as_argument(path, 'values')})` in place of "
            f"the `vmap`."
        )


def values_of(member: AbstractTransform) -> dict[str, Any]:
    """The values that may differ between members, by path: numbers, whole schedules, options, classes of parts."""
    out = {path: plain_number(accessor(member)) for path, accessor in member.addresses().items()}
    for keys, value, _ in fields_inside(member):
        path = joined(keys)
        if isinstance(value, AbstractTransform):
            out[path] = type(value).__name__
        elif path not in out and not any(map(_is_content, (value, *jtu.tree_leaves(value)))):
            out[path] = _shown(value)
    return out


def _shown(x: Any) -> Any:
    """A value in a table: itself if it is a number or a string, else its text."""
    return x if isinstance(x, (bool, int, float, str)) else format_value(x)


def _is_content(x: Any) -> bool:
    """Whether a value is not an option: its content has paths of its own."""
    return isinstance(x, (*ARRAY_TYPES, AbstractHyperparameters, Mapping))


def plain_number(x: Any) -> Any:
    """The shortest Python number that is read back as the same value; the text of anything else."""
    if isinstance(x, ARRAY_TYPES) and np.ndim(x) == 0:
        value = np.asarray(x)[()]
        return float(str(value)) if jnp.issubdtype(value.dtype, jnp.floating) else value.item()
    if isinstance(x, (int, float)):  # of `freeze_hyperparameters`
        return x
    return " ".join(format_value(x).split())


def combined(function: str, optimizer: AbstractTransform, names: Iterable[str], rows: Iterable[Iterable[Any]]) -> Sweep:
    """A sweep with a member for each row of values, one value for each name."""
    paths = paths_of(optimizer, names, function)
    return Sweep([optimizer.replace(**dict(zip(paths, row, strict=True))) for row in rows], paths)


def paths_of(
    optimizer: AbstractTransform, names: Iterable[str], function: str, written: str = BY_KEYWORD
) -> dict[str, tuple[str, ...]]:
    """The dotted paths of the hyperparameters with each name; an error if one has none, or is an option."""
    found = find_all(optimizer, names, function, written)
    all_paths = {name: tuple(map(joined, paths)) for name, paths in found.items()}
    addresses, owner = optimizer.addresses(), type(optimizer).__name__
    for name, paths in all_paths.items():
        if paths == ("learning_rate",) and (again := _same_rate(optimizer)):
            raise NamingError(
                f"`{function}({name}=...)`: {owner} has the learning rate twice, as `{name}` and as `{again}`. Write "
                f"`{written.format(f'*.{name}')}` for both."
            )
        refuse_absent(f"{function}({name}=...)", optimizer, name, found[name])
        if not set(paths) <= addresses.keys():
            raise ValueError(
                f"`{function}({name}=...)`: `{name}` of {owner} is an option and not a hyperparameter. Another value "
                f"means another program, so it cannot vary within a batch. Put two sweeps together: "
                f"`sweeps.concat([sweep, other])`, where `other` is made from `optimizer.replace({as_argument(name)})`."
            )
    return all_paths


def _same_rate(optimizer: AbstractTransform) -> str | None:
    """The path of the number inside a container that its learning rate repeats, as that of `ScheduleFree` does."""
    own, addresses = value_at(optimizer, ("learning_rate",)), optimizer.addresses()
    numbers = {path: at(optimizer) for path, at in addresses.items() if path.endswith(".learning_rate")}
    is_own = isinstance(own, (float, np.ndarray, np.generic))
    return next((path for path, x in numbers.items() if is_own and isinstance(x, type(own)) and x == own), None)


def refuse_absent(call: str, optimizer: AbstractTransform, name: str, paths: Iterable[Path]) -> None:
    """Raise an error for a field that may hold a number and holds None."""
    for path in paths:
        owner = value_at(optimizer, path[:-1])
        fields = owner.__dataclass_fields__ if dataclasses.is_dataclass(owner) else {}
        if path[-1] in fields and "number" in fields[path[-1]].metadata and value_at(optimizer, path) is None:
            raise ValueError(
                f"`{call}`: `{joined(path)}` of {type(optimizer).__name__} is None, and with a number in its place the "
                f"program is another one. Give the optimizer a number: `optimizer.replace({as_argument(name)})`."
            )


def check_optimizer(function: str, optimizer: Any) -> None:
    """Raise an error if the first argument of `grid`, `zipped` or `sample` is not one optimizer."""
    if not isinstance(optimizer, AbstractTransform):
        _check_member(optimizer)
    if path := batched_number(optimizer):
        raise ValueError(f"`{function}` makes the batch itself: give it one optimizer, whose `{path}` is a scalar.")


def _columns(function: str, optimizer: Any, values: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The values given for each hyperparameter of an optimizer, as lists."""
    check_optimizer(function, optimizer)
    return {name: as_column(function, name, column) for name, column in values.items()}


def as_column(function: str, name: str, values: Any) -> list[Any]:
    """The values given under a name, as a list."""
    is_array = isinstance(values, ARRAY_TYPES)
    if isinstance(values, str) or not (np.ndim(values) == 1 if is_array else isinstance(values, Sequence)):
        what = f"an array of shape {np.shape(values)}" if is_array else f"{values!r}"
        raise ValueError(f"`{function}({name}=...)` must be a list of values, got {what}. Write `{name}=[...]`.")
    if not len(values):
        raise ValueError(f"`{function}({name}=[])` has no values, so that the sweep would be empty.")
    return list(np.asarray(values)) if is_array else list(values)


def grid(optimizer: AbstractTransform, /, **values: Any) -> Sweep:
    """Return the sweep over all combinations of values; the last one varies fastest.

        sweep = sweeps.grid(mx.AdamW(1e-3), learning_rate=[1e-4, 3e-4, 1e-3], weight_decay=[0.0, 0.1])
        sweep = sweeps.grid(chain, **{"clip.max_norm": [0.5, 1.0], "adamw.learning_rate.peak_value": [1e-3, 1e-2]})

    Args:
        optimizer: the optimizer; whatever is not named is the same in all members.
        **values: the values of each hyperparameter. The names are those of `replace`: a field, a dotted path, the end
            of one, or a pattern.

    Raises:
        ValueError: if there is no such hyperparameter, if it is a static option, or if a value is invalid.
    """
    columns = _columns("sweeps.grid", optimizer, values)
    return combined("sweeps.grid", optimizer, columns, itertools.product(*columns.values()))


def zipped(optimizer: AbstractTransform, /, **values: Any) -> Sweep:
    """Return the sweep whose member `i` has the `i`-th value of each hyperparameter; all columns have the same length.

        sweep = sweeps.zipped(mx.AdamW(1e-3), learning_rate=[1e-4, 1e-3], b2=[0.999, 0.99])

    Args:
        optimizer: the optimizer; whatever is not named is the same in all members.
        **values: the values of each hyperparameter, by the names of `replace`.

    Raises:
        ValueError: if the lengths differ, or for the reasons of `grid`.
    """
    columns = _columns("sweeps.zipped", optimizer, values)
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{length} for `{name}`" for name, length in lengths.items())
        raise ValueError(
            f"`sweeps.zipped` pairs the values, so it needs equally many, and got {counts}. For all combinations, "
            f"write `sweeps.grid(...)`."
        )
    return combined("sweeps.zipped", optimizer, columns, zip(*columns.values(), strict=True) if columns else [()])


Part: TypeAlias = Sweep | Members | AbstractTransform


def concat(parts: Iterable[Part] | Mapping[str, Part]) -> Sweep:
    """Return one sweep with the members of several, which may be of different classes.

        sweep = sweeps.concat([grid_of_adamw, grid_of_lion, [mx.Muon(0.02)]])
        sweep = sweeps.concat({"AdamW": grid_of_chains, "Muon": grid_of_other_chains})

    Args:
        parts: sweeps, lists of optimizers, and optimizers; or a mapping from names to these, which tables and plots
            show in place of the classes, or before them if a part has several.

    Raises:
        TypeError: if a part is neither.
        ValueError: if there are no members.
    """
    given: Iterable[tuple[Any, Part]] = parts.items() if isinstance(parts, Mapping) else ((None, x) for x in parts)
    members: list[AbstractTransform] = []
    labels: list[str] = []
    shapes: list[Mapping[str, Any]] = []
    names: dict[str, tuple[str, ...]] = {}
    for label, part in given:
        sweep = as_sweep(part)
        members += sweep.members
        shapes += sweep.shapes
        is_mixed = len(set(sweep.labels)) > 1
        labels += [x if label is None else f"{label}: {x}" if is_mixed else str(label) for x in sweep.labels]
        for name, paths in sweep.names.items():
            names[name] = tuple(dict.fromkeys((*names.get(name, ()), *paths)))
    return Sweep(members, names, labels, shapes)


def as_sweep(sweep: Any) -> Sweep:
    """A sweep as it is; a list of optimizers, or one, as a sweep."""
    if isinstance(sweep, Sweep):
        return sweep
    is_several = isinstance(sweep, Sequence) and not hasattr(sweep, "init")  # a transform of optax is a tuple
    return Sweep(sweep if is_several else [sweep])


MOST = 40  # rows


def columns_of(table: Iterable[Mapping[str, Any]]) -> list[str]:
    """The names of the columns of a table, in the order in which rows have them."""
    return list(dict.fromkeys(name for row in table for name in row))


def html_rows(caption: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """A table in HTML with the number of each row; of many rows, the first ones."""
    columns = columns_of(rows)
    cells = [[str(i), *(text_of(row.get(name), 4) for name in columns)] for i, row in enumerate(rows[:MOST])]
    more = [f"and {len(rows) - MOST} more"] if len(rows) > MOST else []
    return html_table(["member", *columns], cells, notes=[caption, *more])


def text_of(x: Any, digits: int = 3) -> str:
    """A value in a cell or on an axis; empty for None."""
    return "" if x is None else f"{x:.{digits}g}" if isinstance(x, float) else str(x)
