"""Writers: hooks that log the runs of a sweep, as CSV files or to TensorBoard, Weights & Biases or MLflow.

A writer logs one run per member and seed, with its hyperparameters. By default, it logs the metrics that are numbers or
curves, which have one axis, that of time; not arrays with more axes, nor complex ones. A step is one entry of the
longest metric; an entry of a shorter one is at the last of the steps that it covers.
"""

import abc
import contextlib
import csv
import dataclasses
import os
import secrets
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from .._plugin.messages import imported, listing
from ._hooks import Row

Steps = Mapping[int, Mapping[str, float]]  # the values of the metrics, by step and name


@dataclasses.dataclass(eq=False)
class AbstractWriter(contextlib.AbstractContextManager[None]):
    """What all writers share: the choice of metrics, and the steps at which their values are.

    Args:
        metrics: the names of the metrics to log; by default all numbers and curves.
    """

    package: ClassVar[str]  # the one that logs
    metrics: str | Sequence[str] | None = dataclasses.field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        self._package = imported(self.package, f"sweeps.writers.{type(self).__name__}", "writers")
        self._runs: dict[str, Any] = {}  # that were begun, by the name of the row

    def __call__(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self.write(row, self._steps(row))

    @abc.abstractmethod
    def write(self, row: Row, steps: Steps) -> None:
        """Log a segment of a run."""

    def end(self, run: Any, succeeded: bool) -> None:
        """Mark a run as ended."""

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        while self._runs:
            self.end(self._runs.popitem()[1], succeeded=kind is None)

    def _steps(self, row: Row) -> Steps:
        shown = {name: np.ravel(x) for name, x in row.metrics.items() if x.ndim <= 1 and not np.iscomplexobj(x)}
        names = [self.metrics] if isinstance(self.metrics, str) else self.metrics or list(shown)
        if not set(names) <= shown.keys() or not names:
            raise ValueError(
                f"`{type(self).__name__}(metrics={self.metrics!r})`: it logs numbers and curves, which are "
                f"{listing(shown)}. The training returned {listing(row.metrics)}."
            )
        chosen = {name: shown[name] for name in names}
        length = max(map(len, chosen.values()))
        first = row.segment * length
        steps: dict[int, dict[str, float]] = {first + i: {} for i in range(length)}
        for name, x in chosen.items():
            for i, value in enumerate(x):
                steps[first + (i + 1) * length // len(x) - 1][name] = float(value)
        return steps


@dataclasses.dataclass(eq=False)
class CSV(AbstractWriter):
    """A file per member and seed, such as `member-003-seed-0.csv`, with a line per step.

        frame = pandas.concat(map(pandas.read_csv, pathlib.Path("logs").glob("*.csv")))

    A metric that has the name of a hyperparameter is in the column `metrics.NAME`.

    Args:
        folder: the folder of the files, which is made if it isn't there. Choose one for each sweep: files with the same
            names are overwritten.
        metrics: the names of the metrics to log; by default all numbers and curves.
    """

    package = "csv"
    folder: str | os.PathLike[str]

    def write(self, row: Row, steps: Steps) -> None:
        run = {"member": row.member, "seed": row.seed, "segment": row.segment, "step": 0} | row.hyperparameters
        names = sorted({name for values in steps.values() for name in values})  # not at every step is each of them
        columns = {name: f"metrics.{name}" if name in run else name for name in names}
        path = Path(self.folder, f"{row.name}.csv")
        path.parent.mkdir(parents=True, exist_ok=True)
        is_new = row.segment == 0 or not path.exists()
        with open(path, "w" if is_new else "a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, [*run, *columns.values()], lineterminator="\n")
            if is_new:
                writer.writeheader()
            for step, values in steps.items():
                writer.writerow(run | {"step": step} | {columns[name]: x for name, x in values.items()})


@dataclasses.dataclass(eq=False)
class TensorBoard(AbstractWriter):
    """A run of TensorBoard per member and seed. `tensorboard --logdir logs` compares them, also under HPARAMS.

    Requires `pip install "modulax[writers]"`.

    Args:
        folder: the folder of the runs. Choose one for each sweep.
        metrics: the names of the metrics to log; by default all numbers and curves.
    """

    package = "tensorboardX"
    folder: str | os.PathLike[str]

    def write(self, row: Row, steps: Steps) -> None:
        # A file for each segment: none is open between them, and a segment that comes again replaces itself.
        options = {"purge_step": min(steps), "filename_suffix": f".{row.segment:06d}"}
        with self._package.SummaryWriter(os.path.join(self.folder, row.name), **options) as writer:
            if row.segment == 0:
                names = dict.fromkeys((name for values in steps.values() for name in values), 0.0)
                for summary in self._package.summary.hparams(row.hyperparameters, names):
                    writer.file_writer.add_summary(summary)
            for step, values in steps.items():
                for name, x in values.items():
                    writer.add_scalar(name, x, step)


@dataclasses.dataclass(eq=False)
class WandB(AbstractWriter):
    """A run of Weights & Biases per member and seed, all in one group.

        log = sweeps.writers.WandB("digits", group="adamw", mode="offline")

    The runs remain open until the sweep ends, and the start of each takes some tenths of a second. Requires
    `pip install "modulax[writers]"`.

    Args:
        project: the name of the project.
        group: the name of the group; by default a random one. With a name, a sweep that resumes from its folder
            continues its runs.
        mode: `"online"`, `"offline"` or `"disabled"`; by default as W&B is configured.
        options: further arguments of `wandb.init`, such as `{"dir": "logs", "tags": ["muon"]}`.
        metrics: the names of the metrics to log; by default all numbers and curves.
    """

    package = "wandb"
    project: str
    _: dataclasses.KW_ONLY
    group: str = dataclasses.field(default_factory=lambda: secrets.token_hex(4))
    mode: str | None = None
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def write(self, row: Row, steps: Steps) -> None:
        if row.name not in self._runs:
            names = {"project": self.project, "group": self.group, "name": row.name, "id": f"{self.group}-{row.name}"}
            config = {"member": row.member, "seed": row.seed} | row.hyperparameters
            how = {"mode": self.mode, "resume": "allow" if row.segment else None, "reinit": "create_new"}
            self._runs[row.name] = self._package.init(**names, config=config, **how | dict(self.options))
        for step, values in steps.items():
            self._runs[row.name].log(dict(values), step=step)

    def end(self, run: Any, succeeded: bool) -> None:
        run.finish(exit_code=0 if succeeded else 1)


@dataclasses.dataclass(eq=False)
class MLflow(AbstractWriter):
    """A run of MLflow per member and seed.

        log = sweeps.writers.MLflow("digits", group="adamw", tracking_uri="sqlite:///mlflow.db")

    Requires `pip install "modulax[writers]"`, or MLflow itself, which brings the user interface.

    Args:
        experiment: the name of the experiment, which is made if it isn't there.
        group: the tag `group` of the runs; by default a random one. With a name, a sweep that resumes from its folder
            continues its runs.
        tracking_uri: where the runs are stored; by default as MLflow is configured.
        metrics: the names of the metrics to log; by default all numbers and curves.
    """

    package = "mlflow"
    experiment: str
    _: dataclasses.KW_ONLY
    group: str = dataclasses.field(default_factory=lambda: secrets.token_hex(4))
    tracking_uri: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._client = self._package.MlflowClient(self.tracking_uri)

    def write(self, row: Row, steps: Steps) -> None:
        if row.name not in self._runs:
            self._runs[row.name] = self._begun(row)
        metric, now = self._package.entities.Metric, int(time.time() * 1000)
        metrics = [metric(name, x, now, step) for step, values in steps.items() for name, x in values.items()]
        self._client.log_batch(self._runs[row.name], metrics=metrics)

    def _begun(self, row: Row) -> str:
        """The run of a row: a new one, or the one to which another process has logged the segments before."""
        found = self._client.get_experiment_by_name(self.experiment)
        place = self._client.create_experiment(self.experiment) if found is None else found.experiment_id
        query = f"tags.`group` = '{self.group}' and attributes.run_name = '{row.name}'"
        if row.segment and (runs := self._client.search_runs([place], query, max_results=1)):
            return runs[0].info.run_id
        run = self._client.create_run(place, tags={"group": self.group}, run_name=row.name).info.run_id
        config = {"member": row.member, "seed": row.seed} | row.hyperparameters
        self._client.log_batch(run, params=[self._package.entities.Param(name, str(x)) for name, x in config.items()])
        return run

    def end(self, run: Any, succeeded: bool) -> None:
        self._client.set_terminated(run, "FINISHED" if succeeded else "FAILED")
