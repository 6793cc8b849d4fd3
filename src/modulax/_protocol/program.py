"""Programs: functions of a transform and trees, compiled with their arrays and numbers traced.

`jax.jit` takes arrays and numbers; a model also holds activation functions, strings and flags. A `Program` separates
the two with one flatten: arrays and numbers are traced, so a changed hyperparameter never retraces, and the rest is
part of the cache key. `equinox.filter_jit` does the same, but waits for the result of every call. A plain function
among the extra arguments, such as a loss that reads `self.batch`, may read data that changes between two calls, and the
caller wrote no `jit`: such a call is traced every time.

After a call with arrays alone, `jax.jit` gets the next ones as they are. Within a program of the caller, the function
is called as it is, without a program of its own.
"""

import enum
import weakref
from collections.abc import Callable, Sequence, Set
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer
from jax.interpreters.partial_eval import DynamicJaxprTracer

from .._support.arithmetic import default_float, is_numeric_array
from .._support.module import AbstractModule
from .._support.tracing import NotCompiledError, plain, tracing
from ..tree._align import PYTHON_NUMBERS
from ..tree._leaves import arrays_of, with_arrays
from .hyperparameters import ARRAY_TYPES, batched_number

# The caller's program gets the equations and no call. In JAX 0.12, `inline=True` alone inlines only in the lowering.
_INLINE: Any = getattr(getattr(jax, "Inline", None), "JAX_EARLY", True)
# Static leaves that are the same at every call: values, and functions that `jax.jit` reads only once anyway. Any other
# object may read data that changes. (The function in a `jax.tree_util.Partial` is not a leaf.)
_FIXED = (bool, str, bytes, enum.Enum, type, np.dtype, jax.stages.Wrapped)
_ABSENT = object()  # in the static half of a key, the place of a leaf that is traced


class _Key:
    """The static half of the arguments: their structures, and the leaves that are neither arrays nor numbers."""

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
        """Rebuild the arguments from their traced leaves."""
        if self.statics:
            remaining = iter(traced)
            traced = [next(remaining) if x is _ABSENT else x for x in self.statics]
        return self.treedef.unflatten(traced)


def _safe_hash(x: Any) -> int:
    try:
        return hash(x)
    except TypeError:
        return 0


class _Flat:
    """A transform taken apart: its hyperparameters and its structure, and what each program used last for it."""

    __slots__ = ("direct", "has_numbers", "is_x64", "keys", "numbers", "transform", "treedef")

    def __init__(self, transform: Any, is_x64: bool):
        self.transform: Callable[[], Any] | None = None  # a weak reference, if it is remembered
        self.is_x64 = is_x64
        leaves, self.treedef = jtu.tree_flatten(transform)
        self.numbers = [x if isinstance(x, jax.Array) else _number(x) for x in leaves]
        self.keys: dict[Program, _Key] = {}
        self.has_numbers = False  # whether calls after the first one had numbers in place of arrays
        self.direct: dict[Program, Callable[..., Any]] = {}

    def key(self, program: "Program", treedef: Any, statics: tuple[Any, ...]) -> _Key:
        """The key of a call. One without static leaves is the object of the last call, if the structures are equal."""
        if statics:
            return _Key(self.treedef, treedef, statics)
        key = self.keys.get(program)
        if key is None or key.treedef != treedef:
            key = self.keys[program] = program.known(_Key(self.treedef, treedef, ()))
        return key


class _Memory:
    """A process-wide cache, the only mutable state of the library.

    Three invariants make it correct. A type that was recorded as an array type always is one. A hyperparameter that was
    sent to the device cannot change (it is a read-only NumPy scalar) and is referenced here, so that no other object
    can get its `id`, which is the key of the cache. A transform that was taken apart cannot change (its leaves are such
    numbers or JAX arrays, in Modules and tuples), and is forgotten when it is gone, before another object can get its
    `id`. Clearing the cache costs time and nothing else.
    """

    most_numbers: ClassVar[int] = 10_000

    def __init__(self) -> None:
        self.array_types: set[type] = set()
        self._numbers: dict[tuple[int, bool], tuple[np.ndarray | np.generic, jax.Array]] = {}
        self.known: dict[int, _Flat] = {}

    def flat(self, transform: Any) -> _Flat:
        """A transform taken apart: once, instead of at every step, if it cannot change."""
        is_x64 = _is_x64()
        found = self.known.get(id(transform))
        if found is not None and found.is_x64 == is_x64:
            return found
        flat = _Flat(transform, is_x64)
        if _is_immutable(flat.treedef) and all(map(_is_constant, flat.numbers)):
            address = id(transform)
            flat.transform = weakref.ref(transform, lambda _: self.known.pop(address, None))
            self.known[address] = flat
        return flat

    def all_arrays(self, leaves: Sequence[Any]) -> bool:
        """Whether all leaves are arrays, checked once per type instead of once per leaf, except for NumPy's."""
        for kind in set(map(type, leaves)) - self.array_types:
            if issubclass(kind, (np.ndarray, np.generic)):
                if not all(is_numeric_array(x) for x in leaves if type(x) is kind):
                    return False
                continue
            if not issubclass(kind, (jax.Array, Tracer)) and not isinstance(
                next(x for x in leaves if type(x) is kind), jax.Array
            ):
                return False
            self.array_types.add(kind)
        return True

    def knows_types(self, tree: Any) -> bool:
        """Whether all leaves of a tree are of types that were recorded as array types."""
        return self.array_types.issuperset(map(type, jtu.tree_leaves(tree)))

    def on_device(self, x: np.ndarray | np.generic) -> Any:
        """A hyperparameter as a JAX array, sent to the device once instead of at every step."""
        if x.flags.writeable or x.ndim > 0:
            return x
        # With x64 switched on or off, the same scalar is an array of another dtype.
        key = (id(x), _is_x64())
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


class _Call(NamedTuple):
    """A call, taken apart.

    Args:
        flat: the transform.
        key: the static half of the arguments.
        leaves: the leaves to trace.
        sizes: their number in each tree, where it is needed.
        are_fixed: whether the static leaves are the same at every call.
        all_arrays: whether all leaves were arrays.
    """

    flat: _Flat
    key: _Key
    leaves: Sequence[Any]
    sizes: Sequence[int]
    are_fixed: bool
    all_arrays: bool

    def on_device(self) -> tuple[list[Any], Any]:
        """The numbers of the transform and the trees, with all leaves to trace as JAX arrays."""
        return list(map(_as_array, self.flat.numbers)), self.key.fill(list(map(_as_array, self.leaves)))


class Program:
    """A function of a transform and trees, compiled with the arrays and numbers in its arguments traced.

    Args:
        function: the function, called as `function(transform, *trees)`.
        name: name of the program in profiles.
        models: indices of the trees that may be whole models. Their leaves that aren't arrays are dropped instead of
            being static; of a Python number the type remains, since an update for it is a mistake.
        donated: indices of the first and the last tree whose buffers are donated, if any.
        result: index of the tree that the last result is like, if it is a model: leaves that aren't arrays are those of
            that tree.
    """

    most_compiled: ClassVar[int] = 1000  # structures of arguments, of one method of one class

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        models: tuple[int, ...],
        donated: tuple[int, int] | None = None,
        result: int | None = None,
    ):
        self._function, self.name, self._models = function, name, models
        self._donated, self._result = donated, result
        self._plain: set[_Key] = set()  # calls that can't be compiled
        self._traced: set[_Key] = set()  # calls in programs of the caller
        self._compiled: dict[Any, tuple[Any, Callable[..., Any]]] = {}  # by `_Key`, or by the structure of a transform

    def _run(self, transform_def: Any, numbers: list[Any], trees: Sequence[Any]) -> Any:
        transform = _strong(transform_def.unflatten(numbers))
        _check_scalars(transform)
        with tracing():
            return self._function(transform, *trees)

    def _jitted(self, start: int, key: _Key) -> Callable[..., Any]:
        """The function compiled for one key. With the key as a static argument, every call would compare it again."""

        def run(numbers: list[Any], kept: list[Any], given: list[Any]) -> Any:
            results = self._run(key.transform_def, numbers, key.fill([*kept[:start], *given, *kept[start:]]))
            return results if self._result is None else (*results[:-1], arrays_of(results[-1]))

        return self._named(run, donate_argnums=() if self._donated is None else 2)

    def _direct(self, transform_def: Any, is_x64: bool) -> Callable[..., Any]:
        """The function compiled for trees of arrays, as they are: `jax.jit` looks at their leaves in C++.

        It takes numbers of Python too, so that it refuses to trace what may be one.
        """

        def run(numbers: list[Any], *trees: Any) -> Any:
            if is_x64 != _is_x64() or any(map(_may_be_number, jtu.tree_leaves(trees))):
                raise _NotDirectError
            return self._run(transform_def, numbers, trees)

        return self._named(run)

    def _named(self, run: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        run.__name__ = run.__qualname__ = self.name
        return jax.jit(run, inline=_INLINE, **options)

    def _kept(self, key: Any, make: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
        """The compiled function of a key: that of an earlier call, if there is one."""
        found = self._compiled.get(key)
        if found is None:
            if len(self._compiled) >= self.most_compiled:
                self._compiled.clear()
            found = self._compiled[key] = key, make()
        return found[1]

    def _is_new(self, key: _Key) -> bool:
        """Whether this is the first such call in a program of the caller; the next ones are traced once together."""
        if key in self._traced:
            return False
        if len(self._traced) >= self.most_compiled:
            self._traced.clear()
        self._traced.add(key)
        return True

    def known(self, key: _Key) -> _Key:
        """The equal key of an earlier call, if there is one: an object is found in a dict without a comparison."""
        return self._compiled.get(key, (key,))[0]

    def __call__(self, transform: Any, *trees: Any) -> Any:
        flat = memory.known.get(id(transform))
        direct = None if flat is None else flat.direct.get(self)
        if flat is not None and direct is not None and (not flat.has_numbers or memory.knows_types(trees)):
            try:
                return direct(flat.numbers, *trees)
            except _NotDirectError:
                flat.has_numbers = True
            except (NotCompiledError, TypeError, ValueError):
                pass  # errors are those of `_general`: called here, they would have a context
        return self._general(transform, trees)

    def _general(self, transform: Any, trees: tuple[Any, ...]) -> Any:
        """Call the program with arguments of any kind."""
        call = self._taken_apart(transform, trees)
        flat, key, leaves, sizes, are_fixed, all_arrays = call
        flat.direct.pop(self, None)
        if self._plain and key in self._plain:
            return self._as_plain_python(transform, *trees)
        try:
            if _is_in_a_program(leaves) and (not are_fixed or self._is_new(key)):
                return self._as_written(flat, *call.on_device(), trees)
            if self._donated is None and not key.statics and not any(map(_may_be_number, leaves)):
                direct = self._kept((flat.treedef, flat.is_x64), lambda: self._direct(flat.treedef, flat.is_x64))
                if flat.transform and all_arrays:
                    flat.direct[self] = direct
                return direct(flat.numbers, *key.fill(leaves))
            kept, given, start = leaves, [], 0
            if self._donated is not None:
                first, last = self._donated
                start, stop = sum(sizes[:first]), sum(sizes[: last + 1])
                given = _distinct(leaves[start:stop])
                kept = _distinct([*leaves[:start], *leaves[stop:]], {id(x) for x in given})
            compiled = self._kept(key, lambda: self._jitted(start, key)) if are_fixed else self._jitted(start, key)
            results = compiled(flat.numbers, kept, given)
            return results if self._result is None else (*results[:-1], with_arrays(trees[self._result], results[-1]))
        except NotCompiledError:
            self._plain.add(key)
            return self._as_plain_python(transform, *trees)

    def _as_plain_python(self, transform: Any, *trees: Any) -> Any:
        """Call the function without compiling it, on the caller's own arrays and numbers."""
        flat, key, leaves, *_ = self._taken_apart(transform, trees, keeps_numbers=True)
        with plain():
            return self._as_written(flat, flat.numbers, key.fill(leaves), trees)

    def _as_written(self, flat: _Flat, numbers: list[Any], given: Any, trees: tuple[Any, ...]) -> Any:
        """Call the function on trees that were taken apart and filled again."""
        results = self._run(flat.treedef, numbers, given)
        if self._result is None:
            return results
        return *results[:-1], with_arrays(trees[self._result], arrays_of(results[-1]))

    def without_jit(self, transform: Any, *trees: Any) -> Any:
        """Call the function without compiling it as a whole. The results share no array with the arguments."""
        call = self._taken_apart(transform, trees)
        numbers, given = call.on_device()
        results, treedef = jtu.tree_flatten(self._run(call.flat.treedef, numbers, given))
        taken = {id(x) for x in [*numbers, *jtu.tree_leaves(given)]}
        return treedef.unflatten(_distinct(_distinct([_as_array(x) for x in results], taken)))

    def _taken_apart(self, transform: Any, trees: Any, keeps_numbers: bool = False) -> _Call:
        flat = memory.flat(transform)
        leaves, treedef = jtu.tree_flatten(trees)
        statics: tuple[Any, ...] = ()
        sizes: list[int] = []
        are_fixed = True
        all_arrays = memory.all_arrays(leaves)
        if self._donated is not None or not all_arrays:
            sizes = [child.num_leaves for child in treedef.children()]
        if not all_arrays:
            leaves, sizes, statics, are_fixed = self._split(leaves, sizes, keeps_numbers)
        return _Call(flat, flat.key(self, treedef, statics), leaves, sizes, are_fixed, all_arrays)

    def _split(
        self, leaves: Sequence[Any], sizes: Sequence[int], keeps_numbers: bool
    ) -> tuple[list[Any], list[int], tuple[Any, ...], bool]:
        """Return the leaves to trace, their number in each argument, all other leaves, and whether these are fixed."""
        traced, traced_sizes, statics, start, are_fixed = [], [], [], 0, True
        for role, size in enumerate(sizes):
            before = len(traced)
            for x in leaves[start : start + size]:
                if is_numeric_array(x):
                    traced.append(x)
                    statics.append(_ABSENT)
                elif role in self._models:
                    if isinstance(x, jax.ShapeDtypeStruct):
                        method = self.name.rpartition(".")[2]
                        raise ValueError(
                            f"`{self.name}` was given shapes in place of arrays, such as {x}. Call "
                            f"`jax.eval_shape(optimizer.{method}, ...)` for the shapes of its results."
                        )
                    statics.append(type(x) if type(x) in PYTHON_NUMBERS else None)
                elif isinstance(x, (int, float, complex)) and not isinstance(x, bool) and not keeps_numbers:
                    traced.append(np.asarray(x, jax.dtypes.canonicalize_dtype(type(x))))
                    statics.append(_ABSENT)
                else:
                    are_fixed = are_fixed and isinstance(x, _FIXED)
                    statics.append(x)
            start += size
            traced_sizes.append(len(traced) - before)
        if all(x is _ABSENT for x in statics):  # numbers in place of arrays are traced alike: the same program
            statics = []
        return traced, traced_sizes, tuple(statics), are_fixed


class _NotDirectError(Exception):
    """Raised while a program is traced for other arguments than those of its first call."""


def _is_in_a_program(leaves: Sequence[Any]) -> bool:
    """Whether the caller's program is being traced: a program in it would be traced, and then traced into that one.

    Other tracers, such as those of `jax.vmap` outside a program, compute at once what they are given.
    """
    return any(type(x) is DynamicJaxprTracer for x in leaves)


def _may_be_number(x: Any) -> bool:
    """Whether `jax.jit` has the same program for this array and for a number or a flag of Python."""
    return getattr(x, "weak_type", False) or (x.dtype == bool and x.ndim == 0)


def _is_x64() -> bool:
    return jax.config.jax_enable_x64  # pyright: ignore[reportAttributeAccessIssue]


def _as_array(x: Any) -> Any:
    return x if isinstance(x, jax.Array) else jnp.asarray(x)  # which takes 10 µs for an array too


def _is_constant(x: Any) -> bool:
    """Whether it is a JAX array of its own, and not one that stands for others or an array of NumPy."""
    return isinstance(x, jax.Array) and not isinstance(x, Tracer)


def _is_immutable(treedef: Any) -> bool:
    """Whether all nodes are Modules, tuples and None: a dict, or a variable of NNX, may hold other leaves later."""
    data = treedef.node_data()
    is_fixed = data is None or data[0] in (tuple, type(None)) or issubclass(data[0], AbstractModule)
    return is_fixed and all(map(_is_immutable, treedef.children()))


def _number(x: Any) -> Any:
    """Convert a leaf of a transform that is not a JAX array to one, or to a NumPy scalar: raw floats are traced too."""
    return memory.on_device(x if isinstance(x, (np.ndarray, np.generic)) else np.asarray(x, default_float()))


def _strong(transform: Any) -> Any:
    """The transform with all hyperparameters in JAX's default float dtype, so that they never mix dtypes."""
    dtype = default_float()

    def cast(x: Any) -> Any:
        is_float = isinstance(x, ARRAY_TYPES) and jnp.issubdtype(x.dtype, jnp.floating)
        return x.astype(dtype) if is_float else x

    return jtu.tree_map(cast, transform)


def _check_scalars(transform: Any) -> None:
    """Raise an error if a batch of transforms is called like a single one."""
    if path := batched_number(transform):
        name = type(transform).__name__
        raise ValueError(
            f"`{name}` is a batch of transforms: `{path}` is not a scalar. Call it under `vmap`, as in "
            f"`eqx.filter_vmap(lambda t, params: t.init(params), in_axes=(eqx.if_array(0), None))(batch, params)`."
        )


def _distinct(arrays: Sequence[Any], taken: Set[int] | None = None) -> list[Any]:
    """Copy every array that is there twice, such as tied weights, or elsewhere: a buffer can be donated only once."""
    seen, out = set(taken or ()), []
    for x in arrays:
        is_again = id(x) in seen and isinstance(x, jax.Array) and not isinstance(x, Tracer)
        out.append(jnp.copy(x) if is_again else x)
        if taken is None:
            seen.add(id(x))
    return out
