"""Hyperparameters that the optimizer's state holds, where `Injected` keeps them: `pbt` changes them there too."""

import functools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import PyTree

from .._containers.injected import hyperparameters_in, injected_paths
from .._protocol.transform import AbstractTransform
from .._support.checks import listing
from ..tree._state import states_with_names
from ._population import Lane
from ._sweep import Members


def leaves_of(optimizer: AbstractTransform, carry: PyTree, paths: Sequence[str]) -> dict[str, list[int]]:
    """The leaves of a carry that hold hyperparameters of an optimizer with `Injected`, by the paths of these.

    Raises:
        ValueError: if the carry has no state of the optimizer, where a hyperparameter would be.
    """
    injected = injected_paths(optimizer)
    paths = [path for path in paths if path in injected]
    if not paths:
        return {}
    leaves, treedef = jtu.tree_flatten(carry)
    found = defaultdict[str, list[int]](list)
    for _, state in states_with_names(treedef.unflatten(range(len(leaves)))):
        for path, leaf in hyperparameters_in(optimizer, state):
            found[path].append(leaf)
    if not found:
        raise ValueError(
            f"`sweeps.pbt(explore=...)` changes {listing(paths)}, and `Injected` follows the values in its state, "
            f"which the carry of the training doesn't hold as a state of modulax. Give the optimizer inside "
            f"`Injected`: its hyperparameters are arguments of the training already."
        )
    return {path: found[path] for path in paths if path in found}


def write_values(lane: Lane, members: Members, replaced: np.ndarray, leaves: Mapping[str, list[int]]) -> None:
    """Write the hyperparameters of the replaced members into the carry with which a lane begins."""
    rows = [row for row, place in enumerate(lane.places) if place in replaced]
    if leaves and rows:
        values = {path: [members[lane.places[row]].hyperparameters()[path] for row in rows] for path in leaves}
        lane.begin = functools.partial(_written, lane.begin, rows, values, leaves)


def _written(
    begin: Any, rows: list[int], values: Mapping[str, list[Any]], leaves: Mapping[str, list[int]]
) -> list[Any]:
    """The carry with values in some rows of its leaves, the same for all seeds."""
    carry = list(begin())
    for path, of_path in leaves.items():
        for i in of_path:
            new = np.asarray(values[path]).reshape(-1, *[1] * (carry[i].ndim - 1))
            carry[i] = jnp.asarray(carry[i]).at[np.array(rows)].set(new.astype(carry[i].dtype))
    return carry
