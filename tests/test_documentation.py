"""The documentation is correct: Python blocks run and print what the page shows, every public name is documented.

The blocks of one page share a namespace and run from top to bottom, as a reader would type them, under JAX's default
settings and in an empty folder. A ```text block directly after a block that prints is its output, and is compared with
it. There is no way to exclude a Python block: anything that isn't meant to run belongs in a ```text block.
"""

import contextlib
import functools
import importlib
import inspect
import io
import itertools
import pkgutil
import re
import sys
import tomllib
import traceback
import types
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import jax
import pytest

import modulax

from .loops import each
from .settings import jax_defaults

ROOT = Path(__file__).parents[1]
BUILT = {"_build", "notebooks", "optimizers"}  # below docs/: what sphinx makes
PAGES = sorted(
    page
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    if not BUILT & set(page.relative_to(ROOT).parts)
)
# Pages whose blocks `nox -s libraries` runs (tests/libraries), since they import what only that session installs.
PAGES_OF_LIBRARIES = [ROOT / "docs" / "libraries.md"]
API_PAGES = sorted((ROOT / "docs" / "api").glob("*.md"))

# The README links with addresses, because the package index shows it too.
REPOSITORY = r"https://(?:github\.com/modulax/modulax/(?:blob|tree)|raw\.githubusercontent\.com/modulax/modulax)/main/"

RUN = {"python", "{code-cell}", "{code-cell} python", "{code-cell} ipython3"}
LOOKS_LIKE_PYTHON = re.compile(r"\b(python\w*|py\d?|pycon|ipython\w*|code-cell)\b")


# --- Blocks --------------------------------------------------------------------------------------


class Block(NamedTuple):
    line: int  # of the first line of code
    info: str
    code: str
    follows: bool = False  # directly after the block before it


def blocks(text: str) -> Iterator[Block]:
    """The fenced blocks of a Markdown text."""
    fence = indent = info = ""
    code: list[str] = []
    start = 0
    is_text_between = True
    for number, line in enumerate(text.splitlines(), start=1):
        if not fence:
            opening = re.match(r"( *)(`{3,}|~{3,})\s*(.*?)\s*$", line)
            if opening and "`" not in opening[3]:
                indent, fence, info = opening.groups()
                code, start = [], number + 1
            elif line.strip():
                is_text_between = True
        elif re.fullmatch(rf" *{fence[0]}{{{len(fence)},}}\s*", line):
            yield Block(start, info, "\n".join(code), not is_text_between)
            fence, is_text_between = "", False
        else:
            code.append(line.removeprefix(indent))
    assert not fence, f"the block that begins in line {start - 1} has no end"


def options_blanked(code: str) -> str:
    """The code of a cell without its `:option:` lines; every line keeps its number."""
    lines = code.split("\n")
    for i, line in enumerate(lines):
        if not line.startswith(":"):
            break
        lines[i] = ""
    return "\n".join(lines)


@contextlib.contextmanager
def reader(folder: Path) -> Iterator[types.ModuleType]:
    """An empty folder, the settings that a reader has (a page may turn on x64), and the module in which a page runs.

    pickle and dataclasses find the classes of the page in the module.
    """
    module = types.ModuleType("documentation_page")
    sys.modules[module.__name__] = module
    try:
        with jax_defaults(), contextlib.chdir(folder):
            yield module
    finally:
        jax.config.update("jax_enable_x64", False)
        del sys.modules[module.__name__]


PAGES_HERE = [page for page in PAGES if page not in PAGES_OF_LIBRARIES]


@pytest.mark.parametrize("page", [pytest.param(p, id=str(p.relative_to(ROOT))) for p in PAGES_HERE])
def test_blocks_run(page: Path, tmp_path: Path):
    with reader(tmp_path) as module:
        run_blocks(page, module)


def run_blocks(page: Path, namespace: types.ModuleType) -> None:
    name = page.relative_to(ROOT)
    found = [*blocks(page.read_text(encoding="utf-8")), None]
    for block, following in itertools.pairwise(found):
        assert block
        if block.info not in RUN:
            assert not LOOKS_LIKE_PYTHON.search(block.info), (
                f"{name}:{block.line - 1}: ```{block.info} is not run. Write ```python for code "
                "that runs, and ```text for what is not code."
            )
            continue
        # Empty lines before the code, so that a traceback shows the lines of the page.
        code = "\n" * (block.line - 1) + options_blanked(block.code)
        printed = io.StringIO()
        try:
            with contextlib.redirect_stdout(printed):
                exec(compile(code, str(page), "exec"), namespace.__dict__)
        except Exception as error:
            line = line_in(page, error) or block.line
            frames = error.__traceback__ and error.__traceback__.tb_next  # without this one
            trace = "".join(traceback.format_exception(error.with_traceback(frames)))
            message = f"{name}:{line}: the block of line {block.line} fails\n{trace}"
        else:
            if printed.getvalue() and following and following.follows and following.info == "text":
                shown, there = (" ".join(text.split()) for text in (following.code, printed.getvalue()))
                assert shown == there, f"{name}:{following.line}: the block above prints\n\n{printed.getvalue()}"
            continue
        pytest.fail(message, pytrace=False)


def line_in(page: Path, error: Exception) -> int | None:
    """The line of the page at which it failed."""
    if isinstance(error, SyntaxError) and error.filename == str(page):
        return error.lineno
    frames = traceback.extract_tb(error.__traceback__)
    return next((f.lineno for f in reversed(frames) if f.filename == str(page)), None)


def test_blocks_are_found():
    text = "a\n```python\nx\n```\n\n  ~~~text\n  ```python\n    y\n  ~~~\n"
    text += "```{code-cell}\n:tags: []\nz\n```"
    found = [(b.line, b.info, options_blanked(b.code), b.follows) for b in blocks(text)]
    assert found == [
        (3, "python", "x", False),
        (7, "text", "```python\n  y", True),
        (11, "{code-cell}", "\nz", True),
    ]


# --- Names of files, versions and modules in the text --------------------------------------------


TEXTS = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
each_text = pytest.mark.parametrize("page", [pytest.param(p, id=str(p.relative_to(ROOT))) for p in TEXTS])


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
    requires = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["requires-python"]
    others = re.findall(r'"(\d\.\d+)"', re.findall(r"OTHER_PYTHONS = .*", (ROOT / "noxfile.py").read_text("utf-8"))[0])
    text = page.read_text(encoding="utf-8")
    assert set(re.findall(r"optax (\d+\.\d+\.\d+)", text)) <= {dict(pins)["optax"]}
    assert set(re.findall(r"Python (\d+\.\d+)", text)) <= {requires.removeprefix(">="), *others}
    assert {f">={version}" for version in re.findall(r"Python (\d+\.\d+) or newer", text)} <= {requires}


@pytest.mark.parametrize("page", [pytest.param(p, id=str(p.relative_to(ROOT))) for p in PAGES])
def test_names_of_modulax_exist(page: Path):
    written = re.findall(r"`(modulax(?:\.\w+)+)[`(]", page.read_text(encoding="utf-8"))
    assert not [name for name in written if not exists(name)]


# --- Public names --------------------------------------------------------------------------------


class Public(NamedTuple):
    name: str  # as a user writes it: modulax.schedules.Linear
    value: object


def public_modules(module: types.ModuleType = modulax) -> Iterator[types.ModuleType]:
    yield module
    for info in pkgutil.iter_modules(getattr(module, "__path__", [])):
        if not info.name.startswith("_"):
            yield from public_modules(importlib.import_module(f"{module.__name__}.{info.name}"))


def public_names() -> Iterator[Public]:
    for module in public_modules():
        for name in getattr(module, "__all__", dir(module)):
            value = getattr(module, name)
            elsewhere = getattr(value, "__module__", None) or "modulax"
            if not name.startswith("_") and not inspect.ismodule(value) and elsewhere.partition(".")[0] == "modulax":
                yield Public(f"{module.__name__}.{name}", value)


each_public = each(tuple(public_names()))


def test_public_modules_have_a_docstring():
    assert not [module.__name__ for module in public_modules() if not module.__doc__]


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
    assert not names.isdisjoint(names_in_the_api_pages()), f"no page of docs/api/ has {' or '.join(sorted(names))}"


@functools.cache
def names_in_the_api_pages() -> set[str]:
    text = "\n".join(page.read_text(encoding="utf-8") for page in API_PAGES)
    return set(re.findall(r"modulax(?:\.\w+)+", text))


@functools.cache
def names_by_value() -> dict[int, set[str]]:
    """Everything public by its identity, and the names that it has."""
    names: dict[int, set[str]] = {}
    for public in public_names():
        names.setdefault(id(public.value), set()).add(public.name)
    return names


def test_api_pages_name_what_exists():
    """A directive that names nothing breaks the build of the documentation; here it says so."""
    directive = re.compile(r"^ *\.\. auto(?:class|function|data|method)::\s*([\w.]+)", re.MULTILINE)
    written = [(page.name, name) for page in API_PAGES for name in directive.findall(page.read_text(encoding="utf-8"))]
    assert len(written) == len(set(written)), "a page documents a name twice"
    missing = [f"{page}: {name}" for page, name in written if not exists(name)]
    assert not missing, "\n".join(missing)


def exists(dotted: str) -> bool:
    try:
        pkgutil.resolve_name(dotted)
    except (ImportError, AttributeError):
        return False
    return True
