"""The folder of a sweep: the journal from which a killed sweep resumes.

    sweep.json              what the sweep is: members, seeds, key, metrics
    chunk.json              how many members are trained at a time
    results.csv             the finished runs, for people and for pandas
    metrics/NAME-0003.npz   the metrics of segment 3 of the members NAME
    carries/NAME-0003       their carries after it, an orbax checkpoint; only the last is kept

Files appear under their name when they are complete. The carries of a segment are written before its metrics: a segment
is finished when its metrics are there. One that was interrupted between the two is run again, from the carry before.
"""

import itertools
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ..checkpoint import restore, save
from ._description import first_difference

BEGUN = {"metrics", "carries", "sweep.json.new"}  # what a sweep leaves that is killed before `sweep.json` is there


class Folder:
    """A folder of a sweep, or nothing at all if the path is None.

    Args:
        path: the folder, which is made if it isn't there.
        what: a description of the sweep, of plain numbers and strings. That of an existing folder must be equal.

    Raises:
        ValueError: if the folder is that of another sweep.
        OSError: if it can't be written.
    """

    def __init__(self, path: str | os.PathLike[str] | None, what: dict[str, Any]):
        self.path = None if path is None else Path(os.path.abspath(path))
        if self.path is None:
            return
        old, what = self.note("sweep"), json.loads(json.dumps(what))
        if old is not None:
            _check_equal(self.path, old, what)
        elif _writes() and self.path.is_dir() and {x.name for x in self.path.iterdir()} - BEGUN:
            raise ValueError(f"`folder={str(path)!r}` is not empty, and there is no sweep in it. Choose a new folder.")
        try:
            self._begin(self.path, what if old is None else None)
        except OSError as error:
            raise OSError(f"`folder={str(path)!r}` can't be written: {error}. Choose another folder.") from error

    def _begin(self, path: Path, what: dict[str, Any] | None) -> None:
        """Make the folders inside, and write the description of a new sweep."""
        for inside in ("metrics", "carries"):
            (path / inside).mkdir(parents=True, exist_ok=True)
        if what is not None:
            self.write_text("sweep.json", json.dumps(what, indent=1))
        elif not os.access(path, os.W_OK):
            raise PermissionError("it is read-only")

    def write_text(self, name: str, text: str) -> None:
        """Write a text file, which appears when it is complete."""
        if self.path is not None and _writes():
            temporary = self.path / f"{name}.new"
            temporary.write_text(text, encoding="utf-8")
            os.replace(temporary, self.path / name)

    def note(self, name: str) -> Any:
        """A value that was noted in the folder when the sweep began; None if it wasn't."""
        path = Path(self.path or "", f"{name}.json")
        return json.loads(path.read_text(encoding="utf-8")) if self.path and path.exists() else None

    def set_note(self, name: str, value: Any) -> None:
        """Note a value in the folder."""
        self.write_text(f"{name}.json", json.dumps(value))

    def has_metrics(self) -> bool:
        """Whether any segment is finished."""
        return self.path is not None and any((self.path / "metrics").glob("*.npz"))

    def finished(self, name: str, first: int = 0) -> int:
        """The segment after the last finished one of some members, whose first segment was `first`."""
        return next(n for n in itertools.count(first) if self.path is None or not self._metrics(name, n).exists())

    def metrics(self, name: str, segment: int, dtypes: Sequence[Any]) -> list[np.ndarray]:
        """Read the metrics of a segment."""
        with np.load(self._metrics(name, segment)) as archive:
            arrays = [archive[f"arr_{i}"] for i in range(len(dtypes))]
        return [x if x.dtype == dtype else x.view(dtype) for x, dtype in zip(arrays, dtypes, strict=True)]

    def carry(self, name: str, segment: int, template: Sequence[Any]) -> list[Any]:
        """Read the carries after a segment."""
        if not template:
            return []
        carry, _ = restore(self._carry(name, segment), _by_name(template))
        return list(carry.values())

    def write(self, name: str, segment: int, metrics: Sequence[np.ndarray], carry: Sequence[Any]) -> None:
        """Write a finished segment: the carries, then the metrics."""
        if self.path is None:
            return
        if carry:
            save(self._carry(name, segment), _by_name(carry), overwrite=True)
        if not _writes():
            return
        temporary = self.path / "metrics" / f"{name}.new"
        with open(temporary, "wb") as file:
            np.savez(file, *metrics)  # bfloat16 as bytes, which `metrics` reads as such
        os.replace(temporary, self._metrics(name, segment))

    def forget(self, name: str, segment: int) -> None:
        """Delete the carries after a segment, when nothing continues from them any more."""
        if self.path is not None and _writes():
            shutil.rmtree(self._carry(name, segment), ignore_errors=True)

    def _metrics(self, name: str, segment: int) -> Path:
        return Path(self.path or "", "metrics", f"{name}-{segment:04d}.npz")

    def _carry(self, name: str, segment: int) -> Path:
        return Path(self.path or "", "carries", f"{name}-{segment:04d}")


def _by_name(carry: Sequence[Any]) -> dict[str, Any]:
    return {f"{i:04d}": x for i, x in enumerate(carry)}


def _writes() -> bool:
    """Whether this process writes; of several, it is the first."""
    return jax.process_index() == 0


def _check_equal(path: Path, old: dict[str, Any], new: dict[str, Any]) -> None:
    """Raise an error that names the first difference between two sweeps."""
    if (difference := first_difference(old, new)) is None:
        return
    name, a, b = difference
    what = f"`{name}` was {a!r} and is {b!r}"
    if isinstance(a, list) and isinstance(b, list):
        what = f"`{name}` had {len(a)} entries and has {len(b)}"
        if len(a) == len(b):
            i = next(i for i in range(len(a)) if a[i] != b[i])
            what = f"number {i} of `{name}` was {a[i]} and is {b[i]}"
    raise ValueError(
        f"`folder={str(path)!r}` holds another sweep: {what}. To go on with that one, call it as before; for a new "
        f"one, choose another folder, or delete this one."
    )
