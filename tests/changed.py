"""Run what a change can break: `nox -s tests -- --changed`, or `--changed=REVISION`, which is `main` by default.

A function or class is affected if its file was changed, or if it names something that is affected: of modulax or of the
tests. The tests that are affected are run, and so are those of changed files. Of a test of every instance, those
instances are run that hold something affected.
"""

import ast
import collections
import functools
import itertools
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
HELPERS = ("conftest.py", "__init__.py")  # what every test uses, whether it names them or not


class Symbol(NamedTuple):
    """What a module defines at its top."""

    file: str
    name: str


FOUND = pytest.StashKey[set[Symbol]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--changed", nargs="?", const="main", metavar="REVISION", help="run what changed since, alone")


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Find it once, and not in every worker."""
    if revision := node.config.getoption("changed"):
        node.workerinput["affected"] = [tuple(symbol) for symbol in affected(revision)]


def pytest_collection(session: pytest.Session) -> None:
    if revision := session.config.getoption("changed"):
        given = getattr(session.config, "workerinput", {}).get("affected")
        session.config.stash[FOUND] = affected(revision) if given is None else {Symbol(*x) for x in given}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    found = config.stash.get(FOUND, None)
    if found is not None and collection_path.name.startswith("test_"):
        file = str(collection_path.relative_to(ROOT))
        return None if any(symbol.file == file for symbol in found) else True
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if (found := config.stash.get(FOUND, None)) is not None:
        whole = changed_files(config.getoption("changed"))
        names = {symbol.name for symbol in found if symbol.file.startswith("src")}
        chosen = [item.location[0] in whole or is_affected(item, found, names) for item in items]
        config.hook.pytest_deselected(items=[item for item, kept in zip(items, chosen, strict=True) if not kept])
        items[:] = itertools.compress(items, chosen)


def is_affected(item: Any, found: set[Symbol], names: set[str]) -> bool:
    """Whether a test, and what it is given, is affected."""
    file, _, name = item.location
    given = item.callspec.params.values() if hasattr(item, "callspec") else ()
    subjects = {plain(x) for value in given for x in names_in(value)}
    is_met = not subjects or not subjects.isdisjoint(map(plain, names))
    return is_met and Symbol(file, name.partition("[")[0].partition(".")[0]) in found


def names_in(value: Any) -> Iterator[str]:
    """The classes of an instance, a case or a transform and of everything in it; or the class that a text names."""
    # Imported once the settings of the tests are in force.
    from modulax import AbstractTransform
    from modulax._protocol.transform import everything_in

    made = getattr(value, "made", getattr(value, "transform", value))
    if isinstance(made, AbstractTransform):
        yield from (type(part).__name__ for part in everything_in(made))
    elif hasattr(value, "made"):
        yield type(made).__name__
    elif isinstance(value, str) and plain(value) in map(plain, public_names()):
        yield value


@functools.cache
def changed_files(revision: str) -> set[str]:
    """The files that differ from a revision, and those that git does not know yet."""
    commands = (["git", "diff", "--name-only", revision], ["git", "ls-files", "--others", "--exclude-standard"])
    texts = [subprocess.run(c, cwd=ROOT, capture_output=True, text=True, check=True).stdout for c in commands]
    return {line for text in texts for line in text.splitlines()}


@functools.cache
def affected(revision: str) -> set[Symbol]:
    """Everything that a change can reach, by the names in the source."""
    changed = changed_files(revision)
    users = collections.defaultdict[Symbol, set[Symbol]](set)
    for symbol, used in references().items():
        for other in used:
            users[other].add(symbol)
    every = any(Path(file).name in HELPERS and file.startswith("tests") for file in changed)
    found = {symbol for symbol in references() if every or symbol.file in changed}
    new = found
    while new:
        new = {user for symbol in new for user in users[symbol]} - found
        found |= new
    return found


@functools.cache
def references() -> dict[Symbol, set[Symbol]]:
    """What each function, class and constant names."""
    files = [*(ROOT / "src").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]
    modules = {str(file.relative_to(ROOT)): ast.parse(file.read_text(encoding="utf-8")).body for file in files}
    defined = {file: {name for node in body for name in names_of(node)} for file, body in modules.items()}
    public = collections.defaultdict[str, set[Symbol]](set)
    for file in defined:
        for name in defined[file] & public_names() if file.startswith("src") else ():
            public[plain(name)].add(Symbol(file, name))
    found: dict[Symbol, set[Symbol]] = {}
    for file, body in modules.items():
        imported = dict(imports(file, body, defined))
        here = {name: Symbol(file, name) for name in defined[file]}
        for node in body:
            used = set(words_of(node))
            named = {(here | imported)[word] for word in used if word in here or word in imported}
            if file.startswith("tests"):
                named = named.union(*(public.get(plain(word), ()) for word in used))
            for name in names_of(node):
                found.setdefault(Symbol(file, name), set()).update(named)
    for file, name in list(found):  # a package collects what its modules define under one name, such as TRANSFORMS
        package = Symbol(str(Path(file).parent / "__init__.py"), name)
        if package in found and package.file != file:
            found[package].add(Symbol(file, name))
    return found


def names_of(node: ast.stmt) -> Iterator[str]:
    """The names that a statement at the top of a module defines."""
    match node:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Assign(targets=targets):
            yield from (x.id for target in targets for x in ast.walk(target) if isinstance(x, ast.Name))
        case ast.AnnAssign(target=ast.Name(id=name)):
            yield name


def words_of(node: ast.stmt) -> Iterator[str]:
    """The identifiers in a statement, and the texts that could be one."""
    for part in ast.walk(node):
        match part:
            case ast.Name(id=word) | ast.Attribute(attr=word) | ast.arg(arg=word) | ast.Constant(value=str(word)):
                yield word


def plain(name: str) -> str:
    """`ScaleByLion` and optax's `scale_by_lion` are one name."""
    return name.replace("_", "").lower()


@functools.cache
def public_names() -> set[str]:
    """What `modulax` and its packages export, which tests name as `mx.Lion`."""
    files = [*(ROOT / "src").rglob("__init__.py*")]
    bodies = (ast.parse(file.read_text(encoding="utf-8")).body for file in files if file.suffix in (".py", ".pyi"))
    nodes = (node for body in bodies for node in body if isinstance(node, ast.ImportFrom))
    return {alias.name for node in nodes for alias in node.names if alias.name[0] != "_"}


def imports(file: str, body: list[ast.stmt], defined: dict[str, set[str]]) -> Iterator[tuple[str, Symbol]]:
    """The names that a module imports from modulax or from the tests, with what they are."""
    for node in body:
        if isinstance(node, ast.ImportFrom):
            package = Path(file).parents[node.level - 1] if node.level else ROOT / "src"
            folder = package / (node.module or "").replace(".", "/")
            for alias in node.names:
                for place in (folder.with_suffix(".py"), folder / "__init__.py"):
                    path = str(place.relative_to(ROOT) if place.is_absolute() else place)
                    if alias.name in defined.get(path, ()):
                        yield alias.asname or alias.name, Symbol(path, alias.name)
