"""`nox -s mutants` changes what a user could notice, in the functions that differ from a revision."""

import argparse
import ast
import importlib
import subprocess
from pathlib import Path

import pytest

from .mutation import Forks, changed_lines, mutants

SOURCE = '''
class A:
    @property
    def size(self, most: int | None = None) -> int:
        """The size."""
        n: int = max(self.n, 1)
        if n > 2 and not isinstance(n, bool | int):
            raise ValueError(f"{n + 1} > 2")
        n = f(n, most, key=0.5)

        def inner(x):
            return -x

        return [x for x in n if x]
'''
CHANGES = """
A.size a.py:6 function: max -> min
A.size a.py:6 constant: 1 -> 0
A.size a.py:7 negated condition: if C: -> if not (C):
A.size a.py:7 condition never holds: if C: -> if False:
A.size a.py:7 operator: C -> n > 2 or not isinstance(n, bool | int)
A.size a.py:7 comparison: n > 2 -> n >= 2
A.size a.py:7 constant: 2 -> 3
A.size a.py:9 removed assignment: n = f(n, most, key=0.5) -> n = n
A.size a.py:9 swapped arguments: f(n, most, key=0.5) -> f(most, n, key=0.5)
A.size a.py:9 dropped `key`: f(n, most, key=0.5) -> f(n, most)
A.size a.py:9 constant: 0.5 -> 1.5
A.size a.py:14 negated filter:  for x in n if x ->  for x in n if not x
A.size.<locals>.inner a.py:12 operator: -x -> +x
""".replace("C", "n > 2 and (not isinstance(n, bool | int))")


def test_no_type_message_default_or_symmetric_call_is_changed():
    tree = ast.parse(SOURCE)
    before = ast.dump(tree)
    found = [f"{m.function} {m.text}" for m in mutants("a.py", tree)]
    assert [text.replace("\n    - ", ": ").replace("\n    + ", " -> ") for text in found] == CHANGES.split("\n")[1:-1]
    assert ast.dump(tree) == before
    assert {m.function for m in mutants("a.py", tree, {12})} == {"A.size", "A.size.<locals>.inner"}


def test_changed_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "src").mkdir()
    first, second = Path("src/a.py"), Path("src/b.py")
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    first.write_text("a\nb\nc\nd\n")
    second.write_text("a\n")
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "a"]):
        subprocess.run(git + arguments, check=True)
    first.write_text("a\nB\nc\nd\ne\nf\n")
    assert changed_lines("HEAD") == {"src/a.py": {2, 5, 6}}
    second.write_text("b\n")
    assert changed_lines("HEAD") == {"src/a.py": {2, 5, 6}, "src/b.py": {1}}


PLANTED = """
import functools
from typing import overload
pair = (lambda: 1, lambda: 2)
@overload
def twice(x: int) -> int: ...
@overload
def twice(x: str) -> str: ...
@functools.cache
def twice(x):
    def inner():
        return x + x
    return inner()
class A:
    @property
    def size(self):
        return self._size + 1
    @size.setter
    def size(self, size):
        self._size = size - 1
"""


def test_a_mutant_is_planted_in_living_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "planted_in.py").write_text(PLANTED)
    monkeypatch.syspath_prepend(tmp_path)
    module, file = importlib.import_module("planted_in"), str(tmp_path / "planted_in.py")
    tests = Forks({file: ast.parse(PLANTED)}, [], argparse.Namespace(), str(tmp_path))
    for f in (module.twice.__wrapped__, module.A.size.fget, module.A.size.fset, *module.pair):
        tests.live[file, f.__qualname__].append(f)
    a = module.A()
    for m in mutants(file, tests.trees[file]):
        before = {name: getattr(m.node, name) for name in m.fields}
        vars(m.node).update(m.fields)
        tests.plant(file)
        module.twice.cache_clear()
        a.size = 5
        assert (module.twice(2), a._size, a.size) != (4, 4, 5), m.text
        assert [f() for f in module.pair] == [1, 2]
        vars(m.node).update(before)
