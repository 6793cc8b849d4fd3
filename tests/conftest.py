"""The strictest settings that JAX has, for every test; and the fixtures that all tests share."""

import os

# Before JAX is imported. An accelerator is used only when the caller asks for it.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("MPLBACKEND", "Agg")

import atexit
import gc
import random
import shutil
import tempfile
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import chex
import hypothesis
import jax
import numpy as np
import pytest
from jaxtyping import Array, Key

gc.disable()  # until everything is imported

SEED = 20_240_229
# What cannot live with them, such as optax, runs inside `with settings.jax_defaults():`.
STRICT = {
    "jax_enable_x64": False,
    "jax_numpy_dtype_promotion": "strict",
    "jax_numpy_rank_promotion": "raise",
}
PROGRAMS_KEPT = 1500  # at the same time, in one process


def _apply_strict_settings() -> None:
    for name, value in STRICT.items():
        jax.config.update(name, value)


_apply_strict_settings()
# Eight devices, so that placement and sharding can be tested on a machine with one processor.
jax.config.update("jax_num_cpu_devices", 8)
# The same examples at every run; no limits on time, because the first example of a test compiles;
# and the fixtures of a test hold for all its examples (x64 does).
hypothesis.settings.register_profile(
    "modulax",
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[
        hypothesis.HealthCheck.too_slow,
        hypothesis.HealthCheck.function_scoped_fixture,
    ],
)
hypothesis.settings.load_profile("modulax")


def _share_compiled_programs() -> None:
    """Compile each program once: many tests write the same program again.

    A worker keeps its last programs in memory. MODULAX_TEST_CACHE=<folder>, which nox sets, keeps the programs of all
    workers for the next run as well. The metadata belong to the key, since two programs may differ in nothing but their
    named scopes; the lines of Python that wrote them don't: without them there are three times as many hits, and
    lowering is faster.
    """
    folder = os.environ.get("MODULAX_TEST_CACHE")
    jax.config.update("jax_traceback_in_locations_limit", 0)
    jax.config.update("jax_compilation_cache_dir", folder or _empty_folder())
    jax.config.update("jax_compilation_cache_include_metadata_in_key", True)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    _keep_compiled_programs_in_memory(also_in_files=bool(folder))


def _empty_folder() -> str:
    folder = tempfile.mkdtemp(prefix="modulax-tests-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


_kept: dict[str, tuple[Any, Any]] = {}


def _keep_compiled_programs_in_memory(also_in_files: bool) -> None:
    """Look for a program in memory before JAX reads its file, and write files only where they are wanted.

    Writing and reading files took a twentieth of the time of all tests. The functions are private to JAX: where they
    are called otherwise, there are files in the folder.
    """
    try:
        from jax._src import compilation_cache

        read, write = compilation_cache.get_executable_and_time, compilation_cache.put_executable_and_time
    except (ImportError, AttributeError):
        return

    def get(cache_key: str, options: Any, backend: Any, devices: Any, callbacks: Sequence[Any] = ()) -> tuple[Any, Any]:
        if callbacks:  # which are not part of the key, since JAX 0.11
            return None, None
        if cache_key not in _kept and also_in_files:
            found = read(cache_key, options, backend, devices)
            if found[0] is None:
                return found
            _kept[cache_key] = found
        return _kept.get(cache_key, (None, None))

    def put(cache_key: str, module_name: str, executable: Any, backend: Any, compile_time: int) -> None:
        _kept[cache_key] = executable, compile_time
        if also_in_files:
            write(cache_key, module_name, executable, backend, compile_time)

    compilation_cache.get_executable_and_time = get
    compilation_cache.put_executable_and_time = put


_share_compiled_programs()


def _share_mlir_contexts() -> None:
    """Lower a hundred programs in one MLIR context; JAX makes one for each, which takes half the time of lowering.

    Measured on 276 tests: a fifth less time. The function is private to JAX: where it is called otherwise, the tests
    only take longer.
    """
    try:
        from jax._src.interpreters import mlir

        make = mlir.make_ir_context
    except (ImportError, AttributeError):
        return
    local = threading.local()  # of each thread, since checkpoints are written in the background

    def shared() -> Any:
        uses, context = getattr(local, "current", (0, None))
        context = make() if uses % 100 == 0 else context
        local.current = (uses + 1, context)
        return context

    mlir.make_ir_context = shared


_share_mlir_contexts()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Exclude everything imported and collected so far from garbage collection, and collect less often.

    Tracing makes many objects that stay alive, and little garbage. With Python's default thresholds, collection took a
    twelfth of the time of all tests.
    """
    del session
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)
    gc.enable()


@pytest.fixture(autouse=True)
def _fixed_seeds_and_strict_settings() -> Iterator[None]:
    """Every test starts from the same seeds, and none may change the settings of the next one."""
    random.seed(SEED)
    np.random.seed(SEED)
    chex.clear_trace_counter()  # which counts by a function's source, not by the function
    yield
    left_behind = {name: getattr(jax.config, name) for name in STRICT}
    _apply_strict_settings()
    assert left_behind == STRICT, "the test changed JAX's global settings; use a context manager"


_compiled: list[str] = []


def _count_compiled(event: str, duration_secs: float, **metadata: str | int) -> None:
    if event == "/jax/core/compile/backend_compile_duration":
        _compiled.append(event)


jax.monitoring.register_event_duration_secs_listener(_count_compiled)


@pytest.fixture(autouse=True)
def _bounded_memory() -> Iterator[None]:
    """Drop the programs of earlier tests now and then: thousands of them exhaust memory maps."""
    yield
    if len(_compiled) >= PROGRAMS_KEPT:
        jax.clear_caches()
        _kept.clear()
        _compiled.clear()


@pytest.fixture
def key() -> Key[Array, ""]:
    return jax.random.key(SEED)


@pytest.fixture
def x64() -> Iterator[None]:
    """Double precision for the whole test: `@pytest.mark.usefixtures("x64")`."""
    with jax.enable_x64(True):
        yield
