"""Draws curves, and paths over contour lines, as SVG, by matplotlib.

The background is transparent and all colors are readable on white and on black, so that one file serves both themes.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np

GREY, BLUE, ORANGE = "#7d838c", "#3f86d6", "#dd6b10"
INK = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color", "grid.color")
STYLE: dict[Any, Any] = dict.fromkeys(INK, GREY) | {
    "axes.axisbelow": True,
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "grid.alpha": 0.4,
    "legend.frameon": False,
    "lines.solid_capstyle": "round",
    "savefig.transparent": True,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "modulax",  # the same file in every build
}
PIXEL = 1 / 96  # of an inch


@contextmanager
def picture(file: Path, title: str, width: int, height: int, panels: int = 1) -> Iterator[Any]:
    """The axes of a picture, or those of several side by side; it is then saved. The title is for screen readers."""
    with mpl.rc_context(STYLE):
        figure, axes = plt.subplots(1, panels, figsize=(width * PIXEL, height * PIXEL), layout="constrained")
        yield axes
        figure.savefig(file, metadata={"Title": title, "Date": None})
        plt.close(figure)


class Valley(NamedTuple):
    """A function of two variables, the ranges in which it is drawn, its contour lines, and its minimum."""

    title: str
    function: Callable[[Any, Any], Any]
    x: tuple[float, float]
    y: tuple[float, float]
    levels: Any
    best: tuple[float, float]


def path_in(valley: Valley, file: Path, path: Any) -> None:
    """The path of an optimizer over the contour lines of a function; the deepest region has the deepest color."""
    path = np.asarray(path, np.float64)
    path[~(np.abs(path) < 100)] = np.nan
    grid = np.meshgrid(*(np.linspace(low, high, 60) for low, high in (valley.x, valley.y)))
    heights = np.asarray(valley.function(*grid))
    with picture(file, valley.title, 360, 300) as axes:
        shades = [(BLUE, 1 - 0.925**k) for k in range(len(valley.levels), 0, -1)]
        regions = axes.contourf(*grid, heights, [-1, *valley.levels], colors=shades)
        regions.set(edgecolor=(BLUE, 0.2), linewidth=0.6)
        axes.plot(*path.T, "o-", color=ORANGE, linewidth=1.2, markersize=2.8, markeredgewidth=0, alpha=0.8)
        axes.plot(*path[0], "o", color=ORANGE, markersize=8, markerfacecolor="none")
        axes.plot(*valley.best, "+", color=GREY, markersize=8, markeredgewidth=1.7)
        axes.set(xlim=valley.x, ylim=valley.y, xticks=[], yticks=[])
        axes.set_title(valley.title, loc="left", fontsize=9, fontweight="bold")


def losses(file: Path, steps: Any, curves: Sequence[tuple[str, str, Any]], title: str) -> None:
    """Losses on a logarithmic scale; the last curve is on top."""
    finite = [loss for _, _, losses in curves for loss in losses if np.isfinite(loss)]
    highest = min(max(losses[0] for _, _, losses in curves), 1e3)
    low, high = np.floor(np.log10(max(min(finite), 1e-6))), np.ceil(np.log10(highest))
    with picture(file, title, 740, 290) as axes:
        for name, color, losses in curves:
            axes.semilogy(steps, losses, color=color, label=name, linewidth=2 if name == curves[-1][0] else 1.4)
        axes.set(xlim=(0, steps[-1]), ylim=(10.0**low, 10.0**high), xlabel="steps")
        axes.grid(axis="y")
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, labelcolor="linecolor", reverse=True)


def schedule(file: Path, values: Any, title: str) -> None:
    """The values of a schedule at the steps 0, 1, …"""
    with picture(file, title, 520, 190) as axes:
        axes.plot(values, color=ORANGE, linewidth=1.8)
        axes.set(xlim=(0, len(values) - 1), ylim=(min(0.0, *values), 1.08 * max(max(values), 1e-9)), xlabel="step")
        axes.grid(axis="y")
        axes.set_title(title, loc="left", fontsize=9, family="monospace")
