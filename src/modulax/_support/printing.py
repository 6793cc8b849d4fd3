"""How objects print: a transform as the call that constructs it, a state by the shapes of its arrays; and tables."""

import dataclasses
import html
from collections.abc import Container, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer

from .keys import is_key_data, is_typed_key
from .types import ARRAY_TYPES

_ROOM = 90  # characters for the arrays of one field


def format_value(x: Any) -> str:
    """Format a value as it would be written: a number, the seed of a random key, the dtype and shape of a batch."""
    if isinstance(x, (Tracer, *ARRAY_TYPES)):
        return _format_array(x)
    if isinstance(x, Mapping):
        return "{" + ", ".join(f"{key!r}: {format_value(value)}" for key, value in x.items()) + "}"
    if isinstance(x, tuple) and not hasattr(x, "_fields"):
        return "(" + ", ".join(map(format_value, x)) + ("," if len(x) == 1 else "") + ")"
    return getattr(x, "__qualname__", None) or (x.name if isinstance(x, np.dtype) else repr(x))


def _format_array(x: Any) -> str:
    if is_key_data(x) and not isinstance(x, Tracer) and x.shape == (2,):
        high, low = np.asarray(x).tolist()
        return str(high << 32 | low)
    if isinstance(x, Tracer) or np.ndim(x) > 0:
        return f"{x.dtype}{list(x.shape)}"
    if not jnp.issubdtype(x.dtype, jnp.number):
        return repr(x)
    text = str(np.asarray(x)[()])  # the shortest text that is read back as the same number in this dtype
    return repr(float(text)) if jnp.issubdtype(x.dtype, jnp.floating) else text


def format_call(name: str, items: Mapping[str, Any]) -> str:
    """Format a call with named arguments, on one line if it fits."""
    return _grouped(f"{name}(", [f"{key}={format_value(value)}" for key, value in items.items()], ")")


def _grouped(start: str, texts: list[str], end: str, *, hugs: bool = False) -> str:
    """Texts between brackets: on one line if it fits, each on its own, or, if it hugs, a single one without a break."""
    line = f"{start}{', '.join(texts)}{end}"
    if (hugs and len(texts) == 1) or (len(line) <= 100 and "\n" not in line):
        return line
    return "\n".join([start, *("  " + text.replace("\n", "\n  ") + "," for text in texts), end])


def format_state(state: Any, kind: type) -> str:
    """Format a state by its fields: in each a few arrays by path, without static metadata, such as the model's.

    Args:
        state: a dataclass.
        kind: the class of what prints itself, such as the states inside, where it has a repr of its own.
    """
    fields = [f for f in dataclasses.fields(state) if f.metadata.get("pytree_node", not f.metadata.get("static"))]
    values = {f.name: getattr(state, f.name) for f in fields if f.repr}
    texts = [f"{name}={_format_tree(x, kind)}" for name, x in values.items() if x is not None]
    return _grouped(f"{type(state).__name__}(", texts, ")", hugs=True)


def _format_tree(tree: Any, kind: type) -> str:
    """Format a tree as some of its leaves by path, and how many there are besides."""

    def prints_itself(x: Any) -> bool:
        return isinstance(x, kind) and type(x).__repr__ is not eqx.Module.__repr__

    leaves = jtu.tree_leaves_with_path(tree, is_leaf=prints_itself)
    texts, room = [], _ROOM
    for path, x in leaves:
        text = repr(x) if prints_itself(x) else format_leaf(x)
        if not path:
            return text
        text = f"{_dotted(path)}: {text}"
        room -= _ROOM // 6 if prints_itself(x) else len(text)
        if texts and room < 0:
            texts.append(f"... and {len(leaves) - len(texts)} more; {size_text(tree)}")
            break
        texts.append(text)
    return _grouped("{", texts if "\n" in "".join(texts) else [", ".join(texts)], "}", hugs=True)


def _dotted(path: tuple[Any, ...]) -> str:
    return jtu.keystr(path, simple=True, separator=".")


def format_leaf(x: Any) -> str:
    """A number, or the dtype and the shape."""
    is_known = not isinstance(x, jax.Array) or not (isinstance(x, Tracer) or x.is_deleted() or is_typed_key(x))
    if isinstance(x, ARRAY_TYPES) and np.ndim(x) == 0 and is_known and getattr(x, "is_fully_addressable", True):
        return str(jax.device_get(x))
    return " ".join(eqx.tree_pformat(x, struct_as_array=True).split())[:200]


def _arrays(tree: Any) -> list[tuple[Any, Any]]:
    return [(path, x) for path, x in jtu.tree_leaves_with_path(tree) if hasattr(x, "shape") and hasattr(x, "dtype")]


def size_text(tree: Any) -> str:
    """How many arrays a tree has, and their size."""
    sizes = [x.size * x.dtype.itemsize for _, x in _arrays(tree)]
    return f"{len(sizes)} arrays, {bytes_text(sum(sizes))}"


def html_of_arrays(tree: Any) -> str:
    """A table of the arrays of a tree in HTML."""
    found = _arrays(tree)
    rows = [[_dotted(path), format_leaf(x), bytes_text(x.size * x.dtype.itemsize)] for path, x in found[:60]]
    rows += [["...", "", ""]] * (len(found) > 60)
    return html_table((type(tree).__name__, "array", "size"), rows, right=("size",), notes=[size_text(tree)])


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
