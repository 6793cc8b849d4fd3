"""`install()`: `modulax.compat` in the place of optax, for a whole process."""

import importlib
import sys
import types
from typing import Any

from ._names import NAMES
from ._private import PRIVATE


def install() -> None:
    """Let every `import optax` of this process return `modulax.compat`, also those within other libraries.

        from modulax import compat

        compat.install()  # first, before anything imports optax
        import optax  # is modulax.compat

    `python -m modulax.compat script.py` does so, and then runs a script.

    Raises:
        RuntimeError: if optax was imported before, perhaps by another library such as Flax.
    """
    package = importlib.import_module("modulax.compat")
    imported = sys.modules.get("optax")
    if imported is not None and imported is not package:
        users = sorted({name.partition(".")[0] for name, x in sys.modules.items() if _uses(x, imported)} - {"optax"})
        by = f" by {', '.join(f'`{name}`' for name in users)}" if users else ""
        raise RuntimeError(
            f"`modulax.compat.install()` was called after optax had been imported{by}. Call it before all other "
            f"imports, or run the program with `python -m modulax.compat script.py`."
        )
    modules: dict[str, types.ModuleType] = {"optax": package}
    for place in filter(None, ("experimental", *NAMES)):
        modules[f"optax.{place}"] = importlib.import_module(f"modulax.compat.{place}")
    sys.modules.update(modules | {f"optax.{name}": module for name, module in PRIVATE.items()})


def _uses(module: Any, optax: types.ModuleType) -> bool:
    try:
        return any(x is optax for x in vars(module).values())
    except TypeError:  # something else in the place of a module
        return False
