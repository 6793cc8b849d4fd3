"""The pages of the optimizers, which the build of the documentation writes: none lacks a part or a picture."""

import dataclasses
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import modulax as mx

from .generated import concrete, link, notes
from .scripts import script

DOCS = Path(__file__).parents[1] / "docs"
SECTIONS = ("Behavior", "Algorithm", "Example", "Defaults", "Citation")
NAMES = [mx.get(name).__name__ for name in mx.available()]


@pytest.fixture(scope="module")
def pages() -> Any:
    """The generator, `docs/optimizer_pages.py`."""
    with script(DOCS, "optimizer_pages") as module:
        yield module


def rates(pages: ModuleType, name: str) -> dict[str, float | None]:
    """Learning rates, in place of those that `docs/optimizer_runs.py` finds."""
    return dict.fromkeys(("quadratic", "rosenbrock", "digits"), None if name in pages.runs.UNTUNED else 0.1)


def test_every_optimizer_is_in_a_group_and_has_notes():
    described, groups = notes()["optimizer"], {group["title"] for group in notes()["group"]}
    missing, gone = sorted({*NAMES} - described.keys()), sorted(described.keys() - {*NAMES})
    assert not missing, f"docs/optimizers.toml has no table [optimizer.{missing[0]}] with its `group` and `when`"
    assert not gone, f"docs/optimizers.toml describes {gone}, which `modulax` does not have"
    for name, note in described.items():
        assert note["group"] in groups, f"docs/optimizers.toml: `{note['group']}` of {name} is none of the groups"
        assert note["when"], f"docs/optimizers.toml: `when` of {name} is empty"


def test_every_optimizer_has_runs_to_draw(pages: ModuleType):
    every, found = {*mx.available(), *pages.runs.FULL_BATCHES}, pages.runs.results().keys()
    missing, gone = sorted(every - found), found - every
    assert not missing, f"docs/optimizer_runs.json lacks {missing}: `nox -s pictures`"
    assert not gone, f"docs/optimizer_runs.json has {sorted(gone)}, which `modulax` does not have: `nox -s pictures`"


def test_defaults_of_others_are_of_fields_that_exist(pages: ModuleType):
    compared = {name: set(note.get("authors", {})) - {"source"} for name, note in notes()["optimizer"].items()}
    for library in pages.OTHERS.values():
        for name, record in library["optimizers"].items():
            compared[name] |= set(record["defaults"])
    for name, fields in compared.items():
        assert fields <= {field.name for field in dataclasses.fields(mx.get(name))}, name


def test_every_page_has_all_its_sections_and_pictures(pages: ModuleType):
    for name in mx.available():
        text = pages.page(name, rates(pages, name))
        lacking = [section for section in SECTIONS if f"\n## {section}\n" not in text]
        assert not lacking, (name, lacking)
        shown = re.findall(r"\]\(/_pictures/([\w-]+\.svg)\)", text)
        assert shown == [f"{name}-{problem}.svg" for problem in ("quadratic", "rosenbrock", "digits")]
        assert f"autoclass:: modulax.{mx.get(name).__name__}\n" in text
        code = pages.example(mx.get(name).__name__)
        assert f"mx.{mx.get(name).__name__}(" in code
        assert code in text
        assert max(map(len, code.splitlines())) <= 88, "the example is wider than the page"


def test_pages_show_the_references(pages: ModuleType):
    """That of AdamW on the page of Adam too."""
    codes = {file.stem: file.read_text(encoding="utf-8") for file in (DOCS / "references").glob("*.py")}
    codes["adam"] = codes["adamw"]
    assert not codes.keys() - set(mx.available())
    for name in mx.available():
        section = pages.page(name, rates(pages, name)).partition("## In plain JAX")[2].partition("## Example")[0]
        assert bool(section) == (name in codes), name
        assert ("`weight_decay=0`" in section) == (name == "adam")
        if section:
            code = codes[name].replace("  # fmt: skip", "")
            assert f"```python\n{code}```\n" in section
            assert f" on one {'matrix' if 'matrix' in code.partition('.')[0] else 'array'}, " in section
            assert max(map(len, code.splitlines())) <= 88, "the reference is wider than the page"


def test_pictures_are_images_with_a_path(pages: ModuleType, tmp_path: Path):
    runs = {}
    for name in ("lbfgs", "sgd, full batch", "adamw, full batch"):
        run = {"path": [[-1.0, 1.0], [0.5, float("nan")], [0.0, 1e9]], "loss": [2.3, 0.5, float("inf")] * 20}
        runs[name] = dict.fromkeys(
            ("quadratic", "rosenbrock", "digits"), run | {"rate": None if name == "lbfgs" else 0.1}
        )
    pages.runs.draw_optimizer(tmp_path, "lbfgs", runs)
    drawn = {file.name: file.read_text(encoding="utf-8") for file in tmp_path.iterdir()}
    assert sorted(drawn) == [f"lbfgs-{problem}.svg" for problem in ("digits", "quadratic", "rosenbrock")]
    for svg in drawn.values():
        assert ElementTree.fromstring(svg).find("{*}title") is not None
        assert svg.count(pages.runs.drawing.ORANGE) > 1
        assert "nan" not in svg
    # L-BFGS is compared with full batches; it has no learning rate to show.
    assert "LBFGS<" in drawn["lbfgs-digits.svg"]
    assert "AdamW 0.1<" in drawn["lbfgs-digits.svg"]


def test_defaults_are_compared(pages: ModuleType):
    text = pages.page("adamw", rates(pages, "adamw"))
    rows = {row.split(" | ")[0].strip("| `"): row for row in text.splitlines() if row.startswith("|")}
    head, decay, eps = rows["hyperparameter"], rows["weight_decay"], rows["eps"]
    assert head == "| hyperparameter | modulax | authors | optax | PyTorch | Keras |"
    assert decay == "| `weight_decay` | 0.0001 |  | 0.0001 | **0.01** | **0.004** |"
    assert eps == "| `eps` | 1e-8 | 1e-8 | 1e-8 | 1e-8 | **1e-7** |"
    assert "PyTorch and Keras do not have this optimizer." in pages.page("prodigy", rates(pages, "prodigy"))


def test_a_page_has_its_rows_of_the_ledgers(pages: ModuleType):
    text = pages.page("adan", rates(pages, "adan"))
    assert "sail-sg/Adan" in text.partition("## Differences")[2]
    assert "**Adan(eps_root=1e-8)**. modulax: adds" in text
    assert "**Adan with weight decay**. modulax: divides" in text
    assert "AdEMAMix" not in text
    # Not the rows of ScaleByAdam, AdamW or Adamax.
    assert "## Differences" not in pages.page("adam", rates(pages, "adam"))


def test_the_page_of_an_optimizer_documents_its_transform(pages: ModuleType):
    """If it is in a file of the same name, and on no page of `docs/api/`."""
    assert pages.companions(mx.Tiger) == ["ScaleByTiger", "states.ScaleByTigerState"]
    assert pages.companions(mx.LaProp) == []


def test_every_container_and_every_other_transform_has_a_page(pages: ModuleType):
    import class_pages  # pyright: ignore[reportMissingImports]

    listed = {names[0] for kind in class_pages.KINDS for names in class_pages.listed_names(kind)}
    on_pages_of_optimizers = {f"modulax.{name}" for cls in map(mx.get, NAMES) for name in pages.companions(cls)}
    transforms = {f"modulax.{name}" for name in concrete(mx, mx.AbstractTransform).keys() - {*NAMES}}
    assert transforms - on_pages_of_optimizers == listed
    assert class_pages.users()["modulax.ScaleByAdam"][:2] == ["AdamW", "Adam"]
    names = ["modulax.ScaleByPath", "modulax.states.MultiplierState", "modulax.ScaleByPath.multipliers_of"]
    assert class_pages.directive(names[0], names) == f".. autoclass:: {names[0]}\n   :members: multipliers_of\n"
    assert class_pages.facts(names) == {"State": "`states.MultiplierState`"}


def test_every_schedule_has_a_curve(pages: ModuleType):
    import schedule_pictures  # pyright: ignore[reportMissingImports]

    text = "".join(file.read_text(encoding="utf-8") for file in (DOCS / "api").glob("schedules*.md"))
    documented = set(re.findall(r"autoclass:: modulax\.schedules\.(\w+)", text)) - {"WrappedStatefulSchedule"}
    assert set(schedule_pictures.CURVES) == documented
    del pages


def test_the_table_of_choices_links_to_the_pages():
    text = (DOCS / "choosing_an_optimizer.md").read_text(encoding="utf-8")
    missing = [name for name in NAMES if link(name) not in text]
    assert not missing, f"docs/choosing_an_optimizer.md has no row for {missing}: `python -m tests.generated`"
    assert "| 0.01 |" in next(line for line in text.splitlines() if link("Adafactor") in line)
