"""Deliberate differences from optax: the rows of `docs/differences_from_optax.md`."""

import re
from pathlib import Path
from typing import NamedTuple

PAGE = Path(__file__).parents[1] / "docs" / "differences_from_optax.md"


class Difference(NamedTuple):
    """A row of `docs/differences_from_optax.md`, or of `docs/differences_from_optax_functions.md`.

    Attributes:
        subject: the class or the function, and the situation if it is not all of it.
        ours: what modulax does.
        optax: what optax 0.2.8 does.
        why: the reason.
        test: `file.py::name` of the test that shows the two differ.
        reference: the paper, the reference implementation or the issue that says so.
    """

    subject: str
    ours: str
    optax: str
    why: str
    test: str
    reference: str = ""


def _listed() -> tuple[Difference, ...]:
    table = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    rows = ([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table[2:])
    return tuple(
        Difference(subject, ours, optax, why, test.strip("`"), reference)
        for subject, ours, optax, why, reference, test in rows
    )


DIFFERENCES = _listed()
