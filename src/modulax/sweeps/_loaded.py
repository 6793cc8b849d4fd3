"""Results without the code that made them: what a folder says of its runs, and folders put together."""

import dataclasses
import itertools
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..checkpoint._plugin import nested
from ._folder import Folder
from ._results import Results, blanks, results_of
from ._runs import Carries, Runs
from ._sweep import AbstractMembers


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
    dicts, and `results.calls` has the versions, the git commit and the tags of the calls that added to the folder.
    Members that a hook stopped, and those with fewer segments than others, count as stopped. A folder may be read while
    it is written.

    Args:
        folder: the folder.

    Raises:
        FileNotFoundError: if there is no sweep in it.
        ValueError: if it is damaged, or nothing in it is finished.
    """
    return loaded(Runs(Folder(folder, reads=True)))


def loaded(runs: Runs) -> Results:
    """The results of all runs of a folder."""
    notes = runs.folder.notes
    members, seeds, names = _table(runs)
    trained = _trained(runs, names)
    ends = np.where(trained != "", np.arange(1, trained.shape[2] + 1), 0).max(axis=2)
    segments = ends.max(axis=1)
    metrics = _blanks(notes["metrics"], trained.shape)
    runs.fill(metrics, trained)
    in_segments = notes["in_segments"]
    paths = [tuple(name.split(".")) for name in notes["metrics"]]
    return results_of(
        metrics,
        trained != "",
        lambda leaves: nested(dict(zip(paths, leaves, strict=True))),
        in_segments,
        sweep=StoredMembers([notes["members"][member] for member in members], notes["names"]),
        segments=segments,
        keys=jnp.asarray(np.array([seed for seed in seeds if seed], np.uint32)),
        chunk=tuple(batch.width for batch in runs.batches),
        missing=ends < segments[:, None],
        calls=tuple(notes["calls"]),
        carries=Carries(runs.folder.path, names) if in_segments else None,
    )


def _table(runs: Runs) -> tuple[list[str], list[Any], np.ndarray]:
    """The members and seeds of a folder, and the names of their runs, `[member, seed]`; `""` where there is none."""
    members, found = dict[Any, str](), dict[tuple[Any, Any], str]()
    for batch in runs.batches:
        for run, (i, j) in batch.places().items() if batch.done > batch.first else ():
            # In `pbt`, every member has a key of its own, and may become equal to another one.
            row = (batch.members[i], batch.program) if batch.seeds else run
            members[row] = batch.members[i]
            found[row, tuple(batch.seeds[j]) if batch.seeds else ()] = run
    if not found:
        raise ValueError(f"{runs.folder.name} has no segment that is finished yet.")
    seeds = list(dict.fromkeys(seed for _, seed in found))
    names = np.array([[found.get((row, seed), "") for seed in seeds] for row in members], object)
    return list(members.values()), seeds, names


def _trained(runs: Runs, names: np.ndarray) -> np.ndarray:
    """The names of the runs that were trained in each segment, as `Runs.fill` gets them."""
    histories = {at: runs.history(run) for at, run in np.ndenumerate(names) if run}
    total = 1 + max(map(max, histories.values()))
    trained = np.full((*names.shape, total), "", object)
    for at, history in histories.items():
        trained[(*at, list(history))] = list(history.values())
    trained = np.where(np.arange(total) < runs.ends(names, total)[:, None, None], trained, "")
    return trained[:, :, : 1 + np.flatnonzero((trained != "").any(axis=(0, 1)))[-1]]


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
    for folder in folders:
        Runs(Folder(folder, reads=True))  # an error if there is nothing to add
    with Folder(into) as target:
        runs = Runs(target)
        for folder in folders:
            with Folder(folder) as source:
                _add(runs, Runs(source))
    return load(into)


def _add(runs: Runs, others: Runs) -> None:
    runs.describe(others.folder.notes)
    runs.folder.save()  # also if it has all runs already
    for segment in itertools.takewhile(lambda n: others.folder.cursor(n) is not None, itertools.count()):
        runs.folder.keep_cursor(segment, others.folder.cursor(segment))
    calls = runs.folder.notes["calls"]
    for batch in others.batches:
        if batch.done > batch.first and any(runs.finished(run) < batch.done for run in batch.places()):
            call = calls.index(others.folder.notes["calls"][batch.call])
            new = dataclasses.replace(batch, call=call, lane=None, metrics={})
            runs.add([new])  # noted first: a copy that is interrupted is a batch that has fewer segments
            runs.folder.take(others.folder, batch.label, new.label, range(batch.first, batch.done))
            new.done = batch.done
