"""Exceptions that can be read: which transform and which leaf, and a traceback without the frames of the library.

An exception in a rule passes through a dozen frames that only carry it, in `Chain`, in `run_rules`, in `map_leaves`.
`located` adds what they know as notes. The outermost entry point then drops these frames (`shortened`), so that the
call of the user is followed by the line that failed. `MODULAX_TRACEBACK=full` in the environment keeps all frames.
"""

import contextlib
import os
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

_ROOT = str(Path(__file__).parents[1]) + os.sep
# What calls rules and functions of arrays. A reader wants to see these, wherever their files lie.
_MACHINERY = ("_protocol", "_support", "_containers", "_roles", "_explain", "_catalog", "tree", "authoring")
_MACHINERY_OF_MATRICES = ("matrixwise", "matrix_step", "blocks", "spread", "stages")
_HIDDEN = (
    *(f"{_ROOT}{room}{os.sep}" for room in _MACHINERY),
    *(f"{_ROOT}_transforms{os.sep}{file}.py" for file in _MACHINERY_OF_MATRICES),
)
_E = TypeVar("_E", bound=BaseException)


@contextlib.contextmanager
def located(owner: str, method: str) -> Iterator[None]:
    """Add a note to an exception that passes: in which method of which class it was raised.

    Args:
        owner: name of the class.
        method: name of the method.
    """
    try:
        yield
    except Exception as error:
        own = _own_notes(error)
        if not own or not own[-1][1].startswith(f"in `{owner}."):  # a rule's `update_leaf` says more than its `update`
            error.add_note(f"in `{owner}.{method}`")
        raise


@contextlib.contextmanager
def at_leaf(path: Callable[[], str], leaf: Any) -> Iterator[None]:
    """Add the path, dtype and shape of a leaf to the last note of an exception that passes.

    Args:
        path: function that returns the dotted path; it is called only if there is an exception.
        leaf: the array.
    """
    try:
        yield
    except Exception as error:
        own = _own_notes(error)
        if own and ", at " not in own[-1][1]:
            i, note = own[-1]
            error.__notes__[i] = f"{note}, at `{path() or 'the tree itself'}`, {array_type(leaf)}"
        raise


def _own_notes(error: Exception) -> list[tuple[int, str]]:
    """The notes of `located`, by their index; JAX adds a note of its own."""
    return [(i, note) for i, note in enumerate(getattr(error, "__notes__", [])) if note.startswith("in `")]


def array_type(x: Any) -> str:
    """The dtype and the shape of an array, such as `float32[64, 32]`; for anything else, the name of its class."""
    is_array = hasattr(x, "dtype") and hasattr(x, "shape")
    return f"{x.dtype}[{', '.join(map(str, x.shape))}]" if is_array else type(x).__name__


def shortened(error: _E) -> _E:
    """Return the exception with a traceback in which frames of this library are left out.

    What remains of them is the call of the user, the last two of rules and functions of arrays, and the last frame.
    """
    if os.environ.get("MODULAX_TRACEBACK") == "full":
        return error
    entries = []
    entry = error.__traceback__
    while entry is not None:
        entries.append(entry)
        entry = entry.tb_next
    names = [entry.tb_frame.f_code.co_filename for entry in entries]
    of_rules = [i for i, name in enumerate(names) if name.startswith(_ROOT) and not name.startswith(_HIDDEN)]
    shown = {0, len(names) - 1, *of_rules[-2:]}
    following: types.TracebackType | None = None
    for i, entry in reversed(list(enumerate(entries))):
        if i in shown or not names[i].startswith(_ROOT):
            following = types.TracebackType(following, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return error.with_traceback(following)
