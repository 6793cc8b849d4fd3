"""A pytree as one vector, with checks of the arguments that go with it: scalars, bounds, another tree."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Inexact, PyTree

from .._plugin.arguments import NON_NEGATIVE, floating, known, real_arrays, traced_check
from .._plugin.arrays import common_dtype, real_dtype
from .._plugin.messages import listing
from .._plugin.trees import leaves_with_paths
from ..numerics import at_least_float32
from ..tree import leaf_paths


class Vector(NamedTuple):
    """A tree argument, and its leaves cast to a common precision of at least float32."""

    owner: str
    name: str
    tree: PyTree
    dtypes: list[Any]
    dtype: Any
    leaves: list[Inexact[Array, "..."]]

    def rebuild(self, leaves: list[Array]) -> PyTree:
        """Return a tree of the same structure and dtypes with other leaves."""
        leaves = [x.astype(dtype) for x, dtype in zip(leaves, self.dtypes, strict=True)]
        return jtu.tree_structure(self.tree).unflatten(leaves)

    def number(self, name: str, value: ArrayLike) -> Float[Array, ""]:
        """Check an argument that is one scalar for the whole vector.

        Raises:
            ValueError: if it is not a real scalar.
        """
        (array,) = real_arrays(self.owner, **{name: value})
        if array.shape != ():
            raise ValueError(f"`{self.owner}` needs `{name}` to be a scalar, got an array of shape {array.shape}.")
        return array.astype(self.dtype)

    def radius(self, scale: ArrayLike) -> Float[Array, ""]:
        """Check the argument `scale`.

        Raises:
            ValueError: if it is not a real scalar, or is known to be negative.
        """
        number = self.number("scale", scale)
        return traced_check(number, known(scale, self.dtype) >= 0, f"`{self.owner}(scale=...)` {NON_NEGATIVE.words}.")

    def bounds(self, name: str, value: PyTree) -> list[Any]:
        """Check bounds of every entry, a number or a tree of bounds; return them with the rank of the leaves.

        Raises:
            ValueError: if the structure or a shape doesn't fit.
        """
        try:
            value = jax.tree.broadcast(value, self.tree)
        except ValueError:
            raise self._other_structure(name, value, "a number or ") from None
        self._check_fit(name, value, "that broadcast to", np.broadcast_shapes)
        bounds = [known(x, self.dtype) for x in jtu.tree_leaves(value)]
        return [b.reshape((1,) * (x.ndim - b.ndim) + b.shape) for x, b in zip(self.leaves, bounds, strict=True)]

    def alike(self, name: str, value: PyTree) -> list[Array]:
        """Check another argument with the structure and shapes of the tree; return its leaves.

        Raises:
            ValueError: if the structure or a shape differs.
        """
        if jtu.tree_structure(value) != jtu.tree_structure(self.tree):
            raise self._other_structure(name, value, "")
        leaves = self._check_fit(name, value, "equal to", lambda other, own: other)
        return [x.astype(self.dtype) for x in leaves]

    def _check_fit(self, name: str, value: PyTree, words: str, together: Callable[..., tuple[int, ...]]) -> list[Array]:
        """Check the shapes of the leaves of another argument against those of the tree."""
        leaves = _arrays(self.owner, name, value, real_arrays)
        for path, own, other in zip(leaf_paths(self.tree), self.leaves, leaves, strict=True):
            try:
                fits = together(other.shape, own.shape) == own.shape
            except ValueError:
                fits = False
            if not fits:
                raise ValueError(
                    f"`{self.owner}` needs `{name}` of shapes {words} those of `{self.name}`, "
                    f"got {other.shape} and {own.shape}{_at(path)}."
                )
        return leaves

    def _other_structure(self, name: str, value: PyTree, words: str) -> ValueError:
        return ValueError(
            f"`{self.owner}` needs `{name}` to be {words}a tree of the same structure as `{self.name}`, which has the "
            f"leaves {listing(leaf_paths(self.tree))}; got {listing(leaf_paths(value))}."
        )


def vector(owner: str, name: str, tree: PyTree, kind: Callable[..., list[Array]] = floating) -> Vector:
    """Flatten a tree to a `Vector`, after checking that all leaves are arrays of a kind of `_support/arguments.py`."""
    leaves = _arrays(owner, name, tree, kind)
    dtypes = [x.dtype for x in leaves]
    dtype = real_dtype(at_least_float32(*dtypes))
    return Vector(owner, name, tree, dtypes, dtype, [x.astype(common_dtype(dtype, x.dtype)) for x in leaves])


def _arrays(owner: str, name: str, tree: PyTree, kind: Callable[..., list[Array]]) -> list[Array]:
    """Convert the leaves to arrays of a kind; an error names the argument and the path of the leaf."""
    arrays = []
    for path, leaf in leaves_with_paths(tree):
        if not eqx.is_array_like(leaf):
            raise ValueError(
                f"`{owner}({name}=...)` must be a tree of arrays, got an object of type `{type(leaf).__name__}`"
                f"{_at(path)}. `eqx.filter({name}, eqx.is_inexact_array)` keeps the arrays of a model."
            )
        arrays += kind(owner, **{f"{name}.{path}" if path else name: leaf})
    return arrays


def _at(path: str) -> str:
    return f" at `{path}`" if path else ""
