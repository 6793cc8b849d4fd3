"""Means over the blocks of an array: one number for each output of a matrix, for each head, or for each token.

The blocks are given by a shape with one entry for each of them, whose lengths divide those of the array. The role of
the array tells it: `per_output`, `per_head`, `per_window`, or one number for the `whole`. Adam-mini, AdaHessian and
Amos store such numbers in place of one for each entry.
"""

import abc
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, cast

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, PyTree

from .._protocol.leafwise import AbstractLeafwise, StateT
from .._roles.find import as_roles
from .._roles.role import AbstractRole
from .._support.arithmetic import mean
from .._support.placement import undivided
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


def _has_blocks_of(shape: Shape, numbers: Shape) -> bool:
    return len(shape) == len(numbers) and all(k and n % k == 0 for n, k in zip(shape, numbers, strict=True))


def means(x: Array, numbers: Shape) -> Array:
    """Return the means over the blocks, in the shape `numbers`."""
    axes = [i for i, (n, k) in enumerate(zip(x.shape, numbers, strict=True)) if n != k]
    for axis in (i for i in axes if numbers[i] > 1):
        before, after = x.shape[:axis], x.shape[axis + 1 :]
        x = mean(x.reshape(*before, numbers[axis], -1, *after), axis=axis + 1)
    whole_axes = [i for i in axes if numbers[i] == 1]
    return mean(x, axis=whole_axes, keepdims=True) if whole_axes else x


def spread_over(numbers: Array, shape: Shape) -> Array:
    """Return the number of the block of each entry, in a shape that broadcasts with the array."""
    for axis, (n, k) in enumerate(zip(shape, numbers.shape, strict=True)):
        if 1 < k < n:
            # In place of `repeat`, which wants to be told the sharding on explicit axes.
            each = jnp.expand_dims(undivided(numbers, [axis]), axis + 1)
            before, after = numbers.shape[:axis], numbers.shape[axis + 1 :]
            numbers = jnp.broadcast_to(each, (*before, k, n // k, *after)).reshape(*before, n, *after)
    return numbers


def averaged(tree: PyTree, roles: Sequence[AbstractRole], numbers_of: Callable[[AbstractRole, Shape], Shape]) -> PyTree:
    """Return the means over the blocks of each leaf of a tree like the parameters.

    Args:
        tree: the tree.
        roles: the role of each leaf, in JAX's order.
        numbers_of: returns the shape of the numbers of an array, given its role and its shape.
    """
    leaves, treedef = jtu.tree_flatten(tree)
    return treedef.unflatten(
        [means(x, numbers_of(role, x.shape)) if x.size else x for x, role in zip(leaves, roles, strict=True)]
    )


class AbstractOverBlocks(AbstractLeafwise[StateT]):
    """A rule with a number in its state for each block of an array; `init_leaf` returns those of all entries."""

    by_blocks: ClassVar[tuple[str, ...]]  # the fields of the state that have a number for each block

    def _fitting_state(self, p: Array, s: StateT) -> StateT:
        like: Any = self.init_leaf(p)
        own = {name: getattr(s, name) for name in self.by_blocks}
        # Which blocks an array has is only known with its path.
        fitting = {name: x for name, x in own.items() if _has_blocks_of(p.shape, x.shape)}
        return dataclasses.replace(like, **fitting)


class AbstractByBlocks(AbstractOverBlocks[StateT]):
    """A rule with a number in its state for each block of an array, which the role of the array tells."""

    roles: eqx.AbstractVar[Any]

    @abc.abstractmethod
    def numbers_of(self, role: AbstractRole, shape: Shape) -> Shape:
        """Return the shape of the numbers of an array.

        Args:
            role: its role.
            shape: its shape.
        """

    def init(self, params: Params) -> StateT:
        """Return the initial state of the whole tree."""
        state, roles = super().init(params), self.roles.labels(params)
        found = {name: averaged(getattr(state, name), roles, self.numbers_of) for name in self.by_blocks}
        return dataclasses.replace(cast(Any, state), **found)
