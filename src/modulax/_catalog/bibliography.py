"""The papers of the algorithms: `bibliography.toml`, by the links in the docstrings of the classes."""

import functools
import tomllib
from importlib import resources
from typing import NamedTuple


class Reference(NamedTuple):
    """A paper, or another publication that first described an algorithm."""

    author: str
    title: str
    year: int
    url: str


@functools.cache
def bibliography() -> dict[str, Reference]:
    """Read the bibliography, once."""
    text = resources.files("modulax._catalog").joinpath("bibliography.toml").read_text(encoding="utf-8")
    return {key: Reference(**entry) for key, entry in tomllib.loads(text).items()}


def publications(cls: type) -> dict[str, Reference]:
    """The papers to which the docstring of a class refers, by their keys in the bibliography."""
    references = (cls.__doc__ or "").partition("References:")[2]
    found = {key: references.find(f"]({paper.url})") for key, paper in bibliography().items()}
    return {key: bibliography()[key] for key in sorted(found, key=found.__getitem__) if found[key] >= 0}
