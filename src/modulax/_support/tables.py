"""Tables of text, as `describe` and `roles` print them, and the same tables in HTML, as a notebook shows them."""

import html
from collections.abc import Container, Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[str]], right: Container[str] = ()) -> list[str]:
    """Return the lines of a table: the header, a rule, and the rows; without columns whose cells are all empty.

    Args:
        header: the names of the columns.
        rows: the cells.
        right: the names of the columns that are aligned to the right.
    """
    columns = []
    for name, *cells in _columns(header, rows):
        width = max(map(len, (name, *cells)))
        columns.append([f"{cell:{'>' if name in right else '<'}{width}}" for cell in (name, *cells)])
    lines = ["  ".join(line).rstrip() for line in zip(*columns, strict=True)]
    return [*lines[:1], "-" * max(map(len, lines)), *lines[1:]] if lines else []


def html_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], right: Container[str] = (), notes: Sequence[str] = ()
) -> str:
    """Return a table in HTML, without columns whose cells are all empty, and sentences below it.

    Args:
        header: the names of the columns.
        rows: the cells.
        right: the names of the columns that are aligned to the right.
        notes: the sentences, each of which becomes a paragraph.
    """
    columns = _columns(header, rows)
    sides = ["right" if name in right else "left" for name, *_ in columns]

    def line(tag: str, cells: Sequence[str]) -> str:
        texts = zip(sides, cells, strict=True)
        return "".join(f'<{tag} style="text-align: {side}">{html.escape(text)}</{tag}>' for side, text in texts)

    first, *others = zip(*columns, strict=True) if columns else [()]
    body = "".join(f"<tr>{line('td', cells)}</tr>" for cells in others)
    shown = f"<table><thead><tr>{line('th', first)}</tr></thead><tbody>{body}</tbody></table>" if first else ""
    return shown + "".join(f"<p>{html.escape(note)}</p>" for note in notes)


def _columns(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """The columns, each with its name, that have a cell with a text."""
    return [column for column in zip(header, *rows, strict=True) if any(column[1:])]


def bytes_text(size: float | int | None) -> str:
    """Bytes in the largest binary unit in which there is at least one; empty for None."""
    if size is None:
        return ""
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:,.3g} GiB" if size < 1000 else f"{size:,.0f} GiB"
