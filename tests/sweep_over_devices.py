"""A sweep over the devices of a `jax.distributed` job, or killed at a write: run by tests/test_sweeps_devices.py.

    python -m tests.sweep_over_devices FOLDER [PROCESS PORT]

Writes the metrics to FOLDER/PROCESS.npz.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

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
    carry = start(optimizer, key)
    for _ in range(2):
        carry, metrics = advance(optimizer, carry)
    return metrics


def sweep() -> sweeps.Sweep:
    return sweeps.grid(mx.SGD(1e-2, momentum=0.9), learning_rate=np.geomspace(1e-3, 0.2, MEMBERS))


def run(**options: Any) -> sweeps.Results:
    options = {"segments": SEGMENTS} | options
    return sweeps.run(sweep(), sweeps.Trainable(start, advance), seeds=SEEDS, progress=False, **options)


def save(path: Path, results: sweeps.Results) -> None:
    np.savez(path, loss=results.metrics["loss"], half=results.metrics["half"].astype(np.float32))


def kill_at(write: int) -> None:
    """Kill this process at the time of a write, in the middle of it."""
    replace, count = os.replace, iter(range(1000))

    def counted(*arguments: Any, **options: Any) -> None:
        if next(count) == write:
            os.kill(os.getpid(), signal.SIGKILL)
        replace(*arguments, **options)

    os.replace = counted


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
    if sys.argv[2] == "kill":
        kill_at(int(sys.argv[3]))
        save(folder / "killed.npz", run(chunk=4, devices=1, folder=folder / "sweep"))
    else:
        in_processes(folder, int(sys.argv[2]), int(sys.argv[3]))


if __name__ == "__main__":
    main()
