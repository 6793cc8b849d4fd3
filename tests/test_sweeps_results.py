"""The results of a sweep: metrics of all kinds, members that diverge, names, tables; the progress bar."""

import copy
import csv
import dataclasses
import re
import sys
import types
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

import modulax as mx
from modulax import sweeps
from modulax.sweeps import _results
from modulax.sweeps._population import Lane

QUIET: dict[str, Any] = {"progress": False, "devices": 1}
LEVELS = sweeps.grid(mx.SGD(1.0), learning_rate=[1.0, 2.0, 3.0, 4.0])


def kinds(optimizer: Any, key: Any) -> Any:
    """Metrics of all kinds, some of which diverge: for rate 3 the curve, for rate 4 the loss with one of the seeds."""
    rate, is_first = optimizer.learning_rate, key == jax.random.split(jax.random.key(0), 2)[0]
    loss = jnp.where((rate > 3.5) & is_first, jnp.inf, -rate)
    return {
        "loss": loss,
        "curve": jnp.stack([rate, jnp.where((rate > 2.5) & (rate < 3.5), jnp.nan, 1.0), rate]),
        "half": (rate / 3).astype(jnp.bfloat16),
        "z": jax.lax.complex(rate, 1.0),
        "deep": [{"count": rate.astype(int), "flag": rate > 1.5}],
        "python": (1, 2.5, True),
        "none": None,
    }


@pytest.fixture(scope="module")
def results() -> sweeps.Results:
    return sweeps.run(LEVELS, kinds, seeds=2, **QUIET)


def test_metrics_of_all_kinds_and_members_that_diverge(results: sweeps.Results):
    metrics = results.metrics
    assert metrics["half"].dtype == jnp.bfloat16
    assert metrics["z"].dtype == np.complex64
    assert metrics["deep"][0]["count"].tolist() == [[1, 1], [2, 2], [3, 3], [4, 4]]
    assert metrics["deep"][0]["flag"].dtype == bool
    assert [x.dtype for x in metrics["python"]] == [np.int32, np.float32, bool]
    np.testing.assert_array_equal(results.diverged, [[False] * 2, [False] * 2, [True] * 2, [True, False]])
    np.testing.assert_array_equal(results.scores("loss"), [-1, -2, -3, np.inf])
    np.testing.assert_array_equal(results.scores("loss", mode="max"), [-1, -2, -3, -np.inf])
    np.testing.assert_array_equal(results.scores("loss", reduce="min"), [-1, -2, -3, -4])
    np.testing.assert_array_equal(results.scores("loss", reduce="max"), [-1, -2, -3, np.inf])
    np.testing.assert_array_equal(results.scores("loss", reduce="median"), [-1, -2, -3, np.inf])
    # A run with another metric that is NaN, or in the middle of a curve, is not the best one.
    assert results.best("loss") == (LEVELS[1], {"member": 1, "optimizer": "SGD", "learning_rate": 2.0, "loss": -2.0})
    assert results.best("curve", mode="max")[1]["member"] == 1
    assert results.best("loss", reduce="min")[1]["member"] == 3
    assert results.best("loss", mode="max")[1]["member"] == 0
    assert results.best("deep.0.count", mode="max")[1]["deep.0.count"] == 2.0
    np.testing.assert_array_equal(results.final("curve")[:, 0], [1, 2, 3, 4])
    assert results.curve("curve").shape == (4, 2, 3)
    *_, last = results.table("loss")
    row = {"member": 3, "optimizer": "SGD", "learning_rate": 4.0, "loss": last["loss"]}
    assert last == row | {"loss_min": -4.0, "loss_max": np.inf, "diverged": 1}
    assert "3 diverged" in repr(results)
    assert results.best("loss", reduce="min").run["loss"] == -4.0  # the seed that did not diverge
    assert results.load(3, seed=0)["loss"] == np.inf
    assert results.best("loss").run["curve"].tolist() == [2, 1, 2]
    with pytest.raises(ValueError, match=r"`z` is complex.*Return its absolute value"):
        results.best("z")


@pytest.mark.parametrize("mode", ["min", "max"])
def test_the_best_run_is_what_the_training_returned_for_the_best_seed_of_the_best_member(mode: str):
    def train(optimizer: Any, key: Any) -> Any:
        return {
            "score": optimizer.learning_rate + jax.random.uniform(key),
            "params": {"w": jax.random.normal(key, (2,))},
        }

    results = sweeps.run(LEVELS, train, seeds=4, **QUIET)
    member = results.best("score", mode=mode)[1]["member"]
    seed = int(getattr(results["score"][member], f"arg{mode}")())
    best = results.best("score", mode=mode).run
    assert jax.tree.all(jax.tree.map(lambda x, all_: (x == all_[member, seed]).all(), best, results.metrics))
    np.testing.assert_allclose(best["params"]["w"], train(results.sweep[member], results.keys[seed])["params"]["w"])
    assert (results.load(member, seed=3)["params"]["w"] == results["params"]["w"][member, 3]).all()


def test_all_diverged():
    results = sweeps.run(LEVELS, lambda optimizer, key: jnp.nan * optimizer.learning_rate, **QUIET)
    assert results.diverged.all()
    with pytest.raises(ValueError, match=r"No member has a finite `metric`: all diverged. Try smaller learning rates"):
        results.best()


def test_where_a_metric_of_all_runs_is_nan_between_evaluations_the_last_values_decide():
    def train(optimizer: Any, key: Any) -> Any:
        return jnp.where(jnp.arange(4) % 2 == 1, optimizer.learning_rate, jnp.nan)

    results = sweeps.run(LEVELS, train, **QUIET)
    assert results.diverged.all()
    assert results.best()[1]["metric"] == 1.0
    assert results.best().run[1] == 1.0


def test_a_metric_may_be_called_metric():
    results = sweeps.run(LEVELS, lambda optimizer, key: {"metric": optimizer.learning_rate, "b": 1.0}, **QUIET)
    assert results.best("metric")[1]["metric"] == 1.0
    assert "metric" in _results.csv_of(results)


def test_a_metric_with_the_name_of_a_hyperparameter_has_a_column_of_its_own(tmp_path: Path):
    def train(optimizer: Any, key: Any) -> Any:
        return {"learning_rate": 10 * optimizer.learning_rate, "loss": optimizer.learning_rate}

    results = sweeps.run(sweeps.grid(mx.SGD(0.1), learning_rate=[0.5, 0.25]), train, **QUIET)
    row = {"member": 1, "optimizer": "SGD", "learning_rate": 0.25, "metrics.learning_rate": 2.5}
    assert results.table("learning_rate")[1] == row | {"diverged": 0}
    assert results.best("learning_rate")[1] == row
    results.to_csv(tmp_path / "table.csv")
    *_, last = csv.reader((tmp_path / "table.csv").read_text().splitlines())
    assert last == ["1", "0", "SGD", "0.25", "2.5", "0.25", "False"]
    rates = {"learning_rate": results["learning_rate"], "metrics": {"learning_rate": -results["learning_rate"]}}
    both = dataclasses.replace(results, metrics=rates)
    header = re.findall(r">([\w.]+)</th>", both._repr_html_())
    assert header[-2:] == ["metrics.metrics.learning_rate", "metrics.learning_rate"]
    assert both.best("learning_rate")[1]["metrics.metrics.learning_rate"] == 2.5


def test_a_metric_is_taken_by_name(results: sweeps.Results, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    np.testing.assert_array_equal(results["loss"], results.metrics["loss"])
    np.testing.assert_array_equal(results["deep.0.count"], results.metrics["deep"][0]["count"])
    assert "deep.0.count" in results._ipython_key_completions_()
    shown = results._repr_html_()
    assert shown.count("<tr>") == 5
    assert "the mean of the last values over the seeds" in shown
    anything: Any = results
    for call, error, says in (
        (lambda: results["los"], ValueError, r"There is no metric `los`.*Did you mean `loss`"),
        (lambda: results.best("los"), ValueError, "no metric `los`: there are `curve`, .*Did you mean `loss`"),
        (lambda: results.best(), ValueError, "Choose a metric"),
        (lambda: results.best("loss", mode="smallest"), ValueError, "mode"),
        (lambda: results.best("loss", reduce="average"), ValueError, "reduce"),
        (lambda: anything[0], TypeError, r"takes the name of a metric: `curve`, .* in `results\.sweep`"),
        (lambda: list(anything), TypeError, "not iterable"),
        (lambda: anything.to_dataframe(), AttributeError, r"write `results\.to_pandas\(\)`"),
        (lambda: anything.best_params, AttributeError, r'`best_params`\. Write `results\.best\("loss"\)\.params`'),
    ):
        with pytest.raises(error, match=says):
            call()
    assert not hasattr(results, "other")
    assert copy.copy(results).segments is results.segments


class Bar:
    """A bar of tqdm, as far as it is used."""

    made: list["Bar"] = []  # noqa: RUF012

    def __init__(self, total: int | None = None, **options: Any):
        self.total, self.n, self.lines, self.is_open = total, 0, list[str](), True
        self.made.append(self)

    def update(self, n: int) -> None:
        self.n += n

    def write(self, text: str, file: Any) -> None:
        self.lines.append(text)

    def close(self) -> None:
        self.is_open = False


def test_the_progress_bar_begins_with_its_total(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "tqdm.auto", types.SimpleNamespace(tqdm=Bar))
    monkeypatch.setattr(Bar, "made", [])
    training = sweeps.Trainable(lambda o, key: jnp.zeros(()), lambda o, x: (x, {"loss": x + o.learning_rate}))
    run = lambda: sweeps.run(LEVELS, training, segments=2, devices=1, folder=tmp_path / "sweep")  # noqa: E731
    with monkeypatch.context() as patch:

        def stopped(lane: Lane, segment: int) -> None:
            raise KeyboardInterrupt

        patch.setattr(Lane, "advance", stopped)
        with pytest.raises(KeyboardInterrupt):
            run()
    run()
    first, second = Bar.made
    assert (first.total, second.total, second.n) == (8, 8, 8)
    assert first.lines == [f"Interrupted. Run it again to go on from `folder={str(tmp_path / 'sweep')!r}`."]
    assert second.lines == []
    assert [bar.is_open for bar in Bar.made] == [False, False]
