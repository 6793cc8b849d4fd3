"""The imports in `__init__.pyi` and `states.py` of `modulax`, found without importing it.

`python -m tests.exports` writes them, so that a new class can be used; `python -m tests.generated` does too.
"""

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

from .test_architecture import classes

PACKAGE = Path(__file__).parents[1] / "src" / "modulax"
EXPORTS = PACKAGE / "__init__.pyi"
STATES = PACKAGE / "states.py"
NOT_PUBLIC = {"DecayedStep", "StepWithDecay"}  # the last steps of optimizers, which construct them


def below(base: str, *modules: str) -> Iterator[tuple[str, str]]:
    """The modules and names of the public final classes that descend from a class, found without an import."""
    for (module, name), cls in sorted(classes().items()):
        ancestors = [*cls.bases]
        while ancestors and ancestors[-1].name != base:
            ancestors += ancestors.pop().bases
        if ancestors and module.startswith(modules) and not (name.startswith("_") or cls.is_named_abstract):
            yield module, name


def exports() -> str:
    """The stub with the public names of `modulax`: what it exports, and every transform."""
    text = EXPORTS.read_text(encoding="utf-8")
    start, end = text.index("from . import"), text.index("\n__version__")
    imports = {x.module or "": x for x in ast.parse(text[:end]).body if isinstance(x, ast.ImportFrom)}
    names = {module: [alias.name for alias in x.names] for module, x in imports.items()}
    lines = {module: f"{ast.get_source_segment(text, x)}\n" for module, x in imports.items()}
    packages = ("modulax._containers.", "modulax._rules.", "modulax._transforms.")
    for place, name in below("AbstractTransform", *packages):
        module = place.removeprefix("modulax.")
        if name not in NOT_PUBLIC and name not in names.setdefault(module, []):
            # The order of ruff: constants, such as `SGD`, come first.
            names[module].append(name)
            names[module].sort(key=lambda name: (not name.isupper(), not name[0].isupper(), name))
            lines[module] = import_of(f".{module}", names[module])
    return f"{text[:start]}{''.join(lines[module] for module in sorted(lines))}{text[end:]}"


def import_of(module: str, names: Sequence[str]) -> str:
    """A statement that exports names of a module, as ruff formats it."""
    exported = [f"{name} as {name}" for name in names]
    line = f"from {module} import {', '.join(exported)}\n"
    in_rows = "".join(f"    {name},\n" for name in exported)
    return line if len(line) <= 121 else f"from {module} import (\n{in_rows})\n"


def states() -> str:
    """The module `modulax.states`: the classes of all states, and what they hold."""
    packages = ("modulax._containers.", "modulax._rules.", "modulax._protocol.container", "modulax._transforms.")
    places: dict[str, list[str]] = {}
    for module, name in [*below("AbstractState", *packages), ("modulax.numerics._quantized", "Quantized")]:
        places.setdefault(module.removeprefix("modulax"), []).append(name)
    lines = [import_of(module, names) for module, names in places.items()]
    title = "The state classes of all transforms, for annotations and for code that reads a state. Generated."
    return f'"""{title}"""\n\n{"".join(lines)}'


def main() -> None:
    EXPORTS.write_text(exports(), encoding="utf-8")
    STATES.write_text(states(), encoding="utf-8")


if __name__ == "__main__":
    main()
