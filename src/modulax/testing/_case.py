"""Test cases for laws, and the helpers that laws are written with.

A `Case` holds a transform, parameters and extra arguments, and runs `init` and `update` on them with reproducible
updates. The rest are helpers for the bodies of laws: `needs` declares which cases a law applies to and which packages
it uses; `other_value` and `map_numbers` vary hyperparameters; `cast`, `stack` and `in_float64` prepare trees in NumPy,
because every JAX operation on them would compile a program; the functions called `expect…` compare and raise;
`counting_traces` observes what JAX traces.
"""

import contextlib
import dataclasses
import functools
import importlib
import importlib.util
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, DTypeLike, PyTree

from .._plugin.arrays import State, common_dtype, is_key_data
from .._plugin.states import init_even_if_empty
from .._plugin.transforms import everything_in
from .._plugin.trees import leaves_with_paths, trainable
from ..authoring import AbstractTransform, Params, Updates

_compiled = functools.cache(jax.jit)
Function = TypeVar("Function", bound=Callable[..., Any])


def default_params() -> dict[str, Any]:
    """A small parameter tree with the features of real ones: nesting, a tuple, several shapes, a scalar."""
    kernel = np.asarray([[-2.5, 1.0], [0.4, -0.1], [1.5, 3.0]])
    tree = {"dense": {"bias": np.asarray([0.3, -0.2]), "kernel": kernel}, "pair": (np.asarray(0.7),)}
    return jtu.tree_map(lambda x: jnp.asarray(x, jnp.float32), tree)


@dataclasses.dataclass(frozen=True)
class Case:
    """A transform under test.

    Args:
        transform: the transform.
        params: parameters; every leaf must be a floating-point or complex array.
        extra: extra arguments for its `update`, or a function of `(params, updates)` that returns them.
        rtol: tolerance for two ways of computing the same in float32, relative to the largest entry of an array.
        examples: number of examples on a leading axis of the updates, if the transform takes per-example gradients.
    """

    transform: AbstractTransform
    params: Params = dataclasses.field(default_factory=default_params)
    extra: Mapping[str, Any] | Callable[[Any, Any], Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    rtol: float = 1e-6
    examples: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "params", trainable(self.params))

    def updates(self, seed: int = 0, like: Params = None) -> Updates:
        """Generate updates for the parameters (or for `like`): the same for the same seed, and none of them zero."""
        like = self.given(self.params if like is None else like)
        random = np.random.default_rng(seed)

        def one(p: Any) -> Array:
            x = random.uniform(0.1, 2.0, p.shape) * random.choice([-1.0, 1.0], p.shape)
            if jnp.iscomplexobj(p):
                x = x + 1j * random.uniform(0.1, 2.0, p.shape)
            return jnp.asarray(np.asarray(x).astype(p.dtype))

        return jtu.tree_map(one, like)

    def given(self, tree: PyTree) -> PyTree:
        """Add the example axis to arrays like parameters, or to their shapes and dtypes: updates have one."""
        if not self.examples:
            return tree

        def repeated(x: Any) -> Any:
            shape = (self.examples, *x.shape)
            return jax.ShapeDtypeStruct(shape, x.dtype) if _is_aval(x) else jnp.broadcast_to(x, shape)

        return jtu.tree_map(repeated, tree)

    def returned(self, updates: PyTree) -> PyTree:
        """Remove the example axis from updates, or from their shapes and dtypes: returned updates have none."""
        if not self.examples:
            return updates
        return jtu.tree_map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype) if _is_aval(x) else x[0], updates)

    def kept(self, updates: PyTree, like: PyTree) -> PyTree:
        """The shapes and dtypes that returned updates must have: those of `like`, promoted if `update_dtype` says so.

        If it is a part that says so, it may be so at some leaves only.
        """
        # The transform may have been made with another float dtype than is now the default.
        with jax.numpy_dtype_promotion("standard"):
            dtypes = [getattr(t, "update_dtype", None) for t in everything_in(self.transform)]
        inside = [dtype for dtype in dtypes if dtype is not None]
        if not inside or jtu.tree_structure(updates) != jtu.tree_structure(like):
            return like

        def one(u: Any, x: Any) -> jax.ShapeDtypeStruct:
            wide = common_dtype(x.dtype, *inside)
            is_wide = dtypes[0] is not None or u.dtype == wide
            return jax.ShapeDtypeStruct(x.shape, wide if is_wide else x.dtype)

        return jtu.tree_map(one, updates, like)

    def init(self, params: Params = None) -> State:
        """Initialize the state for the parameters (or for others)."""
        return init_even_if_empty(self.transform, self.params if params is None else params)

    def update(
        self,
        updates: Updates,
        state: State,
        params: Params = None,
        transform: AbstractTransform | None = None,
    ) -> tuple[Updates, State]:
        """Take one step with the extra arguments, of another transform if one is given."""
        params = self.params if params is None else params
        transform = self.transform if transform is None else transform
        return transform.update(updates, state, params, **self.extra_for(params, updates))

    def extra_for(self, params: Params, updates: Updates) -> Mapping[str, Any]:
        """The extra arguments for these parameters and updates.

        Functions are compiled: a plain one would be traced at every call of an entry point.
        """
        extra = self.extra(params, updates) if callable(self.extra) else self.extra
        return {name: _compiled(x) if isinstance(x, types.FunctionType) else x for name, x in extra.items()}

    def numbers(self) -> dict[str, Any]:
        """The hyperparameters by path."""
        return self.transform.hyperparameters()


def run(case: Case, transform: Any = None, steps: int = 3) -> tuple[list[Updates], State]:
    """Take a few steps, of another transform if one is given; return their updates and the last state."""
    transform = case.transform if transform is None else transform
    state, out = init_even_if_empty(transform, case.params), []
    for seed in range(steps):
        updates, state = case.update(case.updates(seed), state, transform=transform)
        out.append(updates)
    return out, state


def _is_aval(x: Any) -> bool:
    """Whether `x` is a shape and dtype without values."""
    return isinstance(x, jax.ShapeDtypeStruct)


def needs(
    condition: Callable[[Case], bool] = lambda case: True, *, packages: tuple[str, ...] = ()
) -> Callable[[Function], Function]:
    """Declare which cases a law applies to, and which packages it needs."""

    def declare(law: Function) -> Function:
        law.condition, law.packages = condition, packages  # pyright: ignore[reportFunctionMemberAccess]
        return law

    return declare


def has_numbers(case: Case) -> bool:
    """Whether the transform has hyperparameters."""
    return bool(case.numbers())


def optional(name: str) -> Any:
    """Import a package that need not be installed; a law that uses it declares it with `needs`."""
    return importlib.import_module(name)


def is_installed(name: str) -> bool:
    """Whether `optional(name)` would find the package."""
    return importlib.util.find_spec(name.partition(".")[0]) is not None


def expect(condition: Any, message: str) -> None:
    """Raise an AssertionError with this message unless the condition holds."""
    if not condition:
        raise AssertionError(message)


def other_value(x: Any, weight: float = 0.5) -> float:
    """Another value that satisfies the same requirement: in [0, 1), positive, at least 1, whole."""
    if x >= 2 and x == x // 1:
        return float(x + round(100 * weight) - 49)
    return float(weight * np.asarray(x) + (1 - weight) * (1 if x >= 1 else 0.5))


def map_numbers(function: Callable[[Any], Any], transform: Any) -> Any:
    """Apply a function to every hyperparameter of a transform; random keys are left alone."""
    return jtu.tree_map(lambda x: x if is_key_data(x) else function(x), transform)


def cast(tree: PyTree, dtype: DTypeLike) -> PyTree:
    """Cast all leaves of a tree to a dtype, in NumPy: a JAX operation would compile a program."""
    return jtu.tree_map(lambda x: np.asarray(x).astype(dtype), tree)


def scaled(tree: PyTree, factor: float) -> PyTree:
    """Multiply a tree by a number, in NumPy."""
    return jtu.tree_map(lambda x: (np.asarray(x) * factor).astype(x.dtype), tree)


def stack(*trees: PyTree) -> PyTree:
    """Stack trees along a new first axis, in NumPy."""
    return jtu.tree_map(lambda *xs: np.stack(xs), *trees)


def in_float64(tree: PyTree) -> PyTree:
    """Cast a tree to double precision, within `jax.enable_x64(True)`."""

    def wide(x: Any) -> Array:
        x = np.asarray(x)
        return jnp.asarray(x.astype(np.result_type(x, float)) if np.issubdtype(x.dtype, np.inexact) else x)

    return jtu.tree_map(wide, tree)


def avals(tree: PyTree, dtype: DTypeLike | None = None) -> PyTree:
    """The shapes and dtypes of a tree, or the shapes in another dtype."""
    return jtu.tree_map(lambda x: jax.ShapeDtypeStruct(jnp.shape(x), dtype or jnp.result_type(x)), tree)


def expect_same_avals(after: PyTree, before: PyTree, what: str) -> None:
    """Check that two trees have the same structure, shapes and dtypes; the message names the path."""
    expect(
        jtu.tree_structure(after) == jtu.tree_structure(before),
        f"{what}: the structure became {jtu.tree_structure(after)}, it was {jtu.tree_structure(before)}.",
    )
    for (path, a), b in zip(leaves_with_paths(after), jtu.tree_leaves(before), strict=True):
        expect(
            (a.shape, a.dtype) == (b.shape, b.dtype),
            f"{what}: at `{path}` {b.dtype}{list(b.shape)} became {a.dtype}{list(a.shape)}."
            + (_dtype_remedy(b.dtype) if a.dtype != b.dtype else ""),
        )


def _dtype_remedy(dtype: Any) -> str:
    if jnp.issubdtype(dtype, jnp.integer):
        return " `modulax.safe_increment(count)` keeps the dtype of `count`."
    return " A number times an array has the wider dtype: write `jnp.asarray(number, x.dtype) * x`."


def expect_close(actual: PyTree, desired: PyTree, what: str, rtol: float = 0.0) -> None:
    """Check that two trees differ by at most `rtol` times the largest entry of each array; 0 requires equality."""
    expect(
        jtu.tree_structure(actual) == jtu.tree_structure(desired),
        f"{what}: the structures differ, {jtu.tree_structure(actual)} and {jtu.tree_structure(desired)}.",
    )
    for (path, a), d in zip(leaves_with_paths(actual), jtu.tree_leaves(desired), strict=True):
        a, d = np.asarray(a), np.asarray(d)
        if not np.issubdtype(d.dtype, np.inexact) and d.dtype != jnp.bfloat16:
            equal = np.array_equal(a, d)
        else:
            a, d = (x.astype(np.result_type(x.dtype.type(0).item(), 1.0)) for x in (a, d))
            equal = a.shape == d.shape and _is_close(a, d, rtol)
        expect(equal, f"{what}: at `{path}` there is {a} instead of {d}.")


def _is_close(a: np.ndarray, d: np.ndarray, rtol: float) -> bool:
    """Whether all entries are close; infinities must be equal, and there must be no NaN."""
    largest = np.max(np.abs(d), where=np.isfinite(d), initial=0)
    return np.allclose(a, d, rtol=0, atol=rtol * largest)


def expect_finite(tree: PyTree, what: str, is_wrong: Callable[[Any], Any] = lambda x: ~np.isfinite(x)) -> None:
    """Check that a tree has no NaN and no infinity, or nothing else that is wrong; the message names the path."""
    for path, x in leaves_with_paths(tree):
        expect(not np.any(is_wrong(np.asarray(x, np.complex128))), f"{what}: at `{path}` there is {x}.")


_counting: list[list[str]] = []  # the lists that grow


def _listen(event: str, duration_secs: float, **metadata: str | int) -> None:
    del duration_secs
    if event == "/jax/core/compile/jaxpr_trace_duration":
        for traces in _counting:
            traces.append(str(metadata.get("fun_name", "a function")))


@functools.cache
def _start_listening() -> None:
    """Once: JAX 0.7 has no function to end it."""
    jax.monitoring.register_event_duration_secs_listener(_listen)


@contextlib.contextmanager
def counting_traces() -> Iterator[list[str]]:
    """Yield a list that grows whenever JAX traces a function."""
    _start_listening()
    traces: list[str] = []
    _counting.append(traces)
    try:
        yield traces
    finally:
        _counting[:] = [other for other in _counting if other is not traces]
