"""The planted faults apply to the code as it is; `nox -s mutants` plants them."""

import ast
import collections
import shlex

import pytest

from .mutants import MUTANTS, Mutant
from .mutants._mutant import PACKAGE, ROOT

# What a reading of 39 faults found: most of those that nobody noticed lay in a few heaps.
HEAPS = {
    "alignment",
    "at",
    "bounds",
    "checkpoint",
    "describe",
    "dtype field",
    "line search bound",
    "moment dtype",
    "nnx",
    "schedule bound",
    "schedule dtype",
    "where and survey",
    "x64 cache",
}


def test_there_are_enough_of_them():
    kinds = collections.Counter(mutant.kind for mutant in MUTANTS)
    assert len(MUTANTS) >= 100
    assert sum(kinds[kind] for kind in HEAPS) >= 40
    assert kinds.keys() >= HEAPS


def test_each_has_a_name_of_its_own():
    names = collections.Counter(mutant.name for mutant in MUTANTS)
    assert [name for name, n in names.items() if n > 1] == []


@pytest.mark.parametrize("file", sorted({mutant.file for mutant in MUTANTS}))
def test_each_still_applies(file: str):
    """To a text that occurs once; and what comes out is Python, and other Python."""
    source = (PACKAGE / file).read_text(encoding="utf-8")
    before = ast.dump(ast.parse(source))
    for mutant in (m for m in MUTANTS if m.file == file):
        assert ast.dump(ast.parse(mutant.mutated(source))) != before, mutant


def test_a_text_that_is_not_there_is_refused():
    mutant = Mutant("name", "kind", "file.py", "old", "new", ())
    assert mutant.mutated("an old text") == "an new text"
    for source in ("text", "old old"):
        with pytest.raises(ValueError, match="must occur once"):
            mutant.mutated(source)


def test_the_tests_that_matter_exist():
    selections = {selection for mutant in MUTANTS for selection in mutant.tests}
    files = {argument.partition("::")[0] for s in selections for argument in shlex.split(s) if ".py" in argument}
    assert files
    assert [file for file in sorted(files) if not (ROOT / file).is_file()] == []
    assert all(mutant.tests for mutant in MUTANTS)
