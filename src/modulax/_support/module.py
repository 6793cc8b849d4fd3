"""The base of all Modules of the library, and what the fields of a state hold."""

import dataclasses
from typing import TYPE_CHECKING, Any, Literal

import equinox as eqx


class AbstractModule(eqx.Module):
    """An Equinox Module whose methods are bound as Python binds them.

    Equinox wraps every bound method as a pytree, for which it intercepts every attribute that is read. Ours are called,
    not passed around; without the interception a step spends half the time on taking states apart, and
    `jax.jit(optimizer.step)` works, because a method of Python's hashes.
    """

    if not TYPE_CHECKING:
        __getattribute__ = object.__getattribute__


class AbstractState(AbstractModule):
    """The state of a transform: a Module of arrays, whose field names are those of checkpoints.

    A field without default is a tree like the parameters, unless it is declared otherwise: `shared()` belongs to all
    parameters together, as does every field with a default, and `nested()` holds the states of other transforms.
    `modulax.tree.map_params` and `state_sharding` go by that.
    """


def like_params() -> Any:
    """A field of a state that is a tree like the parameters, as every field without default is.

    To write it out pleases type checkers, where the field stands behind one that is `shared()` or `nested()`.
    """
    return eqx.field(metadata={"holds": "params"})


def shared(default: Any = dataclasses.MISSING) -> Any:
    """A field of a state that belongs to all parameters together, such as a counter or a random key.

    Args:
        default: the field's default, if it has one.
    """
    given = {} if default is dataclasses.MISSING else {"default": default}
    return eqx.field(metadata={"holds": "shared"}, **given)


def nested() -> Any:
    """A field of a state that holds the state of another transform, or a list or mapping of several."""
    return eqx.field(metadata={"holds": "states"})


def holds(field: dataclasses.Field) -> Literal["params", "shared", "states"]:
    """What a field of a state holds: a tree like the parameters, what all of them share, or other states."""
    declared = field.metadata.get("holds")
    if declared is not None:
        return declared
    return "params" if field.default is dataclasses.MISSING else "shared"
