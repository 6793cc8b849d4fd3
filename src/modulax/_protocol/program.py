"""Programs: functions of a transform and trees, compiled with their arrays and numbers traced.

`jax.jit` takes arrays and numbers; a model also holds activation functions, strings and flags. A `Program` traces the
arrays and numbers, so a changed hyperparameter never retraces, and makes the rest part of the cache key.
`equinox.filter_jit` does the same, but waits for the result of every call.

There are two ways to call one. The direct way hands the trees to `jax.jit` as they are, which looks at their leaves in
C++: that is what a call costs in a loop. The general way flattens them in Python, and takes arguments of any kind. The
first call of a transform goes the general way, and finds out whether the next ones may go the direct one.

Where the caller's own program is being traced, the function is called as it is: a program in it would be traced, and
then traced once more into that one.
"""

import enum
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer
from jax.interpreters.partial_eval import DynamicJaxprTracer

from .._support.arithmetic import default_float, is_numeric_array
from .._support.module import AbstractModule
from .._support.tracing import tracing
from ..tree._align import PYTHON_NUMBERS
from ..tree._leaves import arrays_of, with_arrays
from .hyperparameters import ARRAY_TYPES, batched_number

# The caller's program gets the equations and no call. In JAX 0.12, `inline=True` alone inlines only in the lowering.
_INLINE: Any = getattr(getattr(jax, "Inline", None), "JAX_EARLY", True)
# Static leaves that are the same at every call: values, and functions that `jax.jit` reads only once anyway. Any other
# function, such as a loss that reads `self.batch`, may read data that changes between two calls, and the caller wrote
# no `jit`: a call with one is traced every time. (The function in a `jax.tree_util.Partial` is not a leaf.)
_FIXED = (bool, str, bytes, enum.Enum, type, type(None), np.dtype, jax.stages.Wrapped)
_config: Any = jax.config
_TRACED = object()  # among the static leaves, the place of a leaf that is traced


class _Structure(NamedTuple):
    """The static half of a tree: its structure, and its leaves that are not traced (none if all are)."""

    treedef: Any
    statics: tuple[Any, ...]

    def fill(self, traced: Sequence[Any]) -> Any:
        """Rebuild the tree from its traced leaves."""
        if self.statics:
            remaining = iter(traced)
            traced = [next(remaining) if x is _TRACED else x for x in self.statics]
        return self.treedef.unflatten(traced)


class _Key:
    """The static half of a call. The hash is computed once, also where a static leaf has none."""

    __slots__ = ("_hash", "structures", "transform_def")

    def __init__(self, transform_def: Any, structures: Sequence[_Structure]):
        self.transform_def, self.structures = transform_def, tuple(structures)
        self._hash = hash((transform_def, *((s.treedef, *map(_safe_hash, s.statics)) for s in structures)))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        is_key = type(other) is _Key and self.transform_def == other.transform_def
        return is_key and self.structures == other.structures

    @property
    def is_fixed(self) -> bool:
        """Whether the static leaves are the same at every call."""
        return all(x is _TRACED or isinstance(x, _FIXED) for s in self.structures for x in s.statics)


def _safe_hash(x: Any) -> int:
    try:
        return hash(x)
    except TypeError:
        return 0


class _Flat:
    """The hyperparameters and the structure of a transform, and the functions that are called with them directly.

    In `direct`, a program without an entry has not been called yet, and one with None is called the general way.
    """

    __slots__ = ("direct", "is_constant", "is_python", "is_x64", "numbers", "reference", "treedef")

    def __init__(self, transform: Any):
        leaves, self.treedef = jtu.tree_flatten(transform)
        self.numbers = [x if isinstance(x, jax.Array) else _number(x) for x in leaves]
        self.is_x64 = _config.jax_enable_x64
        kinds = set(_node_types(self.treedef))
        self.is_python = any(getattr(kind, "runs_as_python", False) for kind in kinds)
        # A dict, or a variable of NNX, may hold other leaves later; a Module or a tuple may not.
        is_immutable = all(kind in (tuple, type(None)) or issubclass(kind, AbstractModule) for kind in kinds)
        self.is_constant = is_immutable and all(
            isinstance(x, jax.Array) and not isinstance(x, Tracer) for x in self.numbers
        )
        self.direct: dict[Program, Callable[..., Any] | None] = {}
        self.reference: Any = None


class _Memory:
    """A process-wide cache. Clearing it costs time and nothing else.

    Three invariants make it correct. A type that was recorded as an array type always is one. A hyperparameter that was
    sent to the device cannot change (it is a read-only NumPy scalar) and is referenced here, so that no other object
    can get its `id`, which is the key of the cache. A transform that was flattened cannot change (its leaves are such
    numbers or JAX arrays, in Modules and tuples), and is forgotten when it is gone, before another object can get its
    `id`.

    The only other state of the library that changes are the compiled functions of each `Program`, and the flags of
    the current thread, such as whether an entry point is being traced.
    """

    most_numbers: ClassVar[int] = 10_000

    def __init__(self) -> None:
        self.array_types: set[type] = set()
        self._numbers: dict[tuple[int, bool], tuple[np.ndarray | np.generic, jax.Array]] = {}
        self.known: dict[int, _Flat] = {}

    def flat(self, transform: Any) -> _Flat:
        """Flatten a transform: once, instead of at every step, if it cannot change."""
        address = id(transform)
        flat = self.known.get(address)
        if flat is None or flat.is_x64 != _config.jax_enable_x64:
            flat = _Flat(transform)
            if flat.is_constant:
                flat.reference = weakref.ref(transform, lambda _: self.known.pop(address, None))
                self.known[address] = flat
        return flat

    def all_arrays(self, leaves: Sequence[Any]) -> bool:
        """Whether all leaves are arrays, checked once per type instead of once per leaf, except for NumPy's."""
        for kind in set(map(type, leaves)) - self.array_types:
            of_kind = [x for x in leaves if type(x) is kind]
            if issubclass(kind, (np.ndarray, np.generic)):
                if not all(map(is_numeric_array, of_kind)):
                    return False
            elif issubclass(kind, (jax.Array, Tracer)) or isinstance(of_kind[0], jax.Array):
                self.array_types.add(kind)
            else:
                return False
        return True

    def on_device(self, x: np.ndarray | np.generic) -> Any:
        """A hyperparameter as a JAX array, sent to the device once instead of at every step."""
        if x.flags.writeable or x.ndim > 0:
            return x
        # With x64 switched on or off, the same scalar is an array of another dtype.
        key = (id(x), _config.jax_enable_x64)
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


class _NotDirectError(Exception):
    """Raised, before the function runs, while a program is traced for arguments that have to go the general way."""


class Program:
    """A function of a transform and trees, compiled with the arrays and numbers in its arguments traced.

    A transform with `runs_as_python = True`, or with such a transform inside, is not compiled: its functions get the
    caller's own arrays and numbers.

    Args:
        function: the function, called as `function(transform, *trees)`.
        name: name of the program in profiles.
        models: indices of the trees that may be whole models. Their leaves that aren't arrays are dropped instead of
            being static; of a Python number the type remains, since an update for it is a mistake.
        donated: indices of the trees whose buffers are donated.
        result: index of the tree that the last result is like, if it is a model: leaves that aren't arrays are those of
            that tree.
    """

    most_compiled: ClassVar[int] = 1000  # structures of arguments, of one method of one class

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        models: tuple[int, ...],
        donated: tuple[int, ...] = (),
        result: int | None = None,
    ):
        self._function, self.name, self._models = function, name, models
        self._donated, self._result = donated, result
        self._compiled: dict[Any, Callable[..., Any]] = {}  # by `_Key`, or by the structure of a transform

    def __call__(self, transform: Any, *trees: Any) -> Any:
        flat = memory.known.get(id(transform))
        direct = None if flat is None else flat.direct.get(self)
        if flat is not None and direct is not None and flat.is_x64 == _config.jax_enable_x64:
            try:
                return direct(flat.numbers, *trees)
            except _NotDirectError:
                flat.direct[self] = None
            except TypeError:
                # `jax.jit` refuses a leaf that is not an array before it runs anything. Any other error is the user's.
                if memory.all_arrays(jtu.tree_leaves(trees)):
                    raise
        return self._general(transform, trees)

    def _general(self, transform: Any, trees: tuple[Any, ...]) -> Any:
        """Call the program with arguments of any kind."""
        flat = memory.flat(transform)
        if flat.is_python:
            return self._run(flat.treedef, flat.numbers, trees)
        structures, leaves = self._split_all(trees)
        # Other tracers, such as those of `jax.vmap` outside a program, compute at once what they are given.
        if any(type(x) is DynamicJaxprTracer for xs in leaves for x in xs):
            return self._uncompiled(flat, structures, leaves, trees)
        has_statics = any(s.statics for s in structures)
        if not self._donated and not has_statics and not any(_may_be_number(x) for xs in leaves for x in xs):
            compiled = self._kept(flat.treedef, lambda: self._direct(flat.treedef))
            if flat.is_constant and memory.all_arrays(jtu.tree_leaves(trees)):
                flat.direct.setdefault(self, compiled)
            return compiled(flat.numbers, *(s.fill(xs) for s, xs in zip(structures, leaves, strict=True)))
        key = _Key(flat.treedef, structures)
        compiled = self._kept(key, lambda: self._keyed(key)) if key.is_fixed else self._keyed(key)
        results = compiled(flat.numbers, *_donatable(leaves, self._donated))
        return results if self._result is None else (*results[:-1], with_arrays(trees[self._result], results[-1]))

    def _uncompiled(self, flat: _Flat, structures: Any, leaves: Any, trees: Sequence[Any]) -> Any:
        """Call the function on JAX arrays alone, as a compiled one would be."""
        given = [s.fill(list(map(_as_array, xs))) for s, xs in zip(structures, leaves, strict=True)]
        results = self._run(flat.treedef, list(map(_as_array, flat.numbers)), given)
        if self._result is None:
            return results
        return *results[:-1], with_arrays(trees[self._result], arrays_of(results[-1]))

    def without_jit(self, transform: Any, *trees: Any) -> Any:
        """Call the function without compiling it as a whole. The results share no array with the arguments."""
        flat = memory.flat(transform)
        structures, leaves = self._split_all(trees)
        results, treedef = jtu.tree_flatten(self._uncompiled(flat, structures, leaves, trees))
        given = [x for xs in (flat.numbers, *leaves) for x in xs]
        return treedef.unflatten(_donatable([given, list(map(_as_array, results))], (0, 1))[1])

    def _run(self, transform_def: Any, numbers: list[Any], trees: Sequence[Any]) -> Any:
        transform = _strong(transform_def.unflatten(numbers))
        _check_scalars(transform)
        with tracing():
            return self._function(transform, *trees)

    def _direct(self, transform_def: Any) -> Callable[..., Any]:
        """The function compiled for trees of arrays, as they are.

        `jax.jit` takes numbers of Python too, which are not leaves of a model. Where one may be, nothing is traced.
        """

        def run(numbers: list[Any], *trees: Any) -> Any:
            if any(map(_may_be_number, jtu.tree_leaves(trees))):
                raise _NotDirectError
            return self._run(transform_def, numbers, trees)

        return self._jitted(run)

    def _keyed(self, key: _Key) -> Callable[..., Any]:
        """The function compiled for one key. With the key as a static argument, every call would compare it again."""

        def run(numbers: list[Any], *leaves: Any) -> Any:
            trees = [s.fill(xs) for s, xs in zip(key.structures, leaves, strict=True)]
            results = self._run(key.transform_def, numbers, trees)
            return results if self._result is None else (*results[:-1], arrays_of(results[-1]))

        return self._jitted(run, donate_argnums=tuple(i + 1 for i in self._donated))

    def _jitted(self, run: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        run.__name__ = run.__qualname__ = self.name
        return jax.jit(run, inline=_INLINE, **options)

    def _kept(self, key: Any, make: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
        """The compiled function of a key: that of an earlier call, if there is one."""
        found = self._compiled.get(key)
        if found is None:
            if len(self._compiled) >= self.most_compiled:
                self._compiled.clear()
            found = self._compiled[key] = make()
        return found

    def _split_all(self, trees: Sequence[Any]) -> Any:
        return zip(*(self._split(x, i in self._models) for i, x in enumerate(trees)), strict=True)

    def _split(self, tree: Any, is_model: bool) -> tuple[_Structure, list[Any]]:
        """Return the static half of a tree, and its leaves to trace."""
        leaves, treedef = jtu.tree_flatten(tree)
        if memory.all_arrays(leaves):
            return _Structure(treedef, ()), leaves
        pairs = [self._leaf(x, is_model) for x in leaves]
        statics = tuple(static for static, _ in pairs)
        # Numbers in the place of arrays are traced alike: the same program.
        statics = () if all(x is _TRACED for x in statics) else statics
        return _Structure(treedef, statics), [x for static, x in pairs if static is _TRACED]

    def _leaf(self, x: Any, is_model: bool) -> tuple[Any, Any]:
        """Return a leaf that is not traced and None, or `_TRACED` and the array to trace."""
        if is_numeric_array(x):
            return _TRACED, x
        if not is_model:
            is_number = isinstance(x, (int, float, complex)) and not isinstance(x, bool)
            return (_TRACED, np.asarray(x, jax.dtypes.canonicalize_dtype(type(x)))) if is_number else (x, None)
        if isinstance(x, jax.ShapeDtypeStruct):
            method = self.name.rpartition(".")[2]
            raise ValueError(
                f"`{self.name}` was given shapes in place of arrays, such as {x}. Call "
                f"`jax.eval_shape(optimizer.{method}, ...)` for the shapes of its results."
            )
        return (type(x) if type(x) in PYTHON_NUMBERS else None), None


def _may_be_number(x: Any) -> bool:
    """Whether `jax.jit` has the same program for this array and for a number or a flag of Python."""
    return getattr(x, "weak_type", False) or (x.dtype == bool and x.ndim == 0)


def _as_array(x: Any) -> Any:
    return x if isinstance(x, jax.Array) else jnp.asarray(x)  # which takes 10 µs for an array too


def _node_types(treedef: Any) -> Iterator[type]:
    data = treedef.node_data()
    if data is not None:
        yield data[0]
    for child in treedef.children():
        yield from _node_types(child)


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


def _donatable(leaves: Sequence[list[Any]], donated: Sequence[int]) -> list[list[Any]]:
    """Copy what is in donated lists twice, such as tied weights, or elsewhere: a buffer can be donated only once."""
    seen: set[int] = set()

    def unshared(x: Any) -> Any:
        is_again = id(x) in seen and isinstance(x, jax.Array) and not isinstance(x, Tracer)
        return jnp.copy(x) if is_again else x

    out = list(leaves)
    for i in donated:
        out[i] = []
        for x in leaves[i]:
            out[i].append(unshared(x))
            seen.add(id(x))
    return [xs if i in donated else list(map(unshared, xs)) for i, xs in enumerate(out)]
