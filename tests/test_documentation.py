"""The documentation is correct: Python blocks run and print what the page shows, every public name is documented."""

import contextlib
import functools
import inspect
import io
import json
import pkgutil
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import modulax

from .blocks import blocks, reader, run_blocks, shows_prints
from .generated import MODULES, public_names
from .loops import each

ROOT = Path(__file__).parents[1]
BUILT = {"_build", "notebooks", "containers", "optimizers", "transforms"}  # below docs/: what sphinx makes
PAGES = sorted(
    page
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    if not BUILT & set(page.relative_to(ROOT).parts)
)
API_PAGES = sorted((ROOT / "docs" / "api").glob("*.md"))

# The README links with addresses, because the package index shows it too.
REPOSITORY = r"https://(?:github\.com/modulax/modulax/(?:blob|tree)|raw\.githubusercontent\.com/modulax/modulax)/main/"


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


# --- Blocks --------------------------------------------------------------------------------------


LOOKS_LIKE_PYTHON = re.compile(r"\b(python\w*|py\d?|pycon|ipython\w*|code-cell)\b")


# The build of the documentation runs every other page.
@pytest.mark.parametrize("page", list(filter(shows_prints, PAGES)), ids=name_of)
def test_blocks_print_what_the_page_shows(page: Path, tmp_path: Path):
    with reader(tmp_path) as module:
        run_blocks(page, module)


def test_no_block_of_python_is_left_out():
    infos = {(name_of(page), block.info) for page in PAGES for block in blocks(page.read_text(encoding="utf-8"))}
    wrong = [f"{page}: {info}" for page, info in sorted(infos) if info != "python" and LOOKS_LIKE_PYTHON.search(info)]
    assert not wrong, f"{wrong}: write ```python for code that runs, and ```text for what is not code"


def test_the_readme_counts_the_optimizers_and_shows_the_loss(tmp_path: Path):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    with reader(tmp_path) as module, contextlib.redirect_stdout(io.StringIO()):
        exec("\n".join([block.code for block in blocks(readme) if block.info == "python"][:2]), module.__dict__)
    assert (shown := re.search(r"# ([\d.]+); that of the first step", readme))
    assert float(module.loss) == pytest.approx(float(shown[1]), rel=0.3)  # rounding differs between processors
    assert f"{len(modulax.available())} optimizers" in readme


def test_blocks_are_found():
    text = "a\n```python\nx\n```\n\n  ~~~text\n  ```python\n    y\n  ~~~\n"
    assert list(blocks(text)) == [(3, "python", "x", False), (7, "text", "```python\n  y", True)]


def code_of_notebook(notebook: Path) -> Iterator[str]:
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        yield from "".join(cell["source"]).split("\n") if cell["cell_type"] == "code" else ()


@pytest.mark.parametrize("notebook", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda file: file.stem)
def test_code_of_notebooks_fits_into_its_column(notebook: Path):
    assert not [line for line in code_of_notebook(notebook) if len(line) > 88]


@pytest.mark.parametrize("page", PAGES[1:], ids=name_of)
def test_code_of_the_site_fits_into_its_column(page: Path):
    """88 characters are the width of a code block at 1280 pixels."""
    found = [block for block in blocks(page.read_text(encoding="utf-8")) if block.info == "python"]
    long = [block.line + i for block in found for i, line in enumerate(block.code.split("\n")) if len(line) > 88]
    assert not long, f"{page.relative_to(ROOT)}: more than 88 characters in the lines {long}"


# --- Names of files, versions and modules in the text --------------------------------------------


TEXTS = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
each_text = pytest.mark.parametrize("page", TEXTS, ids=name_of)


@each_text
def test_links_and_file_names_lead_somewhere(page: Path):
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    links = re.findall(r"\]\((?!https?:|#)([^)\s#]+)", text)
    missing = [link for link in links if not (page.parent / link).exists()]
    of_repository = re.findall(rf"{REPOSITORY}([^)\s#]+)", text)
    missing += [link for link in of_repository if not (ROOT / link).exists()]
    # sphinx copies the notebooks to docs/notebooks.
    missing = [link for link in missing if not (link.startswith("notebooks/") and (ROOT / link).exists())]
    folders = "src|tests|docs|examples|benchmarks|notebooks|\\.ci"
    files = re.findall(rf"`((?:{folders})/[\w./]+)`", text)
    missing += [file for file in files if not (ROOT / file).exists() and "_build" not in file]
    assert not missing, f"{page.relative_to(ROOT)} names {missing}, which do not exist"


@each_text
def test_versions_are_the_ones_that_are_tested(page: Path):
    pins = re.findall(r"^(\S+)==(\S+)", (ROOT / ".ci" / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    requires, supported = project["requires-python"], {line.rpartition(" :: ")[2] for line in project["classifiers"]}
    text = page.read_text(encoding="utf-8")
    assert set(re.findall(r"optax (\d+\.\d+\.\d+)", text)) <= {dict(pins)["optax"]}
    assert set(re.findall(r"Python (\d+\.\d+)", text)) <= supported
    assert {f">={version}" for version in re.findall(r"Python (\d+\.\d+) or newer", text)} <= {requires}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_names_of_modulax_exist(page: Path):
    written = re.findall(r"`(modulax(?:\.\w+)+)[`(]", page.read_text(encoding="utf-8"))
    assert not [name for name in written if not exists(name)]


# --- Public names --------------------------------------------------------------------------------


class Public(NamedTuple):
    name: str  # as a user writes it: modulax.schedules.Linear
    value: object


def publics() -> Iterator[Public]:
    for module in MODULES:
        for name in sorted(public_names(module)):
            value = getattr(module, name)
            elsewhere = getattr(value, "__module__", None) or "modulax"
            if not inspect.ismodule(value) and elsewhere.partition(".")[0] == "modulax":
                yield Public(f"{module.__name__}.{name}", value)


each_public = each(tuple(publics()))


def test_public_modules_have_a_docstring():
    assert not [module.__name__ for module in MODULES if not module.__doc__]


@each_public
def test_public_name_has_a_docstring(public: Public):
    if not (inspect.isclass(public.value) or inspect.isroutine(public.value)):
        return  # a constant, or an alias of a type
    # A class inherits the docstring of its base, which is not about the class.
    is_class = inspect.isclass(public.value)
    doc = vars(public.value).get("__doc__") if is_class else public.value.__doc__
    assert doc, f"{public.name} has no docstring of its own"
    written_by_dataclass = doc.startswith(f"{public.name.rpartition('.')[2]}(")
    assert not written_by_dataclass, f"{public.name} has no docstring but the one of a dataclass"


@each_public
def test_public_name_is_in_the_api_pages(public: Public):
    names = names_by_value()[id(public.value)]
    package, *_ = str(getattr(public.value, "__module__", "")).removeprefix("modulax.").partition(".")
    if package == "_rules" and inspect.isclass(public.value):
        return  # on the page of the optimizer
    assert not names.isdisjoint(names_in_the_api_pages()), f"no page of docs/api/ has {' or '.join(sorted(names))}"


@functools.cache
def names_in_the_api_pages() -> set[str]:
    text = "\n".join(page.read_text(encoding="utf-8") for page in API_PAGES)
    return set(re.findall(r"modulax(?:\.\w+)+", text))


@functools.cache
def names_by_value() -> dict[int, set[str]]:
    """Everything public by its identity, and the names that it has."""
    names: dict[int, set[str]] = {}
    for public in publics():
        names.setdefault(id(public.value), set()).add(public.name)
    return names


def test_api_pages_name_what_exists():
    """A directive that names nothing breaks the build of the documentation; here it says so."""
    directive = re.compile(r"^ *\.\. auto(?:class|function|data|method)::\s*([\w.]+)", re.MULTILINE)
    written = [(page.name, name) for page in API_PAGES for name in directive.findall(page.read_text(encoding="utf-8"))]
    lists = re.compile(r"^(modulax\.\w+)(?:, modulax\.[\w., ]+)?$", re.MULTILINE)
    written += [(page.name, name) for page in API_PAGES for name in lists.findall(page.read_text(encoding="utf-8"))]
    assert len(written) == len(set(written)), "a page documents a name twice"
    missing = [f"{page}: {name}" for page, name in written if not exists(name)]
    assert not missing, "\n".join(missing)


def exists(dotted: str) -> bool:
    try:
        pkgutil.resolve_name(dotted)
    except (ImportError, AttributeError):
        return False
    return True
