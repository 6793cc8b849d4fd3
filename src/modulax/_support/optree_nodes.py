"""Modules as nodes of optree's trees, in the namespace "modulax"."""

import contextlib
import dataclasses
import functools
from collections.abc import Iterable
from typing import Any

import equinox as eqx
import jax.tree_util as jtu
import numpy as np
import optree

NAMESPACE = "modulax"
_register: Any = optree.register_pytree_node  # whose annotations ask for collections, which Modules are not


def register_module(cls: type[eqx.Module]) -> None:
    """Register a class with optree, as Equinox registers it with JAX.

    Static fields are metadata, and all others are children. Fields are looked up when an instance is flattened, because
    `__init_subclass__` runs before they are known. The registry keeps the class alive, as JAX's does already.
    """
    unflatten = functools.partial(_module_from, cls)
    entry = optree.GetAttrEntry
    _register(cls, _flatten_module, unflatten, path_entry_type=entry, namespace=NAMESPACE)


def _flatten_module(module: eqx.Module) -> tuple[list[Any], tuple[tuple[str, Any], ...], list[str]]:
    names, children, static = [], [], []
    for field in dataclasses.fields(module):
        value = getattr(module, field.name)
        if field.metadata.get("static"):
            static.append((field.name, value))
        else:
            names.append(field.name)
            children.append(value)
    _register_others(children)
    return children, tuple(static), names


def _module_from(cls: type[eqx.Module], static: tuple[tuple[str, Any], ...], children: Iterable[Any]) -> eqx.Module:
    module = object.__new__(cls)
    names = [f.name for f in dataclasses.fields(cls) if not f.metadata.get("static")]
    for name, value in (*zip(names, children, strict=True), *static):
        object.__setattr__(module, name, value)
    return module


def _register_others(children: list[Any]) -> None:
    """Register the classes that JAX flattens and optree doesn't, such as those of a model in a state.

    That is early enough: optree looks up the class of a child after it has flattened the Module around it.
    """
    found = [jtu.tree_structure(x, is_leaf=_registers_itself) for x in children if type(x) is not np.ndarray]
    while found:
        node = found.pop()
        data = node.node_data()
        if data is None:  # a leaf
            continue
        found += node.children()
        cls = data[0]
        if _register.get(cls, namespace=NAMESPACE) is None:
            with contextlib.suppress(ValueError):  # another thread was faster
                _register_other(cls)


def _registers_itself(x: Any) -> bool:
    return isinstance(x, eqx.Module) and _register.get(type(x), namespace=NAMESPACE) is not None


def _register_other(cls: type) -> None:
    if issubclass(cls, eqx.Module):
        register_module(cls)
    else:
        _register(cls, _flatten_other, jtu.tree_unflatten, namespace=NAMESPACE)


def _flatten_other(node: Any) -> tuple[list[Any], Any, list[Any]]:
    children, treedef = jtu.tree_flatten_with_path(node, is_leaf=lambda x: x is not node)
    return [x for _, x in children], treedef, [entry_of(path[0]) for path, _ in children]


def entry_of(key: Any) -> Any:
    """Return the name, key or index in one of JAX's keys; optree's paths consist of these."""
    return next((getattr(key, name) for name in ("name", "key", "idx") if hasattr(key, name)), key)
