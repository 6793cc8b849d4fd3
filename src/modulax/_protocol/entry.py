"""Entry points: `init`, `update`, `eval_params` and `step` as compiled functions of the transform itself.

`jax.jit` takes arrays and numbers; a model also holds activation functions, strings and flags. A `Program` separates
the two with one flatten: arrays and numbers are traced, so a changed hyperparameter never retraces, and the rest is
part of the cache key. `equinox.filter_jit` does the same, but waits for the result of every call.

`entry` makes a method of it. Called by a user, the method runs the program. Called while a program is being traced, for
instance by a container, it is the plain function: a chain of optimizers is one program and not a nest of them. What has
to happen at the boundary in either case (filter the model, check the arguments, name the scope in profiles) is said by
the three classes in `boundary.py`.
"""

import abc
import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer

from .._support.arithmetic import default_float
from .._support.tracing import is_tracing, tracing
from .hyperparameters import ARRAY_TYPES, batched_number

# The caller's program gets the equations and no call. In JAX 0.12, `inline=True` alone inlines only in the lowering.
_INLINE: Any = getattr(getattr(jax, "Inline", None), "JAX_EARLY", True)
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


class _Memory:
    """What one process remembers between calls: the only mutable state of the library.

    Two invariants make it sound. A type that is remembered as one of arrays is one for good. A number that is
    remembered on the device cannot change (it is a read-only NumPy scalar) and is held here, so that its `id`, by which
    it is found again, is never given to another object. Forgetting costs time and nothing else.
    """

    most_numbers: ClassVar[int] = 10_000

    def __init__(self) -> None:
        self._array_types: set[type] = {np.ndarray}
        self._numbers: dict[tuple[int, bool], tuple[np.ndarray | np.generic, jax.Array]] = {}

    def all_arrays(self, leaves: Sequence[Any]) -> bool:
        """Whether all leaves are arrays, asked once per type instead of once per leaf."""
        for kind in set(map(type, leaves)) - self._array_types:
            if not issubclass(kind, (*ARRAY_TYPES, Tracer)) and not isinstance(
                next(x for x in leaves if type(x) is kind), jax.Array
            ):
                return False
            self._array_types.add(kind)
        return True

    def on_device(self, x: np.ndarray | np.generic) -> Any:
        """A hyperparameter as a JAX array, sent to the device once instead of at every step."""
        if x.flags.writeable or x.ndim > 0:
            return x
        # With x64 switched on or off, the same scalar is an array of another dtype.
        key = (id(x), jax.config.jax_enable_x64)  # pyright: ignore[reportAttributeAccessIssue]
        found = self._numbers.get(key)
        if found is None:
            array = jax.device_put(x)  # `jnp.asarray` would trace and compile a program for it
            if isinstance(array, Tracer):
                return x
            if len(self._numbers) > self.most_numbers:
                self._numbers.clear()
            found = self._numbers[key] = (x, array)
        return found[1]


memory = _Memory()


class Program:
    """A function of a transform and trees, compiled for what in its arguments is an array or a number.

    Args:
        function: called as `function(transform, *trees)`.
        name: the name of the program in profiles.
        models: which of the trees may be whole models: what is no array in them is dropped, not kept as static.
        donated: the first and the last of the trees that give their buffers away, if any do.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        models: tuple[int, ...],
        donated: tuple[int, int] | None = None,
    ):
        self._models, self._donated = models, donated

        def run(numbers: list[Any], kept: list[Any], given: list[Any], start: int, key: _Key) -> Any:
            trees = key.fill([*kept[:start], *given, *kept[start:]])
            transform = _strong(key.transform_def.unflatten(numbers))
            _check_scalars(transform)
            with tracing():
                return function(transform, *trees)

        run.__name__ = run.__qualname__ = name
        given = () if donated is None else 2
        self._compiled = jax.jit(run, static_argnums=(3, 4), donate_argnums=given, inline=_INLINE)

    def __call__(self, transform: Any, *trees: Any) -> Any:
        numbers, transform_def = jtu.tree_flatten(transform)
        numbers = [x if isinstance(x, jax.Array) else _number(x) for x in numbers]
        leaves, treedef = jtu.tree_flatten(trees)
        statics: tuple[Any, ...] = ()
        sizes: list[int] = []
        all_arrays = memory.all_arrays(leaves)
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
    return memory.on_device(x if isinstance(x, (np.ndarray, np.generic)) else np.asarray(x, default_float()))


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


class AbstractBoundary(abc.ABC):
    """What happens between the caller of a method and the method.

    Args:
        method: the method as it was written.
        owner: the name of its class, which profiles show.
    """

    models: ClassVar[tuple[int, ...]]
    """Which of the arguments of the program may be whole models."""

    def __init__(self, method: Callable[..., Any], owner: str):
        self.method, self.owner = method, owner
        self.program = Program(self.run, f"{owner}.{method.__name__}", self.models)

    @abc.abstractmethod
    def inside(self, transform: Any, /, *args: Any, **kwargs: Any) -> Any:
        """The call within a program that is being traced."""

    @abc.abstractmethod
    def run(self, transform: Any, /, *args: Any, **kwargs: Any) -> Any:
        """The function that is compiled: it filters what it is given, then does what `inside` does."""

    @abc.abstractmethod
    def outside(self, transform: Any, /, *args: Any, **kwargs: Any) -> Any:
        """The call of a user, which runs the program."""


def entry(boundary: AbstractBoundary) -> Callable[..., Any]:
    """The method of a boundary, compiled when it is called by a user, and plain while another one is being traced.

    It binds like any function, and a bound method hashes and compares by the identity of its owner, so that
    `jax.jit(optimizer.update)` works although the leaves of an optimizer do not hash.
    """

    @functools.wraps(boundary.method)
    def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return (boundary.inside if is_tracing() else boundary.outside)(self, *args, **kwargs)

    vars(method)["boundary"] = boundary  # for the subclass that inherits the method
    return method


def as_written(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method that an entry point was made from; any other method as it is."""
    boundary = getattr(method, "boundary", None)
    return method if boundary is None else boundary.method
