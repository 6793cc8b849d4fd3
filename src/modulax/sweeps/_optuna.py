"""`optuna`: Optuna proposes hyperparameters, and a batch of its trials is one run of one program.

The ask-and-tell interface of a study is all that is used: its sampler, pruner and storage are the user's. The study is
the only record: the trials of earlier calls, or of other machines that share its storage, count as those of this one.
"""

from collections.abc import Sequence
from typing import Any, Self

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from .._plugin.arguments import check_integer
from ..authoring import AbstractTransform
from ._experiment import Experiment, Settings
from ._hooks import AbstractHooks, Hook, Hooks, Row
from ._results import Results, blanks
from ._spaces import AbstractSpace, Spaces, check_spaces
from ._sweep import Sweep, check_optimizer, combined
from ._training import Train, Trainable


def optuna(
    study: Any,
    optimizer: AbstractTransform,
    train: Train | Trainable,
    /,
    *,
    trials: int,
    batch: int = 16,
    metric: str | Sequence[str] | None = None,
    reduce: str = "mean",
    seeds: int = 1,
    key: PRNGKeyArray | None = None,
    segments: int = 1,
    data: Any = None,
    devices: Any = None,
    memory: float | int | None = None,
    progress: bool = True,
    on_segment: Hook | Sequence[Hook] | None = None,
    **spaces: AbstractSpace,
) -> Results:
    """Search with Optuna: its sampler proposes a batch of trials, which are trained together in one program.

        study = optuna.create_study(sampler=optuna.samplers.TPESampler(constant_liar=True), storage=..., study_name=...)
        results = sweeps.optuna(study, mx.AdamW(1e-3), train, batch=16, trials=64, metric="loss",
                                learning_rate=sweeps.LogUniform(1e-4, 1e-1), weight_decay=sweeps.Uniform(0, 0.1))
        optuna.visualization.plot_optimization_history(study)

    The program is compiled once for all batches. The parameters of the study have the names and values of the
    hyperparameters, with three exceptions: for `b2=OneMinus(LogUniform(...))`, Optuna samples the parameter `1 - b2`;
    for `x=Normal(...)`, which Optuna doesn't have, and for spaces of your own, `quantile of x`; and a `Choice` of
    anything but numbers, strings, bools and None, such as schedules, is stored as text.

    With a `Trainable` and several segments, the metric of every segment is reported, and a trial that the study's
    pruner stops is marked as pruned. Its place in the batch keeps computing, without effect; a batch ends when all of
    its trials are pruned. A trial that diverged has the value infinity, the worst one, so the sampler avoids its
    neighborhood; Optuna would ignore a failed trial.

    A study with finished trials is continued: `trials` counts all complete or pruned trials in the storage. Several
    machines may share a storage; with `k` of them, there may be up to `k - 1` extra batches, which the others are
    training when the last trial finishes. A trial whose process was killed remains in the state RUNNING and isn't
    counted; it can't be distinguished from one that another machine is training. If an exception ends the call, its
    trials are marked as failed.

    Args:
        study: a study of Optuna, with the sampler, the pruner and the storage of your choice.
        optimizer: the optimizer; other hyperparameters keep their values.
        train: `train(optimizer, key)`, or a `Trainable`.
        trials: the number of trials that the study has in the end.
        batch: how many trials are proposed and trained at a time. The sampler learns nothing within a batch.
        metric: the name of the metric that is the study's objective; optional if there is only one. For a study with
            several directions, a list of names.
        reduce: `"mean"`, `"median"`, `"min"` or `"max"` over the seeds.
        seeds: the number of seeds with which each trial is trained.
        key: random key, as in `run`; the sampler has its own seed.
        segments: the number of segments of a `Trainable`.
        data: as in `run`; read again for each batch of trials, so that an iterator needs a cursor.
        devices: as in `run`.
        memory: as in `run`; if a batch doesn't fit, it is trained in parts.
        progress: as in `run`.
        on_segment: as in `run`; a trial that it stops is marked as pruned.
        **spaces: the space of each hyperparameter, by the names of `replace`.

    Returns:
        The results of all trials of the study, in its order. For trials of another call, only the objective is known:
        it is the same for all seeds, and their other metrics are NaN (zero for integers).

    Raises:
        ImportError: if Optuna is not installed.
        ValueError: if a name or a space is invalid, or the number of metrics is not that of the study's directions.
    """
    check_optimizer("sweeps.optuna", optimizer)
    check_integer("sweeps.optuna", "trials", trials)
    check_integer("sweeps.optuna", "batch", batch)
    check_spaces("sweeps.optuna", spaces)
    _check_study(study)
    search = _Search(study, optimizer, spaces, metric, reduce, on_segment)
    middle = combined("sweeps.optuna", optimizer, spaces, [[space.at(0.5) for space in spaces.values()]])
    experiment = Experiment(
        middle, train, seeds=seeds, key=key, devices=devices, segments=segments, data=data, name="sweeps.optuna"
    )
    if experiment.data is not None:
        experiment.data.check_goes_back("`sweeps.optuna` reads the data again for each batch of trials")
    search.begin(experiment)
    remaining = trials - len(search.finished())
    settings = Settings(None, memory, None, None, progress, search)
    with experiment.session("optuna", settings, max(remaining, 0) * segments, least=batch):
        width = experiment.width(experiment.structures[0], batch, seeds)  # an error before a trial is asked for
        while remaining > 0 and not search.is_exhausted:
            search.train(min(batch, remaining))
            remaining = trials - len(search.finished())
    return search.results(chunk=(width,))


def _check_study(study: Any) -> None:
    try:
        from optuna import Study
    except ImportError as error:
        raise ImportError('`sweeps.optuna` requires Optuna: `pip install "modulax[optuna]"`.') from error
    if not isinstance(study, Study):
        raise TypeError(
            f"`sweeps.optuna` needs a study, `optuna.create_study(...)`, as its first argument; got {study!r}."
        )
    if jax.process_count() > 1:
        raise ValueError(
            "`sweeps.optuna` runs in one process, whose study asks for the trials. Start it on each machine without "
            "`jax.distributed`, with one storage for all."
        )


class _Search(AbstractHooks):
    """A study of Optuna, and the trials that this call trains: as a hook, it reports every segment of them.

    Attributes:
        study: the study.
        is_exhausted: whether the sampler has nothing left to propose.
        experiment: what trains the batches of trials; given by `begin`.
    """

    experiment: Experiment

    def __init__(
        self, study: Any, optimizer: AbstractTransform, spaces: Spaces, metric: Any, reduce: str, on_segment: Any
    ):
        from optuna import distributions
        from optuna.study import StudyDirection
        from optuna.trial import TrialState

        super().__init__()
        self.are_there = True  # also without hooks of the user, the study gets every segment
        self._hooks, self._reduce = Hooks(on_segment), reduce
        self.study, self._state = study, TrialState
        self.is_exhausted = False
        modes = ["max" if d == StudyDirection.MAXIMIZE else "min" for d in study.directions]
        names: list[Any] = [metric] if metric is None or isinstance(metric, str) else list(metric)
        if len(modes) != len(names):
            raise ValueError(
                f"The study has {len(modes)} objectives, and `sweeps.optuna(metric=...)` names {len(names)}. "
                f"Give one metric for each: `metric=[...]`, in the order of `directions`."
            )
        self._objectives = list(zip(names, modes, strict=True))
        self._optimizer, self._spaces = optimizer, spaces
        self._parameters = [space.parameter(name) for name, space in spaces.items()]
        self._distributions = {p.name: getattr(distributions, p.distribution)(**p.arguments) for p in self._parameters}
        self._trials: list[Any] = []  # in training
        self._trained: dict[int, tuple[list[np.ndarray], int]] = {}  # by number: metrics, [seed, segment], and segments
        self._has_sound_run = False  # else what `diverged` marks is a metric that is NaN between evaluations

    def begin(self, experiment: Experiment) -> None:
        """Take what trains the batches; an error if it has no such metrics."""
        for name, _ in self._objectives:
            experiment.results().scores(name, reduce=self._reduce)
        self.experiment = experiment

    def __enter__(self) -> Self:
        self.enter_context(self._hooks)
        return self

    def finished(self) -> list[Any]:
        """The trials that were trained, by whoever, with all of our parameters."""
        trials = self.study.get_trials(deepcopy=False, states=(self._state.COMPLETE, self._state.PRUNED))
        return [trial for trial in trials if self._distributions.keys() <= trial.params.keys()]

    def _sweep(self, trials: Sequence[Any]) -> Sweep:
        """The optimizers of trials."""
        rows = [[p.value(trial.params[p.name]) for p in self._parameters] for trial in trials]
        return combined("sweeps.optuna", self._optimizer, self._spaces, rows)

    def _tell(self, trial: Any, state: str, values: Sequence[float] | None = None) -> None:
        """Tell the end of a trial, unless it has ended."""
        try:
            self.study.tell(trial, values, state=self._state[state], skip_if_finished=True)
        except RuntimeError as error:  # after the trial was stored: a grid that is complete wants `optimize` to stop
            if "Study.stop" not in str(error):
                raise
            self.is_exhausted = True

    def train(self, count: int) -> None:
        """Train a batch of trials."""
        self._trials = trials = list[Any]()
        try:
            while len(trials) < count:
                trials.append(self.study.ask(fixed_distributions=self._distributions))
            sweep = self._sweep(trials)
            self._check_structure(sweep)
            self.experiment.take(sweep)
            self.experiment.describe("optuna")
            self.experiment.train([*range(count)], self.experiment.total)
        except BaseException:  # also if the user stops it: else the trials would remain in the state RUNNING
            for trial in trials:
                self._tell(trial, "FAIL")
            raise
        metrics = self.experiment.trained_metrics()
        for row, (trial, end) in enumerate(zip(trials, self.experiment.segments.tolist(), strict=True)):
            self._trained[trial.number] = [x[row] for x in metrics], end

    def _check_structure(self, sweep: Sweep) -> None:
        if len(Sweep([*self.experiment.sweep, *sweep]).groups) > 1:
            raise ValueError(
                "One program trains all trials, so their optimizers must have one structure, and those that the spaces "
                "give have several. Put numbers, or schedules of one class, into a `Choice`; search each class in a "
                "study of its own."
            )

    def __call__(self, rows: Sequence[Row]) -> set[int]:
        """Call the hooks with the numbers of trials, report the trials, and return which ones of a batch have ended."""
        stopped = self._hooks([row._replace(member=self._trials[row.member].number) for row in rows])
        places, segment = list(dict.fromkeys(row.member for row in rows)), rows[0].segment
        trials = [self._trials[place] for place in places]
        metrics, ends = [x[places] for x in self.experiment.so_far], np.full(len(places), segment + 1)
        values = self._values(self.experiment.results_of(self.experiment.sweep[places], metrics, ends, chunk=()))
        return {
            place
            for place, trial, value in zip(places, trials, values.tolist(), strict=True)
            if self._has_ended(trial, segment, value, trial.number in stopped)
        }

    def _has_ended(self, trial: Any, segment: int, value: Sequence[float], is_stopped: bool) -> bool:
        """Report the values of a segment to the study, and return whether the trial is complete or pruned."""
        is_last = segment == self.experiment.total - 1
        if self.experiment.total > 1 and len(value) == 1:  # Optuna prunes only by a single objective
            trial.report(value[0], segment)
            is_stopped |= not is_last and trial.should_prune()
        if is_stopped and not is_last:
            self._tell(trial, "PRUNED")
            return True
        if is_last:
            self._tell(trial, "COMPLETE", value)
        return is_last

    def _values(self, results: Results) -> np.ndarray:
        """The values of the objectives, `[trial, objective]`; the worst possible if a run diverged."""
        self._has_sound_run |= not results.diverged.all()
        columns = [
            results._scores(name, mode=mode, reduce=self._reduce, tells=self._has_sound_run)
            for name, mode in self._objectives
        ]
        return np.stack(columns, 1)

    def results(self, chunk: tuple[int, ...]) -> Results:
        """The results of all trials of the study."""
        trials = self.finished()
        rows, ends = zip(*[self._trained.get(x.number) or self._from_study(x) for x in trials], strict=True)
        metrics = [np.stack(x) for x in zip(*rows, strict=True)]
        results = self.experiment.results_of(self._sweep(trials), metrics, np.array(ends), chunk=chunk)
        for row, trial in enumerate(trials):
            if trial.number not in self._trained:  # unknown metrics are NaN
                results.diverged[row] = not np.isfinite(trial.values or np.inf).all()
        return results

    def _from_study(self, trial: Any) -> tuple[list[np.ndarray], int]:
        """What is known of a trial that another call trained: the objectives alone, the same for all seeds."""
        metrics, total = [x[0] for x in blanks(1, self.experiment.leaves)], self.experiment.total
        steps = {step: value for step, value in trial.intermediate_values.items() if step < total}
        end = total if trial.state == self._state.COMPLETE else max(steps, default=-1) + 1
        leaves = list(self.experiment.metrics)
        for number, (name, _) in enumerate(self._objectives):
            values = metrics[0 if name is None else leaves.index(name)]
            for step, value in steps.items():
                values[:, step] = value
            if trial.values and end:
                values[:, end - 1] = trial.values[number]
        return metrics, end
