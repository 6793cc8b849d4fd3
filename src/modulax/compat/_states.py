"""State classes with the fields and the order of optax's, for programs that build or test them."""

import dataclasses
import inspect
from typing import Any

from .._catalog.optax_names import fields_in_optax
from ._unpacking import unpacking


def state_class(name: str, ours: type) -> type:
    """A class that constructs the state of ours from the arguments of optax's, and whose instances are all of ours.

    It is the class of ours where optax has no fields.
    """
    names = fields_in_optax(ours)
    if names is None:
        return ours
    if name == "InjectHyperparamsState":  # the older of two that are one class here
        names = {theirs: own for theirs, own in names.items() if theirs != "hyperparams_states"}
    signature = inspect.Signature([inspect.Parameter(x, inspect.Parameter.POSITIONAL_OR_KEYWORD) for x in names])
    fields = {field.name for field in dataclasses.fields(ours)}

    class Meta(type):
        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            if len(args) > len(names):
                raise TypeError(f"`{name}` takes {len(names)} arguments ({', '.join(names)}), got {len(args)}.")
            given = dict(zip(names, args, strict=False))
            if twice := given.keys() & kwargs.keys():
                raise TypeError(f"`{name}` got two values for `{min(twice)}`.")
            given |= kwargs
            if absent := [x for x in given if x in names and names[x] not in fields]:
                raise TypeError(
                    f"`{name}` holds no `{absent[0]}` here: get a state from `init`, and change it by `optax.tree.set`."
                )
            return unpacking(ours(**{names.get(key, key): x for key, x in given.items()}))

        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, ours)

        def __subclasscheck__(cls, subclass: type) -> bool:
            return issubclass(subclass, ours)

    return Meta(name, (), {"__doc__": ours.__doc__, "_fields": tuple(names), "ours": ours, "__signature__": signature})
