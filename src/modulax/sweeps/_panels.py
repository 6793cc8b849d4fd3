"""The numbers of a plot: which hyperparameters vary, on which scale each is drawn, and which values are left out."""

import math
import re
import textwrap
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np

from .._plugin.messages import listing, suggestion
from ._sweep import columns_of, text_of

REDUCTIONS = {"mean": np.mean, "median": np.median, "min": np.min, "max": np.max}


def reduced(values: np.ndarray, mode: str, reduce: str, is_there: np.ndarray) -> np.ndarray:
    """Reduce the axis of seeds, the second one. A value that is infinite or NaN counts as the worst, if it is there."""
    worst = np.inf if mode == "min" else -np.inf
    rows = zip(np.where(np.isfinite(values), values, worst), is_there, strict=True)
    return np.array([REDUCTIONS[reduce](row[there], axis=0) for row, there in rows])


class Spread(NamedTuple):
    """A value that is reduced over the seeds, and the ends of a range around it."""

    middle: np.ndarray
    low: np.ndarray
    high: np.ndarray

    def of(self, members: int | Sequence[int] | np.ndarray) -> "Spread":
        """The spread of a member, or of several."""
        return Spread(*(x[np.asarray(members)] for x in self))


def spread(values: np.ndarray, mode: str, reduce: str, is_there: np.ndarray) -> Spread:
    """The reduced value over the axis of seeds, the second one, and the ends of the finite ones; NaN without any."""
    middle, finite = reduced(values, mode, reduce, is_there), np.ma.masked_invalid(values)
    ends = (x.filled(np.nan) for x in (finite.min(axis=1), finite.max(axis=1)))
    return Spread(np.where(np.isfinite(middle), middle, np.nan), *ends)


class Column(NamedTuple):
    """A hyperparameter: its name and the value of each member, None if the member doesn't have it."""

    name: str
    values: list[Any]

    @property
    def is_numeric(self) -> bool:
        """Whether all values are numbers."""
        return all(isinstance(x, (int, float)) and not isinstance(x, bool) for x in self.values if x is not None)

    def texts(self) -> list[str]:
        """The distinct values, for names on an axis."""
        return list(dict.fromkeys(text_of(x) for x in self.values if x is not None))

    def names(self) -> dict[str, str]:
        """Short names of the distinct values: of `Cosine(1.0, steps=5)` and `Cosine(2.0, steps=5)`, 1.0 and 2.0."""
        texts = self.texts()
        parts = [re.split(r"[(), ]+", text.rstrip(")")) for text in texts]
        common = set.intersection(*map(set, parts)) if len(parts) > 1 else set()
        short = [", ".join(part for part in of_one if part not in common) for of_one in parts]
        names = short if all(short) and len(set(short)) == len(short) else texts
        return {text: textwrap.shorten(name, 40, placeholder=" …") for text, name in zip(texts, names, strict=True)}

    def places(self) -> np.ndarray:
        """The number of each member's value among the distinct ones; NaN where a member has none."""
        places = {text: i for i, text in enumerate(self.texts())}
        return np.array([np.nan if x is None else places[text_of(x)] for x in self.values])

    def scale(self) -> "Scale":
        """Numbers on the scale on which they are spread: logarithmic where they span a factor of ten.

        Decays such as 0.9, 0.99 and 0.999 are placed by their distance from one. Values with a zero among them are on a
        scale that is linear below the smallest positive one.
        """
        values = np.array(self.values, float)  # None becomes NaN
        finite = np.unique(values[np.isfinite(values)])
        positive = finite[finite > 0]
        if not finite.size or finite[0] < 0:
            return Scale(values, self.name, "linear", {})
        if 0.9 <= finite[-1] < 1 and _is_logarithmic(1 - finite[::-1]) and not _is_logarithmic(finite):
            return Scale(1 - values, f"1 − {self.name}", "log", {})
        if not _is_logarithmic(positive):
            return Scale(values, self.name, "linear", {})
        options = {} if finite[0] > 0 else {"linthresh": positive[0], "linscale": 0.5}
        return Scale(values, self.name, "symlog" if options else "log", options)

    def text(self, i: int) -> str | None:
        """The value of a member, for the legend; None if the member has none."""
        return None if self.values[i] is None else f"{self.name} = {self.names()[text_of(self.values[i])]}"


class Scale(NamedTuple):
    """An axis of numbers: the places of the members, the label, and the scale of matplotlib."""

    places: np.ndarray
    label: str
    name: str
    options: dict[str, Any]


def _is_logarithmic(x: np.ndarray) -> bool:
    """Whether increasing positive values span a factor of ten and are denser at the lower end."""
    if not x.size or x[-1] < 9.9 * x[0]:
        return False
    return bool(len(x) < 4 or (np.median(x) - x[0]) / (x[-1] - x[0]) < 0.3)


class Panels:
    """The numbers of a plot, and its legend, to which every panel adds entries.

    Args:
        results: the results.
        metric: the name of the metric.
        names: the hyperparameters to show; None for all that vary.
        mode: whether small or large values are good.
        reduce: how the seeds are reduced.
        every: the number of steps between two values of the metric.
    """

    def __init__(
        self, results: Any, metric: str | None, names: Sequence[str] | None, mode: str, reduce: str, every: int | None
    ):
        self.metric, self.mode, self.reduce = results._metric(metric)[0], mode, reduce
        self.costs = results._costs(metric, mode=mode, reduce=reduce)  # which checks the options
        rows = results.sweep.table()
        self._all = {name: Column(name, [row.get(name) for row in rows]) for name in columns_of(rows)}
        self.optimizers, *others = self._all.values()
        self.columns = [column for column in others if len(column.texts()) > 1]
        if names is not None:
            self.columns = [self.column("hyperparameters", name) for name in names]
        self.class_of = self.optimizers.places().astype(int)
        self.classes = {name: np.flatnonzero(self.class_of == i) for i, name in enumerate(self.optimizers.texts())}
        final = results.final(metric).astype(np.float64)
        self.is_there = results._is_there()
        self.final = spread(final, mode, reduce, self.is_there)
        self.seeds = final.shape[1]
        self.curves = results.curve(metric).astype(np.float64)
        self.every = every or 1
        self.steps = self.every * np.arange(1, self.curves.shape[2] + 1)
        length = len(self.steps) // results.total
        self.lengths = results.segments * length
        self.is_stopped = results.segments < results.segments.max()
        self.time = "step" if every is not None or length > 1 or results.total == 1 else "segment"
        # Of one member, or if all diverged, there is no best one.
        is_chosen = len(self.costs) > 1 and np.isfinite(self.costs).any()
        self.best = int(self.costs.argmin()) if is_chosen else None
        is_finite = np.isfinite(final)
        self.limits = limits(final[is_finite], mode)
        low, high = self.limits or (-np.inf, np.inf)
        is_far = is_finite & (final > high if mode == "min" else final < low)
        self.is_bad = (~is_finite & self.is_there | is_far).any(axis=1)
        self.bad_label = "diverged or far off" if is_far.any() else "diverged"
        self.legend: dict[str, Any] = {}

    def mark(self, label: str, drawn: Sequence[Any]) -> None:
        """Name the first of some marks in the legend, unless it names such ones already."""
        self.legend.setdefault(label, drawn[0])

    def column(self, argument: str, name: str) -> Column:
        """A column by name, which the user gave as an argument of `plot`."""
        if name not in self._all:
            raise ValueError(
                f"`plot({argument}=...)`: `{name}` doesn't vary in this sweep. There are {listing(self._all)}."
                f"{suggestion(name, list(self._all))}"
            )
        return self._all[name]

    def best_text(self, i: int) -> str:
        """The best member, for the legend."""
        texts = [self.optimizers.values[i] if len(self.classes) > 1 else None]
        texts += [column.text(i) for column in self.columns]
        return f"best: {', '.join(filter(None, texts))}"

    def numeric(self) -> list[Column]:
        """The columns of numbers."""
        return [column for column in self.columns if column.is_numeric]

    def is_grid(self, members: np.ndarray) -> bool:
        """Whether members have every combination of the values of what varies."""
        rows = {tuple(str(column.values[i]) for column in self.columns) for i in members}
        counts = [len(set(values)) for values in zip(*rows, strict=True)]
        return len(rows) == math.prod(counts)

    def best_at(self, members: np.ndarray, keys: Sequence[Hashable] | np.ndarray) -> dict[Any, int]:
        """The best of the members that have the same key, such as the value of a hyperparameter."""
        best: dict[Any, int] = {}
        for i in sorted(members, key=lambda i: self.costs[i]):
            best.setdefault(keys[i], int(i))
        return best


def has_tens(low: float, high: float, mode: str) -> bool:
    """Whether a logarithmic axis, which spreads small values, is right for those from `low` to `high`."""
    return bool(mode == "min" and low > 0 and high / low >= 9.9)


def limits(values: np.ndarray, mode: str) -> tuple[float, float] | None:
    """The smallest and largest of finite values to be drawn; None if there are no values.

    Bad values that are far from the others, such as the losses of runs that are about to overflow, are left out.
    """
    if not values.size:
        return None
    low, high = float(values.min()), float(values.max())
    is_log = has_tens(low, high, mode)
    positions = np.log10(values) if is_log else values
    first, third = np.quantile(positions, [0.25, 0.75])
    reach = max(2 * (third - first), 1.5 if is_log else 0.0)
    if is_log:
        high = min(high, 10 ** (third + reach))
    elif mode == "min" and reach:
        high = float(positions[positions <= third + reach].max())
    elif reach:
        low = float(positions[positions >= first - reach].min())
    return low, high


def padded(low: float, high: float, is_log: bool) -> tuple[float, float]:
    """Limits of an axis with some space at both ends, for markers."""
    if is_log:
        room = 0.08 * (np.log10(high) - np.log10(low))
        return 10 ** (np.log10(low) - room), 10 ** (np.log10(high) + room)
    room = 0.08 * (high - low) or 0.1 * abs(high) or 0.1
    return low - room, high + room


def ticks_of(low: float, high: float, steps: Sequence[int] = (1, 2, 5)) -> list[float] | None:
    """Places for names on a short logarithmic axis, where powers of ten are too few; None for a long one."""
    if high > 99 * low:
        return None
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [x * 10.0**k for k in exponents for x in steps if low <= x * 10.0**k <= high]
