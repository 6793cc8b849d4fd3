"""The folder of a sweep: interrupted at every write, gone on with, refused."""

import functools
import os
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import modulax as mx
from modulax import sweeps
from modulax.sweeps import _folder
from modulax.sweeps._description import described

QUIET: dict[str, Any] = {"progress": False, "devices": 1}
RATES = sweeps.grid(mx.NoisySGD(0.1, key=1), learning_rate=[0.1, 0.2, 0.4])


def start(optimizer: Any, key: Any) -> Any:
    params = {"w": jnp.ones(2), "half": jnp.ones(2, jnp.bfloat16)}
    return {"params": params, "state": optimizer.init(params), "key": key}


def advance(optimizer: Any, carry: Any) -> Any:
    key, used = jax.random.split(carry["key"])
    grads = jax.tree.map(lambda x: x + jax.random.normal(used, x.shape, x.dtype), carry["params"])
    params, state = optimizer.step(grads, carry["state"], carry["params"])
    return {"params": params, "state": state, "key": key}, {
        "loss": jnp.sum(params["w"] ** 2),
        "half": params["half"],
        "z": jax.lax.complex(params["w"], params["w"]),
    }


TRAINING = sweeps.Trainable(start, advance)


def run(folder: Path | None = None, sweep: Any = RATES, training: Any = TRAINING, **options: Any) -> sweeps.Results:
    options = {"seeds": 2, "segments": 2, "chunk": 2} | options
    return sweeps.run(sweep, training, folder=folder, **options, **QUIET)


@pytest.fixture(scope="module")
def whole() -> sweeps.Results:
    return run()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweeps") / "finished"
    run(folder)
    return folder


def assert_same(a: sweeps.Results, b: sweeps.Results) -> None:
    for x, y in zip(jax.tree.leaves(a.metrics), jax.tree.leaves(b.metrics), strict=True):
        assert x.dtype == y.dtype
        assert x.tobytes() == y.tobytes()


def test_killed_before_any_of_its_writes_it_ends_as_an_uninterrupted_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: sweeps.Results
):
    """What a killed process leaves is the folder at that moment: each is kept and gone on with."""
    folder, left = tmp_path / "sweep", []

    def noted(write: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> None:
            left.append(tmp_path / f"{len(left)}")
            shutil.copytree(folder, left[-1])
            write(*arguments, **options)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(_folder.os, "replace", noted(os.replace))
        patch.setattr(_folder, "save", noted(_folder.save))
        run(folder)
    assert len(left) >= 2 + 4 * 2 + 2  # two notes; carries and metrics of two segments of two chunks; two tables
    for killed in left:
        assert_same(run(killed), whole)


def test_a_segment_whose_carry_is_written_but_not_its_metrics_is_run_again(
    tmp_path: Path, finished: Path, whole: sweeps.Results
):
    folder = tmp_path / "sweep"
    run(folder, segments=1)
    # What a process leaves that is killed between the two, with the half-written files of both.
    shutil.copytree(finished / "carries" / "000-0001", folder / "carries" / "000-0001")
    half = next(path for path in (folder / "carries" / "000-0001").rglob("*") if path.is_file())
    half.write_bytes(b"")
    for name in ("metrics/000.new", "results.csv.new", "sweep.json.new", "chunk.json.new"):
        (folder / name).write_bytes(b"half")
    assert_same(run(folder), whole)


def test_a_finished_sweep_is_read_and_goes_on_with_more_segments(tmp_path: Path, finished: Path, whole: sweeps.Results):
    folder = tmp_path / "sweep"
    shutil.copytree(finished, folder)
    assert_same(run(folder, chunk=None), whole)
    longer, expected = run(folder, segments=3), run(segments=3)
    assert_same(longer, expected)
    assert sorted(path.name for path in (folder / "carries").iterdir()) == ["000-0002", "001-0002"]
    assert (folder / "results.csv").read_text() == csv_text(tmp_path, expected)
    assert_same(run(folder), whole)  # fewer segments


def csv_text(folder: Path, results: sweeps.Results) -> str:
    results.to_csv(folder / "expected.csv")
    return (folder / "expected.csv").read_text()


def other_metrics(optimizer: Any, carry: Any) -> Any:
    carry, metrics = advance(optimizer, carry)
    return carry, metrics | {"more": 1.0}


@pytest.mark.parametrize(
    "changes, says",
    [
        (
            {"sweep": sweeps.grid(mx.NoisySGD(0.1, key=1), learning_rate=[0.1, 0.2, 0.3])},
            "number 2 of `members` was .*0.4.* and is .*0.3",
        ),
        ({"sweep": RATES[:2]}, "`members` had 3 entries and has 2"),
        ({"sweep": sweeps.grid(mx.NoisySGD(0.1, key=2), learning_rate=[0.1, 0.2, 0.4])}, "number 0 of `members`"),
        ({"seeds": 3}, "`keys` had 2 entries and has 3"),
        ({"key": jax.random.key(1)}, "number 0 of `keys`"),
        ({"training": sweeps.Trainable(start, other_metrics)}, "`metrics` was .* and is .*more"),
        ({"chunk": 1}, "begun with .2. members at a time, and `chunk=1`"),
    ],
)
def test_the_folder_of_another_sweep_is_refused(finished: Path, changes: dict[str, Any], says: str):
    before = (finished / "sweep.json").read_text()
    with pytest.raises(ValueError, match=says):
        run(finished, **changes)
    assert (finished / "sweep.json").read_text() == before


def weighted(weights: np.ndarray) -> Any:
    return lambda tree: jax.tree.map(lambda _: bool(weights.sum()), tree)


def falling(rate: float, offset: float = 0.0) -> Any:
    return lambda step: rate / (1.0 + jnp.asarray(step, float)) + offset


@pytest.mark.parametrize(
    "first, second",
    [
        (mx.from_optax(optax.adam(0.1)), mx.from_optax(optax.adam(0.2))),
        (mx.SGD(falling(0.1)), mx.SGD(falling(0.2))),
        (mx.SGD(functools.partial(falling(0.1))), mx.SGD(functools.partial(falling(0.2)))),
        (mx.SGD(lambda step: 0.1 + 0.0 * step.astype(float)), mx.SGD(lambda step: 0.2 + 0.0 * step.astype(float))),
        (mx.AdamW(0.1, mask=weighted(np.ones(2))), mx.AdamW(0.1, mask=weighted(np.zeros(2)))),
    ],
)
def test_members_whose_functions_hold_other_numbers_have_other_descriptions(first: Any, second: Any):
    assert described(first) != described(second)
    assert described(first) == described(first)


def test_a_folder_that_cannot_be_shared_by_the_devices_is_refused(finished: Path):
    with pytest.raises(ValueError, match="by `devices=`"):
        sweeps.run(RATES, TRAINING, seeds=2, segments=2, folder=finished, progress=False, devices=8)


def test_a_folder_of_another_search_is_refused(finished: Path):
    with pytest.raises(ValueError, match="`kind` was 'run' and is"):
        sweeps.halving(RATES, TRAINING, "loss", rungs=[1, 2], seeds=2, folder=finished, **QUIET)


def test_folders_that_are_not_for_a_sweep(tmp_path: Path):
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(ValueError, match="is not empty, and there is no sweep in it"):
        run(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    with pytest.raises(OSError, match=r"can't be written: .* Choose another folder"):
        run(tmp_path / "mine.txt" / "below")


class Everything:
    """A mask as an object, whose repr has its address."""

    def __call__(self, tree: Any) -> Any:
        return jax.tree.map(lambda x: True, tree)


def test_objects_in_an_optimizer_are_known_again_by_another_process(tmp_path: Path):
    """Their addresses differ, so they aren't compared."""

    def train(optimizer: Any, key: Any) -> Any:
        return optimizer.step(jnp.ones(2), optimizer.init(jnp.ones(2)), jnp.ones(2))

    a, b = (mx.Masked(mx.SGD(0.1), mask=Everything()) for _ in range(2))
    assert repr(a) != repr(b)
    first = sweeps.run(a, train, folder=tmp_path / "sweep", **QUIET)
    assert_same(first, sweeps.run(b, train, folder=tmp_path / "sweep", **QUIET))


def test_another_chunk_is_possible_as_long_as_nothing_is_finished(tmp_path: Path, whole: sweeps.Results):
    """After a device ran out of memory."""
    folder = tmp_path / "sweep"
    run(folder, segments=1, chunk=3)
    for path in (folder / "metrics").iterdir():
        path.unlink()
    results = run(folder, chunk=2)
    assert results.chunk == (2,)
    np.testing.assert_array_equal(results.metrics["loss"], whole.metrics["loss"])
