"""Modules whose leaves are hyperparameters: how these are stored, checked, printed, listed and replaced.

Transforms and schedules are `AbstractHyperparameters`. `number()` and `numbers()` (`fields.py`) declare the fields; the
converter of such a field stores what is given as a scalar (`as_scalar`), or wraps a function as a schedule
(`schedule.as_number`). `__check_init__` then checks every field: shape, type, and the `Requirement` of the declaration.
Converters and checks run in the constructor and in `replace`, but not in `tree_map`, `tree_at` or unflattening; so the
entry points also accept raw floats as leaves.

Every hyperparameter has a dotted path. `_addressed` finds them all, schedules in the fields included; `addresses()`
makes accessors of them, and `find_paths` resolves a name given to `replace`: a field, or what `tree._names.paths_named`
finds, among the hyperparameters or else among the parts and options. `Hyperparameters`, the result of
`hyperparameters()` and `addresses()`, finds a value in the same way.
"""

import contextvars
import dataclasses
import itertools
import operator
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import optree
from jax.core import Tracer

from .._support.arithmetic import default_float
from .._support.checks import NON_NEGATIVE, accepts_any_range, brief, check_setting, listing, require
from .._support.flax_nodes import is_variable, register_with_nnx
from .._support.module import AbstractModule
from .._support.optree_nodes import NAMESPACE
from .._support.printing import format_call, format_value, html_table
from .._support.tracing import is_tracing
from .._support.types import ARRAY_TYPES
from .._support.wrong_calls import explained, is_model, result_is_indexed
from ..tree._math import strong
from ..tree._names import NamingError, Path, ambiguous_name, ends_with, joined, outermost, paths_named, unknown_name
from ..tree._paths import key_names
from ..tree._search import with_value
from .frozen import frozen_like, numbers_with_paths, value_at

_SHOWS_DEFAULTS = contextvars.ContextVar("shows_defaults", default=False)


def as_scalar(x: Any) -> Any:
    """Convert a number to its stored form: a read-only NumPy scalar, or a JAX array without a weak type.

    Integers become floats in both, so that they can be combined with any array; other JAX arrays keep their dtype.
    """
    if isinstance(x, jax.Array):
        # Checkpoints drop weak types, so that with one the first step after a restore would be traced again.
        return x.astype(default_float()) if jnp.issubdtype(x.dtype, jnp.integer) else strong(x)
    if isinstance(x, (np.ndarray, np.generic)) and (np.iscomplexobj(x) or _is_stored(x)):
        return x  # complex numbers are refused by `_check_number`
    if isinstance(x, (int, float, np.ndarray, np.generic)) and not isinstance(x, (bool, np.bool_)):
        # A NumPy scalar starts no backend at import, has no weak type, and is not deleted by donation.
        scalar = np.array(x, default_float())
        # `Program` keeps a copy on the device, which is right only while the scalar cannot change.
        scalar.setflags(write=False)
        return scalar
    return x


def _is_stored(x: np.ndarray | np.generic) -> bool:
    """Whether this is the stored form of a number."""
    return isinstance(x, np.ndarray) and x.base is None and not x.flags.writeable and x.dtype == default_float()


class Hyperparameters(dict[str, Any]):
    """Values by dotted path. `values["learning_rate"]` finds one by the end of its path, if only one fits.

    Args:
        values: the values with their paths.
    """

    def __init__(self, values: Iterable[tuple[Path, Any]]):
        found = list(values)
        super().__init__((joined(path), x) for path, x in found)
        self._paths = {joined(path): path for path, _ in found}

    @property
    def paths(self) -> list[Path]:
        """The path of every value, in order."""
        return [self._paths.get(text, (text,)) for text in self]

    def __missing__(self, key: str) -> Any:
        found = paths_named(self.paths, str(key))
        if len(found) == 1:
            return self[joined(found[0])]
        if found:
            raise ambiguous_name(f"[{key!r}]", found)
        raise unknown_name(f"[{key!r}]", str(key), self.paths, what="hyperparameter `{}`")


def _values(mapping: Hyperparameters) -> tuple[list[tuple[Any, Any]], tuple[Path, ...]]:
    return [(jtu.DictKey(text), x) for text, x in mapping.items()], tuple(mapping.paths)


# JAX treats a subclass of dict as a leaf unless it is registered.
jtu.register_pytree_with_keys(
    Hyperparameters, _values, lambda paths, values: Hyperparameters(zip(paths, values, strict=True))
)


class AbstractHyperparameters(AbstractModule):
    """A Module whose leaves are hyperparameters, and in which everything else is a static field.

    The base class of transforms and schedules. Its repr is the call that constructs it, without the fields that have
    their defaults; `f"{optimizer:all}"` has every field. Its hyperparameters are listed and replaced by path. They are
    declared with `modulax.number()`.
    """

    _listed: ClassVar[tuple[str, ...]] = ("addresses", "hyperparameters", "replace")

    def __check_init__(self) -> None:
        # In this order, so that each check can rely on the previous ones. Subclasses override `check` and not
        # `__check_init__`, which Equinox would run before this one.
        self._check_fields()
        self._check_parts()
        self.check()
        register_with_nnx(type(self))

    def check(self) -> None:
        """Raise an error if the fields don't fit together. Each field has been checked on its own before."""

    def _check_parts(self) -> None:
        """Check the transforms inside, in a transform that has any."""

    def _check_fields(self) -> None:
        for field in dataclasses.fields(self):
            check_setting(self, field)
            if field.metadata.get("number"):
                value = _check_number(self, field, getattr(self, field.name))
                # `equinox.error_if` attaches the check of a traced number to the value that it returns.
                object.__setattr__(self, field.name, value)
            elif field.metadata.get("numbers"):
                values = _check_numbers(self, field, getattr(self, field.name))
                object.__setattr__(self, field.name, values)
            elif not field.metadata.keys() & {"static", "part"}:
                _check_leaves(self, field.name, getattr(self, field.name))

    def __hash__(self) -> int:
        """Return a hash of the class and the values, so that an object can be a static argument of `jax.jit`.

        Raises:
            TypeError: if a hyperparameter is traced.
        """
        return hash((type(self), *(_hashable(leaf, self) for leaf in jtu.tree_leaves(self))))

    def __repr__(self) -> str:
        shown = [f for f in dataclasses.fields(self) if f.repr]
        if not _SHOWS_DEFAULTS.get():
            shown = [f for f in shown if _default_that_differs(self, f) is not None]
        return format_call(type(self).__name__, {f.name: getattr(self, f.name) for f in shown})

    def __format__(self, spec: str) -> str:
        """Return the repr; `f"{optimizer:all}"` has every field, also those that have their defaults."""
        if spec != "all":
            return super().__format__(spec)
        context = contextvars.copy_context()
        context.run(_SHOWS_DEFAULTS.set, True)  # for the modules inside too
        return context.run(repr, self)

    def _repr_html_(self) -> str:
        rows = []
        for (path, value, field), (following, *_) in itertools.pairwise([*fields_inside(self), ((), None, None)]):
            if isinstance(value, AbstractHyperparameters):
                rows.append([joined(path), type(value).__name__, ""])
            elif field and following[: len(path)] != path:  # else the modules in the value have rows
                default = _default_that_differs(value_at(self, path[:-1]), field)
                rows.append([joined(path), format_value(value), default or ""])
        return html_table([type(self).__name__, "value", "default, if another"], rows)

    def addresses(self) -> dict[str, optree.PyTreeAccessor]:
        """Return an accessor for every hyperparameter, schedule and random key, by dotted path.

        An accessor prints as the code that reads the value and reads it when called. Pass it to `equinox.tree_at` as
        `where`.
        """
        accessors = map(optree.PyTreeAccessor, _addressed(self, optree.treespec_accessors))
        return Hyperparameters((accessor.path, accessor) for accessor in accessors)

    @result_is_indexed
    def hyperparameters(self) -> dict[str, Any]:
        """Return every hyperparameter by its dotted path; those of a schedule are under the path of the schedule.

        The end of a path is enough to read a value, if it is unambiguous: `hyperparameters()["learning_rate"]`.
        """
        return Hyperparameters(numbers_with_paths(self))

    @explained
    def replace(self, **changes: Any) -> Self:
        """Return a copy with other values of some hyperparameters, options or parts.

        A name is a field of this object, the dotted path of a hyperparameter (or the end of one, if it is unambiguous),
        or a shell-style pattern, which changes every hyperparameter that it matches (if it matches a schedule, the
        schedule as a whole):

            optimizer.replace(learning_rate=3e-4)
            chain.replace(**{"adam.b1": 0.95})
            chain.replace(**{"*.weight_decay": 0.0})

        Options and parts are replaced in the same way, if no hyperparameter has the name: `chain.replace(mask=mask)`,
        `chain.replace(adamw=Lion(1e-4))`. Their values are part of the compiled program, which is compiled again; a
        hyperparameter never causes that.

        The new values are converted and checked as in the constructor. A number in place of a JAX array is put on the
        device too.

        Args:
            changes: the new values, by name.

        Raises:
            ValueError: if a name matches nothing or is ambiguous, if two names refer to one value, or if a new value is
                invalid.
        """
        out, found = self, find_all(self, changes, f"{type(self).__name__}.replace")
        for name, paths in found.items():
            value = changes[name]
            is_number = isinstance(value, (int, float, np.generic, np.ndarray)) and not isinstance(value, bool)
            for path in paths:
                out = with_value(out, path, _on_device(value) if is_number and _is_on_device(out, path) else value)
        return frozen_like(out, self, itertools.chain.from_iterable(found.values()))

    def _why_not_a_number(self) -> str | None:
        """Return why this object cannot be the value of a hyperparameter; None if it can: it is a schedule."""
        return "It is not a schedule."

    @classmethod
    def _inside_is_read_by(cls, name: str) -> tuple[str, str]:
        """Return what the object is called in an error message, and how to read a hyperparameter inside it."""
        return "optimizer", f'Read it with `hyperparameters()["{name}"]` and change it with `replace({name}=...)`.'

    def _is_immutable(self, name: str) -> str:
        remedy = f"Write `optimizer = optimizer.replace({name}=...)`."
        variables = jtu.tree_leaves_with_path(self.__dict__.get(name), is_leaf=is_variable)
        if variables and is_variable(variables[0][1]):  # of `modulax.nnx.Optimizer`
            listed = listing(f"optimizer.hyperparameters.{name}{jtu.keystr(path)}[...] = ..." for path, _ in variables)
            remedy = f"Assign to the variable: {listed}."
        return f"{super()._is_immutable(name)} {remedy}"


def _default_that_differs(module: eqx.Module, field: dataclasses.Field) -> str | None:
    """The default of a field that has another value, as text: empty for a required field; None if it is the value."""
    value, missing = getattr(module, field.name), dataclasses.MISSING
    default = field.default if field.default_factory is missing else field.default_factory()
    if default is missing:
        return ""
    default = field.metadata.get("converter", lambda x: x)(default)
    # Numbers are compared by their text, because they may be in any kind of array; functions may have one text.
    both = (value, default) if field.metadata.get("static") else map(jtu.tree_structure, (value, default))
    text = format_value(default)
    return None if format_value(value) == text and operator.eq(*both) else text


def _is_on_device(module: Any, path: tuple[Any, ...]) -> bool:
    """Whether the value at a path is a number in a JAX array, as in an optimizer after `jax.device_put`."""
    value = value_at(module, path)
    return isinstance(value, jax.Array) and not isinstance(value, Tracer) and jnp.issubdtype(value.dtype, jnp.floating)


def _on_device(x: Any) -> Any:
    return jax.device_put(as_scalar(x))


def _check_leaves(owner: object, name: str, value: Any) -> None:
    for leaf in jtu.tree_leaves(value):
        if not isinstance(leaf, (*ARRAY_TYPES, int, float, complex, jax.ShapeDtypeStruct)):
            remedy = f"declare the field with `{name}: ... = equinox.field(static=True)`."
            if is_model(value):
                remedy = f"give `eqx.partition({name}, eqx.is_array)[0]`, and the other half in a static field."
            raise ValueError(
                f"`{type(owner).__name__}({name}=...)` holds {leaf!r}, which is not a number. Every leaf of a "
                f"transform must be a number or an array, so that JAX accepts the transform as an argument: {remedy}"
            )


def _check_number(owner: object, field: dataclasses.Field, value: Any) -> Any:
    call = f"`{type(owner).__name__}({field.name}=...)`"
    if value is None and field.metadata["optional"]:
        return None
    if isinstance(value, AbstractHyperparameters):
        return _require_schedule(owner, call, value)
    if (shape := _shape_if_real(value)) is None:
        raise ValueError(
            f"{call} must be a number or a schedule, got {brief(value)} of type `{type(value).__name__}`."
            f"{_what_was_meant(value)}{_pair_meant(owner, field.name, value)}"
        )
    if shape == (1,) and accepts_any_range():
        value, shape = value[0], ()  # pyright: ignore
    if shape and not accepts_any_range():  # as optax does, compat broadcasts it with every array
        raise ValueError(
            f"{call} must be a scalar, got an array of shape {shape}. To make a batch, one per number, write "
            f"`eqx.filter_vmap(lambda x: {type(owner).__name__}({field.name}=x, ...))(numbers)`; to change one, "
            f"`eqx.filter_vmap(lambda t, x: t.replace({field.name}=x))(batch, numbers)`. To scale every entry of the "
            f"updates by its own number, chain `Stateless(lambda u, p: x * u, leafwise=True)`."
        )
    return _require(call, field, value)


def _require(call: str, field: dataclasses.Field, value: Any) -> Any:
    """Return a number if it is in the range of its field, else raise an error."""
    requirement = field.metadata["needs"] or (NON_NEGATIVE if field.name in ("eps", "eps_root") else None)
    # Inside our own programs every hyperparameter is traced. It was checked when it was given, and a check in every
    # step would take longer than the step of a small model. A schedule of whole numbers may be between two of them.
    if requirement is None or (is_tracing() and requirement.least is not None):
        return value
    return require(call, value, requirement, deferred=not is_tracing())


def _require_schedule(owner: object, call: str, value: AbstractHyperparameters) -> Any:
    if reason := value._why_not_a_number():
        if not hasattr(owner, "each_part"):  # as in torch
            reason = "Give the schedule to the optimizer, `AdamW(schedule)`."
        raise ValueError(f"{call} must be a number or a schedule, got {brief(value)}. {reason}")
    return value


def _shape_if_real(value: Any) -> tuple[int, ...] | None:
    """The shape of a real number, or of an array of them; None for anything else."""
    value = np.asarray(value) if type(value) is float else value
    dtype = getattr(value, "dtype", None)
    is_real = dtype is not None and jnp.issubdtype(dtype, jnp.number) and not jnp.issubdtype(dtype, jnp.complexfloating)
    return getattr(value, "shape", None) if is_real else None


def _what_was_meant(value: Any) -> str:
    """A remedy for a value that is neither a number nor a schedule."""
    if isinstance(value, type):
        return f" It is a class: make an instance, `{value.__name__}(...)`."
    if isinstance(value, str):
        return " Convert it: `float(...)`."
    if is_model(value):
        return (
            " It holds arrays, like a model: parameters are given to `init(params)` and `step(grads, state, params)`."
            " If it is a schedule, subclass `modulax.AbstractSchedule`."
        )
    if isinstance(value, dict):
        return ' In a configuration, a schedule has a `name`, such as `"name": "schedules.CosineDecay"`.'
    return ""


def _pair_meant(owner: object, name: str, value: Any) -> str:
    """A remedy for two numbers in one argument, as torch takes `betas`."""
    names = [field.name for field in dataclasses.fields(owner) if field.metadata.get("number")]  # pyright: ignore
    if not isinstance(value, (tuple, list)) or len(value) != 2 or name not in names[:-1]:
        return ""
    both = zip(names[names.index(name) :], value, strict=False)
    order = listing(field.name for field in dataclasses.fields(owner))  # pyright: ignore
    return f" Give each by its name: `{', '.join(f'{n}={x!r}' for n, x in both)}`. The arguments are {order}."


def _check_numbers(owner: object, field: dataclasses.Field, values: Any) -> Any:
    """Check numbers in a tuple or by name: as many as the default has, unless the field arranged them itself."""
    call = f"`{type(owner).__name__}({field.name}=...)`"
    default = () if field.default is dataclasses.MISSING or field.metadata["arranged"] else field.default
    if isinstance(values, dict) and field.metadata["arranged"]:
        return type(values)((name, _check_number(owner, field, x)) for name, x in values.items())
    if not isinstance(values, tuple) or (default and len(values) != len(default)):
        wanted = f"{len(default)} numbers, such as `{field.name}={default}`" if default else "numbers"
        raise ValueError(f"{call} must be a tuple of {wanted}; got {values!r}.")

    def each(x: Any) -> Any:
        return tuple(map(each, x)) if isinstance(x, tuple) else _check_number(owner, field, x)

    return each(values)


def _hashable(leaf: Any, owner: AbstractHyperparameters) -> Hashable:
    """A leaf of a transform as a value that is equal, and has the same hash, for equal leaves."""
    if isinstance(leaf, Tracer):
        raise TypeError(
            f"`{type(owner).__name__}` has traced hyperparameters, and cannot be hashed. Give it to the inner "
            f"`jax.jit` as an ordinary argument in place of a static one: it is a pytree."
        )
    if isinstance(leaf, np.ndarray | np.generic | jax.Array):
        return leaf.shape, tuple(np.asarray(leaf).ravel().tolist())
    return leaf


def _addressed(
    module: AbstractHyperparameters, entries: Callable[..., list[Any]] = optree.treespec_paths, before: Any = ()
) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every leaf, and of every schedule in a numeric field, as `entries` gives it for a treespec."""

    def is_inside(x: Any) -> bool:
        return x is not module and isinstance(x, AbstractHyperparameters)

    fields = {field.name: field.metadata for field in dataclasses.fields(module)}
    tree: Any = module
    # optree, because its treespecs give accessors, which read and print as code.
    values, spec = optree.tree_flatten(tree, lambda x: is_inside(x) or is_variable(x), namespace=NAMESPACE)
    for names, path, value in zip(spec.paths(), entries(spec), values, strict=True):
        metadata = fields[names[0]]
        if not is_inside(value) or metadata.get("number") or metadata.get("numbers"):
            yield (*before, *path)
        if is_inside(value):
            yield from _addressed(value, entries, (*before, *path))


def fields_inside(
    module: AbstractHyperparameters, before: Path = ()
) -> Iterator[tuple[Path, Any, dataclasses.Field | None]]:
    """Yield the path, the value and the declaration of every field of a module and of the modules inside.

    The entries that are modules in a mapping or a tuple follow, without a declaration.
    """
    for field in dataclasses.fields(module):
        path, value = (*before, field.name), getattr(module, field.name)
        yield path, value, field
        for where, x in _modules_in(value, path):
            if where != path:
                yield where, x, None
            yield from fields_inside(x, where)


def _modules_in(value: Any, path: Path) -> Iterator[tuple[Path, AbstractHyperparameters]]:
    if isinstance(value, AbstractHyperparameters):
        yield path, value
    elif isinstance(value, (Mapping, tuple)):
        for key, x in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _modules_in(x, (*path, key))


def numeric_fields(module: AbstractHyperparameters) -> Iterator[tuple[Path, Any]]:
    """Yield the path and the value of every field, here and in the modules inside, that holds hyperparameters."""
    for path, value, field in fields_inside(module):
        if field is not None and field.metadata.keys() & {"number", "numbers"}:
            yield path, value


def batched_number(module: AbstractHyperparameters) -> str | None:
    """The path of a hyperparameter that is not a scalar, if there is one: the module is a batch of modules."""
    for path, value in numeric_fields(module):
        for keys, x in jtu.tree_leaves_with_path(value, lambda x: isinstance(x, AbstractHyperparameters)):
            if getattr(x, "shape", ()):
                return joined((*path, *key_names(keys)))
    return None


BY_KEYWORD = '**{{"{}": ...}}'


def find_paths(module: AbstractHyperparameters, name: str, function: str, written: str = BY_KEYWORD) -> list[Path]:
    """The key paths that a name given to `replace` refers to: hyperparameters, or else options and parts.

    Args:
        module: a transform or a schedule.
        name: the name.
        function: what the caller is called in an error message.
        written: how the caller takes a name with dots, with `{}` in its place.
    """
    own = [(field.name,) for field in dataclasses.fields(module)]
    if (name,) in own:
        return [(name,)]
    numbers, others = list(_addressed(module)), [path for path, _, _ in fields_inside(module)]
    found = paths_named(numbers, name) or paths_named(others, name)
    call = f"{function}({name}=...)"
    if not found:
        ends = [str(path[-1]) for path in others]
        what = f"hyperparameter, option or part `{{}}` in {type(module).__name__}"
        raise unknown_name(call, name, [*numbers, *own], ends, what)
    if len(found) > 1 and ends_with(found[0], name):  # else it is a pattern
        one = joined(found[0])
        remedy = f"Write one of them as `{written.format(one)}`, or all of them as `{written.format(f'*.{name}')}`."
        raise ambiguous_name(call, found, remedy)
    return outermost(found)  # of a schedule and the hyperparameters in it, only the schedule


def find_all(
    module: AbstractHyperparameters, names: Iterable[str], function: str, written: str = BY_KEYWORD
) -> dict[str, list[Path]]:
    """The key paths of several names, as `find_paths` finds them; an error if two names refer to one value."""
    found = {name: find_paths(module, name, function, written) for name in names}
    for (name, paths), (other, others) in itertools.combinations(found.items(), 2):
        for a, b in itertools.product(paths, others):
            if len(outermost(sorted([a, b], key=len))) == 1:
                raise NamingError(
                    f"`{function}({name}=..., {other}=...)`: both names refer to `{joined(max(a, b, key=len))}`. Give "
                    f"each value one name."
                )
    return found
