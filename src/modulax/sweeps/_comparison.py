"""What a comparison shows: bootstrap intervals over seeds, the expected best of some members, and its picture."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .._plugin.messages import imported
from ._panels import REDUCTIONS, Spread
from ._plots import CATEGORIES, SOFT, figure_of, set_heights, set_range

DRAWS = 10_000
COVERED = 0.95


def intervals(values: np.ndarray, reduce: str, seed: Sequence[int]) -> tuple[Spread, Spread]:
    """The mean or median with its bootstrap interval of 95 % of each row, and of the difference of each pair of rows.

    All rows are drawn with the same seeds, so that differences are those within a seed.

    Args:
        values: the values, `[row, seed]`. One that is infinite makes a mean infinite.
        reduce: `"mean"` or `"median"`.
        seed: a seed of NumPy's generators.
    """
    places = np.random.default_rng(seed).integers(values.shape[1], size=(DRAWS, values.shape[1]))
    # With a row for the values themselves.
    places = np.concatenate([np.arange(values.shape[1])[None], places])
    drawn = REDUCTIONS[reduce](values[:, places], axis=-1)
    return _interval(drawn), _interval(difference(drawn[:, None], drawn[None]))


def difference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The difference, which is 0 for two values that are both infinite."""
    with np.errstate(invalid="ignore"):
        return np.where(a == b, 0.0, a - b)


def _interval(drawn: np.ndarray) -> Spread:
    """The value, which is the first one, and quantiles of the others: values that occur, since some may be infinite."""
    tail = (1 - COVERED) / 2
    low, high = np.quantile(drawn[..., 1:], [tail, 1 - tail], axis=-1, method="inverted_cdf")
    return Spread(drawn[..., 0], low, high)


def best_of(costs: np.ndarray, reported: np.ndarray) -> np.ndarray:
    """The expectation of what is reported of the best of k members, for each k from 1 to their number.

    The best is that of the least cost among k members, of which each choice is equally likely.

    Args:
        costs: the cost of each member.
        reported: what is reported of it.
    """
    in_order = reported[np.argsort(costs, kind="stable")]
    n = len(costs)
    # The chance that the k members have that of rank i, if they have none of the better ones. Quotients of binomial
    # coefficients overflow from about a thousand members on.
    chosen = np.minimum(np.arange(1, n + 1)[:, None] / (n - np.arange(n)), 1)
    none_before = np.cumprod(np.hstack([np.ones((n, 1)), 1 - chosen[:, :-1]]), axis=1)
    return (chosen * none_before) @ in_order


def plot_comparison(comparison: Any) -> Any:
    """The figure of `Comparison.plot`."""
    names, metric, mode = comparison.names, comparison.test, comparison.mode
    n, plt = len(names), imported("matplotlib.pyplot", "Comparison.plot", "sweeps")
    colors = CATEGORIES if n <= len(CATEGORIES) else plt.get_cmap("turbo")(np.linspace(0, 0.95, n))

    def draw(figure: Any) -> None:
        left, middle, right = figure.subplots(1, 3)
        _values(left, comparison.values, comparison.intervals, colors, mode)
        left.set_yticks(range(n), names)
        left.set(xlabel=metric, title="chosen, on new seeds")
        from_best = Spread(*(part[:, 0] for part in comparison.differences))
        _values(middle, difference(comparison.values, comparison.values[:1]), from_best, colors, mode)
        middle.axvline(0.0, color=SOFT, linewidth=0.8, zorder=0)
        middle.set(yticks=[], xlabel=f"difference in {metric}", title=f"from {names[0]}, with the same seed")
        _curves(right, {name: comparison.expected(name) for name in names}, colors, metric, mode)

    return figure_of("Comparison.plot", (11.0, max(2.6, 0.9 + 0.26 * n)), draw)


def _values(ax: Any, values: np.ndarray, interval: Spread, colors: Any, mode: str) -> None:
    """The seeds of each optimizer in a row, with the interval; those that diverged at the right edge."""
    finite = values[np.isfinite(values)]
    if finite.size:
        set_range(ax, "x", (float(finite.min()), float(finite.max())), mode)
    edge = ax.get_xlim()[1]
    for row, (color, own) in enumerate(zip(colors, values, strict=False)):
        sound = own[np.isfinite(own)]
        ax.plot(sound, np.full(len(sound), row), ".", color=SOFT, zorder=1)
        if len(sound) < len(own):
            ax.plot([edge], [row], "x", color=color, clip_on=False)
        if np.isfinite([part[row] for part in interval]).all():
            ax.plot([interval.low[row], interval.high[row]], [row, row], color=color, linewidth=2.5, zorder=2)
            ax.plot([interval.middle[row]], [row], "o", color=color, zorder=3)
    ax.invert_yaxis()


def _curves(ax: Any, curves: Mapping[str, np.ndarray], colors: Any, metric: str, mode: str) -> None:
    """What the best of k members leads to."""
    for color, (name, curve) in zip(colors, curves.items(), strict=False):
        ax.plot(range(1, len(curve) + 1), curve, color=color, label=name, marker="o" if len(curve) == 1 else "")
    every = np.concatenate(list(curves.values()))
    finite = every[np.isfinite(every)]
    set_heights(ax, (float(finite.min()), float(finite.max())) if finite.size else None, mode)
    ax.set(xlabel="members tried", ylabel=f"expected {metric}", title="best of k members of the search")
    ax.xaxis.get_major_locator().set_params(integer=True)
    if len(curves) > 1:
        ax.legend(fontsize=7, ncols=1 + len(curves) // 9)
