"""A sweep over the devices of a `jax.distributed` job, or killed several times: run by tests/test_sweeps_devices.py.

python -m tests.sweep_over_devices FOLDER PROCESS PORT      # one of two processes, with its metrics in PROCESS.npz
python -m tests.sweep_over_devices FOLDER killed SEED       # metrics in killed.npz and whole.npz
"""

import os
import random
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint  # noqa: F401 (once, before the forks)

import modulax as mx
from modulax import sweeps

MEMBERS, SEEDS, SEGMENTS = 10, 2, 3


def start(optimizer: Any, key: jax.Array) -> Any:
    weights = jax.random.normal(key, (6,))
    half = jnp.zeros(3, jnp.bfloat16)
    return weights, optimizer.init(weights), key, half


def advance(optimizer: Any, carry: Any) -> Any:
    weights, state, key, half = carry
    key, used = jax.random.split(key)
    noise = jax.random.normal(used, weights.shape)
    updates, state = optimizer.update(2 * weights + 0.1 * noise, state, weights)
    weights = weights + updates
    half = half + weights[:3].astype(jnp.bfloat16)
    return (weights, state, key, half), {"loss": jnp.sum(weights**2), "half": half}


def train(optimizer: Any, key: jax.Array) -> Any:
    carry, _ = advance(optimizer, start(optimizer, key))
    return advance(optimizer, carry)[1]


def sweep() -> sweeps.Sweep:
    return sweeps.grid(mx.SGD(1e-2, momentum=0.9), learning_rate=np.geomspace(1e-3, 0.2, MEMBERS))


def run(**options: Any) -> sweeps.Results:
    options = {"segments": SEGMENTS} | options
    return sweeps.run(sweep(), sweeps.Trainable(start, advance), seeds=SEEDS, progress=False, **options)


def save(path: Path, results: sweeps.Results) -> None:
    np.savez(path, loss=results.metrics["loss"], half=results.metrics["half"].astype(np.float32))


def kill_at(moment: int | float) -> None:
    """Kill this process in the middle of a write, given by its number, or some time after the first one."""
    replace, count = os.replace, iter(range(1000))

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def counted(*arguments: Any, **options: Any) -> None:
        n = next(count)
        if n == moment:
            die()
        if n == 0 and isinstance(moment, float):
            threading.Timer(moment, die).start()
        replace(*arguments, **options)

    os.replace = counted


def killed_again_and_again(folder: Path, seed: int) -> None:
    """Begin the sweep five times, each time killed at another moment; then let it run to the end."""
    chance = random.Random(seed)
    moments = [
        chance.randrange(3, 7),
        chance.uniform(0.0, 0.5),
        chance.randrange(2, 5),
        chance.uniform(0.1, 0.5),
        2,
        None,
    ]
    for moment in moments:
        if child := os.fork():  # before the backend of JAX is started; what is imported is imported once
            _, status = os.waitpid(child, 0)
            assert (os.WTERMSIG(status) == signal.SIGKILL) if moment is not None else status == 0, (moment, status)
            continue
        if moment is not None:
            kill_at(moment)
        results = run(chunk=4, devices=1, folder=folder / "sweep")
        save(folder / "killed.npz", results)
        if moment is not None:  # it was faster
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(0)
    save(folder / "whole.npz", run(chunk=4, devices=1))


def in_processes(folder: Path, process: int, port: int) -> None:
    jax.distributed.initialize(f"localhost:{port}", num_processes=2, process_id=process)
    assert jax.process_count() == 2
    assert len(jax.devices()) == 8
    plain = sweeps.run(sweep(), train, seeds=SEEDS, progress=False)
    # Processes with other budgets choose one chunk: that of the least.
    few = run(memory=(1e9, 1.5e3)[process])
    run(segments=2, chunk=8, folder=folder / "sweep")
    resumed = run(folder=folder / "sweep")
    assert resumed.chunk == (8,), resumed.chunk
    assert few.chunk == (8,), few.chunk
    for a, b in zip(jax.tree.leaves(few.metrics), jax.tree.leaves(resumed.metrics), strict=True):
        np.testing.assert_allclose(a.astype(np.float32), b.astype(np.float32), rtol=1e-6)
    save(folder / f"{process}.npz", resumed)
    np.save(folder / f"plain{process}.npy", plain.metrics["loss"])


def main() -> None:
    folder = Path(sys.argv[1])
    if sys.argv[2] == "killed":
        killed_again_and_again(folder, int(sys.argv[3]))
    else:
        in_processes(folder, int(sys.argv[2]), int(sys.argv[3]))


if __name__ == "__main__":
    main()
