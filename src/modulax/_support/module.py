"""The base class of all Modules of the library, and the declarations of state fields."""

import dataclasses
import inspect
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

import equinox as eqx
import jax.numpy as jnp

from .flax_nodes import register_class
from .optree_nodes import register_module
from .printing import format_state, html_of_arrays
from .wrong_calls import NoAttributeError, inside, swapped_part, wrong_call

FieldKind = Literal["params", "shared", "states"]
M = TypeVar("M")


if TYPE_CHECKING:  # a type checker takes the arguments of a class from its fields, and not from a metaclass
    _AbstractModule = eqx.Module
else:

    class _ModuleType(type(eqx.Module)):
        """Explains a call with wrong arguments, in the words of this library, and shows readers how to call a class.

        `help(AdamW)` and completion list the arguments of the constructor, and what a user calls.
        """

        def __call__(cls, *args, **kwargs):
            try:
                return super().__call__(*args, **kwargs)
            except TypeError as error:
                if message := wrong_call(cls, args, kwargs, cls._call_hint):
                    raise TypeError(message) from error
                raise
            except ValueError as error:
                if message := swapped_part(cls, args) if len(args) > 1 else None:
                    raise ValueError(message) from error
                raise

        @property
        def __signature__(cls) -> inspect.Signature:
            # Without annotations: the generated ones are `Any` wherever a value is converted, and spell out aliases.
            _, *parameters = inspect.signature(cls.__init__).parameters.values()
            return inspect.Signature([p.replace(annotation=inspect.Parameter.empty) for p in parameters])

        def __dir__(cls) -> list[str]:
            # `help` shows the defaults of fields in the signature, and would print the docstring of a direction.
            fields = getattr(cls, "__dataclass_fields__", ())
            names = [name for name in super().__dir__() if name not in fields]
            return [name for name in names if not name.startswith("_") or name in cls._operators]

    _AbstractModule = _ModuleType("_AbstractModule", (eqx.Module,), {"__module__": __name__})


class AbstractModule(_AbstractModule):
    """An Equinox Module with plain Python bound methods, and with error messages that say what to write.

    Equinox wraps every bound method in a pytree, for which it intercepts every attribute access. Methods of this
    library are called, not passed around as pytrees. Without the interception, flattening states takes half the time,
    and `jax.jit(optimizer.step)` works, because a Python bound method is hashable.

    Every subclass is registered with optree too, `optree.tree_paths(optimizer, namespace="modulax")`, and with
    `flax.serialization`.
    """

    _operators: ClassVar[tuple[str, ...]] = ("__call__", "__len__", "__contains__")
    """The operators that `help` and `dir` list, of those that the class has."""

    _listed: ClassVar[tuple[str, ...]] = ()
    """What `dir` of an instance lists of the names that abstract classes define: what a user calls."""

    _call_hint: ClassVar[str] = ""
    """What the error message for wrong arguments says beside them, for a class whose arguments are easily confused."""

    _params_hint: ClassVar[str] = ""
    """What the error message says where the Module is given as parameters, for one that only some transforms train."""

    if not TYPE_CHECKING:
        # `jax.jit` hashes the method that it compiles. Equinox would hash it by its leaves, and arrays do not hash.
        __getattribute__ = object.__getattribute__

        def __getattr__(self, name: str) -> Any:  # called where there is no such attribute
            # JAX and NumPy ask for such names often, by `hasattr`, so that the answer has to be cheap.
            if name.startswith("_") and name != "_replace":  # of NamedTuples
                raise AttributeError(f"`{type(self).__name__}` has no attribute `{name}`.")
            raise NoAttributeError(self, name)

        def __setattr__(self, name: str, value: Any) -> None:
            try:
                super().__setattr__(name, value)
            except dataclasses.FrozenInstanceError as error:
                raise dataclasses.FrozenInstanceError(self._is_immutable(name)) from error

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        register_module(cls)
        register_class(cls)

    def __dir__(self) -> list[str]:
        """List the fields and what a user calls, without the protocol that the library itself uses."""
        cls = type(self)
        abstract = [base for base in cls.__mro__ if base.__name__.startswith("Abstract")]
        protocol = {name for base in abstract for name in vars(base)} - {*cls._listed}
        fields = [field.name for field in dataclasses.fields(self)]
        return sorted({*(name for name in dir(cls) if name not in protocol and not name.startswith("_")), *fields})

    @classmethod
    def _inside_is_read_by(cls, name: str) -> tuple[str, str]:
        """Return what a Module is called in an error message, and how to read a value that has a name inside it."""
        del name
        return "module", ""

    def _is_immutable(self, name: str) -> str:
        return f"`{type(self).__name__}` is immutable: `{name}` cannot be assigned."


class AbstractState(AbstractModule):
    """The state of a transform: a Module of arrays, whose field names are the names in checkpoints.

    The declaration of each field says what it holds. `like_params()`, which may be omitted, is a tree with the
    structure of the parameters, such as a moment. `shared()` is one value for all parameters, such as a random key;
    `counter()` is a shared step count. `nested()` holds the states of other transforms.

        class AdamState(AbstractState):
            mu: PyTree
            nu: PyTree
            count: Array | None = counter()

    `modulax.tree.map_params`, `state_sharding`, `describe` and `checkpoint.restore` rely on these declarations.
    """

    optax_fields: ClassVar[tuple[str, ...] | None] = None
    """The fields of optax's state in its order, those here by name: `"t=count"` if optax calls one differently."""

    optax_forms: ClassVar[tuple[str, ...]] = ()
    """Fields that optax keeps in the form of `follow="optax"`."""

    def __getitem__(self, key: Any) -> Any:
        """Raise an error that says where the value is."""
        where = inside(self, key) if isinstance(key, str) else None
        fields = ", ".join(f"`{field.name}`" for field in dataclasses.fields(self))
        raise TypeError(f"`{type(self).__name__}` cannot be indexed; its fields are {fields or 'none'}. {where or ''}")

    def __len__(self) -> int:
        """Raise an error for a state where one of optax is needed, which is a tuple."""
        raise TypeError(
            f"`{type(self).__name__}` is a state of modulax, and has no length. For a transformation of optax, "
            f"convert it: `modulax.checkpoint.state_to_optax(transformation.init(params), state, optimizer, params)`."
        )

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return format_state(self, AbstractModule)

    def _repr_html_(self) -> str:
        return html_of_arrays(self)

    @classmethod
    def _inside_is_read_by(cls, name: str) -> tuple[str, str]:
        """Return what a state is called in an error message, and how to read a value that has a name inside it."""
        return "state", f'`modulax.tree.get(state, "{name}")` finds a value by name.'

    def _is_immutable(self, name: str) -> str:
        return f"{super()._is_immutable(name)} Write `state = modulax.tree.set(state, {name}=...)`."


def _field(default: Any, kw_only: bool = False, **metadata: Any) -> Any:
    # Equinox tells an absent default from one that is None.
    given = {} if default is dataclasses.MISSING else {"default": default}
    return eqx.field(metadata=metadata, kw_only=kw_only, **given)


def like_params(
    *,
    exact: bool = False,
    copied: bool = False,
    nonnegative: bool = False,
    preconditioner: bool = False,
    per_matrix: bool = False,
    moment: float | Callable[[Any], Any] | None = None,
    form: Callable[[Any], Any] | None = None,
    scale: Callable[[Any, Any], Any] | None = None,
) -> Any:
    """Declare a state field that is a tree with the structure of the parameters, such as a moment.

    This is the default for fields without a declaration. Write it out for a field after one that is `shared()` or
    `nested()`: type checkers require it there.

    Args:
        exact: whether every entry is needed in full precision, as in a copy of the parameters or a sum that becomes
            their update. `LowBit` does not quantize such a field.
        copied: whether it begins as a copy of the parameters, from which the rule continues: a restore that leaves it
            fresh says so. It is exact too.
        nonnegative: whether no entry is ever negative, as in a second moment. `LowBit` then stores no sign, and keeps
            the entries positive.
        preconditioner: whether it is a root or a basis that is recomputed every few steps, from other fields. Only
            `LowBit(preconditioners=True)` stores it in fewer bits.
        per_matrix: whether it belongs to the matrices of an array, as a factor of a preconditioner does, and not to the
            entries: the axes that count matrices come first. `AbstractMatrixwise` asks for it. On a mesh, the devices
            of the parameter divide its rows.
        moment: for a decaying sum of the updates that the rule receives, the factor that turns the sum into their
            average, or a function of the rule that returns this factor: 1 for the first moment of Adam,
            `lambda rule: 1 - rule.decay` for the momentum of SGD. `checkpoint.carry` takes it over between classes.
        form: if options of the rule decide what the field holds, a function of the rule that returns which quantity it
            is. `checkpoint.carry` does not carry the field into a rule of a different form, unless `scale` is given.
        scale: a function of the rule and the state that returns a number. The field times this number is the same in
            all forms, as a mean of gradients times their number is their sum.
    """
    holds: dict[str, Any] = {"exact": exact or copied, "copied": copied, "nonnegative": nonnegative, "moment": moment}
    holds |= {"preconditioner": preconditioner, "per_matrix": per_matrix, "form": form, "scale": scale}
    return _field(dataclasses.MISSING, holds="params", **holds)


def shared(
    default: Any = dataclasses.MISSING,
    *,
    kw_only: bool = False,
    starts: bool | int | float | Callable[[Any], Any] | None = None,
    metric: bool = False,
    factor: bool = False,
    origin: Callable[[Any], int] | None = None,
) -> Any:
    """Declare a state field with one value for all parameters, such as a random key or a running loss.

    Args:
        default: default value of the field, if it has one. In the state of an `AbstractLeafwise` use None, because
            `init_leaf` gets a single array; `init_shared` and `share` return the values.
        kw_only: whether the constructor takes it by name only.
        starts: the first value of a scalar: False for a flag, 0 for a count, 0.0 for a number in JAX's default float
            dtype; or a function of the rule that returns it. The `init` of an `AbstractLeafwise` makes the array.
        metric: whether `optimizer.metrics(state)` lists it for logs, under the name of the field, or under the names
            inside if the value is a tree of scalars.
        factor: whether a rule multiplies its updates by the value: `optimizer.hyperparameters(state)` lists it, and the
            learning rates of a state include it.
        origin: for a count whose first value depends on an option of the rule, a function of the rule that returns this
            value. `checkpoint.carry` carries the number of steps since then.
    """
    return _field(default, kw_only, holds="shared", starts=starts, metric=metric, factor=factor, origin=origin)


def counter(*, steps: bool = True) -> Any:
    """Declare the step count in the state of an `AbstractLeafwise`.

    Write `count: Array | None = counter()`. The base class initializes it to 0, passes it to `prepare` and `survey`,
    and increments it after every step. Schedules in the fields of the rule are evaluated at this count. The constructor
    takes it by name only: in optax, the count is the first field of a state.

    Args:
        steps: False if the field counts something other than steps; `share` then returns its new value, and no schedule
            can follow it.
    """
    return _field(None, kw_only=True, holds="shared", counts="steps" if steps else "other")


def first_values(state: Any, rule: Any) -> dict[str, Any]:
    """Return the first values of the fields that are declared with `shared(starts=...)`, by name.

    Args:
        state: a state or its class.
        rule: the rule or the container whose state it is.
    """
    starts = {field.name: field.metadata.get("starts") for field in dataclasses.fields(state)}
    values = {name: x(rule) if callable(x) else x for name, x in starts.items() if x is not None}
    # Copies: a state must not share arrays with the rule.
    return {name: jnp.array(x, {bool: bool, int: jnp.int32}.get(type(x), float)) for name, x in values.items()}


def nested() -> Any:
    """Declare a state field that holds the state of another transform, or a list or mapping of such states."""
    return _field(dataclasses.MISSING, holds="states")


def every_field(cls: type) -> Iterator[dataclasses.Field]:
    """Yield the fields of a class and of all its subclasses."""
    for each in with_subclasses(cls):
        yield from dataclasses.fields(each)


def with_subclasses(cls: type) -> Iterator[type]:
    """Yield a class and all its subclasses."""
    yield cls
    for subclass in cls.__subclasses__():
        yield from with_subclasses(subclass)


def kind_of(field: dataclasses.Field) -> FieldKind:
    """Return what a state field holds: a tree like the parameters, a shared value, or other states."""
    declared = field.metadata.get("holds")
    if declared is None and field.default is not dataclasses.MISSING:
        raise ValueError(
            f"The field `{field.name}` of a state has a default and no declaration. Write `{field.name}: ... = "
            f"shared({field.default!r})` for one value that all parameters share, `{field.name}: ... = counter()` for "
            f"the step count, or leave out the default for a tree like the parameters."
        )
    return "params" if declared is None else declared


def with_fields(module: M, **values: Any) -> M:
    """Return a copy of a Module with other values in some fields, without conversion or checks."""
    # The constructor may take other arguments than the fields, as that of `Chain` does.
    new = object.__new__(type(module))
    for field in dataclasses.fields(module):  # pyright: ignore[reportArgumentType] (a Module is a dataclass)
        name = field.name
        object.__setattr__(new, name, values[name] if name in values else getattr(module, name))
    return new
