"""The Python blocks of a page: how they are found and how they run, for the tests and for the build of the site.

The blocks of one page share a namespace and run from top to bottom in an empty folder. There is no way to exclude a
Python block: anything that isn't meant to run belongs in a ```text block.
"""

import contextlib
import io
import itertools
import re
import sys
import traceback
import types
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import jax

ROOT = Path(__file__).parents[1]
# Pages whose blocks `nox -s libraries` runs (tests/libraries), since they import what only that session installs.
PAGES_OF_LIBRARIES = [ROOT / "docs" / "libraries.md"]
LOOKS_LIKE_PYTHON = re.compile(r"\b(python\w*|py\d?|pycon|ipython\w*|code-cell)\b")


class Block(NamedTuple):
    line: int  # of the first line of code
    info: str
    code: str
    follows: bool = False  # directly after the block before it


class Output(NamedTuple):
    block: Block
    text: str  # what the block printed
    following: Block | None  # the block after it


class BlockError(Exception):
    """A block raises, and the message tells where."""


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


@contextlib.contextmanager
def reader(folder: Path) -> Iterator[types.ModuleType]:
    """An empty folder, and the module in which a page runs; a page may turn on x64.

    pickle and dataclasses find the classes of the page in the module.
    """
    module = types.ModuleType("documentation_page")
    sys.modules[module.__name__] = module
    try:
        with contextlib.chdir(folder):
            yield module
    finally:
        jax.config.update("jax_enable_x64", False)
        del sys.modules[module.__name__]


def run_blocks(page: Path, namespace: types.ModuleType) -> Iterator[Output]:
    """Run the Python blocks of a page one after the other, and yield what each prints."""
    name = page.relative_to(ROOT)
    found = list(blocks(page.read_text(encoding="utf-8")))
    for block, following in itertools.zip_longest(found, found[1:]):
        if block.info != "python":
            if LOOKS_LIKE_PYTHON.search(block.info):
                raise BlockError(
                    f"{name}:{block.line - 1}: ```{block.info} is not run. Write ```python for code "
                    "that runs, and ```text for what is not code."
                )
            continue
        # Empty lines before the code, so that a traceback shows the lines of the page.
        code = "\n" * (block.line - 1) + block.code
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
            yield Output(block, printed.getvalue(), following)
            continue
        raise BlockError(message)


def line_in(page: Path, error: Exception) -> int | None:
    """The line of the page at which it failed."""
    if isinstance(error, SyntaxError) and error.filename == str(page):
        return error.lineno
    frames = traceback.extract_tb(error.__traceback__)
    return next((f.lineno for f in reversed(frames) if f.filename == str(page)), None)
