"""Instructions of eager calls and of compilation, counted by valgrind: the same on a quiet and on a busy machine."""

import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from measure import table

PROGRAM = """
import gc, os, subprocess, jax, jax.numpy as jnp, optax, modulax
from measure import step_of, tree
def compile_step(optimizer, apply_updates, leaves):
    params = tree(leaves)
    step = step_of(optimizer, apply_updates)
    return jax.jit(step).lower(params, jax.eval_shape(optimizer.init, params), params).compile
params = {params}
grads = jax.tree.map(jnp.copy, params)
ours, theirs = modulax.AdamW(1e-3), optax.adamw(1e-3)
state, their_state = ours.init(params), theirs.init(params)
{call}
for _ in range({before}):
    jax.block_until_ready(call())
def collect(switch):
    if {is_counted}:
        subprocess.run(["callgrind_control", "-i", switch, str(os.getpid())], check=True, stdout=subprocess.DEVNULL)
gc.disable()
collect("on")
for _ in range({count}):
    jax.block_until_ready(call())
collect("off")
"""
# valgrind knows no AVX-512; threads that wait for work would be counted too
FLAGS = "--xla_cpu_max_isa=AVX2 --xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"


class Pair(NamedTuple):
    """A call of optax, and what is compared with it.

    Args:
        parameters: what the parameters are, in the table.
        name: what is called, in the table.
        params: an expression of the parameters.
        theirs: statements that define `call` with optax.
        ours: the same with modulax.
        calls: how many of them are counted.
        before: how many calls precede them.
    """

    parameters: str
    name: str
    params: str
    theirs: str
    ours: str
    calls: int = 200
    before: int = 5


def _pairs(quick: bool) -> list[Pair]:
    small = 'dict((f"layer{i}", jnp.full((1 + i % 3,), 0.1, jnp.float32)) for i in range(10))'
    trees = {"1": "tree(1)"} if quick else {"10 of up to 3 numbers": small, "10": "tree(10)", "100": "tree(100)"}
    update = "update = jax.jit(theirs.update); call = lambda: update(grads, their_state, params)"
    step = "step = jax.jit(step_of(theirs, optax.apply_updates)); call = lambda: step(params, their_state, grads)"
    calls = {
        "`update`": (update, "call = lambda: ours.update(grads, state, params)"),
        "`step`": (step, "call = lambda: ours.step(grads, state, params)"),
    }
    pairs = [Pair(leaves, name, params, *calls[name]) for leaves, params in trees.items() for name in calls]
    leaves = 3 if quick else 1000

    def compiled(optimizer: str, apply_updates: str) -> str:
        start = f"compile_step({optimizer}, {apply_updates}"
        return f"{start}, 3)(); call = {start}, {leaves})"  # a small program first, for what happens once

    theirs = compiled("theirs", "optax.apply_updates")
    for name, ours in {"compile `AdamW`": "ours", "compile `Stacked`": "modulax.Stacked(ours)"}.items():
        code = compiled(ours, "modulax.apply_updates")
        pairs.append(Pair(str(leaves), name, "tree(1)", theirs, code, calls=1, before=0))
    return pairs


def instructions(quick: bool) -> str:
    """Instructions of one eager call of AdamW with its program, and of compiling update-and-apply, against optax.

    They are counted by valgrind, which runs one thread at a time. optax's functions are jitted. Arrays of up to three
    numbers show what a call costs apart from arithmetic. Repeated counts differ by less than two percent.
    """
    if quick:  # valgrind takes half a minute for a call, and minutes for a large program
        for pair in _pairs(quick):
            for call in (pair.theirs, pair.ours):
                _run([], _program(call, pair.params, 1, pair.before, is_counted=False))
        return "The programs run."
    counted = functools.cache(per_call)
    rows = []
    for pair in _pairs(quick):
        call = pair.params, pair.calls, pair.before
        theirs, ours = counted(pair.theirs, *call), counted(pair.ours, *call)
        rows.append([pair.parameters, pair.name, f"{theirs:,.0f}", f"{ours:,.0f}", f"{ours / theirs:.2f}"])
    return table(["leaves", "", "optax", "modulax", "ratio"], rows, labels=2)


def _program(call: str, params: str, count: int, before: int, is_counted: bool) -> str:
    return PROGRAM.format(params=params, call=call, count=count, before=before, is_counted=is_counted)


def per_call(call: str, params: str, count: int, before: int) -> float:
    """Instructions of a call, defined by statements, after some that aren't counted."""
    if shutil.which("valgrind") is None:
        raise SystemExit("This part needs valgrind: install it, or leave the part out.")
    none, all_calls = (_counted(_program(call, params, n, before, is_counted=True)) for n in (0, count))
    return (all_calls - none) / count


def _counted(program: str) -> int:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        files = [f"--log-file={log}", f"--callgrind-out-file={folder}/out"]
        _run(["valgrind", "--tool=callgrind", "--instr-atstart=no", *files], program)
        found = re.search(r"Collected : (\d+)", log.read_text(encoding="utf-8"))
        assert found, log.read_text(encoding="utf-8")
        return int(found[1])


def _run(tool: list[str], program: str) -> None:
    paths = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"XLA_FLAGS": FLAGS, "JAX_PLATFORMS": "cpu", "PYTHONHASHSEED": "0", "PYTHONPATH": paths}
    subprocess.run([*tool, sys.executable, "-c", program], check=True, env=environment)
