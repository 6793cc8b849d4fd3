"""Change functions of the source in small ways, one at a time, and see whether the tests notice: `nox -s mutants`.

A survey runs the tests that speak of the mutated files, then others, and records which functions each of them calls.
Each mutant is planted in a fork of this process, in memory, and the tests that call its function run until one fails.
Only bodies of functions change; what they did while modulax was imported stays.
"""

import argparse
import ast
import collections
import gc
import itertools
import os
import pkgutil
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import pytest
from _pytest.runner import runtestprotocol

ALIVE, KILLED, UNFIT = 0, 1, 70  # how a fork ends
SCOPE = ast.FunctionDef | ast.ClassDef
EXCLUDED = SCOPE | ast.JoinedStr | ast.Assert | ast.Raise
PYTEST = ("-q", "-pno:xdist", "-pno:cacheprovider", "-Wignore::pytest.PytestAssertRewriteWarning", "-Wignore:os.fork")
SURVEY, TESTS, END = 60, 30, 600  # seconds: of the survey for each file, of tests for each mutant, and the latest end
PAIRS = """Lt LtE, Gt GtE, Eq NotEq, Is IsNot, In NotIn, Add Sub, Mult Div, BitOr BitAnd, And Or, USub UAdd, any all,
FloorDiv Mod, min max, minimum maximum, argmin argmax, floor ceil, zeros ones, zeros_like ones_like, sum mean, sin cos,
logical_and logical_or, real imag"""
OTHER = {old: new for pair in PAIRS.split(",") for a, b in [pair.split()] for old, new in ((a, b), (b, a))}


def variants(node: ast.AST) -> Iterator[tuple[str, dict[str, Any]]]:
    """The changes of one node of the syntax tree: a name, and the fields that get other values."""
    match node:
        case ast.Compare(ops=[op]) if type(op).__name__ in OTHER:
            yield "comparison", {"ops": [getattr(ast, OTHER[type(op).__name__])()]}
        case ast.BinOp() | ast.BoolOp() | ast.AugAssign() | ast.UnaryOp() if type(node.op).__name__ in OTHER:
            yield "operator", {"op": getattr(ast, OTHER[type(node.op).__name__])()}
        case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
            yield "negated condition", {"test": ast.UnaryOp(ast.Not(), test)}
            yield "condition never holds", {"test": ast.Constant(False)}
        case ast.comprehension(ifs=[test, *rest]):
            yield "negated filter", {"ifs": [ast.UnaryOp(ast.Not(), test), *rest]}
        case ast.Constant(value=int(value) | float(value)):
            yield "constant", {"value": value + 1 if isinstance(value, float) else value ^ type(value)(1)}
        case ast.Attribute(attr=name) | ast.Name(id=name, ctx=ast.Load()) if name in OTHER:
            yield "function", {node._fields[isinstance(node, ast.Attribute)]: OTHER[name]}
        case ast.Expr(value=ast.Call()):
            yield "removed call", {"value": ast.Constant(None)}
        case ast.Assign(targets=[ast.Name(id=name)]) if name in words(ast.unparse(node.value)):
            yield "removed assignment", {"value": ast.Name(name, ast.Load())}
        case ast.Call():
            yield from variants_of_call(node)


def variants_of_call(call: ast.Call) -> Iterator[tuple[str, dict[str, Any]]]:
    for i, (a, b) in enumerate(itertools.pairwise(call.args)):
        if ast.dump(a) != ast.dump(b) and ast.unparse(call.func).rpartition(".")[2] not in OTHER:
            yield "swapped arguments", {"args": [*call.args[:i], b, a, *call.args[i + 2 :]]}
    for keyword in call.keywords:
        if keyword.arg not in (None, "strict"):  # zip(strict=True) only refuses what never happens
            yield f"dropped `{keyword.arg}`", {"keywords": [k for k in call.keywords if k is not keyword]}


def parts(node: ast.AST) -> Iterator[ast.AST]:
    """What can be changed inside a node: no annotations, types, error messages, or functions that have a name."""
    for child in ast.iter_child_nodes(node):
        excluded = isinstance(child, EXCLUDED) or getattr(child, "arg", None) == "strict"
        asks_type = isinstance(child, ast.Call) and ast.unparse(child.func) in ("isinstance", "issubclass")
        if not (excluded or asks_type or child is getattr(node, "annotation", None)):
            yield from (child, *parts(child))


def functions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    """Every function, with the qualified name that Python gives it."""
    for child in ast.iter_child_nodes(node):
        name = f"{prefix}{child.name}" if isinstance(child, SCOPE) else ""
        yield from [(name, child)] if isinstance(child, ast.FunctionDef) else []
        inside = ".<locals>." if isinstance(child, ast.FunctionDef) else "."
        yield from functions(child, f"{name}{inside}" if name else prefix)


Mutant = collections.namedtuple("Mutant", "file function node fields text")


def mutants(file: str, tree: ast.AST, lines: set[int] | None = None) -> Iterator[Mutant]:
    """All mutants of the functions that contain one of the lines."""
    for name, function in functions(tree):
        line = function.lineno
        if lines is None or lines & {*range(line, (function.end_lineno or 0) + 1)}:
            for node in parts(ast.Module(list(function.body), [])):
                line = getattr(node, "lineno", line)
                for operator, fields in variants(node):
                    old, before = {field: getattr(node, field) for field in fields}, ast.unparse(node).splitlines()[0]
                    vars(node).update(fields)
                    text = f"{file}:{line} {operator}\n    - {before}\n    + {ast.unparse(node).splitlines()[0]}"
                    vars(node).update(old)
                    yield Mutant(file, name, node, fields, text)


def words(text: str) -> set[str]:
    return set(re.findall(r"[A-Za-z]\w*", text))


class Forks:
    """A plugin of pytest that runs tests in forks; the process itself compiles nothing, or it could not be forked."""

    def __init__(self, trees: dict[str, ast.Module], planted: list[Mutant], options: argparse.Namespace, folder: str):
        self.trees, self.planted, self.options, self.folder = trees, planted, options, Path(folder)
        self.live = collections.defaultdict[tuple[str, str], list[Any]](list)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> bool:
        self.session = session
        for module in pkgutil.walk_packages(__import__("modulax").__path__, "modulax."):
            __import__(module.name)
        for f in (x for x in gc.get_objects() if isinstance(x, types.FunctionType)):
            self.live[f.__code__.co_filename, f.__code__.co_qualname].append(f)
        gc.freeze()  # shared with the forks
        if self.fork(self.survey) != ALIVE:
            raise pytest.UsageError("the tests could not be collected")
        self.calls: dict[str, dict[str, float]] = ast.literal_eval((self.folder / "survey").read_text())
        with ThreadPoolExecutor(self.options.jobs) as pool:
            self.ends = collections.Counter(pool.map(self.end, self.planted))
        return True

    def fork(self, work: Callable[[], int]) -> int:
        if (pid := os.fork()) == 0:
            try:
                os._exit(work())
            finally:
                os._exit(UNFIT)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def plant(self, file: str) -> None:
        """Give the functions of a file the code of its syntax tree."""
        path, versions = str(Path(file).resolve()), collections.defaultdict[str, list[types.CodeType]](list)
        (module,) = (m for m in dict[str, Any](sys.modules).values() if getattr(m, "__file__", None) == path)
        codes = [module.__spec__.loader.source_to_code(ast.unparse(self.trees[file]).encode(), path)]
        for code in codes:
            versions[code.co_qualname].append(code)
            codes += [inner for inner in code.co_consts if isinstance(inner, types.CodeType)]
        for name in dict(functions(self.trees[file])):  # no lambdas of a module, which can share a line
            lines = sorted({f.__code__.co_firstlineno for f in self.live[path, name]})  # a getter, a setter
            for f in self.live[path, name]:
                f.__code__ = versions[name][-len(lines) :][lines.index(f.__code__.co_firstlineno)]

    def survey(self) -> int:
        """Write which tests pass and call a function, and how long each takes."""
        sys.called = called = set[str]()  # pyright: ignore[reportAttributeAccessIssue]
        for file, tree in self.trees.items():
            for name, function in functions(tree):
                function.body[:0] = ast.parse(f"import sys; sys.called.add({f'{file}:{name}'!r})").body
            self.plant(file)
        items, found = [*self.session.perform_collect(self.options.tests)], collections.defaultdict[str, Any](dict)
        for file in self.trees:
            end = time.process_time() + SURVEY
            for item in itertools.takewhile(lambda _, end=end: time.process_time() < end, self.in_order(items, file)):
                start = time.process_time()
                called.clear()
                jax.clear_caches()  # so that it traces what an earlier test has traced
                items.remove(item)
                for name in called if self.passes(item) else ():
                    if sum(found[name].values()) < TESTS:
                        found[name][item.nodeid] = time.process_time() - start
        return ALIVE if (self.folder / "survey").write_text(repr(dict(found))) else UNFIT

    def in_order(self, items: list[pytest.Item], file: str) -> list[pytest.Item]:
        """First the tests that speak of what a file defines; the later cases of one test come later."""
        texts, cases = {item.path: words(item.path.read_text()) for item in items}, collections.Counter[str]()
        names = words(file.replace("_", " ")) | {n.name for n in ast.walk(self.trees[file]) if isinstance(n, SCOPE)}
        names |= {name.removeprefix("ScaleBy") for name in names}
        weights = {name: 1 / (1 + sum(name in text for text in texts.values())) for name in names}
        scores: dict[pytest.Item, float] = {}
        for item in random.Random(0).sample(items, len(items)):
            in_id = words(item.nodeid.replace("_", " ")) | words(item.nodeid)
            scores[item] = sum(weights[n] * (1 + 4 * (n in in_id)) for n in names & (in_id | texts[item.path]))
        for item in sorted(scores, key=lambda i: -scores[i]):
            cases[test := item.nodeid.partition("[")[0]] += 1
            scores[item] *= 0.7 ** cases[test]
        return sorted(scores, key=lambda i: -scores[i])

    def passes(self, item: pytest.Item) -> bool:
        return not any(report.failed for report in runtestprotocol(item, nextitem=None, log=False))

    def judge(self, mutant: Mutant, tests: Iterable[str]) -> int:
        """Run tests with a mutant until one fails, twice; a loop without end ends the fork, which is a failure too."""
        vars(mutant.node).update(mutant.fields)
        self.plant(mutant.file)
        signal.alarm(END)
        items: dict[str, pytest.Item] = {}
        for test in tests:
            if test not in items:
                items |= {item.nodeid: item for item in self.session.perform_collect([test.partition("::")[0]])}
            if test not in items or not (self.passes(items[test]) or self.passes(items[test])):
                return KILLED
        return ALIVE

    def end(self, mutant: Mutant) -> int:
        tests = self.calls.get(f"{mutant.file}:{mutant.function}", {})
        status = self.fork(lambda: self.judge(mutant, tests))
        if status == ALIVE:
            print(f"{mutant.text}\n    {len(tests)} tests call it and pass", flush=True)
        return status


def changed_lines(revision: str) -> dict[str, set[int]]:
    diff = subprocess.run(["git", "diff", "-U0", revision, "--", "src"], capture_output=True, text=True, check=True)
    found = collections.defaultdict[str, set[int]](set)
    for file, hunks in re.findall(r"^\+\+\+ b/(.*\.py)$((?:\n(?!diff ).*)*)", diff.stdout, re.MULTILINE):
        for first, count in re.findall(r"^@@ \S+ \+(\d+),?(\d*)", hunks, re.MULTILINE):
            found[file] |= {*range(int(first), int(first) + int(count or 1))}
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="nox -s mutants --")
    parser.add_argument("files", nargs="*", help="mutate these files, and not what changed")
    parser.add_argument("--since", default="main", metavar="REVISION", help="mutate the functions that changed since")
    parser.add_argument("--most", type=int, default=30, help="how many mutants of a file")
    parser.add_argument("--jobs", type=int, default=1, help="how many at a time")
    parser.add_argument("--tests", nargs="+", default=["tests"], help="choose among these tests, and not among all")
    parser.add_argument("--report", action="store_true", help="exit with 0 although mutants are alive")
    options = parser.parse_args()
    lines = dict.fromkeys(options.files) or changed_lines(options.since)
    trees = {file: ast.parse(Path(file).read_text(encoding="utf-8")) for file in lines}
    every = {file: list(mutants(file, tree, lines[file])) for file, tree in trees.items()}
    planted = [m for f, found in every.items() for m in random.Random(f).sample(found, min(options.most, len(found)))]
    with tempfile.TemporaryDirectory(prefix="modulax-mutants-") as folder:
        os.environ.setdefault("MODULAX_TEST_CACHE", folder)
        tests = Forks(trees, planted, options, folder)
        pytest.main([*PYTEST], plugins=[tests])
    print(f"{len(planted) - tests.ends[UNFIT]} mutants, {tests.ends[ALIVE]} of them alive")
    return 1 if tests.ends[ALIVE] and not options.report else 0


if __name__ == "__main__":
    sys.exit(main())
