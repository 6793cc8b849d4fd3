"""Instructions of an eager call, counted by valgrind: the cost of Python and of JAX on any machine."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from measure import table

CALLS = {
    "`update`": (
        "update = jax.jit(theirs.update); call = lambda: update(grads, their_state, params)",
        "call = lambda: ours.update(grads, state, params)",
    ),
    "`step`": (
        "step = jax.jit(step_of(theirs, optax.apply_updates)); call = lambda: step(params, their_state, grads)",
        "call = lambda: ours.step(grads, state, params)",
    ),
}
PARAMS = {
    "small": 'dict((f"layer{i}", jnp.full((1 + i % 3,), 0.1, jnp.float32)) for i in range(10))',
    "10": "tree(10)",
    "100": "tree(100)",
}
PROGRAM = """
import gc, os, subprocess, jax, jax.numpy as jnp, optax, modulax
from measure import step_of, tree
params = {params}
grads = jax.tree.map(jnp.copy, params)
ours, theirs = modulax.AdamW(1e-3), optax.adamw(1e-3)
state, their_state = ours.init(params), theirs.init(params)
{call}
def collect(switch):
    if {is_counted}:
        subprocess.run(["callgrind_control", "-i", switch, str(os.getpid())], check=True, stdout=subprocess.DEVNULL)
for _ in range(5):
    jax.block_until_ready(call())
gc.disable()
collect("on")
for _ in range({count}):
    jax.block_until_ready(call())
collect("off")
"""
# valgrind knows no AVX-512; threads that wait for work would be counted too
FLAGS = "--xla_cpu_max_isa=AVX2 --xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"


def instructions(quick: bool) -> str:
    """Instructions of one eager call of AdamW, with those of its program, against the jitted function of optax.

    They are counted by valgrind, which runs one thread at a time, from the sixth call on. "Small" are 10 arrays of up
    to three numbers: what a call costs apart from its arithmetic. Repeated counts differ by less than a percent.
    """
    if quick:  # valgrind takes half a minute for each
        for calls in CALLS.values():
            for call in calls:
                _run([], PROGRAM.format(params="tree(1)", call=call, count=1, is_counted=False))
        return "The programs run."
    if shutil.which("valgrind") is None:
        raise SystemExit("The part `instructions` needs valgrind: install it, or leave the part out.")
    rows = []
    for leaves, params in PARAMS.items():
        for name, calls in CALLS.items():
            theirs, ours = (_per_call(params, call) for call in calls)
            rows.append([leaves, name, f"{theirs:,.0f}", f"{ours:,.0f}", f"{ours / theirs:.2f}"])
    return table(["leaves", "", "optax", "modulax", "ratio"], rows, labels=2)


def _per_call(params: str, call: str) -> float:
    count = 200
    program = PROGRAM.format(params=params, call=call, count="{count}", is_counted=True)
    none, all_calls = (_counted(program.replace("{count}", str(n))) for n in (0, count))
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
