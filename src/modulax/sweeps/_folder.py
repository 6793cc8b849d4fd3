"""The folder of a sweep: the journal from which a killed sweep resumes.

    sweep.json              what the sweep is: members, seeds, key, metrics
    chunk.json              how many members are trained at a time
    results.csv             the finished runs, for people and for pandas
    metrics/NAME-0003.npz   the metrics of segment 3 of the members NAME
    carries/NAME-0003       their carries after it, an orbax checkpoint; only the last is kept
    lock                    locked by the process that trains, which it names

Files appear under their name when they are complete. The carries of a segment are written before its metrics: a segment
is finished when its metrics are there. One that was interrupted between the two is run again, from the carry before.
"""

import itertools
import json
import os
import shutil
import socket
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import jax
import numpy as np

from ..checkpoint import restore, save
from ._description import first_difference

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None

BEGUN = {"metrics", "carries", "sweep.json.new", "lock"}  # what a sweep leaves that is killed before `sweep.json`


class Folder:
    """A folder of a sweep, or nothing at all if the path is None. It is locked while it is entered by `with`.

    Args:
        path: the folder, which is made if it isn't there.
        describe: returns a description of the sweep, of plain numbers and strings. That of an existing folder must be
            equal.

    Raises:
        ValueError: if the folder is that of another sweep, is damaged, or another process trains in it.
        OSError: if it can't be written.
    """

    def __init__(self, path: str | os.PathLike[str] | None, describe: Callable[[], dict[str, Any]]):
        self.path = None if path is None else Path(os.path.abspath(path))
        self._given, self._describe, self._lock = path, describe, -1

    def __enter__(self) -> Self:
        if self.path is None:
            return self
        if not _writes():
            self._check(self.note("sweep"))
            return self
        inside = {x.name for x in self.path.iterdir()} if self.path.is_dir() else set()
        if "sweep.json" not in inside and inside - BEGUN:
            raise ValueError(f"{self._name} is not empty, and there is no sweep in it. Choose a new folder.")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = self._locked(self.path / "lock")
            old = self.note("sweep")
            what = self._check(old)
            for name in ("metrics", "carries"):
                (self.path / name).mkdir(exist_ok=True)
            if old is None:
                self.write_text("sweep.json", json.dumps({**what, "versions": _versions()}, indent=1))
        except OSError as error:
            self._unlock()
            raise OSError(f"{self._name} can't be written: {error}. Choose another folder.") from error
        except BaseException:
            self._unlock()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._unlock()

    @property
    def _name(self) -> str:
        return f"`folder={str(self._given)!r}`"

    def _locked(self, path: Path) -> int:
        """Lock a file. The lock ends with the process, however it ends."""
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            if fcntl is not None:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = os.read(lock, 200).decode(errors="replace")
            os.close(lock)
            raise ValueError(
                f"{self._name} is in use by {owner or 'another process'}. Wait for its end to go on with this sweep, "
                f"or choose another folder. Several processes train one sweep together only with `jax.distributed`."
            ) from error
        except OSError:  # a file system without locks
            pass
        os.ftruncate(lock, 0)
        os.write(lock, f"process {os.getpid()} on {socket.gethostname()}".encode())
        return lock

    def _unlock(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _check(self, old: Any) -> dict[str, Any]:
        """The description of this sweep; an error if the folder has that of another one."""
        new = json.loads(json.dumps(self._describe())) if self.path is not None else {}
        if old is not None:
            if not isinstance(old, dict):
                raise self._damaged("sweep.json", "it holds no description of a sweep")
            _check_equal(self._name, dict(old), new)
        return new

    def _damaged(self, file: str, what: object, names: str = "") -> ValueError:
        """An error for a file that can't be read, with the remedy.

        Args:
            file: the file inside the folder.
            what: what is wrong with it.
            names: the members whose segments it holds, as in the names of files.
        """
        remedy = f"Delete `{self.path}` to begin from the start"
        if names:
            remedy += f"; of a sweep by `sweeps.run`, it is enough to delete all of `metrics/{names}-*` and "
            remedy += f"`carries/{names}-*`, whose members are then trained again"
        return ValueError(f"{self._name} is damaged: `{file}` can't be read ({what}). {remedy}.")

    def write_text(self, name: str, text: str) -> None:
        """Write a text file, which appears when it is complete."""
        if self.path is not None and _writes():
            temporary = self.path / f"{name}.new"
            temporary.write_text(text, encoding="utf-8")
            os.replace(temporary, self.path / name)

    def note(self, name: str) -> Any:
        """A value that was noted in the folder; None if it wasn't."""
        path = Path(self.path or "", f"{name}.json")
        try:
            return json.loads(path.read_text(encoding="utf-8")) if self.path and path.exists() else None
        except ValueError as error:  # also of bytes that are no text
            raise self._damaged(path.name, error) from error

    def widths(self, structures: int) -> list[int] | None:
        """How many members of each structure are trained at a time, as it was noted; None if it wasn't."""
        widths = self.note("chunk")
        is_list = isinstance(widths, list) and len(widths) == structures
        if widths is not None and not (is_list and all(isinstance(x, int) and x > 0 for x in widths)):
            raise self._damaged("chunk.json", f"it must be a list of {structures} positive numbers, and is {widths}")
        return widths

    def set_history(self, segment: int, values: dict[str, Any]) -> None:
        """Note the values with which a segment is trained; an error if it was trained with others."""
        if self.path is None or not _writes():
            return
        history = self.note("history") or []
        if not isinstance(history, list) or len(history) < segment:
            raise self._damaged("history.json", f"it must be a list of at least {segment} entries")
        if segment == len(history):
            self.set_note("history", [*history, values])
        elif difference := first_difference(history[segment], values):
            name, a, b = difference
            raise ValueError(
                f"{self._name} holds another search: in segment {segment}, `{name}` was {a} and is {b}. If a function "
                f"in `explore` has changed, choose another folder, or go on with the old one."
            )

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
        try:
            with open(self._metrics(name, segment), "rb") as file, np.load(file) as archive:
                arrays = [archive[f"arr_{i}"] for i in range(len(dtypes))]
            return [x if x.dtype == dtype else x.view(dtype) for x, dtype in zip(arrays, dtypes, strict=True)]
        except Exception as error:  # of many kinds: whatever a broken archive leads to
            raise self._damaged(f"metrics/{name}-{segment:04d}.npz", error or "it is empty", name) from error

    def carry(self, name: str, segment: int, template: Sequence[Any]) -> list[Any]:
        """Read the carries after a segment."""
        if not template:
            return []
        try:
            carry, _ = restore(self._carry(name, segment), _by_name(template))
        except (MemoryError, jax.errors.JaxRuntimeError):  # of the device, not of the files
            raise
        except Exception as error:
            raise self._damaged(f"carries/{name}-{segment:04d}", error, name) from error
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


def _versions() -> dict[str, str]:
    """The versions on which the program depends, as far as they are installed as packages."""
    packages = [*metadata.distributions(name="jax"), *metadata.distributions(name="modulax")]
    return {package.name: package.version for package in packages}


def _check_equal(folder: str, old: dict[str, Any], new: dict[str, Any]) -> None:
    """Raise an error that names the first difference between two sweeps."""
    versions = old.pop("versions", None)
    if versions is None:
        raise ValueError(
            f"{folder} was written by an earlier version of modulax, which didn't note the program of the training, so "
            f"that it isn't known whether this is the same. Choose another folder, or go on with that version."
        )
    if (difference := first_difference(old, new)) is None:
        return
    name, a, b = difference
    what = f"`{name}` was {a!r} and is {b!r}"
    if isinstance(a, list) and isinstance(b, list):
        what = f"`{name}` had {len(a)} entries and has {len(b)}"
        if len(a) == len(b):
            i = next(i for i in range(len(a)) if a[i] != b[i])
            what = f"number {i} of `{name}` was {a[i]} and is {b[i]}"
            if name == "programs":
                what = f"the program of member {i} has changed, by the code or the data of the training, or by a "
                what += "function in the optimizer"
                if versions != _versions():
                    what += f"; or by another version, since the folder has {versions}, and these are {_versions()}"
    raise ValueError(
        f"{folder} holds another sweep: {what}. To go on with that one, call it as before; for a new one, choose "
        f"another folder, or delete this one."
    )
