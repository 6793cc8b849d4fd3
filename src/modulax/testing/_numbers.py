"""Laws on values: hyperparameters, gradients, and the edges of the floating-point range."""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from .._plugin.arrays import enable_x64
from .._plugin.trees import leaves_with_paths
from ._case import (
    Case,
    avals,
    cast,
    expect,
    expect_close,
    expect_finite,
    expect_same_avals,
    has_numbers,
    in_float64,
    map_numbers,
    needs,
    other_value,
    scaled,
    stack,
)


def _steps(case: Case, transform: Any, grads: Any, params: Any) -> Any:
    """The updates of the first two steps, with the parameters moving along."""
    state, out = transform.init(params), []
    for factor in (1.0, 0.7):
        updates, state = case.update(jtu.tree_map(lambda g, f=factor: f * g, grads), state, params, transform=transform)
        params = jtu.tree_map(lambda p, u: p + u, params, updates)
        out.append(updates)
    return out


@needs(has_numbers)
def law_a_batch_of_transforms_is_a_loop(case: Case) -> None:
    """`vmap` over transforms with different hyperparameters gives what a loop over them gives."""
    with enable_x64(True):
        batch = [
            map_numbers(lambda x, w=w: np.asarray(other_value(x, w), np.float32), case.transform)
            for w in (1.0, 0.8, 0.5)
        ]
        params, grads = jtu.tree_map(np.asarray, in_float64((case.params, case.updates())))
        run = eqx.filter_jit(lambda transform: _steps(case, transform, grads, params))
        mapped = eqx.filter_jit(eqx.filter_vmap(run))(stack(*batch))
        loop = stack(*map(run, batch))
        # In double precision, because 1 - b2**t loses four digits, batch or not.
        expect_close(mapped, loop, "a batch of transforms", 1e-11)


def law_gradients_are_finite_and_right(case: Case) -> None:
    """Gradients with respect to every hyperparameter and to the updates are correct, and finite at zero updates.

    Where an update is exactly zero the moments are zero, and a plain square root has no derivative there: a single NaN
    spoils every hypergradient. Use `modulax.numerics.safe_sqrt`, which is differentiable at zero.
    """
    with enable_x64(True):
        vector = np.asarray([float(x) for x in case.numbers().values()], float)
        params, weights = in_float64((case.params, case.returned(case.updates(2))))
        grads, direction = jtu.tree_map(np.asarray, in_float64((case.updates(), case.updates(1))))

        @jax.jit
        @functools.partial(jax.value_and_grad, argnums=(0, 1))
        def total(vector: Any, grads: Any) -> Any:
            numbers = iter(vector)
            steps = _steps(case, map_numbers(lambda _: next(numbers), case.transform), grads, params)
            pairs = zip(jtu.tree_leaves(steps), 2 * jtu.tree_leaves(weights), strict=True)
            return sum(jnp.sum(u * w) for u, w in pairs)

        def moved(h: float) -> Any:
            return jtu.tree_map(lambda g, d: g + h * d, grads, direction)

        partly = [x * (i % 2) for i, x in enumerate(jtu.tree_leaves(grads))]
        for what, g in (
            ("partly zero", jtu.tree_structure(grads).unflatten(partly)),
            ("zero", jtu.tree_map(np.zeros_like, grads)),
        ):
            _, (by_number, by_update) = total(vector, g)
            by_name = dict(zip(case.numbers(), np.asarray(by_number), strict=True))
            expect_finite(by_name, f"the gradient at {what} updates")
            expect_finite(by_update, f"the gradient with respect to {what} updates")
        # Avoid the points where finite differences fail: tiny values, decay rates near 1, and whole numbers of steps.
        vector = np.asarray([_generic(x) for x in vector])
        value, (by_number, by_update) = jtu.tree_map(np.asarray, total(vector, grads))
        for i, name in enumerate([*case.numbers(), "the updates"]):
            if i < len(vector):
                h, found = 1e-5 * min(abs(vector[i]), 1.0), by_number[i]
                move = h * np.eye(len(vector))[i]
                ahead, behind = (total(vector + s * move, grads)[0] for s in (1, -1))
            else:
                h = 1e-6
                found = sum(map(np.vdot, jtu.tree_leaves(by_update), jtu.tree_leaves(direction)))
                ahead, behind = (total(vector, moved(s * h))[0] for s in (1, -1))
            difference = (float(ahead) - float(behind)) / (2 * h)
            noise = 1e-14 * max(abs(float(value)), 1.0) / h
            expect(
                abs(float(found) - difference) <= 1e-5 * abs(difference) + noise,
                f"the gradient with respect to `{name}` is {found}, finite differences give {difference}.",
            )


def _generic(x: float) -> float:
    """Move a hyperparameter away from values at which finite differences fail."""
    if abs(x) < 1e-3:
        return 1e-3
    if 0.95 < x < 1:
        return 0.95
    return x + 0.5 if x >= 1 and x == round(x) else x


LOW_PRECISION = (jnp.float16, jnp.bfloat16)


def law_updates_of_every_size_stay_finite(case: Case) -> None:
    """Zero, tiny (1e-30) and huge (1e30) updates give finite updates, in any order."""
    sizes = (0.0, 1e-30, 1.0, 1e30)
    for first in sizes:
        state = case.init()
        for size in (first, first, 1.0, 0.0):
            updates, state = case.update(scaled(case.updates(), size), state)
            expect_finite(updates, f"updates of size {size} after updates of size {first}")


def law_zeros_are_fine_in_low_precision(case: Case) -> None:
    """In float16 and bfloat16, where 1e-8 underflows, zero updates give finite updates.

    The step after them has no NaN either, though it may overflow in float16. The parameters may be zero too.
    """
    for dtype in LOW_PRECISION:
        name = np.dtype(dtype).name
        grads, params = cast((case.updates(), case.params), dtype)
        zero = jtu.tree_map(np.zeros_like, grads)
        for given in (params, jtu.tree_map(np.zeros_like, params)):
            first = case.update(zero, case.init(given), given)
            second = case.update(grads, first[1], given)
            for updates in (first[0], second[0]):
                expect_same_avals(updates, case.kept(updates, given), f"updates in {name}")
            expect_finite(first, f"updates and state after zero updates in {name}")
            expect_finite(second, f"updates and state after zero updates and others in {name}", np.isnan)


def law_strict_promotion_is_obeyed(case: Case) -> None:
    """It works under `jax_numpy_dtype_promotion="strict"` and `jax_numpy_rank_promotion="raise"`.

    Cast explicitly where dtypes meet, as in `jnp.asarray(self.factor, g.dtype) * g`: that is what keeps a
    hyperparameter from changing the dtype of an update.
    """
    dtypes = (jnp.float32, jnp.bfloat16, jnp.float16)
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        for dtype in dtypes:
            params = avals(case.params, dtype)
            grads = case.updates(like=params)
            state = jax.eval_shape(case.transform.init, params)
            updates, _ = jax.eval_shape(case.update, grads, state, params)
            expect_same_avals(updates, case.kept(updates, params), f"updates in {np.dtype(dtype).name}")


@needs(has_numbers)
def law_hyperparameters_change_no_dtype(case: Case) -> None:
    """The dtype of a hyperparameter affects neither the dtypes of the updates nor those of the state."""

    @jax.jit  # caches its traces, for `eval_shape` too
    def run(transform: Any, params: Any) -> Any:
        state = transform.init(params)
        return case.update(case.given(params), state, params, transform=transform), state

    pairs = {jnp.float32: (jnp.float64, jnp.bfloat16), jnp.bfloat16: (jnp.float64, jnp.float32)}
    for params_dtype, dtypes in pairs.items():
        params = avals(case.params, params_dtype)
        for dtype in dtypes:
            with enable_x64(dtype == jnp.float64):
                expected = jax.eval_shape(run, case.transform, params)
                given = map_numbers(lambda x, d=dtype: jnp.asarray(np.asarray(x).astype(d)), case.transform)
                found = jax.eval_shape(run, given, params)
            what = f"{np.dtype(params_dtype).name}, with hyperparameters in {np.dtype(dtype).name}"
            expect_same_avals(found, expected, what)


def law_counters_saturate(case: Case) -> None:
    """A counter stops at the largest integer instead of overflowing to negative values.

    Count with `modulax.safe_increment`, also in a branch that skips the step: the last updates of the law are NaN.
    """

    def is_integer(x: Any) -> bool:  # of fewer bits are the codes of quantized moments
        return jnp.issubdtype(x.dtype, jnp.integer) and x.dtype.itemsize >= 4

    state = jtu.tree_map(
        lambda x: np.full(x.shape, np.iinfo(x.dtype).max, x.dtype) if is_integer(x) else x, case.init()
    )
    for _ in range(2):
        updates, state = case.update(case.updates(), state)
        expect_finite(updates, "updates at the end of the counter")
    _, skipped = case.update(jtu.tree_map(lambda x: x * np.nan, case.updates()), state)
    for path, x in (*leaves_with_paths(state), *leaves_with_paths(skipped)):
        expect(
            not is_integer(x) or np.all(np.asarray(x) >= 0),
            f"the counter at `{path}` overflowed to {x}: write `modulax.safe_increment(count)`, and not `count + 1`.",
        )


def law_unknown_extra_arguments_are_ignored(case: Case) -> None:
    """Extra arguments that a transform does not use are ignored: other transforms in a chain may need them."""
    grads, state = case.updates(), case.init()
    expected = case.update(grads, state)
    found = case.transform.update(
        grads,
        state,
        case.params,
        unknown_array=np.ones(3, np.float32),
        unknown_number=1.5,
        unknown_function=len,
        unknown_text="text",
        unknown_nothing=None,
        **case.extra_for(case.params, grads),
    )
    expect_close(found, expected, "with unknown extra arguments")
