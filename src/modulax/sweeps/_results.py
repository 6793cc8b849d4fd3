"""The results of a sweep: metrics of all members and seeds, the best member, tables and plots."""

import csv
import dataclasses
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax.tree_util as jtu
import numpy as np
from jaxtyping import PyTree

from .._support.checks import check_option, listing, suggestion
from ..tree._paths import dotted
from ._html import columns_of, html_rows
from ._panels import REDUCTIONS, Panels, reduced
from ._plots import plot
from ._sweep import Sweep
from ._training import Keys

OF_A_RUN = ("best_params", "best_parameters", "best_model", "params", "load")
DATA_FRAMES = ("to_pandas", "to_dataframe", "to_frame", "dataframe", "df")


@dataclasses.dataclass(frozen=True, eq=False)
class Results:
    """The result of a sweep.

    Attributes:
        sweep: the optimizers.
        metrics: what the training returned, as NumPy arrays with leading axes `[member, seed]`; of a `Trainable`,
            `[member, seed, segment]`.
        diverged: whether a metric of a run is infinite or NaN, `[member, seed]`.
        segments: how many segments each member was trained for; 1 for a plain `train`.
        total: the number of segments in the metrics.
        keys: the random key of each seed, with which `train(sweep[i], keys[j])` repeats a run; of `pbt`, the key of
            each member and seed.
        chunk: how many members were trained at a time, for each structure of the sweep.
        history: of `pbt`, the values of each explored hyperparameter, `[member, segment]`.
        parents: of `pbt`, the member whose carry each member continued from, `[member, segment]`.
    """

    sweep: Sweep
    metrics: PyTree
    diverged: np.ndarray
    segments: np.ndarray
    keys: Keys
    chunk: tuple[int, ...]
    total: int
    history: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    parents: np.ndarray | None = None

    def __repr__(self) -> str:
        names = ", ".join(f"{name}{list(x.shape)}" for name, x in self._named().items())
        bad = f"; {int(self.diverged.sum())} diverged" if self.diverged.any() else ""
        return f"Results({len(self.sweep)} members, {self.diverged.shape[1]} seeds; {names}{bad})"

    def _repr_html_(self) -> str:
        metrics = {self._column(name): self.final(name).mean(1) for name in self._named()}
        bad = {"diverged": self.diverged.sum(1)} if self.diverged.any() else {}
        more = {name: x.tolist() for name, x in (metrics | bad).items()}
        rows = [row | {name: x[i] for name, x in more.items()} for i, row in enumerate(self.sweep.table())]
        return html_rows(f"{self!r}: the mean of the last values over the seeds", rows)

    def __getitem__(self, metric: str) -> Any:
        """Return a metric by name: `results["loss"]` is `results.metrics["loss"]`, which may be a tree of arrays."""
        if not isinstance(metric, str):
            raise TypeError(
                f"`results[...]` takes the name of a metric: {listing(self._named())}. The optimizers are in "
                f"`results.sweep`, and the first axis of a metric is that of the members."
            )
        is_tree = isinstance(self.metrics, Mapping) and metric in self.metrics
        return self.metrics[metric] if is_tree else self._metric(metric)[1]

    __iter__ = None  # else Python would try numbers

    def _ipython_key_completions_(self) -> list[str]:
        return list(self._named())

    if not TYPE_CHECKING:  # a type checker would take every name for an attribute

        def __getattr__(self, name: str) -> Any:
            hint = " For a data frame, write `pandas.DataFrame(results.table())`." if name in DATA_FRAMES else ""
            hint = ' Write `results.best_run("loss")`, with what `train` returned.' if name in OF_A_RUN else hint
            raise AttributeError(f"`Results` has no attribute `{name}`.{hint}")

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
        return self._scores(metric, mode, reduce, np.zeros_like(self.diverged))

    def _scores(self, metric: str | None, mode: str, reduce: str, bad: np.ndarray) -> np.ndarray:
        check_option("scores", "mode", mode, ("min", "max"))
        check_option("scores", "reduce", reduce, tuple(REDUCTIONS))
        values = self._final_numbers(metric)
        is_last = (self.segments == self.segments.max())[:, None]
        return reduced(np.where(is_last & ~bad, values, np.nan), mode, reduce)

    def _sound_scores(
        self, metric: str | None, *, mode: str, reduce: str = "mean", tells: bool | None = None
    ) -> np.ndarray:
        """The scores, with the worst one for runs that diverged.

        A metric that is NaN between evaluations marks all runs, and `diverged` tells nothing.
        """
        tells = not self.diverged.all() if tells is None else tells
        # In `pbt`, a member goes on from another carry.
        return self._scores(metric, mode, reduce, self.diverged & (tells and self.parents is None))

    def _costs(self, metric: str | None, *, mode: str, reduce: str = "mean") -> np.ndarray:
        """The scores, with the worst one for runs that diverged, of which small ones are good in both modes."""
        scores = self._sound_scores(metric, mode=mode, reduce=reduce)
        return scores if mode == "min" else -scores

    def _costs_of_runs(self, metric: str | None, mode: str) -> np.ndarray:
        """The last values of a metric, `[member, seed]`, small ones being good; infinite of runs that diverged."""
        values = self._final_numbers(metric) * (1.0 if mode == "min" else -1.0)
        # A metric that is NaN between evaluations marks all runs.
        bad = self.diverged & (not self.diverged.all())
        return np.where(np.isfinite(values) & ~bad, values, np.inf)

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

    def best(self, metric: str | None = None, *, mode: str = "min", reduce: str = "mean") -> tuple[Any, dict[str, Any]]:
        """Return the best optimizer, and its row: what varies, and the metric reduced over the seeds.

        A run that `diverged` marks counts as the worst, whatever its last value. If all are marked, for example by a
        metric that is NaN between evaluations, and in `pbt`, where members continue from others, the last values
        decide.

        Raises:
            ValueError: if there is no such metric, or if all members diverged.
        """
        costs = self._finite_costs(metric, mode=mode, reduce=reduce)
        i = int(costs.argmin())
        name, score = self._column(self._metric(metric)[0]), costs[i] if mode == "min" else -costs[i]
        return self.sweep[i], {"member": i} | self.sweep.table()[i] | {name: float(score)}

    def best_run(
        self, metric: str | None = None, *, mode: str = "min", reduce: str = "mean", seed: int | None = None
    ) -> PyTree:
        """Return what the training returned for the best member, such as its trained parameters: one of its runs.

            params = results.best_run("loss")["params"]  # of a `train` that returns {"loss": ..., "params": ...}

        The arrays have no axes of members and seeds. `jax.tree.map(lambda x: x[member, seed], results.metrics)` is the
        same for any run.

        Args:
            metric: the metric that chooses the member, as in `best`.
            mode: `"min"` if small values are good, `"max"` if large ones are.
            reduce: `"mean"`, `"median"`, `"min"` or `"max"` over the seeds.
            seed: the index of the seed; the best one of the member by default.

        Raises:
            ValueError: if there is no such metric, or if all members diverged.
        """
        i = int(self._finite_costs(metric, mode=mode, reduce=reduce).argmin())
        seed = int(self._costs_of_runs(metric, mode)[i].argmin()) if seed is None else seed
        return jtu.tree_map(lambda x: x[i, seed], self.metrics)

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
        for i, row in enumerate(self.sweep.table()):
            of_seeds = {name: float(values[i].mean())}
            if self.diverged.shape[1] > 1:
                of_seeds |= {f"{name}_min": float(values[i].min()), f"{name}_max": float(values[i].max())}
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

        Args:
            metric: the name of the metric; may be left out if there is only one.
            kind: one kind, or several; by default all for which there are values.
            hyperparameters: the names of the hyperparameters to show, in this order; by default all that vary.
            mode: `"min"` if small values are good, `"max"` if large ones are.
            reduce: `"mean"`, `"median"`, `"min"` or `"max"` over the seeds.
            every: the number of training steps between two values of the metric, for the axis of the curves.

        Raises:
            ImportError: if matplotlib is not installed.
            ValueError: if there is no such metric, hyperparameter or kind.
        """
        return plot(Panels(self, metric, hyperparameters, mode, reduce, every), kind)

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Write a table with a row per member and seed: what varies, and the last value of every metric."""
        Path(path).write_text(csv_of(self), encoding="utf-8")


def csv_of(results: Results, finished: np.ndarray | None = None) -> str:
    """The table of `to_csv` as text, of the members that are finished."""
    rows = results.sweep.table()
    columns = columns_of(rows)
    last = {results._column(name): results.final(name) for name in results._named()}
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["member", "seed", *columns, *last, "diverged"])
    for (i, j), diverged in np.ndenumerate(results.diverged):
        if finished is None or finished[i]:
            values = [x[i, j].item() for x in last.values()]
            writer.writerow([i, j, *(rows[i].get(name, "") for name in columns), *values, bool(diverged)])
    return out.getvalue()
