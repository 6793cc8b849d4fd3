"""Hyperparameters that a carry holds, in the state of `Injected` or as copies: `pbt` changes them there too."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.extend.core import Jaxpr, Literal
from jaxtyping import PyTree

from .._plugin.containers import hyperparameters_in, injected_paths
from .._plugin.messages import listing
from .._plugin.states import states_with_names
from .._plugin.trees import Names, joined, named_leaves
from ..authoring import AbstractTransform
from ._population import Lane, Structure

COPIES = ("copy", "copy_p", "device_put", "convert_element_type")  # operations that keep a value
CALLS = ("jit", "pjit")  # the name of the operation depends on the version of JAX


def leaves_of(structure: Structure, names: Mapping[str, Sequence[str]]) -> dict[str, list[int]]:
    """The leaves of a carry that hold hyperparameters of its optimizer, by the dotted paths of these.

    Args:
        structure: the training, traced.
        names: the paths that each name in `explore` stands for.

    Raises:
        ValueError: if the carry has no state of an optimizer with `Injected`, where a hyperparameter would be, or if
            the training ignores all hyperparameters of a name.
    """
    optimizer, start = structure.group.members[0], structure.start
    carry = start.traced.result if start else ()
    paths = [path for of_name in names.values() for path in of_name]
    in_states, copies, read = _in_states(optimizer, carry, paths), _copied(structure, carry), _read(structure)
    found = {path: leaves for path in paths if (leaves := in_states.get(path, []) + copies.get(path, []))}
    for name, of_name in names.items():
        if found.keys().isdisjoint(of_name) and read.isdisjoint(of_name):
            raise ValueError(
                f"`sweeps.pbt(explore={{{name!r}: ...}})` has no effect, because `advance(optimizer, carry)` doesn't "
                f"use `{name}` of its optimizer. Take the steps with that optimizer. If the carry has another one, as "
                f"a training state of Flax has, write `state = state.replace(tx=optimizer)` first."
            )
    return found


def _in_states(optimizer: AbstractTransform, carry: PyTree, paths: Sequence[str]) -> dict[str, list[int]]:
    """The hyperparameters in the states of `Injected`."""
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
    return dict(found)


def _copied(structure: Structure, carry: PyTree) -> dict[str, list[int]]:
    """The copies of hyperparameters under their own names, such as those in a training state that has the optimizer."""
    if structure.start is None:
        return {}
    jaxpr = structure.start.traced.closed.jaxpr
    numbers, (origins, _) = _numbers(structure, jaxpr), _flow(jaxpr)
    found = defaultdict[str, list[int]](list)
    for i, ((names, _), x) in enumerate(zip(named_leaves(carry), jaxpr.outvars, strict=True)):
        own = None if isinstance(x, Literal) else numbers.get(origins.get(x, x))
        if own is not None and names[-len(own) :] == own:
            found[joined(own)].append(i)
    return found


def _read(structure: Structure) -> set[str]:
    """The dotted paths of the hyperparameters that a segment computes with, and not only returns, as for a log."""
    jaxpr = structure.segment.traced.closed.jaxpr
    _, read = _flow(jaxpr)
    return {joined(names) for x, names in _numbers(structure, jaxpr).items() if x in read}


def _numbers(structure: Structure, jaxpr: Jaxpr) -> dict[Any, Names]:
    """The names of the hyperparameters by their variables, the first arguments of a program."""
    rows = zip(jaxpr.invars, named_leaves(structure.group.members[0]), strict=False)
    return {x: names for x, (names, _) in rows}


def _flow(jaxpr: Jaxpr) -> tuple[dict[Any, Any], set[Any]]:
    """The variable that each copy in a program is a copy of, and those that the program computes with."""
    origins: dict[Any, Any] = {}
    read: set[Any] = set()

    for equation in jaxpr.eqns:
        given = [None if isinstance(x, Literal) else origins.get(x, x) for x in equation.invars]
        returned, used = [None] * len(equation.outvars), {x for x in given if x is not None}
        if equation.primitive.name in COPIES:
            returned, used = given, set()
        elif (inside := _program_of(equation)) is not None:
            returned, used = _flow_through(inside, given)
        origins |= {new: old for new, old in zip(equation.outvars, returned, strict=True) if old is not None}
        read |= used
    return origins, read


def _flow_through(jaxpr: Jaxpr, arguments: Sequence[Any]) -> tuple[list[Any], set[Any]]:
    """The arguments that a called program returns, None in place of others, and those that it computes with."""
    origins, read = _flow(jaxpr)
    given = dict(zip(jaxpr.invars, arguments, strict=True))
    returned = [None if isinstance(x, Literal) else given.get(origins.get(x, x)) for x in jaxpr.outvars]
    return returned, {y for x, y in given.items() if x in read and y is not None}


def _program_of(equation: Any) -> Jaxpr | None:
    """The program that an operation calls with its own arguments, as `jax.jit` does."""
    return equation.params["jaxpr"].jaxpr if equation.primitive.name in CALLS else None


def write_values(lane: Lane, places: Sequence[int], replaced: np.ndarray, leaves: Mapping[str, list[int]]) -> None:
    """Write the hyperparameters of the replaced members into the carry with which a lane begins, for all seeds."""
    rows = np.array([row for row, place in enumerate(places) if place in replaced])
    carry = list(lane.current())
    for path, of_path in leaves.items() if rows.size else ():
        values = np.asarray([lane.members[row].hyperparameters()[path] for row in rows])
        for i in of_path:
            new = values.reshape(-1, *[1] * (carry[i].ndim - 1))
            carry[i] = jnp.asarray(carry[i]).at[rows].set(new.astype(carry[i].dtype))
    lane.carry = carry
