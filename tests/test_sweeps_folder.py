"""The folder of a sweep: interrupted at every write, gone on with, refused."""

import functools
import os
import shutil
import subprocess
import sys
import time
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
from modulax.sweeps._experiment import Experiment

from . import settings
from .sweep_probes import copied_before_writes

QUIET: dict[str, Any] = {"progress": False, "devices": 1}


def noisy(rates: list[float], key: int = 1) -> sweeps.Sweep:
    return sweeps.grid(mx.NoisySGD(0.1, key=key), learning_rate=rates)


RATES = noisy([0.1, 0.2, 0.4])


def start(optimizer: Any, key: Any) -> Any:
    params = {"w": jnp.ones(2), "half": jnp.ones(2, jnp.bfloat16)}
    return {"params": params, "state": optimizer.init(params), "key": key}


def advance(optimizer: Any, carry: Any) -> Any:
    key, used = jax.random.split(carry["key"])
    grads = jax.tree.map(lambda x: x + jax.random.normal(used, x.shape, x.dtype), carry["params"])
    params, state = optimizer.step(grads, carry["state"], carry["params"])
    w, half = params["w"], params["half"]
    metrics = {"loss": jnp.sum(w**2), "half": half, "z": jax.lax.complex(w, w)}
    return {"params": params, "state": state, "key": key}, metrics


TRAINING = sweeps.Trainable(start, advance)


def run(folder: Path | None = None, sweep: Any = RATES, training: Any = TRAINING, **options: Any) -> sweeps.Results:
    given: dict[str, Any] = {"seeds": 2, "segments": 2, "chunk": 2}
    return sweeps.run(sweep, training, folder=folder, **given | QUIET | options)


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
    folder = tmp_path / "sweep"
    with copied_before_writes(monkeypatch, folder) as left:
        run(folder)
    assert len(left) >= 2 + 4 * 2 + 1  # notes twice; carries and metrics of two segments of two chunks; a table
    carries = sorted(path.name for path in (folder / "carries").iterdir())
    assert carries == ["000-0001", "001-0001"]
    for killed in left:
        assert_same(run(killed), whole)
        assert sorted(path.name for path in (killed / "carries").iterdir()) == carries  # none of an earlier segment


def test_a_segment_whose_carry_is_written_but_not_its_metrics_is_run_again(
    tmp_path: Path, finished: Path, whole: sweeps.Results
):
    folder = tmp_path / "sweep"
    run(folder, segments=1)
    # What a process leaves that is killed between the two, with the half-written files of both.
    shutil.copytree(finished / "carries" / "000-0001", folder / "carries" / "000-0001")
    half = next(path for path in (folder / "carries" / "000-0001").rglob("*") if path.is_file())
    half.write_bytes(b"")
    for name in ("metrics/000.new", "results.csv.new", "sweep.json.new"):
        (folder / name).write_bytes(b"half")
    assert_same(run(folder), whole)


def test_a_finished_sweep_is_read_and_goes_on_with_more_segments(tmp_path: Path, finished: Path, whole: sweeps.Results):
    folder = tmp_path / "sweep"
    shutil.copytree(finished, folder)
    assert_same(run(folder, chunk=None), whole)
    longer, expected = run(folder, segments=3), run(segments=3)
    assert_same(longer, expected)
    assert sorted(path.name for path in (folder / "carries").iterdir()) == ["000-0002", "001-0002"]
    expected.to_csv(tmp_path / "expected.csv")
    assert (folder / "results.csv").read_text() == (tmp_path / "expected.csv").read_text()
    assert_same(run(folder), whole)  # fewer segments


def other_metrics(optimizer: Any, carry: Any) -> Any:
    carry, metrics = advance(optimizer, carry)
    return carry, metrics | {"more": 1.0}


def whole_training(optimizer: Any, key: Any) -> Any:
    return advance(optimizer, start(optimizer, key))[1]


def advance_further(optimizer: Any, carry: Any) -> Any:
    return advance(optimizer, advance(optimizer, carry)[0])


@pytest.mark.parametrize(
    "changes, says",
    [
        ({"training": sweeps.Trainable(start, other_metrics)}, "`metrics` was .* and is .*more"),
        ({"training": sweeps.Trainable(start, advance_further)}, "the program of NoisySGD has changed, by the code or"),
        ({"training": whole_training, "segments": 1}, "`in_segments` was True and is False"),
        ({"training": sweeps.Trainable(start, advance_further), "sweep": noisy([0.3])}, "the program of NoisySGD has"),
    ],
)
def test_the_folder_of_another_training_is_refused(finished: Path, changes: dict[str, Any], says: str):
    before = (finished / "sweep.json").read_text()
    with pytest.raises(ValueError, match=rf"holds runs of another training: {says}"):
        run(finished, **changes)
    assert (finished / "sweep.json").read_text() == before


@pytest.mark.usefixtures("x64")
def test_the_folder_of_another_dtype_is_refused(tmp_path: Path):
    train = lambda optimizer, key: {"loss": jnp.float32(1) * optimizer.learning_rate.astype(jnp.float32)}  # noqa: E731
    sweeps.run(mx.SGD(jnp.float32(0.1)), train, folder=tmp_path / "sweep", **QUIET)
    with pytest.raises(ValueError, match=r"the program of SGD has changed, by .* by dtypes.* choose another folder"):
        sweeps.run(mx.SGD(jnp.float64(0.1)), train, folder=tmp_path / "sweep", **QUIET)


def weighted(weights: np.ndarray) -> Any:
    return lambda tree: jax.tree.map(lambda _: bool(weights.sum()), tree)


def falling(rate: float) -> Any:
    return lambda step: rate / (1.0 + jnp.asarray(step, float))


def trained(optimizer: Any, key: Any) -> Any:
    """Two steps, on constants of the training."""
    params = jnp.ones(2, jnp.bfloat16)
    state = optimizer.init(params)
    for grads in DATA:
        params, state = optimizer.step(jnp.asarray(grads, params.dtype), state, params)
    return params


DATA = np.ones((2, 2), np.float32)


def programs(optimizer: Any, training: Any = trained) -> list[str]:
    experiment = Experiment(optimizer, training, key=None, devices=1, segments=1)
    of_structures = [structure.digest() for structure in experiment.structures]
    return [of_structures[experiment._structure_of[place]] for place in range(len(experiment.sweep))]


@pytest.mark.parametrize(
    "first, second",
    [
        (mx.from_optax(optax.adam(0.1)), mx.from_optax(optax.adam(0.2))),
        [mx.from_optax(optax.adam(0.1, mu_dtype=dtype)) for dtype in (jnp.float32, jnp.float16)],
        (mx.SGD(falling(0.1)), mx.SGD(falling(0.2))),
        (mx.SGD(functools.partial(falling(0.1))), mx.SGD(functools.partial(falling(0.2)))),
        (mx.SGD(lambda step: 0.1 / step.astype(float)), mx.SGD(lambda step: 0.1 * step.astype(float))),
        [mx.ConditionallyMask(mx.SGD(0.1), condition) for condition in (lambda step: step > 3, lambda step: step < 3)],
        (mx.AdamW(0.1, mask=weighted(np.ones(2))), mx.AdamW(0.1, mask=weighted(np.zeros(2)))),
    ],
)
def test_members_whose_functions_differ_are_other_programs(first: Any, second: Any):
    with settings.jax_defaults():  # optax needs them
        a, b = programs([first, second])
        assert a != b
        assert programs([second, first]) == [b, a]


def test_another_training_is_another_program(monkeypatch: pytest.MonkeyPatch):
    before = programs(mx.SGD(0.1))
    assert programs([mx.SGD(0.2), mx.SGD(0.3)]) == 2 * before  # numbers of the optimizer are its arguments
    assert programs(mx.SGD(0.1), lambda o, key: trained(o, key) * 2) != before
    changed = DATA.copy()
    assert programs(mx.SGD(0.1), lambda o, key: trained(o, key)) == before
    changed[1, 1] = 2.0
    monkeypatch.setitem(globals(), "DATA", changed)
    assert programs(mx.SGD(0.1)) != before


@pytest.mark.parametrize("inside", ["scan", "cond", "jit"])
def test_constants_inside_operations_are_part_of_the_program(inside: str):
    def training(data: Any) -> Any:
        def add(x: Any, _: None = None) -> Any:
            return x + data, None

        def train(optimizer: Any, key: Any) -> Any:
            x = optimizer.learning_rate * jnp.ones(2)
            if inside == "scan":
                return jax.lax.scan(add, x, length=2)[0]
            return jax.lax.cond(x[0] > 0, add, lambda x: (x, None), x)[0] if inside == "cond" else jax.jit(add)(x)[0]

        return train

    ones, twos = jnp.ones(2), jnp.full(2, 2.0)
    assert programs(mx.SGD(0.1), training(ones)) == programs(mx.SGD(0.1), training(jnp.ones(2)))
    assert programs(mx.SGD(0.1), training(ones)) != programs(mx.SGD(0.1), training(twos))


@pytest.mark.parametrize(
    "file, content, says",
    [
        ("sweep.json", b"", "`sweep.json` can't be read .* Delete `.*` to begin from the start"),
        ("sweep.json", b"[]", "it holds no description of a sweep"),
        ("sweep.json", b"\xff\xfe", "`sweep.json` can't be read"),
        ("sweep.json", b'{"members": []}', "it holds no description of a sweep"),
        ("metrics/001-0000.npz", b"", r"or all of `metrics/001-\*` and `carries/001-\*`"),
        ("metrics/000-0001.npz", b"PK\3\4 and so on", "`metrics/000-0001.npz` can't be read"),
    ],
)
def test_a_damaged_folder_is_named_with_the_remedy(
    tmp_path: Path, finished: Path, file: str, content: bytes, says: str
):
    folder = tmp_path / "sweep"
    shutil.copytree(finished, folder)
    (folder / file).write_bytes(content)
    with pytest.raises(ValueError, match=f"(?s)folder=.*is damaged: .*{says}"):
        run(folder)


def test_members_are_trained_again_if_their_damaged_files_are_deleted(
    tmp_path: Path, finished: Path, whole: sweeps.Results
):
    folder = tmp_path / "sweep"
    shutil.copytree(finished, folder)
    for path in [*(folder / "metrics").glob("001-*"), *(folder / "carries").glob("000-*")]:
        path.unlink() if path.is_file() else shutil.rmtree(path)
    assert_same(run(folder), whole)  # 000 is finished, and needs no carry
    assert_same(run(folder, segments=3), run(segments=3))  # for which it is trained again, from the start


def of_all_kinds(optimizer: Any, carry: Any) -> Any:
    """With operations whose parameters are functions, and arrays inside."""
    carry, metrics = advance(optimizer, carry)
    shape, table = jax.ShapeDtypeStruct((2,), jnp.float32), jnp.arange(2.0)
    read = jax.pure_callback(on_the_host, shape, carry["params"]["w"], vmap_method="sequential")
    chosen = jax.lax.cond(read[0] > 0, lambda x: x + table, lambda x: x, jax.nn.relu(read))
    return carry, metrics | {"read": jax.nn.softplus(chosen)}


def on_the_host(x: Any) -> Any:
    return np.asarray(x) * np.float32(2)


def train_and_hang(folder: str) -> None:
    """What the other process runs: it hangs with the first segment written."""
    patch, write = pytest.MonkeyPatch(), _folder.Folder.write

    def hanging(*arguments: Any) -> None:
        write(*arguments)
        print("hangs", flush=True)
        time.sleep(600)

    patch.setattr(_folder.Folder, "write", hanging)
    run(Path(folder), training=sweeps.Trainable(start, of_all_kinds))


def test_a_second_process_is_refused_until_the_first_is_killed(tmp_path: Path):
    """It has the same program in both, and goes on after the segment that the first wrote."""
    call = f"from tests import test_sweeps_folder as t; t.train_and_hang({str(tmp_path / 'sweep')!r})"
    environment = os.environ | {"PYTHONHASHSEED": "7"}
    training = sweeps.Trainable(start, of_all_kinds)
    with subprocess.Popen([sys.executable, "-c", call], env=environment, stdout=subprocess.PIPE, text=True) as other:
        try:
            expected = run(training=training)
            assert other.stdout is not None
            assert other.stdout.readline() == "hangs\n"
            with pytest.raises(ValueError, match=f"is in use by process {other.pid} on .*`jax.distributed`"):
                run(tmp_path / "sweep", training=training)
        finally:
            other.kill()
    written = tmp_path / "sweep" / "metrics" / "000-0000.npz"
    before = written.stat().st_mtime_ns
    assert_same(run(tmp_path / "sweep", training=training), expected)
    assert written.stat().st_mtime_ns == before


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

    a, b = (mx.Masked(mx.SGD(0.1), mask=Everything()) for _ in range(2))
    assert repr(a) != repr(b)
    first, second = (sweeps.run(x, trained, folder=tmp_path / "sweep", **QUIET) for x in (a, b))
    assert_same(first, second)


@pytest.mark.parametrize("changes", [{"chunk": 1}, {"chunk": None, "devices": 8}])
def test_another_chunk_and_other_devices_go_on_with_the_same_runs(
    tmp_path: Path, changes: dict[str, Any], whole: sweeps.Results
):
    """After a device ran out of memory, or on another machine."""
    folder = tmp_path / "sweep"
    run(folder, segments=1, chunk=3)
    results = run(folder, **changes)
    assert results.chunk == (changes["chunk"] or 8,)
    np.testing.assert_allclose(results.metrics["loss"], whole.metrics["loss"], rtol=1e-6)
