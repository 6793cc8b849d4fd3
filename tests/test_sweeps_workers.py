"""Sweeps on the workers of an executor: equal to those of this process, however workers and tasks are lost."""

import concurrent.futures
import dataclasses
import pickle
import re
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import modulax as mx
from modulax import sweeps

from .sweep_probes import four_steps, start

RATES = [0.01, 0.1, 0.2, 0.3, 0.4]
SWEEP = sweeps.concat(
    [sweeps.grid(mx.SGD(0.1, momentum=0.5), learning_rate=RATES), [mx.NoisySGD(0.1), mx.NoisySGD(1.0)]]
)


def advance(optimizer: Any, carry: Any) -> Any:
    carry, losses = four_steps(optimizer, carry)
    return carry, {"loss": losses, "half": losses[0].astype(jnp.bfloat16)}


TRAINING = sweeps.Trainable(start, advance)


class Pool(concurrent.futures.Executor):
    """An executor that trains at once what is submitted, as another process would: from bytes to bytes.

    Args:
        faults: what happens to the first tasks: an error of the executor, or None.
    """

    def __init__(self, workers: int | None = 3, faults: Sequence[Exception | None] = ()):
        self.num_workers, self.faults, self.futures = workers, list(faults), list[Any]()

    def submit(self, function: Any, /, *arguments: Any, **options: Any) -> Any:
        fault = self.faults.pop(0) if self.faults else None
        self.futures.append(future := concurrent.futures.Future())
        if fault is not None:
            future.set_exception(fault)
        else:
            function, arguments = pickle.loads(pickle.dumps((function, arguments)))
            future.set_result(pickle.loads(pickle.dumps(function(*arguments))))
        return future


def run(executor: Any = None, training: Any = TRAINING, sweep: Any = SWEEP, **options: Any) -> sweeps.Results:
    given: dict[str, Any] = {"seeds": 2, "segments": 2, "chunk": 2, "devices": 1, "progress": False}
    return sweeps.run(sweep, training, executor=executor, **given | options)


@pytest.fixture(scope="module")
def alone_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sweeps") / "alone"


@pytest.fixture(scope="module")
def alone(alone_folder: Path) -> sweeps.Results:
    return run(folder=alone_folder)


def assert_same(a: sweeps.Results, b: sweeps.Results) -> None:
    np.testing.assert_array_equal(a.segments, b.segments)
    for x, y in zip(jax.tree.leaves(a.metrics), jax.tree.leaves(b.metrics), strict=True):
        assert x.dtype == y.dtype
        assert x.tobytes() == y.tobytes()


def test_tasks_are_the_chunks_of_this_process(tmp_path: Path, alone: sweeps.Results, alone_folder: Path):
    """Chunks of 2, 2 and 1 members, and one of 2; with a folder, each segment is a task."""
    pool, folder = Pool(), tmp_path / "sweep"
    assert_same(run(pool), alone)
    assert len(pool.futures) == 4
    results = run(pool, folder=folder)
    assert_same(results, alone)
    assert len(pool.futures) == 4 + 4 * 2
    for member in (0, 4, 6):
        for x, y in zip(jax.tree.leaves(results.load(member, 1)), jax.tree.leaves(alone.load(member, 1)), strict=True):
            np.testing.assert_array_equal(x, y)
    # Each goes on from what the other one has trained.
    later: dict[str, Any] = {"segments": 3, "folder": folder}
    run(pool, **later)
    assert len(pool.futures) == 4 + 4 * 2 + 4
    assert_same(run(**later), run(segments=3, folder=alone_folder))
    assert_same(run(pool, **later), run(**later))
    assert len(pool.futures) == 16


@pytest.mark.parametrize("has_folder", [False, True])
def test_searches_on_workers(tmp_path: Path, has_folder: bool):
    """Members that remain go on from the carries that workers returned, and new seeds are trained there too."""
    folder = tmp_path / "search" if has_folder else None
    options: dict[str, Any] = {"chunk": 2, "devices": 1, "progress": False}
    halved, compared = Pool(), Pool()

    def halving(**more: Any) -> sweeps.Results:
        return sweeps.halving(SWEEP, TRAINING, "loss", rungs=[1, 2, 4], factor=2, seeds=2, **options | more)

    assert_same(halving(executor=halved, folder=folder), halving())
    assert len(halved.futures) == 4 + 3 + 2 * (2 if has_folder else 1)  # two segments after the last rung
    rates = sweeps.LogUniform(1e-3, 0.5)
    spaces = {
        name: sweeps.SearchSpace(mx.SGD(0.1, momentum=m), learning_rate=rates) for name, m in (("a", 0.5), ("b", 0.9))
    }

    def compare(**more: Any) -> sweeps.Comparison:
        return sweeps.compare(spaces, TRAINING, "loss", budget=4, seeds=2, segments=2, **options | more)

    there, here = compare(executor=compared, folder=folder), compare()
    assert compared.futures
    assert_same(there.results, here.results)
    assert str(there) == str(here)


class Slow(Pool):
    """An executor whose futures say often that they are not done."""

    def submit(self, function: Any, /, *arguments: Any, **options: Any) -> Any:
        future = super().submit(function, *arguments, **options)
        answers = iter([False] * 20)
        future.done = lambda: next(answers, True)
        return future


def test_futures_are_asked_ten_times_a_second(monkeypatch: pytest.MonkeyPatch, alone: sweeps.Results):
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    assert_same(run(Slow()), alone)
    assert max(pauses) == 0.1
    assert pauses[0] < 0.01


def test_by_default_each_worker_has_an_equal_part():
    assert run(Pool(3), chunk=None, segments=1).chunk == (2, 1)
    with pytest.raises(ValueError, match=r"`Pool` doesn't tell how many workers it has. .* such as `chunk=2`"):
        run(Pool(None), chunk=None, segments=1)


def test_a_plain_training_and_functions_of_a_closure():
    rate = jnp.float32(0.5)
    train = lambda optimizer, key: {"x": rate * optimizer.learning_rate + jax.random.normal(key)}  # noqa: E731
    a, b = (run(executor, train, segments=1) for executor in (None, Pool()))
    assert_same(a, b)


def test_workers_read_the_data_of_their_segments(tmp_path: Path):
    """Of all that remain in a task, or with a folder of one."""

    def read(segment: int) -> Any:
        return np.full(3, 1.0 + segment, np.float32)

    def moved(optimizer: Any, carry: Any, batch: Any) -> Any:
        params, state = optimizer.step(batch, carry[1], carry[0])
        return (params, state), {"sum": jnp.sum(params)}

    training = sweeps.Trainable(start, moved)
    options: dict[str, Any] = {"sweep": SWEEP[:5], "segments": 3, "data": read}
    alone = run(None, training, **options)
    for folder in (None, tmp_path / "sweep"):
        assert_same(run(Pool(), training, folder=folder, **options), alone)
    with pytest.raises(
        ValueError, match=r"a list_iterator gives them in one process, .* Give a function, `data\(segment"
    ):
        run(Pool(), training, **options | {"data": iter([read(0), read(1), read(2)])})


def test_hooks_get_all_rows_and_stop_members(alone: sweeps.Results):
    def stopped(executor: Any) -> tuple[sweeps.Results, Counter[Any]]:
        rows = Counter[Any]()

        def hook(of_segment: list[sweeps.Row]) -> set[int]:
            rows.update((row.member, row.seed, row.segment, float(row.curves["loss"][-1])) for row in of_segment)
            return {row.member for row in of_segment if row.member in (0, 1, 3) and row.segment == 0}

        return run(executor, on_segment=hook), rows

    (a, rows), (b, expected) = stopped(pool := Pool()), stopped(None)
    assert rows == expected
    assert a.segments.tolist() == [1, 1, 2, 1, 2, 2, 2]
    assert_same(a, b)
    assert len(pool.futures) == 1 + 3 * 2  # the first chunk has no member left


@dataclasses.dataclass
class FailsThere:
    """Data that can't be read in a worker, or that are others there."""

    value: float
    fails: bool = False

    def __reduce__(self) -> Any:
        return (_read_there, ()) if self.fails else (FailsThere, (self.value + 1,))


def _read_there() -> Any:
    raise ImportError("No module named 'data_of_mine'")


def reading(data: FailsThere) -> Any:
    return lambda optimizer, key: {"x": data.value * optimizer.learning_rate}


def test_lost_tasks_are_trained_again(tmp_path: Path, alone: sweeps.Results):
    lost = concurrent.futures.CancelledError("worker 7 is gone")
    assert_same(run(Pool(faults=[lost, None, lost, lost])), alone)
    with pytest.raises(concurrent.futures.CancelledError, match="is gone") as caught:
        run(Pool(faults=[None] * 3 + [lost] * 99), folder=tmp_path / "sweep")
    assert re.search(
        r"train the members `[\d`, ]+ with the seeds `0`, `1`, in each of 3 attempts", caught.value.__notes__[0]
    )
    assert f"go on from `folder='{tmp_path / 'sweep'}'`" in caught.value.__notes__[0]
    assert_same(run(Pool(), folder=tmp_path / "sweep"), alone)


def test_a_broken_executor_leaves_what_is_finished(tmp_path: Path, alone: sweeps.Results):
    broken = concurrent.futures.BrokenExecutor("a process in the pool was terminated")
    says = r"takes no more tasks \(BrokenExecutor: a process .* Start a new executor. {}"
    with pytest.raises(
        RuntimeError, match=says.format("What is finished is kept: run it again to go on from `folder=")
    ):
        run(Pool(faults=[broken, None]), folder=tmp_path / "sweep")
    pool = Pool()
    assert_same(run(pool, folder=tmp_path / "sweep"), alone)
    assert 5 <= len(pool.futures) < 8
    closed = concurrent.futures.ThreadPoolExecutor(1)
    closed.shutdown()
    with pytest.raises(RuntimeError, match=r"after shutdown.* Run it again with a `folder=`"):
        run(closed)


class Waiting(concurrent.futures.Future[Any]):
    """A task that never ends; the user stops waiting for it."""

    def done(self) -> bool:
        if self.cancelled():
            return True
        raise KeyboardInterrupt


def test_tasks_that_wait_are_cancelled_when_the_sweep_ends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    pool, waiting = Pool(2), list[Waiting]()
    trains = pool.submit

    def one(function: Any, /, *arguments: Any) -> Any:
        if not pool.futures:
            return trains(function, *arguments)
        waiting.append(Waiting())
        return waiting[-1]

    monkeypatch.setattr(pool, "submit", one)
    with pytest.raises(KeyboardInterrupt):
        run(pool, folder=tmp_path / "sweep")
    assert len(waiting) == 3  # twice as many as workers, without the one that is done
    assert all(future.cancelled() for future in waiting)


def diverging(optimizer: Any, key: Any) -> Any:
    def check(x: Any) -> Any:
        if x > 0.25:
            raise ArithmeticError(f"{x} is too large")
        return x

    return {
        "x": jax.pure_callback(
            check, jax.ShapeDtypeStruct((), jnp.float32), optimizer.learning_rate, vmap_method="sequential"
        )
    }


def test_errors_of_the_training_name_the_members():
    with pytest.raises(jax.errors.JaxRuntimeError, match="is too large") as caught:
        run(Pool(), diverging, sweeps.grid(mx.SGD(0.1), learning_rate=RATES), segments=1)
    there, here = caught.value.__notes__
    assert re.search(r"In process \d+ on .*, a worker of `executor=`:\n  File .*_tasks.py", there)
    assert here.startswith(
        "This happened while the members `2`, `3` with the seeds `0`, `1` were trained. Run it again"
    )


def test_what_a_worker_refuses():
    with pytest.raises(
        ValueError, match=r"The training of SGD is another program in a worker, which has JAX .* than in"
    ):
        run(Pool(), reading(FailsThere(1.0)), segments=1)
    with pytest.raises(ImportError, match="data_of_mine") as caught:
        run(Pool(), reading(FailsThere(1.0, fails=True)), segments=1)
    assert "Install its package there, or send the code along" in caught.value.__notes__[0]
    with pytest.raises(
        MemoryError, match=r"2 members at a time needs .* in a worker, and 1.1 kB are free. Try `chunk=1`"
    ):
        run(Pool(), sweep=SWEEP[:5], memory=1100)


def test_jax_is_configured_in_a_worker_as_here(tmp_path: Path):
    """A task carries the configuration. Here, it is another one when the task comes."""
    pool, before = Pool(), jax.config.jax_compilation_cache_dir
    trains = pool.submit

    def elsewhere(function: Any, /, *arguments: Any) -> Any:
        jax.config.update("jax_default_matmul_precision", None)
        return trains(function, *arguments)

    pool.submit = elsewhere
    train = lambda optimizer, key: {"x": jnp.vdot(jnp.ones(3), optimizer.learning_rate * jnp.ones(3))}  # noqa: E731
    try:
        jax.config.update("jax_default_matmul_precision", "highest")
        run(pool, train, segments=1)
        assert jax.config.jax_default_matmul_precision == "highest"
        assert jax.config.jax_compilation_cache_dir == before
        jax.config.update("jax_compilation_cache_dir", None)
        run(pool, train, segments=1, folder=tmp_path / "sweep")
        assert jax.config.jax_compilation_cache_dir == str(tmp_path / "sweep" / "programs")
    finally:
        jax.config.update("jax_default_matmul_precision", None)
        jax.config.update("jax_compilation_cache_dir", before)


def iterating() -> Any:
    batches, lock = iter([1.0]), threading.Lock()
    return lambda optimizer, key: {"x": optimizer.learning_rate * len([batches, lock])}


@dataclasses.dataclass
class Forking:
    """What a process pool has that forks."""

    start_method: str

    def get_start_method(self) -> str:
        return self.start_method


def forking() -> Any:
    pool = Pool()
    pool._mp_context = Forking("fork")  # pyright: ignore[reportAttributeAccessIssue]
    return pool


@pytest.mark.parametrize(
    "executor, options, error, says",
    [
        (Pool(), {"training": iterating(), "segments": 1}, TypeError, "cannot pickle .*lock.* make iterators, locks"),
        ("dask", {}, TypeError, r"`executor='dask'` has no method `submit`. Give an executor"),
        (Pool(), {"devices": jax.devices()[:1]}, TypeError, r"Write how many each worker uses, such as `devices=1`"),
        (Pool(), {"devices": 99}, ValueError, "`devices=99` must be between 1 and"),
        (forking(), {}, ValueError, r'mp_context=multiprocessing.get_context\("spawn"\)'),
    ],
)
def test_calls_that_are_refused(executor: Any, options: Any, error: type[Exception], says: str):
    with pytest.raises(error, match=says):
        run(executor, **options)


def test_a_job_of_several_processes_has_no_executor(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ValueError, match=r"leave it out: all processes of the job"):
        run(Pool())
