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
from ._training import LaneProgram

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
    returned = [] if structure.start is None else _flow_of(structure, structure.start)[0]
    found = defaultdict[str, list[int]](list)
    for i, ((names, _), own) in enumerate(zip(named_leaves(carry), returned, strict=True)):
        if own is not None and names[-len(own) :] == own:
            found[joined(own)].append(i)
    return found


def _read(structure: Structure) -> set[str]:
    """The dotted paths of the hyperparameters that a segment computes with, and not only returns, as for a log."""
    return {joined(names) for names in _flow_of(structure, structure.segment)[1]}


def _flow_of(structure: Structure, program: LaneProgram) -> tuple[list[Names | None], set[Names]]:
    """The hyperparameter that each result of a program is a copy of, or None, and those that it computes with."""
    jaxpr, read = program.traced.closed.jaxpr, set[Any]()
    names = [names for names, _ in named_leaves(structure.group.members[0])]  # of the first arguments
    returned = _flow(jaxpr, [*names, *[None] * (len(jaxpr.invars) - len(names))], read)
    return returned, read - {None}


def _flow(jaxpr: Jaxpr, arguments: Sequence[Any], read: set[Any]) -> list[Any]:
    """The argument that each result of a program is a copy of, else None. Adds to `read` what it computes with."""
    origins: dict[Any, Any] = dict(zip(jaxpr.invars, arguments, strict=True))

    def origin(x: Any) -> Any:
        return None if isinstance(x, Literal) else origins.get(x)

    for equation in jaxpr.eqns:
        given, returned = [*map(origin, equation.invars)], [None] * len(equation.outvars)
        if equation.primitive.name in COPIES:
            returned = given
        elif equation.primitive.name in CALLS:  # with its own arguments
            returned = _flow(equation.params["jaxpr"].jaxpr, given, read)
        else:
            read.update(given)
        origins |= zip(equation.outvars, returned, strict=True)
    return [*map(origin, jaxpr.outvars)]


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
