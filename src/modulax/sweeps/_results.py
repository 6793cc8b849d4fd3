"""The results of a sweep: metrics of all members and seeds, the best member, tables and plots."""

import csv
import dataclasses
import functools
import importlib
import io
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import PyTree

from .._plugin.arguments import check_option
from .._plugin.messages import listing, suggestion
from .._plugin.trees import dotted
from ..checkpoint._plugin import nested
from ._panels import REDUCTIONS, Panels, reduced
from ._plots import plot, plot_by
from ._runs import Carries
from ._sweep import AbstractMembers, columns_of, html_rows
from ._training import Keys

OF_A_RUN = ("best_params", "best_parameters", "best_model", "params")
DATA_FRAMES = ("to_dataframe", "to_frame", "dataframe", "df", "pandas")


class Best(tuple[Any, dict[str, Any]]):
    """The best member: a pair of the optimizer and its row, with its best run.

    optimizer, row = results.best("loss")
    params = results.best("loss").params
    """

    _run: Callable[[], tuple[PyTree, str | None]]  # the run, and the part of it that has the parameters

    @property
    def run(self) -> PyTree:
        """The run of its best seed, as `Results.load` returns it."""
        return self._run()[0]

    @property
    def params(self) -> PyTree:
        """The parameters of the run."""
        run, part = self._run()
        parts = run if isinstance(run, Mapping) else {}
        if "params" not in parts and part is None:
            raise ValueError(
                f"What the training returned has no part `params`: there are {listing(parts) or 'no parts'}. Return "
                f'the parameters as `{{"loss": loss, "params": params}}`.'
            )
        return parts["params" if "params" in parts else part]


@dataclasses.dataclass(frozen=True, eq=False)
class Results:
    """The result of a sweep.

    Attributes:
        sweep: the optimizers; of `sweeps.load`, their texts.
        metrics: what the training returned, as NumPy arrays with leading axes `[member, seed]`; of a `Trainable`,
            `[member, seed, segment]`. Of `sweeps.load`, in nested dicts.
        diverged: whether a metric of a run is infinite or NaN, `[member, seed]`.
        segments: how many segments each member was trained for; 1 for a plain `train`.
        total: the number of segments in the metrics.
        keys: the random key of each seed, with which `train(sweep[i], keys[j])` repeats a run; of `pbt`, the key of
            each member and seed.
        chunk: how many members were trained at a time, for each structure of the sweep.
        history: of `pbt`, the values of each explored hyperparameter, `[member, segment]`.
        parents: of `pbt`, the member whose carry each member continued from, `[member, segment]`.
        missing: of `sweeps.load`, the runs that the folder doesn't have to the end of their member, `[member, seed]`.
        calls: of `sweeps.load`, the versions, the git commit and the tags of each call that added to the folder.
        carries: of a `Trainable`, where the carries are.
    """

    sweep: AbstractMembers
    metrics: PyTree
    diverged: np.ndarray
    segments: np.ndarray
    keys: Keys
    chunk: tuple[int, ...]
    total: int
    history: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    parents: np.ndarray | None = None
    missing: np.ndarray | None = None
    calls: tuple[dict[str, Any], ...] = ()
    carries: Carries | None = None

    def __repr__(self) -> str:
        names = ", ".join(f"{name}{list(x.shape)}" for name, x in self._named().items())
        bad = f"; {int(self.diverged.sum())} diverged" if self.diverged.any() else ""
        return f"Results({len(self.sweep)} members, {self.diverged.shape[1]} seeds; {names}{bad})"

    def _repr_html_(self) -> str:
        final = {self._column(name): self.final(name) for name in self._named()}
        bad = {"diverged": self.diverged.sum(1).tolist()} if self.diverged.any() else {}
        rows = [
            row
            | {name: x[i][there].mean().item() for name, x in final.items()}
            | {name: x[i] for name, x in bad.items()}
            for i, (row, there) in enumerate(zip(self.sweep.table(), self._is_there(), strict=True))
        ]
        return html_rows(f"{self!r}: the mean of the last values over the seeds", rows)

    def __getitem__(self, metric: str) -> Any:
        """Return a metric by name: `results["loss"]` is `results.metrics["loss"]`, which may be a tree of arrays.

        A part deeper inside is found by its dotted path, as a dict of arrays.
        """
        if not isinstance(metric, str):
            raise TypeError(
                f"`results[...]` takes the name of a metric: {listing(self._named())}. The optimizers are in "
                f"`results.sweep`, and the first axis of a metric is that of the members."
            )
        if isinstance(self.metrics, Mapping) and metric in self.metrics:
            return self.metrics[metric]
        inside = {name: x for name, x in self._named().items() if name.startswith(f"{metric}.")}
        if inside:
            return nested({tuple(name[len(metric) + 1 :].split(".")): x for name, x in inside.items()})
        return self._metric(metric)[1]

    __iter__ = None  # else Python would try numbers

    def _ipython_key_completions_(self) -> list[str]:
        return list(self._named())

    if not TYPE_CHECKING:  # a type checker would take every name for an attribute

        def __getattr__(self, name: str) -> Any:
            hint = " For a data frame, write `results.to_pandas()`." if name in DATA_FRAMES else ""
            hint = ' Write `results.best("loss").params`.' if name in OF_A_RUN else hint
            raise AttributeError(f"`Results` has no attribute `{name}`.{hint}")

    def _is_there(self) -> np.ndarray:
        """The runs that are not missing, `[member, seed]`."""
        return np.ones_like(self.diverged) if self.missing is None else ~self.missing

    def _named(self) -> dict[str, np.ndarray]:
        return {dotted(path) or "metric": x for path, x in jtu.tree_leaves_with_path(self.metrics)}

    def _column(self, name: str) -> str:
        """The name of a metric in a table, where a hyperparameter or another column may have its name."""
        taken = {"member", "seed", "diverged"}.union(*self.sweep.table())
        column = name
        while column in taken or (column != name and column in self._named()):
            column = f"metrics.{column}"
        return column

    def _metric(self, name: str | None) -> tuple[str, np.ndarray]:
        """A metric by name; the only one if the name is None."""
        metrics = self._named()
        if name is None and len(metrics) == 1:
            return next(iter(metrics.items()))
        if name not in metrics:
            what = "Choose a metric" if name is None else f"There is no metric `{name}`"
            raise ValueError(f"{what}: there are {listing(metrics)}.{suggestion(name or '', list(metrics))}")
        return name, metrics[name]

    def curve(self, metric: str | None = None) -> np.ndarray:
        """Return a metric over time, `[member, seed, time]`: the axes after those of members and seeds as one."""
        _, values = self._metric(metric)
        return values.reshape(*values.shape[:2], -1)

    def final(self, metric: str | None = None) -> np.ndarray:
        """Return the last value of a metric, `[member, seed]`; of a member that was stopped, the last before that."""
        values = self.curve(metric)
        last = np.maximum(self.segments * (values.shape[2] // self.total) - 1, 0)
        return values[np.arange(len(values)), :, last]

    def _final_numbers(self, metric: str | None) -> np.ndarray:
        values = self.final(metric)
        if np.iscomplexobj(values):
            name, _ = self._metric(metric)
            raise ValueError(f"`{name}` is complex, so it has no order. Return its absolute value from the training.")
        return values.astype(np.float64)

    def scores(self, metric: str | None = None, *, mode: str = "min", reduce: str = "mean") -> np.ndarray:
        """Return one number per member: the last value of the metric, reduced over the seeds.

        A value that is infinite or NaN counts as the worst, and so does every value of a member that was stopped before
        the others.

        Args:
            metric: the name of the metric, a dotted path in what the training returned; may be left out if there is
                only one.
            mode: `"min"` if small values are good, `"max"` if large ones are.
            reduce: `"mean"`, `"median"`, `"min"` or `"max"` over the seeds.
        """
        return self._scores(metric, mode=mode, reduce=reduce, tells=False)

    def _scores(self, metric: str | None, *, mode: str, reduce: str = "mean", tells: bool | None = None) -> np.ndarray:
        """The scores, with the worst one for runs that diverged; see `_sound` for `tells`."""
        check_option("scores", "mode", mode, ("min", "max"))
        check_option("scores", "reduce", reduce, tuple(REDUCTIONS))
        return reduced(self._sound(metric, tells), mode, reduce, self._is_there())

    def _sound(self, metric: str | None, tells: bool | None = None) -> np.ndarray:
        """The last values of a metric, `[member, seed]`; NaN of runs that diverged or were stopped before the others.

        Args:
            metric: the name of the metric.
            tells: whether `diverged` tells anything. By default, it does unless it marks all runs, as a metric does
                that is NaN between evaluations; and never in `pbt`, where a member goes on from another carry.
        """
        tells = not self.diverged.all() if tells is None else tells
        bad = self.diverged & (tells and self.parents is None)
        is_last = (self.segments == self.segments.max())[:, None]
        return np.where(is_last & ~bad, self._final_numbers(metric), np.nan)

    def _costs(self, metric: str | None, *, mode: str, reduce: str = "mean") -> np.ndarray:
        """The scores, with the worst one for runs that diverged, of which small ones are good in both modes."""
        scores = self._scores(metric, mode=mode, reduce=reduce)
        return scores if mode == "min" else -scores

    def _costs_of_runs(self, metric: str | None, mode: str) -> np.ndarray:
        """The last values of a metric, `[member, seed]`, small ones being good; infinite of runs that diverged."""
        values = self._sound(metric) * (1.0 if mode == "min" else -1.0)
        return np.where(np.isfinite(values) & self._is_there(), values, np.inf)

    def _finite_costs(self, metric: str | None, *, mode: str, reduce: str = "mean") -> np.ndarray:
        """The costs; an error if none is finite, so that nothing could be chosen by them."""
        costs = self._costs(metric, mode=mode, reduce=reduce)
        if not np.isfinite(costs).any():
            raise ValueError(
                f"No member has a finite `{self._metric(metric)[0]}`: all diverged. Try smaller learning rates, or "
                f"`reduce='median'` if only some seeds did. If it is not measured at every step, return the last value "
                f"that was."
            )
        return costs

    def best(self, metric: str | None = None, *, mode: str = "min", reduce: str = "mean") -> Best:
        """Return the best optimizer, and its row: what varies, and the metric reduced over the seeds.

            optimizer, row = results.best("loss")
            params = results.best("loss").params

        The pair also has the run of the best seed: `run`, as `load` returns it, and its `params`. They are the part
        that is called `params`; or else, of a carry, the first part with floating-point arrays that is not the state of
        an optimizer.

        A run that `diverged` marks counts as the worst, whatever its last value. If all are marked, for example by a
        metric that is NaN between evaluations, and in `pbt`, where members continue from others, the last values
        decide.

        Raises:
            ValueError: if there is no such metric, or if all members diverged.
        """
        costs = self._finite_costs(metric, mode=mode, reduce=reduce)
        i = int(costs.argmin())
        name, score = self._column(self._metric(metric)[0]), costs[i] if mode == "min" else -costs[i]
        row = {"member": i} | self.sweep.table()[i] | {name: float(score)}
        seed = int(self._costs_of_runs(metric, mode)[i].argmin())
        best = Best((self.sweep[i], row))
        best._run = functools.partial(self._run, i, seed)
        return best

    def _run(self, member: int, seed: int) -> tuple[PyTree, str | None]:
        """A run, and the part of it that has the parameters, if that is known."""
        if self.carries is not None:
            return self.carries.of(member, seed)
        return jtu.tree_map(lambda x: x[member, seed], self.metrics), None

    def load(self, member: int, seed: int = 0) -> PyTree:
        """Return a run: the last carry of a `Trainable`, from its folder, or what a plain `train` returned.

            params = results.load(3, seed=1)["params"]

        A carry is in nested dicts with the names of its parts, which are numbers for a tuple; random keys in it are
        integers. Neither the code of the training nor that of the model is needed.

        Args:
            member: the number of the member.
            seed: the number of the seed.

        Raises:
            ValueError: if the sweep of a `Trainable` has no folder.
        """
        return self._run(member, seed)[0]

    def lineage(self, member: int) -> list[dict[str, Any]]:
        """Return the hyperparameters that led to a member of `pbt`: a dict per segment, from the first to the last.

        Raises:
            ValueError: if the results are not those of `pbt`.
        """
        if self.parents is None:
            raise ValueError("Only the members of `sweeps.pbt` have a lineage; those of other sweeps never change.")
        rows = []
        for segment in reversed(range(self.parents.shape[1])):
            values = {name: float(x[member, segment]) for name, x in self.history.items()}
            rows.append({"segment": segment, "member": int(member)} | values)
            member = int(self.parents[member, segment])
        return rows[::-1]

    def table(self, metric: str | None = None) -> list[dict[str, Any]]:
        """Return a dict per member: what varies, the mean of the metric over the seeds, its range, how many diverged.

        `pandas.DataFrame` takes it as it is. A metric with the name of a hyperparameter, such as the learning rate in
        force, is in the column `metrics.learning_rate`.
        """
        name = self._column(self._metric(metric)[0])
        values = self._final_numbers(metric)
        rows = []
        for i, (row, there) in enumerate(zip(self.sweep.table(), self._is_there(), strict=True)):
            of_one = values[i][there]
            of_seeds = {name: float(of_one.mean())}
            if self.diverged.shape[1] > 1:
                of_seeds |= {f"{name}_min": float(of_one.min()), f"{name}_max": float(of_one.max())}
            rows.append({"member": i} | row | of_seeds | {"diverged": int(self.diverged[i].sum())})
        return rows

    def plot(
        self,
        metric: str | None = None,
        *,
        kind: str | Sequence[str] | None = None,
        hyperparameters: Sequence[str] | None = None,
        mode: str = "min",
        reduce: str = "mean",
        every: int | None = None,
        x: str | None = None,
        by: str | None = None,
    ) -> Any:
        """Plot a metric, and return the figure of matplotlib. Requires `pip install "modulax[sweeps]"`.

            figure = results.plot("loss")
            figure.savefig("sweep.pdf")

        A notebook shows the figure once, whether or not it is the last line of a cell. There are up to three kinds of
        panels:

        - `"curves"`: the metric over time, if the training returned several values; the color is the first
          hyperparameter that varies, or the class if there are several.
        - `"final"`: the last value against each hyperparameter that varies, with the range of the seeds. On a grid, a
          line through the best member at each value; else a point for each member.
        - `"heatmap"`: the last value for the first two hyperparameters of a grid, the best over the others.

        Runs that diverged are marked at the edge of the axes, and the best member in red. An axis is logarithmic where
        the values span a factor of ten, except that of a metric of which large values are good, such as an accuracy.

        With `x`, there is one panel: the last value against `x`, with a line for each value of `by`, and the best
        member of each line as a larger dot.

            results.plot("loss", x="learning_rate", by="width")

        Args:
            metric: the name of the metric; may be left out if there is only one.
            kind: one kind, or several; by default all for which there are values.
            hyperparameters: the names of the hyperparameters to show, in this order; by default all that vary.
            mode: `"min"` if small values are good, `"max"` if large ones are.
            reduce: `"mean"`, `"median"`, `"min"` or `"max"` over the seeds.
            every: the number of training steps between two values of the metric, for the axis of the curves.
            x: the name of a hyperparameter, or of an argument of `over`.
            by: the name of another one, or `"optimizer"`; by default, there is a line for each optimizer.

        Raises:
            ImportError: if matplotlib is not installed.
            ValueError: if there is no such metric, hyperparameter or kind.
        """
        panels = Panels(self, metric, hyperparameters, mode, reduce, every)
        if x is None and by is None:
            return plot(panels, kind)
        if x is None or x == by or kind is not None or hyperparameters is not None:
            raise ValueError(
                "`plot(x=..., by=...)` is one panel: it needs `x`, may have another `by`, and has no `kind` or "
                '`hyperparameters`. Write, for example, `results.plot("loss", x="learning_rate", by="width")`.'
            )
        return plot_by(panels, x, by or "optimizer")

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Write a table with a row per member and seed: what varies, and the last value of every metric."""
        Path(path).write_text(csv_of(self), encoding="utf-8")

    def to_pandas(self, *metrics: str, long: bool = False) -> Any:
        """Return a data frame of pandas: a row for each run, or, if `long`, for each value of each metric.

            curves = results.to_pandas("loss", long=True)
            seaborn.lineplot(curves, x="time", y="value", hue="learning_rate")

        Args:
            *metrics: the names of the metrics; by default all.
            long: whether there is a row for each value over time, with the columns `metric`, `time` and `value`, in
                place of a row for each run with the last values.

        Raises:
            ImportError: if pandas is not installed.
            ValueError: if there is no such metric.
        """
        try:
            pandas = importlib.import_module("pandas")
        except ImportError as error:
            raise ImportError("`Results.to_pandas` requires pandas: `pip install pandas`.") from error
        names = [self._metric(name)[0] for name in metrics or self._named()]
        if not long:
            return pandas.DataFrame(_rows(self, names))
        members, there = pandas.DataFrame(self.sweep.table()), self._is_there()
        frames = []
        for name in names:
            values = self.curve(name)
            member, seed, time = (x.ravel() for x in np.indices(values.shape))
            lengths = self.segments * (values.shape[2] // self.total)
            columns = {"member": member, "seed": seed, "metric": name, "time": time + 1, "value": values.ravel()}
            frames.append(pandas.DataFrame(columns)[there[member, seed] & (time < lengths[member])])
        members = members.rename(columns={name: f"member.{name}" for name in ("seed", "metric", "time", "value")})
        return pandas.concat(frames, ignore_index=True).join(members, on="member")


def blanks(members: int, leaves: Iterable[tuple[tuple[int, ...], Any]]) -> list[np.ndarray]:
    """Arrays for the metrics of so many members: NaN until they are there, or zero for integers."""
    is_float = [jnp.issubdtype(dtype, jnp.inexact) for _, dtype in leaves]
    pairs = zip(leaves, is_float, strict=True)
    return [np.full((members, *shape), jnp.nan if fills else 0, dtype) for (shape, dtype), fills in pairs]


def results_of(
    leaves: Sequence[np.ndarray], is_trained: np.ndarray, tree: Callable[[Any], PyTree], in_segments: bool, **more: Any
) -> Results:
    """The results, from the leaves of the metrics, `[member, seed, segment, ...]`.

    Args:
        leaves: the leaves.
        is_trained: the segments in which runs were trained; only there, a metric that is not finite is one of a run
            that diverged.
        tree: makes the metrics from their leaves.
        in_segments: whether the metrics have an axis of segments.
        **more: the other fields.
    """
    shape = leaves[0].shape[:3]
    bad = np.zeros(shape, bool)
    for x in leaves:
        if jnp.issubdtype(x.dtype, jnp.inexact):
            bad |= ~np.isfinite(x).reshape(*shape, -1).all(axis=3)
    diverged = np.any(bad & is_trained, axis=2)
    metrics = tree(leaves if in_segments else [x[:, :, 0] for x in leaves])
    return Results(metrics=metrics, diverged=diverged, total=shape[2], **more)


def csv_of(results: Results) -> str:
    """The table of `to_csv` as text."""
    rows, out = _rows(results, list(results._named())), io.StringIO()
    writer = csv.DictWriter(out, columns_of(rows), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def _rows(results: Results, metrics: Sequence[str]) -> list[dict[str, Any]]:
    """A row for each run that is there: what varies, and the last values of metrics."""
    table, rows = results.sweep.table(), []
    blank = dict.fromkeys(columns_of(table))
    last = {results._column(name): results.final(name) for name in metrics}
    for (i, j), diverged in np.ndenumerate(results.diverged):
        if results._is_there()[i, j]:
            values = {name: x[i, j].item() for name, x in last.items()}
            rows.append({"member": i, "seed": j} | blank | table[i] | values | {"diverged": bool(diverged)})
    return rows
