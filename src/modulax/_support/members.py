"""The public names of the modules of the library, which are imported when they are first used."""

import importlib
from typing import Any


def names_in(place: str) -> list[str]:
    """The names in a module of the library, without importing what they stand for.

    Args:
        place: the name of the module after `modulax.`; "" for the package itself.
    """
    return dir(importlib.import_module(f"modulax.{place}".rstrip(".")))


def members(place: str) -> dict[str, Any]:
    """The names in a module of the library and their values, each of which is imported.

    Args:
        place: the name of the module after `modulax.`; "" for the package itself.
    """
    module = importlib.import_module(f"modulax.{place}".rstrip("."))
    return {name: getattr(module, name) for name in names_in(place)}
