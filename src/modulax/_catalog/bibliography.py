"""The papers of the algorithms: `bibliography.toml`, by the keys that the classes list in `cites`."""

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


def reference(key: str, cls: type) -> Reference:
    """Look up a key that a class lists in `cites`.

    Raises:
        ValueError: if it is not in the bibliography.
    """
    if key in bibliography():
        return bibliography()[key]
    raise ValueError(
        f"`{cls.__name__}.cites` lists `{key}`, which is not in the bibliography. Add an entry `[{key}]` with "
        f"`author`, `title`, `year` and `url` to `modulax/_catalog/bibliography.toml`."
    )
