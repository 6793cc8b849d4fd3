"""Results without the code that made them: what a folder says of its runs, and folders put together."""

import dataclasses
import json
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..checkpoint._stored import nested
from ._folder import Folder
from ._members import AbstractMembers
from ._results import Results, blanks, diverged_in
from ._runs import Carries, Runs


class StoredMembers(AbstractMembers):
    """The members of a folder; each is the text of its optimizer.

    Args:
        members: what the folder notes of each.
        names: the names of the hyperparameters that vary, and their dotted paths.
    """

    def __init__(self, members: Sequence[Mapping[str, Any]], names: Mapping[str, Sequence[str]]):
        self._members = members
        self.labels = tuple(member["label"] for member in members)
        self.names = {name: tuple(paths) for name, paths in names.items()}

    def __len__(self) -> int:
        return len(self._members)

    def __getitem__(self, index: Any) -> Any:
        return self._members[index]["text"]

    def _all_values(self) -> list[dict[str, Any]]:
        return [dict(member["values"]) for member in self._members]


def load(folder: str | os.PathLike[str]) -> Results:
    """Return the results in a folder of `run` or a search: all runs in it, whichever calls trained them.

        results = sweeps.load("sweep")
        results.plot("loss")
        params = results.best("loss").params

    Neither the training nor the model is needed. `results.sweep[i]` is the text of an optimizer, trees are nested
    dicts, and `results.calls` has the versions, the git commit and the tags of the calls that added to the folder. A
    folder may be read while it is written.

    Args:
        folder: the folder.

    Raises:
        FileNotFoundError: if there is no sweep in it.
        ValueError: if it is damaged, or nothing in it is finished.
    """
    with Folder(folder, reads=True) as opened:
        results = loaded(Runs(opened))
    if not len(results.sweep):
        raise ValueError(f"{opened.name} has no segment that is finished yet.")
    return results


def loaded(runs: Runs) -> Results:
    """The results of all runs of a folder."""
    notes, found = runs.folder.notes, dict[tuple[Any, Any], str]()
    members = dict[Any, str]()
    for batch in runs.batches:
        for run, (i, j) in batch.places().items() if batch.done > batch.first else ():
            # In `pbt`, every member has a key of its own, and may become equal to another one.
            row = (batch.members[i], batch.program) if batch.seeds else run
            members[row] = batch.members[i]
            found[row, tuple(batch.seeds[j]) if batch.seeds else ()] = run
    rows, columns = list(members), list(dict.fromkeys(seed for _, seed in found))
    histories = {(rows.index(row), columns.index(seed)): runs.history(run) for (row, seed), run in found.items()}
    ends = np.zeros((len(rows), len(columns)), int)
    for at, history in histories.items():
        ends[at] = 1 + max(history)
    trained = np.full((*ends.shape, ends.max(initial=1)), "", object)
    for at, history in histories.items():
        trained[(*at, list(history))] = list(history.values())
    metrics = _blanks(notes.get("metrics", {}), trained.shape)
    runs.fill(metrics, trained)
    names = np.full(ends.shape, "", object)
    for (row, seed), run in found.items():
        names[rows.index(row), columns.index(seed)] = run
    in_parts = notes.get("in_segments", True)
    paths = [tuple(name.split(".")) for name in notes.get("metrics", {})]
    segments = ends.max(axis=1, initial=0)
    return Results(
        sweep=StoredMembers([notes["members"][members[row]] for row in rows], notes["names"]),
        metrics=nested(dict(zip(paths, metrics if in_parts else [x[:, :, 0] for x in metrics], strict=True))),
        diverged=diverged_in(metrics, trained != "") if metrics else np.zeros(ends.shape, bool),
        segments=segments,
        keys=jnp.asarray(np.array([seed for seed in columns if seed], np.uint32)),
        chunk=tuple(batch.width for batch in runs.batches),
        total=trained.shape[2],
        missing=ends < segments[:, None],
        calls=tuple(notes["calls"]),
        carries=Carries(runs.folder.path, names) if in_parts else None,
    )


def _blanks(metrics: Mapping[str, str], shape: tuple[int, ...]) -> list[np.ndarray]:
    """Arrays for metrics that are described as `float32[2, 3]`."""
    parts = [text.partition("[") for text in metrics.values()]
    members, *others = shape
    return blanks(members, [((*others, *json.loads("[" + inside)), jnp.dtype(dtype)) for dtype, _, inside in parts])


def merge(into: str | os.PathLike[str], *folders: str | os.PathLike[str]) -> Results:
    """Add the runs of other folders to a folder, with their metrics and carries, and return the results in it.

        sweeps.merge("all", "of_anna", "of_ben")

    A run that the folder has already, and that is as far there, is not copied. A sweep with `folder="all"` then trains
    only what none of them had.

    Args:
        into: the folder, which is made if it isn't there.
        *folders: the other folders, which stay as they are.

    Raises:
        ValueError: if the folders are of different trainings, or if a process trains in one of them.
        FileNotFoundError: if there is no sweep in one of the others.
    """
    with Folder(into) as target:
        runs = Runs(target)
        for folder in folders:
            load(folder)  # an error if there is nothing to add
            with Folder(folder) as source:
                _add(runs, Runs(source))
    return load(into)


def _add(runs: Runs, others: Runs) -> None:
    notes, more = runs.folder.notes, others.folder.notes
    programs = defaultdict[str, set[str]](set)
    for batch in others.batches:
        programs[batch.structure].add(batch.program)
    what = {name: more[name] for name in ("metrics", "in_segments")}
    runs.check(what, programs, more["calls"][-1]["versions"])
    notes |= what
    notes["members"] |= more["members"]
    runs.folder.note_names(more["names"])
    first = len(notes["calls"])
    notes["calls"] += more["calls"]
    for batch in others.batches:
        if batch.done > batch.first and any(runs.finished(run) < batch.done for run in batch.places()):
            new = dataclasses.replace(batch, call=first + batch.call, lane=None, metrics={})
            # Noted first: a copy that is interrupted is a batch that has fewer segments.
            runs.add([new])
            runs.folder.take(others.folder, batch.label, new.label, range(batch.first, batch.done))
            new.done = batch.done
