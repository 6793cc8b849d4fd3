"""Modules as values that `flax.serialization` converts, by the names in checkpoints; and variables of NNX in trees.

Flax looks for the exact class of a value, so every class is registered: when it is made, if Flax has been imported, or
else as soon as it is. modulax itself doesn't import Flax.
"""

import importlib.abc
import sys
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

import jax.tree_util as jtu
from jaxtyping import PyTree

from .slots import states_of_flax

SERIALIZATION, NNX = "flax.serialization", "flax.nnx"
_CLASSES: list[type] = []
_DATA: set[type] = set()


def register_class(cls: type) -> None:
    """Register a class with Flax, now or when Flax is imported. JAX's registry keeps the class alive already."""
    _CLASSES.append(cls)
    _register(sys.modules.get(SERIALIZATION), cls)


def register_with_nnx(cls: type) -> None:
    """Let a stock `nnx.Optimizer` hold our optimizers with traced hyperparameters, now or when NNX is imported.

    NNX treats an attribute that contains arrays as data only if its class is registered as a data type.
    """
    _DATA.add(cls)
    register = getattr(sys.modules.get(NNX), "register_data_type", None)
    if register is not None:
        register(cls)


def check_nnx(nnx: Any) -> None:
    """Raise an error if NNX is too old: modulax supports older versions of JAX than NNX needs for it."""
    if not hasattr(nnx, "as_pure"):
        raise ImportError(
            "modulax needs flax 0.12.8 or newer for NNX models, and with it JAX 0.10 or newer: "
            'write `pip install --upgrade "modulax[nnx]"`.'
        )


def is_variable(x: Any) -> bool:
    """Whether this is an NNX variable."""
    # A tree can hold one only if flax was imported, so it need not be imported here.
    nnx = sys.modules.get("flax.nnx")
    return nnx is not None and isinstance(x, nnx.Variable)


def holds_states(tree: PyTree) -> bool:
    """Whether parts of a tree became `nnx.State`, as Modules inside variables do in the stock `flax.nnx.Optimizer`."""
    return _holds(tree, "State")


def _holds(tree: PyTree, kind: str) -> bool:
    """Whether a tree holds anything of a class of NNX."""
    nnx = sys.modules.get("flax.nnx")
    # A method of the type, because a Python function would be called for every node.
    is_one = None if nnx is None else getattr(nnx, kind).__instancecheck__
    return is_one is not None and any(map(is_one, jtu.tree_leaves(tree, is_leaf=is_one)))


def without_variables(tree: PyTree) -> PyTree:
    """Return a tree with the arrays of its NNX variables in their place."""
    if not _holds(tree, "Variable"):
        return tree
    return jtu.tree_map(lambda x: x.get_value() if is_variable(x) else x, tree, is_leaf=is_variable)


def _register(serialization: ModuleType | None, *classes: type) -> None:
    # Another thread may be importing Flax; the classes made until then are registered at the end of it.
    register = getattr(serialization, "register_serialization_state", None)
    if register is not None:
        for cls in classes:
            register(cls, _to_state_dict, _from_state_dict, override=True)


def _to_state_dict(module: Any) -> dict[str, Any]:
    return states_of_flax.module.to_state_dict(module)


def _from_state_dict(target: Any, state: Any) -> Any:
    return states_of_flax.module.from_state_dict(target, state, sys.modules[SERIALIZATION].current_path())


class _Loader(importlib.abc.Loader):
    """Executes a module of Flax as another loader does, and registers the classes that were made before."""

    _loader: Any = None  # until `__init__`, so that a copy can be made

    def __init__(self, loader: Any):
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        if module.__name__ == SERIALIZATION:
            _register(module, *_CLASSES)
        else:
            for cls in [*_DATA]:
                register_with_nnx(cls)


class _Finder(importlib.abc.MetaPathFinder):
    """Notices the import of the two modules, also a second one, such as a reload, which begins a new registry."""

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname not in (SERIALIZATION, NNX):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


sys.meta_path.insert(0, _Finder())
