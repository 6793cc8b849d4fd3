"""Programs: functions of a transform and trees, compiled with their arrays and numbers traced.

`jax.jit` takes arrays and numbers; a model also holds activation functions, strings and flags. A `Program` traces the
arrays and numbers, so a changed hyperparameter never retraces, and makes the rest part of the cache key.
`equinox.filter_jit` does the same, but waits for the result of every call.

The direct way to call one hands the trees to `jax.jit` as they are, which looks at their leaves in C++. The general way
flattens them in Python, and takes arguments of any kind. The first call of a transform goes the general way, and finds
out whether the next ones may go the direct one. Where the caller's own program is being traced, the function is called
as it is: a program in it would be traced, and then traced once more into that one.
"""

import enum
import functools
import itertools
import operator
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer
from jax.interpreters.partial_eval import DynamicJaxprTracer

from .._support.arithmetic import default_float, is_numeric_array
from .._support.checks import accepts_any_range
from .._support.module import AbstractModule
from .._support.tracing import runs_as_python, tracing
from .._support.types import ARRAY_TYPES
from ..tree._align import PYTHON_NUMBERS
from ..tree._leaves import arrays_of, with_arrays
from .hyperparameters import batched_number

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


def _is_fixed(structure: _Structure) -> bool:
    """Whether the static leaves are the same at every call."""
    return all(x is _TRACED or isinstance(x, _FIXED) for x in structure.statics)


class _Flat:
    """The hyperparameters and the structure of a transform, and the functions that are called with them directly.

    In `direct`, a program without an entry has not been called yet, and one with None is called the general way.
    """

    __slots__ = ("dicts", "direct", "is_constant", "is_python", "is_x64", "numbers", "reference", "treedef")

    def __init__(self, transform: Any):
        leaves, self.treedef = jtu.tree_flatten(transform)
        kinds = set(_node_types(self.treedef))
        is_immutable = all(map(_is_immutable, kinds))
        # `tree_at` and `tree_map` convert nothing, and can leave a Python number in a field.
        numbers = [x if isinstance(x, ARRAY_TYPES) else np.asarray(x, default_float()) for x in leaves]
        # A read-only scalar is sent to the device once, instead of at every step.
        self.numbers = [jax.device_put(x) if is_immutable and _is_constant(x) else x for x in numbers]
        self.is_constant = is_immutable and all(map(_is_array, self.numbers))
        self.is_python = any(map(runs_as_python, kinds))
        # The numbers are in the default float dtype, and this flag may change later.
        self.is_x64 = _config.jax_enable_x64
        self.dicts = [(x, [*x], [*x.values()]) for x in _dicts_in(transform)]
        self.direct: dict[Program, Callable[..., Any] | None] = {}
        self.reference: Any = None

    def has_same_parts(self) -> bool:
        """Whether the parts by name are those that were flattened."""
        for found, names, parts in self.dicts:
            if [*found] != names or not all(map(operator.is_, found.values(), parts)):
                return False
        return True


class _Memory:
    """A process-wide cache. Clearing it costs time and nothing else.

    Two invariants make it correct. A type that was recorded as an array type always is one. A transform that was
    flattened cannot change (its leaves are JAX arrays or read-only NumPy scalars, in Modules and tuples; the dicts in
    which containers have their parts by name are compared at each call), and is forgotten when it is gone, before
    another object can get its `id`.

    What else changes in the library are the compiled functions of each `Program`, and flags of the current thread.
    """

    def __init__(self) -> None:
        self.array_types: set[type] = set()
        self.known: dict[int, _Flat] = {}

    def flat(self, transform: Any) -> _Flat:
        """Flatten a transform: once, instead of at every step, if it cannot change."""
        address = id(transform)
        flat = self.known.get(address)
        if flat is None or flat.is_x64 != _config.jax_enable_x64 or not flat.has_same_parts():
            flat = _Flat(transform)
            if flat.is_constant:
                flat.reference = weakref.ref(transform, lambda _: self.known.pop(address, None))
                self.known[address] = flat
        return flat

    def all_arrays(self, leaves: Sequence[Any]) -> bool:
        """Whether all leaves are arrays, checked once per type instead of once per leaf, except for NumPy's."""
        if self.array_types.issuperset(map(type, leaves)):
            return True
        self.array_types.update(type(x) for x in leaves if isinstance(x, jax.Array))
        return all(type(x) in self.array_types or is_numeric_array(x) for x in leaves)


memory = _Memory()


class _NotDirectError(Exception):
    """Raised while a program is traced, before the function runs, for arguments that have to go the general way."""


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
        result: index of the tree that the first result is like, if it is a model: leaves that aren't arrays are those
            of that tree.
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
        # Bounded, because every structure of the arguments compiles a program of its own.
        self.direct = functools.lru_cache(self.most_compiled)(self._direct)
        self.keyed = functools.lru_cache(self.most_compiled)(self._keyed)

    def __call__(self, transform: Any, *trees: Any) -> Any:
        flat = memory.known.get(id(transform))
        # This way flattens nothing in Python, so that a call costs little more than one of `jax.jit`.
        direct = None if flat is None else flat.direct.get(self)
        if flat is None or direct is None or flat.is_x64 != _config.jax_enable_x64:
            return self._general(transform, trees)
        if not flat.dicts or flat.has_same_parts():
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
        every = list(itertools.chain(*leaves))
        # Other tracers, such as those of `jax.vmap` outside a program, compute at once what they are given.
        if DynamicJaxprTracer in map(type, every):
            return self._uncompiled(flat, structures, leaves, trees)
        if self._donated or any(s.statics for s in structures) or any(map(_may_be_number, every)):
            # A function that is read at every call would fill the cache with programs that are called once.
            make = self.keyed if all(map(_is_fixed, structures)) else self._keyed
            results = make(flat.treedef, structures)(flat.numbers, *_donatable(leaves, self._donated))
            return results if self._result is None else (with_arrays(trees[self._result], results[0]), *results[1:])
        compiled = self.direct(flat.treedef)
        if flat.is_constant and memory.all_arrays(jtu.tree_leaves(trees)):
            flat.direct.setdefault(self, compiled)
        return compiled(flat.numbers, *_filled(structures, leaves))

    def _uncompiled(self, flat: _Flat, structures: Any, leaves: Any, trees: Sequence[Any]) -> Any:
        """Call the function as it is, on JAX arrays alone, as a compiled one would be."""
        given = _filled(structures, [list(map(_as_array, xs)) for xs in leaves])
        results = self._run(flat.treedef, list(map(_as_array, flat.numbers)), given)
        if self._result is None:
            return results
        return with_arrays(trees[self._result], arrays_of(results[0])), *results[1:]

    def without_jit(self, transform: Any, *trees: Any) -> Any:
        """Call the function without compiling it as a whole. The results share no array with the arguments."""
        flat = memory.flat(transform)
        structures, leaves = self._split_all(trees)
        results, treedef = jtu.tree_flatten(self._uncompiled(flat, structures, leaves, trees))
        given = [x for xs in (flat.numbers, *leaves) for x in xs]
        return treedef.unflatten(_donatable([given, list(map(_as_array, results))], (0, 1))[1])

    def _run(self, transform_def: Any, numbers: list[Any], trees: Sequence[Any]) -> Any:
        transform = _strong(transform_def.unflatten(numbers))
        _refuse_batch(transform)
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

    def _keyed(self, transform_def: Any, structures: Sequence[_Structure]) -> Callable[..., Any]:
        """The function compiled for one structure of each tree."""

        def run(numbers: list[Any], *leaves: Any) -> Any:
            results = self._run(transform_def, numbers, _filled(structures, leaves))
            return results if self._result is None else (arrays_of(results[0]), *results[1:])

        return self._jitted(run, donate_argnums=tuple(i + 1 for i in self._donated))

    def _jitted(self, run: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        # JAX names a program after its function, in profiles and in logs of compilation.
        run.__name__ = run.__qualname__ = self.name
        return jax.jit(run, inline=_INLINE, **options)

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
            # A number is traced, so that another one does not compile again. A flag selects what is compiled.
            is_number = isinstance(x, (int, float, complex)) and not isinstance(x, bool)
            # A NumPy array and not the Python number, which `jax.jit` would trace with a weak type.
            return (_TRACED, np.asarray(x, jax.dtypes.canonicalize_dtype(type(x)))) if is_number else (x, None)
        if isinstance(x, jax.ShapeDtypeStruct):
            _refuse_shape(self.name, x)
        return (type(x) if type(x) in PYTHON_NUMBERS else None), None


def _may_be_number(x: Any) -> bool:
    """Whether `jax.jit` has the same program for this array and for a number or a flag of Python."""
    return getattr(x, "weak_type", False) or (x.dtype == bool and x.ndim == 0)


def _as_array(x: Any) -> Any:
    return x if isinstance(x, jax.Array) else jnp.asarray(x)  # which takes 10 µs for an array too


def _node_types(treedef: Any) -> Iterator[type]:
    yield from (treedef.node_data() or ())[:1]  # its class, and None at a leaf
    for child in treedef.children():
        yield from _node_types(child)


def _dicts_in(tree: Any) -> Iterator[OrderedDict[Any, Any]]:
    for x in jtu.tree_leaves(tree, is_leaf=lambda x: type(x) is OrderedDict):
        if type(x) is OrderedDict:
            yield x
            for part in x.values():
                yield from _dicts_in(part)


def _is_immutable(kind: type) -> bool:
    """Whether a node of this type is a Module, a tuple, or compared at each call.

    Any other dict, or a variable of NNX, may hold other leaves later.
    """
    return kind in (tuple, type(None), OrderedDict) or issubclass(kind, AbstractModule)


def _is_constant(x: Any) -> bool:
    return isinstance(x, (np.ndarray, np.generic)) and not x.flags.writeable and x.ndim == 0


def _is_array(x: Any) -> bool:
    return isinstance(x, jax.Array) and not isinstance(x, Tracer)


def _filled(structures: Sequence[_Structure], leaves: Sequence[Sequence[Any]]) -> list[Any]:
    return [s.fill(xs) for s, xs in zip(structures, leaves, strict=True)]


def _refuse_batch(transform: Any) -> None:
    """Raise an error if a batch of transforms is called like a single one."""
    if not accepts_any_range() and (path := batched_number(transform)):
        name = type(transform).__name__
        raise ValueError(
            f"`{name}` is a batch of transforms: `{path}` is not a scalar. Call it under `vmap`, as in "
            f"`eqx.filter_vmap(lambda t, params: t.init(params), in_axes=(eqx.if_array(0), None))(batch, params)`."
        )


def _refuse_shape(name: str, x: Any) -> None:
    """Raise an error for a shape in the place of an array."""
    method = name.rpartition(".")[2]
    raise ValueError(
        f"`{name}` was given shapes in place of arrays, such as {x}. Call `jax.eval_shape(optimizer.{method}, ...)` "
        f"for the shapes of its results."
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


def _strong(transform: Any) -> Any:
    """The transform with all hyperparameters in JAX's default float dtype, so that they never mix dtypes."""
    dtype = default_float()

    def cast(x: Any) -> Any:
        is_float = isinstance(x, ARRAY_TYPES) and jnp.issubdtype(x.dtype, jnp.floating)
        return x.astype(dtype) if is_float else x

    return jtu.tree_map(cast, transform)
