"""Compare optimizers: a search for each within a declared space, and the chosen ones on new seeds."""

import contextlib
import dataclasses
import itertools
import os
import zlib
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from .._plugin.arguments import check_integer, check_option
from .._plugin.messages import html_table, table
from ..authoring import AbstractTransform
from ._comparison import best_of, intervals, plot_comparison
from ._data import as_data
from ._experiment import Experiment, Settings, checked_key
from ._hooks import Hooks
from ._panels import REDUCTIONS, Spread
from ._results import Results
from ._run import train_all
from ._spaces import AbstractSpace, check_spaces, drawn, seed_of
from ._sweep import Sweep, check_optimizer, concat, text_of
from ._tasks import workers_of
from ._training import Train, Trainable, placement

_REDUCTIONS = ("mean", "median")
_OUTER = 0.2  # of what was tried of a hyperparameter, on each side
_Draw = tuple[Sweep, np.ndarray]  # members, and their quantiles


class SearchSpace:
    """An optimizer and the distributions of the hyperparameters to tune, for `compare`.

        space = sweeps.SearchSpace(mx.AdamW(1e-3), learning_rate=sweeps.LogUniform(1e-4, 1e-1))

    Args:
        optimizer: the optimizer; hyperparameters that are not named keep their values.
        **spaces: the space of each hyperparameter, by the names of `replace`. Without any, there is nothing to tune.
    """

    def __init__(self, optimizer: AbstractTransform, /, **spaces: AbstractSpace):
        check_optimizer("sweeps.SearchSpace", optimizer)
        if spaces:
            check_spaces("sweeps.SearchSpace", spaces)
        self.optimizer, self.spaces = optimizer, spaces

    def __repr__(self) -> str:
        named = "".join(f", {name}={space!r}" for name, space in self.spaces.items())
        return f"SearchSpace({self.optimizer!r}{named})"

    def drawn(self, key: PRNGKeyArray, n: int) -> _Draw:
        """Return `n` optimizers and the quantile of each hyperparameter; a single one if there is nothing to tune."""
        if not self.spaces:
            return Sweep([self.optimizer]), np.zeros((1, 0))
        return drawn("sweeps.SearchSpace", key, self.optimizer, n, self.spaces)

    def edges(self, at: np.ndarray, order: np.ndarray) -> dict[str, bool]:
        """The hyperparameters of which the best members are at the upper end of what was tried (True), or at the lower.

        The best one has the extreme value. Or, since others are drawn beside it, the best one and the median of the
        best quarter are in the outer fifth.

        Args:
            at: the quantiles of all members.
            order: the members, the best first.
        """
        found = {}
        for column, (name, space) in enumerate(self.spaces.items()):
            x = at[:, column]
            first, middle = x[order[0]], np.median(x[order[: max(len(x) // 4, 1)]])
            low, high = min(0.0, x.min()), max(1.0, x.max())
            margin = _OUTER * (high - low)
            is_end = {
                False: first == x.min() or max(first, middle) < low + margin,
                True: first == x.max() or min(first, middle) > high - margin,
            }
            for above, is_there in is_end.items():
                if len(at) > 1 and is_there and space.beyond(above) is not None:
                    found[name] = above
        return found

    def extended(self, edges: Mapping[str, bool], key: PRNGKeyArray, n: int) -> _Draw | None:
        """Members beyond the edges at which the best one is; None if no hyperparameter can have such values.

        Where the far end is out of the range of the hyperparameter, half or a quarter of the space is tried.
        """
        spaces, shares = dict(self.spaces), dict[str, float]()
        for name, share in itertools.product(edges, (1.0, 0.5, 0.25)):
            beyond = None if name in shares else self.spaces[name].beyond(edges[name], share)
            if beyond is not None:
                with contextlib.suppress(ValueError):
                    self.optimizer.replace(**{name: beyond.at(float(edges[name]))})
                    spaces[name], shares[name] = beyond, share
        if not shares:
            return None
        sweep, at = SearchSpace(self.optimizer, **spaces).drawn(key, n)
        for column, name in enumerate(self.spaces):
            if name in shares:
                distance = shares[name] / 2 * (at[:, column] if edges[name] else 1 - at[:, column])
                at[:, column] = 1 + distance if edges[name] else -distance
        return sweep, at


@dataclasses.dataclass(frozen=True, eq=False)
class Comparison:
    """The result of `compare`.

    Attributes:
        names: the names of the optimizers, the best first.
        optimizers: the chosen optimizer of each name.
        tuned: the names of the hyperparameters of each that were tuned.
        search: the results of the search, of one seed: all members of all names.
        members: the members of each name in `search`, the chosen one first.
        results: the results of the chosen optimizers on new seeds, in the order of `names`.
        metric: the metric that the optimizers are chosen by.
        test: the metric that is reported.
        mode: `"min"` if small values are good, `"max"` if large ones are.
        reduce: `"mean"` or `"median"` over the seeds.
        edges: for each name, the hyperparameters of which the best members are at the end of what was tried, as
            `compare` says, so that a better value may lie beyond it.
        values: the reported metric on the new seeds, `[optimizer, seed]`.
        intervals: its mean or median over the seeds, with a bootstrap interval of 95 %.
        differences: the difference between two optimizers in it, `[optimizer, optimizer]`, with an interval; the seeds
            are paired.
    """

    names: tuple[str, ...]
    optimizers: dict[str, Any]
    tuned: dict[str, tuple[str, ...]]
    search: Results
    members: dict[str, list[int]]
    results: Results
    metric: str
    test: str
    mode: str
    reduce: str
    edges: dict[str, tuple[str, ...]]
    values: np.ndarray
    intervals: Spread
    differences: Spread

    @property
    def ranks(self) -> dict[str, int]:
        """One more than the number of optimizers that are significantly better; indistinguishable ones share a rank."""
        worse = self.differences.low > 0 if self.mode == "min" else self.differences.high < 0
        return dict(zip(self.names, (1 + worse.sum(axis=1)).tolist(), strict=True))

    def ties(self, name: str) -> list[str]:
        """Return the optimizers that tie with this one: the interval of the difference contains zero.

        Args:
            name: the name of an optimizer.
        """
        i = self._index(name)
        in_doubt = (self.differences.low[i] <= 0) & (self.differences.high[i] >= 0)
        return [other for j, other in enumerate(self.names) if j != i and in_doubt[j]]

    def expected(self, name: str) -> np.ndarray:
        """Return the expected metric of the best of k members, for each k from 1 to the number of members.

        The member is chosen by the validation metric, and the reported metric is that of the search. A run that
        diverged counts as the worst that did not, of any optimizer (Dodge et al., 2019).

        Args:
            name: the name of an optimizer.
        """
        self._index(name)
        costs, reported = (self.search._costs(metric, mode=self.mode) for metric in (self.metric, self.test))
        finite = reported[np.isfinite(reported)]
        reported = np.where(np.isfinite(reported), reported, finite.max() if finite.size else np.nan)
        found = best_of(costs[self.members[name]], reported[self.members[name]])
        return found if self.mode == "min" else -found

    def diverged(self, name: str) -> float:
        """Return the share of the members of the search that diverged.

        Args:
            name: the name of an optimizer.
        """
        self._index(name)
        return float(self.search.diverged[self.members[name]].mean())

    def table(self) -> list[dict[str, Any]]:
        """Return a dict for each optimizer, the best first: rank, metric with interval, difference from the best.

        `pandas.DataFrame` takes it as it is. `ties` names the optimizers that can't be distinguished from this one, and
        `edge` the hyperparameters whose chosen value is at the edge of the tried range.
        """
        columns = self.results.sweep.table()
        rows = []
        for i, name in enumerate(self.names):
            row = {"optimizer": name, "rank": self.ranks[name]}
            for what, interval, at in ((self.test, self.intervals, i), ("difference", self.differences, (i, 0))):
                row |= {f"{what}{end}": float(x[at]) for end, x in zip(("", "_low", "_high"), interval, strict=True)}
            row |= {"ties": ", ".join(self.ties(name)), "members": len(self.members[name])}
            row |= {"diverged": self.diverged(name), "edge": ", ".join(self.edges[name])}
            rows.append(row | {k: columns[i][k] for k in self.tuned[name]})
        return rows

    def __repr__(self) -> str:
        title, header, rows = self._cells()
        return "\n".join([title, "", *table(header, rows, right=header[1:6])])

    def _repr_html_(self) -> str:
        title, header, rows = self._cells()
        return html_table(header, rows, right=header[1:6], notes=[title])

    def _cells(self) -> tuple[str, list[str], list[list[str]]]:
        """The title of the table, the names of its columns, and its cells."""
        seeds = self.values.shape[1]
        title = f"Comparison by `{self.test}`: the {self.reduce} over {seeds} new seeds, with an interval of 95 %;"
        title += " differences with the same seed."
        header = ["optimizer", "rank", self.test, "interval", "from the best", "diverged", "ties with", "chosen"]
        header.append("at the edge")
        rows = []
        for row in self.table():
            name, share = row["optimizer"], f"{row['diverged']:.0%}" if row["diverged"] else ""
            chosen = ", ".join(f"{k}={text_of(row[k])}" for k in self.tuned[name])
            of_each, of_pair = (
                f"{text_of(row[f'{k}_low'])} to {text_of(row[f'{k}_high'])}" for k in (self.test, "difference")
            )
            cells = [name, str(row["rank"]), text_of(row[self.test]), of_each, of_pair if rows else ""]
            rows.append([*cells, share, row["ties"], chosen, row["edge"]])
        return title, header, rows

    def plot(self) -> Any:
        """Plot the metric of each optimizer, and the expected one for each tuning budget; return the figure.

        Left: the value of each new seed, with the mean or median and its interval. Middle: its difference from that of
        the best optimizer with the same seed, by which optimizers are told apart. Right: `expected`, the metric of the
        best of k members of the search, against k. Requires `pip install "modulax[sweeps]"`.

        Raises:
            ImportError: if matplotlib is not installed.
        """
        return plot_comparison(self)

    def _index(self, name: str) -> int:
        if name not in self.names:
            raise ValueError(f"There is no optimizer {name!r} in this comparison: there are {', '.join(self.names)}.")
        return self.names.index(name)


def compare(
    spaces: Mapping[str, SearchSpace],
    train: Train | Trainable,
    metric: str | None = None,
    *,
    test: str | None = None,
    budget: int = 16,
    seeds: int = 8,
    finalists: int = 1,
    mode: str = "min",
    reduce: str = "mean",
    extend: bool = True,
    key: PRNGKeyArray | None = None,
    segments: int = 1,
    data: Any = None,
    chunk: int | None = None,
    devices: Any = None,
    memory: float | int | None = None,
    folder: str | os.PathLike[str] | None = None,
    tags: Mapping[str, Any] | None = None,
    progress: bool = True,
    executor: Any = None,
) -> Comparison:
    """Tune each optimizer within a declared space with the same budget, and compare the chosen ones on new seeds.

        rates = sweeps.LogUniform(1e-4, 1e-1)
        comparison = sweeps.compare(
            {
                "AdamW": sweeps.SearchSpace(mx.AdamW(1e-3), learning_rate=rates),
                "Lion": sweeps.SearchSpace(mx.Lion(1e-4), learning_rate=sweeps.LogUniform(1e-5, 1e-2)),
            },
            train, "valid_loss", test="test_loss",
        )
        print(comparison)

    `budget` members of each optimizer are drawn from its space and trained with one seed. The best by `metric` is
    chosen, and trained again with `seeds` new seeds, which are the same for all optimizers, so that the report is not
    about a lucky run. If the best members are at an edge of a space, half as many are drawn beyond it, as far as the
    hyperparameter allows: where the best one has the largest or smallest tried value, or where it and the median of the
    best quarter are in the outer fifth. If they are still at the edge, `edges` says so: the space was too narrow.

    One seed may choose a member for its luck. With `finalists=4`, the best four of each optimizer are trained with
    `seeds` other seeds, and the best of their means is chosen.

    The intervals come from a percentile bootstrap over the seeds, without a correction for the number of pairs. Eight
    seeds show only large differences. Compare at two lengths of training: the order often changes with the length.

    References:
        Dodge et al., [Show Your Work: Improved Reporting of Experimental
        Results](https://arxiv.org/abs/1909.03004), 2019;
        Choi et al., [On Empirical Comparisons of Optimizers for Deep Learning](https://arxiv.org/abs/1910.05446), 2019.

    Args:
        spaces: the search space of each optimizer, by its name.
        train: `train(optimizer, key)`, or a `Trainable`, as in `run`.
        metric: the metric that the best member is chosen by, such as a validation loss; may be left out if there is
            only one.
        test: the metric to report; by default that which the best is chosen by.
        budget: the number of members of each optimizer.
        seeds: the number of new seeds, at least two.
        finalists: the number of the best members of each optimizer among which more seeds decide.
        mode: `"min"` if small values are good, `"max"` if large ones are.
        reduce: `"mean"` or `"median"` over the new seeds.
        extend: whether to draw members beyond an edge at which the best one is.
        key: random key, from which those of the search and of the new seeds are made.
        segments: the number of segments of a `Trainable`.
        data: as in `run`; read again for the extension and the new seeds, so that an iterator needs a cursor.
        chunk: as in `run`.
        devices: as in `run`.
        memory: as in `run`.
        folder: as in `run`; it gets a folder for the search, one for the finalists, and one for the new seeds.
        tags: as in `run`.
        progress: as in `run`.
        executor: as in `run`; the workers train the members of the search, then the finalists and the new seeds.

    Raises:
        TypeError: if a space isn't a `SearchSpace`.
        ValueError: if there is no such metric, or a drawn value is out of the range of its hyperparameter.
    """
    call = "sweeps.compare"
    _check_spaces(spaces)
    check_integer(call, "budget", budget)
    check_integer(call, "seeds", seeds, least=2, hint=" An interval needs two values.")
    check_integer(call, "finalists", finalists)
    check_option(call, "mode", mode, ("min", "max"))
    check_option(call, "reduce", reduce, _REDUCTIONS)
    key = checked_key(call, key)
    of_search, of_seeds = jax.random.split(key)
    workers, here = workers_of(executor, devices, memory)
    if (shared := as_data(data, placement(here))) is not None:
        shared.check_goes_back("`sweeps.compare` reads the data again for the new seeds")

    def trained(parts: Mapping[str, Sweep], what: str, key: PRNGKeyArray, seeds: int) -> _Search:
        experiment = Experiment(
            concat(parts), train, seeds=seeds, key=key, devices=here, segments=segments, data=shared, name=call
        )
        for name in (metric, test if test is not None else metric):
            experiment.results().scores(name, mode=mode)  # an error if there is no such metric
        below = None if folder is None else Path(folder) / what
        results = train_all(experiment, Settings(chunk, memory, below, tags, progress, Hooks(None), workers))
        return _Search(results, [name for name, sweep in parts.items() for _ in sweep])

    def searched(draws: Mapping[str, _Draw]) -> _Search:
        """What was drawn for each name, trained."""
        found = trained({name: sweep for name, (sweep, _) in draws.items()}, "search", of_search, 1)
        return found._replace(at={name: quantiles for name, (_, quantiles) in draws.items()})

    search = searched({name: space.drawn(_key_of(of_search, name), budget) for name, space in spaces.items()})
    if extend:
        edges, n = search.edges(spaces, search.ranked(metric, mode)), -(-budget // 2)
        draws = {name: spaces[name].extended(x, _key_of(of_search, name, 1), n) for name, x in edges.items()}
        if more := {name: x for name, x in draws.items() if x is not None}:
            search = search.joined(searched(more))
    best, members = search.ranked(metric, mode), search.results.sweep
    edges = search.edges(spaces, best)
    if few := {name: places[:finalists] for name, places in best.items() if min(finalists, len(places)) > 1}:
        of_few = {name: members[places] for name, places in few.items()}
        last = trained(of_few, "finalists", jax.random.fold_in(of_seeds, 0), seeds)
        for name, order in last.ranked(metric, mode, reduce).items():
            best[name][: len(order)] = [few[name][place - min(order)] for place in order]
    results = trained({name: members[places[:1]] for name, places in best.items()}, "seeds", of_seeds, seeds).results
    metric = search.results._metric(metric)[0]
    test = metric if test is None else test
    costs = results._costs_of_runs(test, mode)
    order = np.argsort(REDUCTIONS[reduce](costs, axis=1), kind="stable")
    values = costs[order] if mode == "min" else -costs[order]
    of_each, of_pairs = intervals(values, reduce, seed_of(of_seeds))
    names = tuple(list(spaces)[i] for i in order)
    results = _with_members(results.sweep[order], lambda x: x[order], results)
    return Comparison(
        names=names,
        optimizers=dict(zip(names, results.sweep, strict=True)),
        tuned={name: tuple(spaces[name].spaces) for name in names},
        search=search.results,
        members={name: best[name] for name in names},
        results=results,
        metric=metric,
        test=test,
        mode=mode,
        reduce=reduce,
        edges={name: tuple(edges[name]) for name in names},
        values=values,
        intervals=of_each,
        differences=of_pairs,
    )


class _Search(NamedTuple):
    """The results of members of several names, the name of each, and where the members of a name are in its space."""

    results: Results
    owners: list[str]
    at: Mapping[str, np.ndarray] = {}

    def joined(self, other: "_Search") -> "_Search":
        """The members of both searches."""
        sweep = concat([self.results.sweep, other.results.sweep])
        results = _with_members(sweep, lambda *x: np.concatenate(x), self.results, other.results)
        at = {name: np.concatenate([self.at[name], quantiles]) for name, quantiles in other.at.items()}
        return _Search(results, self.owners + other.owners, {**self.at, **at})

    def ranked(self, metric: str | None, mode: str, reduce: str = "mean") -> dict[str, list[int]]:
        """The members of each name, the best first."""
        costs, places = self.results._costs(metric, mode=mode, reduce=reduce), defaultdict[str, list[int]](list)
        for place in costs.argsort(kind="stable").tolist():
            places[self.owners[place]].append(place)
        return {name: places[name] for name in dict.fromkeys(self.owners)}

    def edges(self, spaces: Mapping[str, SearchSpace], best: Mapping[str, list[int]]) -> dict[str, dict[str, bool]]:
        """The edges at which the best members of each name are; `best` as in `ranked`."""
        return {
            name: spaces[name].edges(self.at[name], np.searchsorted(sorted(places), places))
            for name, places in best.items()
        }


def _check_spaces(spaces: Any) -> None:
    if not isinstance(spaces, Mapping) or not spaces:
        raise TypeError(
            '`sweeps.compare` takes a search space for each optimizer, by its name: `{"AdamW": '
            "sweeps.SearchSpace(mx.AdamW(1e-3), learning_rate=sweeps.LogUniform(1e-4, 1e-1))}`."
        )
    for name, space in spaces.items():
        if not isinstance(space, SearchSpace):
            raise TypeError(
                f"`sweeps.compare` takes a `sweeps.SearchSpace(optimizer, learning_rate=...)` for {name!r}, got "
                f"{type(space).__name__}."
            )


def _key_of(key: PRNGKeyArray, name: str, fold: int = 0) -> PRNGKeyArray:
    """The key of a name, so that the members of an optimizer don't depend on the others."""
    return jax.random.fold_in(jax.random.fold_in(key, zlib.crc32(name.encode())), fold)


def _with_members(sweep: Sweep, change: Callable[..., np.ndarray], *parts: Results) -> Results:
    """The results of other members, whose arrays are made by a function from those of some results."""
    arrays = [(x.metrics, x.diverged, x.segments, x.carries and x.carries.runs) for x in parts]
    metrics, diverged, segments, runs = jax.tree.map(change, *arrays)
    first = parts[0]
    return dataclasses.replace(
        first,
        sweep=sweep,
        metrics=metrics,
        diverged=diverged,
        segments=segments,
        chunk=sum((x.chunk for x in parts), ()),
        carries=first.carries and first.carries._replace(runs=runs),
    )
