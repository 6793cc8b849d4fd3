"""Entry points: `init`, `update` and `step` as compiled functions of the transform itself.

`jax.jit` takes arrays and numbers; a model also holds activation functions, strings and flags. Here one flatten
separates the two: arrays and numbers are traced, so a changed hyperparameter never retraces, and the rest is part of
the cache key. `equinox.filter_jit` does the same, but waits for the result of every call.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer

from .._support.arithmetic import default_float
from .._support.tracing import is_tracing, tracing
from .hyperparameters import ARRAY_TYPES, batched_number

_ABSENT = object()  # a leaf that is traced, in the static half of a key


class _Key:
    """The static half of the arguments: their structures and the leaves that are no arrays."""

    __slots__ = ("_hash", "statics", "transform_def", "treedef")

    def __init__(self, transform_def: Any, treedef: Any, statics: tuple[Any, ...]):
        self.transform_def, self.treedef, self.statics = transform_def, treedef, statics
        self._hash = hash((transform_def, treedef, tuple(map(_safe_hash, statics))))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return (
            type(other) is _Key
            and self.treedef == other.treedef
            and self.transform_def == other.transform_def
            and self.statics == other.statics
        )

    def fill(self, traced: Sequence[Any]) -> Any:
        """The arguments, put together again."""
        if self.statics:
            remaining = iter(traced)
            traced = [next(remaining) if x is _ABSENT else x for x in self.statics]
        return self.treedef.unflatten(traced)


def _safe_hash(x: Any) -> int:
    try:
        return hash(x)
    except TypeError:
        return 0


_array_types: set[type] = {np.ndarray}


def _all_arrays(leaves: Sequence[Any]) -> bool:
    """Whether all leaves are arrays, asked once per type instead of once per leaf."""
    for kind in set(map(type, leaves)) - _array_types:
        if not issubclass(kind, (*ARRAY_TYPES, Tracer)) and not isinstance(
            next(x for x in leaves if type(x) is kind), jax.Array
        ):
            return False
        _array_types.add(kind)
    return True


class Program:
    """A function of a transform and trees, compiled for what in its arguments is an array or a number.

    Args:
        function: called as `function(transform, *trees)`.
        models: which of the trees may be whole models: what is no array in them is dropped, not kept as static.
        donated: the first and the last of the trees that give their buffers away, if any do.
    """

    def __init__(self, function: Callable[..., Any], models: tuple[int, ...], donated: tuple[int, int] | None = None):
        self._models, self._donated = models, donated

        def run(numbers: list[Any], kept: list[Any], given: list[Any], start: int, key: _Key) -> Any:
            trees = key.fill([*kept[:start], *given, *kept[start:]])
            transform = _strong(key.transform_def.unflatten(numbers))
            _check_scalars(transform)
            with tracing():
                return function(transform, *trees)

        run.__name__ = run.__qualname__ = function.__name__
        self._compiled = jax.jit(run, static_argnums=(3, 4), donate_argnums=() if donated is None else 2, inline=True)

    def __call__(self, transform: Any, *trees: Any) -> Any:
        numbers, transform_def = jtu.tree_flatten(transform)
        numbers = [x if isinstance(x, jax.Array) else _number(x) for x in numbers]
        leaves, treedef = jtu.tree_flatten(trees)
        statics: tuple[Any, ...] = ()
        sizes: list[int] = []
        all_arrays = _all_arrays(leaves)
        if self._donated is not None or not all_arrays:
            sizes = [child.num_leaves for child in treedef.children()]
        if not all_arrays:
            leaves, sizes, statics = self._split(leaves, sizes)
        key = _Key(transform_def, treedef, statics)
        if self._donated is None:
            return self._compiled(numbers, leaves, [], 0, key)
        first, last = self._donated
        start, stop = sum(sizes[:first]), sum(sizes[: last + 1])
        return self._compiled(numbers, [*leaves[:start], *leaves[stop:]], leaves[start:stop], start, key)

    def _split(self, leaves: Sequence[Any], sizes: Sequence[int]) -> tuple[list[Any], list[int], tuple[Any, ...]]:
        """The leaves to trace, how many of them each argument has, and the rest in its place."""
        traced, traced_sizes, statics, start = [], [], [], 0
        for role, size in enumerate(sizes):
            before = len(traced)
            for x in leaves[start : start + size]:
                if isinstance(x, ARRAY_TYPES):
                    traced.append(x)
                    statics.append(_ABSENT)
                elif role in self._models:
                    statics.append(None)
                elif isinstance(x, (int, float, complex)) and not isinstance(x, bool):
                    traced.append(np.asarray(x, jax.dtypes.canonicalize_dtype(type(x))))
                    statics.append(_ABSENT)
                else:
                    statics.append(x)
            start += size
            traced_sizes.append(len(traced) - before)
        if all(x is _ABSENT for x in statics):  # a number in the place of an array is no other program
            statics = []
        return traced, traced_sizes, tuple(statics)


def _number(x: Any) -> Any:
    """A leaf of a transform that is no JAX array, as one or as a NumPy scalar: a raw float is traced as well."""
    return on_device(x if isinstance(x, (np.ndarray, np.generic)) else np.asarray(x, default_float()))


_device_numbers: dict[tuple[int, bool], tuple[np.ndarray | np.generic, jax.Array]] = {}


def on_device(x: np.ndarray | np.generic) -> Any:
    """A number of a transform as a JAX array, sent to the device once instead of at every step.

    Only what cannot change is remembered: the numbers that a field's converter made are read-only.
    """
    if x.flags.writeable or x.ndim > 0:
        return x
    key = (id(x), jax.config.jax_enable_x64)  # pyright: ignore[reportAttributeAccessIssue]
    found = _device_numbers.get(key)
    if found is None:
        array = jax.device_put(x)  # `jnp.asarray` would trace and compile a program for it
        if isinstance(array, Tracer):
            return x
        if len(_device_numbers) > 10_000:
            _device_numbers.clear()
        found = _device_numbers[key] = (x, array)  # the number is held, so that its id stays its own
    return found[1]


def _strong(transform: Any) -> Any:
    """The transform with all its numbers in JAX's default float dtype, so that they never mix dtypes."""
    dtype = default_float()

    def cast(x: Any) -> Any:
        is_float = isinstance(x, ARRAY_TYPES) and jnp.issubdtype(x.dtype, jnp.floating)
        return x.astype(dtype) if is_float else x

    return jtu.tree_map(cast, transform)


def _check_scalars(transform: Any) -> None:
    """Refuses a batch of transforms that is called like one."""
    if path := batched_number(transform):
        name = type(transform).__name__
        raise ValueError(
            f"`{name}` is a batch of many: `{path}` is no scalar. Call it under `vmap`, as in "
            f"`eqx.filter_vmap(lambda t, params: t.init(params), in_axes=(eqx.if_array(0), None))(batch, params)`."
        )


class BoundEntry:
    """`transform.init` or `transform.update`: a function that JAX can hash, by the identity of its transform.

    JAX hashes what it compiles and Equinox hashes a bound method by its leaves; but arrays do not hash.
    """

    __slots__ = ("__weakref__", "entry", "owner")

    def __init__(self, entry: "Entry", owner: Any):
        self.entry, self.owner = entry, owner

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self.entry(self.owner, *args, **kwargs)

    def __hash__(self) -> int:
        return hash((id(self.entry), id(self.owner)))

    def __eq__(self, other: object) -> bool:
        return type(other) is BoundEntry and self.entry is other.entry and self.owner is other.owner

    def __repr__(self) -> str:
        return f"<`{self.entry.__name__}` of {self.owner!r}>"

    @property
    def __name__(self) -> str:
        return self.entry.__name__

    @property
    def __doc__(self) -> str | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.entry.__doc__

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        return functools.partial(self.entry.function, self.owner)


class Entry:
    """A method that is compiled when it is called from outside, and plain inside of another entry point.

    Args:
        function: the method as it was written.
        call: how it is called from outside: `call(program, transform, *args, **kwargs)`.
        inside: how it is called from a container: `inside(function, transform, *args, **kwargs)`.
        program: the compiled function.
    """

    __name__: str

    def __init__(
        self,
        function: Callable[..., Any],
        call: Callable[..., Any],
        inside: Callable[..., Any],
        program: Program,
    ):
        self.function, self._call, self._inside, self._program = function, call, inside, program
        functools.update_wrapper(self, function)

    def __get__(self, owner: Any, _: type | None = None) -> Any:
        return self if owner is None else BoundEntry(self, owner)

    def __call__(self, transform: Any, /, *args: Any, **kwargs: Any) -> Any:
        if is_tracing():
            return self._inside(self.function, transform, *args, **kwargs)
        return self._call(self._program, transform, *args, **kwargs)
