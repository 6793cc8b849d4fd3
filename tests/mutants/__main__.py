"""Plant every fault, one after the other, and see whether the tests notice.

`python -m tests.mutants` runs all of them; `--only PATTERN ...` those whose name or kind matches, `--jobs 2` two at a
time.
First the tests that matter run without any fault. Each fault is then planted in a copy of the sources, and its tests
run until one fails. The exit status is 1 if a mutant is alive.
"""

import argparse
import collections
import fnmatch
import queue
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from . import MUTANTS
from ._mutant import Mutant
from ._workshop import Workshop


def in_parallel(workshops: Sequence[Workshop], work: Callable[[Workshop, Any], None], items: Iterable[Any]) -> None:
    """Call `work(workshop, item)` for every item, in as many threads as there are workshops."""
    free: queue.SimpleQueue[Workshop] = queue.SimpleQueue()
    for workshop in workshops:
        free.put(workshop)

    def run(item: Any) -> None:
        workshop = free.get()
        try:
            work(workshop, item)
        finally:
            free.put(workshop)

    with ThreadPoolExecutor(len(workshops)) as pool:
        for _ in pool.map(run, items):  # which raises what was raised in a thread
            pass


def control(workshops: Sequence[Workshop], mutants: Sequence[Mutant]) -> list[str]:
    """The selections that fail without any fault; each must pass, so that a failure is the fault's."""
    broken: list[str] = []

    def check(workshop: Workshop, selection: str) -> None:
        status, output = workshop.run(selection)
        if status != 0:
            broken.append(selection)
            print(f"fails without a fault, with status {status}: pytest {selection}\n{output[-2000:]}", flush=True)

    in_parallel(workshops, check, dict.fromkeys(selection for m in mutants for selection in m.tests))
    return broken


def summary(mutants: Sequence[Mutant], alive: Sequence[Mutant]) -> str:
    """How many of each kind are alive."""
    lines = [f"{'kind':24}alive / planted"]
    living = collections.Counter(m.kind for m in alive)
    for kind, planted in sorted(collections.Counter(m.kind for m in mutants).items()):
        lines.append(f"{kind:24}{living[kind]:5} / {planted}")
    return "\n".join([*lines, f"{'all':24}{len(alive):5} / {len(mutants)}"])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description="Plant faults, and run the tests.")
    parser.add_argument("--only", nargs="+", default=["*"], metavar="PATTERN", help="those whose name or kind matches")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="how many at a time")
    parser.add_argument("--no-control", action="store_true", help="trust that the tests pass without a fault")
    options = parser.parse_args()
    mutants = [m for m in MUTANTS if any(fnmatch.fnmatchcase(x, p) for x in (m.name, m.kind) for p in options.only)]
    if not mutants:
        parser.error(f"no mutant is called {' or '.join(options.only)}")
    alive: list[Mutant] = []
    start = time.monotonic()

    def plant(workshop: Workshop, mutant: Mutant) -> None:
        begin = time.monotonic()
        is_killed, output = workshop.is_killed(mutant)
        if not is_killed:
            alive.append(mutant)
        fate = "killed" if is_killed else "ALIVE "
        print(f"{fate} {time.monotonic() - begin:5.1f} s  {mutant.kind}: {mutant}  {output}".rstrip(), flush=True)

    with tempfile.TemporaryDirectory(prefix="modulax-mutants-") as folder:
        workshops = [Workshop(Path(folder) / str(i)) for i in range(max(options.jobs, 1))]
        if not options.no_control:
            if control(workshops, mutants):
                return 1
            print(f"the tests pass without a fault, after {time.monotonic() - start:.0f} s", flush=True)
        in_parallel(workshops, plant, mutants)
        for workshop in workshops:
            workshop.close()
    print(f"\n{summary(mutants, alive)}\nin {time.monotonic() - start:.0f} s")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
