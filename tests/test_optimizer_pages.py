"""The pages of the optimizers, which the build of the documentation writes: none lacks a part or a picture."""

import dataclasses
import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import modulax as mx

from .generated import link, notes

DOCS = Path(__file__).parents[1] / "docs"
NAMES = [mx.get(name).__name__ for name in mx.available()]


@pytest.fixture(scope="module")
def pages() -> Any:
    """The generator, `docs/optimizer_pages.py`."""
    before = set(sys.modules)
    sys.path.insert(0, str(DOCS))
    try:
        import optimizer_pages  # pyright: ignore[reportMissingImports]

        yield optimizer_pages
    finally:
        sys.path.remove(str(DOCS))
        for name in set(sys.modules) - before:
            if str(getattr(sys.modules[name], "__file__", None)).startswith(str(DOCS)):
                del sys.modules[name]


def found(pages: ModuleType) -> dict[str, Any]:
    """Runs of three steps, in place of those that `docs/optimizer_runs.py` makes."""
    path, runs = [[-1.0, 1.0], [0.5, float("nan")], [0.0, 0.0]], {}
    for name in mx.available():
        run = {"path": path, "loss": [2.3, 0.5, 0.0], "rate": None if name in pages.runs.UNTUNED else 0.1}
        runs[name] = dict.fromkeys(("quadratic", "rosenbrock", "digits"), run)
    return runs | {f"{name}, full batch": runs[name] for name in ("sgd", "adamw")}


def test_every_optimizer_is_in_one_group_and_has_notes():
    where = "docs/optimizers.toml"
    groups = [name for group in notes()["group"] for name in group["names"]]
    assert set(groups) == set(NAMES), f"{where}: mend `names` of a `[[group]]`: {sorted({*groups} ^ {*NAMES})}"
    assert len(groups) == len(NAMES), f"{where}: an optimizer is in two groups"
    noted = set(notes()["optimizer"])
    assert noted == set(NAMES), f"{where}: mend the sections `[optimizer.<name>]`: {sorted(noted ^ {*NAMES})}"
    assert all(note["when"] for note in notes()["optimizer"].values())


def test_defaults_of_others_are_of_fields_that_exist(pages: ModuleType):
    compared = {name: set(note.get("authors", {})) - {"source"} for name, note in notes()["optimizer"].items()}
    for library in pages.OTHERS.values():
        for name, record in library["optimizers"].items():
            compared[name] |= set(record["defaults"])
    for name, fields in compared.items():
        assert fields <= {field.name for field in dataclasses.fields(mx.get(name))}, name


def test_every_page_has_all_its_sections_and_pictures(pages: ModuleType):
    runs = found(pages)
    for name in mx.available():
        text = pages.page(name, runs[name])
        lacking = [section for section in pages.SECTIONS if f"\n## {section}\n" not in text]
        assert not lacking, (name, lacking)
        shown = re.findall(r"\]\(pictures/([\w-]+\.svg)\)", text)
        assert shown == [f"{name}-{problem}.svg" for problem in ("quadratic", "rosenbrock", "digits")]
        assert f"autoclass:: modulax.{mx.get(name).__name__}\n" in text
        code = pages.example(mx.get(name).__name__)
        assert f"mx.{mx.get(name).__name__}(" in code
        assert code in text
        assert max(map(len, code.splitlines())) <= 88, "the example is wider than the page"


def test_pictures_are_images_with_a_path(pages: ModuleType):
    drawn = pages.pictures("lbfgs", found(pages))
    for svg in drawn.values():
        root = ElementTree.fromstring(svg)
        assert root.find("{*}title") is not None
        lines = [path.get("d") for path in root.iter("{http://www.w3.org/2000/svg}path") if path.get("stroke-linejoin")]
        assert lines
        assert all(lines)
        assert "nan" not in svg
    # L-BFGS is compared with full batches; it has no learning rate to show.
    assert "LBFGS<" in drawn["lbfgs-digits.svg"]
    assert "AdamW 0.1<" in drawn["lbfgs-digits.svg"]


def test_defaults_are_compared(pages: ModuleType):
    rows = {row.split(" | ")[0].strip("| `"): row for row in pages.defaults(mx.AdamW).splitlines() if "|" in row}
    head, decay, eps = rows["hyperparameter"], rows["weight_decay"], rows["eps"]
    assert head == "| hyperparameter | modulax | authors | optax | PyTorch | Keras |"
    assert decay == "| `weight_decay` | 0.0001 |  | 0.0001 | **0.01** | **0.004** |"
    assert eps == "| `eps` | 1e-8 | 1e-8 | 1e-8 | 1e-8 | **1e-7** |"
    assert "PyTorch and Keras do not have this optimizer." in pages.defaults(mx.Prodigy)


def test_a_page_has_its_rows_of_the_ledgers(pages: ModuleType):
    text = pages.ledgers("Adan")
    assert "sail-sg/Adan" in text
    assert "**Adan(eps_root=1e-8)**. modulax: adds" in text
    assert "**Adan with weight decay**. modulax: divides" in text
    assert "AdEMAMix" not in text
    assert pages.ledgers("Adam") == ""  # not the rows of ScaleByAdam, AdamW or Adamax


def test_every_schedule_has_a_curve(pages: ModuleType):
    import schedule_pictures  # pyright: ignore[reportMissingImports]

    text = (DOCS / "api" / "schedules.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"autoclass:: modulax\.schedules\.(\w+)", text)) - {"WrappedStatefulSchedule"}
    assert set(schedule_pictures.CURVES) == documented
    del pages


def test_the_table_of_choices_links_to_the_pages():
    text = (DOCS / "choosing_an_optimizer.md").read_text(encoding="utf-8")
    assert [name for name in NAMES if link(name) not in text] == []
    assert "| 0.01 |" in next(line for line in text.splitlines() if link("Adafactor") in line)
