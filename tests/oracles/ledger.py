"""Which released code each class is compared with, and where a class departs from it on purpose.

`ledger.tsv` and `departures.tsv` hold the rows. `python -m tests.generated` makes the tables of `docs/released_code.md`
from them.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Released(NamedTuple):
    """A row of the tables of released code in `docs/released_code.md`.

    Attributes:
        names: the classes that are compared with it.
        source: the package, or the repository and the file.
        version: the version of the package, or the commit.
        settings: the arguments that either side needs, beyond equal hyperparameters.
    """

    names: str
    source: str
    version: str
    settings: str = ""


class Departure(NamedTuple):
    """A row of the second table: two trajectories that are apart, and how far.

    Attributes:
        subject: the class, and the situation if it is not all of it.
        ours: what modulax does.
        theirs: what the released code does.
        why: the reason.
        trajectory: the name of the frozen trajectory.
        distance: the largest distance, as a fraction of the largest parameter.
    """

    subject: str
    ours: str
    theirs: str
    why: str
    trajectory: str
    distance: float


def _rows(name: str) -> Iterator[list[str]]:
    """The rows of a file below its header."""
    text = Path(__file__).with_name(f"{name}.tsv").read_text(encoding="utf-8")
    return (line.split("\t") for line in text.splitlines()[1:])


def _compared_by(test: str) -> tuple[Released, ...]:
    return tuple(Released(*row) for file, *row in _rows("ledger") if file == test)


RELEASED = _compared_by("test_released_code")
FIRST_ORDER = _compared_by("test_released_first_order")
CURVATURE = _compared_by("test_released_curvature")
AROUND = _compared_by("test_released_around")
DEPARTURES = tuple(Departure._make([*words, float(distance)]) for *words, distance in _rows("departures"))
