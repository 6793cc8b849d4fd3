"""A folder as a set of runs: what a sweep trains of it, folders put together, and results without the code."""

import json
import shutil
import subprocess
import sys
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import modulax as mx
from modulax import checkpoint, sweeps
from modulax.sweeps._experiment import Experiment
from modulax.sweeps._population import Lane

from .sweep_probes import copied_before_writes, count_trained
from .test_sweeps_folder import RATES, TRAINING, advance_further, assert_same, noisy, run

QUIET: dict[str, Any] = {"progress": False, "devices": 1}
MODEL = eqx.nn.MLP(2, 1, 3, 1, key=jax.random.key(0))
X = jnp.linspace(-1.0, 1.0, 8).reshape(4, 2)


def start(optimizer: Any, key: Any) -> Any:
    params = jax.tree.map(lambda x: x + 0.1 * jax.random.normal(key, x.shape), eqx.filter(MODEL, eqx.is_array))
    return key, eqx.combine(params, MODEL), optimizer.init(params)


def advance(optimizer: Any, carry: Any) -> Any:
    key, model, state = carry
    loss, grads = eqx.filter_value_and_grad(lambda m: jnp.mean((jax.vmap(m)(X)[:, 0] - X[:, 0] * X[:, 1]) ** 2))(model)
    model, state = optimizer.step(grads, state, model)
    return (key, model, state), {"loss": loss, "norms": {"first": jnp.abs(model.layers[0].weight).sum(axis=0)}}


OF_MODELS = sweeps.Trainable(start, advance)
ADAMS = sweeps.grid(mx.AdamW(1e-3), learning_rate=[1e-3, 1e-2])


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many segments of runs are trained."""
    return count_trained(monkeypatch)


@pytest.fixture(scope="module")
def both() -> sweeps.Sweep:
    return sweeps.concat([ADAMS, sweeps.grid(mx.Lion(1e-3), learning_rate=[1e-4, 1e-3])])


@pytest.fixture(scope="module")
def undisturbed(both: sweeps.Sweep, tmp_path_factory: pytest.TempPathFactory) -> tuple[sweeps.Results, Path]:
    folder = tmp_path_factory.mktemp("sweeps") / "undisturbed"
    return sweeps.run(both, OF_MODELS, seeds=3, segments=2, folder=folder, **QUIET), folder


def test_a_sweep_trains_the_runs_that_are_missing(
    tmp_path: Path, trained: Counter[str], both: sweeps.Sweep, undisturbed: Any
):
    folder: Any = {"folder": tmp_path / "sweep", **QUIET}
    for sweep, seeds, segments, missing in (
        (ADAMS[:1], 1, 1, 1),
        (ADAMS[:1], 2, 1, 1),  # a seed
        (ADAMS[[1, 0]], 2, 1, 2),  # a member
        ([ADAMS[0], ADAMS[0]], 2, 2, 2),  # a segment; two equal members are one
        (both, 3, 1, 2 + 2 * 3),  # a seed of the old members, and members of another class
        (both[:3], 3, 2, 2 * 3 + 3 - 2),  # a segment of some, of which two runs have it
        (both[3:], 2, 2, 2),
        (both, 3, 2, 1),
        (both, 2, 1, 0),
    ):
        trained.clear()
        found = sweeps.run(sweep, OF_MODELS, seeds=seeds, segments=segments, **folder)
        assert trained.total() == missing, (sweep, seeds, segments)
        assert found["loss"].shape == (len(found.sweep), seeds, segments)
        assert np.isfinite(found["loss"]).all()
    found = sweeps.run(both, OF_MODELS, seeds=3, segments=2, **folder)
    np.testing.assert_allclose(found["loss"], undisturbed[0]["loss"], rtol=1e-6)
    np.testing.assert_allclose(found["norms"]["first"], undisturbed[0]["norms"]["first"], rtol=1e-6)
    trained.clear()
    other = sweeps.run(ADAMS, OF_MODELS, key=jax.random.key(7), **folder)
    assert trained.total() == 2  # other keys are other runs
    assert not (other["loss"] == found["loss"][:2, :1, :1]).any()


def test_killed_while_it_adds_to_a_folder_it_ends_as_an_uninterrupted_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A seed, a segment and a member more, of which two leave a batch behind: bit for bit, whenever it is killed."""
    folder = tmp_path / "sweep"
    run(folder, noisy([0.1, 0.2, 0.4]), segments=1, chunk=3)
    more: Any = {"sweep": noisy([0.1, 0.4, 0.8]), "seeds": 3, "chunk": 2}

    with copied_before_writes(monkeypatch, folder) as left:
        whole = run(folder, **more)
    carries = sorted(path.name for path in (folder / "carries").iterdir())
    assert len(left) >= 12  # notes twice; carries and metrics of five segments of batches
    for killed in left[1::2]:
        assert_same(run(killed, **more), whole)
        assert sorted(path.name for path in (killed / "carries").iterdir()) == carries


def test_folders_are_put_together(tmp_path: Path, trained: Counter[str], both: sweeps.Sweep, undisturbed: Any):
    of_anna, of_ben, into = (tmp_path / name for name in ("anna", "ben", "all"))
    sweeps.run(both[:3], OF_MODELS, seeds=2, segments=2, folder=of_anna, tags={"who": "anna"}, **QUIET)
    sweeps.run(both[1:], OF_MODELS, seeds=3, segments=1, folder=of_ben, tags={"who": "ben"}, **QUIET)
    before = {path: path.read_bytes() for path in of_ben.rglob("*.*") if path.is_file()}
    for _ in range(2):  # the second time, there is nothing to add
        merged = sweeps.merge(into, of_anna, of_ben)
        assert [call["tags"]["who"] for call in merged.calls] == ["anna", "ben"]
        assert len(list((into / "metrics").iterdir())) == 2 * 2 + 2
    assert {path: path.read_bytes() for path in of_ben.rglob("*.*") if path.is_file()} == before
    trained.clear()
    found = sweeps.run(both, OF_MODELS, seeds=3, segments=2, folder=into, **QUIET)
    assert trained.total() == 4 * 3 * 2 - 3 * 2 * 2 - (3 * 3 - 2 * 2)
    np.testing.assert_allclose(found["loss"], undisturbed[0]["loss"], rtol=1e-6)
    with pytest.raises(FileNotFoundError, match=r"There is no sweep in .* Give one of .*/all`, .*/anna`"):
        sweeps.merge(into, tmp_path)
    other = sweeps.Trainable(start, lambda optimizer, carry: advance(optimizer, advance(optimizer, carry)[0]))
    sweeps.run(both[:1], other, folder=tmp_path / "other", **QUIET)
    with pytest.raises(ValueError, match=r"all'` holds runs of another training: the program of AdamW has changed"):
        sweeps.merge(into, tmp_path / "other")
    with pytest.raises(ValueError, match="is in use by process"):
        sweeps.merge(into, into)


def test_a_merge_that_is_killed_is_done_again(tmp_path: Path, undisturbed: Any, monkeypatch: pytest.MonkeyPatch):
    """Whenever it is killed, what is there of a batch is what it says, and the second time it is complete."""
    copy, left = shutil.copyfile, 0

    def killed(*paths: Any, **options: Any) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt
        copy(*paths, **options)

    for many in (0, 5, 15):
        into, left = tmp_path / f"{many}", many
        with monkeypatch.context() as patch:
            patch.setattr(shutil, "copyfile", killed)
            with pytest.raises(KeyboardInterrupt):
                sweeps.merge(into, undisturbed[1])
        merged = sweeps.merge(into, undisturbed[1])
        np.testing.assert_array_equal(merged["loss"], undisturbed[0]["loss"])
        assert merged.load(3, 2).keys() == {"0", "1", "2"}


def test_the_results_of_runs_that_are_not_a_rectangle(tmp_path: Path):
    folder: Any = {"folder": tmp_path, **QUIET}
    first = sweeps.run(ADAMS, OF_MODELS, segments=2, **folder)
    more = sweeps.run(ADAMS[:1], OF_MODELS, seeds=3, segments=2, **folder)
    sweeps.run(ADAMS[:1], OF_MODELS, seeds=4, **folder)
    found = sweeps.load(tmp_path)
    assert found["loss"].shape == (2, 4, 2)
    assert found.missing is not None
    assert found.missing.tolist() == [[False, False, False, True], [False, True, True, True]]
    assert not found.diverged.any()
    np.testing.assert_array_equal(found["loss"][0, :3], more["loss"][0])
    np.testing.assert_allclose(found.scores("loss"), [more.scores("loss")[0], first.scores("loss")[1]])
    assert found.table("loss")[0]["loss_max"] == more.final("loss").max()
    assert found.table("loss")[1]["loss_max"] == first.final("loss")[1].max()
    assert found.best("loss")[1]["member"] == int(np.argmin(found.scores("loss")))
    lines = (tmp_path / "results.csv").read_text().splitlines()
    assert len(lines) == 1 + 4
    found.plot("loss")


LOADING = """
import sys, numpy as np, modulax
from modulax import sweeps
results = sweeps.load(sys.argv[1])
assert not any(name.startswith("tests") for name in sys.modules)
best = results.best("loss")
results.plot("loss").savefig(sys.argv[2] + ".png")
results.to_csv(sys.argv[2] + ".csv")
weights = [x["weight"] for x in best.params["layers"].values()]
np.savez(sys.argv[2], *weights, curves=results["loss"], first=results["norms"]["first"])
print(best[0], best[1]["learning_rate"], results["norms.first"].shape, results.sweep.table()[3], sep="\\n")
"""


def test_a_process_without_the_code_has_curves_plots_and_parameters(tmp_path: Path, undisturbed: Any):
    results, folder = undisturbed
    arguments = [sys.executable, "-c", LOADING, str(folder), str(tmp_path / "found")]
    done = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (optimizer, row), best = results.best("loss"), results.best("loss")
    text, rate, shape, last = done.stdout.splitlines()
    assert text == repr(optimizer)
    assert float(rate) == row["learning_rate"]
    assert shape == str(results["norms"]["first"].shape)
    assert last == str(results.sweep.table()[3])
    with np.load(tmp_path / "found.npz") as found:
        np.testing.assert_array_equal(found["curves"], results["loss"])
        np.testing.assert_array_equal(found["first"], results["norms"]["first"])
        for i in range(2):
            np.testing.assert_array_equal(found[f"arr_{i}"], best.params["layers"][str(i)]["weight"])
    expected = tmp_path / "expected.csv"
    results.to_csv(expected)
    assert (tmp_path / "found.csv").read_text() == expected.read_text() == (folder / "results.csv").read_text()
    assert (tmp_path / "found.png").stat().st_size > 10_000


def test_a_run_is_loaded_under_the_names_of_its_tree(undisturbed: Any):
    results, _ = undisturbed
    optimizer, key = results.sweep[1], results.keys[2]
    carry = start(optimizer, key)
    carry, metrics = advance(optimizer, advance(optimizer, carry)[0])
    found = results.load(1, seed=2)
    assert found.keys() == {"0", "1", "2"}
    np.testing.assert_array_equal(found["0"], jax.random.key_data(key))
    model, _ = checkpoint.load_state_dict(carry[1], checkpoint.state_dict(found["1"]))
    state, _ = checkpoint.load_state_dict(carry[2], checkpoint.state_dict(found["2"]))
    for a, b in zip(jax.tree.leaves((model, state)), jax.tree.leaves(carry[1:]), strict=True):
        if eqx.is_array(b):
            assert a.dtype == b.dtype
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(metrics["loss"], results["loss"][1, 2, -1], rtol=1e-5)
    best = results.best("loss")
    assert best.params.keys() == {"layers"}  # neither the key nor the state
    assert best.run.keys() == {"0", "1", "2"}
    optimizer, row = best
    assert optimizer is results.sweep[row["member"]]


def test_the_parameters_of_a_plain_training(tmp_path: Path):
    def train(optimizer: Any, key: Any) -> Any:
        params = {"w": jax.random.normal(key, (2,)) * optimizer.learning_rate}
        return {"loss": params["w"].sum(), "params": params}

    results = sweeps.run(ADAMS, train, seeds=2, folder=tmp_path, **QUIET)
    assert results.load(1, 1)["loss"] == results["loss"][1, 1]
    for of_one in (results, sweeps.load(tmp_path)):
        np.testing.assert_array_equal(of_one.best("loss").params["w"].sum(), results["loss"].min(), strict=True)
        np.testing.assert_array_equal(of_one["params"]["w"], results["params"]["w"])
        np.testing.assert_array_equal(of_one["params.w"], results["params"]["w"])
    without = sweeps.run(ADAMS, lambda optimizer, key: {"loss": optimizer.learning_rate}, **QUIET)
    with pytest.raises(ValueError, match=r"has no part `params`: there are `loss`. Return the parameters as"):
        _ = without.best("loss").params
    whole = sweeps.run(ADAMS, OF_MODELS, **QUIET)
    with pytest.raises(ValueError, match=r"kept in a folder only. Write `sweeps.run\(..., folder=...\)`"):
        whole.load(0)


def test_a_folder_notes_versions_commit_and_tags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def train(optimizer: Any, key: Any) -> Any:
        return {"loss": optimizer.learning_rate}

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    sweeps.run(ADAMS[:1], train, folder="sweep", tags={"task": "digits"}, **QUIET)
    for command in (["init", "-q"], ["-c", "user.name=a", "-c", "user.email=b", "commit", "-qm", "c", "--allow-empty"]):
        subprocess.run(["git", *command], check=True)
    for _ in range(2):
        sweeps.run(ADAMS, train, folder="sweep", **QUIET)
    sweeps.run(ADAMS, train, folder="sweep", tags={"size": 3}, **QUIET)
    first, second, third = sweeps.load("sweep").calls
    commit = subprocess.run(["git", "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    assert (first["commit"], second["commit"]) == (None, commit)
    assert (first["tags"], second["tags"], third["tags"]) == (*[{"task": "digits"}] * 2, {"task": "digits", "size": 3})
    assert first["versions"].keys() >= {"jax"}
    assert [batch["call"] for batch in json.loads(Path("sweep/sweep.json").read_text())["batches"]] == [0, 1]


def test_data_frames(undisturbed: Any, monkeypatch: pytest.MonkeyPatch):
    results, folder = undisturbed
    for found in (results, sweeps.load(folder)):
        wide = found.to_pandas()
        assert wide.columns.tolist() == [
            "member",
            "seed",
            "optimizer",
            "learning_rate",
            "loss",
            "norms.first",
            "diverged",
        ]
        np.testing.assert_array_equal(wide["loss"], found.final("loss").ravel())
        long = found.to_pandas("loss", long=True)
        assert long.columns.tolist() == ["member", "seed", "metric", "time", "value", "optimizer", "learning_rate"]
        np.testing.assert_array_equal(long["value"], results["loss"].ravel())
        assert long[(long.member == 2) & (long.seed == 1)]["time"].tolist() == [1, 2]
        assert len(found.to_pandas(long=True)) == results["loss"].size + results["norms"]["first"].size
    with pytest.raises(ValueError, match="There is no metric `los`"):
        results.to_pandas("los")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="pip install pandas"):
        results.to_pandas()


@pytest.fixture
def of_one_sweep(tmp_path: Path) -> Path:
    """A folder as modulax wrote it before a folder was a set of runs: 2 of 3 members are finished.

    Its programs are those of another version of JAX, and are replaced.
    """
    folder = tmp_path / "old"
    with zipfile.ZipFile(Path(__file__).parent / "folder_of_one_sweep.zip") as file:
        file.extractall(folder)
    experiment = Experiment(RATES, TRAINING, key=None, devices=1, segments=1)
    notes = json.loads((folder / "sweep.json").read_text())
    notes["programs"] = [experiment.structures[0].digest()] * 3
    (folder / "sweep.json").write_text(json.dumps(notes))
    return folder


def test_a_folder_of_one_sweep_is_read_and_gone_on_with(of_one_sweep: Path, trained: Counter[str]):
    found, expected = sweeps.load(of_one_sweep), run(segments=3, seeds=3)
    assert found.segments.tolist() == [2, 2, 1]
    assert [row["learning_rate"] for row in found.sweep.table()] == [0.1, 0.2, 0.4]
    np.testing.assert_allclose(found["loss"][:2], expected["loss"][:2, :2, :2], rtol=1e-6)
    assert found.load(1).keys() == {f"{i:04d}" for i in range(len(found.load(1)))}
    trained.clear()
    run(of_one_sweep)
    assert trained.total() == 2  # one segment of the last member, with both seeds
    longer = run(of_one_sweep, segments=3, seeds=3)
    for a, b in zip(jax.tree.leaves(longer.metrics), jax.tree.leaves(expected.metrics), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-2 if a.dtype == jnp.bfloat16 else 1e-5)
    assert_same(run(of_one_sweep, segments=3, seeds=3), longer)


def test_a_folder_of_one_sweep_of_another_training_or_search_is_refused(of_one_sweep: Path):
    other = sweeps.Trainable(TRAINING.start, advance_further)
    with pytest.raises(ValueError, match="the program of NoisySGD has changed, by the code or the data"):
        run(of_one_sweep, training=other)
    notes = json.loads((of_one_sweep / "sweep.json").read_text())
    for changes, says in (
        ({"kind": "halving"}, "doesn't say which runs are in it. Finish it with that version"),
        ({"format": 3}, "was written by a later version of modulax"),
    ):
        (of_one_sweep / "sweep.json").write_text(json.dumps(notes | changes))
        with pytest.raises(ValueError, match=says):
            run(of_one_sweep)
    (of_one_sweep / "sweep.json").write_text(json.dumps(notes))
    (of_one_sweep / "chunk.json").write_text("{")
    with pytest.raises(ValueError, match=r"`chunk\.json` can't be read"):
        sweeps.load(of_one_sweep)


def test_a_folder_without_a_finished_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(FileNotFoundError, match="There is no sweep in"):
        sweeps.load(tmp_path / "none")
    monkeypatch.setattr(Lane, "advance", lambda *lane: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "sweep", noisy([0.1]))
    with pytest.raises(ValueError, match="has no segment that is finished yet"):
        sweeps.load(tmp_path / "sweep")
