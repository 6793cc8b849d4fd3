"""`sweeps.writers`: what TensorBoard, Weights & Biases and MLflow have stored, as they themselves read it."""

# pyright: reportMissingImports=false

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import mlflow
import pytest
import wandb
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2
from wandb.proto import wandb_internal_pb2

import modulax as mx
from modulax import sweeps
from modulax.sweeps.writers import MLflow, TensorBoard, WandB

from ..sweep_probes import four_steps, start

RATES = [0.01, 0.1, 0.4]
LOGGED = ["loss", "last"]


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DO_NOT_TRACK", "true")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_CONSOLE", "off")
    monkeypatch.chdir(tmp_path)


def advance(optimizer: Any, carry: Any) -> Any:
    carry, losses = four_steps(optimizer, carry)
    return carry, {"loss": losses, "last": jnp.sum(carry[0] ** 2), "square": jnp.outer(carry[0], carry[0])}


TRAINABLE = sweeps.Trainable(start, advance)


def run(on_segment: Any, segments: int = 3, folder: Path | None = None) -> sweeps.Results:
    sweep = sweeps.grid(mx.SGD(0.1, momentum=0.5), learning_rate=RATES)
    return sweeps.run(
        sweep, TRAINABLE, seeds=2, segments=segments, folder=folder, on_segment=on_segment, progress=False
    )


def interrupted(write: Any, folder: Path) -> sweeps.Results:
    """A sweep in two processes, of which the second repeats the last segment of the first."""
    run(write(), segments=1, folder=folder)

    def kill(rows: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run([write(), kill], folder=folder)
    return run(write(), folder=folder)


def expected(results: sweeps.Results, member: int, seed: int) -> dict[str, dict[int, float]]:
    """The values of a run by metric and step."""
    loss, last = (results.curve(name)[member, seed].tolist() for name in LOGGED)
    return {"loss": dict(enumerate(loss)), "last": {4 * i + 3: x for i, x in enumerate(last)}}


def assert_logged(read: Any, results: sweeps.Results, *, twice: bool = False) -> None:
    """Every run has every value once, in order; those of a repeated segment twice if that is how the tool stores."""
    for member, rate in enumerate(RATES):
        for seed in range(2):
            config, metrics = read(f"member-00{member}-seed-{seed}")
            assert str(config["learning_rate"]) == str(rate)
            assert config["optimizer"] == "SGD"
            assert metrics.keys() == {"loss", "last"}
            for name, values in expected(results, member, seed).items():
                assert dict(metrics[name]) == pytest.approx(values, rel=1e-6), (name, member, seed)
                assert len(metrics[name]) == len(values) * (1 + twice / 3), (name, metrics[name])


# --- TensorBoard ---------------------------------------------------------------------------------


def read_tensorboard(folder: Path) -> Any:
    def read(name: str) -> Any:
        events = EventAccumulator(str(folder / name))
        events.Reload()
        stored = events.summary_metadata["_hparams_/session_start_info"].plugin_data.content
        hparams = plugin_data_pb2.HParamsPluginData.FromString(stored).session_start_info.hparams
        config = {key: x.string_value or x.number_value for key, x in hparams.items()}
        names = events.Tags()["scalars"]
        return config, {name: [(x.step, x.value) for x in events.Scalars(name)] for name in names}

    return read


def test_tensorboard(tmp_path: Path):
    results = run(TensorBoard(tmp_path / "logs"))
    assert len(list((tmp_path / "logs").iterdir())) == 6
    assert_logged(read_tensorboard(tmp_path / "logs"), results)


def test_tensorboard_replaces_a_segment_that_comes_again(tmp_path: Path):
    results = interrupted(lambda: TensorBoard(tmp_path / "logs"), tmp_path / "sweep")
    assert_logged(read_tensorboard(tmp_path / "logs"), results)


# --- Weights & Biases ----------------------------------------------------------------------------


def records(path: Path) -> Iterator[Any]:
    """The records of an offline run: a log of LevelDB, in blocks of 32 KiB, after a header of 7 bytes."""
    data, place, whole = path.read_bytes(), 7, b""
    while place + 7 <= len(data):
        if (left := -place % 2**15) and left < 7:
            place += left
        _, length, kind = struct.unpack_from("<IHB", data, place)
        whole += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # the only part, or the last one
            yield wandb_internal_pb2.Record.FromString(whole)
            whole = b""


def read_wandb(folder: Path) -> Any:
    wandb.teardown()  # its service may still be writing

    def read(name: str) -> Any:
        config: dict[str, Any] = {}
        metrics: dict[str, list[tuple[int, float]]] = {}
        paths = sorted(folder.glob(f"**/wandb/offline-run-*-{name}/*.wandb"), key=lambda path: path.stat().st_mtime)
        for record in (record for path in paths for record in records(path)):
            if record.HasField("run"):
                assert (record.run.project, record.run.run_group) == ("digits", "sgd")
                assert (record.run.run_id, record.run.display_name) == (f"sgd-{name}", name)
                config |= {x.key: json.loads(x.value_json) for x in record.run.config.update}
            if record.HasField("history"):
                items = {x.key or ".".join(x.nested_key): json.loads(x.value_json) for x in record.history.item}
                for key in items.keys() - {"_step", "_timestamp", "_runtime"}:
                    metrics.setdefault(key, []).append((items["_step"], items[key]))
        return config, metrics

    return read


def new_wandb(folder: Path) -> WandB:
    return WandB("digits", group="sgd", mode="offline", options={"dir": str(folder)})


def test_wandb(tmp_path: Path):
    results = run(new_wandb(tmp_path))
    assert len(list(tmp_path.glob("wandb/offline-run-*"))) == 6
    assert_logged(read_wandb(tmp_path), results)
    (path,) = tmp_path.glob("wandb/offline-run-*-member-000-seed-0/*.wandb")
    assert [x.exit.exit_code for x in records(path) if x.HasField("exit")] == [0]


def test_wandb_goes_on_with_the_runs_of_a_group(tmp_path: Path):
    # W&B names a folder by the second, in which one process would write over the files of the one before.
    folders = iter([tmp_path / "first", tmp_path / "killed", tmp_path / "last"])

    def next_wandb() -> WandB:
        folder = next(folders)
        folder.mkdir()
        return new_wandb(folder)

    results = interrupted(next_wandb, tmp_path / "sweep")
    assert_logged(read_wandb(tmp_path), results, twice=True)


# --- MLflow --------------------------------------------------------------------------------------


def read_mlflow(uri: str) -> Any:
    client = mlflow.MlflowClient(uri)
    experiment: Any = client.get_experiment_by_name("digits")

    def read(name: str) -> Any:
        (found,) = client.search_runs([experiment.experiment_id], f"attributes.run_name = '{name}'")
        assert found.data.tags["group"] == "sgd"
        assert found.info.status == "FINISHED"
        history = {key: client.get_metric_history(found.info.run_id, key) for key in found.data.metrics}
        return found.data.params, {key: [(x.step, x.value) for x in values] for key, values in history.items()}

    return read


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of MLflow with the newest SQLAlchemy
def test_mlflow(tmp_path: Path):
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    results = run(MLflow("digits", group="sgd", tracking_uri=uri))
    assert_logged(read_mlflow(uri), results)
    # A segment that comes again stays twice, with two times; a run without a group is another one.
    uri = f"sqlite:///{tmp_path}/again.db"
    results = interrupted(lambda: MLflow("digits", group="sgd", tracking_uri=uri), tmp_path / "sweep")
    assert_logged(read_mlflow(uri), results, twice=True)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_mlflow_marks_runs_that_an_error_ended(tmp_path: Path):
    uri = f"sqlite:///{tmp_path}/mlflow.db"

    def fails(rows: Any) -> None:
        raise ValueError("too slow")

    with pytest.raises(ValueError, match="too slow"):
        run([MLflow("digits", tracking_uri=uri), fails])
    client = mlflow.MlflowClient(uri)
    experiment: Any = client.get_experiment_by_name("digits")
    found = client.search_runs([experiment.experiment_id])
    assert [x.info.status for x in found] == ["FAILED"] * 6
