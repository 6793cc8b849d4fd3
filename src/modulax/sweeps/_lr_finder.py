"""`lr_finder`: the learning rate range test, as one sweep."""

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import PRNGKeyArray

from .._plugin.arguments import check_integer
from .._plugin.messages import imported, listing
from .._plugin.transforms import find_paths, value_at
from ..authoring import AbstractTransform
from ..schedules import AbstractSchedule
from ._experiment import Experiment, Settings
from ._hooks import Hook, Hooks
from ._plots import set_heights
from ._results import Results
from ._run import train_all
from ._sweep import check_optimizer, grid, paths_of
from ._training import Train, Trainable

REMAINDER = 0.2  # of the way down to the lowest score, at the suggestion
WINDOW = 0.4  # decades over which scores are averaged
LEAST_PROGRESS = 0.05  # below which a curve is flat, as a fraction of the score at the lowest rate


@dataclasses.dataclass(frozen=True, eq=False)
class RangeTest:
    """The result of a learning rate range test.

    Attributes:
        results: the sweep, with a member for each rate.
        name: the name of the hyperparameter.
        metric: the name of the metric.
        mode: `"min"` if small values are good, `"max"` if large ones are.
        rates: the learning rates.
        scores: the last value of the metric at each rate, reduced over the seeds; infinite where it diverged.
        smoothed: the scores, averaged over neighboring rates. Scores that are worse than that of the lowest rate count
            as that.
        suggestion: a learning rate to begin with; None if the test found none.
        peak: the rate with the best smoothed score; None if there is no suggestion. If constant rates were tested, it
            is a peak to begin with for a schedule that warms up and decays.
        note: what is wrong with the range, or why there is no suggestion; otherwise empty.
    """

    results: Results
    name: str
    metric: str
    mode: str
    rates: np.ndarray
    scores: np.ndarray
    smoothed: np.ndarray
    suggestion: float | None
    peak: float | None
    note: str

    def __repr__(self) -> str:
        outcome = "no suggestion"
        if self.suggestion is not None:
            outcome = f"suggestion {self.suggestion:.3g}, best smoothed score at {self.peak:.3g}"
        rates = f"{len(self.rates)} rates from {self.rates[0]:.3g} to {self.rates[-1]:.3g}"
        return f"RangeTest({outcome}; {rates}){f'. {self.note}' if self.note else ''}"

    def plot(self, ax: Any = None) -> Any:
        """Plot the metric against the rate with matplotlib, and return the axes.

        The line is smoothed, the band is the range over the seeds, and the suggestion is marked. Rates at which the
        metric is worse than at the lowest rate are cut off at the top.

        Args:
            ax: axes to plot on; by default the current axes of pyplot.

        Raises:
            ImportError: if matplotlib is not installed.
        """
        plt = imported("matplotlib.pyplot", "RangeTest.plot", "sweeps")
        ax = plt.gca() if ax is None else ax
        values = np.ma.masked_invalid(self.results.final(self.metric).astype(np.float64))
        ax.plot(self.rates, np.where(np.isfinite(self.scores), self.scores, np.nan), ".", color="C0", alpha=0.5)
        ax.plot(self.rates, self.smoothed, color="C0")
        if values.shape[1] > 1:
            ax.fill_between(self.rates, values.min(1), values.max(1), color="C0", alpha=0.15, linewidth=0)
        if self.suggestion is not None:
            ax.axvline(self.suggestion, color="C3", linestyle="--", label=f"suggestion, {self.suggestion:.2g}")
            ax.legend()
        ax.set_xscale("log")
        if np.isfinite(self.smoothed).any():
            low, high = (np.ma.masked_invalid(x) for x in (self.scores, self.smoothed))
            set_heights(ax, (float(low.min()), float(high.max())), self.mode)
        ax.set(xlabel=self.name.replace("_", " "), ylabel=self.metric)
        return ax


def lr_finder(
    optimizer: AbstractTransform,
    train: Train | Trainable,
    low: float,
    high: float,
    n: int = 64,
    *,
    name: str = "learning_rate",
    metric: str | None = None,
    mode: str = "min",
    reduce: str = "median",
    seeds: int = 1,
    key: PRNGKeyArray | None = None,
    segments: int = 1,
    data: Any = None,
    chunk: int | None = None,
    devices: Any = None,
    memory: float | int | None = None,
    folder: str | os.PathLike[str] | None = None,
    tags: Mapping[str, Any] | None = None,
    progress: bool = True,
    on_segment: Hook | Sequence[Hook] | None = None,
) -> RangeTest:
    r"""Test `n` learning rates between `low` and `high`, in equal ratios, and suggest one.

        found = sweeps.lr_finder(mx.AdamW(1e-3), train, 1e-6, 1.0, metric="loss", seeds=3)
        optimizer = mx.AdamW(found.suggestion)
        found.plot()

    This is the range test of Smith (2017) as a sweep: each rate runs a separate short training from the same start,
    instead of one training in which the rate grows at each step. So the score of a rate doesn't depend on smaller
    rates, and the training can be your own, such as its first hundred steps.

    The suggestion is the smallest rate at which the smoothed score has made 80 % of the way from that of the lowest
    rate to the best one: in the logarithm of the metric, if all its values are positive and small ones are good. It
    keeps a distance from the rates that diverge, of which the best one after a short training is often a neighbor.
    Longer trainings prefer smaller rates: begin with this one, and sweep around it.

    The peak of a schedule that warms up and decays may be larger than the best constant rate. Test the schedule itself,
    and name its peak; its length in the test is that of the test:

        schedule = mx.schedules.WarmupCosineDecay(0.0, 1e-3, warmup_steps=10, decay_steps=100)
        found = sweeps.lr_finder(mx.AdamW(schedule), train, 1e-6, 1.0, name="learning_rate.peak_value")

    Or test constant rates, and take `found.peak`, the best one of the smoothed scores.

    References:
        Smith, "Cyclical Learning Rates for Training Neural Networks", WACV 2017. https://arxiv.org/abs/1506.01186

    Args:
        optimizer: the optimizer.
        train: `train(optimizer, key)`, or a `Trainable`: a short training that returns the metric.
        low: the lowest rate, at which nothing much is learned.
        high: the highest rate, at which the training diverges.
        n: the number of rates.
        name: the hyperparameter, by the names of `replace`. If it holds a schedule, name the number in it:
            `name="learning_rate.peak_value"`.
        metric: the name of the metric; may be left out if there is only one.
        mode: `"min"` if small values are good, `"max"` if large ones are.
        reduce: `"mean"`, `"median"`, `"min"` or `"max"` over the seeds.
        seeds: the number of seeds for each rate.
        key: random key, as in `run`.
        segments: the number of segments of a `Trainable`.
        data: as in `run`.
        chunk: as in `run`.
        devices: as in `run`.
        memory: as in `run`.
        folder: as in `run`.
        tags: as in `run`.
        progress: as in `run`.
        on_segment: as in `run`; a rate that it stops counts as one that diverged.

    Returns:
        The rates, their scores, the suggestion, the peak, and a note if the range is too narrow. There is no suggestion
        if every rate diverged, or if the rate makes no difference.

    Raises:
        ValueError: if the range is invalid, or the hyperparameter holds a schedule.
    """
    check_optimizer("sweeps.lr_finder", optimizer)
    check_integer("sweeps.lr_finder", "n", n, least=3)
    if not (math.isfinite(high) and 0 < low < high):
        raise ValueError(
            f"`sweeps.lr_finder(low={low!r}, high={high!r})` needs two positive rates, the lower one first."
        )
    for path in find_paths(optimizer, name, "sweeps.lr_finder", 'name="{}"'):
        _check_no_schedule(optimizer, name, path)
    paths_of(optimizer, [name], "sweeps.lr_finder", 'name="{}"')
    rates = np.geomspace(low, high, n)
    sweep = grid(optimizer, **{name: rates})
    experiment = Experiment(
        sweep, train, seeds=seeds, key=key, devices=devices, segments=segments, data=data, name="sweeps.lr_finder"
    )
    experiment.results().scores(metric, mode=mode, reduce=reduce)  # an error if there is no such metric
    results = train_all(experiment, Settings(chunk, memory, folder, tags, progress, Hooks(on_segment)))
    scores = results._scores(metric, mode=mode, reduce=reduce)
    smoothed, suggestion, note = _suggestion(rates, scores, mode)
    best = float(rates[int(smoothed.argmax() if mode == "max" else smoothed.argmin())])
    peak = None if suggestion is None else best
    return RangeTest(results, name, results._metric(metric)[0], mode, rates, scores, smoothed, suggestion, peak, note)


def _check_no_schedule(optimizer: AbstractTransform, name: str, path: tuple[Any, ...]) -> None:
    value = value_at(optimizer, path)
    if isinstance(value, AbstractSchedule):
        inside = [".".join(map(str, (*path, x))) for x in value.hyperparameters()]
        advice = f"Name the number in it that varies, by `name=`: {listing(inside)}. Or test" if inside else "Test"
        raise ValueError(
            f"`sweeps.lr_finder` varies a number, and `{name}` of {type(optimizer).__name__} is a schedule, "
            f"{type(value).__name__}. {advice} constant rates, with a number in its place."
        )


def _suggestion(rates: np.ndarray, scores: np.ndarray, mode: str) -> tuple[np.ndarray, float | None, str]:
    """The smoothed scores, the suggested rate, and a note."""
    if not np.isfinite(scores[0]):
        which = "the lowest rate" if np.isfinite(scores).any() else "every rate"
        return scores, None, f"The training diverged at {which}: lower `low`, {rates[0]:.3g}."
    by_ratio = mode == "min" and bool((scores > 0).all())
    sign = -1.0 if mode == "max" else 1.0
    values = np.log(scores) if by_ratio else sign * scores
    cost = np.minimum(values, values[0])
    half = max(round(WINDOW / 2 / np.log10(rates[1] / rates[0])), 1)
    window = np.full(2 * half + 1, 1 / (2 * half + 1))
    smoothed = np.convolve(np.pad(cost, half, mode="edge"), window, "valid")
    averages = np.exp(smoothed) if by_ratio else sign * smoothed + 0.0
    progress, least = cost[0] - cost.min(), LEAST_PROGRESS * (1 if by_ratio else abs(cost[0]))
    if progress < least or not progress > 0:
        if (values > values[0] + LEAST_PROGRESS * abs(values[0])).any():
            return averages, None, f"No rate is better than the lowest: lower `low`, {rates[0]:.3g}."
        return averages, None, "The score hardly depends on the rate: raise `high`, or train longer."
    end = smoothed.min() + REMAINDER * (smoothed[0] - smoothed.min())
    suggestion = float(rates[int((smoothed <= end).argmax())])
    return averages, suggestion, _border(rates, cost, half)


def _border(rates: np.ndarray, cost: np.ndarray, half: int) -> str:
    """A note if the best score is at a border of the range, within half a window; else an empty text."""
    best = int(cost.argmin())
    if best <= half:
        return f"The best score is at the lower border of the range: lower `low`, {rates[0]:.3g}."
    if best >= len(rates) - 1 - half and cost[-1] < cost[0]:
        return f"The best score is at the upper border of the range: raise `high`, {rates[-1]:.3g}."
    return ""
