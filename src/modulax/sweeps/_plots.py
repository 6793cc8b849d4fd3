"""Pictures of a sweep: curves, final values against hyperparameters, and heat maps.

`Panels` prepares the numbers; `_curves`, `_against` and `_heat_map` draw one panel each.
"""

import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .._support.checks import check_option
from .._support.plotting import pyplot
from ._panels import REDUCTIONS, Column, Panels, differing, has_tens, limits, padded, scale_of, shown, ticks_of

KINDS = ("curves", "final", "heatmap")
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
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "text.color": INK,
    "legend.frameon": False,
}
MANY = 12  # With more members, a curve has no band, and a heat map of more rows or columns no values in its cells.


def plot(
    results: Any,
    metric: str | None,
    kind: str | Sequence[str] | None,
    hyperparameters: Sequence[str] | None,
    mode: str,
    reduce: str,
    every: int | None,
) -> Any:
    """The figure of `Results.plot`."""
    plt = pyplot("Results.plot", "sweeps")
    kinds = KINDS if kind is None else (kind,) if isinstance(kind, str) else tuple(kind)
    for name in kinds:
        check_option("plot", "kind", name, KINDS)
    panels = Panels(results, metric, hyperparameters, mode, reduce, every)
    drawn = [draw for name in kinds for draw in _panels_of(name, panels, wanted=kind is not None)]
    wide = 2 if len(drawn) == 4 else min(len(drawn), 3)
    high = -(-len(drawn) // wide)
    # Before the style: with the first figure, the backend of notebooks changes a setting that has to stay.
    width = 3.4 if wide < 3 else 2.8
    figure = plt.figure(figsize=(0.6 + width * wide, 0.4 + (0.8 * width) * high), layout="constrained")
    with plt.rc_context(STYLE):
        handles: dict[str, Any] = {}
        for k, draw in enumerate(drawn):
            draw(figure.add_subplot(high, wide, k + 1), handles)
        if handles:
            legend = {"handles": [*handles.values()], "labels": [*handles], "loc": "outside lower center"}
            figure.legend(**legend, ncols=_columns(list(handles), figure.get_figwidth()))
        # Matplotlib reads some settings when it draws, outside of this context; drawing once fixes them.
        figure.draw_without_rendering()
    return figure


def _columns(labels: Sequence[str], width: float) -> int:
    """How many columns of a legend fit into so many inches."""
    widths = [0.65 + 0.078 * max(map(len, label.splitlines())) for label in labels]
    for n in range(len(labels), 1, -1):
        rows = -(-len(labels) // n)  # a legend is filled by column
        if sum(max(widths[i : i + rows]) for i in range(0, len(labels), rows)) <= width:
            return n
    return 1


def _panels_of(kind: str, panels: Panels, wanted: bool) -> list[Callable[[Any, dict[str, Any]], None]]:
    """The panels of one kind, as functions that draw on axes and add to the entries of the legend."""
    if kind == "curves":
        if panels.curve.shape[2] > 1:
            return [lambda ax, handles: _curves(ax, handles, panels)]
        if wanted:
            raise ValueError(
                f"`{panels.metric}` has one value for each run, so there are no curves. Let `train` return the values "
                f"over time, or train in segments."
            )
        return []
    if kind == "final":
        columns = list(panels.columns)
        if any(all(column.values[i] is None for column in columns) for i in range(len(panels.scores))):
            names = [name for i in range(len(panels.scores)) for name, of in panels.classes.items() if i in of]
            columns.append(Column("optimizer", list(names)))
        return [lambda ax, handles, column=column: _against(ax, handles, panels, column) for column in columns]
    found = []
    for name, members in panels.classes.items():
        of_class = [c for c in panels.numeric() if len({c.values[i] for i in members}) > 1]
        if len(of_class) >= 2 and panels.is_grid(members):
            pair = of_class[0], of_class[1]
            found.append(
                lambda ax, handles, name=name, members=members, pair=pair: _heat_map(
                    ax, handles, panels, name, members, pair
                )
            )
    if wanted and not found:
        raise ValueError("A heat map needs two hyperparameters on a grid: `sweeps.grid(optimizer, a=[...], b=[...])`.")
    return found


def _curves(ax: Any, handles: dict[str, Any], panels: Panels) -> None:
    """The metric over time: a line for each member, and the range of its seeds if there are few members."""
    members, seeds, length = panels.curve.shape
    steps = panels.every * np.arange(1, length + 1)
    inside = np.arange(length) < panels.lengths[:, None]
    finite = np.isfinite(panels.curve)
    drawn = np.where(finite, panels.curve, np.nan)
    worst = np.inf if panels.mode == "min" else -np.inf
    middle = REDUCTIONS[panels.reduce](np.where(finite, panels.curve, worst), axis=1)
    middle = np.where(np.isfinite(middle), middle, np.nan)
    colors = _colors(ax, handles, panels)
    few = members <= MANY and seeds > 1
    for i in range(members):
        is_best = i == panels.best
        line = {"color": BEST if is_best else colors[i], "zorder": 3 if is_best else 2}
        if few:
            there = finite[i].any(axis=0)
            low = np.where(there, np.where(finite[i], panels.curve[i], np.inf).min(axis=0), np.nan)
            high = np.where(there, np.where(finite[i], panels.curve[i], -np.inf).max(axis=0), np.nan)
            ax.fill_between(steps, low, high, color=line["color"], alpha=0.15, linewidth=0)
        is_short = length <= MANY or np.isfinite(middle[i]).sum() == 1
        style = {"marker": "o", "markersize": 3} if is_short else {}
        ax.plot(steps, middle[i], linewidth=1.6 if is_best else 1.0 if few else 0.8, **line, **style)
        ended = ~finite[i] & inside[i]
        if ended.any():
            last = np.flatnonzero(np.isfinite(middle[i]))
            if last.size:
                mark = ax.plot(steps[last[-1]], middle[i, last[-1]], "x", markersize=5, **line)
                handles.setdefault("diverged", mark[0])
    values = drawn[np.isfinite(drawn)]
    if not values.size:
        _say_that_all_diverged(ax)
    else:
        low, high = float(values.min()), float(values.max())
        first = drawn[..., 0][np.isfinite(drawn[..., 0])]
        if panels.mode == "min" and first.size and low > 0:
            high = min(high, max(3 * float(np.median(first)), panels.limits[1] if panels.is_finite.any() else 0.0))
        _set_limits(ax, low, high)
    ax.set(xlabel=panels.time, ylabel=panels.metric)
    margin = 0.5 * panels.every
    ax.set_xlim(*((margin, steps[-1] + margin) if length <= MANY else (0, steps[-1])))
    if length <= MANY:
        ax.xaxis.get_major_locator().set_params(integer=True)


def _colors(ax: Any, handles: dict[str, Any], panels: Panels) -> list[Any]:
    """The color of each member's curve: by class if there are several, or by what varies first."""
    members = range(len(panels.scores))
    if len(panels.classes) > 1:
        for name, of_class in panels.classes.items():
            handles.setdefault(name, ax.plot([], [], color=_color_of_class(panels, of_class[0]))[0])
        return [_color_of_class(panels, i) for i in members]
    numeric = panels.numeric()
    if numeric:
        values = numeric[0].numbers()
        scale = scale_of(numeric[0].name, values)
        placed = scale.transform(values)
        norm = "log" if scale.name == "log" else "linear"
        mappable = ax.scatter([], [], c=[], norm=norm, cmap=COLORS_OF_VALUES)
        mappable.set_clim(np.nanmin(placed), np.nanmax(placed))
        bar = ax.figure.colorbar(mappable, ax=ax, label=scale.label, pad=0.02, aspect=30)
        bar.outline.set_visible(False)
        return [mappable.to_rgba(x) for x in placed]
    if panels.columns:
        texts = panels.columns[0].texts()
        for k, text in enumerate(differing(texts)[: len(CATEGORIES)]):
            handles.setdefault(text, ax.plot([], [], color=CATEGORIES[k])[0])
        return [CATEGORIES[texts.index(shown(x)) % len(CATEGORIES)] for x in panels.columns[0].values]
    return [INK for _ in members]


def _color_of_class(panels: Panels, i: int) -> str:
    """The color of a member's class."""
    place = next(k for k, members in enumerate(panels.classes.values()) if i in members)
    return CATEGORIES[place % len(CATEGORIES)]


def _set_heights(ax: Any, panels: Panels) -> None:
    """The vertical axis of final values."""
    if not panels.is_finite.any():
        _say_that_all_diverged(ax)
        return
    _set_limits(ax, *panels.limits)


def _set_limits(ax: Any, low: float, high: float) -> None:
    """The vertical axis for values in a range, logarithmic if that spans a factor of ten."""
    is_log = has_tens(low, high)
    low, high = padded(low, high, is_log)
    if is_log:
        ax.set_yscale("log")
        _name(ax.yaxis, ticks_of(low, high))
    ax.set_ylim(low, high)


def _name(axis: Any, ticks: Sequence[float] | None) -> None:
    """Name some values on a logarithmic axis, in place of powers of ten."""
    if ticks is not None:
        axis.set_ticks(ticks, [f"{tick:.3g}" for tick in ticks])
        axis.set_ticks([], minor=True)


def _say_that_all_diverged(ax: Any) -> None:
    ax.set(ylim=(0, 1), yticks=[])
    ax.text(0.5, 0.5, "all runs diverged", transform=ax.transAxes, ha="center", color=GREY)


def _against(ax: Any, handles: dict[str, Any], panels: Panels, column: Column) -> None:
    """The final value against one hyperparameter, with the spread over the seeds."""
    is_numeric = column.is_numeric
    if is_numeric:
        scale = scale_of(column.name, column.numbers())
        x = scale.transform(column.numbers())
        ax.set_xscale(scale.name, **scale.options)
        ax.set_xlabel(scale.label)
        if scale.name == "log":
            there = np.unique(x[np.isfinite(x)])
            is_short = len(there) <= 5 and there[-1] <= 99 * there[0]
            _name(ax.xaxis, there.tolist() if is_short else ticks_of(there[0], there[-1], (1, 3)))
    else:
        texts = column.texts()
        x = np.array([np.nan if value is None else texts.index(shown(value)) for value in column.values])
        wrapped = [textwrap.fill(text, 18) for text in differing(texts)]
        is_wide = sum(max(map(len, name.splitlines())) for name in wrapped) > 30
        ax.set_xticks(range(len(texts)), wrapped, **({"rotation": 30, "ha": "right"} if is_wide else {}))
        ax.set(xlabel=column.name, xlim=(-0.5, len(texts) - 0.5))
    ax.set_ylabel(f"final {panels.metric}" if panels.curve.shape[2] > 1 else panels.metric)
    _set_heights(ax, panels)
    spread = f"{panels.reduce} and range of {panels.seeds} seeds" if panels.seeds > 1 else None
    for name, of_class in panels.classes.items():
        members = [i for i in of_class if not np.isnan(x[i])]
        if not members:
            continue
        color = _color_of_class(panels, members[0])
        going = [i for i in members if not panels.is_stopped[i]]
        stopped = [i for i in members if panels.is_stopped[i]]
        if stopped:
            handles["stopped early"] = _points(ax, panels, x, stopped, SOFT)
        if is_numeric and not stopped and panels.is_grid(members) and len({x[i] for i in members}) > 1:
            handle = _line(ax, handles, panels, x, members, color)
            spread = f"best at each value: {spread}" if spread and "all members" in handles else spread
        else:
            handle = _points(ax, panels, x, going, color)
        if len(panels.classes) > 1:
            handles.setdefault(name, handle)
        elif spread:
            handles.setdefault(spread, handle)
        bad = [i for i in members if panels.bad(i)]
        if bad:
            places = sorted({x[i] for i in bad})
            heights = np.full(len(places), panels.worst_edge)
            beyond = "diverged" if not panels.is_beyond(panels.final[panels.is_finite]).any() else "diverged or far off"
            marks = ax.plot(places, heights, "x", color=color, markersize=5, transform=ax.get_xaxis_transform())
            handles.pop("diverged", None)
            handles.setdefault(beyond, marks[0])
    if panels.best is not None and not np.isnan(x[panels.best]):
        found = ax.plot(x[panels.best], panels.scores[panels.best], "o", color=BEST, markersize=6, zorder=5)
        handles.setdefault(textwrap.fill(f"best: {panels.best_text()}", 60), found[0])


def _line(ax: Any, handles: dict[str, Any], panels: Panels, x: np.ndarray, members: Sequence[int], color: str) -> Any:
    """A line through the best member at each value, over the range of its seeds; all members as faint points."""
    sign = 1 if panels.mode == "min" else -1
    places = sorted({float(x[i]) for i in members})
    chosen = [min((i for i in members if x[i] == place), key=lambda i: sign * panels.scores[i]) for place in places]
    if len(chosen) < len(members):
        points = ax.plot(x[list(members)], panels.summary(members)[0], "o", color=SOFT, markersize=3, zorder=1)
        handles.setdefault("all members", points[0])
    middle, low, high = panels.summary(chosen)
    if panels.seeds > 1:
        ax.fill_between(places, low, high, color=color, alpha=0.15, linewidth=0)
    return ax.plot(places, middle, "o-", color=color, markersize=3, linewidth=1.2)[0]


def _points(ax: Any, panels: Panels, x: np.ndarray, members: Sequence[int], color: str) -> Any:
    """A point for each member, with a line over the range of its seeds."""
    middle, low, high = panels.summary(members)
    places = x[list(members)]
    if panels.seeds > 1:
        ax.vlines(places, low, high, color=color, linewidth=0.8, alpha=0.45)
    return ax.plot(places, middle, "o", color=color, markersize=3.5, alpha=0.8, markeredgewidth=0)[0]


def _heat_map(
    ax: Any, handles: dict[str, Any], panels: Panels, name: str, members: Sequence[int], pair: tuple[Column, Column]
) -> None:
    """The final value for two hyperparameters; the best over whatever else varies."""
    across, down = (sorted({column.values[i] for i in members}) for column in pair)
    sign = 1 if panels.mode == "min" else -1
    chosen = np.array(
        [
            [
                min(
                    (i for i in members if (pair[0].values[i], pair[1].values[i]) == (a, b)),
                    key=lambda i: sign * panels.scores[i],
                )
                for a in across
            ]
            for b in down
        ]
    )
    values = panels.middle[chosen]
    low, high = limits(values[np.isfinite(values)], panels.mode)
    is_log = has_tens(low, high)
    colors = f"{COLORS_OF_VALUES}_r" if panels.mode == "max" else COLORS_OF_VALUES
    mesh = ax.pcolormesh(values, cmap=colors, norm="log" if is_log else "linear")
    if np.isfinite(values).any():
        mesh.set_clim(low, high)
        bar = ax.figure.colorbar(mesh, ax=ax, label=panels.metric, pad=0.02, aspect=30)
        bar.outline.set_visible(False)
    if len(across) <= MANY and len(down) <= MANY:
        for (b, a), value in np.ndenumerate(values):
            if np.isfinite(value):
                r, g, blue, _ = mesh.to_rgba(value)
                color = "white" if 0.3 * r + 0.59 * g + 0.11 * blue < 0.55 else INK
                ax.text(
                    a + 0.5,
                    b + 0.5,
                    f"{value:.2g}",
                    ha="center",
                    va="center",
                    fontsize=min(7.5, 38 / len(across)),
                    color=color,
                )
    gaps = np.argwhere(~np.isfinite(values))
    if gaps.size:
        marks = ax.plot(gaps[:, 1] + 0.5, gaps[:, 0] + 0.5, "x", color=GREY, markersize=5)
        handles.setdefault("diverged", marks[0])
    for axis, texts in ((ax.xaxis, across), (ax.yaxis, down)):
        every = -(-len(texts) // MANY)
        axis.set_ticks(np.arange(len(texts))[::every] + 0.5, [f"{x:.3g}" for x in texts[::every]])
    ax.tick_params(axis="x", rotation=45 if len(across) > 5 else 0)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    ax.set(xlabel=pair[0].name, ylabel=pair[1].name)
    if len(panels.classes) > 1:
        ax.set_title(name)
    if panels.best in members:
        (b, a), *_ = np.argwhere(chosen == panels.best)
        ax.plot([a, a + 1, a + 1, a, a], [b, b, b + 1, b + 1, b], color=BEST, linewidth=2, clip_on=False, zorder=5)
