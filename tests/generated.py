"""The pages of the documentation that are made from the registries: `python -m tests.generated` writes them."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import modulax

from .functions import FUNCTION_DIFFERENCES
from .instances import DIFFERENCES

DOCS = Path(__file__).parents[1] / "docs"
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


def differences() -> str:
    """A row for every deliberate difference from optax."""
    rows = [(d.subject, d.ours, d.optax, d.why, d.reference, f"`{d.test}`") for d in DIFFERENCES]
    return table(("what", "modulax", "optax 0.2.8", "why", "reference", "test"), sorted(rows))


def function_differences() -> str:
    """A row for every deliberate difference of a function from that of optax."""
    rows = [(d.subject, d.ours, d.theirs, d.reason, f"`{d.test}`") for d in FUNCTION_DIFFERENCES]
    return table(("what", "modulax", "optax 0.2.8", "why", "test"), sorted(rows))


PAGES = {
    "choosing.md": optimizers,
    "conformance.md": differences,
    "conformance_functions.md": function_differences,
}


def page(name: str) -> str:
    """The page with its table made anew."""
    text = (DOCS / name).read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{PAGES[name]()}\n{END}{after}"


def main() -> None:
    for name in PAGES:
        (DOCS / name).write_text(page(name), encoding="utf-8")


if __name__ == "__main__":
    main()
