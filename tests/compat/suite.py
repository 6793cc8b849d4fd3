"""Run optax's own tests with `modulax.compat`, and compare those that do not pass with `expected.md`.

    python -m tests.compat.suite FOLDER [WORD ...]

The folder holds `run.sh`, which runs the tests that the optax wheel ships with the name `optax` answered by
`modulax.compat`; words select the files whose name contains one of them. A test that fails and is not listed is an
error, and so is one that is listed and passes.
"""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

HERE = Path(__file__).parent
EXPECTED = HERE / "expected.md"
_WORST_FIRST = ("failed", "skipped", "passed")


def listed(text: str) -> set[str]:
    """The tests in a list such as "* `file.py::Class::test_` 0-3, 7", one per number; without numbers, one."""
    found = set[str]()
    for name, numbers in re.findall(r"^\* `(\S+::\S+)`(?: ([\d, -]+))?$", text, re.MULTILINE):
        for part in numbers.split(",") if numbers else ():
            first, _, last = part.strip().partition("-")
            found |= {f"{name}{i}" for i in range(int(first), int(last or first) + 1)}
        if not numbers:
            found.add(name)
    return found


def written(tests: Iterable[str]) -> list[str]:
    """Lines for a list, in which numbered tests share a line."""
    numbers: dict[str, list[int]] = {}
    for test in sorted(tests):
        name, number = re.fullmatch(r"(.*?)(\d*)", test).groups()  # type: ignore[union-attr]
        is_numbered = number and str(int(number)) == number
        numbers.setdefault(name if is_numbered else test, []).extend([int(number)] if is_numbered else [])
    return [f"* `{name}` {_ranges(found)}".rstrip() for name, found in numbers.items()]


def _ranges(numbers: list[int]) -> str:
    ranges: list[list[int]] = []
    for i in sorted(numbers):
        if ranges and ranges[-1][1] == i - 1:
            ranges[-1][1] = i
        else:
            ranges.append([i, i])
    return ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in ranges)


def outcomes(folder: Path, words: list[str]) -> dict[str, str]:
    """Run the tests, and return the outcome of each."""
    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary, "outcomes")
        file.touch()
        environment = {"JAX_PLATFORMS": "cpu", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"} | os.environ
        environment |= {
            "MODULAX_OUTCOMES": str(file),
            "PYTEST_ARGS": f"-p record_outcomes {os.environ.get('PYTEST_ARGS', '')}",
            "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parents[1] / "src")]),
        }
        subprocess.run(["bash", folder / "run.sh", *words], env=environment, check=False)
        found: dict[str, str] = {}
        for line in file.read_text().splitlines():
            outcome, _, test = line.partition(" ")
            found[test] = min(outcome, found.get(test, "passed"), key=_WORST_FIRST.index)
    return found


def differences(found: dict[str, str], expected: set[str], is_all: bool) -> list[str]:
    """What the list says otherwise than the run; if not all tests ran, only about those that did."""
    missing = {test for test, outcome in found.items() if outcome != "passed"}
    wrong = [f"not listed: {test} ({found[test]})" for test in sorted(missing - expected)]
    wrong += [f"listed, but passes: {test}" for test in sorted(expected & found.keys() - missing)]
    return wrong + [f"listed, but was not run: {test}" for test in sorted(expected - found.keys()) if is_all]


def main(folder: str, *words: str) -> int:
    """Run, compare and print; the exit status."""
    found = outcomes(Path(folder), list(words))
    wrong = differences(found, listed(EXPECTED.read_text()), not words)
    counts = {outcome: list(found.values()).count(outcome) for outcome in _WORST_FIRST[::-1]}
    print(*wrong, f"{len(found)} tests: {counts}", sep="\n")
    return int(bool(wrong) or not found)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
