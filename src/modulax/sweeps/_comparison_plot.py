"""The picture of a comparison: the metric of each optimizer, and what each tuning budget leads to."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from .._plugin.messages import imported
from ._panels import Spread
from ._plots import CATEGORIES, SOFT, figure_of, set_heights, set_range
from ._statistics import difference


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
