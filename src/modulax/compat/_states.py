"""State classes with the fields and the order of optax's, for programs that build or test them."""

from typing import Any

from .._support.optax_states import fields_in_optax


def state_class(name: str, ours: type) -> type:
    """A class that constructs the state of ours from the arguments of optax's, and whose instances are all of ours.

    It is the class of ours where optax has no fields.
    """
    names = fields_in_optax(ours)
    if names is None:
        return ours

    class Meta(type):
        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            if len(args) > len(names):
                raise TypeError(f"`{name}` takes {len(names)} arguments ({', '.join(names)}), got {len(args)}.")
            given = dict(zip(names, args, strict=False))
            if twice := given.keys() & kwargs.keys():
                raise TypeError(f"`{name}` got two values for `{min(twice)}`.")
            return ours(**{names.get(key, key): x for key, x in {**given, **kwargs}.items()})

        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, ours)

        def __subclasscheck__(cls, subclass: type) -> bool:
            return issubclass(subclass, ours)

    return Meta(name, (), {"__doc__": ours.__doc__, "_fields": tuple(names), "ours": ours})
