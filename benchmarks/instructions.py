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
PROGRAM = """
import gc, jax, jax.numpy as jnp, optax, modulax
from measure import step_of, tree
params = tree({leaves})
grads = jax.tree.map(jnp.copy, params)
ours, theirs = modulax.AdamW(1e-3), optax.adamw(1e-3)
state, their_state = ours.init(params), theirs.init(params)
{call}
for _ in range(5):
    jax.block_until_ready(call())
gc.disable()
for _ in range({count}):
    jax.block_until_ready(call())
"""
# valgrind knows no AVX-512; threads that wait for work would be counted too
FLAGS = "--xla_cpu_max_isa=AVX2 --xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"


def instructions(quick: bool) -> str:
    """Instructions of one eager call of AdamW, with those of its program, against the jitted function of optax.

    They are counted by valgrind, in one thread, as the difference between two runs with another number of calls.
    """
    if quick:  # valgrind takes a minute for each
        for calls in CALLS.values():
            for call in calls:
                _run([], PROGRAM.format(leaves=1, call=call, count=1))
        return "The programs run."
    if shutil.which("valgrind") is None:
        raise SystemExit("The part `instructions` needs valgrind: install it, or leave the part out.")
    rows = []
    for leaves in (10, 100):
        for name, calls in CALLS.items():
            theirs, ours = (_per_call(PROGRAM.format(leaves=leaves, call=call, count="{count}")) for call in calls)
            rows.append([str(leaves), name, f"{theirs:,.0f}", f"{ours:,.0f}", f"{ours / theirs:.2f}"])
    return table(["leaves", "", "optax", "modulax", "ratio"], rows, labels=2)


def _per_call(program: str) -> float:
    low, high = 20, 120
    first, second = (_counted(program.replace("{count}", str(count))) for count in (low, high))
    return (second - first) / (high - low)


def _counted(program: str) -> int:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        files = [f"--log-file={log}", f"--cachegrind-out-file={folder}/out"]
        _run(["valgrind", "--tool=cachegrind", "--cache-sim=no", *files], program)
        found = re.search(r"I\s+refs:\s+([\d,]+)", log.read_text(encoding="utf-8"))
        assert found, log.read_text(encoding="utf-8")
        return int(found[1].replace(",", ""))


def _run(tool: list[str], program: str) -> None:
    paths = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"XLA_FLAGS": FLAGS, "JAX_PLATFORMS": "cpu", "PYTHONHASHSEED": "0", "PYTHONPATH": paths}
    subprocess.run([*tool, sys.executable, "-c", program], check=True, env=environment)
