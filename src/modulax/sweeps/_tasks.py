"""A sweep on the workers of an executor: batches become tasks, and what they return is taken as it comes.

A task is a batch with its next segment, or with all of them if there is neither a folder nor a hook. It has everything
by value: the training, the members and their carries. So a worker needs nothing but the packages, and any worker goes
on with what another one began. It traces and compiles a program at its first task, and keeps it. Only the process that
calls `run` writes the folder.
"""

import contextlib
import functools
import itertools
import math
import os
import pickle
import platform
import socket
import threading
import time
import traceback
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from .._plugin.messages import imported
from ._data import Data, as_data
from ._folder import Folder
from ._memory import budget_of, fitting, size_text
from ._population import Lane, Structure
from ._program import fetched
from ._runs import Batch
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
ATTEMPTS = 3  # to train a task, if its worker is lost
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


_worker = functools.lru_cache(maxsize=1)(_Worker)  # of the last sweep, also if another one trains the same


def workers_of(executor: Any, devices: Any, memory: float | int | None) -> tuple["Workers | None", Any]:
    """Return the workers of an executor, if there is one, and the devices that this process then needs."""
    return (None, devices) if executor is None else (Workers(executor, devices, memory), 1)


class Workers:
    """The workers of an executor.

    Args:
        executor: an object with a method `submit(function, *arguments)`, which returns a future.
        devices: how many devices each worker uses; None for all that it has.
        memory: as in `run`, of each device of a worker.
    """

    def __init__(self, executor: Any, devices: Any, memory: float | int | None):
        if not callable(getattr(executor, "submit", None)):
            raise TypeError(
                f"`executor={executor!r}` has no method `submit`. Give an executor, such as Dask's "
                f"`client.get_executor()` or a `concurrent.futures.ProcessPoolExecutor`."
            )
        if devices is not None and (isinstance(devices, bool) or not isinstance(devices, int)):
            raise TypeError(
                f"`devices={devices!r}` are devices of this process, and an executor trains in others. Write how many "
                f"each worker uses, such as `devices=1`, or None for all that it has."
            )
        context = getattr(executor, "_mp_context", None)
        if context is not None and context.get_start_method() == "fork":
            raise ValueError(
                "A process that is forked from one that uses JAX may hang. Write `ProcessPoolExecutor(4, "
                'mp_context=multiprocessing.get_context("spawn"))`.'
            )
        if jax.process_count() > 1:
            raise ValueError(
                "`executor=` is for one process, which sends tasks to others. In a job of `jax.distributed`, leave it "
                "out: all processes of the job train the sweep together."
            )
        self._dumps: Callable[[Any], bytes] = imported("cloudpickle", "executor=", "sweeps").dumps
        self._executor = executor
        self._devices, self._memory = devices, memory
        self._broken: Exception | None = None

    def _count(self) -> int | None:
        """The number of workers, or None if the executor doesn't tell it."""
        for name in ("_max_workers", "num_workers"):  # of Python and loky; of mpi4py
            if isinstance(count := getattr(self._executor, name, None), int):
                return count
        client = getattr(self._executor, "_client", None)  # of Dask
        return None if client is None else len(client.nthreads()) or None

    def chunk(self, members: int) -> int:
        """How many members a task has if the user doesn't say it: an equal part for each worker."""
        if (count := self._count()) is None:
            raise ValueError(
                f"`{type(self._executor).__name__}` doesn't tell how many workers it has. Write how many members a "
                f"task trains, such as `chunk={math.ceil(members / 4)}`."
            )
        return math.ceil(members / count)

    def prepare(
        self, structures: Sequence[Structure], digests: Sequence[str], data: Data | None, folder: Path | None
    ) -> None:
        """Pickle what the tasks have in common.

        Args:
            structures: the structures of the sweep.
            digests: the digests of their programs.
            data: the data of the segments, which each worker reads itself, or None.
            folder: the folder of the sweep, or None.
        """
        if data is not None and isinstance(data.source, Iterable):
            raise ValueError(
                f"An executor has many workers, each of which would need the `data` of any segment, and a "
                f"{type(data.source).__name__} gives them in one process, in their order. Give a function, "
                f"`data(segment)`."
            )
        self._structures = list(structures)
        cache = jax.config.jax_compilation_cache_dir or (folder and str(folder / "programs"))
        self._hint = "Run it again with a `folder=`, which keeps what is finished."
        if folder is not None:
            self._hint = f"What is finished is kept: run it again to go on from `folder={str(folder)!r}`."
        programs = [
            (x.training, x.group._replace(places=x.group.places[:1], members=x.group.members[:1]), x.key, digest)
            for x, digest in zip(structures, digests, strict=True)
        ]
        try:
            pickled = self._dumps((programs, None if data is None else data.source))
        except Exception as error:  # of many kinds: whatever the objects raise to which the training refers
            raise TypeError(
                f"`executor=` sends the training to its workers, and this one refers to something that can't be "
                f"pickled ({type(error).__name__}: {error}). Open files, and make iterators, locks and clients, in a "
                f"function that the training calls; with `functools.cache`, each worker calls it once."
            ) from error
        configuration = tuple((name, getattr(jax.config, name)) for name in CONFIGURATION)
        self._common = Common(pickled, self._devices, self._memory, configuration, cache or None, versions())

    def trained(
        self,
        batches: Sequence[Batch],
        begin: Callable[[Batch], str],
        goes_on: Callable[[Batch], bool],
        last: int | None,
        keeps: bool,
    ) -> Generator[tuple[Batch, list[Any]], None, None]:
        """Train batches, and yield the metrics of each segment when they are there.

        Each worker has one task more than it trains, so that it doesn't wait; the carries of the other batches need not
        be in memory.

        Args:
            batches: the batches.
            begin: makes the lane of a batch, with its carry, and returns what the batch is called.
            goes_on: whether another segment is to be trained; asked when what was yielded is written.
            last: the segment after the last one, if a task trains all of them, else None.
            keeps: whether the carries after the last segment come back.
        """
        self._returns_carry = keeps or last is None
        # The first tasks are of different programs, so that each is compiled by one worker and found by the others.
        turns = defaultdict[str, Iterator[int]](itertools.count)
        waiting = deque(sorted(batches, key=lambda batch: next(turns[batch.program])))
        self._running: dict[Any, tuple[Batch, str, bytes, int]] = {}
        try:
            while waiting or self._running:
                while waiting and self._broken is None and len(self._running) < 2 * (self._count() or len(batches)):
                    batch = waiting.popleft()
                    self._submit(batch, begin(batch), self._task(batch, last))
                for future in self._finished():
                    batch, name, task, attempt = self._running.pop(future)
                    out = self._result(future, batch, name, task, attempt)
                    if out is not None and batch.lane is not None:
                        batch.lane.carry = out.carry
                        for metrics in out.metrics:
                            yield batch, metrics
                        if goes_on(batch):
                            self._submit(batch, name, self._task(batch, last))
                if self._broken is not None:
                    raise RuntimeError(
                        f"The executor takes no more tasks ({type(self._broken).__name__}: {self._broken}). Probably a "
                        f"worker died, for example for lack of memory. Start a new executor. {self._hint}"
                    ) from self._broken
        finally:
            for future in self._running:
                future.cancel()

    def _task(self, batch: Batch, last: int | None) -> bytes:
        """The next task of a batch, whose carry is then in the task alone."""
        lane = batch.lane
        assert lane is not None
        carry = None if lane.carry is None else [fetched(x) for x in lane.carry]
        segments = range(batch.done, batch.done + 1 if last is None else last)
        number, width, lane.carry = self._structures.index(lane.structure), lane.size.width, None
        task = Task(number, lane.members, lane.keys, width, carry, segments, self._returns_carry)
        return self._dumps(task)

    def _submit(self, batch: Batch, name: str, task: bytes, attempt: int = 1) -> None:
        try:
            future = self._executor.submit(train, self._common, task, attempt)
        except Exception as error:  # of a broken or a closed executor
            self._broken = error
        else:
            self._running[future] = batch, name, task, attempt

    def _finished(self) -> list[Any]:
        """The futures that have results, when there are some. Those of submitit can only be asked."""
        pause = 1e-3
        while not (found := [future for future in self._running if future.done()]) and self._running:
            time.sleep(pause)
            pause = min(1.5 * pause, 0.1)
        return found

    def _result(self, future: Any, batch: Batch, name: str, task: bytes, attempt: int) -> Trained | None:
        """What a task has returned; None if its worker is lost, and it is submitted again."""
        try:
            out = future.result()
        except BrokenExecutor as error:
            self._broken = error
            return None
        except Exception as error:
            if attempt < ATTEMPTS:
                self._submit(batch, name, task, attempt + 1)
                return None
            error.add_note(f"The executor failed to train {name}, in each of {ATTEMPTS} attempts. {self._hint}")
            raise
        if out.error is not None:
            error = pickle.loads(out.error)
            error.add_note(f"This happened while {name} were trained. {self._hint}")
            raise error
        return out
