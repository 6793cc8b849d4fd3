"""The files of a sweep: what is known of its runs, and their metrics and carries.

    sweep.json              the members, their batches, which runs were stopped, versions, git commit and tags
    results.csv             the last values of all runs, for people
    metrics/003-0007.npz    the metrics of segment 7 of batch 3
    carries/003-0007        its carries after it, an orbax checkpoint; only the last is kept
    data/0008               the pickled cursor of `data` before segment 8, if it has one; all are kept
    lock                    locked by the process that trains, which it names

Files appear under their name when they are complete. The carries of a segment are written before its metrics: a segment
is finished when its metrics are there. One that was interrupted between the two is run again, from the carry before.
"""

import itertools
import json
import os
import re
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from .._plugin.messages import listing
from .._plugin.trees import Names
from ..checkpoint import save
from ..checkpoint._plugin import nested, opened, unescaped
from ._program import name_of

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None

BEGUN = {"metrics", "carries", "sweep.json.new", "lock"}  # what a sweep leaves that is killed before `sweep.json`
FORMAT = 2


class Folder:
    """A folder of sweeps, or nothing at all if the path is None.

    It is locked while it is entered by `with`, unless it is only read.

    Args:
        path: the folder, which is made if it isn't there.
        reads: whether it is only read; then it must be there.

    Raises:
        ValueError: if the folder is damaged, or another process trains in it.
        OSError: if it can't be written.
    """

    def __init__(self, path: str | os.PathLike[str] | None, *, reads: bool = False):
        self.path = None if path is None else Path(os.path.abspath(path))
        self.name = f"`folder={str(path)!r}`"
        self._reads, self._lock = reads, -1
        self.notes: dict[str, Any] = {}

    def __enter__(self) -> Self:
        if self.path is not None and _writes() and not self._reads:
            self._make(self.path)
        return self

    def _make(self, path: Path) -> None:
        inside = {x.name for x in path.iterdir()} if path.is_dir() else set()
        if "sweep.json" not in inside and inside - BEGUN:
            raise ValueError(f"{self.name} is not empty, and there is no sweep in it. Choose a new folder.")
        try:
            for below in ("metrics", "carries"):
                (path / below).mkdir(parents=True, exist_ok=True)
            self._lock = self._locked(path / "lock")  # before anything is read
        except OSError as error:
            raise OSError(f"{self.name} can't be written: {error}. Choose another folder.") from error

    def __exit__(self, *error: object) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

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
                f"{self.name} is in use by {owner or 'another process'}. Wait for its end to go on with this sweep, "
                f"or choose another folder, and put both together by `sweeps.merge`. Several processes train one sweep "
                f"together only with `jax.distributed`."
            ) from error
        except OSError:  # a file system without locks
            pass
        os.ftruncate(lock, 0)
        os.write(lock, f"process {os.getpid()} on {socket.gethostname()}".encode())
        return lock

    def read(self) -> None:
        """Read what `sweep.json` notes, also that of an earlier version."""
        self.notes = {"format": FORMAT, "calls": [], "batches": []}
        self.notes |= {name: {} for name in ("programs", "names", "members", "stopped")}
        path = Path(self.path or "", "sweep.json")
        if self.path is None or not (path.exists() or self._reads):
            return
        if not path.exists():
            others = sorted(x.parent for x in self.path.glob("*/sweep.json"))
            hint = f" Give one of {listing(others)}." if others else ""
            raise FileNotFoundError(f"There is no sweep in `{self.path}`.{hint}")
        try:
            notes = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:  # also of bytes that are no text
            raise self.damaged("sweep.json", error) from error
        if not isinstance(notes, dict) or not {"format", "kind"} & notes.keys():
            raise self.damaged("sweep.json", "it holds no description of a sweep")
        if notes.get("format", FORMAT) != FORMAT:
            raise ValueError(f"{self.name} was written by a later version of modulax. Install that, to go on with it.")
        self.notes |= notes if "format" in notes else converted(self, notes)

    def damaged(self, file: str, what: object, batch: str = "") -> ValueError:
        """An error for a file that can't be read, with the remedy.

        Args:
            file: the file inside the folder.
            what: what is wrong with it.
            batch: the batch whose segments it holds, as in the names of files.
        """
        remedy = f"Delete `{self.path}` to begin from the start"
        if batch:
            remedy += f", or all of `metrics/{batch}-*` and `carries/{batch}-*`, whose members are then trained again"
        return ValueError(f"{self.name} is damaged: `{file}` can't be read ({what}). {remedy}.")

    def save(self) -> None:
        """Write `sweep.json`."""
        self.write_text("sweep.json", lambda: json.dumps(self.notes, indent=1))

    def write_text(self, name: str, text: Callable[[], str]) -> None:
        """Write a text file, which appears when it is complete."""
        if self.path is not None and _writes():
            temporary = self.path / f"{name}.new"
            temporary.write_text(text(), encoding="utf-8")
            os.replace(temporary, self.path / name)

    def finished(self, batch: str, first: int) -> int:
        """The segment after the last finished one of a batch, whose first segment is `first`."""
        return next(n for n in itertools.count(first) if self.path is None or not self._metrics(batch, n).exists())

    def metrics(self, batch: str, segment: int) -> list[np.ndarray]:
        """Read the metrics of a segment."""
        dtypes = [jnp.dtype(text.partition("[")[0]) for text in self.notes["metrics"].values()]
        try:
            with open(self._metrics(batch, segment), "rb") as file, np.load(file) as archive:
                arrays = [archive[f"arr_{i}"] for i in range(len(dtypes))]
            return [x if x.dtype == dtype else x.view(dtype) for x, dtype in zip(arrays, dtypes, strict=True)]
        except Exception as error:  # of many kinds: whatever a broken archive leads to
            raise self.damaged(f"metrics/{batch}-{segment:04d}.npz", error or "it is empty", batch) from error

    def has_carry(self, batch: str, segment: int) -> bool:
        """Whether the carries after a segment are there."""
        return self.path is not None and self._carry(batch, segment).exists()

    def carry(self, batch: str, segment: int) -> dict[Names, np.ndarray]:
        """Read the carries after a segment, by the names of their leaves."""
        try:
            with opened(self._carry(batch, segment)) as (names, specs, read):
                arrays = read([jax.ShapeDtypeStruct(x.shape, x.dtype) for x in specs])
            return dict(zip(map(unescaped, names), arrays, strict=True))
        except MemoryError:
            raise
        except Exception as error:
            raise self.damaged(f"carries/{batch}-{segment:04d}", error, batch) from error

    def write(self, batch: str, segment: int, metrics: Sequence[np.ndarray], carry: Mapping[Names, Any]) -> None:
        """Write a finished segment: the carries, then the metrics."""
        if self.path is None:
            return
        if carry:
            save(self._carry(batch, segment), nested(carry), overwrite=True)
        if not _writes():
            return
        temporary = self.path / "metrics" / f"{batch}.new"
        with open(temporary, "wb") as file:
            np.savez(file, *metrics)  # bfloat16 as bytes, which `metrics` reads as such
        os.replace(temporary, self._metrics(batch, segment))

    def cursor(self, segment: int) -> bytes | None:
        """Read the cursor of the data before a segment; None if there is none."""
        path = self._cursor(segment)
        return path.read_bytes() if self.path is not None and path.exists() else None

    def keep_cursor(self, segment: int, cursor: bytes | None) -> None:
        """Write the cursor of the data before a segment, unless it is there: all runs get the same data."""
        path = self._cursor(segment)
        if self.path is not None and _writes() and cursor is not None and not path.exists():
            path.parent.mkdir(exist_ok=True)
            path.with_suffix(".new").write_bytes(cursor)
            os.replace(path.with_suffix(".new"), path)

    def take(self, other: "Folder", old: str, new: str, segments: Sequence[int]) -> None:
        """Copy the segments of a batch from another folder: the last carries, then the metrics in their order."""
        if other.has_carry(old, segments[-1]):
            target = self._carry(new, segments[-1])
            temporary = target.with_suffix(".new")
            os.replace(shutil.copytree(other._carry(old, segments[-1]), temporary, dirs_exist_ok=True), target)
        for segment in segments:
            temporary = self._metrics(new, segment).with_suffix(".new")
            shutil.copyfile(other._metrics(old, segment), temporary)
            os.replace(temporary, self._metrics(new, segment))

    def carries(self) -> list[tuple[int, int]]:
        """The batches and segments whose carries are there."""
        names = [x.name for x in (self.path / "carries").iterdir()] if self.path is not None and _writes() else []
        found = [re.fullmatch(r"(\d+)-(\d+)", name) for name in names]
        return [(int(x[1]), int(x[2])) for x in found if x is not None]

    def forget(self, batch: str, segment: int) -> None:
        """Delete the carries after a segment, when nothing continues from them any more."""
        if self.path is not None and _writes():
            shutil.rmtree(self._carry(batch, segment), ignore_errors=True)

    def _metrics(self, batch: str, segment: int) -> Path:
        return Path(self.path or "", "metrics", f"{batch}-{segment:04d}.npz")

    def _cursor(self, segment: int) -> Path:
        return Path(self.path or "", "data", f"{segment:04d}")

    def _carry(self, batch: str, segment: int) -> Path:
        return Path(self.path or "", "carries", f"{batch}-{segment:04d}")


def _writes() -> bool:
    """Whether this process writes; of several, it is the first."""
    return jax.process_index() == 0


def converted(folder: Any, notes: dict[str, Any]) -> dict[str, Any]:
    """What a folder of an earlier version notes, in the form of today; its metrics and carries stay as they are.

    Args:
        folder: the `Folder`.
        notes: its `sweep.json`.

    Raises:
        ValueError: if it doesn't say enough to tell its runs from others.
    """
    programs = list(dict.fromkeys(notes.get("programs", ())))
    try:
        widths = json.loads((folder.path / "chunk.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise folder.damaged("chunk.json", error) from error
    is_known = notes["kind"] == "run" and "versions" in notes and isinstance(widths, list)
    if not is_known or len(widths) != len(programs):
        raise ValueError(
            f"{folder.name} was written by an earlier version of modulax, and doesn't say which runs are in it. Finish "
            f"it with that version, or choose another folder."
        )
    members = [name_of(text) for text in notes["members"]]
    return {
        "metrics": notes["metrics"],
        "in_segments": "-" in programs[0],
        "programs": {member: [program] for member, program in zip(members, notes["programs"], strict=True)},
        "members": {
            member: {"text": text, "label": text.partition("(")[0], "values": _values(text)}
            for member, text in zip(members, notes["members"], strict=True)
        },
        "calls": [{"kind": "run", "versions": notes["versions"], "commit": None, "tags": {}}],
        "batches": list(_batches(notes, members, dict(zip(programs, widths, strict=True)))),
    }


def _batches(notes: dict[str, Any], members: list[str], widths: dict[str, int]) -> Iterator[dict[str, Any]]:
    """The batches of the members of each program, of its width."""
    for program, width in widths.items():
        places = [place for place, x in enumerate(notes["programs"]) if x == program]
        for start in range(0, len(places), width):
            rows = places[start : start + width]
            yield {
                "runs": [[name_of(program, members[i], key, "") for key in notes["keys"]] for i in rows],
                "members": [members[i] for i in rows],
                "seeds": notes["keys"],
                "program": program,
                "width": width,
                "is_named": False,
            }


def _values(text: str) -> dict[str, float]:
    """The numbers in the text of an optimizer."""
    return {name: float(x) for name, x in re.findall(r"(\w+)=(-?\d[\d.]*(?:e[-+]?\d+)?)", text)}
