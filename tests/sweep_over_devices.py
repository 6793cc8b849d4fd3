"""A sweep over the devices of a `jax.distributed` job of two processes: run by tests/test_sweeps_devices.py.

python -m tests.sweep_over_devices FOLDER PROCESS PORT      # the metrics of the process are in PROCESS.npz
"""

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


def advance(optimizer: Any, carry: Any, scale: Any = 1.0) -> Any:
    weights, state, key, half = carry
    key, used = jax.random.split(key)
    noise = jax.random.normal(used, weights.shape)
    updates, state = optimizer.update(2 * scale * weights + 0.1 * noise, state, weights)
    weights = weights + updates
    half = half + weights[:3].astype(jnp.bfloat16)
    return (weights, state, key, half), {"loss": jnp.sum(weights**2), "half": half}


def run(**options: Any) -> sweeps.Results:
    members = sweeps.grid(mx.SGD(1e-2, momentum=0.9), learning_rate=np.geomspace(1e-3, 0.2, MEMBERS))
    given = {"segments": SEGMENTS, "seeds": SEEDS, "progress": False} | options
    return sweeps.run(members, sweeps.Trainable(start, advance), **given)


def main() -> None:
    folder, process, port = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    jax.distributed.initialize(f"localhost:{port}", num_processes=2, process_id=process)
    assert jax.process_count() == 2
    assert len(jax.devices()) == 8
    # Processes with other budgets choose one chunk: that of the least.
    few = run(memory=(1e9, 1.5e3)[process])
    # The first process calls the hooks, and both know whom they stop.
    seen: list[sweeps.Row] = []

    def stop_first(rows: list[sweeps.Row]) -> Any:
        seen.extend(rows)
        return [rows[0].member] if rows[0].segment == 1 else []

    stopped = run(chunk=8, on_segment=stop_first)
    assert stopped.segments.tolist() == [2, *[3] * 7, 2, 3]
    assert len(seen) == (0 if process else (MEMBERS * SEGMENTS - 2) * SEEDS)
    data: Any = lambda segment: np.float32(1)  # which every process reads  # noqa: E731
    run(segments=2, chunk=8, folder=folder / "sweep", data=data)
    resumed = run(folder=folder / "sweep", data=data)
    assert resumed.chunk == few.chunk == (8,), (resumed.chunk, few.chunk)
    for a, b in zip(jax.tree.leaves(few.metrics), jax.tree.leaves(resumed.metrics), strict=True):
        np.testing.assert_allclose(a.astype(np.float32), b.astype(np.float32), rtol=1e-6)
    np.savez(folder / f"{process}.npz", loss=resumed.metrics["loss"], half=resumed.metrics["half"].astype(np.float32))


if __name__ == "__main__":
    main()
