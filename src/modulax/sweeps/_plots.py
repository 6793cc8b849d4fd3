"""Pictures of a sweep: curves, final values against hyperparameters, and heat maps.

`Panels` prepares the numbers; `_curves`, `_against` and `_heat_map` draw one panel each, and add to its legend.
"""

import functools
import importlib
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from .._plugin.arguments import check_option
from .._plugin.messages import imported
from ._panels import Column, Panels, Scale, Spread, has_tens, limits, padded, spread, ticks_of

Draw = Callable[[Any, Panels], None]  # on axes
INK, SOFT, BEST, GREY = "#22313f", "#b8c4ce", "#c0392b", "#7d838c"
# Colors of classes and of values that aren't numbers; readable for color-blind people, and unlike that of the best.
CATEGORIES = (INK, "#dd8a10", "#3f86d6", "#1f9e73", "#b06bb0", GREY)
COLORS_OF_VALUES = "viridis"
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    **dict.fromkeys(("axes.edgecolor", "axes.labelcolor", "axes.titlecolor"), INK),
    **dict.fromkeys(("xtick.color", "ytick.color", "text.color"), INK),
}
MANY = 12  # With more members, a curve has no band, and a heat map of more rows or columns no values in its cells.


class Lines(NamedTuple):
    """Members that are drawn as a line or as points of one color, and what they are called."""

    name: str
    members: np.ndarray
    color: Any


def plot(panels: Panels, kind: str | Sequence[str] | None) -> Any:
    """The figure of `Results.plot`, with all panels of some kinds."""
    kinds = tuple(PANELS) if kind is None else (kind,) if isinstance(kind, str) else tuple(kind)
    for name in kinds:
        check_option("plot", "kind", name, tuple(PANELS))
    drawings: list[Draw] = []
    for name in kinds:
        drawings += (found := PANELS[name](panels))
        if kind is not None and not found:
            raise ValueError(MISSING[name].format(metric=panels.metric))
    columns = 2 if len(drawings) == 4 else min(len(drawings), 3)
    return _figure(panels, drawings, columns, 3.4 if columns < 3 else 2.8)


def plot_by(panels: Panels, x: str, by: str) -> Any:
    """The figure of `Results.plot` with one panel: the metric against one hyperparameter, by the values of another."""
    lines = _lines(panels.column("by", by))
    draw = functools.partial(_against, column=panels.column("x", x), lines=lines, marks_best=True)
    return _figure(panels, [draw], 1, 5.4, is_below=False)


def _figure(panels: Panels, drawings: Sequence[Draw], columns: int, width: float, is_below: bool = True) -> Any:
    """A figure with panels of the same width in so many columns, and the legend below or beside them."""
    rows, height = -(-len(drawings) // columns), (0.8 if is_below else 0.6) * width

    def draw_all(figure: Any) -> None:
        for k, draw in enumerate(drawings):
            draw(figure.add_subplot(rows, columns, k + 1), panels)
        if legend := panels.legend:
            labels = [textwrap.fill(label, 60 if is_below else 26) for label in legend]
            options: dict[str, Any] = {"loc": "outside right center"}
            if is_below:
                options = {"loc": "outside lower center", "ncols": _legend_columns(labels, figure.get_figwidth())}
            figure.legend([*legend.values()], labels, **options)

    return figure_of("Results.plot", (0.6 + width * columns, 0.4 + height * rows), draw_all)


def figure_of(name: str, size: tuple[float, float], draw: Callable[[Any], None]) -> Any:
    """A figure in the style of the library, which a notebook shows once.

    Args:
        name: the function that the user called.
        size: the width and the height.
        draw: draws the figure.
    """
    # Before the style: with the first figure, the backend of notebooks changes a setting that has to stay.
    plt = imported("matplotlib.pyplot", name, "sweeps")
    figure = plt.figure(figsize=size, layout="constrained")
    with plt.rc_context(STYLE):
        draw(figure)
        # Matplotlib reads some settings when it draws, outside of this context; drawing once fixes them.
        figure.draw_without_rendering()
    figure._ipython_display_ = functools.partial(_show_in_notebook, figure)
    return figure


def _show_in_notebook(figure: Any) -> None:
    """Show a figure in a notebook for the first time.

    A notebook shows the figure at the end of the cell, and the value of the last line. If that is the figure, it would
    be there twice: so whichever comes first closes it. After that, it is a figure like any other.
    """
    display = importlib.import_module("IPython.display").display
    plt = imported("matplotlib.pyplot", "Results.plot", "sweeps")
    del figure._ipython_display_
    if "inline" in plt.get_backend():
        plt.close(figure)
    display(figure)


def _legend_columns(labels: Iterable[str], width: float) -> int:
    """How many columns of a legend fit into so many inches."""
    widths = [0.65 + 0.078 * max(map(len, label.splitlines())) for label in labels]
    for n in range(len(widths), 1, -1):
        rows = -(-len(widths) // n)  # a legend is filled by column
        if sum(max(widths[i : i + rows]) for i in range(0, len(widths), rows)) <= width:
            return n
    return 1


def _curve_panels(panels: Panels) -> list[Draw]:
    return [_curves] if len(panels.steps) > 1 else []


def _final_panels(panels: Panels) -> list[Draw]:
    columns = panels.columns
    if any(all(column.values[i] is None for column in columns) for i in range(len(panels.class_of))):
        columns = [*columns, panels.optimizers]
    return [functools.partial(_against, column=column, lines=_lines(panels.optimizers)) for column in columns]


def _heat_maps(panels: Panels) -> list[Draw]:
    drawings: list[Draw] = []
    for name, members in panels.classes.items():
        varied = [column for column in panels.numeric() if len({column.values[i] for i in members}) > 1]
        if len(varied) >= 2 and panels.is_grid(members):
            drawings.append(functools.partial(_heat_map, name=name, members=members, pair=(varied[0], varied[1])))
    return drawings


PANELS = {"curves": _curve_panels, "final": _final_panels, "heatmap": _heat_maps}
MISSING = {
    "curves": (
        "`{metric}` has one value for each run, so there are no curves. Let `train` return the values over time, or "
        "train in segments."
    ),
    "heatmap": "A heat map needs two hyperparameters on a grid: `sweeps.grid(optimizer, a=[...], b=[...])`.",
}


def _curves(ax: Any, panels: Panels) -> None:
    """The metric over time: a line for each member, and the range of its seeds if there are few members."""
    values = spread(panels.curves, panels.mode, panels.reduce, panels.is_there)
    has_bands = len(panels.curves) <= MANY and panels.seeds > 1
    for i, color in enumerate(_colors(ax, panels)):
        _curve(ax, panels, values.of(i), i, color, has_bands)
    set_heights(ax, _curve_limits(panels), panels.mode)
    ax.set(xlabel=panels.time, ylabel=panels.metric)
    margin, end = 0.5 * panels.every, panels.steps[-1]
    ax.set_xlim(*((margin, end + margin) if len(panels.steps) <= MANY else (0, end)))
    if len(panels.steps) <= MANY:
        ax.xaxis.get_major_locator().set_params(integer=True)


def _curve(ax: Any, panels: Panels, values: Spread, i: int, color: Any, has_band: bool) -> None:
    """The curve of one member."""
    line, width = {"color": color, "zorder": 2}, 1.0 if has_band else 0.8
    if i == panels.best:
        line, width = {"color": BEST, "zorder": 3}, 1.6
    if has_band:
        ax.fill_between(panels.steps, values.low, values.high, color=line["color"], alpha=0.15, linewidth=0)
    times = np.flatnonzero(np.isfinite(values.middle))
    markers = {"marker": "o", "markersize": 3} if len(panels.steps) <= MANY or len(times) == 1 else {}
    ax.plot(panels.steps, values.middle, linewidth=width, **line, **markers)
    if times.size and not np.isfinite(panels.curves[i, :, : panels.lengths[i]]).all():
        end = times[-1]
        panels.mark("diverged", ax.plot(panels.steps[end], values.middle[end], "x", markersize=5, **line))


def _curve_limits(panels: Panels) -> tuple[float, float] | None:
    """The range of the curves, without losses far above the first ones; None if all diverged."""
    values, first = (x[np.isfinite(x)] for x in (panels.curves, panels.curves[..., 0]))
    if not values.size:
        return None
    low, high = float(values.min()), float(values.max())
    if panels.mode == "min" and first.size and low > 0:
        high = min(high, max(3 * float(np.median(first)), panels.limits[1] if panels.limits else 0.0))
    return low, high


def _colors(ax: Any, panels: Panels) -> list[Any]:
    """The color of each member's curve: by class if there are several, or by what varies first."""
    numeric = panels.numeric()
    if len(panels.classes) == 1 and numeric:
        return _by_number(ax, numeric[0].scale())
    column = panels.optimizers if len(panels.classes) > 1 else panels.columns[0] if panels.columns else None
    colors = [INK for _ in panels.curves]
    for k, (name, members, color) in enumerate(_lines(column) if column else []):
        for i in members:
            colors[i] = color
        if k < len(CATEGORIES) or column is panels.optimizers:
            panels.mark(name, ax.plot([], [], color=color))
    return colors


def _by_number(ax: Any, scale: Scale) -> list[Any]:
    """Colors of numbers, with a color bar."""
    points = ax.scatter([], [], c=[], norm="log" if scale.name == "log" else "linear", cmap=COLORS_OF_VALUES)
    points.set_clim(np.nanmin(scale.places), np.nanmax(scale.places))
    _add_color_bar(ax, points, scale.label)
    return [points.to_rgba(x) for x in scale.places]


def _add_color_bar(ax: Any, colored: Any, label: str) -> None:
    ax.figure.colorbar(colored, ax=ax, label=label, pad=0.02, aspect=30).outline.set_visible(False)


def set_heights(ax: Any, limits: tuple[float, float] | None, mode: str) -> None:
    """The vertical axis for values in a range, logarithmic if that spans a factor of ten and small ones are good."""
    if limits is None:
        ax.set(ylim=(0, 1), yticks=[])
        ax.text(0.5, 0.5, "all runs diverged", transform=ax.transAxes, ha="center", color=GREY)
        return
    set_range(ax, "y", limits, mode)


def set_range(ax: Any, which: str, limits: tuple[float, float], mode: str) -> None:
    """The axis `"x"` or `"y"` for values in a range."""
    is_log = has_tens(*limits, mode)
    low, high = padded(*limits, is_log)
    if is_log:
        ax.set(**{f"{which}scale": "log"})
        _name(getattr(ax, f"{which}axis"), ticks_of(low, high))
    ax.set(**{f"{which}lim": (low, high)})


def _name(axis: Any, ticks: Sequence[float] | None) -> None:
    """Name some values on a logarithmic axis, in place of powers of ten."""
    if ticks is not None:
        axis.set_ticks(ticks, [f"{tick:.3g}" for tick in ticks])
        axis.set_ticks([], minor=True)


def _lines(column: Column) -> list[Lines]:
    """The members with each value of a hyperparameter, or of each class; without a name if there is one class."""
    places, names = column.places(), [*column.names().values()]
    order, colors = range(len(names)), [CATEGORIES[k % len(CATEGORIES)] for k in range(len(names))]
    if column.is_numeric:
        order = np.argsort([column.values[places.tolist().index(k)] for k in order])
        plt = imported("matplotlib.pyplot", "Results.plot", "sweeps")
        colors = plt.get_cmap(COLORS_OF_VALUES)(np.linspace(0, 0.9, len(names)))
    if column.name != "optimizer":
        names = [f"{column.name} = {name}" for name in names]
    elif len(names) == 1:
        names = [""]
    return [Lines(names[k], np.flatnonzero(places == k), color) for k, color in zip(order, colors, strict=True)]


def _against(ax: Any, panels: Panels, column: Column, lines: Sequence[Lines], marks_best: bool = False) -> None:
    """The final value against one hyperparameter, with the spread over the seeds.

    Args:
        ax: the axes.
        panels: the numbers.
        column: the hyperparameter.
        lines: the members, by color.
        marks_best: whether the best of each color is marked.
    """
    x = _numbers_across(ax, column.scale()) if column.is_numeric else _names_across(ax, column)
    ax.set_ylabel(f"final {panels.metric}" if len(panels.steps) > 1 else panels.metric)
    set_heights(ax, panels.limits, panels.mode)
    for line in lines:
        members = line.members[~np.isnan(x[line.members])]
        if members.size:
            _line_against(ax, panels, x, line._replace(members=members), column.is_numeric, marks_best)
    for _, members, color in lines:
        _mark_bad(ax, panels, x[members[panels.is_bad[members] & ~np.isnan(x[members])]], color)
    best = panels.best
    if best is not None and not np.isnan(x[best]):
        mark = ax.plot(x[best], panels.final.middle[best], "o", color=BEST, markersize=6, zorder=5)
        panels.mark(panels.best_text(best), mark)


def _line_against(ax: Any, panels: Panels, x: np.ndarray, line: Lines, joined: bool, marks_best: bool) -> None:
    """The final values of members of one color, as in `_against`: joined, on a grid, by a line through the best."""
    name, members, color = line
    label = f"{panels.reduce} and range of {panels.seeds} seeds" if panels.seeds > 1 else ""
    is_stopped = panels.is_stopped[members]
    if is_stopped.any():
        panels.legend["stopped early"] = _points(ax, panels, x, members[is_stopped], SOFT)
    if joined and not is_stopped.any() and panels.is_grid(members) and len(np.unique(x[members])) > 1:
        handle = _line(ax, panels, x, members, color)
        label = f"best at each value: {label}" if label and "all members" in panels.legend else label
    else:
        handle = _points(ax, panels, x, members[~is_stopped], color)
    if name or label:
        panels.legend.setdefault(name or label, handle)
    if name and label and marks_best:
        ax.set_title(label)
    best = members[panels.costs[members].argmin()]
    if marks_best and np.isfinite(panels.costs[best]):
        ax.plot(x[best], panels.final.middle[best], "o", color=color, markersize=7, zorder=4)


def _numbers_across(ax: Any, scale: Scale) -> np.ndarray:
    """The horizontal axis for numbers; return the places of the members."""
    ax.set_xscale(scale.name, **scale.options)
    ax.set_xlabel(scale.label)
    if scale.name == "log":
        values = np.unique(scale.places[np.isfinite(scale.places)])
        is_short = len(values) <= 5 and values[-1] <= 99 * values[0]
        _name(ax.xaxis, values.tolist() if is_short else ticks_of(values[0], values[-1], (1, 3)))
    return scale.places


def _names_across(ax: Any, column: Column) -> np.ndarray:
    """The horizontal axis for values that aren't numbers; return the places of the members."""
    names = [textwrap.fill(name, 18) for name in column.names().values()]
    is_wide = sum(max(map(len, name.splitlines())) for name in names) > 30
    ax.set_xticks(range(len(names)), names, **({"rotation": 30, "ha": "right"} if is_wide else {}))
    ax.set(xlabel=column.name, xlim=(-0.5, len(names) - 0.5))
    return column.places()


def _line(ax: Any, panels: Panels, x: np.ndarray, members: np.ndarray, color: Any) -> Any:
    """A line through the best member at each value, over the range of its seeds; all members as faint points."""
    best = panels.best_at(members, x)
    places = sorted(best)
    if len(places) < len(members):
        points = ax.plot(x[members], panels.final.middle[members], "o", color=SOFT, markersize=3, zorder=1)
        panels.mark("all members", points)
    values = panels.final.of([best[place] for place in places])
    if panels.seeds > 1:
        ax.fill_between(places, values.low, values.high, color=color, alpha=0.15, linewidth=0)
    return ax.plot(places, values.middle, "o-", color=color, markersize=3, linewidth=1.2)[0]


def _points(ax: Any, panels: Panels, x: np.ndarray, members: np.ndarray, color: Any) -> Any:
    """A point for each member, with a line over the range of its seeds."""
    values = panels.final.of(members)
    if panels.seeds > 1:
        ax.vlines(x[members], values.low, values.high, color=color, linewidth=0.8, alpha=0.45)
    return ax.plot(x[members], values.middle, "o", color=color, markersize=3.5, alpha=0.8, markeredgewidth=0)[0]


def _mark_bad(ax: Any, panels: Panels, places: np.ndarray, color: Any) -> None:
    """Mark runs that diverged, or are far from the others, at the worst edge of the axes."""
    if places.size:
        places = np.unique(places)
        edge = np.full(len(places), 0.965 if panels.mode == "min" else 0.035)
        marks = ax.plot(places, edge, "x", color=color, markersize=5, transform=ax.get_xaxis_transform())
        panels.legend.pop("diverged", None)  # of the curves; the words here may say more
        panels.mark(panels.bad_label, marks)


def _heat_map(ax: Any, panels: Panels, name: str, members: np.ndarray, pair: tuple[Column, Column]) -> None:
    """The final value for two hyperparameters; the best over whatever else varies."""
    keys = list(zip(*(column.values for column in pair), strict=True))
    best = panels.best_at(members, keys)
    across, down = map(sorted, map(set, zip(*best, strict=True)))
    cells = np.array([[best[a, b] for a in across] for b in down])
    values = panels.final.middle[cells]
    mesh = _colored_cells(ax, panels, values)
    if max(values.shape) <= MANY:
        _write_values(ax, mesh, values)
    y, x = np.nonzero(~np.isfinite(values))
    if y.size:
        panels.mark("diverged", ax.plot(x + 0.5, y + 0.5, "x", color=GREY, markersize=5))
    _name_cells(ax.xaxis, pair[0].name, across)
    _name_cells(ax.yaxis, pair[1].name, down)
    ax.tick_params(axis="x", rotation=45 if len(across) > 5 else 0)
    ax.spines[:].set_visible(False)
    if len(panels.classes) > 1:
        ax.set_title(name)
    for b, a in np.argwhere(cells == panels.best):
        ax.plot([a, a + 1, a + 1, a, a], [b, b, b + 1, b + 1, b], color=BEST, linewidth=2, clip_on=False, zorder=5)


def _colored_cells(ax: Any, panels: Panels, values: np.ndarray) -> Any:
    ends = limits(values[np.isfinite(values)], panels.mode)
    colors = f"{COLORS_OF_VALUES}_r" if panels.mode == "max" else COLORS_OF_VALUES
    mesh = ax.pcolormesh(values, cmap=colors, norm="log" if ends and has_tens(*ends, panels.mode) else "linear")
    if ends:
        mesh.set_clim(*ends)
        _add_color_bar(ax, mesh, panels.metric)
    return mesh


def _name_cells(axis: Any, label: str, numbers: Sequence[float | int]) -> None:
    """Name the rows or columns of a heat map; of many, only some."""
    every = -(-len(numbers) // MANY)
    axis.set_ticks(np.arange(len(numbers))[::every] + 0.5, [f"{x:.3g}" for x in numbers[::every]])
    axis.set_tick_params(length=0)
    axis.set_label_text(label)


def _write_values(ax: Any, mesh: Any, values: np.ndarray) -> None:
    """The values in the cells of a heat map, white on dark ones."""
    style = {"ha": "center", "va": "center", "fontsize": min(7.5, 38 / values.shape[1])}
    for (b, a), value in np.ndenumerate(values):
        if np.isfinite(value):
            luminance = np.dot(mesh.to_rgba(value)[:3], (0.3, 0.59, 0.11))
            ax.text(a + 0.5, b + 0.5, f"{value:.2g}", color="white" if luminance < 0.55 else INK, **style)
