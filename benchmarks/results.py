"""The results: `results.json`, the page `RESULTS.md` that is made from it, and the comparison of two results.

A part of the benchmarks returns Markdown, and `results.json` holds it as blocks: paragraphs, and tables with their
head, the number of columns that name a row, and their rows. The other columns hold figures.
"""

import json
import re
import statistics
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from measure import table

HERE = Path(__file__).parent
FILE = HERE / "results.json"
UNITS = {"": 1.0, "s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9, "MB": 1e6, "MiB": 2.0**20}
INTRODUCTION = (
    "# Results",
    "Written by `nox -s benchmarks`, with `results.json`. Ratios are modulax over optax, medians over interleaved "
    "rounds in one process; AdamW, where there is an optimizer.",
)

Results = dict[str, dict[str, Any]]


def section(about: str, text: str, environment: str) -> dict[str, Any]:
    """What a part measured, with its docstring and the versions and the machine with which it was measured."""
    return {"about": about, "environment": environment, "content": [_block(part) for part in text.split("\n\n")]}


def _block(text: str) -> Any:
    if not text.startswith("|"):
        return text
    head, rule, *rows = ([cell.strip() for cell in line[1:-1].split("|")] for line in text.splitlines())
    return {"head": head, "labels": rule.count("---"), "rows": rows}


def _text(block: Any) -> str:
    return block if isinstance(block, str) else table(block["head"], block["rows"], labels=block["labels"])


def markdown(name: str, part: Mapping[str, Any], environment: str) -> str:
    """A section of the page. It names its environment if that is not the one of the whole page."""
    own = [part["environment"]] if part["environment"] != environment else []
    return "\n\n".join([f"## {name.capitalize()}", part["about"], *own, *map(_text, part["content"])])


def page(results: Results) -> str:
    """The text of `RESULTS.md`."""
    environment = statistics.mode(part["environment"] for part in results.values())
    sections = [markdown(name, part, environment) for name, part in results.items()]
    return "\n\n".join([*INTRODUCTION, environment, *sections]) + "\n"


def write(results: Results) -> None:
    """Write both files."""
    FILE.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    FILE.with_name("RESULTS.md").write_text(page(results), encoding="utf-8")


def read(source: str | Path = FILE) -> Results:
    """Results from a file, or those of a commit."""
    if Path(source).is_file():
        return json.loads(Path(source).read_text(encoding="utf-8"))
    shown = ["git", "show", f"{source}:./{FILE.name}"]
    git = subprocess.run(shown, cwd=HERE, capture_output=True, text=True, encoding="utf-8", check=False)
    if git.returncode:
        reason = git.stderr.strip().removeprefix("fatal: ")
        raise SystemExit(f"--compare: {source} is no file and no commit with benchmarks/{FILE.name} ({reason})")
    return json.loads(git.stdout)


def number(cell: str) -> float | None:
    """The value of a cell in seconds, bytes or as it is; None if it is not a number."""
    found = re.fullmatch(r"([\d.,]+(?:e[+-]?\d+)?) ?(\w*)", cell)
    if not found or found[2] not in UNITS:
        return None
    return float(found[1].replace(",", "")) * UNITS[found[2]]


def figures(part: Mapping[str, Any]) -> dict[tuple[str, str], str]:
    """The cells of the tables of a part by the names of row and column."""
    out = {}
    for block in part["content"]:
        if isinstance(block, str):
            continue
        head, labels = block["head"], block["labels"]
        # "compile, ratio" if several columns have the same head
        names = [f"{head[i - 1]}, {h}" if head.count(h) > 1 else h for i, h in enumerate(head)]
        for row in block["rows"]:
            label = ", ".join(filter(None, row[:labels]))
            out.update({(label, names[i]): row[i] for i in range(labels, len(row))})
    return out


def comparison(then: Results, now: Results) -> str:
    """Tables of the figures that both results have, with their ratios, and the mean ratios of every part.

    Times depend on the machine and its load; ratios to optax were measured in one process, and depend on them less.
    """
    sections, means = [], []
    for name in filter(then.__contains__, now):
        before, after = figures(then[name]), figures(now[name])
        rows, times, others = [], [], []
        for row, column in filter(before.__contains__, after):
            old, new = before[row, column], after[row, column]
            values = number(old), number(new)
            change = values[1] / values[0] if values[0] and values[1] else None
            rows.append([row, column, old, new, "" if change is None else f"{change:.2f}"])
            if change is not None:
                (times if new.endswith("s") else others).append(change)
        if rows:
            head = ["", "", "then", "now", "now / then"]
            sections.append(f"## {name.capitalize()}\n\n{table(head, rows, labels=2)}")
            means.append([name, *(f"{statistics.geometric_mean(x):.2f}" if x else "" for x in (times, others))])
    summary = table(["now / then, geometric means", "times", "ratios, counts and bytes"], means)
    return "\n\n".join([*sections, f"## All parts\n\n{summary}"])
