"""Time optimizer steps on the accelerator of this machine, interleaved with optax, and write `DEVICES.md`.

    JAX_PLATFORMS=cuda python benchmarks/device_steps.py

Needs modulax and optax beside a JAX for the accelerator. `--quick` times two transforms on a small matrix and writes
nothing. `--only WORD...` times the rows whose name contains one of the words. After `--limit` seconds, the rows that
are left are skipped.
"""

import argparse
import time
import traceback
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
from accelerator_rows import CONTAINERS, OF_MATRICES, OPTIMIZERS, Row, gpt2, total_size
from measure import carried, interleaved, seconds, step_of, table

import modulax as mx

FILE = Path(__file__).parent / "DEVICES.md"
LARGE = {"w": (8192, 8192)}
MANY = {f"{kind}{i}": shape for kind, shape in (("matrix", (64, 64)), ("vector", (64,))) for i in range(75)}
SMALL = {"w": (256, 256)}
MUON = Row("Muon, products in bfloat16", mx.Muon(2e-2, adam_learning_rate=1e-3, dtype=jnp.bfloat16))
STEPS = 20  # in a row, so that the time of a call from Python is hidden where the device takes longer
ROUNDS = 9


def drawn(tree: Any, dtype: Any = jnp.float32) -> Any:
    """Normally distributed arrays in the shapes of a tree."""
    shapes, treedef = jax.tree.flatten(tree, is_leaf=lambda x: isinstance(x, tuple))
    keys = jax.random.split(jax.random.key(0), len(shapes))
    return treedef.unflatten(jax.random.normal(k, s, dtype) for k, s in zip(keys, shapes, strict=True))


def compiled(step: Any, optimizer: Any, tree: Any, dtype: Any = jnp.float32) -> tuple[Callable[[], Any], int, float]:
    """A function that makes a donated step, the temporary bytes of one, and the seconds to trace and compile it."""
    params, grads = drawn(tree, dtype), drawn(tree, dtype)
    state = jax.jit(optimizer.init)(params)
    start = time.perf_counter()
    program = jax.jit(step, donate_argnums=(0, 1)).lower(params, state, grads).compile()
    took = time.perf_counter() - start
    memory = program.memory_analysis()
    return carried(program, (params, state), grads), 0 if memory is None else memory.temp_size_in_bytes, took


def _compiled(row: Row, optimizer: Any, tree: Any) -> tuple[Callable[[], Any], int]:
    """A function that makes `STEPS` steps, and the temporary bytes of one."""
    extra = dict(row.extra)

    def our_step(params: Any, state: Any, grads: Any) -> Any:
        return optimizer.step(grads, state, params, **extra)

    is_ours = isinstance(optimizer, mx.AbstractTransform)
    step = our_step if is_ours else step_of(optimizer, optax.apply_updates, **extra)
    run, temp, _ = compiled(step, optimizer, tree, row.dtype)
    return lambda: [run() for _ in range(STEPS)][-1], temp


def _copy(tree: Any) -> float:
    """Bytes per second, read and written, of a kernel that adds one: what the memory of the device can do."""
    x = drawn(tree, jnp.float32)
    added = jax.jit(lambda x: jax.tree.map(lambda a: a + 1, x), donate_argnums=0)
    run = carried(lambda x: (added(x),), [x])
    (took,), _ = interleaved([lambda: [run() for _ in range(STEPS)][-1]], ROUNDS)
    return STEPS * 8 * total_size(x) / took


def _line(row: Row, tree: Any) -> list[str]:
    """A row of a table: the time of a step, beside that of optax."""
    params = jax.eval_shape(lambda: drawn(tree, row.dtype))
    ours, temp = _compiled(row, row.transform, tree)
    runs = [ours]
    if row.optax is not None:
        runs.append(_compiled(row, row.optax, tree)[0])
    times, ratios = interleaved(runs, ROUNDS)
    took = times[0] / STEPS
    size = total_size(params)
    speed = row.ideal(params) * size / took / 1e12
    of_optax = [seconds(times[1] / STEPS), f"{1 / ratios[1]:.2f}"] if len(runs) == 2 else ["", ""]
    return [row.name, f"{row.ideal(params):.1f}", f"{temp / size:.1f}", seconds(took), f"{speed:.2f}", *of_optax]


def each(
    rows: Iterable[Any], line: Callable[[Any], list[str]], words: list[str], end: float, columns: int
) -> list[list[str]]:
    """The lines of the rows whose name contains one of the words, as far as the time goes."""
    lines = []
    for row in rows:
        if (words and not any(word.lower() in row.name.lower() for word in words)) or time.monotonic() > end:
            continue
        try:
            lines.append(line(row))
        except Exception:
            traceback.print_exc()
            lines.append([row.name, *["failed"] * (columns - 1)])
        print(*lines[-1], sep=" | ", flush=True)
    return lines


def _table(rows: Iterable[Row], tree: Any, words: list[str], end: float) -> str:
    head = ["transform", "ideal bytes", "temp", "step", "TB/s", "optax", "ratio"]
    return table(head, each(rows, lambda row: _line(row, tree), words, end, len(head)))


INTRODUCTION = """\
Times of one donated step, measured on {device}, interleaved with optax in one process: the median of {rounds} rounds of
{steps} steps. TB/s are the bytes that the step cannot do without, over its time; adding one to the same array reaches
{copy:.2f}. The ratio is the time of a step over optax's. Temporary bytes are per parameter.

JAX {jax}, optax {optax}.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD")
    parser.add_argument("--limit", type=float, default=float("inf"))
    options = parser.parse_args()
    warnings.simplefilter("ignore", mx.LikelyMistake)
    end = time.monotonic() + options.limit
    if options.quick:
        print(_table([OPTIMIZERS[6], CONTAINERS[-1]], SMALL, [], end))
        return
    parts = [
        ("GPT-2 with 148 arrays", (*OF_MATRICES, MUON), gpt2(is_stacked=False)),
        ("GPT-2 with stacked layers", (*OF_MATRICES, MUON), gpt2()),
        ("75 matrices of 64 × 64, 75 vectors of 64", (*OF_MATRICES, MUON), MANY),
        ("One matrix, 8192 × 8192", (*CONTAINERS, *OPTIMIZERS), LARGE),
    ]
    head = INTRODUCTION.format(
        device=jax.devices()[0].device_kind,
        rounds=ROUNDS,
        steps=STEPS,
        copy=_copy(LARGE) / 1e12,
        jax=jax.__version__,
        optax=optax.__version__,
    )
    print(head)
    texts = [f"## {title}\n\n{_table(rows, tree, options.only, end)}" for title, rows, tree in parts]
    text = "\n\n".join([f"# On a device\n\n{head}", *texts])
    if options.only:
        print(text)
    else:
        FILE.write_text(f"{text}\n")


if __name__ == "__main__":
    main()
