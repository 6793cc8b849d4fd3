"""`over`: what changes the shapes of a training, such as a width or a batch size, as columns of a sweep."""

import dataclasses
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .._plugin.messages import listing
from ._sweep import Sweep, as_column, shown_shape, values_of
from ._training import in_segments, signature_of

TAKEN = {"optimizer", "member", "seed", "diverged"}  # the other columns of tables


@dataclasses.dataclass(frozen=True)
class Over:
    """A training for each combination of values; see `over`.

    Attributes:
        build: the function that makes them.
        values: the values of each of its arguments.
    """

    build: Callable[..., Any]
    values: dict[str, list[Any]]

    def members(self, sweep: Sweep) -> Sweep:
        """The members of a sweep with every combination of the values."""
        for label, member in zip(sweep.labels, sweep, strict=True):
            if both := self.values.keys() & {*values_of(member), *sweep.names}:
                raise ValueError(
                    f"`sweeps.over({min(both)}=...)`: {label} has a hyperparameter `{min(both)}` too. Give "
                    f"the argument of `build` another name."
                )
        rows = [dict(zip(self.values, row, strict=True)) for row in itertools.product(*self.values.values())]
        names = sweep.names | {name: (name,) for name in self.values}
        return Sweep([*sweep] * len(rows), names, sweep.labels * len(rows), [row for row in rows for _ in sweep])


def over(build: Callable[..., Any], /, **values: Any) -> Over:
    """Return a training for `run` and `halving` in several shapes: over widths, depths, batch sizes.

        def train_of(width, batch_size):
            def train(optimizer, key):
                ...
                return {"loss": losses}

            return train

        trainings = sweeps.over(train_of, width=[64, 128, 256], batch_size=[32, 256])
        results = sweeps.run(sweep, trainings, seeds=3)
        results.plot("loss", x="learning_rate", by="width")

    Every optimizer is trained with every combination of the values, which are columns of the table like
    hyperparameters. Members of one combination are one batch, in a program of its own. A folder is extended by further
    values as by further members.

    The metrics must have the same shapes for all combinations; the carry of a `Trainable` may have others.
    `results.sweep[...]` keeps the combinations: train chosen members again by `sweeps.run(results.sweep[[3, 7]],
    trainings)`.

    Args:
        build: function that returns the training, `train(optimizer, key)` or a `Trainable`, for a value of each name.
        **values: the values of each argument of `build`, which may be anything that is written differently.

    Raises:
        TypeError: if `build` doesn't take these arguments.
        ValueError: if a name has no values, or is the name of another column.
    """
    if not callable(build) or isinstance(build, type):
        raise TypeError(f"`sweeps.over` needs the function that makes a training, `build(width=...)`; got {build!r}.")
    taken = TAKEN & values.keys()
    if not values or taken:
        what = f"`{min(taken)}` is a column of the table already" if values else "it got none"
        raise ValueError(f"`sweeps.over` needs values under names of their own, `width=[64, 128]`: {what}.")
    columns = {name: as_column("sweeps.over", name, column) for name, column in values.items()}
    columns = {name: [x.item() if isinstance(x, np.generic) else x for x in row] for name, row in columns.items()}
    for name, column in columns.items():
        texts = [str(shown_shape({name: x})[name]) for x in column]
        if len(set(texts)) < len(texts):
            raise ValueError(
                f"`sweeps.over({name}=...)` has values that are written alike, and a table couldn't tell them apart: "
                f"{', '.join(texts)}. Give names, and choose by them in `build`."
            )
    _check_arguments(build, columns)
    return Over(build, columns)


def _check_arguments(build: Callable[..., Any], columns: Mapping[str, Any]) -> None:
    """Raise an error if a function doesn't take these arguments."""
    call = f"build({', '.join(f'{name}=...' for name in columns)})"
    if (signature := signature_of(build)) is None:
        return
    try:
        signature.bind(**columns)
    except TypeError as error:
        raise TypeError(
            f"`sweeps.over` calls `{call}`, and this function is `build{signature}`. Give it these "
            f"arguments, and return `train(optimizer, key)` or a `Trainable` from it."
        ) from error


def in_shapes(training: Any) -> Over | None:
    """The trainings by `over`, or None if it is a single one."""
    return training if isinstance(training, Over) else None


def trainings(name: str, sweep: Sweep, training: Any) -> tuple[Sweep, list[Any]]:
    """The members of a sweep in every shape of a training, and the training of each of their groups.

    Args:
        name: the function that the user called, for error messages.
        sweep: the members.
        training: a training, or several by `over`.
    """
    names = list[str]()
    if isinstance(training, Over):
        names = list(training.values)
        if name not in ("sweeps.run", "sweeps.halving"):
            raise TypeError(
                f"`{name}` takes one training, and `sweeps.over` makes several. Call it for each: "
                f"`{{{names[0]}: {name}(..., build({names[0]}={names[0]}), ...) for {names[0]} in [...]}}`."
            )
        sweep = sweep if any(sweep.shapes) else training.members(sweep)
    for shape in sweep.shapes:
        if set(shape) != set(names):
            raise ValueError(
                f"`{name}`: this sweep is one of trainings by `sweeps.over` with {listing(shape)}, and this training "
                f"has {listing(names) or 'none of these'}. Give `sweeps.over(build, ...)` with the same names, or "
                f"`list(sweep)` for the optimizers alone."
            )
    found: dict[str, Any] = {}
    for group in sweep.groups:
        text = str(shown_shape(group.shape))
        if text not in found:
            found[text] = training.build(**group.shape) if isinstance(training, Over) else training
    if len({in_segments(x) is None for x in found.values()}) > 1:
        raise TypeError("`sweeps.over`: `build` must return a `Trainable` for all of the values, or for none.")
    return sweep, [found[str(shown_shape(group.shape))] for group in sweep.groups]
