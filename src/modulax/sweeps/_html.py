"""Tables for notebooks."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .._plugin.messages import html_table

MOST = 40  # rows


def columns_of(table: Iterable[Mapping[str, Any]]) -> list[str]:
    """The names of the columns of a table, in the order in which rows have them."""
    return list(dict.fromkeys(name for row in table for name in row))


def html_rows(caption: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """A table in HTML with the number of each row; of many rows, the first ones."""
    columns = columns_of(rows)
    cells = [[str(i), *(text_of(row.get(name), 4) for name in columns)] for i, row in enumerate(rows[:MOST])]
    more = [f"and {len(rows) - MOST} more"] if len(rows) > MOST else []
    return html_table(["member", *columns], cells, notes=[caption, *more])


def text_of(x: Any, digits: int = 3) -> str:
    """A value in a cell or on an axis; empty for None."""
    return "" if x is None else f"{x:.{digits}g}" if isinstance(x, float) else str(x)
