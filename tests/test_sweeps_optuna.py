"""Searches by Optuna: batches as runs of one program, the study as the record, pruning, and what is resumed."""

import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jaxtyping
import matplotlib.pyplot as plt
import numpy as np
import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

import modulax as mx
from modulax import sweeps
from modulax.sweeps._hooks import Progress
from modulax.sweeps._population import Lane

CALLS: Counter[str] = Counter()
RATE = sweeps.LogUniform(1e-3, 10.0)
QUIET: dict[str, Any] = {"progress": False, "devices": 1}
COMPLETE, PRUNED, FAIL, RUNNING = (optuna.trial.TrialState[name] for name in ("COMPLETE", "PRUNED", "FAIL", "RUNNING"))


def train(optimizer: Any, key: Any) -> Any:
    """Gradient descent on a parabola, which diverges for rates above 2."""
    CALLS["traced"] += 1

    def step(params: Any, _: None) -> Any:
        return params - optimizer.learning_rate * params, params

    params, curve = jax.lax.scan(step, 1 + 0.1 * jax.random.normal(key), length=400)
    return {"loss": params**2 + optimizer.momentum**2, "curve": curve}


def start(optimizer: Any, key: Any) -> Any:
    return jnp.array(1.0)


def advance(optimizer: Any, params: Any) -> Any:
    params = params * (1 - optimizer.learning_rate)
    return params, {"loss": params**2, "steps": jnp.array(1)}


def new_study(**options: Any) -> Any:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    given: dict[str, Any] = {"sampler": optuna.samplers.TPESampler(seed=0)} | options
    return optuna.create_study(**given)


def search(study: Any, training: Any = train, **options: Any) -> sweeps.Results:
    given = QUIET | {"metric": "loss", "learning_rate": RATE} | options
    return sweeps.optuna(study, mx.SGD(1.0, momentum=0.5), training, **given)


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often a training is traced, compiled and run."""
    CALLS.clear()

    def counted(name: str, function: Any) -> Any:
        return lambda *args: (CALLS.update([name]), function(*args))[1]

    monkeypatch.setattr(Lane, "advance", counted("run", Lane.advance))
    monkeypatch.setattr(jax.stages.Lowered, "compile", counted("compiled", jax.stages.Lowered.compile))
    return CALLS


def test_batches_are_runs_of_one_program(counts: Counter[str]):
    study = new_study()
    momentum = sweeps.OneMinus(sweeps.LogUniform(0.1, 1.0))
    results = search(study, trials=64, seeds=2, momentum=momentum, key=jax.random.key(7))
    assert counts == {"traced": 2, "compiled": 1, "run": 4}
    optimizers: list[Any] = list(results.sweep)
    assert len(optimizers) == len(study.trials) == 64
    assert {trial.state for trial in study.trials} == {COMPLETE}
    for trial, optimizer, loss in zip(study.trials, optimizers, results.metrics["loss"], strict=True):
        assert trial.params.keys() == {"learning_rate", "1 - momentum"}
        assert trial.distributions["1 - momentum"] == optuna.distributions.FloatDistribution(0.1, 1.0, log=True)
        np.testing.assert_allclose(optimizer.learning_rate, trial.params["learning_rate"], rtol=1e-6)
        np.testing.assert_allclose(optimizer.momentum, 1 - trial.params["1 - momentum"], rtol=1e-5, atol=1e-6)
        assert trial.value == (loss.astype(float).mean() if np.isfinite(loss).all() else np.inf)
    assert np.isinf([trial.value for trial in study.trials]).any()
    alone = train(results.sweep[5], jax.random.split(jax.random.key(7), 2)[1])
    np.testing.assert_allclose(results.metrics["curve"][5, 1], alone["curve"], rtol=1e-5)
    assert results.best("loss")[1]["member"] == study.best_trial.number
    # The sampler learned from one batch to the next.
    losses = np.array([trial.value for trial in study.trials]).reshape(4, 16)
    assert np.median(losses[3]) < np.median(losses[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the plots are experimental, and leave out infinite values
        for plot in ("plot_optimization_history", "plot_slice", "plot_contour"):
            assert getattr(optuna.visualization.matplotlib, plot)(study) is not None
    plt.close("all")


def test_a_trial_that_diverges_in_another_metric_has_the_worst_value():
    def train(optimizer: Any, key: Any) -> Any:
        is_bad = optimizer.learning_rate > 0.1
        return {"loss": jnp.where(is_bad, jnp.nan, 1.0), "accuracy": jnp.where(is_bad, 0.9, 0.5)}

    rates = [0.01, 0.05, 0.5]
    study = new_study(direction="maximize", sampler=optuna.samplers.GridSampler({"learning_rate": rates}, seed=0))
    search(study, train, metric="accuracy", trials=3, batch=3, learning_rate=sweeps.Uniform(0.001, 1.0))
    assert sorted(trial.value for trial in study.trials) == [-np.inf, 0.5, 0.5]
    assert study.best_params["learning_rate"] < 0.1


def test_a_study_goes_on(counts: Counter[str], tmp_path: Path):
    """The last batch is padded. A trial that was running when the process was killed is left as it is."""
    storage = JournalStorage(JournalFileBackend(str(tmp_path / "journal")))
    study = new_study(storage=storage, study_name="rates")
    assert len(search(study, trials=5, batch=4).sweep) == 5
    assert counts == {"traced": 2, "compiled": 1, "run": 2}
    study.ask()
    study: Any = optuna.load_study(storage=storage, study_name="rates", sampler=optuna.samplers.RandomSampler(seed=1))
    results = search(study, trials=11, batch=4, seeds=3)
    assert counts == {"traced": 4, "compiled": 2, "run": 4}
    assert Counter(trial.state for trial in study.trials) == {COMPLETE: 11, RUNNING: 1}
    values = [trial.value for trial in study.trials if trial.value is not None]
    np.testing.assert_allclose(results.scores("loss"), values, rtol=1e-6)
    assert np.isnan(results.metrics["curve"][:5]).all()
    assert np.isfinite(results.metrics["curve"][5:][~results.diverged[5:]]).all()
    np.testing.assert_array_equal(results.diverged.any(1), np.isinf(values))
    search(study, trials=11)
    assert counts["run"] == 4  # there is nothing left to do


class Above(optuna.pruners.BasePruner):
    """Prunes trials whose last reported value is above a bound."""

    def __init__(self, bound: float):
        self.bound = bound

    def prune(self, study: Any, trial: Any) -> bool:
        return trial.intermediate_values[trial.last_step] > self.bound


def test_trials_are_pruned(counts: Counter[str]):
    study = new_study(pruner=Above(0.5))
    training = sweeps.Trainable(start, advance)
    space = sweeps.Choice([0.05, 0.2, 0.5, 3.0])
    results = search(study, training, trials=12, batch=6, segments=4, learning_rate=space)
    assert counts["compiled"] == 2  # start and advance
    states = Counter(trial.state for trial in study.trials)
    assert states.keys() == {PRUNED, COMPLETE}
    for trial, loss, segments in zip(study.trials, results.metrics["loss"][:, 0], results.segments, strict=True):
        rate = trial.params["learning_rate"]
        expected = (1 - rate) ** (2 * np.arange(1, 5))
        above = expected[:3] > 0.5
        stopped = int(above.argmax()) + 1 if above.any() else 4
        assert segments == stopped
        assert trial.state == (PRUNED if above.any() else COMPLETE)
        np.testing.assert_allclose(loss[:stopped], expected[:stopped], rtol=1e-4)
        assert np.isnan(loss[stopped:]).all()
        assert trial.intermediate_values == {i: float(loss[i]) for i in range(stopped)}
        assert trial.value == loss[stopped - 1]
    again = search(study, training, trials=12, segments=4, learning_rate=space)
    np.testing.assert_array_equal(again.metrics["loss"], results.metrics["loss"])
    np.testing.assert_array_equal(again.segments, results.segments)
    counts.clear()
    search(new_study(pruner=Above(-1.0)), training, trials=2, segments=4)
    assert counts["run"] == 1  # all were pruned after the first segment


def test_a_trial_that_was_trained_to_the_end_is_not_pruned():
    training = sweeps.Trainable(start, advance)
    study = new_study(pruner=Above(2.0))
    search(study, training, trials=1, batch=1, segments=4, learning_rate=sweeps.Choice([2.1]))
    assert study.trials[0].intermediate_values[2] < 2.0 < study.trials[0].value
    assert study.trials[0].state == COMPLETE


def test_every_space_is_a_parameter(counts: Counter[str]):
    schedules = [mx.schedules.Linear(0.1, 0.0, 10), mx.schedules.Linear(1.0, 0.5, 10)]
    spaces: dict[str, Any] = {
        "learning_rate": sweeps.Choice(schedules),
        "b1": sweeps.OneMinus(sweeps.Normal(0.1, 0.01)),
        "b2": sweeps.Choice([0.9, 0.99]),
        "eps": sweeps.Uniform(1e-8, 1e-7),
        "weight_decay": sweeps.Normal(0.1, 0.01),
    }
    study = new_study(sampler=optuna.samplers.RandomSampler(seed=0))
    study.enqueue_trial({"eps": 5e-8, "quantile of weight_decay": 1.0})

    def loss(optimizer: Any, key: Any) -> Any:
        return optimizer.learning_rate(0) + optimizer.b1 + optimizer.b2

    results = sweeps.optuna(study, mx.AdamW(schedules[0]), loss, trials=6, batch=4, **QUIET, **spaces)
    names = {"learning_rate", "quantile of 1 - b1", "b2", "eps", "quantile of weight_decay"}
    assert study.trials[0].params.keys() == names
    assert {trial.params["learning_rate"] for trial in study.trials} == {repr(s) for s in schedules}
    optimizers: list[Any] = list(results.sweep)
    for trial, optimizer in zip(study.trials, optimizers, strict=True):
        params = trial.params
        assert repr(optimizer.learning_rate) == params["learning_rate"]
        np.testing.assert_allclose(optimizer.b1, 1 - spaces["b1"].space.at(params["quantile of 1 - b1"]), rtol=1e-6)
        np.testing.assert_allclose(optimizer.b2, params["b2"])
        np.testing.assert_allclose(trial.value, loss(optimizer, None), rtol=1e-6)
    first = optimizers[0]
    np.testing.assert_allclose(first.eps, 5e-8)
    assert 0.1 < first.weight_decay < 0.2
    assert counts["compiled"] == 1


def test_directions():
    def both(optimizer: Any, key: Any) -> Any:
        rate = optimizer.learning_rate
        return {"loss": jnp.where(rate > 1, jnp.nan, rate), "score": jnp.where(rate > 1, jnp.nan, 2 * rate)}

    study = new_study(directions=["minimize", "maximize"], sampler=optuna.samplers.NSGAIISampler(seed=0))
    results = search(study, both, trials=8, batch=8, metric=["loss", "score"])
    for trial, loss in zip(study.trials, results.metrics["loss"][:, 0], strict=True):
        assert trial.values == ([np.inf, -np.inf] if np.isnan(loss) else [float(loss), 2 * float(loss)])
    assert {len(trial.values) for trial in study.best_trials} == {2}
    again = search(study, both, trials=8, metric=["loss", "score"])
    np.testing.assert_array_equal(again.scores("score", mode="max"), [trial.values[1] for trial in study.trials])
    with pytest.raises(ValueError, match=r"The study has 2 objectives, and `sweeps.optuna\(metric=...\)` names 1"):
        search(study, both, trials=8)
    best = new_study(direction="maximize")
    results = search(best, both, trials=6, metric="score", learning_rate=sweeps.Uniform(0.0, 2.0))
    assert best.best_value == np.nanmax(results.metrics["score"])


def test_a_sampler_that_has_no_more_proposals():
    rates = [0.1, 0.2, 0.5]
    study = new_study(sampler=optuna.samplers.GridSampler({"learning_rate": rates}))
    results = search(study, trials=10, batch=2, learning_rate=sweeps.Choice(rates))
    assert {trial.params["learning_rate"] for trial in study.trials} == set(rates)
    assert 3 <= len(results.sweep) <= 4


def test_memory_limits_the_width(counts: Counter[str]):
    results = search(new_study(), trials=6, batch=6, memory=10_000)
    (width,) = results.chunk
    assert 1 <= width < 6
    assert counts["run"] == -(-6 // width)
    assert len(results.sweep) == 6


def test_an_exception_fails_the_batch(monkeypatch: pytest.MonkeyPatch):
    study = new_study()
    monkeypatch.setattr(Lane, "advance", lambda lane, segment: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        search(study, trials=4, batch=2)
    assert [trial.state for trial in study.trials] == [FAIL, FAIL]
    monkeypatch.undo()
    assert len(search(study, trials=4, batch=4).sweep) == 4  # failed trials don't count


def test_wrong_calls(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as for users: annotations are not checked
    study = new_study()
    for options, message in (
        ({"lr": RATE}, r"sweeps.optuna\(lr=...\)`.*Did you mean `learning_rate`"),
        ({"learning_rate": [1.0]}, "must be a space, such as `sweeps.Choice"),
        ({"nesterov": sweeps.Choice([True, False])}, "`nesterov` of SGD is an option and not a hyperparameter"),
        ({"metric": "los"}, "There is no metric `los`"),
        ({"metric": None}, "Choose a metric"),
        ({"reduce": "sum"}, "must be one of"),
        ({"batch": 0}, r"batch=...\)` must be a positive integer"),
        ({"trials": 0}, r"trials=...\)` must be a positive integer"),
        ({"segments": 2}, r"sweeps.optuna\(segments=2\)` needs a training that can be cut"),
    ):
        with pytest.raises(ValueError, match=message):
            search(study, **{"trials": 2, **options})
    assert not study.trials  # all were refused before a trial was asked for
    two = sweeps.Choice([0.1, mx.schedules.Linear(0.1, 0.0, 10)])
    with pytest.raises(ValueError, match="must have one structure"):
        search(study, lambda o, key: {"loss": jnp.zeros(())}, trials=16, learning_rate=two)
    with pytest.raises(ValueError, match="needs a space for at least one hyperparameter"):
        sweeps.optuna(study, mx.SGD(1.0), train, trials=2)
    with pytest.raises(TypeError, match=r"needs a study, `optuna.create_study\(...\)`, as its first argument"):
        sweeps.optuna(mx.SGD(1.0), mx.SGD(1.0), train, trials=2, learning_rate=RATE)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ValueError, match="runs in one process"):
        search(study, trials=2)
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ImportError, match=r"requires Optuna: `pip install \"modulax\[optuna\]\"`"):
        search(study, trials=2)


def test_the_bar_reaches_its_end_although_trials_are_pruned(monkeypatch: pytest.MonkeyPatch):
    remaining = list[int]()
    monkeypatch.setattr(Progress, "total", lambda bar, n: remaining.append(n))
    monkeypatch.setattr(Progress, "advance", lambda bar, n=1: remaining.append(-n))
    search(new_study(pruner=Above(-1.0)), sweeps.Trainable(start, advance), trials=2, segments=4)
    assert (max(remaining), sum(remaining)) == (8, 0)
