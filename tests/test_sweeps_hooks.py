"""Hooks of sweeps: what `on_segment` gets in each search, what it stops, and the files of `writers.CSV`."""

import csv
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import optuna
import pytest

import modulax as mx
from modulax import sweeps
from modulax.sweeps import _folder
from modulax.sweeps._population import Lane
from modulax.sweeps.writers import CSV, TensorBoard

from .sweep_probes import four_steps, start

QUIET: dict[str, Any] = {"progress": False, "devices": 1}
RATES = sweeps.grid(mx.SGD(0.1, momentum=0.5), learning_rate=[0.01, 0.1, 0.2, 0.3, 0.4])
Rows = list[sweeps.Row]


def advance(optimizer: Any, carry: Any) -> Any:
    carry, losses = four_steps(optimizer, carry)
    params = carry[0]
    half, square = losses[::2].astype(jnp.bfloat16), jnp.outer(params, params)
    metrics = {"loss": losses, "half": half, "last": jnp.sum(params**2), "eval": {"steps": carry[1].step}}
    return carry, metrics | {"square": square, "z": jax.lax.complex(params[0], params[1]), "learning_rate": params[0]}


def train(optimizer: Any, key: Any) -> Any:
    return advance(optimizer, start(optimizer, key))[1]


TRAINABLE = sweeps.Trainable(start, advance)
CHOSEN = ["loss", "half", "last", "eval.steps", "learning_rate"]


def run(on_segment: Any, sweep: Any = RATES, **options: Any) -> sweeps.Results:
    given: dict[str, Any] = {"seeds": 2, "segments": 3, "chunk": 3}
    return sweeps.run(sweep, TRAINABLE, on_segment=on_segment, **given | QUIET | options)


class Log(list[Rows]):
    """A hook that keeps its rows, and returns what a function of them returns."""

    def __init__(self, returns: Any = None):
        super().__init__()
        self.returns = returns

    def __call__(self, rows: Rows) -> Any:
        self.append(rows)
        return self.returns and self.returns(rows)

    @property
    def runs(self) -> list[tuple[int, int, int]]:
        return [(row.member, row.seed, row.segment) for rows in self for row in rows]


def assert_same(a: sweeps.Results, b: sweeps.Results) -> None:
    np.testing.assert_array_equal(a.segments, b.segments)
    for x, y in zip(jax.tree.leaves(a.metrics), jax.tree.leaves(b.metrics), strict=True):
        assert x.tobytes() == y.tobytes()


# --- Rows ----------------------------------------------------------------------------------------


def test_rows_are_the_results_of_each_run_and_segment():
    log = Log()
    results = run(log)
    chunks = [range(3), range(3, 5)]
    assert log.runs == [(i, j, k) for chunk in chunks for k in range(3) for i in chunk for j in range(2)]
    assert_same(results, run(None))
    for row in (row for rows in log for row in rows):
        assert row.hyperparameters == {"optimizer": "SGD", "learning_rate": [0.01, 0.1, 0.2, 0.3, 0.4][row.member]}
        assert row.name == f"member-00{row.member}-seed-{row.seed}"
        for name, x in row.metrics.items():
            whole = results._named()[name][row.member, row.seed]
            np.testing.assert_array_equal(x, whole[row.segment])
            assert isinstance(x, np.ndarray)
            np.testing.assert_array_equal(row.curves[name], whole[: row.segment + 1].reshape(-1))
    with pytest.raises(ValueError, match="read-only"):
        log[0][0].metrics["loss"][0] = 0.0


def test_a_plain_training_has_one_segment():
    log = Log()
    results = sweeps.run(RATES, train, seeds=2, chunk=2, on_segment=[log], **QUIET)
    assert log.runs == [(i, j, 0) for i in range(5) for j in range(2)]
    np.testing.assert_array_equal(log[1][1].curves["loss"], results["loss"][2, 1])


def test_halving_gives_the_rows_of_the_members_that_are_left():
    log = Log()
    results = sweeps.halving(RATES, TRAINABLE, "last", rungs=[1, 2, 3], factor=2, on_segment=log, **QUIET)
    assert sorted(log.runs) == [(i, 0, k) for i in range(5) for k in range(results.segments[i])]


def test_rows_of_pbt_have_the_hyperparameters_of_the_segment():
    log = Log()
    explore: Any = {"learning_rate": 1.5}
    results = sweeps.pbt(RATES, TRAINABLE, "last", segments=3, explore=explore, on_segment=log, **QUIET)
    rates = results.history["learning_rate"]
    assert len(np.unique(rates)) > 5
    assert log.runs == [(i, 0, k) for k in range(3) for i in range(5)]
    for row in (row for rows in log for row in rows):
        assert row.hyperparameters["learning_rate"] == rates[row.member, row.segment]
        assert row.metrics["hyperparameters.learning_rate"] == rates[row.member, row.segment]
        np.testing.assert_array_equal(row.curves["hyperparameters.learning_rate"], rates[row.member, : row.segment + 1])


def search(on_segment: Any, metric: Any = "last", **options: Any) -> tuple[Any, sweeps.Results]:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.RandomSampler(seed=0)
    study = optuna.create_study(sampler=sampler, pruner=optuna.pruners.NopPruner(), **options)
    return study, sweeps.optuna(
        study,
        mx.SGD(0.1),
        TRAINABLE,
        trials=4,
        batch=2,
        segments=3,
        seeds=2,
        metric=metric,
        on_segment=on_segment,
        learning_rate=sweeps.LogUniform(1e-3, 0.1),
        **QUIET,
    )


@pytest.mark.parametrize("directions", [1, 2])
def test_rows_of_optuna_are_trials_and_those_stopped_are_pruned(directions: int):
    log = Log(lambda rows: {1} if rows[0].segment == 1 and rows[-1].member == 1 else ())
    names = ["last", "eval.steps"][:directions]
    study, results = search(log, names, directions=["minimize"] * directions)
    lengths = [3, 2, 3, 3]
    assert sorted(log.runs) == [(i, j, k) for i in range(4) for j in range(2) for k in range(lengths[i])]
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "PRUNED", "COMPLETE", "COMPLETE"]
    np.testing.assert_array_equal(results.segments, lengths)
    last = log[-1][-1]
    assert last.hyperparameters["learning_rate"] == pytest.approx(study.trials[3].params["learning_rate"])
    np.testing.assert_array_equal(last.curves["loss"], results.curve("loss")[3, 1])


# --- Stopping ------------------------------------------------------------------------------------


def slow(rows: Rows) -> Any:
    """Stop what has not made half of the way after two segments: the first member, and in its chunk alone."""
    return [row.member for row in rows if len(row.curves["last"]) == 2 and row.member in (0, 3, 4)]


def test_stopped_members_end_and_a_chunk_without_others_is_not_trained(monkeypatch: pytest.MonkeyPatch):
    whole, log = run(None), Log(slow)
    advance, calls = Lane.advance, []
    monkeypatch.setattr(
        Lane, "advance", lambda lane, segment: calls.append((len(lane.members), segment)) or advance(lane, segment)
    )
    results = run(log)
    assert calls == [(3, 0), (3, 1), (3, 2), (2, 0), (2, 1)]
    assert log.runs[-4:] == [(3, 0, 1), (3, 1, 1), (4, 0, 1), (4, 1, 1)]
    np.testing.assert_array_equal(results.segments, [2, 3, 3, 2, 2])
    for name, x in results._named().items():
        np.testing.assert_array_equal(x[1:3], whole._named()[name][1:3])
        np.testing.assert_array_equal(x[:, :, :2], whole._named()[name][:, :, :2])
    assert np.isnan(results["loss"][[0, 3, 4], :, 2]).all()
    assert not results.diverged.any()
    assert results.best("last")[1]["member"] in (1, 2)


def test_halving_drops_stopped_members():
    best = sweeps.halving(RATES, TRAINABLE, "last", rungs=[1, 2, 3], factor=2, **QUIET)
    first = int(best.segments.argmax())

    def stop(rows: Rows) -> Any:
        return np.array([row.member for row in rows if row.member == first and row.segment == 1])

    results = sweeps.halving(RATES, TRAINABLE, "last", rungs=[1, 2, 3], factor=2, on_segment=stop, **QUIET)
    assert results.segments[first] == 2
    assert results.segments.max() == 3
    none = sweeps.halving(
        RATES, TRAINABLE, "last", rungs=[1, 2, 3], on_segment=lambda rows: {row.member for row in rows}, **QUIET
    )
    np.testing.assert_array_equal(none.segments, 1)


def test_a_stopped_member_takes_the_place_of_no_other_one_in_halving():
    best = sweeps.halving(RATES, TRAINABLE, "last", rungs=[1, 2, 3], factor=2, **QUIET)
    first = int(best.segments.argmax())

    def stop(rows: Rows) -> Any:
        return {row.member for row in rows if row.member == first and row.segment == 0}

    results = sweeps.halving(RATES, TRAINABLE, "last", rungs=[1, 2, 3], factor=2, on_segment=stop, **QUIET)
    assert results.segments[first] == 1
    np.testing.assert_array_equal(np.sort(results.segments), np.sort(best.segments))


def test_lr_finder_takes_a_stopped_rate_for_one_that_diverged():
    given: dict[str, Any] = {"metric": "last", "segments": 2, **QUIET}
    found = sweeps.lr_finder(
        mx.SGD(0.1), TRAINABLE, 1e-3, 0.5, n=8, on_segment=lambda rows: [7] if rows[0].segment == 0 else None, **given
    )
    assert found.results.segments.tolist() == [2] * 7 + [1]
    assert np.isfinite(found.scores[:7]).all()
    assert found.scores[7] == np.inf


# --- Folders, which keep what is stopped by its content ------------------------------------------


def stop_second(rows: Rows) -> Any:
    return {row.member for row in rows if row.member == 1}


def test_a_folder_knows_the_runs_that_were_stopped(tmp_path: Path):
    folder, log = tmp_path / "sweep", Log()
    stopped = run(stop_second, sweep=RATES[:3], folder=folder, chunk=2)
    np.testing.assert_array_equal(stopped.segments, [3, 1, 3])
    # A member more, in another order.
    more = run(log, sweep=RATES[[3, 2, 1, 0]], folder=folder)
    assert log.runs == [(0, j, k) for k in range(3) for j in range(2)]
    np.testing.assert_array_equal(more.segments, [3, 3, 1, 3])
    np.testing.assert_array_equal(more["loss"][1:], stopped["loss"][::-1])
    # A seed more: a row for each new run. A member is stopped with all of its seeds.
    log.clear()
    wide = run(log, sweep=RATES[:3], seeds=3, folder=folder)
    assert sorted(log.runs) == [(0, 2, 0), (0, 2, 1), (0, 2, 2), (1, 2, 0), (2, 2, 0), (2, 2, 1), (2, 2, 2)]
    np.testing.assert_array_equal(wide.segments, [3, 1, 3])
    np.testing.assert_array_equal(wide["loss"][:, :2], stopped["loss"])
    # A segment more, with the curves from the start.
    log.clear()
    longer = run(log, sweep=RATES[:3], segments=4, folder=folder)
    assert log.runs == [(i, j, 3) for i in (0, 2) for j in range(2)]
    np.testing.assert_array_equal(log[0][0].curves["loss"], longer.curve("loss")[0, 0])
    np.testing.assert_array_equal(longer.segments, [4, 1, 4])
    # Other folders, and results without the code.
    merged = sweeps.merge(tmp_path / "into", folder)
    for found in (merged, sweeps.load(folder)):
        rates = [row["learning_rate"] for row in found.sweep.table()]
        assert dict(zip(rates, found.segments, strict=True)) == {0.01: 4, 0.1: 1, 0.2: 4, 0.3: 3}
        assert np.isnan(found["loss"][rates.index(0.1), :, 1:]).all()
        assert np.isfinite(found["loss"][rates.index(0.1), :, 0]).all()
    log.clear()
    assert_same(run(log, sweep=RATES[:3], segments=4, folder=tmp_path / "into"), longer)
    assert log == []
    # Nothing is begun for one that was stopped. Without the note, it is trained as any other.
    notes = json.loads((folder / "sweep.json").read_text())
    run(log, sweep=RATES[1:2], segments=5, folder=folder)
    assert json.loads((folder / "sweep.json").read_text())["batches"] == notes["batches"]
    assert log == []
    (folder / "sweep.json").write_text(json.dumps(notes | {"stopped": {}}))
    again = run(None, sweep=RATES[:3], segments=4, folder=folder)
    np.testing.assert_allclose(again["loss"], run(None, sweep=RATES[:3], segments=4)["loss"], rtol=1e-6)


def test_a_merge_keeps_what_one_folder_has_stopped(tmp_path: Path):
    whole = run(None, sweep=RATES[:2], folder=tmp_path / "whole")
    run(stop_second, sweep=RATES[:2], folder=tmp_path / "stopped")
    merged = sweeps.merge(tmp_path / "whole", tmp_path / "stopped")
    np.testing.assert_array_equal(merged.segments, [3, 1])
    np.testing.assert_array_equal(merged["loss"][0], whole["loss"][0])
    np.testing.assert_array_equal(run(None, sweep=RATES[:2], folder=tmp_path / "whole").segments, [3, 1])


def test_members_that_share_a_run_have_one_row_and_are_stopped_together(tmp_path: Path):
    log = Log(lambda rows: {0} if rows[0].segment == 1 else None)
    results = run(log, sweep=RATES[[2, 0, 2]], folder=tmp_path / "sweep")
    assert log.runs == [(i, j, k) for k in range(3) for i in range(2) for j in range(2) if (i, k) != (0, 2)]
    np.testing.assert_array_equal(results.segments, [2, 3, 2])
    np.testing.assert_array_equal(results["loss"][0], results["loss"][2])


def test_a_search_that_goes_on_drops_stopped_members_at_the_same_rung(tmp_path: Path):
    given: dict[str, Any] = {"rungs": [1, 3, 4], "factor": 2, "chunk": 3, **QUIET}
    best = int(sweeps.halving(RATES, TRAINABLE, "last", **given).segments.argmax())

    def search(folder: str, kill: int | None = None) -> tuple[sweeps.Results | None, Log]:
        def stop(rows: Rows) -> Any:
            if len(log) == kill:
                raise KeyboardInterrupt
            return [row.member for row in rows if row.member == best and row.segment == 1]

        log = Log(stop)
        try:
            return sweeps.halving(RATES, TRAINABLE, "last", folder=tmp_path / folder, on_segment=log, **given), log
        except KeyboardInterrupt:
            return None, log

    whole, log = search("whole")
    assert whole is not None
    assert whole.segments[best] == 2
    assert whole.segments.max() == 4
    for kill in range(1, len(log) + 1):
        search(f"{kill}", kill)
        again, rest = search(f"{kill}")
        assert again is not None
        assert_same(again, whole)
        assert rest.runs == log.runs[-len(rest.runs) :]
        assert len(rest) == len(log) - kill + 1
    _, none = search("whole")
    assert none == []


# --- Folders that a killed process leaves --------------------------------------------------------


def test_after_a_kill_no_segment_is_missing_and_only_the_last_one_comes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """What a killed process leaves is the folder at that moment: each is kept, with the rows so far, and resumed."""
    folder, left, whole = tmp_path / "sweep", [], run(slow)
    log = Log(slow)

    def noted(write: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> None:
            left.append((tmp_path / f"{len(left)}", log.runs))
            shutil.copytree(folder, left[-1][0])
            write(*arguments, **options)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(_folder.os, "replace", noted(_folder.os.replace))
        patch.setattr(_folder, "save", noted(_folder.save))
        assert_same(run(log, folder=folder), whole)
    all_runs = log.runs
    assert len(all_runs) == 6 + 6 + 4 + 4 + 4
    for killed, before in left:
        again = Log(slow)
        assert_same(run(again, folder=killed), whole)
        repeated = set(before) & set(again.runs)
        assert set(before) | set(again.runs) == set(all_runs)
        assert len(again.runs) == len(all_runs) - len(before) + len(repeated)
        assert repeated <= set(before[-6:])
    # A hook that stops nobody: what was stopped remains so.
    assert_same(run(None, folder=folder), whole)
    table = (folder / "results.csv").read_text().splitlines()
    assert len(table) == 1 + 5 * 2


# --- Wrong hooks ---------------------------------------------------------------------------------


def fails(rows: Rows) -> None:
    raise KeyError("no loss")


@pytest.mark.parametrize(
    "hook, error, says",
    [
        (fails, KeyError, "hook `on_segment=fails`, after segment 0"),
        (lambda: None, TypeError, "hook `on_segment=.*<lambda>`"),
        (Log(lambda rows: "loss"), TypeError, "must return None, or the numbers of the members(.|\n)*`on_segment=Log`"),
        (Log(lambda rows: 0.5), TypeError, "must return None"),
        (Log(lambda rows: np.array([True, False, False])), TypeError, "must return None"),
        (Log(lambda rows: {4}), ValueError, r"stopped the members \[4\], which are not among its rows"),
        (CSV, TypeError, "a function of the rows of a segment"),
        ([Log(), "logs"], TypeError, "got 'logs'. Write, for example"),
        ("logs", TypeError, "a function of the rows of a segment, or a list of functions; got 'logs'"),
    ],
)
def test_errors_name_the_hook(hook: Any, error: type[Exception], says: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(error) as raised:
        run(hook)
    assert re.search(says, "\n".join([str(raised.value), *getattr(raised.value, "__notes__", [])]))


def test_members_of_a_population_are_not_stopped():
    with pytest.raises(ValueError, match="stops no members: it replaces the worst"):
        sweeps.pbt(
            RATES,
            TRAINABLE,
            "last",
            segments=2,
            explore={"learning_rate": 1.5},
            on_segment=lambda rows: [0],
            **QUIET,
        )


# --- CSV -----------------------------------------------------------------------------------------


def read(path: Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_csv_has_a_row_for_each_step(tmp_path: Path):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "member-002-seed-1.csv").write_text("of an earlier sweep")
    results = run(CSV(tmp_path / "logs"))
    assert len(list((tmp_path / "logs").iterdir())) == 10
    rows = read(tmp_path / "logs" / "member-002-seed-1.csv")
    columns = ["member", "seed", "segment", "step", "optimizer", "learning_rate"]
    assert list(rows[0]) == [*columns, "eval.steps", "half", "last", "metrics.learning_rate", "loss"]
    fixed = {"member": "2", "seed": "1", "optimizer": "SGD", "learning_rate": "0.2"}
    assert all(row.items() >= fixed.items() for row in rows)
    assert [(row["segment"], row["step"]) for row in rows] == [(str(i // 4), str(i)) for i in range(12)]
    of_run = {name: x[2, 1] for name, x in results._named().items()}
    assert [float(row["loss"]) for row in rows] == of_run["loss"].reshape(-1).tolist()
    # A shorter metric is at the end of the steps that it covers.
    assert [float(row["half"]) for row in rows[1::2]] == of_run["half"].reshape(-1).astype(float).tolist()
    assert [float(row["metrics.learning_rate"]) for row in rows[3::4]] == of_run["learning_rate"].tolist()
    assert [float(row["eval.steps"]) for row in rows[3::4]] == [4.0, 8.0, 12.0]
    assert not any(row["half"] for row in rows[::2])


def test_csv_goes_on_after_a_kill_and_takes_chosen_metrics(tmp_path: Path):
    run(CSV(tmp_path / "logs", metrics="last"), segments=1, folder=tmp_path / "sweep")
    results = run(CSV(tmp_path / "logs", metrics="last"), folder=tmp_path / "sweep")
    rows = read(tmp_path / "logs" / "member-004-seed-0.csv")
    assert list(rows[0])[-1] == "last"
    assert [float(row["last"]) for row in rows] == results["last"][4, 0].tolist()
    assert [row["step"] for row in rows] == ["0", "1", "2"]


def test_what_no_writer_can_log_is_named(tmp_path: Path):
    for metrics in ("lost", ["loss", "square"], ["z"]):
        with pytest.raises(ValueError, match=r"logs numbers and curves, which are .*`loss`.*returned .*`square`"):
            run(CSV(tmp_path, metrics=metrics))
    matrices = sweeps.Trainable(start, lambda optimizer, carry: (carry, jnp.outer(carry[0], carry[0])))
    with pytest.raises(ValueError, match=r"logs numbers and curves, which are none\. The training returned `metric`"):
        sweeps.run(RATES, matrices, on_segment=CSV(tmp_path), **QUIET)


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(ImportError, match=r'`sweeps.writers.TensorBoard` requires tensorboardX: `pip install "modulax'):
        TensorBoard(tmp_path)
