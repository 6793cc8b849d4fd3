"""The files in which the benchmarks store their results, and the comparison of two results."""

import copy
import importlib
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from docs import comparison_pictures, pictures

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "benchmarks"


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(FOLDER)
    for name in ("measure", "results"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module("results")


TEXT = """| leaves |  | optax | ratio | compile | ratio |
| --- | --- | ---: | ---: | ---: | ---: |
| 8 | ours | 50 µs | 1.20 | 1,000 ms | 0.90 |
| 9 | ours | 60 µs | 1.00 | 3 s | 1.00 |

A paragraph."""


def test_the_page_shows_what_the_json_holds(results: Any):
    assert (FOLDER / "RESULTS.md").read_text(encoding="utf-8") == results.page(results.read())


def test_a_part_is_stored_and_shown_as_it_was_measured(results: Any):
    part = results.section("What it is.", TEXT, "here")
    assert results.markdown("a part", part, "here") == f"## A part\n\nWhat it is.\n\n{TEXT}"
    elsewhere = results.page({"x": part, "y": part, "z": part | {"environment": "there"}})
    assert elsewhere.count("\nhere\n") == 1, "the environment of most parts is at the top of the page"
    assert "## Z\n\nWhat it is.\n\nthere\n" in elsewhere


def test_a_comparison(results: Any):
    then = {"a part": results.section("", TEXT, "here"), "gone": results.section("", TEXT, "here")}
    now = copy.deepcopy(then) | {"new": then["gone"]}
    del now["gone"]
    rows = now["a part"]["content"][0]["rows"]
    rows[0][2:] = ["0.1 ms", "0.60", "2 s", ""]
    del rows[1]
    lines = results.comparison(then, now).splitlines()
    assert "| 8, ours | optax | 50 µs | 0.1 ms | 2.00 |" in lines
    assert "| 8, ours | optax, ratio | 1.20 | 0.60 | 0.50 |" in lines
    assert "| 8, ours | compile | 1,000 ms | 2 s | 2.00 |" in lines
    assert "| 8, ours | compile, ratio | 0.90 |  |  |" in lines
    assert lines[-1] == "| a part | 2.00 | 0.50 |", "the parts that only one of them has are left out"


def test_the_picture_shows_ratios_to_optax():
    found = pictures.ratios()
    assert found.keys() >= {"eager", "step", "program", "training"}
    assert all(0 < ratio < 10 for ratios in found.values() for ratio in ratios)
    head, rows = pictures.table_of("eager")
    assert found["eager"] == [float(row[head.index("ratio")]) for row in rows]
    _, program = pictures.table_of("program")
    assert len(found["program"]) == 2 * sum(row[1] != "optax" for row in program), "not those of optax to itself"


def test_results_of_a_commit_that_has_none(results: Any):
    with pytest.raises(SystemExit, match="0000000 is no file and no commit"):
        results.read("0000000")


def test_times_in_the_guides_are_those_that_were_measured():
    measured = "".join((FOLDER / name).read_text(encoding="utf-8") for name in ("DEVICES.md", "DEVICES_MATRICES.md"))
    times = {cell.strip() for line in measured.splitlines() for cell in line.split("|")}
    pages = [(ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in ("performance", "low_bit", "muon")]
    # A paragraph, or the table after one that ends in a colon.
    blocks = re.findall(r"[^\n].*?H200.*?(?:(?<!:)\n\n|:\n\n.*?\n\n)", "\n\n".join(pages), re.DOTALL)
    quoted = re.findall(r"[\d.]+ (?:ms|µs|s)\b", "".join(block[block.index("H200") :] for block in blocks))
    assert len(quoted) == 23
    assert {*quoted} <= times


LEADING = ("Muon", "NorMuon", "SOAP")


def test_the_page_of_the_optimizers_shows_what_was_compared(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(FOLDER)
    for name in ("measure", "optimizer_tasks", "optimizers"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    module = importlib.import_module("optimizers")
    results = comparison_pictures.results()
    assert (FOLDER / "OPTIMIZERS.md").read_text(encoding="utf-8") == module.page(results)
    assert {task["name"] for task in results["tasks"]} == {*module.tasks()}
    assert all(len(rows) == len(module.SPACES) for _, _, rows in comparison_pictures.comparisons())
    reached = {task["name"]: task["reached"]["optimizers"] for task in results["tasks"] if "reached" in task}
    assert [*reached] == [*module.COUNTED]
    assert all({row["optimizer"] for row in rows} == {*module.FAMILY} for rows in reached.values())
    # As "Choosing an optimizer" says: less than half of 400 steps, and 90 % of them.
    early = {row["optimizer"] for row in reached["gpt"] if row["steps"] and row["steps"] < 200}
    assert early == {"Muon", "SOAP", "Scion"}
    assert next(row["steps"] for row in reached["gpt"] if row["optimizer"] == "AdamW, b2=0.95") == 360
    # And which trainings were tuned how, and by how much Muon, NorMuon and SOAP lead on the autoencoder.
    how = {task["name"]: (task.get("budget", results["budget"]), task.get("finalists", 1)) for task in results["tasks"]}
    assert how == {"cnn": (32, 4), "gpt": (16, 1), "mlp": (32, 4), "autoencoder": (32, 4)}
    parts = {}
    for task, steps, rows in comparison_pictures.comparisons():
        if task["name"] == "autoencoder":
            losses = [rows[name]["test"] for name in LEADING]
            others = min(row["test"] for name, row in rows.items() if name not in LEADING)
            parts[steps] = [f"{x / others:.0%}" for x in (min(losses), max(losses))]
    assert parts == {"400": ["52%", "73%"], "1000": ["59%", "59%"]}
