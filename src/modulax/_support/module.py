"""The base of all Modules of the library, and the declarations of the fields of states."""

import dataclasses
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import equinox as eqx

from .optree_nodes import register_module

Kind = Literal["params", "shared", "states"]
M = TypeVar("M")


class AbstractModule(eqx.Module):
    """An Equinox Module whose methods are bound as Python binds them.

    Equinox wraps every bound method as a pytree, for which it intercepts every attribute that is read. Ours are called,
    not passed around; without the interception a step spends half the time on taking states apart, and
    `jax.jit(optimizer.step)` works, because a method of Python's hashes.

    Every subclass is registered with optree too: `optree.tree_paths(optimizer, namespace="modulax")`.
    """

    if not TYPE_CHECKING:
        __getattribute__ = object.__getattribute__

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        register_module(cls)


class AbstractState(AbstractModule):
    """The state of a transform: a Module of arrays, whose field names are those of checkpoints.

    Each field says by its declaration what it holds. `like_params()`, which may be left out, is a tree with the
    structure of the parameters, such as a moment. `shared()` is something that all parameters have in common, such as a
    random key; `counter()` is shared too, and counts steps. `nested()` holds the states of other transforms.

        class AdamState(AbstractState):
            mu: PyTree
            nu: PyTree
            count: Count | None = counter()

    `modulax.tree.map_params`, `state_sharding`, `describe` and `checkpoint.restore` go by these declarations.
    """


def _field(default: Any, **metadata: Any) -> Any:
    given = {} if default is dataclasses.MISSING else {"default": default}
    return eqx.field(metadata=metadata, **given)


def like_params() -> Any:
    """Declare a field of a state as a tree with the structure of the parameters.

    A field without a declaration is one too. Write it out where the field follows one that is `shared()` or `nested()`,
    to please type checkers.
    """
    return _field(dataclasses.MISSING, holds="params")


def shared(default: Any = dataclasses.MISSING) -> Any:
    """Declare a field of a state that all parameters have in common, such as a random key or a running loss.

    Args:
        default: the field's default, if it has one. In the state of an `AbstractLeafwise` it is None, because
            `init_leaf` knows one array only; `init_shared` and `share` give the values.
    """
    return _field(default, holds="shared")


def counter(*, steps: bool = True) -> Any:
    """Declare the field that counts the steps in the state of an `AbstractLeafwise`.

    Write `count: Count | None = counter()`. The base class starts it at 0, gives it to `prepare` and `survey`, and adds
    one after every step. Schedules in the fields of the rule are read at this count.

    Args:
        steps: False if the rule itself says in `share` what the count is after a step, because it counts something
            other than steps. No schedule can follow such a count.
    """
    return _field(None, holds="shared", counts="steps" if steps else "other")


def nested() -> Any:
    """Declare a field of a state that holds the state of another transform, or a list or mapping of several."""
    return _field(dataclasses.MISSING, holds="states")


def kind_of(field: dataclasses.Field) -> Kind:
    """What a field of a state holds: a tree like the parameters, what all of them share, or other states."""
    declared = field.metadata.get("holds")
    if declared is None and field.default is not dataclasses.MISSING:
        raise ValueError(
            f"The field `{field.name}` of a state has a default and no declaration. Write `{field.name}: ... = "
            f"shared({field.default!r})` for something that all parameters have in common, `{field.name}: ... = "
            f"counter()` for the number of steps, or leave out the default of a tree like the parameters."
        )
    return "params" if declared is None else declared


def with_fields(module: M, **values: Any) -> M:
    """A copy of a Module with other values in some fields, neither converted nor checked again."""
    new = object.__new__(type(module))
    for field in dataclasses.fields(module):  # pyright: ignore[reportArgumentType] (a Module is a dataclass)
        name = field.name
        object.__setattr__(new, name, values[name] if name in values else getattr(module, name))
    return new
