"""A planted fault."""

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "modulax"


@dataclass(frozen=True)
class Mutant:
    """A small change of the source that some user would notice, and the tests that notice it first.

    Args:
        name: what the fault is called.
        kind: the kind of thing that is broken, in a word or two.
        file: the changed file, below `src/modulax`.
        old: the text that is replaced. It occurs once in the file.
        new: the text that takes its place.
        tests: arguments of pytest; each string is a run of its own, and the runs end with the first that fails.
    """

    name: str
    kind: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def __str__(self) -> str:
        return self.name

    def mutated(self, source: str) -> str:
        """The text of the file with the fault in it."""
        if source.count(self.old) != 1:
            raise ValueError(
                f"The mutant `{self.name}` replaces a text that occurs {source.count(self.old)} times in "
                f"`{self.file}`; it must occur once:\n{self.old}"
            )
        return source.replace(self.old, self.new)
