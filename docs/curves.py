"""Draws the small pictures of the documentation as SVG: curves, and paths over contour lines.

The background is transparent and all colors are readable on white and on black, so that one file serves both themes.
"""

from collections.abc import Callable, Iterable, Sequence
from html import escape
from itertools import pairwise
from typing import Any

import contourpy
import numpy as np

GREY, BLUE, ORANGE = "#7d838c", "#3f86d6", "#dd6b10"
Points = Sequence[Sequence[float]]


class Picture:
    """A frame with axes, in pixels of a page; what is drawn later is on top.

    Args:
        size: width and height.
        x: the range of the horizontal axis.
        y: the range of the vertical axis.
        log: whether the vertical axis is logarithmic.
        margins: space on the left, at the top, on the right and at the bottom.
    """

    def __init__(
        self,
        size: tuple[int, int],
        x: tuple[float, float],
        y: tuple[float, float],
        *,
        log: bool = False,
        margins: tuple[int, int, int, int] = (44, 30, 10, 34),
    ) -> None:
        self.size, self.x, self.y, self.log = size, x, y, log
        left, top, right, bottom = margins
        self.left, self.top, self.right, self.bottom = left, top, size[0] - right, size[1] - bottom
        self.parts: list[str] = []

    def place(self, points: Any) -> np.ndarray:
        """The pixels of points in the units of the axes."""
        points = np.asarray(points, np.float64).reshape(-1, 2)
        heights, (low, high) = points[:, 1], self.y
        if self.log:
            heights, low, high = np.log10(np.maximum(heights, 1e-300)), np.log10(low), np.log10(high)
        across = self.left + (points[:, 0] - self.x[0]) / (self.x[1] - self.x[0]) * (self.right - self.left)
        return np.stack([across, self.bottom - (heights - low) / (high - low) * (self.bottom - self.top)], axis=1)

    def shape(self, points: np.ndarray) -> str:
        return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)

    def line(self, points: Any, color: str, width: float = 2.0, opacity: float = 1.0, extra: str = "") -> None:
        """A line through points; entries that aren't finite, and what is far outside the frame, interrupt it."""
        placed = self.place(points)
        reach = 4 * max(self.size)
        seen = np.isfinite(placed).all(axis=1) & (np.abs(np.nan_to_num(placed)) < reach).all(axis=1)
        starts = np.flatnonzero(np.diff(np.concatenate([[False], seen, [False]]).astype(int)))
        path = "".join(self.shape(placed[a:b]) for a, b in zip(starts[::2], starts[1::2], strict=True))
        self.parts.append(
            f'<path d="{path}" fill="none" stroke="{color}" stroke-width="{width}" opacity="{opacity}" '
            f'stroke-linejoin="round" stroke-linecap="round" clip-path="url(#frame)" {extra}/>'
        )

    def dots(self, points: Any, color: str, radius: float, opacity: float = 1.0, *, hollow: bool = False) -> None:
        placed = self.place(points)
        inside = (placed >= (self.left, self.top)).all(axis=1) & (placed <= (self.right, self.bottom)).all(axis=1)
        fill = f'fill="none" stroke="{color}" stroke-width="2"' if hollow else f'fill="{color}"'
        circles = (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}"/>' for x, y in placed[inside])
        self.parts.append(f'<g {fill} opacity="{opacity}">{"".join(circles)}</g>')

    def contours(self, function: Callable[[Any, Any], Any], levels: Iterable[float]) -> None:
        """The regions below each level, one over the other, so that the valley has the deepest color."""
        x, y = np.linspace(*self.x, 90), np.linspace(*self.y, 90)
        grid = contourpy.contour_generator(x, y, np.asarray(function(*np.meshgrid(x, y))), fill_type="OuterOffset")
        for level in levels:
            filled: Any = grid.filled(-np.inf, level)
            polygons, offsets = filled
            rings = (points[a:b] for points, at in zip(polygons, offsets, strict=True) for a, b in pairwise(at))
            path = "".join(self.shape(self.place(ring)) + "Z" for ring in rings)
            self.parts.append(
                f'<path d="{path}" fill="{BLUE}" fill-opacity="0.075" fill-rule="evenodd" stroke="{BLUE}" '
                'stroke-opacity="0.3" stroke-width="0.7" clip-path="url(#frame)"/>'
            )

    def axes(self, x: Points, y: Points, names: tuple[Sequence[str], Sequence[str]], label: str = "") -> None:
        """Grid lines and names at positions of the axes."""
        for (position,), name in zip(x, names[0], strict=True):
            ((across, _),) = self.place([[position, self.y[0]]])
            self.text(name, (across, self.bottom + 16), "middle")
        for (position,), name in zip(y, names[1], strict=True):
            ((_, height),) = self.place([[self.x[0], position]])
            self.parts.append(
                f'<path d="M{self.left} {height:.1f}H{self.right}" stroke="{GREY}" stroke-opacity="0.25"/>'
            )
            self.text(name, (self.left - 6, height + 4), "end")
        if label:
            self.text(label, ((self.left + self.right) / 2, self.bottom + 30), "middle")

    def text(
        self, words: str, at: tuple[float, float], anchor: str = "start", color: str = GREY, more: str = ""
    ) -> None:
        x, y = at
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{color}" {more}>{words}</text>')

    def legend(self, entries: Sequence[tuple[str, str]]) -> None:
        """Names in their colors, above the frame."""
        at = float(self.left)
        for words, color in entries:
            self.parts.append(f'<path d="M{at:.1f} 14h18" stroke="{color}" stroke-width="3" stroke-linecap="round"/>')
            self.text(escape(words), (at + 24, 18), color=color, more='font-weight="600"')
            at += 24 + 8 * len(words) + 16

    def svg(self, title: str) -> str:
        width, height = self.size
        frame = f'x="{self.left}" y="{self.top}" width="{self.right - self.left}" height="{self.bottom - self.top}"'
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
            f'height="{height}" font-family="system-ui, sans-serif" font-size="12.5" role="img">'
            f"<title>{escape(title)}</title>"
            f'<clipPath id="frame"><rect {frame}/></clipPath>{"".join(self.parts)}'
            f'<rect {frame} fill="none" stroke="{GREY}" stroke-opacity="0.5"/></svg>\n'
        )


def power(exponent: int) -> str:
    """A power of ten, as the name of a position on an axis."""
    return f'10<tspan dy="-5" font-size="9">{str(exponent).replace("-", "−")}</tspan>'


def valley(function: Callable[[Any, Any], Any], x: Any, y: Any, levels: Any, best: Any, path: Any, title: str) -> str:
    """The path of an optimizer over the contour lines of a function."""
    picture = Picture((360, 300), x, y, margins=(10, 30, 10, 10))
    picture.text(escape(title), (10, 18), more='font-weight="600"')
    picture.contours(function, levels)
    picture.line(path, ORANGE, 1.6, 0.85)
    picture.dots(path, ORANGE, 1.9, 0.75)
    picture.dots(path[:1], ORANGE, 5, hollow=True)
    ((across, down),) = picture.place([best])
    picture.parts.append(
        f'<path d="M{across - 5:.1f} {down:.1f}h10M{across:.1f} {down - 5:.1f}v10" stroke="{GREY}" stroke-width="2.2"/>'
    )
    return picture.svg(title)


def losses(curves: Sequence[tuple[str, str, Points]], length: float, title: str) -> str:
    """Losses on a logarithmic scale; the last curve is on top."""
    heights = np.concatenate([np.asarray(points)[:, 1] for _, _, points in curves])
    heights = heights[np.isfinite(heights)]
    low = max(1e-6, 10.0 ** np.floor(np.log10(max(heights.min(), 1e-12))))
    high = 10 ** np.ceil(np.log10(min(max(point[1] for _, _, points in curves for point in points[:1]), 1e3)))
    picture = Picture((740, 290), (0, length), (low, high), log=True, margins=(48, 30, 12, 40))
    exponents = range(round(np.log10(low)), round(np.log10(high)) + 1)
    ticks = range(0, int(length) + 1, 50)
    names = ([str(tick) for tick in ticks], [power(k) for k in exponents])
    picture.axes([[tick] for tick in ticks], [[10.0**k] for k in exponents], names, "steps")
    for i, (_, color, points) in enumerate(curves):
        picture.line(points, color, 2.6 if i == len(curves) - 1 else 1.8)
    picture.legend([(name, color) for name, color, _ in reversed(curves)])
    return picture.svg(title)


def schedule(values: Any, title: str) -> str:
    """The values of a schedule at the steps 0, 1, …"""
    steps = len(values) - 1
    high = max(max(values), 1e-9)
    picture = Picture((520, 190), (0, steps), (min(0.0, *values), 1.08 * high), margins=(44, 30, 12, 40))
    picture.text(escape(title), (picture.left, 19), more='font-family="ui-monospace, monospace"')
    ticks = [0, steps // 4, steps // 2, 3 * steps // 4, steps]
    heights = [0.0, high / 2, high]
    names = ([str(tick) for tick in ticks], [f"{height:.3g}" for height in heights])
    picture.axes([[tick] for tick in ticks], [[height] for height in heights], names, "step")
    picture.line(list(enumerate(values)), ORANGE, 2.4)
    return picture.svg(title)
