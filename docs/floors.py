"""The floors of the library, from the imports between its rooms: the picture of the page on the design."""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

from drawing import BLUE, GREY, picture

PACKAGE = Path(__file__).parents[1] / "src" / "modulax"
_ROW, _WIDTH, _GAP, _LETTER = 54, 760, 14, 6.3  # pixels


def imports_between_rooms() -> dict[str, set[str]]:
    """The rooms from which each room imports: files and packages at the root of the package."""
    found: dict[str, set[str]] = {}
    homes = {name: module.split(".")[0] for name, module in public_names()}
    for file in sorted(PACKAGE.rglob("*.py")):
        inside = file.relative_to(PACKAGE).with_suffix("").parts
        package = inside[:-1]
        for module in _imported(file, package) if inside != ("__init__",) else ():
            found.setdefault(inside[0], set()).update({homes.get(module[0], module[0])} - {inside[0]})
    return found


def public_names() -> Iterator[tuple[str, str]]:
    """The public names of the package, each with its module."""
    for node in ast.parse((PACKAGE / "__init__.pyi").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom):
            yield from ((alias.name, node.module or alias.name) for alias in node.names)


def _imported(file: Path, package: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            start = package[: len(package) - node.level + 1]
            modules = [node.module] if node.module else [alias.name for alias in node.names]
            yield from (inside for x in modules if (inside := (*start, *x.split("."))))


def floors(below: Mapping[str, set[str]]) -> dict[str, int]:
    """The floor of each room: one above the highest that it imports from, and the ground floor is 0."""
    found: dict[str, int] = {}
    while len(found) < len(below):
        ready = {room for room, rooms in below.items() if room not in found and rooms <= found.keys()}
        if not ready:
            raise ValueError(f"These rooms import each other: {sorted(below.keys() - found.keys())}.")
        found |= {room: 1 + max((found[x] for x in below[room]), default=-1) for room in ready}
    return found


def direct(below: Mapping[str, set[str]]) -> Iterator[tuple[str, str]]:
    """The imports that no chain of other ones implies."""
    every = {room: set(rooms) for room, rooms in below.items()}
    for room in sorted(below, key=floors(below).__getitem__):
        for x in below[room]:
            every[room] |= every[x]
    for room, rooms in below.items():
        yield from ((room, x) for x in sorted(rooms) if not any(x in every[y] for y in rooms - {x}))


def draw(file: Path) -> None:
    """Draw the rooms on their floors, with the imports that no others imply."""
    below = imports_between_rooms()
    height, arrows = floors(below), list(direct(below))
    top = max(height.values())
    place: dict[str, tuple[float, float]] = {}
    for floor in range(top + 1):
        under = {room: [place[x][0] for y, x in arrows if y == room] for room in below if height[room] == floor}
        rooms = sorted(under, key=lambda room: (sum(under[room]) / max(len(under[room]), 1), room))
        widths = [len(room) * _LETTER + 14 for room in rooms]
        x = (_WIDTH - sum(widths) - _GAP * (len(rooms) - 1)) / 2
        for room, width in zip(rooms, widths, strict=True):
            place[room] = x + width / 2, (floor + 0.5) * _ROW
            x += width + _GAP
    with picture(file, "The rooms of modulax on their floors", _WIDTH, (top + 1) * _ROW) as axes:
        for room, x in arrows:
            (x0, y0), (x1, y1) = place[room], place[x]
            axes.plot([x0, x1], [y0 - 11, y1 + 11], color=GREY, alpha=0.6, linewidth=0.8)
        for room, (x, y) in place.items():
            box = {"boxstyle": "round,pad=0.4", "facecolor": BLUE, "alpha": 0.2, "edgecolor": "none"}
            axes.text(x, y, room, ha="center", va="center", fontsize=8.5, bbox=box)
        axes.set(xlim=(0, _WIDTH), ylim=(0, (top + 1) * _ROW))
        axes.axis("off")
