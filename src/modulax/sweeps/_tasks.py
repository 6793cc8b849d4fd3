"""What a worker of an executor does with a task: members that it trains through some segments.

A task has everything by value: the training, the members and their carries. So a worker needs nothing but the packages,
and any worker goes on with what another one began. It traces and compiles a program at its first task, and keeps it.
"""

import contextlib
import functools
import os
import pickle
import platform
import socket
import threading
import traceback
from typing import Any, NamedTuple

import jax
import numpy as np

from ._data import as_data
from ._folder import Folder
from ._memory import budget_of, fitting, size_text
from ._population import Lane, Structure
from ._program import fetched
from ._sweep import Members
from ._training import Keys, Size, placement

CONFIGURATION = (  # what a traced program depends on, besides the code
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_numpy_dtype_promotion",
    "jax_numpy_rank_promotion",
    "jax_threefry_partitionable",
)
_one_at_a_time = threading.Lock()  # a worker of Dask has many threads, which share its devices


class Common(NamedTuple):
    """What the tasks of a sweep have in common.

    Attributes:
        programs: what a worker makes each `Structure` of, with the digest that this must have, and the source of the
            data; pickled, since JAX is configured before they are read.
        devices: how many devices a worker uses; None for all that it has.
        memory: as in `run`.
        configuration: how JAX is configured.
        cache: the folder of compiled programs of a worker that has none, or None.
        versions: those of the process that sends the tasks.
    """

    programs: bytes
    devices: int | None
    memory: float | int | None
    configuration: tuple[tuple[str, Any], ...]
    cache: str | None
    versions: str


class Task(NamedTuple):
    """Members to train through some segments. Without a carry, they begin."""

    program: int
    members: Members
    keys: Keys
    width: int
    carry: list[np.ndarray] | None
    segments: range
    returns_carry: bool


class Trained(NamedTuple):
    """What a task returns.

    Attributes:
        metrics: the leaves of the metrics of each segment.
        carry: the leaves of the carry after the last segment, if it was asked for.
        error: the error of the training, pickled, or None. An error that a future raises is one of the executor.
    """

    metrics: list[list[np.ndarray]]
    carry: list[np.ndarray]
    error: bytes | None = None


def train(common: Common, task: bytes, attempt: int) -> Trained:
    """Train a task. The number of the attempt makes each one another call, of which Dask keeps the results."""
    try:
        with _one_at_a_time:
            configure(common)
            return _worker(common._replace(cache=None)).train(pickle.loads(task))
    except Exception as error:
        where = "".join(traceback.format_tb(error.__traceback__))
        error.add_note(f"In process {os.getpid()} on {socket.gethostname()}, a worker of `executor=`:\n{where}")
        return Trained([], [], _pickled(error))


def configure(common: Common) -> None:
    """Configure JAX as it is in the process that sends the tasks."""
    for name, value in common.configuration:
        if getattr(jax.config, name) != value:
            jax.config.update(name, value)
    if common.cache is not None and not jax.config.jax_compilation_cache_dir:
        jax.config.update("jax_compilation_cache_dir", common.cache)


def versions() -> str:
    """The versions on which a traced program depends."""
    return f"JAX {jax.__version__} and Python {platform.python_version()}"


def _pickled(error: Exception) -> bytes:
    """An error as bytes; if it can't be pickled, its text."""
    try:
        content = pickle.dumps(error)
        pickle.loads(content)
    except Exception:
        text = RuntimeError(f"{type(error).__name__}: {error}")
        text.__notes__ = error.__notes__
        content = pickle.dumps(text)
    return content


@functools.lru_cache(maxsize=1)
def _worker(common: Common) -> "_Worker":
    """The programs of the last sweep, also if another one trains the same."""
    return _Worker(common)


class _Worker:
    """The programs of a sweep, in a worker."""

    def __init__(self, common: Common):
        try:
            self.programs, source = pickle.loads(common.programs)
        except ImportError as error:
            error.add_note(
                "A function that is imported must be there on the worker too. Install its package there, or send the "
                "code along: `cloudpickle.register_pickle_by_value(module)`."
            )
            raise
        self.common, self.where = common, placement(common.devices)
        self.data = as_data(source, self.where)
        self.structures: dict[int, Structure] = {}
        self.fitting: set[tuple[int, Size]] = set()

    def structure(self, number: int) -> Structure:
        """The structure of a program, traced when it is first asked for."""
        if number not in self.structures:
            training, group, key, digest = self.programs[number]
            traced = Structure(training, group, key, self.where, data=self.data, again=False)
            if traced.digest() != digest:
                raise ValueError(
                    f"The training of {group.label} is another program in a worker, which has {versions()}, than in "
                    f"the process that calls `run`, with {self.common.versions}. Give both the same packages, code and "
                    f"environment variables. What the training reads must not depend on the machine."
                )
            self.structures[number] = traced
        return self.structures[number]

    def train(self, task: Task) -> Trained:
        """Train a task."""
        structure = self.structure(task.program)
        lane = Lane(structure, task.members, task.keys, self.where.rounded(task.width))
        if (task.program, lane.size) not in self.fitting:
            budget = budget_of(list(self.where.mesh.devices.flat), self.common.memory)
            needed = lambda n: structure.needed(lane.size._replace(width=n))  # noqa: E731
            if (most := fitting(needed, task.width, self.where.rounded, None, budget)) < lane.size.width:
                raise MemoryError(
                    f"Training {task.width} members at a time needs {size_text(needed(lane.size.width))} per device in "
                    f"a worker, and {size_text(budget)} are free. Try `chunk={most}`."
                )
            self.fitting.add((task.program, lane.size))
        if task.carry is not None:
            rows = lane.padded(range(task.width))
            lane.carry = [x[rows] for x in task.carry]
        with contextlib.nullcontext() if self.data is None else self.data.reading(Folder(None), task.segments.stop):
            metrics = [lane.advance(segment) for segment in task.segments]
        carry = [fetched(x)[: task.width] for x in lane.current()] if task.returns_carry else []
        return Trained(metrics, carry)
