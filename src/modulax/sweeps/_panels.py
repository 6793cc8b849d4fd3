"""The numbers of a plot: which hyperparameters vary, on which scale each is drawn, and which values are left out."""

import math
import re
import textwrap
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from .._support.checks import listing, suggestion

REDUCTIONS = {"mean": np.mean, "median": np.median, "min": np.min, "max": np.max}


class Scale(NamedTuple):
    """How values are placed on an axis: the values after a transformation, the name, and the scale of matplotlib."""

    transform: Callable[[np.ndarray], np.ndarray]
    label: str
    name: str
    options: dict[str, Any]


def scale_of(label: str, values: np.ndarray) -> Scale:
    """The scale on which values are spread: logarithmic where they span a factor of ten.

    Decays such as 0.9, 0.99 and 0.999 are placed by their distance from one. Values with a zero among them are on a
    scale that is linear below the smallest positive one.
    """
    finite = np.unique(values[np.isfinite(values)])
    positive = finite[finite > 0]
    if not finite.size or finite[0] < 0:
        return Scale(lambda x: x, label, "linear", {})
    if 0.9 <= finite[-1] < 1 and _is_logarithmic(1 - finite[::-1]) and not _is_logarithmic(finite):
        return Scale(lambda x: 1 - x, f"1 − {label}", "log", {})
    if _is_logarithmic(positive):
        name, options = ("log", {}) if finite[0] > 0 else ("symlog", {"linthresh": positive[0], "linscale": 0.5})
        return Scale(lambda x: x, label, name, options)
    return Scale(lambda x: x, label, "linear", {})


def _is_logarithmic(x: np.ndarray) -> bool:
    """Whether increasing positive values span a factor of ten and are denser at the lower end."""
    if not x.size or x[-1] < 9.9 * x[0]:
        return False
    return bool(len(x) < 4 or (np.median(x) - x[0]) / (x[-1] - x[0]) < 0.3)


def ticks_of(low: float, high: float, steps: Sequence[int] = (1, 2, 5)) -> list[float] | None:
    """Places for names on a short logarithmic axis, where powers of ten are too few; None for a long one."""
    if high > 99 * low:
        return None
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [x * 10.0**k for k in exponents for x in steps if low <= x * 10.0**k <= high]


class Column(NamedTuple):
    """A hyperparameter: its name and the value of each member, None if the member doesn't have it."""

    name: str
    values: list[Any]

    @property
    def is_numeric(self) -> bool:
        """Whether all values are numbers."""
        return all(isinstance(x, (int, float)) and not isinstance(x, bool) for x in self.values if x is not None)

    def numbers(self) -> np.ndarray:
        """The values as floating-point numbers, NaN where a member has none."""
        return np.array([np.nan if x is None else float(x) for x in self.values])

    def texts(self) -> list[str]:
        """The distinct values, for names on an axis."""
        return list(dict.fromkeys(shown(x) for x in self.values if x is not None))


def shown(x: Any) -> str:
    """A value as short text."""
    return f"{x:.3g}" if isinstance(x, float) else str(x)


def differing(texts: Sequence[str]) -> list[str]:
    """Short names of values that aren't numbers: of `Cosine(1.0, steps=5)` and `Cosine(2.0, steps=5)`, 1.0 and 2.0."""
    parts = [re.split(r"[(), ]+", text.rstrip(")")) for text in texts]
    common = set.intersection(*map(set, parts)) if len(parts) > 1 else set()
    short = [", ".join(part for part in of if part not in common) for of in parts]
    names = short if all(short) and len(set(short)) == len(short) else texts
    return [textwrap.shorten(name, 40, placeholder=" …") for name in names]


def varied(rows: Sequence[dict[str, Any]], names: Sequence[str] | None) -> list[Column]:
    """The hyperparameters that vary, or those of the given names."""
    there = list(dict.fromkeys(name for row in rows for name in row if name != "optimizer"))
    for name in names or ():
        if name not in there:
            raise ValueError(
                f"`plot(hyperparameters=...)`: `{name}` doesn't vary in this sweep. There are "
                f"{listing(there) or 'none'}.{suggestion(name, there)}"
            )
    columns = [Column(name, [row.get(name) for row in rows]) for name in (there if names is None else names)]
    return [column for column in columns if names is not None or len(column.texts()) > 1]


class Panels:
    """The numbers of a plot.

    Args:
        results: the results.
        metric: the name of the metric.
        names: the hyperparameters to show; None for all that vary.
        mode: whether small or large values are good.
        reduce: how the seeds are reduced.
        every: the number of steps between two values of the metric.
    """

    def __init__(
        self,
        results: Any,
        metric: str | None,
        names: Sequence[str] | None,
        mode: str,
        reduce: str,
        every: int | None = None,
    ):
        self.metric, self.mode, self.reduce = results._metric(metric)[0], mode, reduce
        self.scores = results.scores(metric, mode=mode, reduce=reduce)  # which checks the options
        self.is_worse = np.greater if mode == "min" else np.less
        rows = results.sweep.table()
        self.columns = varied(rows, names)
        self.final = results.final(metric).astype(np.float64)
        self.curve = results.curve(metric).astype(np.float64)
        self.seeds = self.final.shape[1]
        self.is_finite = np.isfinite(self.final)
        worst = np.inf if mode == "min" else -np.inf
        middle = REDUCTIONS[reduce](np.where(self.is_finite, self.final, worst), axis=1)
        self.middle = np.where(np.isfinite(middle), middle, np.nan)
        fine = np.isfinite(self.scores)
        # Of a single member, there is no best one.
        several = fine.any() and len(fine) > 1
        self.best = int((self.scores if mode == "min" else -self.scores).argmin()) if several else None
        of_class: dict[str, list[int]] = {}
        for i, row in enumerate(rows):
            of_class.setdefault(row["optimizer"], []).append(i)
        self.classes = of_class
        length = self.curve.shape[2] // results.total
        self.lengths = results.segments * length
        self.is_stopped = results.segments < results.segments.max()
        self.time = "step" if every is not None or length > 1 or results.total == 1 else "segment"
        self.every = 1 if every is None else every
        self.limits = limits(self.final[self.is_finite], mode)
        self.worst_edge = 0.965 if mode == "min" else 0.035

    def best_text(self) -> str:
        """The best member, for the legend."""
        texts = [name for name, members in self.classes.items() if len(self.classes) > 1 and self.best in members]
        for column in self.columns:
            value = column.values[self.best or 0]
            if value is not None:
                names = dict(zip(column.texts(), differing(column.texts()), strict=True))
                texts.append(f"{column.name} = {names[shown(value)]}")
        return ", ".join(texts)

    def numeric(self) -> list[Column]:
        """The columns of numbers."""
        return [column for column in self.columns if column.is_numeric]

    def is_grid(self, members: Sequence[int]) -> bool:
        """Whether members have every combination of the values of what varies."""
        rows = {tuple(str(column.values[i]) for column in self.columns) for i in members}
        counts = [len(set(values)) for values in zip(*rows, strict=True)]
        return len(rows) == math.prod(counts)

    def bad(self, i: int) -> bool:
        """Whether a run of a member diverged, or is beyond the limits of the picture."""
        return bool((~self.is_finite[i] | self.is_beyond(self.final[i])).any())

    def is_beyond(self, values: np.ndarray) -> np.ndarray:
        """Whether values are worse than anything that is drawn."""
        return self.is_worse(values, self.limits[1] if self.mode == "min" else self.limits[0])

    def summary(self, members: Sequence[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The reduced value of members over their seeds, and the smallest and largest, NaN where there is none."""
        chosen, there = self.final[list(members)], self.is_finite[list(members)]
        some = there.any(axis=1)
        low = np.where(some, np.where(there, chosen, np.inf).min(axis=1), np.nan)
        high = np.where(some, np.where(there, chosen, -np.inf).max(axis=1), np.nan)
        return self.middle[list(members)], low, high


def has_tens(low: float, high: float) -> bool:
    """Whether a logarithmic axis is right for positive values from `low` to `high`."""
    return bool(low > 0 and high / low >= 9.9)


def limits(values: np.ndarray, mode: str) -> tuple[float, float]:
    """The smallest and largest value to be drawn.

    Bad values that are far from the others, such as the losses of runs that are about to overflow, are left out.
    """
    if not values.size:
        return 0.0, 1.0
    low, high = float(values.min()), float(values.max())
    is_log = has_tens(low, high)
    placed = np.log10(values) if is_log else values
    first, third = np.quantile(placed, [0.25, 0.75])
    reach = max(2 * (third - first), 1.5 if is_log else 0.0)
    if mode == "min" and reach:
        high = min(high, float(placed[placed <= third + reach].max()) if not is_log else 10 ** (third + reach))
    elif reach and not is_log:
        low = max(low, float(placed[placed >= first - reach].min()))
    return low, high


def padded(low: float, high: float, is_log: bool) -> tuple[float, float]:
    """Limits of an axis with some space at both ends, for markers."""
    if is_log:
        room = 0.08 * (np.log10(high) - np.log10(low))
        return 10 ** (np.log10(low) - room), 10 ** (np.log10(high) + room)
    room = 0.08 * (high - low) or 0.1 * abs(high) or 0.1
    return low - room, high + room
