"""The sentences on inherited fields in the docstrings of final classes: `python -m tests.field_docs` writes them.

A sentence on a field is typed once: in the docstring of the group that has the field, or of the final class that
declares it where no group does. Every final class that inherits the field has the sentence in its own docstring too,
where editors and `help` look for it.
"""

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

from modulax.authoring import AbstractFields, AbstractRated

from .test_architecture import PACKAGE, classes

ARGS = re.compile(r"^    Args:\n(?:        .*\n)+", re.MULTILINE)
ENTRY = re.compile(r"^        (\w+): .*\n(?:            .*\n)*", re.MULTILINE)


def docstring(node: ast.ClassDef) -> ast.Expr | None:
    """The statement that is the docstring of a class."""
    match node.body[0]:
        case ast.Expr(value=ast.Constant()) as statement:
            return statement
    return None


def texts() -> dict[type, str]:
    """The docstrings of the classes with fields in groups as they stand in the source, with the quotes."""
    found = {}
    for (module, name), known in classes().items():
        cls = vars(importlib.import_module(module)).get(name)
        if inspect.isclass(cls) and issubclass(cls, AbstractFields | AbstractRated) and (at := docstring(known.node)):
            found[cls] = ast.get_source_segment(known.source.text, at) or ""
    return found


def entries(text: str) -> dict[str, str]:
    """The text on each argument in a docstring, as it stands there."""
    section = ARGS.search(text)
    return {entry[1]: entry[0] for entry in ENTRY.finditer(section[0])} if section else {}


def documented(cls: type, typed: dict[type, str]) -> str:
    """The docstring of a final class with the sentences on all of its arguments.

    Args:
        cls: the class.
        typed: the docstrings as they stand in the source.
    """
    groups = [entries(typed[base]) for base in cls.__mro__[1:] if base in typed]
    own = entries(typed[cls])
    names = list(inspect.signature(cls.__init__).parameters)[1:]
    found = {name: next((group[name] for group in groups if name in group), own.get(name)) for name in names}
    lacking = [name for name, text in found.items() if text is None]
    assert not lacking, f"{cls.__name__}: no docstring of the class or of a group has a sentence on {lacking}"
    section = f"    Args:\n{''.join(text for text in found.values() if text)}"
    text, end = typed[cls], typed[cls].rfind('"""')
    if ARGS.search(text):
        return ARGS.sub(lambda _: section, text, count=1)
    if not names:
        return text
    place = text.find("    References:\n")
    start, rest = (text[:place], f"\n{text[place:]}") if place >= 0 else (f"{text[:end].rstrip()}\n\n", '    """')
    return start + section + rest


def rewritten() -> Iterator[tuple[Path, str, str]]:
    """The files with final classes that inherit fields, as they are and as they have to be."""
    typed = texts()
    heirs = [cls for cls in typed if not cls.__name__.lstrip("_").startswith("Abstract")]
    for module in sorted({cls.__module__ for cls in heirs}):
        path = PACKAGE.parent / f"{module.replace('.', '/')}.py"
        before = after = path.read_text(encoding="utf-8")
        for cls in heirs:
            if cls.__module__ == module:
                after = after.replace(typed[cls], documented(cls, typed), 1)
        yield path, before, after


def main() -> None:
    for path, before, after in rewritten():
        if before != after:
            path.write_text(after, encoding="utf-8")


if __name__ == "__main__":
    main()
