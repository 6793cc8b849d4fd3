"""Tables for notebooks."""

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

MOST = 40  # rows


def columns_of(table: Iterable[Mapping[str, Any]]) -> list[str]:
    """The names of the columns of a table, in the order in which rows have them."""
    return list(dict.fromkeys(name for row in table for name in row))


def html_table(caption: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """A table in HTML, whose first column is the number of the row; of many rows, the first ones."""
    columns = columns_of(rows)
    head = "".join(f"<th>{html.escape(name)}</th>" for name in ("", *columns))
    body = [
        f"<tr><th>{i}</th>{''.join(f'<td>{_text(row.get(name))}</td>' for name in columns)}</tr>"
        for i, row in enumerate(rows[:MOST])
    ]
    more = f"<p>and {len(rows) - MOST} more</p>" if len(rows) > MOST else ""
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"
    return f"<p>{html.escape(caption)}</p>{table}{more}"


def _text(x: Any) -> str:
    return "" if x is None else html.escape(f"{x:.4g}" if isinstance(x, float) else str(x))
