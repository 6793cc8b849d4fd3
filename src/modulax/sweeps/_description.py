"""Descriptions: of members, by which a folder recognizes them, of arrays, and the first difference between two."""

import hashlib
import re
from collections.abc import Mapping
from typing import Any

import jax.tree_util as jtu
import numpy as np
from jaxtyping import PyTree

from .._plugin.trees import dotted
from ..authoring import AbstractTransform
from ._program import fetched


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


def first_difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[str, Any, Any] | None:
    """The first name whose values differ, and both values, `"absent"` where there is none; None if all are equal."""
    for name in dict.fromkeys((*old, *new)):
        a, b = old.get(name, "absent"), new.get(name, "absent")
        if a != b:
            return name, a, b
    return None
