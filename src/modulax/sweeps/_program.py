"""What a traced program and a member consist of: a text and arrays, by which two of them are compared.

The text of a jaxpr itself won't do. It has the addresses of functions, which differ between processes, and neither the
constants of the programs inside nor all entries of an array. Here, every parameter of an operation is written by its
type, and of whatever has no fixed text, such as a function, only the name is.
"""

import dataclasses
import enum
import functools
import hashlib
import re
import types
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.tree_util as jtu
import numpy as np
from jax.experimental import multihost_utils
from jax.extend.core import (
    ClosedJaxpr,  # pyright: ignore[reportPrivateImportUsage]
    Jaxpr,
    Literal,
)
from jaxtyping import PyTree

from .._plugin.arrays import is_typed_key
from .._plugin.trees import dotted
from ..authoring import AbstractTransform

WITHOUT_EFFECT = {"name"}  # parameters of operations: the name of a jitted function


class Content(NamedTuple):
    """The operations of a program, and its constants in the order in which the text refers to them."""

    text: str
    arrays: Sequence[Any]

    def digest(self) -> str:
        """A short text that differs if the programs differ."""
        total = hashlib.sha256(self.text.encode())
        for x in self.arrays:
            total.update(_bytes(x))
        return total.hexdigest()[:16]

    def difference(self, other: "Content") -> str:
        """What differs from another program, in words; empty if nothing does."""
        if self.text != other.text:
            return "other operations, or other numbers in them"
        pairs = zip(self.arrays, other.arrays, strict=True)
        changed = next((x for x, y in pairs if x is not y and _bytes(x) != _bytes(y)), None)
        return "" if changed is None else f"another array {changed.dtype}{list(changed.shape)}"


def content_of(closed: ClosedJaxpr) -> Content:
    """The operations and constants of a traced program, and of the programs inside."""
    writer = _Writer()
    writer.program(closed.jaxpr, closed.consts)
    return Content("\n".join(writer.programs), writer.arrays)


def fetched(x: Any) -> np.ndarray:
    """An array on the host, in every process; a random key as integers."""
    if is_typed_key(x):
        x = jax.random.key_data(x)
    if isinstance(x, jax.Array) and not x.is_fully_addressable:
        x = multihost_utils.process_allgather(x, tiled=True)
    return np.asarray(x)


def _bytes(x: Any) -> bytes:
    return f"{x.dtype}{list(x.shape)}".encode() + fetched(x).tobytes()


class _Writer:
    """Writes a program and those inside, each once: a program that many operations call has a number."""

    def __init__(self) -> None:
        self.programs: list[str] = []
        self.arrays: list[Any] = []
        self._numbers: dict[tuple[int, ...], int] = {}  # by identity: the programs live as long as the outermost one
        self._places: dict[int, int] = {}

    def program(self, jaxpr: Jaxpr, consts: Sequence[Any]) -> str:
        key = (id(jaxpr), *map(id, consts))
        if key not in self._numbers:
            names: dict[Any, str] = {}
            head = [self._names(jaxpr.constvars, names), *map(self.value, consts), self._names(jaxpr.invars, names)]
            lines = [self._operation(equation, names) for equation in jaxpr.eqns]
            text = "\n".join([" ".join(head), *lines, self._names(jaxpr.outvars, names)])
            self._numbers[key] = len(self.programs)
            self.programs.append(text)
        return f"program {self._numbers[key]}"

    def _names(self, variables: Sequence[Any], names: dict[Any, str]) -> str:
        return " ".join(self._name(x, names) for x in variables)

    def _name(self, x: Any, names: dict[Any, str]) -> str:
        if isinstance(x, Literal):
            return f"{self.value(x.val)}:{x.aval}"
        return names.setdefault(x, f"v{len(names)}:{x.aval}")

    def _operation(self, equation: Any, names: dict[Any, str]) -> str:
        parameters = {name: x for name, x in equation.params.items() if name not in WITHOUT_EFFECT}
        arguments, results = self._names(equation.invars, names), self._names(equation.outvars, names)
        return f"{results} = {equation.primitive.name}{self.value(parameters)} {arguments}"

    def value(self, x: Any) -> str:
        """A parameter or a constant; of an object that can't be told from another of its type, only the type."""
        match x:
            case ClosedJaxpr():
                return self.program(x.jaxpr, x.consts)
            case Jaxpr():
                return self.program(x, ())
            case enum.Enum() | np.dtype():
                return str(x)
            case bool() | int() | float() | complex() | str() | bytes() | None:
                return repr(x)
            case functools.partial():
                return self.value((x.func, x.args, x.keywords))
            case type() | types.FunctionType():
                return x.__qualname__
        return self._array(x) if _is_array(x) else self._inside(x)

    def _inside(self, x: Any) -> str:
        """What an object holds, between its brackets or in its fields."""
        if isinstance(x, (set, frozenset)):
            return f"{{{', '.join(sorted(map(self.value, x)))}}}"
        if isinstance(x, Mapping):
            return self.value(sorted((str(key), self.value(y)) for key, y in x.items()))
        if isinstance(x, (tuple, list)):
            return f"({', '.join(map(self.value, x))})"
        if dataclasses.is_dataclass(x):
            return self.value({field.name: getattr(x, field.name) for field in dataclasses.fields(x)})
        return type(x).__name__

    def _array(self, x: Any) -> str:
        if np.ndim(x) == 0 and not is_typed_key(x):
            return repr(fetched(x).tolist())
        place = self._places.setdefault(id(x), len(self.arrays))
        if place == len(self.arrays):
            self.arrays.append(x)
        return f"array {place}"


def _is_array(x: Any) -> bool:
    return is_typed_key(x) or hasattr(type(x), "__array__")


def described(member: AbstractTransform, shape: Mapping[str, Any] | None = None) -> str:
    """The whole repr in one line, and the numbers of arrays inside, of which it shows the shapes.

    Addresses of functions are left out, because they differ between processes. What a function computes is part of the
    traced program, which a folder compares too.

    Args:
        member: the member.
        shape: the values of `over` with which it is trained.
    """
    arrays = [x for x in jtu.tree_leaves(member) if np.ndim(x) > 0]
    numbers = [hashlib.sha256(fetched(x).tobytes()).hexdigest()[:16] for x in arrays]
    text = re.sub(r" at 0x[0-9a-f]+", "", " ".join(f"{member:all}".split()))
    text = f"{text} with {', '.join(numbers)}" if numbers else text
    return f"{text} in {dict(sorted(shape.items()))}" if shape else text


def without_numbers(member: AbstractTransform, shape: Mapping[str, Any] | None = None) -> str:
    """The description of a member with zeros for all numbers: members of one structure have the same."""
    return described(jtu.tree_map(np.zeros_like, member), shape)


def name_of(*parts: Any) -> str:
    """A short name that differs if the parts differ."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def arrays_by_path(tree: PyTree, whole: str = "the whole") -> dict[str, str]:
    """The dtype and shape of every array, by dotted path; `whole` is the name of a tree that is one array."""
    found: dict[str, str] = {}
    for path, x in jtu.tree_leaves_with_path(tree):
        name = dotted(path) or whole
        found[jtu.keystr(path) if name in found else name] = f"{x.dtype}{list(x.shape)}"
    return found


def first_difference(old: PyTree, new: PyTree) -> tuple[str, Any, Any] | None:
    """The first array whose dtype or shape differs, and both, `"absent"` where there is none; None if all are equal."""
    before, after = arrays_by_path(old), arrays_by_path(new)
    name = next((name for name in before | after if before.get(name) != after.get(name)), None)
    return None if name is None else (name, before.get(name, "absent"), after.get(name, "absent"))


def tree_difference(old: PyTree, new: PyTree) -> tuple[str, Any, Any] | None:
    """The first difference between the arrays of two trees, or else between their structures."""
    structures = jtu.tree_structure(old), jtu.tree_structure(new)
    is_other = structures[0] != structures[1]
    return first_difference(old, new) or (("the structure", *structures) if is_other else None)
