"""Scripts outside the package, imported for the length of a `with` statement."""

import contextlib
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType


@contextlib.contextmanager
def script(folder: Path, name: str) -> Iterator[ModuleType]:
    """Yield a module of a folder; those of the folder are forgotten afterwards."""
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        yield importlib.import_module(name)
    finally:
        sys.path.remove(str(folder))
        for loaded in set(sys.modules) - before:
            if str(getattr(sys.modules[loaded], "__file__", None)).startswith(str(folder)):
                del sys.modules[loaded]
