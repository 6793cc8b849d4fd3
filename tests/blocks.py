"""The Python blocks of a page: they share a namespace and run from top to bottom in an empty folder.

There is no way to exclude a Python block: anything that isn't meant to run belongs in a ```text block. A ```text block
directly below a block that prints is its output.
"""

import contextlib
import io
import re
import sys
import types
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import jax

from .settings import jax_defaults

ROOT = Path(__file__).parents[1]
# Pages whose blocks import what only `nox -s libraries` installs.
PAGES_OF_LIBRARIES = [ROOT / "docs" / "libraries.md", ROOT / "docs" / "sweeps_on_many_machines.md"]
FENCED = re.compile(r"^( *)(`{3,}|~{3,}) *([^`\n]*)\n(.*?)^\1\2[`~]* *$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    line: int  # of the first line of code
    info: str
    code: str
    follows: bool = False  # directly after the block before it


def blocks(text: str) -> Iterator[Block]:
    """The fenced blocks of a Markdown text."""
    end = None
    for found in FENCED.finditer(text):
        indent, _, info, code = found.groups()
        code = "\n".join(line.removeprefix(indent) for line in code.splitlines())
        follows = end is not None and not text[end : found.start()].strip()
        yield Block(text.count("\n", 0, found.start(4)) + 1, info.strip(), code, follows)
        end = found.end()


@contextlib.contextmanager
def reader(folder: Path) -> Iterator[types.ModuleType]:
    """The module in which a page runs, with the settings that a reader has; a page may turn on x64.

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


def shows_prints(page: Path) -> bool:
    """Whether a text below a block is what the block prints."""
    found = list(blocks(page.read_text(encoding="utf-8")))
    return any(above.info == "python" and x.follows and x.info == "text" for above, x in pairwise(found))


def run_blocks(page: Path, namespace: types.ModuleType, *, without: str | None = None) -> None:
    """Run the Python blocks of a page one after the other, and compare what they print with the page.

    `without` leaves out the blocks that contain a text.
    """
    name = page.relative_to(ROOT)
    for block, below in pairwise([*blocks(page.read_text(encoding="utf-8")), Block(0, "", "")]):
        if block.info != "python" or (without is not None and without in block.code):
            continue
        # Empty lines before the code, so that a traceback shows the lines of the page.
        code = compile("\n" * (block.line - 1) + block.code, str(page), "exec")
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(code, namespace.__dict__)
        if printed.getvalue() and below.follows and below.info == "text":
            shown, there = (" ".join(x.split()) for x in (below.code, printed.getvalue()))
            assert shown == there, f"{name}:{below.line}: the block above prints\n\n{printed.getvalue()}"
