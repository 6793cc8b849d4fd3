"""Sweeps over several devices, and over the processes of a `jax.distributed` job."""

import functools
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import modulax as mx
from modulax import sweeps
from modulax.sweeps import _population

from . import sweep_over_devices as job

RATES = sweeps.grid(mx.SGD(1e-2, momentum=0.9), learning_rate=np.geomspace(1e-3, 0.1, 16))


def _start(*arguments: Any) -> subprocess.Popen[str]:
    """A process with four devices."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"
    return subprocess.Popen(
        [sys.executable, "-m", "tests.sweep_over_devices", *map(str, arguments)],
        env=os.environ | {"XLA_FLAGS": flags},
        cwd=Path(__file__).parents[1],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_two_processes_train_one_sweep(tmp_path: Path):
    """Without and with a folder, which is gone on with; processes with other memory choose one chunk."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    processes = [_start(tmp_path, process, port) for process in range(2)]
    alone = job.run(devices=1)
    for process in processes:
        output, _ = process.communicate(timeout=200)
        assert process.returncode == 0, output[-3000:]
    for process in range(2):
        with np.load(tmp_path / f"{process}.npz") as stored:
            np.testing.assert_allclose(stored["loss"], alone.metrics["loss"], rtol=1e-6)
            np.testing.assert_allclose(stored["half"], alone.metrics["half"].astype(np.float32), rtol=1e-6)
    lines = (tmp_path / "sweep" / "results.csv").read_text().splitlines()
    assert len(lines) == 1 + job.MEMBERS * job.SEEDS


def test_a_process_pool_goes_on_after_a_worker_is_killed(tmp_path: Path):
    """In another pool. The training is a function within a function, which the processes can't import."""

    def train(optimizer: Any, carry: Any) -> Any:
        params, state = optimizer.step(carry[0], carry[1], carry[0])
        return (params, state), {"loss": jnp.sum(params**2), "half": params.astype(jnp.bfloat16)}

    def start(optimizer: Any, key: Any) -> Any:
        params = jax.random.normal(key, (3,))
        return params, optimizer.init(params)

    def run(executor: Any = None, **options: Any) -> sweeps.Results:
        given: dict[str, Any] = {"seeds": 2, "segments": 4, "progress": False, "devices": 1, "executor": executor}
        return sweeps.run(RATES, sweeps.Trainable(start, train), **given | options)

    def kill(rows: list[sweeps.Row]) -> None:
        if rows[0].segment == 1:
            os.kill(victim, signal.SIGKILL)

    new = functools.partial(ProcessPoolExecutor, mp_context=multiprocessing.get_context("spawn"))
    folder = tmp_path / "sweep"
    with new(2) as pool:
        victim = pool.submit(os.getpid).result()
        with pytest.raises(
            RuntimeError, match=r"no more tasks \(BrokenProcessPool.* run it again to go on from `folder="
        ):
            run(pool, folder=folder, on_segment=kill)
    with new(1) as pool:
        results, rows = run(pool, folder=folder, on_segment=(seen := []).extend), 16 * 2
    assert results.chunk == (8,)
    assert rows < len(seen) <= 3 * rows  # at least one segment was there
    for x, y in zip(results.metrics.values(), run(chunk=8).metrics.values(), strict=True):
        assert x.tobytes() == y.tobytes()


def _heavy_start(optimizer: Any, key: Any) -> Any:
    weights = jax.random.normal(key, (64, 64))
    return weights, optimizer.init(weights)


def _heavy(optimizer: Any, carry: Any) -> Any:
    weights, state = optimizer.step(carry[0], carry[1], carry[0])
    return (weights, state), {"loss": jnp.sum(weights**2)}


def test_eight_devices_need_an_eighth_of_the_memory_and_return_the_same(monkeypatch: pytest.MonkeyPatch):
    training, peaks = sweeps.Trainable(_heavy_start, _heavy), []
    peak = _population.peak
    monkeypatch.setattr(_population, "peak", lambda program: peaks.append(peak(program)) or peaks[-1])
    options: dict[str, Any] = {"seeds": 2, "segments": 2, "progress": False, "memory": 1e9}
    one = sweeps.run(RATES, training, devices=1, **options)
    eight = sweeps.run(RATES, training, devices=8, **options)
    np.testing.assert_allclose(eight.metrics["loss"], one.metrics["loss"], rtol=1e-6)
    # Of each, `start` and `advance`; the segments are what stays.
    assert peaks[1] == pytest.approx(16 * 2 * 2 * 64 * 64 * 4, rel=0.05)  # in place: weights and momenta once
    assert peaks[3] == pytest.approx(peaks[1] / 8, rel=0.05)
    # 3 members on 8 devices: some devices train copies.
    few = sweeps.run(RATES[:3], training, devices=jax.devices(), **options)
    np.testing.assert_allclose(few.metrics["loss"], one.metrics["loss"][:3], rtol=1e-6)
    assert few.chunk == (8,)


def test_optimizers_without_arrays_are_spread_over_devices():
    """Nothing has an axis of members: each device trains its share all the same."""
    results = sweeps.run([mx.Identity()] * 5, lambda optimizer, key: jax.random.normal(key), seeds=3, progress=False)
    expected = np.tile(jax.vmap(jax.random.normal)(results.keys), (5, 1))
    np.testing.assert_array_equal(results.metrics, expected)


@pytest.mark.parametrize("devices, error, says", [
    (0, ValueError, "must be between 1 and 8"),
    (9, ValueError, "must be between 1 and 8"),
    ([], ValueError, "write `devices=None`"),
    ("cpu", TypeError, r"a list such as `jax.devices\(\)\[:4\]`"),
    (True, TypeError, "a number, or None"),
])  # fmt: skip
def test_devices_that_are_not_there(devices: Any, error: type[Exception], says: str):
    with pytest.raises(error, match=says):
        sweeps.run(RATES, lambda optimizer, key: optimizer.learning_rate, devices=devices)


def test_one_device_is_a_list_of_one():
    results = sweeps.run(RATES[:2], lambda optimizer, key: optimizer.learning_rate, devices=jax.devices()[3])
    np.testing.assert_array_equal(results.metrics[:, 0], [x.learning_rate for x in RATES[:2]])
