"""What is made from the registries, pages of the documentation and the list of public names.

`python -m tests.generated` writes all of it.
"""

import inspect
import types
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import modulax
import modulax.checkpoint
import modulax.linen
import modulax.nnx
import modulax.testing

from .differences import Difference
from .functions import FUNCTION_DIFFERENCES
from .instances import DIFFERENCES
from .vocabulary import ARGUMENTS, rows

DOCS = Path(__file__).parents[1] / "docs"
PUBLIC_NAMES = Path(__file__).parent / "public_names.txt"
# What `import modulax` brings, and the edges, which are imported by themselves.
PLACES = [
    x
    for name, x in sorted(vars(modulax).items())
    if inspect.ismodule(x) and not name.startswith("_") and x.__name__ == f"modulax.{name}"
]
MODULES = (modulax, *PLACES)
BEGIN, END = "<!-- generated: python -m tests.generated -->", "<!-- end -->"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def optimizers() -> str:
    """A row for every optimizer, from its card."""
    rows = []
    for name in modulax.available():
        card = modulax.card(name)
        rows.append(
            (
                f"`{card.optimizer.__name__}`",
                card.summary,
                f"{card.state_bytes:.3g}",
                ", ".join([f"`{argument}`" for argument in card.extra] + ["examples"] * card.takes_examples),
                "yes" if card.takes_complex else "no",
                "; ".join(card.references),
            )
        )
    head = ("optimizer", "what it does", "state", "needs", "complex", "from")
    return table(head, rows)


def differences(from_optax: Sequence[Difference]) -> str:
    """A row for everything that is on purpose otherwise than in optax."""
    columns = [
        ("what", [d.subject for d in from_optax]),
        ("modulax", [d.ours for d in from_optax]),
        ("optax 0.2.8", [d.optax for d in from_optax]),
        ("why", [d.why for d in from_optax]),
        ("reference", [d.reference for d in from_optax]),
        ("test", [f"`{d.test}`" for d in from_optax]),
    ]
    head, cells = zip(*((name, column) for name, column in columns if any(column)), strict=True)
    return table(head, sorted(zip(*cells, strict=True)))


def vocabulary() -> str:
    """A row for every name of optax that is another one here."""
    return table(("optax 0.2.8", "modulax"), rows())


def arguments() -> str:
    """A row for every function of optax whose arguments are called otherwise here."""
    return table(("optax 0.2.8", "modulax"), [(f"`optax.{path}`", words) for path, words in sorted(ARGUMENTS.items())])


PAGES = {
    "choosing.md": [optimizers],
    "conformance.md": [partial(differences, DIFFERENCES)],
    "conformance_functions.md": [partial(differences, FUNCTION_DIFFERENCES)],
    "coming_from_optax.md": [arguments, vocabulary],
}


def page(name: str) -> str:
    """The page with its tables made anew."""
    start, *parts = (DOCS / name).read_text(encoding="utf-8").split(BEGIN)
    for make, part in zip(PAGES[name], parts, strict=True):
        start += f"{BEGIN}\n{make()}\n{END}{part.partition(END)[2]}"
    return start


def public_names(module: types.ModuleType) -> set[str]:
    """What the module offers: names without an underscore, and of the modules in it those of the library."""
    return {
        name
        for name, x in vars(module).items()
        if not name.startswith("_") and (not inspect.ismodule(x) or (module is modulax and x in PLACES))
    }


def names() -> str:
    """A line for every public name."""
    return "".join(f"{module.__name__}.{name}\n" for module in MODULES for name in sorted(public_names(module)))


def main() -> None:
    PUBLIC_NAMES.write_text(names(), encoding="utf-8")
    for name in PAGES:
        (DOCS / name).write_text(page(name), encoding="utf-8")


if __name__ == "__main__":
    main()
