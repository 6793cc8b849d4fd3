"""Modules as values that `flax.serialization` converts, by the names in checkpoints.

Flax looks for the exact class of a value, so every class is registered: when it is made, if Flax has been imported, or
else as soon as it is. modulax itself doesn't import Flax.
"""

import importlib
import importlib.abc
import sys
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

SERIALIZATION = "flax.serialization"
_CLASSES: list[type] = []


def register_class(cls: type) -> None:
    """Register a class with Flax, now or when Flax is imported. JAX's registry keeps the class alive already."""
    _CLASSES.append(cls)
    _register(sys.modules.get(SERIALIZATION), cls)


def _register(serialization: ModuleType | None, *classes: type) -> None:
    # Another thread may be importing Flax; the classes made until then are registered at the end of it.
    register = getattr(serialization, "register_serialization_state", None)
    if register is not None:
        for cls in classes:
            register(cls, _to_state_dict, _from_state_dict, override=True)


def _checkpoint() -> Any:
    """How trees are restored by name, which is loaded when it is needed."""
    return importlib.import_module("modulax.checkpoint._flax")


def _to_state_dict(module: Any) -> dict[str, Any]:
    return _checkpoint().to_state_dict(module)


def _from_state_dict(target: Any, state: Any) -> Any:
    return _checkpoint().from_state_dict(target, state, sys.modules[SERIALIZATION].current_path())


class _Loader(importlib.abc.Loader):
    """Executes `flax.serialization` as another loader does, and registers the classes that were made before."""

    _loader: Any = None  # until `__init__`, so that a copy can be made

    def __init__(self, loader: Any):
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _register(module, *_CLASSES)


class _Finder(importlib.abc.MetaPathFinder):
    """Notices the import of `flax.serialization`, also a second one, such as a reload, which begins a new registry."""

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != SERIALIZATION:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


sys.meta_path.insert(0, _Finder())
