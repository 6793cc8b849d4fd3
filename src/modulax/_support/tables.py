"""Tables of text, as `describe` and `roles` print them."""

from collections.abc import Container, Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[str]], right: Container[str] = ()) -> list[str]:
    """Return the lines of a table: the header, a rule, and the rows; without columns whose cells are all empty.

    Args:
        header: the names of the columns.
        rows: the cells.
        right: the names of the columns that are aligned to the right.
    """
    columns = []
    for name, *cells in zip(header, *rows, strict=True):
        if any(cells):
            width = max(map(len, (name, *cells)))
            columns.append([f"{cell:{'>' if name in right else '<'}{width}}" for cell in (name, *cells)])
    lines = ["  ".join(line).rstrip() for line in zip(*columns, strict=True)]
    return [*lines[:1], "-" * max(map(len, lines)), *lines[1:]] if lines else []
