"""Laws on fields: `at` keeps them, `transform()` hands them on, and the state has the dtypes that they name."""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from .. import Other, by_path
from .._plugin.arrays import ARRAY_TYPES, is_key_data
from .._plugin.labels import AbstractLabels, AbstractRoles, as_roles
from .._plugin.messages import options_of
from .._plugin.states import one_level
from .._plugin.transforms import has_stateful_schedule, is_schedule
from .._plugin.trees import leaves_with_paths
from ..authoring import AbstractOptimizer
from ..schedules import AbstractSchedule
from ._case import Case, avals, expect, expect_close, needs, other_value


def fields_of(module: Any, *, static: bool) -> Iterator[dataclasses.Field]:
    """The fields of a module that are given in its constructor: the static ones, or the others."""
    for field in dataclasses.fields(module):
        if bool(field.metadata.get("static", False)) == static:
            yield field


def is_same(a: Any, b: Any) -> bool:
    """Whether two trees have the same structure, static fields included, and equal arrays."""
    return jtu.tree_structure(a) == jtu.tree_structure(b) and all(
        map(np.array_equal, jtu.tree_leaves(a), jtu.tree_leaves(b))
    )


def expect_same_fields(after: Any, before: Any, where: str) -> None:
    """Refuses another static field or part anywhere in a module, and anything but a number for a number or schedule."""
    if isinstance(before, (AbstractSchedule, *ARRAY_TYPES)):  # a number stays one, and a schedule becomes one
        expect(isinstance(after, ARRAY_TYPES), f"`{where}` became a `{type(after).__name__}`.")
    if before is None or is_schedule(before) or isinstance(before, ARRAY_TYPES):
        return
    expect(type(after) is type(before), f"`{where}` became a `{type(after).__name__}`.")
    for field in fields_of(before, static=True) if isinstance(before, eqx.Module) else ():
        old, new = getattr(before, field.name), getattr(after, field.name)
        expect(new == old, f"`{where}.{field.name}` became {new!r}, it was {old!r}.")
    children, others = one_level(before)[0], one_level(after)[0]
    expect([key for key, _ in others] == [key for key, _ in children], f"`{where}` has other parts.")
    for (key, old), (_, new) in zip(children, others, strict=True):
        expect_same_fields(new, old, where + jtu.keystr(key))


def law_at_is_the_transform_of_the_next_step(case: Case) -> None:
    """`at(state)` is the same transform with numbers where there were schedules.

    Every other field stays as it is, in its parts too, and its next update is the same. (The number of a stateful
    schedule also depends on the extra arguments of the step, which `at` does not know.)
    """
    state = case.init()
    now = case.transform.at(state)
    expect_same_fields(now, case.transform, type(case.transform).__name__)
    if has_stateful_schedule(case.transform) or is_same(now, case.transform):
        return
    _, state = case.update(case.updates(), state)
    now, grads = case.transform.at(state), case.updates(1)
    expect_same_fields(now, case.transform, type(case.transform).__name__)
    found, _ = case.update(grads, state, transform=now)
    expected, _ = case.update(grads, state)
    expect_close(found, expected, "the update of `at(state)`", 10 * case.rtol)


def _dtype_fields(case: Case) -> list[str]:
    names = [field.name for field in fields_of(case.transform, static=True) if "_dtype" in field.name]
    return [name for name in names if _takes_few_bits(case.transform, name)]


def with_optional_numbers(transform: Any) -> Any:
    """The transform with all numbers that it may do without: what a field is about may depend on them."""
    fields = fields_of(transform, static=False)
    optional = [f.name for f in fields if f.metadata.get("number") and f.metadata["optional"]]
    return transform.replace(**{name: 0.5 for name in optional if getattr(transform, name) is None})


def _dtypes_of_state(case: Case, transform: Any, params: Any) -> dict[str, Any]:
    return {path: x.dtype for path, x in leaves_with_paths(jax.eval_shape(transform.init, params))}


def expect_complex_state_is_kept(case: Case, name: str) -> None:
    """Check that a real dtype in a field makes nothing real that is complex without it."""
    transform = with_optional_numbers(case.transform)
    params = avals(case.params, jnp.complex64)
    try:
        default = _dtypes_of_state(case, transform, params)
    except ValueError:  # not defined for complex parameters
        return
    found = _dtypes_of_state(case, transform.replace(**{name: jnp.float32}), params)
    lost = [p for p, d in default.items() if jnp.issubdtype(d, jnp.complexfloating) and d != found.get(p)]
    expect(not lost, f"with `{name}=float32` the state of complex parameters is real at {lost}.")


def _takes_few_bits(transform: Any, name: str) -> bool:
    """Whether a field may name the dtypes with 16 bits, in which hyperparameters of `Injected` may be out of range."""
    try:
        for dtype in (jnp.bfloat16, jnp.float16):
            transform.replace(**{name: dtype})
    except ValueError:
        return False
    return True


def _dtypes_by_field(case: Case, name: str, params: Any) -> tuple[Any, list[str], dict[Any, dict[str, Any]]]:
    """The transform, the paths in its state to which a field gives the dtype, and the state's dtypes for two values."""
    for transform in (case.transform, with_optional_numbers(case.transform)):
        found = {d: _dtypes_of_state(case, transform.replace(**{name: d}), params) for d in (jnp.bfloat16, jnp.float16)}
        concerned = [p for p, dtype in found[jnp.float16].items() if dtype != found[jnp.bfloat16].get(p)]
        if concerned:
            return transform, concerned, found
    raise AssertionError(f"`{name}` is the dtype of nothing in the state.")


@needs(lambda case: bool(_dtype_fields(case)))
def law_a_field_that_is_a_dtype_is_one_of_the_state(case: Case) -> None:
    """A static field whose name has `_dtype` in it is the dtype of something in the state, and of nothing else.

    Where it is None, that has the dtype of the parameters, or float32 if it is wider. Complex parameters have complex
    state, also where the field names a real dtype.
    """
    for name in _dtype_fields(case):
        for params_dtype in (jnp.float32, jnp.bfloat16):
            params = avals(case.params, params_dtype)
            transform, concerned, found = _dtypes_by_field(case, name, params)
            for dtype, dtypes in found.items():
                others = {p: dtypes[p] for p in concerned if dtypes[p] != dtype}
                expect(not others, f"with `{name}={np.dtype(dtype).name}` the state has {others}.")
            if getattr(transform, name) is None:
                default = {_dtypes_of_state(case, transform, params)[p] for p in concerned}
                known = {np.dtype(params_dtype), np.dtype(jnp.float32)}
                expect(default <= known, f"with `{name}=None` the state has {default}.")
        if getattr(case.transform, name) is None:
            expect_complex_state_is_kept(case, name)


def other_static_value(field: dataclasses.Field, value: Any) -> Any:
    """Another value for a static field, or the same one where nothing is known of what it may be."""
    if options := _options(field, value):
        return next(option for option in options if option != value)
    if isinstance(value, int):
        return value + 1
    if isinstance(value, AbstractRoles):
        return as_roles({"*": Other()})
    if "mask" in field.name or isinstance(value, AbstractLabels):
        return by_path({"*": value is None})
    return functools.partial(value) if callable(value) else value


def _options(field: dataclasses.Field, value: Any) -> tuple[Any, ...]:
    if "dtype" in field.name:
        return jnp.bfloat16, jnp.float16
    return (False, True) if isinstance(value, bool) else options_of(field)


def other_value_of(field: dataclasses.Field, value: Any, index: int) -> Any:
    """Another value of a field; of numbers, another one for each index."""
    if field.metadata.get("static"):
        return other_static_value(field, value)
    weight = 0.5 + 0.01 * index
    return jtu.tree_map(lambda x: np.asarray(x) + 1 if is_key_data(x) else other_value(x, weight), value)


@needs(lambda case: isinstance(case.transform, AbstractOptimizer))
def law_a_field_of_an_optimizer_is_handed_on(case: Case) -> None:
    """Another value in any field of an optimizer makes another `transform()`."""
    given: Any = case.transform.at(case.init())
    fields = list(dataclasses.fields(given))
    absent = {f.name: None for f in fields if f.metadata.get("optional")}
    settings = [given, with_optional_numbers(given), given.replace(**absent)]
    for i, field in enumerate(fields):
        is_used = []
        for optimizer in settings:
            value = getattr(optimizer, field.name)
            other = other_value_of(field, value, i)
            if not is_same(other, value):
                changed = optimizer.replace(**{field.name: other})
                is_used.append(not is_same(changed.transform(), optimizer.transform()))
        expect(any(is_used) or not is_used, f"`{field.name}` is not handed on.")
