"""`Injected`: hyperparameters in the optimizer state, for learning-rate injection.

The state holds a copy of the inner transform whose leaves are its hyperparameters as arrays; callers overwrite them
there. In `update`, `_now` combines the inner transform with the state: a hyperparameter in the state takes precedence,
except in a field that holds a schedule, where the value of the schedule at this step does. `_kept` extracts the
hyperparameters that the state stores, in its dtype and without `static_args`. `_merged` puts them back into the inner
transform, with all numbers in JAX's default float dtype; its `update` is then called.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer
from jaxtyping import DTypeLike

from .._protocol.container import AbstractContainer, required_part
from .._protocol.hyperparameters import Hyperparameters
from .._protocol.schedule import is_schedule
from .._protocol.schedule_values import advance, reading, schedule_states, with_current_values
from .._protocol.transform import AbstractTransform, Clock, Part, everything_in
from .._support.arithmetic import default_float, safe_increment
from .._support.flax_nodes import is_variable
from .._support.keys import is_key_data
from .._support.module import AbstractState, nested, shared, with_fields
from .._support.printing import format_value
from .._support.types import Count, Params, State, Updates
from ..tree._math import in_place_of
from ..tree._names import Path, joined, paths_named, unknown_name
from ..tree._paths import key_names, named_leaves
from .from_factory import call_factories, from_call


class InjectedState(AbstractState):
    """State of `Injected`: step count, the inner transform with its hyperparameters as arrays, and its state.

    `state.hyperparams["learning_rate"]` reads and writes a hyperparameter, as in optax. In a pure function, read
    `state.hyperparameters.learning_rate`, and change it with `equinox.tree_at(lambda s:
    s.hyperparameters.learning_rate, state, 3e-4)`. `schedule_states` holds the states of stateful schedules by the
    dotted path of the field that holds each, or None if there are none.
    """

    optax_fields = ("count", "hyperparams", "hyperparams_states=schedule_states", "inner_state")

    count: Count = shared()
    hyperparameters: Any = shared()
    inner_state: State = nested()
    schedule_states: dict[str, State] | None = shared(None, kw_only=True)  # in optax, the third one

    @property
    def hyperparams(self) -> "Hyperparams":
        """The hyperparameters as a mapping from names to numbers. Setting one changes this state in place."""
        return Hyperparams(self.hyperparameters, self.inner_state)

    @property
    def hyperparams_states(self) -> dict[str, State]:
        """`schedule_states` under its name in optax, where it is empty if there are none."""
        return self.schedule_states or {}


class Hyperparams(MutableMapping[str, Any]):
    """The hyperparameters in a state by name: a field, a dotted path, or the end of one if it is unambiguous.

    Setting one changes the state in place, as in optax. A number is stored as an array like the one before it, so that
    nothing is traced again. The other fields of a state never change. A part that counts its own steps follows its
    schedules itself: they have their values at its last step, and setting one does nothing.

    Args:
        module: the transform that holds the hyperparameters.
        state: the state of that transform.
    """

    def __init__(self, module: AbstractTransform, state: State):
        self._module, self._state = module, state

    def __getitem__(self, name: str) -> Any:
        accessor = self.accessors()[name]
        value = accessor(self._module)
        return accessor(self._at_last_step()) if is_schedule(value) else value

    def _at_last_step(self) -> AbstractTransform:
        # `static_args` has left nothing of some schedules here.
        module = jtu.tree_map(lambda x: None if _is_left_out(x) else x, self._module, is_leaf=is_schedule)
        with reading(steps_back=1):
            return module.at(self._state)

    def __setitem__(self, name: str, value: Any) -> None:
        accessor = self.accessors()[name]
        old: Any = accessor(self._module)
        if is_schedule(old):
            return
        holder, key = accessor[:-1](self._module), accessor.path[-1]
        is_in_variable = is_variable(old)  # in the state that the stock `flax.nnx.Optimizer` keeps
        value = in_place_of(old.get_value() if is_in_variable else old, value)
        if is_in_variable:
            old.set_value(value)
        elif isinstance(holder, dict):
            holder[key] = value
        elif isinstance(holder, tuple):
            raise TypeError(f"`state.hyperparams[{name!r}]` is an entry of a tuple. Change it with `equinox.tree_at`.")
        else:
            # A Module is frozen, and programs written for optax assign to `state.hyperparams[...]`.
            object.__setattr__(holder, key, value)

    def __delitem__(self, name: str) -> None:
        raise TypeError(f"`{name}` cannot be removed from the hyperparameters of a state.")

    def __iter__(self) -> Iterator[str]:
        return iter(self.accessors())

    def __len__(self) -> int:
        return len(self.accessors())

    def __repr__(self) -> str:
        return repr(dict(self))

    def accessors(self) -> Hyperparameters:
        """Return the functions that read the hyperparameters from the transform that holds them, by name."""
        found = [(accessor.path, accessor) for accessor in self._module.addresses().values()]
        schedules = {path: accessor(self._module) for path, accessor in found}
        schedules = {path: x for path, x in schedules.items() if is_schedule(x)}
        found = [
            (path, accessor)
            for path, accessor in found
            if schedules.keys().isdisjoint(_beginnings(path[:-1])) and not _is_left_out(schedules.get(path))
        ]
        # The arguments of a function have their own names, as in optax.
        return Hyperparameters((path[1:] if path[0] == "arguments" else path, x) for path, x in found)


def with_hyperparams(state: AbstractState, values: dict[str, Any]) -> AbstractState:
    """Return a copy of a state with other values in its fields, and hyperparameters by name in one that has them."""
    if isinstance(state, InjectedState):
        inner, accessors = state.hyperparameters, state.hyperparams.accessors()
        for name, x in values.pop("hyperparams", {}).items():
            if not is_schedule(accessors[name](inner)):
                inner = eqx.tree_at(accessors[name], inner, in_place_of(accessors[name](inner), x))
        values["hyperparameters"] = inner
    return with_fields(state, **values)


def _is_left_out(x: Any) -> bool:
    """Whether this is a schedule without numbers that it needs."""
    return is_schedule(x) and any(_lacks(field, getattr(x, field.name)) for field in dataclasses.fields(x))


def _lacks(field: dataclasses.Field, value: Any) -> bool:
    if value is None:
        return bool(field.metadata.get("number")) and not field.metadata.get("optional")
    inside = jtu.tree_leaves(value, is_leaf=lambda y: y is None or is_schedule(y))
    return any(y is None or _is_left_out(y) for y in inside)


def _as_names(x: Any) -> tuple[str, ...]:
    return (x,) if isinstance(x, str) else tuple(x)


class Injected(AbstractContainer):
    """Keeps the hyperparameters of a transform in its state, where they can be changed between steps.

        optimizer = Injected(AdamW(1e-3))
        state = optimizer.init(params)
        state.hyperparams["learning_rate"] = 3e-4

    This is for code that holds the optimizer itself static, such as a training state of another library. If the
    optimizer can be passed as an argument, `replace` is simpler.

    The hyperparameters in the state take precedence over those of the transform, and may be overwritten by arrays or
    Python numbers. A field with a schedule always follows the schedule; the state shows its value at the last step. In
    a part that counts its own steps, such as an optimizer in a `Chain`, `state.hyperparams` shows it.

    Args:
        inner: the inner transform.
        static_args: hyperparameters that are kept out of the state, which has None in their place: names of fields,
            dotted paths, ends of dotted paths, or shell-style patterns. The transform's own values are used.
        hyperparam_dtype: dtype of the hyperparameters in the state; by default JAX's default float dtype. It does not
            affect the dtypes of parameters and updates, nor do these affect it.

    Raises:
        ValueError: if `static_args` names no hyperparameter, if `hyperparam_dtype` is not a floating-point dtype, or if
            a hyperparameter is zero in it or outside its range, such as a decay of 0.999, which bfloat16 rounds to 1.
    """

    _keeps = "gradients"

    inner: AbstractTransform = required_part()
    static_args: tuple[str, ...] = eqx.field(static=True, default=(), converter=_as_names)
    hyperparam_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    clock: ClassVar[Clock] = "keeper"
    is_arraywise: ClassVar[bool] = True
    is_one_pass: ClassVar[bool] = True

    def check(self) -> None:
        if self.hyperparam_dtype is not None and not jnp.issubdtype(self.hyperparam_dtype, jnp.floating):
            raise ValueError(
                f"`Injected(hyperparam_dtype=...)` must be a floating dtype such as `jnp.float32`, got "
                f"{self.hyperparam_dtype!r}."
            )
        for name in self.static_args:
            if not paths_named(_paths(self.inner), name) and name not in _static_names(self.inner):
                there = [x.path for x in self.inner.addresses().values()]
                raise unknown_name("Injected(static_args=...)", name, there, what="hyperparameter `{}`")
        if self.hyperparam_dtype is not None:
            self._check_rounded(jnp.dtype(self.hyperparam_dtype))

    def _check_rounded(self, dtype: Any) -> None:
        """Raise an error for a hyperparameter that is valid, and is not as the state stores it."""
        static = self._static_paths()
        for name, accessor in self.inner.addresses().items():
            value = accessor(self.inner)
            is_known = not isinstance(value, Tracer) and not is_schedule(value) and not is_key_data(value)
            if not is_known or np.shape(value) or not static.isdisjoint(_beginnings(tuple(map(str, accessor.path)))):
                continue
            exact = np.asarray(value, np.float64)
            with np.errstate(over="ignore"):  # which the message says
                stored = exact.astype(dtype).astype(np.float64)
            if reason := _why_not_stored(self.inner, name, exact, stored):
                raise ValueError(
                    f"`Injected(hyperparam_dtype={dtype.name})` stores `{name}`, {format_value(value)}, as {stored:g}"
                    f"{reason} Keep it out of the state, `static_args={(*self.static_args, name)!r}`, or leave "
                    f"`hyperparam_dtype` out."
                )

    def init(self, params: Params) -> InjectedState:
        """Return a copy of the hyperparameters, and the inner state."""
        count = jnp.zeros((), jnp.int32)
        states = schedule_states(self.inner)
        inner = with_current_values(self.inner, count, states)
        # A copy, so that donating the state does not delete the hyperparameters of the transform.
        kept = jtu.tree_map(jnp.array, self._kept(inner))
        return InjectedState(count, kept, self._merged(kept, inner).init(params), schedule_states=states)

    def update(
        self, updates: Updates, state: InjectedState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, InjectedState]:
        """Run one step of the inner transform with the hyperparameters in the state."""
        inner = self._now(state, extra)
        kept = self._kept(inner)
        updates, inner_state = self._merged(kept, inner).update(updates, state.inner_state, params, **extra)
        states = advance(self.inner, state.count, state.schedule_states, extra)
        return updates, InjectedState(safe_increment(state.count), kept, inner_state, schedule_states=states)

    def resolved(self, state: InjectedState) -> "Injected":
        """Return this container with the hyperparameters in the state, and schedules at their current values.

        Args:
            state: the state of this container.
        """
        inner = self._now(state, None)
        return with_fields(self, inner=self._merged(self._kept(inner), inner))

    def _now(self, state: InjectedState, extra: Any) -> AbstractTransform:
        """The inner transform with the hyperparameters of the state, and schedules at their values at this step."""

        def ruling(own: Any, stored: Any) -> Any:
            # A schedule determines its number at every step, and a caller may have changed a constant in the state.
            return own if stored is None or is_schedule(own) else stored

        numbers = jtu.tree_map(ruling, self.inner._completed(), state.hyperparameters, is_leaf=is_schedule)
        return with_current_values(numbers, state.count, state.schedule_states, extra)

    def _static_paths(self) -> set[Path]:
        return {path for name in self.static_args for path in paths_named(_paths(self.inner), name)}

    def _kept(self, inner: AbstractTransform) -> AbstractTransform:
        """The inner transform with the hyperparameters as the state stores them, and None for `static_args`."""
        static = self._static_paths()

        def kept(keys: Any, x: Any) -> Any:
            if not static.isdisjoint(_beginnings(key_names(keys))):
                return None
            return jnp.asarray(x, _dtype(x, self.hyperparam_dtype))

        return jtu.tree_map_with_path(kept, inner)

    def _merged(self, kept: AbstractTransform, inner: AbstractTransform) -> AbstractTransform:
        """The inner transform to call: stored hyperparameters where there are any, else its own, all in one dtype."""

        def merged(x: Any, own: Any) -> Any:
            x = own if x is None else x
            # `hyperparam_dtype` is that of the storage. The arithmetic is never below the default float dtype.
            return None if x is None else jnp.asarray(x, _dtype(x, None))

        return jtu.tree_map(merged, kept, inner, is_leaf=lambda x: x is None)


def _why_not_stored(inner: AbstractTransform, name: str, exact: np.ndarray, stored: np.ndarray) -> str:
    """Why a number cannot take the place of a hyperparameter, after "stores it as"; empty if it can."""
    if not np.isfinite(stored) and np.isfinite(exact):
        return ", which is out of the range of this dtype."
    if stored == 0 and exact != 0:
        return ", which has no effect."
    if stored == exact:
        return ""
    try:
        call_factories(inner.replace(**{name: float(stored)}))
    except ValueError as error:
        return f". {error}"
    return ""


def injected_paths(transform: AbstractTransform, path: Path = ()) -> set[str]:
    """The dotted paths in a transform of the hyperparameters that `Injected` keeps in its state."""
    kept = named_leaves(transform._kept(transform.inner)) if isinstance(transform, Injected) else ()
    inside = (injected_paths(part.transform, _below(path, part)) for part in transform.each_part())
    return {joined((*path, "inner", *names)) for names, _ in kept}.union(*inside)


def _below(path: Path, part: Part) -> Path:
    return (*path, part.field) if part.key is None else (*path, part.field, part.key)


def hyperparameters_in(transform: AbstractTransform, state: Any) -> list[tuple[str, Any]]:
    """The hyperparameters that a state of a transform holds, by dotted path in the transform.

    There are none in the state of anything else. With one `Injected` inside another, some are there twice.
    """
    try:
        return list(_hyperparameters_in(transform, state, ()))
    except (AttributeError, KeyError, TypeError):  # a part has no state there
        return []


def _hyperparameters_in(transform: AbstractTransform, state: Any, path: Path) -> Iterator[tuple[str, Any]]:
    if isinstance(transform, Injected):
        if not isinstance(state, InjectedState) or type(state.hyperparameters) is not type(transform.inner):
            raise TypeError("The state is that of another transform.")
        for names, x in named_leaves(state.hyperparameters):
            yield joined((*path, "inner", *names)), x
    for part in transform.each_part(state):
        yield from _hyperparameters_in(part.transform, part.state, _below(path, part))


def _static_names(inner: AbstractTransform) -> set[str]:
    """The fields that are static anyway, and may be named for clarity."""
    fields = (field for transform in everything_in(inner) for field in dataclasses.fields(transform))
    return {field.name for field in fields if field.metadata.get("static")}


def _beginnings(path: Path) -> list[Path]:
    return [path[:length] for length in range(1, len(path) + 1)]


def _paths(inner: AbstractTransform) -> list[Path]:
    """The paths of the hyperparameters, and of the schedules and transforms that they belong to."""
    paths = (tuple(map(str, accessor.path)) for accessor in inner.addresses().values())
    return list(dict.fromkeys(beginning for path in paths for beginning in _beginnings(path)))


def _dtype(x: Any, wanted: DTypeLike | None) -> Any:
    return x.dtype if is_key_data(x) else wanted or default_float()


def inject_hyperparams(
    inner_factory: Callable[..., AbstractTransform],
    static_args: str | Iterable[str] = (),
    hyperparam_dtype: DTypeLike | None = None,
) -> Callable[..., Injected]:
    """Make a function that constructs an optimizer with its hyperparameters in the state, called as in optax.

        optimizer = inject_hyperparams(AdamW)(learning_rate=0.1)  # Injected(AdamW(learning_rate=0.1))

    The hyperparameters of a function are its arguments: it is called at every step with those in the state, so that
    what it computes from them follows (see `FromFactory`). Arguments that are numbers or schedules are kept in the
    state; all others, such as flags, strings and None, are static.

        def make(learning_rate, decay):
            return AdamW(learning_rate, weight_decay=decay * learning_rate)

        optimizer = inject_hyperparams(make)(learning_rate=CosineDecay(1e-3, 1000), decay=0.1)
        state = optimizer.init(params)
        state.hyperparams["decay"] = 0.05

    Args:
        inner_factory: function that makes a transform, or the class of one.
        static_args: arguments that are kept out of the state, such as a function that is not a schedule; see
            `Injected`.
        hyperparam_dtype: see `Injected`.

    Returns:
        a function with the arguments of `inner_factory` that returns `Injected`.
    """
    names = _as_names(static_args)
    if isinstance(inner_factory, AbstractTransform):
        raise TypeError("`inject_hyperparams` needs a class or a function. Around an optimizer, write `Injected(...)`.")

    @functools.wraps(inner_factory, updated=())
    def make(*args: Any, **kwargs: Any) -> Injected:
        if inspect.isclass(inner_factory):
            return Injected(inner_factory(*args, **kwargs), names, hyperparam_dtype)
        return Injected(from_call(inner_factory, names, args, kwargs), (), hyperparam_dtype)

    return make
