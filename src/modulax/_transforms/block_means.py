"""Means over the blocks of an array: one number for each output of a matrix, for each head, or for each token.

The blocks are given by a shape with one entry for each of them, whose lengths divide those of the array. The role of
the array tells it: `per_output`, `per_head`, `per_window`, or one number for the `whole`. Adam-mini, AdaHessian and
Amos store such numbers in place of one for each entry.
"""

import abc
import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, PyTree

from .._protocol.leafwise import AbstractLeafwise, StateT
from .._roles.find import as_roles
from .._roles.role import AbstractRole
from .._support.types import Params

Shape = tuple[int, ...]


def roles_of_blocks() -> Any:
    """Declare a field for roles that tell blocks, for which the head is a matrix like others."""
    return eqx.field(static=True, default=None, converter=as_roles, metadata={"head_is_like_others": True})


def whole(shape: Shape) -> Shape:
    """One number for the array."""
    return (1,) * len(shape)


def per_output(role: AbstractRole, shape: Shape) -> Shape | None:
    """One number for each output of a matrix, or for each row of a table of embeddings; None for other arrays."""
    if role.kind in ("embedding", "position"):
        averaged = role.fan_out
    else:
        # Any role may have axes: those of the array that it was given for.
        averaged = () if role.is_vector or not role.kind else role.fan_in
    return _without(averaged, shape) if averaged else None


def per_head(role: AbstractRole, shape: Shape) -> Shape | None:
    """One number for each head of a query or a key, or of several projections in one array; None for other arrays."""
    if getattr(role, "heads", None) is None or role.kind in ("value", "out") or not role.fan_out:
        return None
    sizes = role.by_head(math.prod(shape[i] for i in role.fan_out))
    numbers, left = list(_without(role.fan_in, shape)), len(sizes)
    for axis in role.fan_out:
        # The heads come first along the outputs: whole axes of them, and then parts of an axis.
        numbers[axis] = math.gcd(shape[axis], left)
        if numbers[axis] not in (shape[axis], left):
            return None
        left //= numbers[axis]
    return tuple(numbers) if len(set(sizes)) == 1 else None


def per_window(role: AbstractRole, shape: Shape) -> Shape | None:
    """One number for each pair of channels of a convolution; None for other arrays."""
    if role.kind != "convolution":
        return None
    # The channels of inputs and outputs are on axes next to each other, before the window or after it.
    channels = min(role.fan_in) if min(role.fan_out) < min(role.fan_in) else max(role.fan_in)
    return _without([i for i in role.fan_in if i != channels], shape)


def _without(axes: Sequence[int], shape: Shape) -> Shape:
    return tuple(1 if i in axes else n for i, n in enumerate(shape))


def means(x: Array, numbers: Shape) -> Array:
    """Return the means over the blocks, in the shape `numbers`."""
    averaged = [i for i, (n, k) in enumerate(zip(x.shape, numbers, strict=True)) if n != k]
    if x.size == 0 or not averaged:
        return x
    for axis in (i for i in averaged if numbers[i] > 1):
        before, after = x.shape[:axis], x.shape[axis + 1 :]
        x = jnp.mean(x.reshape(*before, numbers[axis], -1, *after), axis=axis + 1)
    return jnp.mean(x, axis=[i for i in averaged if numbers[i] == 1], keepdims=True)


def spread_over(numbers: Array, shape: Shape) -> Array:
    """Return the number of the block of each entry, in a shape that broadcasts with the array."""
    for axis, (n, k) in enumerate(zip(shape, numbers.shape, strict=True)):
        numbers = jnp.repeat(numbers, n // k, axis=axis) if 1 < k < n else numbers
    return numbers


class AbstractByBlocks(AbstractLeafwise[StateT]):
    """A rule with a number in its state for each block of an array, which the role of the array tells.

    A subclass declares `roles`, and returns the numbers of all entries from `init_leaf`.
    """

    roles: eqx.AbstractVar[Any]

    @abc.abstractmethod
    def numbers_of(self, role: AbstractRole, shape: Shape) -> Shape:
        """Return the shape of the numbers of an array.

        Args:
            role: its role.
            shape: its shape.
        """

    @abc.abstractmethod
    def by_blocks(self) -> tuple[str, ...]:
        """Return the fields of the state that have a number for each block."""

    def init(self, params: Params) -> StateT:
        """Return the initial state of the whole tree."""
        state: Any = super().init(params)
        shapes = self.shapes(params)

        def averaged(tree: PyTree) -> PyTree:
            leaves, treedef = jtu.tree_flatten(tree)
            return treedef.unflatten([means(x, numbers) for x, numbers in zip(leaves, shapes, strict=True)])

        return dataclasses.replace(state, **{name: averaged(getattr(state, name)) for name in self.by_blocks()})

    def shapes(self, tree: PyTree) -> list[Shape]:
        """Return the shape of the numbers of each leaf, in JAX's order.

        Args:
            tree: the parameters, or a tree like them.
        """
        rows = zip(self.roles.labels(tree), jtu.tree_leaves(tree), strict=True)
        return [self.numbers_of(role, x.shape) if x.size else x.shape for role, x in rows]
