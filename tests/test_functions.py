"""Properties of every function on arrays, checked on every case of `tests/functions`."""

import functools
import inspect
import re
from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.experimental import checkify

from modulax import assignment, estimators, linalg, losses, numerics, perturbations, projections, second_order

from .functions import CASES, Case, plain
from .refusals import refused
from .settings import jax_defaults

# Every public function of these modules has a case; functions that are tested otherwise, and where.
PUBLIC = (assignment, estimators, linalg, losses, numerics, perturbations, projections, second_order)
ELSEWHERE: dict[str, str] = {
    "abs_sq": "test_numerics.py",
    "at_least_float32": "test_numerics.py",
    "base_hungarian_algorithm": "test_assignment.py",
    "cond": "test_batches_of_steps.py",
    "control_delta_method": "test_control_variates.py",
    "control_variates_jacobians": "test_control_variates.py",
    "fisher_diag": "test_second_order.py",
    "hessian_diag": "test_second_order.py",
    "hungarian_algorithm": "test_assignment.py",
    "hvp": "test_second_order.py",
    "inverse_root": "test_linear_algebra.py",
    "leading_directions": "test_equations_matrices.py",
    "make_fenchel_young_loss": "test_losses_fenchel_young.py",
    "make_perturbed_fun": "test_perturbations.py",
    "matrix_inverse_pth_root": "test_linear_algebra.py",
    "measure_valued_jacobians": "test_estimators.py",
    "moving_avg_baseline": "test_control_variates.py",
    "multi_normal": "test_estimators.py",
    "orthogonalize": "test_equations_matrices.py",
    "outer_product": "test_linear_algebra.py",
    "pathwise_jacobians": "test_estimators.py",
    "power_iteration": "test_linear_algebra.py",
    "safe_increment": "test_numerics.py",
    "scale_gradient": "test_numerics.py",
    "score_function_jacobians": "test_estimators.py",
}


def _cases(law: str, holds_for: Callable[[Case], Any] = lambda case: True) -> Any:
    """The cases that a law speaks of; one that is exempt must break it."""
    return pytest.mark.parametrize(
        "case",
        [
            pytest.param(
                case,
                id=str(case),
                marks=pytest.mark.xfail(reason=case.exemptions[law], strict=True) if law in case.exemptions else (),
            )
            for case in CASES
            if holds_for(case)
        ],
    )


_COMPILED: dict[tuple[str, bool], Callable[..., Any]] = {}


def _with_weights(result: Any) -> list[tuple[Any, np.ndarray]]:
    """The arrays of a result, with a weight for each entry."""
    leaves = jax.tree_util.tree_leaves(result)
    return [(y, np.cos(np.arange(y.size) + i).reshape(y.shape)) for i, y in enumerate(leaves)]


def _value_and_gradients(case: Case, function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """The result, and the gradients of a weighted sum of it by all that is differentiated.

    Compiled once for every case, for the function and its twin each: the arguments of a case differ in arrays alone.
    """
    arrays, rest = case.parts(arguments)

    def weighted(by: dict[str, Any], others: dict[str, Any]) -> Any:
        result = function(**by, **others, **rest)
        return sum(jnp.sum(y * jnp.asarray(w, y.dtype)) for y, w in _with_weights(result)), result

    compiled = _COMPILED.setdefault(
        (str(case), function is case.function), jax.jit(jax.value_and_grad(weighted, has_aux=True))
    )
    by = {name: x for name, x in arrays.items() if name in case.differentiated}
    others = {name: x for name, x in arrays.items() if name not in by}
    (_, value), gradients = compiled(by, others)
    return value, gradients


def _assert_close(actual: Any, expected: Any, tolerance: float) -> None:
    def compare(x: Any, y: Any) -> None:
        y = np.asarray(y, np.float64)
        assert x.shape == y.shape
        largest = np.max(np.abs(y), initial=1, where=np.isfinite(y))
        np.testing.assert_allclose(np.asarray(x, np.float64), y, rtol=tolerance, atol=tolerance * largest)

    jax.tree_util.tree_map(compare, actual, expected)


@_cases("oracle")
@pytest.mark.usefixtures("x64")
def test_equals_the_oracle_and_optax(case: Case):
    arguments = case.make()
    actual = _value_and_gradients(case, case.function, arguments)
    _assert_close(actual[0], case.oracle(**plain(arguments)), 1e-12)
    if case.twin is not None:
        with jax_defaults():
            _assert_close(actual, _value_and_gradients(case, case.twin, arguments), 1e-12)


@_cases("float32")
def test_is_precise_in_float32(case: Case):
    arguments = case.make(np.float32)
    actual = _value_and_gradients(case, case.function, arguments)
    _assert_close(actual[0], case.oracle(**plain(arguments)), 1e-6)
    with jax.enable_x64(True):
        exact = _value_and_gradients(case, case.function, {**case.make(), **_as_float64(arguments)})
    _assert_close(actual, exact, 1e-6)


def _as_float64(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: x for name, x in plain(arguments).items() if isinstance(x, np.ndarray)}


@_cases("low_precision", lambda case: case.floats)
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_keeps_a_low_dtype_and_rounds_once(case: Case, dtype: Any):
    arguments = case.make(dtype)
    value, gradients = _value_and_gradients(case, case.function, arguments)
    for x in jax.tree_util.tree_leaves((value, gradients)):
        assert x.dtype == dtype or not jnp.issubdtype(x.dtype, jnp.floating)
    _assert_close(value, case.oracle(**plain(arguments)), 1.01 * float(jnp.finfo(dtype).eps))


@_cases("vmap", lambda case: case.batched)
@pytest.mark.usefixtures("x64")
def test_eager_jitted_and_mapped_are_one(case: Case):
    """`vmap` over two calls is each of them; and eager is jitted."""
    calls = [case.make(seed=1), case.make(seed=2)]
    (arrays, rest), others = case.parts(calls[0]), case.parts(calls[1])[0]
    stacked = {name: np.stack([arrays[name], others[name]]) for name in arrays}
    mapped = jax.jit(jax.vmap(lambda arrays: case.function(**arrays, **rest)))(stacked)
    looped = [case.function(**arrays, **rest) for arrays in (arrays, others)]
    _assert_close(mapped, jax.tree_util.tree_map(lambda *xs: np.stack(xs), *looped), 1e-13)


@_cases("derivatives", lambda case: case.is_smooth and case.differentiated)
@pytest.mark.usefixtures("x64")
def test_derivatives_are_those_of_differences(case: Case):
    """In a random direction, in both modes."""
    arguments = case.make()
    by = {name: np.asarray(arguments.pop(name)) for name in case.differentiated}
    random = np.random.default_rng(0)
    direction = {name: random.uniform(0.5, 1, x.shape) * random.choice([-1, 1], x.shape) for name, x in by.items()}

    def total(by: dict[str, Any]) -> Any:
        pairs = _with_weights(case.function(**by, **arguments))
        return sum(jnp.sum(y * jnp.asarray(w, y.dtype)) for y, w in pairs)

    @jax.jit
    def along(by: dict[str, Any], direction: dict[str, Any]) -> tuple[Any, Any]:
        return jax.jvp(total, (by,), (direction,))

    def moved(h: float) -> Any:
        return along({name: x + h * direction[name] for name, x in by.items()}, direction)

    _, gradients = _value_and_gradients(case, case.function, by | arguments)
    reverse = sum(float(np.vdot(gradients[name], direction[name])) for name in by)
    forward, difference = moved(0.0)[1], (float(moved(1e-5)[0]) - float(moved(-1e-5)[0])) / 2e-5
    np.testing.assert_allclose([forward, reverse], difference, rtol=1e-5, atol=1e-7)


@_cases("empty", lambda case: case.batched)
def test_an_empty_batch_is_fine(case: Case):
    arrays, rest = case.parts(case.make(np.float32))
    shapes = functools.partial(jax.eval_shape, lambda arrays: case.function(**arrays, **rest))
    full = shapes(arrays)
    empty = shapes({name: x[:0] if name in case.batched else x for name, x in arrays.items()})
    expected = jax.tree_util.tree_map(lambda x: (0, *x.shape[1:]) if x.ndim else (), full)
    assert jax.tree_util.tree_map(lambda x: x.shape, empty) == expected


@_cases("where", lambda case: "where" in case.make())
@pytest.mark.usefixtures("x64")
def test_what_is_masked_does_not_matter(case: Case):
    """Not even if it is not finite: neither to the value nor to the gradients, which are zero there."""
    arguments = case.make()
    clean = _value_and_gradients(case, case.function, arguments)
    mask = arguments["where"]
    for bad in (np.nan, np.inf, -np.inf):
        spoilt = {
            name: np.where(mask, x, bad) if np.shape(x) == mask.shape and x.dtype.kind == "f" else x
            for name, x in arguments.items()
        }
        assert any(not np.array_equal(spoilt[name], arguments[name]) for name in case.floats)
        _assert_close(_value_and_gradients(case, case.function, spoilt), clean, 0)
    nothing = _value_and_gradients(case, case.function, {**arguments, "where": np.zeros_like(mask)})
    chex.assert_tree_all_finite(nothing)


@_cases("integers", lambda case: case.floats)
def test_integers_are_refused_where_floats_are_needed(case: Case):
    """And complex numbers, unless the docstring names them."""
    arguments = case.make(np.float32)
    takes_complex = "complex" in (inspect.getdoc(case.function) or "")
    for name in case.floats:
        for kind in (jnp.int32,) if takes_complex else (jnp.int32, jnp.complex64):
            with refused(f"`{case.function.__name__}({name}=...)` must hold floats, got ", str(jnp.dtype(kind))):
                case.function(**{**arguments, name: np.ones(arguments[name].shape, kind)})


def _numbers(case: Case) -> list[str]:
    """The arrays of floats that need not be floats."""
    arrays, _ = case.parts(case.make())
    return [name for name, x in arrays.items() if x.dtype.kind == "f" and name not in case.floats]


def _is_fullest(case: Case) -> bool:
    """Whether no other case of the function has more arrays of floats."""

    def count(case: Case) -> int:
        return len(case.floats) + len(_numbers(case))

    return case is max((c for c in CASES if c.function is case.function), key=count)


@_cases("real numbers", _is_fullest)
def test_numbers_may_be_integers(case: Case):
    """Which don't widen the result, as floats do if the docstring names them; complex numbers are refused."""
    dtype = jnp.bfloat16 if case.floats else np.float32
    arguments = case.make(dtype)
    said = re.search("in the dtype that (.*?) promote to", " ".join((inspect.getdoc(case.function) or "").split()))
    words = re.findall(r"\w+", said[1]) if said else ()

    def dtypes(kind: Any, *names: str) -> set[Any]:
        ones = {name: jnp.ones(np.shape(arguments[name]), kind) for name in names}
        arrays, rest = case.parts({**arguments, **ones})
        result = jax.eval_shape(functools.partial(case.function, **rest), **arrays)
        return {x.dtype for x in jax.tree_util.tree_leaves(result)}

    assert dtypes(np.int32, *_numbers(case)) == {np.dtype(dtype)}
    for name in case.floats[1:]:
        assert dtypes(np.float32, name) == {np.dtype(np.float32 if _is_one_of(name, words) else dtype)}
    for name in _numbers(case):
        assert dtypes(np.float32, name) == {np.dtype(np.float32 if _is_one_of(name, words) else dtype)}
        with refused(f"`{case.function.__name__}({name}=...)` must hold real numbers, got ", "complex"):
            case.function(**{**arguments, name: np.ones(np.shape(arguments[name]), np.complex64)})


def _is_one_of(name: str, words: Any) -> bool:
    """Whether one of the words is the name of an argument, or the end of it: targets are also `log_targets`."""
    return any(name == word or name.endswith(f"_{word}") for word in words)


@_cases("examples", lambda case: "where" in case.make() and "axis" in case.parameters)
def test_a_mask_of_examples_is_one_of_all_their_entries(case: Case):
    arrays, rest = case.parts(case.make(np.float32))
    mask, axis = arrays.pop("where"), rest.get("axis", -1)
    every = np.expand_dims(np.arange(mask.any(axis).size).reshape(mask.any(axis).shape) % 3 > 0, axis)

    @jax.jit
    def both(arrays: dict[str, Any]) -> Any:
        masks = np.squeeze(every, axis), np.broadcast_to(every, mask.shape)
        return [case.function(**arrays, **rest, where=m) for m in masks]

    np.testing.assert_array_equal(*both(arrays))


@_cases("masks", lambda case: "where" in case.make())
def test_a_mask_is_boolean_and_fits(case: Case):
    arguments = case.make(np.float32)
    mask, name = arguments["where"], case.function.__name__
    with refused(f"`{name}(where=...)` must hold booleans, got int32"):
        case.function(**{**arguments, "where": mask.astype(np.int32)})
    with refused(f"`{name}` needs ", "`where`", "(7,)"):
        case.function(**{**arguments, "where": np.ones(7, bool)})


@_cases("labels", lambda case: case.said_of_labels)
def test_a_label_that_is_no_class_is_nan_is_reported_and_spoils_nothing_else(case: Case):
    """Of integers of any size, also of those that do not know of -1."""
    arguments = case.make(np.float32)
    (scores,) = case.floats
    value, gradient = _value_and_gradients(case, case.function, arguments)
    checked = jax.jit(checkify.checkify(functools.partial(case.function, **case.parts(arguments)[1])))
    for dtype in (np.int8, np.int32, np.uint8, np.uint32):
        wrong = arguments["labels"].copy()
        wrong[0], wrong[1] = -1, arguments[scores].shape[-1]
        wrong = {**arguments, "labels": wrong.astype(dtype)}
        found, found_gradient = _value_and_gradients(case, case.function, wrong)
        assert np.isnan(found[:2]).all()
        np.testing.assert_array_equal(found[2:], value[2:])
        if case.function is not losses.ctc_loss:  # whose derivatives there are NaN too
            np.testing.assert_array_equal(found_gradient[scores][:2], 0)
        np.testing.assert_array_equal(found_gradient[scores][2:], gradient[scores][2:])
        assert case.said_of_labels in str(checked(**case.parts(wrong)[0])[0].get())
    assert checked(**case.parts(arguments)[0])[0].get() is None
    theirs: Any = case.twin
    with jax_defaults():
        assert np.isfinite(theirs(**{**arguments, "labels": arguments["labels"] * 0 - 1})).all()


@_cases("shapes", lambda case: case.misfits)
def test_shapes_that_do_not_fit_are_refused(case: Case):
    arguments = case.make(np.float32)
    for name, shape in case.misfits.items():
        wrong = jnp.ones(shape, jnp.asarray(arguments[name]).dtype)
        with pytest.raises(ValueError, match=re.escape(f"`{case.function.__name__}")) as error:
            case.function(**{**arguments, name: wrong})
        assert f"`{name}`" in str(error.value)
        assert str(shape) in str(error.value)


@_cases("axis", lambda case: "axis" in case.parameters and case.floats)
def test_an_axis_that_is_not_there_is_refused(case: Case):
    arguments = case.make(np.float32)
    axis = jnp.ndim(arguments[case.floats[0]])
    with refused(f"`{case.function.__name__}(axis={axis})` is out of bounds", "has axes"):
        case.function(**{**arguments, "axis": axis})


TWINS = {case.function: case.twin for case in CASES if case.twin} | {
    getattr(ours, name): getattr(theirs, name)
    for ours, theirs, names in (
        (linalg, optax, ("power_iteration", "matrix_inverse_pth_root")),
        (assignment, optax.assignment, ("hungarian_algorithm", "base_hungarian_algorithm")),
    )
    for name in names
}


@pytest.mark.parametrize("function", TWINS, ids=lambda function: f"{function.__module__}.{function.__name__}")
def test_the_signature_is_that_of_optax(function: Any):
    """Its arguments in its order with its defaults; there may be more after them."""
    ours, theirs = (
        [(p.name, p.kind, p.default) for p in inspect.signature(f).parameters.values()]
        for f in (function, TWINS[function])
    )
    kept = [p for p in ours if p in theirs]
    assert kept == theirs
    assert all(p[2] is not inspect.Parameter.empty for p in ours if p not in theirs)


def test_every_public_function_has_a_case():
    for module in PUBLIC:
        functions = {f for name, f in vars(module).items() if inspect.isfunction(f) and not name.startswith("_")}
        elsewhere = {f for f in functions if f.__name__ in ELSEWHERE}
        assert functions == elsewhere | {case.function for case in CASES if case.function in functions}


def test_every_option_is_given_in_a_case():
    """With a value that is not its default."""
    given: dict[tuple[Any, str], list[Any]] = {}
    for case in CASES:
        for name, value in case.make().items():
            given.setdefault((case.function, name), []).append(value)
    for case in CASES:
        for name, parameter in case.parameters.items():
            values = given.get((case.function, name), [])
            changed = [isinstance(x, np.ndarray) or x != parameter.default for x in values]
            assert any(changed), f"no case of `{case.function.__name__}` is called with `{name}`"
