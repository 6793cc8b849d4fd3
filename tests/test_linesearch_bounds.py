"""Line searches where two numbers are equal: a loss and the lowest, a miss and the tolerance, a step and the longest.

The loss and its slope are prescribed along the line, as no function of one formula would have them.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import modulax as mx
from modulax._transforms import zoom

START, DOWN = jnp.zeros(()), jnp.ones(())  # the line is the positive axis: the parameter is the length of the step


def prescribed(value: Callable[[Any], Any], slope: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A function with this value and this derivative, whether or not they belong together."""

    @jax.custom_jvp
    def loss(x: Any) -> Any:
        return jnp.asarray(value(x), float)

    loss.defjvp(lambda primals, tangents: (loss(*primals), jnp.asarray(slope(*primals), float) * tangents[0]))
    return loss


def table(rows: dict[float, tuple[float, float]], otherwise: tuple[float, float]) -> Callable[[Any], Any]:
    """A loss with a value and a slope at some points, and others everywhere else."""

    def column(i: int) -> Callable[[Any], Any]:
        def at(x: Any) -> Any:
            out = jnp.full_like(x, otherwise[i])
            for point, row in rows.items():
                out = jnp.where(x == point, row[i], out)
            return out

        return at

    return prescribed(column(0), column(1))


def searched(search: Any, loss: Any) -> Any:
    """The state after one search."""
    value, grad = jax.value_and_grad(loss)(START)
    _, state = search.update(DOWN, search.init(START), START, value=value, grad=grad, value_fn=loss)
    return state


FALLING = prescribed(lambda x: -x, lambda x: -jnp.ones_like(x))


def wave(x: Any) -> Any:
    """Falls by a half and rises again, between each two whole numbers; the slope is -1 at these."""
    t = x - jnp.floor(x)
    return jnp.where(t < 0.5, -t, t - 1)


WAVE = prescribed(wave, lambda x: jnp.where(x - jnp.floor(x) < 0.5, -1.0, 1.0))


def test_after_a_search_without_a_step_the_next_starts_from_the_longest():
    search = mx.ScaleByBacktrackingLinesearch(5, max_learning_rate=4.0)
    value, grad = jax.value_and_grad(FALLING)(START)
    for last, first in ((0.0, 4.0), (0.5, 0.75), (3.0, 4.0)):
        state = dataclasses.replace(search.init(START), learning_rate=jnp.asarray(last))
        _, state = search.update(DOWN, state, START, value=value, grad=grad, value_fn=FALLING)
        assert state.learning_rate == first


def test_the_longest_step_is_taken_at_once():
    state = searched(mx.ScaleByZoomLinesearch(20, 4.0), FALLING)
    assert (state.learning_rate, state.info.num_linesearch_steps) == (4, 3)  # 1, 2, and 4, which is the longest


def test_a_miss_by_just_the_tolerance_is_none():
    state = searched(mx.ScaleByZoomLinesearch(20, tol=0.25, curv_rtol=0.75), FALLING)
    assert (state.learning_rate, state.info.num_linesearch_steps) == (1, 1)
    assert state.info.curvature_error == 0.25
    rising = table({0.0: (1.0, -1.0), 1.0: (1.25, 0.0)}, (9.0, 0.0))
    for atol, steps in ((0.25, 1), (0.125, 2)):
        search = mx.ScaleByBacktrackingLinesearch(1, slope_rtol=0.0, atol=atol, store_grad=True)
        state = searched(search, rising)
        assert state.info.num_linesearch_steps == steps
        assert state.grad == 0  # that of where the step leads


def test_a_loss_like_the_lowest_is_no_lower():
    """At 1 and at 2 the loss is what it is at the start; what is lower lies between them."""
    state = searched(mx.ScaleByZoomLinesearch(8, slope_rtol=0.0, approx_dec_rtol=None), WAVE)
    assert 1 < state.learning_rate < 2
    assert state.value < 0


def test_the_first_of_equal_steps_is_taken():
    state = searched(mx.ScaleByZoomLinesearch(2, slope_rtol=0.0, approx_dec_rtol=None), WAVE)
    assert state.learning_rate == 1


def test_an_interval_of_just_the_precision_is_narrow():
    """It is found to be narrow by the evaluation after the one that bounds it."""
    for precision, steps in ((1.0, 3), (0.875, 4)):
        search = mx.ScaleByZoomLinesearch(
            20, slope_rtol=0.0, approx_dec_rtol=None, stepsize_precision=precision, curv_rtol=0.5
        )
        assert searched(search, WAVE).info.num_linesearch_steps == steps


def test_a_decrease_within_the_tolerance_is_enough_to_be_best():
    """Of two steps that decrease the loss enough, up to the tolerance, the one of the smaller loss."""
    loss = table({0.0: (0.0, -1.0), 1.0: (-0.95, -3.0), 2.0: (-1.0, -3.0)}, (9.0, 0.0))
    search = mx.ScaleByZoomLinesearch(2, tol=1.0, slope_rtol=0.9, approx_dec_rtol=None)
    assert searched(search, loss).learning_rate == 2
    assert searched(search.replace(tol=0.5), loss).learning_rate == 1


def test_where_nothing_is_lost_no_slope_is_asked_for():
    flat = prescribed(jnp.zeros_like, jnp.zeros_like)
    state = searched(mx.ScaleByZoomLinesearch(4, curv_rtol=float(np.inf)), flat)
    assert (state.info.num_linesearch_steps, state.info.curvature_error) == (1, 0)


def test_what_is_printed_of_a_search_without_a_step(capfd: pytest.CaptureFixture[str]):
    nowhere = prescribed(lambda x: jnp.where(x == 0, 3.0, jnp.nan), lambda x: -jnp.ones_like(x))
    for search in (mx.ScaleByZoomLinesearch(4, verbose=True), mx.ScaleByBacktrackingLinesearch(3, verbose=True)):
        searched(search, nowhere)
        jax.effects_barrier()
        out = capfd.readouterr().out
        assert "step size 0.0 after 4 evaluations; loss 3.0 -> " in out
        assert "initial slope -1.0; decrease error inf" in out
    searched(mx.ScaleByZoomLinesearch(1, curv_rtol=0.5, verbose=True), FALLING)
    jax.effects_barrier()
    out = capfd.readouterr().out
    assert "decrease error 0.0, curvature error 0.5. The step size decreases the loss enough, and the slope" in out
    assert "No interval with such a step size was found" in out


def test_a_search_that_fails_says_why(capfd: pytest.CaptureFixture[str]):
    missed = zoom.CONDITION_ON_SLOPE_MISSED
    rising, parabola = prescribed(lambda x: x, jnp.ones_like), prescribed(lambda x: (x - 1) ** 2, lambda x: 2 * (x - 1))
    waves = prescribed(wave, lambda x: -jnp.ones_like(x))
    cases: tuple[tuple[Any, dict[str, Any], list[str]], ...] = (
        (parabola, {}, []),
        (rising, {}, [zoom.NOT_A_DESCENT_DIRECTION, zoom.NO_STEP_SIZE]),
        (FALLING, {"curv_rtol": 0.5, "max_learning_rate": 2.0}, [missed, zoom.NO_INTERVAL]),
        (waves, {"curv_rtol": 0.5, "stepsize_precision": 1.0}, [missed, zoom.INTERVAL_TOO_SHORT]),
    )
    for loss, options, expected in cases:
        searched(mx.ScaleByZoomLinesearch(4, verbose=True, **options), loss)
        jax.effects_barrier()
        assert capfd.readouterr().out.strip().split(". ")[1:] == expected


def test_a_slope_that_is_not_finite_is_a_miss():
    """Of both conditions, however low the loss is."""
    steep = table({0.0: (0.0, -1.0), 1.0: (-9.0, jnp.nan), 2.0: (-9.0, jnp.nan)}, (-0.5, 0.0))
    state = searched(mx.ScaleByZoomLinesearch(5, approx_dec_rtol=None), steep)
    assert 0 < state.learning_rate < 1
    assert (state.value, state.info.decrease_error, state.info.curvature_error) == (-0.5, 0, 0)


def test_the_loss_of_the_state_has_the_default_dtype():
    x = jnp.ones(2, jnp.bfloat16)
    value_and_grad = mx.value_and_grad_from_state(lambda x: jnp.sum(x**2))
    value, grad = value_and_grad(x, state=mx.ScaleByZoomLinesearch(2).init(x))
    assert (value.dtype, grad.dtype, float(value)) == (jnp.float32, jnp.bfloat16, 2.0)


@pytest.mark.parametrize("store_grad", [True, False])
def test_all_tries_are_made(store_grad: bool):
    """One step, and as many shorter ones as are allowed; the gradient is that at the last."""
    rising = prescribed(lambda x: x * x, lambda x: jnp.where(x == 0, -1.0, 2 * x))
    search = mx.ScaleByBacktrackingLinesearch(3, decrease_factor=0.5, store_grad=store_grad)
    state = searched(search, rising)
    assert (state.info.num_linesearch_steps, state.learning_rate) == (4, 0.125)
    assert state.grad is None if not store_grad else state.grad == 0.25


def test_pairs_of_the_smallest_product_are_kept():
    """Their product is the smallest normal number, whose reciprocal is finite."""
    lbfgs = mx.ScaleByLBFGS(2)
    state = lbfgs.init(START)
    for factor in (1.0, 2.0):
        w = jnp.asarray(factor * 2.0**-63)
        _, state = lbfgs.update(w, state, w)
    assert state.weights_memory[0] == 2.0**126
