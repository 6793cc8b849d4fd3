"""The programs of `examples/compat` give the same numbers with `modulax.compat` and with optax itself."""

import sys
import types
from pathlib import Path
from typing import Any

import jax.tree_util as jtu
import numpy as np
import pytest

from ..programs.comparison import assert_same

FOLDER = Path(__file__).parents[2] / "examples" / "compat"
OURS, THEIRS = "from modulax import compat as optax  # or: import optax\n", "import optax\n"
PROGRAMS = sorted(file for file in FOLDER.glob("*.py") if file.name != "cartpole.py")  # which two programs import


def run(file: Path, line: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What the program returns; it checks itself that it learns."""
    source = file.read_text(encoding="utf-8")
    assert source.count(OURS) == 1
    assert source.count("modulax") == 1
    module = types.ModuleType(f"{file.stem}_with_{'optax' if line == THEIRS else 'compat'}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.syspath_prepend(str(FOLDER))
    exec(compile(source.replace(OURS, line), str(file), "exec"), module.__dict__)
    assert module.__dict__["optax"].__name__ == ("optax" if line == THEIRS else "modulax.compat")
    return module.__dict__["main"]()


def paths(tree: Any) -> list[str]:
    return [jtu.keystr(path) for path, _ in jtu.tree_leaves_with_path(tree)]


def test_there_are_twelve_programs():
    assert len(PROGRAMS) == 12


@pytest.mark.parametrize("file", PROGRAMS, ids=lambda file: file.stem)
def test_both_import_lines_give_the_same_numbers(file: Path, monkeypatch: pytest.MonkeyPatch):
    theirs, ours = run(file, THEIRS, monkeypatch), run(file, OURS, monkeypatch)
    assert paths(ours) == paths(theirs)
    assert sum(np.shape(x)[-1:] == (100,) for x in jtu.tree_leaves(theirs)), "no losses of 100 steps"
    assert {np.asarray(x).dtype for x in jtu.tree_leaves(theirs)} <= {np.dtype(t) for t in ("f4", "i4", "u4", "bool")}
    assert_same(ours, theirs, 1e-5)
