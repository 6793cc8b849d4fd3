"""Sweeps on the workers of Dask, of which one is killed."""

# pyright: reportMissingImports=false

import os
import signal
import sys
from pathlib import Path
from typing import Any

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np
from distributed import Client, LocalCluster

import modulax as mx
from modulax import sweeps

from .. import sweep_probes

SWEEP = sweeps.grid(mx.SGD(0.1, momentum=0.5), learning_rate=np.geomspace(0.01, 0.5, 6).astype(np.float32))


def advance(optimizer: Any, carry: Any) -> Any:
    carry, losses = sweep_probes.four_steps(optimizer, carry)
    return carry, {"loss": losses, "last": jnp.sum(carry[0] ** 2)}


def run(**options: Any) -> sweeps.Results:
    given = {"seeds": 2, "segments": 4, "chunk": 2, "progress": False}
    return sweeps.run(SWEEP, sweeps.Trainable(sweep_probes.start, advance), **given | options)


def test_three_workers_of_which_one_is_killed(tmp_path: Path):
    """What it had is trained by another one. The code of the tests goes to all of them by value."""
    for module in (sweep_probes, sys.modules[__name__]):
        cloudpickle.register_pickle_by_value(module)
    alone, killed = run(devices=1, folder=tmp_path / "alone"), list[int]()

    with LocalCluster(n_workers=3, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client:
        client.wait_for_workers(3)

        def kill(rows: list[sweeps.Row]) -> None:
            if not killed and rows[0].segment == 1:
                killed.extend(client.run(os.getpid, workers=[next(iter(client.processing()))]).values())
                os.kill(killed[0], signal.SIGKILL)

        together = run(chunk=None, executor=client.get_executor(), folder=tmp_path / "together", on_segment=kill)
        assert killed[0] not in client.run(os.getpid).values()
    assert together.chunk == (2,)  # a third of the members
    for name in ("loss", "last"):
        assert together[name].tobytes() == alone[name].tobytes()
    carries = (jax.tree.leaves(results.load(5, 1)) for results in (together, alone))
    for x, y in zip(*carries, strict=True):
        np.testing.assert_array_equal(x, y)
