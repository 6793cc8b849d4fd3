"""Who sees a sweep in training: hooks, which are functions of the user, and the progress bar.

Hooks get the rows of every finished segment, and may stop members. The bar is tqdm's, if it is installed.
"""

import abc
import contextlib
import importlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self, TypeAlias

import jax
import numpy as np


class Row(NamedTuple):
    """A run, which is a member with a seed, after a segment: what `on_segment` gets a list of.

    The arrays are read-only. Metrics are named as in `Results.table`, by their dotted paths in what the training
    returned.

    Attributes:
        member: the number of the member in the sweep; of `optuna`, the number of the trial.
        seed: the number of the seed.
        segment: the number of the segment, from 0; always 0 for a plain `train`.
        hyperparameters: the name of the optimizer and the values of what varies, as in `Sweep.table`; of `pbt`, those
            of this segment.
        metrics: what the training returned in this segment. In `pbt`, also the explored hyperparameters, such as
            `metrics["hyperparameters.learning_rate"]`.
        curves: the metrics of all segments so far, each as one array over time.
    """

    member: int
    seed: int
    segment: int
    hyperparameters: dict[str, Any]
    metrics: dict[str, np.ndarray]
    curves: dict[str, np.ndarray]

    @property
    def name(self) -> str:
        """The name of the run, such as `member-003-seed-0`."""
        return f"member-{self.member:03d}-seed-{self.seed}"


Hook: TypeAlias = Callable[[list[Row]], Any]


def rows_of(
    member: int, seeds: Sequence[int], segment: int, hyperparameters: dict[str, Any], metrics: Mapping[str, np.ndarray]
) -> Iterable[Row]:
    """The rows of a member with some seeds, from its metrics by name, `[seed, segment, ...]`."""
    so_far = {name: x[:, : segment + 1] for name, x in metrics.items()}
    for x in so_far.values():
        x.flags.writeable = False
    for seed in seeds:
        now = {name: x[seed, segment, ...] for name, x in so_far.items()}
        curves = {name: x[seed].reshape(-1) for name, x in so_far.items()}
        yield Row(member, seed, segment, hyperparameters, now, curves)


class AbstractHooks(contextlib.ExitStack):
    """What gets the rows of every finished segment, and returns the members that it stops.

    Attributes:
        are_there: whether it wants the rows.
    """

    are_there: bool

    @abc.abstractmethod
    def __call__(self, rows: Sequence[Row]) -> set[int]:
        """Return the members that stop after a segment."""


class Hooks(AbstractHooks):
    """The hooks of a sweep. Those that are context managers, such as writers, are entered and left with it.

    Args:
        on_segment: a hook, several, or None.
        may_stop: whether hooks may stop members.
    """

    def __init__(self, on_segment: Any, *, may_stop: bool = True):
        super().__init__()
        given = () if on_segment is None else on_segment
        several = isinstance(given, (list, tuple)) and not callable(given)
        self.hooks: list[Any] = list(given) if several else [given]
        self.are_there, self._may_stop = bool(self.hooks), may_stop
        for hook in self.hooks:
            if not callable(hook) or isinstance(hook, type):
                raise TypeError(
                    f"`on_segment` must be a function of the rows of a segment, or a list of functions; got {hook!r}. "
                    f'Write, for example, `on_segment=sweeps.writers.CSV("logs")`.'
                )

    def __enter__(self) -> Self:
        for hook in self.hooks:
            if isinstance(hook, contextlib.AbstractContextManager) and jax.process_index() == 0:
                self.enter_context(hook)
        return self

    def __call__(self, rows: Sequence[Row]) -> set[int]:
        """Call every hook with the rows of a segment, and return the members that they stop."""
        stopped: set[int] = set()
        for hook in self.hooks:
            try:
                stopped |= self._stopped(hook(list(rows)), rows)
            except Exception as error:
                name = getattr(hook, "__qualname__", type(hook).__qualname__)
                error.add_note(f"This is an error of the hook `on_segment={name}`, after segment {rows[0].segment}.")
                raise
        return stopped

    def _stopped(self, out: Any, rows: Sequence[Row]) -> set[int]:
        """The members that a hook has returned; an error if it returned something else."""
        if out is None:
            return set()
        numbers = np.asarray(list(out) if isinstance(out, Iterable) else out)
        if numbers.ndim != 1 or (numbers.size and numbers.dtype.kind not in "iu"):
            raise TypeError(
                f"A hook must return None, or the numbers of the members to stop, such as "
                f"`{{row.member for row in rows if row.curves['loss'][-1] > 10}}`; it returned {out!r}."
            )
        stopped = {int(number) for number in numbers}
        if strangers := stopped - {row.member for row in rows}:
            raise ValueError(f"A hook stopped the members {sorted(strangers)}, which are not among its rows.")
        if stopped and not self._may_stop:
            raise ValueError(
                "`sweeps.pbt` stops no members: it replaces the worst ones after each segment. Return None from the "
                "hook, or stop members in `sweeps.run`."
            )
        return stopped


class Progress(contextlib.AbstractContextManager):
    """A bar that counts segments of members, and lines of text above it. Silent if it isn't wanted.

    Args:
        is_shown: whether anything is shown. Of several processes, only the first shows it.
    """

    def __init__(self, is_shown: bool):
        self._is_shown = is_shown and jax.process_index() == 0
        self._bar: Any = None

    def total(self, n: int) -> None:
        """Show the bar, of so many segments."""
        if self._is_shown:
            with contextlib.suppress(ImportError):  # without tqdm there are only the lines
                self._bar = importlib.import_module("tqdm.auto").tqdm(total=n, unit="segment", leave=False)

    def say(self, text: str) -> None:
        """Print a line."""
        if self._is_shown:
            sys.stderr.write(f"{text}\n") if self._bar is None else self._bar.write(text, file=sys.stderr)

    def advance(self, n: int) -> None:
        """Count segments."""
        if self._bar is not None:
            self._bar.update(n)

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.close()
