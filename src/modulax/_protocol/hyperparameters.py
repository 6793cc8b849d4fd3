"""Modules whose leaves are numbers: how these are stored, printed, listed, addressed and changed."""

import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import optree
from jax.core import Tracer

from .._support.arithmetic import default_float
from .._support.checks import Requirement, check_choice, listing, require, suggestion
from .._support.keys import is_key_data
from .._support.module import AbstractModule
from .._support.optree_nodes import NAMESPACE
from .._support.tracing import is_tracing
from ..tree._math import strong
from ..tree._paths import dotted, matches
from ..tree._search import with_value

ARRAY_TYPES = (jax.Array, np.ndarray, np.generic)


def as_scalar(x: Any) -> Any:
    """A number as it is stored: a NumPy scalar, or the JAX array or tracer that was given, without weak type."""
    if isinstance(x, jax.Array):
        return strong(x)
    if isinstance(x, np.ndarray) and x.base is None and not x.flags.writeable and x.dtype == default_float():
        return x  # as it is stored already
    if isinstance(x, (int, float, np.ndarray, np.generic)) and not isinstance(x, (bool, np.bool_)):
        scalar = np.array(x, default_float())
        scalar.setflags(write=False)
        return scalar
    return x


def _is_parameter_of_its_own(x: Any) -> bool:
    return isinstance(x, AbstractHyperparameters)


def numeric_field(
    converter: Callable[[Any], Any],
    default: Any = dataclasses.MISSING,
    *,
    needs: Requirement | None = None,
    optional: bool = False,
) -> Any:
    """A field that holds one hyperparameter: what `modulax.number()` returns."""
    given = {} if default is dataclasses.MISSING else {"default": default}
    metadata = {"number": True, "optional": optional, "needs": needs}
    return eqx.field(converter=converter, metadata=metadata, **given)


class AbstractHyperparameters(AbstractModule):
    """A Module whose leaves are numbers and whose static fields are everything else.

    The base of transforms and schedules: it prints itself as it was written, lists its numbers by path and changes
    them by path. Numbers are declared with `modulax.number()`.
    """

    def __check_init__(self) -> None:
        # In this order, so that each check can rely on those before it. Subclasses write `check`: Equinox would run a
        # `__check_init__` of theirs before this one.
        self._check_fields()
        self._check_parts()
        self.check()
        # NNX takes an attribute with arrays inside for data only where its class is declared to be that. A stock
        # `nnx.Optimizer` then holds our optimizers with their hyperparameters live.
        nnx = sys.modules.get("flax.nnx")
        if nnx is not None:
            nnx.register_data_type(type(self))

    def check(self) -> None:
        """Refuse values of the fields that do not fit together. The fields have been checked one by one before."""

    def _check_parts(self) -> None:
        """Check the transforms inside, for those that hold some."""

    def _check_fields(self) -> None:
        for field in dataclasses.fields(self):
            if options := field.metadata.get("options"):
                check_choice(self, field.name, options)
            if field.metadata.get("number"):
                value = _check_number(self, field, getattr(self, field.name))
                object.__setattr__(self, field.name, value)
            elif field.metadata.get("numbers"):
                values = _check_numbers(self, field, getattr(self, field.name))
                object.__setattr__(self, field.name, values)
            elif not field.metadata.keys() & {"static", "part"}:
                _check_leaves(self, field.name, getattr(self, field.name))

    def __repr__(self) -> str:
        return _format(self)

    def addresses(self) -> dict[str, optree.PyTreeAccessor]:
        """Where each hyperparameter stands: an accessor for every number, schedule and random key, by dotted path.

        An accessor prints as the code that reads the number, reads it when called, and is the `where` of
        `equinox.tree_at`.
        """
        accessors = map(optree.PyTreeAccessor, _addressed(self, optree.treespec_accessors))
        return {_joined(accessor.path): accessor for accessor in accessors}

    def hyperparameters(self) -> dict[str, Any]:
        """Every number by its dotted path; those of a schedule stand under the path of the schedule."""
        return {dotted(path): leaf for path, leaf in jtu.tree_leaves_with_path(self) if not is_key_data(leaf)}

    def replace(self, **changes: Any) -> Self:
        """A copy with other hyperparameters.

        A name is a field of this object, the dotted path of a hyperparameter (or the end of one, where that is
        unambiguous), or a shell-style pattern, which changes all that it fits:

            optimizer.replace(learning_rate=3e-4)
            chain.replace(**{"adam.b1": 0.95})
            chain.replace(**{"*.weight_decay": 0.0})

        The new values are converted and checked like those of a constructor. A name that fits nothing is refused.
        """
        out = self
        for name, value in changes.items():
            for path in _find(self, name):
                out = with_value(out, path, value)
        return out


def _check_leaves(owner: object, name: str, value: Any) -> None:
    for leaf in jtu.tree_leaves(value):
        if not isinstance(leaf, (*ARRAY_TYPES, int, float, complex, jax.ShapeDtypeStruct)):
            raise ValueError(
                f"`{type(owner).__name__}({name}=...)` holds {leaf!r}, which is no number. Every leaf of a transform "
                f"is a number, so that JAX takes it as an argument; declare the field with "
                f"`{name}: ... = equinox.field(static=True)`."
            )


def _check_number(owner: object, field: dataclasses.Field, value: Any) -> Any:
    call = f"`{type(owner).__name__}({field.name}=...)`"
    if value is None and field.metadata["optional"]:
        return None
    shape = getattr(value, "shape", None)
    is_number = shape is not None and jnp.issubdtype(getattr(value, "dtype", np.bool_), jnp.number)
    if not is_number and not isinstance(value, AbstractHyperparameters):
        raise ValueError(f"{call} must be a number or a schedule, got {value!r} of type `{type(value).__name__}`.")
    if shape:
        raise ValueError(
            f"{call} must be a scalar, got an array of shape {shape}. For a batch of them, one per number, write "
            f"`eqx.filter_vmap(lambda x: {type(owner).__name__}({field.name}=x, ...))(numbers)`; to change one, "
            f"`eqx.filter_vmap(lambda t, x: t.replace({field.name}=x))(batch, numbers)`."
        )
    requirement = field.metadata["needs"]
    # Inside of our own programs every number is traced. It was checked when it was given, and a check in every step
    # would cost more than the step of a small model.
    return value if requirement is None else require(call, value, requirement, deferred=not is_tracing())


def _check_numbers(owner: object, field: dataclasses.Field, values: Any) -> tuple[Any, ...]:
    """A tuple of numbers, refused unless it has as many as the field's default or was arranged by the field."""
    call = f"`{type(owner).__name__}({field.name}=...)`"
    default = () if field.default is dataclasses.MISSING or field.metadata["arranged"] else field.default
    if not isinstance(values, tuple) or (default and len(values) != len(default)):
        wanted = f"{len(default)} numbers, such as `{field.name}={default}`" if default else "numbers"
        raise ValueError(f"{call} must be a tuple of {wanted}; got {values!r}.")

    def each(x: Any) -> Any:
        return tuple(map(each, x)) if isinstance(x, tuple) else _check_number(owner, field, x)

    return each(values)


def batched_number(module: AbstractHyperparameters) -> str | None:
    """The path of a number that is no scalar, if there is one: the module is a batch of many."""
    for field in dataclasses.fields(module):
        value = getattr(module, field.name)
        if field.metadata.get("number") or field.metadata.get("numbers"):
            held = jtu.tree_leaves(value, is_leaf=_is_parameter_of_its_own)
            if any(getattr(x, "shape", ()) for x in held):
                return field.name
        if not field.metadata.get("static"):
            for leaf in jtu.tree_leaves(value, is_leaf=_is_parameter_of_its_own):
                if isinstance(leaf, AbstractHyperparameters) and (inside := batched_number(leaf)):
                    return f"{field.name}.{inside}"
    return None


def _addressed(
    module: AbstractHyperparameters, entries: Callable[..., list[Any]] = optree.treespec_paths, before: Any = ()
) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every leaf, and of every schedule in a numeric field, as `entries` gives it for a treespec."""

    def is_inside(x: Any) -> bool:
        return x is not module and isinstance(x, AbstractHyperparameters)

    fields = {field.name: field.metadata for field in dataclasses.fields(module)}
    values, spec = optree.tree_flatten(module, is_inside, namespace=NAMESPACE)
    for names, path, value in zip(spec.paths(), entries(spec), values, strict=True):
        metadata = fields[names[0]]
        if not is_inside(value) or metadata.get("number") or metadata.get("numbers"):
            yield (*before, *path)
        if is_inside(value):
            yield from _addressed(value, entries, (*before, *path))


def _joined(path: tuple[Any, ...]) -> str:
    return ".".join(map(str, path))


def _find(module: AbstractHyperparameters, name: str) -> list[tuple[Any, ...]]:
    """The paths that a name given to `replace` stands for."""
    if name in {field.name for field in dataclasses.fields(module)}:
        return [(name,)]
    paths = {_joined(path): path for path in _addressed(module)}
    if name in paths:
        return [paths[name]]
    found = [dotted_path for dotted_path in paths if matches(dotted_path, "*." + name)]
    found = found or [dotted_path for dotted_path in paths if matches(dotted_path, name)]
    has_wildcard = any(c in name for c in "*?[")
    owner = type(module).__name__
    if not found:
        fields = [field.name for field in dataclasses.fields(module)]
        names = list(dict.fromkeys([*paths, *fields]))
        raise ValueError(
            f"`{owner}.replace({name}=...)`: there is no hyperparameter `{name}`.{suggestion(name, names)} "
            f"It has {listing(names)}."
        )
    if len(found) > 1 and not has_wildcard:
        raise ValueError(
            f"`{owner}.replace({name}=...)` is ambiguous: it could be {listing(found)}. Write one of them as "
            f'`replace(**{{"{found[0]}": ...}})`, or change them all with `replace(**{{"*.{name}": ...}})`.'
        )
    return [paths[path] for path in found]


def format_value(x: Any) -> str:
    """A value as it would be written: a number as a number, a key as its seed, a batch by its dtype and shape."""
    if is_key_data(x) and isinstance(x, ARRAY_TYPES) and not isinstance(x, Tracer) and x.shape == (2,):
        high, low = np.asarray(x).tolist()
        return str(high << 32 | low)
    if isinstance(x, Tracer) or (isinstance(x, ARRAY_TYPES) and np.ndim(x) > 0):
        return f"{x.dtype}{list(x.shape)}"
    if isinstance(x, ARRAY_TYPES) and jnp.issubdtype(x.dtype, jnp.number):
        text = str(np.asarray(x)[()])  # the shortest that reads back as the same number of this dtype
        return repr(float(text)) if jnp.issubdtype(x.dtype, jnp.floating) else text
    if isinstance(x, Mapping):
        return "{" + ", ".join(f"{key!r}: {format_value(value)}" for key, value in x.items()) + "}"
    if isinstance(x, tuple) and not hasattr(x, "_fields"):
        return "(" + ", ".join(map(format_value, x)) + ("," if len(x) == 1 else "") + ")"
    return getattr(x, "__qualname__", None) or repr(x)


def _format(module: eqx.Module) -> str:
    items = {f.name: getattr(module, f.name) for f in dataclasses.fields(module) if f.repr}
    return format_call(type(module).__name__, items)


def format_call(name: str, items: Mapping[str, Any], width: int = 100) -> str:
    """A call with named arguments, on one line if it fits."""
    texts = [f"{key}={format_value(value)}" for key, value in items.items()]
    line = f"{name}({', '.join(texts)})"
    if len(line) <= width and "\n" not in line:
        return line
    return "\n".join([f"{name}(", *("  " + text.replace("\n", "\n  ") + "," for text in texts), ")"])
