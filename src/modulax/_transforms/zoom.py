"""Zoom line search for the strong Wolfe conditions; `line.py` explains what it shares with `backtracking.py`."""

from typing import Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Bool, PyTree

from .._protocol.fields import Number, OptionalNumber, choice, number
from .._support.arithmetic import default_float, safe_sqrt
from .._support.checks import NEVER_NEGATIVE, NON_NEGATIVE, POSITIVE
from .._support.module import AbstractState, like_params, shared
from .._support.types import Count, Params, Updates
from ..tree._math import choose
from .line import AbstractLinesearch, Line, Scalar, Trial, bounded_loop, miss, report


class ZoomLinesearchInfo(AbstractState):
    """Result of a zoom line search: number of evaluations, and by how much the step misses each condition.

    Errors of zero mean success. With a positive `decrease_error` the loss doesn't decrease enough. With a positive
    `curvature_error` alone it does, but the step isn't near enough to a minimum along the line, usually because it is
    too short.
    """

    optax_fields = ("num_linesearch_steps", "decrease_error", "curvature_error")

    num_linesearch_steps: Count
    decrease_error: Scalar
    curvature_error: Scalar


class ScaleByZoomLinesearchState(AbstractState):
    """State of `ScaleByZoomLinesearch`: the last step size, and loss and gradient at the new parameters."""

    optax_fields = ("learning_rate", "value", "grad", "info")

    learning_rate: Scalar = shared(metric=True)
    value: Scalar = shared()
    grad: PyTree = like_params(exact=True)
    info: ZoomLinesearchInfo = shared()


class _Point(NamedTuple):
    """A step size, with the loss and its slope there."""

    step: Scalar
    value: Scalar
    slope: Scalar


class _Search(NamedTuple):
    """Progress of a search: `low` and `high` enclose a solution once `bracketed`; before, `low` is the last trial."""

    tried: Count
    bracketed: Bool[Array, ""]
    stopped: Bool[Array, ""]
    low: _Point
    high: _Point
    other: _Point
    best: Trial


# Messages of `verbose=True` for a search that failed.
NOT_A_DESCENT_DIRECTION = "The updates are not a descent direction"
NO_STEP_SIZE = "No step size decreased the loss enough"
CONDITION_ON_SLOPE_MISSED = "The step size decreases the loss enough, and the slope there is too large"
NO_INTERVAL = "No interval with such a step size was found; a larger `max_learning_rate` or more steps may help"
INTERVAL_TOO_SHORT = "The interval became shorter than `stepsize_precision`"


class ScaleByZoomLinesearch(AbstractLinesearch):
    r"""Line search for the strong Wolfe conditions: a step size with sufficient decrease and a small slope.

    Along the line $\phi(\eta) = f(w + \eta u)$, it searches for

    $$
    \phi(\eta) \le \phi(0) + c_1 \eta\, \phi'(0) + \epsilon, \qquad |\phi'(\eta)| \le c_2 |\phi'(0)| + \epsilon
    $$

    The step size is increased until an interval contains a solution; the interval is then narrowed by cubic and
    quadratic interpolation. Near a minimum, where differences of the loss are rounding errors, the first condition may
    be replaced by one on slopes, $\phi'(\eta) \le (2 c_1 - 1)\, \phi'(0) + \epsilon$, as long as
    $\phi(\eta) \le \phi(0) + c_3 |\phi(0)| + \epsilon$.

    The updates are the direction of search and must point downhill, as in

        Chain(SGD(1.0), ScaleByZoomLinesearch(20))

    `update` needs `value`, the loss at the parameters, `grad`, its gradient there, and `value_fn`, the loss as a
    function of the parameters. Extra arguments of `update` that the signature of `value_fn` names, such as `batch`, are
    passed to it. Outside of your own `jit`, a plain function is traced and compiled at every call, because it may read
    data that changes, such as `self.batch`. A function under `jax.jit`, or a `jax.tree_util.Partial` that holds the
    batch, is compiled once. For a whole model, `value_fn` receives its floating-point arrays, with None in place of all
    other leaves; `eqx.combine` merges the two.

    Loss and gradient at the new parameters are kept in the state. `value_and_grad_from_state` reads them, provided that
    nothing changes the updates afterwards.

    If no step satisfies both conditions, the search takes the trial with the smallest loss, preferring those with
    sufficient decrease. It never takes a step to where the loss is not finite. `state.info` reports what happened.

    For complex parameters, both `updates` and `grad` follow the conjugate of what `jax.grad` returns.

    Args:
        max_linesearch_steps: largest number of trials; each one costs an evaluation of loss and gradient.
        max_learning_rate: the largest step size, or None for no bound.
        tol: $\epsilon$, absolute tolerance of both conditions.
        increase_factor: factor by which the step size is increased until an interval is found.
        slope_rtol: $c_1$, the required decrease relative to the slope.
        curv_rtol: $c_2$, the largest slope relative to the initial one; infinity for no condition on the slope.
        approx_dec_rtol: $c_3$, the increase relative to the loss that the condition on slopes tolerates; None to allow
            the first condition only.
        stepsize_precision: length of interval below which the search stops, once the loss decreases enough.
        initial_guess_strategy: first step size to try: the previous one, `"keep"`, or 1, `"one"`, which suits Newton's
            and quasi-Newton methods.
        verbose: whether to print one line per search, and if it fails, why.

    References:
        Nocedal and Wright, [Numerical Optimization](https://doi.org/10.1007/978-0-387-40065-5), 2006, algorithms 3.5
        and 3.6;
        Hager and Zhang, [Algorithm 851: CG_DESCENT, a conjugate gradient method with guaranteed
        descent](https://doi.org/10.1145/1132973.1132979), 2006.
    """

    max_linesearch_steps: int = eqx.field(static=True, metadata={"least": 1})
    max_learning_rate: OptionalNumber = number(None, needs=POSITIVE, optional=True)
    tol: Number = number(0.0, needs=NEVER_NEGATIVE)
    increase_factor: Number = number(2.0, needs=POSITIVE)
    slope_rtol: Number = number(1e-4, needs=NON_NEGATIVE)
    curv_rtol: Number = number(0.9, needs=NON_NEGATIVE)
    approx_dec_rtol: OptionalNumber = number(1e-6, needs=NON_NEGATIVE, optional=True)
    stepsize_precision: Number = number(1e-5, needs=NON_NEGATIVE)
    initial_guess_strategy: Literal["keep", "one"] = choice(("keep", "one"), "keep", kw_only=False)
    verbose: bool = eqx.field(static=True, default=False)

    def init(self, params: Params) -> ScaleByZoomLinesearchState:
        """A step size of 1, and an infinite loss, which means that none is stored."""
        dtype = default_float()
        info = ZoomLinesearchInfo(jnp.zeros((), jnp.int32), jnp.full((), jnp.inf, dtype), jnp.full((), jnp.inf, dtype))
        grad = jtu.tree_map(jnp.zeros_like, params)
        return ScaleByZoomLinesearchState(jnp.ones((), dtype), jnp.full((), jnp.inf, dtype), grad, info)

    def _step_along(
        self, line: Line, state: ScaleByZoomLinesearchState, value: Scalar, slope: Scalar, here: Updates
    ) -> tuple[Scalar, ScaleByZoomLinesearchState]:
        """Nocedal and Wright, algorithms 3.5 and 3.6."""
        start = _Point(jnp.zeros((), default_float()), value, slope)
        search = self._search(line, start, here, self._first_step(state))
        best = search.best
        if self.verbose:
            report(self, search.tried, value, slope, best, self._reasons(start, search))
        # A search without a finite trial ends where it started, with an infinite best value.
        value = jnp.where(best.step == 0, value, best.value)
        info = ZoomLinesearchInfo(search.tried, best.decrease_error, best.curvature_error)
        return best.step, ScaleByZoomLinesearchState(best.step, value, best.grad, info)

    def _reasons(self, start: _Point, search: _Search) -> dict[str, Array]:
        """Why a search failed: sentences, each with whether it is true."""
        decreases = search.best.decrease_error <= self.tol
        has_failed = ~decreases | (search.best.curvature_error > self.tol)
        length = jnp.abs(search.high.step - search.low.step)
        return {
            NOT_A_DESCENT_DIRECTION: start.slope >= 0,
            NO_STEP_SIZE: ~decreases,
            CONDITION_ON_SLOPE_MISSED: decreases & has_failed,
            NO_INTERVAL: has_failed & ~search.bracketed,
            INTERVAL_TOO_SHORT: has_failed & search.bracketed & (length <= self.stepsize_precision),
        }

    def _first_step(self, state: ScaleByZoomLinesearchState) -> Scalar:
        last = state.learning_rate
        if self.initial_guess_strategy == "one":
            return jnp.ones_like(last)
        # A search that failed has stored a step of zero, from which no factor leads away.
        return jnp.where(last > 0, last, 1)

    def _search(self, line: Line, start: _Point, here: Updates, first: Scalar) -> _Search:
        """One loop, so that the loss is compiled once."""
        value_and_grad = jax.value_and_grad(line.objective)
        infinite = jnp.full_like(start.step, jnp.inf)

        def body(s: _Search) -> _Search:
            longer = jnp.where(s.tried == 0, first, self.increase_factor * s.low.step)
            is_longest = jnp.zeros((), bool)
            if self.max_learning_rate is not None:
                is_longest = ~s.bracketed & (longer >= self.max_learning_rate)
                longer = jnp.minimum(longer, self.max_learning_rate)
            step = jnp.where(s.bracketed, _between(s.low, s.high, s.other), longer)
            value, grad = value_and_grad(line.at(step))
            new = _Point(step, value, line.slope(grad))
            trial = Trial(step, value, grad, *self._errors(start, new))

            not_lower = (value >= s.low.value) & (s.bracketed | (s.tried > 0))
            is_high = (trial.decrease_error > 0) | not_lower
            rises = jnp.where(s.bracketed & (s.high.step < s.low.step), -new.slope, new.slope) >= 0
            turns = rises & ~is_high
            low = choose(is_high, s.low, new)
            high = choose(is_high, new, choose(turns, s.low, s.high))
            other = choose(s.bracketed, choose(is_high | turns, s.high, s.low), low)

            is_found = jnp.maximum(trial.decrease_error, trial.curvature_error) <= self.tol
            # At the bound, a step that still decreases the loss is accepted: a longer one isn't allowed.
            is_found = is_found | (is_longest & ~(is_high | turns))
            best = choose(is_found | self._is_better(trial, s.best), trial, s.best)
            is_narrow = s.bracketed & (jnp.abs(s.high.step - s.low.step) <= self.stepsize_precision)
            stopped = is_found | (is_narrow & (best.decrease_error <= self.tol))
            return _Search(s.tried + 1, s.bracketed | is_high | turns, stopped, low, high, other, best)

        nothing = Trial(start.step, infinite, here, infinite, infinite)
        no = jnp.zeros((), bool)
        search = _Search(jnp.zeros((), jnp.int32), no, no, start, start, start, nothing)
        return bounded_loop(lambda s: ~s.stopped, body, search, self.max_linesearch_steps)

    def _errors(self, start: _Point, new: _Point) -> tuple[Scalar, Scalar]:
        """By how much a step misses each of the two conditions; infinity where the loss is not finite."""
        gain = new.value - start.value
        decrease = gain - self.slope_rtol * new.step * start.slope
        if self.approx_dec_rtol is not None:
            slope_error = new.slope - (2 * self.slope_rtol - 1) * start.slope
            approximate = jnp.maximum(slope_error, gain - self.approx_dec_rtol * jnp.abs(start.value))
            decrease = jnp.minimum(decrease, approximate)
        bound = jnp.where(start.slope == 0, 0, self.curv_rtol * jnp.abs(start.slope))
        is_fine = jnp.isfinite(new.value) & jnp.isfinite(new.slope)
        return miss(decrease, is_fine), miss(jnp.abs(new.slope) - bound, is_fine)

    def _is_better(self, trial: Trial, best: Trial) -> Bool[Array, ""]:
        """Whether a trial is preferred to the best one so far, if neither satisfies both conditions."""
        does, did = trial.decrease_error <= self.tol, best.decrease_error <= self.tol
        is_finite = jnp.isfinite(trial.decrease_error)
        return is_finite & ((does & ~did) | ((does == did) & (trial.value < best.value)))


def _between(low: _Point, high: _Point, other: _Point) -> Scalar:
    """The step between two points at which the loss is expected to be smallest.

    This is the minimum of the cubic through three losses and one slope. If that is too near an end, it is the minimum
    of the parabola through two losses and one slope, or else the midpoint.
    """
    length = high.step - low.step
    slope = low.slope * length
    rise = high.value - low.value - slope
    place = _over(other.step - low.step, length)
    bend = _over(other.value - low.value - slope * place, place * place)
    a = _over(rise - bend, 1 - place)
    b = rise - a
    # A negative discriminant means that the cubic has no minimum; `is_cubic` leaves it out.
    root = safe_sqrt(jnp.maximum(b * b - 3 * a * slope, 0))
    cubic = _over(root - b, 3 * a)
    parabola = _over(-slope, 2 * rise)
    is_parabola = (parabola > 0.1) & (parabola < 0.9)
    fraction = jnp.where(is_parabola, parabola, 0.5)
    has_third = (place != 0) & (place != 1)
    is_cubic = has_third & (b * b >= 3 * a * slope) & (cubic > 0.2) & (cubic < 0.8)
    return low.step + jnp.where(is_cubic, cubic, fraction) * length


def _over(x: Scalar, y: Scalar) -> Scalar:
    """The quotient, or zero where it isn't finite; a fraction of zero isn't a candidate between two points."""
    is_fine = (y != 0) & jnp.isfinite(x) & jnp.isfinite(y)
    return jnp.where(is_fine, jnp.where(is_fine, x, 0) / jnp.where(is_fine, y, 1), 0)
