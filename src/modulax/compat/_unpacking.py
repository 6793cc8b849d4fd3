"""Transforms and states that unpack as those of optax: `init, update = tx` and `count, mu, nu = state`.

What `compat` makes is of a subclass of the class here, which is made when it is first needed. It has the same fields,
so it goes wherever the class goes. It unpacks, and its methods return states that do, of subclasses of the same kind.
Inside programs states are of our own classes, and so are those in the state of a container that is not of `compat`.
"""

import dataclasses
import functools
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

from .._catalog.optax_names import fields_in_optax
from .._protocol.hyperparameters import register_with_nnx
from .._protocol.transform import AbstractTransform
from .._support.module import AbstractState
from .._support.tracing import is_tracing


def unpacking(x: Any) -> Any:
    """A transform or a state, with everything in it, that unpacks; anything else is returned as it is."""
    if isinstance(x, AbstractTransform):
        cls = _transform_class(type(x))
        register_with_nnx(cls)
        return x if type(x) is cls else _of_class(cls, x)
    return _with_states(_state_class, x)


def making(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose result unpacks, if it is a transform."""

    @functools.wraps(function)
    def make(*args: Any, **kwargs: Any) -> Any:
        made = function(*args, **kwargs)
        return unpacking(made) if isinstance(made, AbstractTransform) else made

    return make


def own_states(state: Any) -> Any:
    """A state with the classes here, as states are inside programs."""
    return _with_states(_own, state)


def _own(cls: type) -> type:
    return vars(cls).get("unpacks", cls)


def _of_class(cls: type, module: Any, **values: Any) -> Any:
    new = object.__new__(cls)
    vars(new).update(vars(module), **values)
    return new


def _with_states(convert: Callable[[type], type], node: Any) -> Any:
    """Convert the classes of all states in one, without a look at the trees that are like the parameters."""
    if isinstance(node, AbstractState):
        inner = {name: _with_states(convert, getattr(node, name)) for name in _with_inner_states(type(node))}
        return _of_class(convert(type(node)), node, **inner)
    if type(node) in (dict, OrderedDict):
        return type(node)((key, _with_states(convert, x)) for key, x in node.items())
    if type(node) in (list, tuple):
        return type(node)(_with_states(convert, x) for x in node)
    return node


@functools.cache
def _with_inner_states(cls: Any) -> tuple[str, ...]:
    return tuple(x.name for x in dataclasses.fields(cls) if x.metadata.get("holds") in ("shared", "states"))


def _subclass(cls: type, **members: Any) -> type:
    def reduced(self: Any) -> Any:  # pickle does not find the class
        return unpacking, (_of_class(cls, self),)

    made = type(cls)(cls.__name__, (cls,), {"__module__": cls.__module__, "__doc__": cls.__doc__})
    for name, member in (members | {"unpacks": cls, "__reduce__": reduced}).items():
        setattr(made, name, member)
    return made


@functools.cache
def _state_class(cls: type) -> type:
    names = fields_in_optax(cls)
    if names is None or _own(cls) is not cls:
        return cls
    fields = list(names.values())

    def item(self: Any, key: Any) -> Any:
        return getattr(self, fields[key]) if isinstance(key, int) else cls.__getitem__(self, key)

    return _subclass(cls, __getitem__=item)  # by which Python iterates too


@functools.cache
def _transform_class(cls: type) -> type:
    if _own(cls) is not cls:
        return cls
    init, update, step = cls.init, cls.update, cls.step

    @functools.wraps(init)
    def init_unpacking(self, /, *args, **kwargs):
        state = init(self, *args, **kwargs)
        return state if is_tracing() else unpacking(state)

    @functools.wraps(update)
    def update_unpacking(self, /, updates, state, *args, **kwargs):
        if is_tracing():
            return update(self, updates, state, *args, **kwargs)
        updates, state = update(self, updates, own_states(state), *args, **kwargs)
        return updates, unpacking(state)

    @functools.wraps(step)
    def step_unpacking(self, /, grads, state, *args, **kwargs):
        params, state = step(self, grads, own_states(state), *args, **kwargs)
        return params, unpacking(state)

    def functions(self) -> Iterator[Callable[..., Any]]:
        return iter((self.init, self.update))

    def item(self, key: Any) -> Any:
        return (self.init, self.update)[key]

    members = {"init": init_unpacking, "update": update_unpacking, "step": step_unpacking, "__iter__": functions}
    members["eval_params"] = cls.eval_params  # with the class in profiles, and the pair of `Lookahead`
    is_indexed = cls.__getitem__ is not AbstractTransform.__getitem__  # as a chain is
    return _subclass(cls, **members, **({} if is_indexed else {"__getitem__": item}))
