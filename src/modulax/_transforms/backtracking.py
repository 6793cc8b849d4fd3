"""Backtracking line search (sufficient decrease), and `value_and_grad` that reuses what a line search has computed.

`ScaleByBacktrackingLinesearch` shortens a step until the Armijo condition holds; `line.py` explains what it shares with
`zoom.py`. Both line searches leave the loss, and on request the gradient, at the new parameters in their state.
`value_and_grad_from_state` finds that state inside the state of the optimizer and returns the stored pair in place of
an evaluation.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, PyTree

from .._protocol.fields import Number, number
from .._support.arithmetic import default_float, loss_of
from .._support.checks import DECAY, NON_NEGATIVE, POSITIVE
from .._support.module import AbstractState, like_params, shared
from .._support.types import Count, Params, State, Updates
from .._support.varying import cond
from .line import AbstractLinesearch, Line, Scalar, Trial, bounded_loop, miss, report
from .zoom import ScaleByZoomLinesearchState


class BacktrackingLinesearchInfo(AbstractState):
    """Result of a backtracking line search: number of evaluations, and by how much the step misses the condition."""

    optax_fields = ("num_linesearch_steps", "decrease_error")

    num_linesearch_steps: Count
    decrease_error: Scalar


class ScaleByBacktrackingLinesearchState(AbstractState):
    """State of `ScaleByBacktrackingLinesearch`: the last step size, and the loss at the new parameters.

    `grad` is the gradient there with `store_grad`, else None.
    """

    optax_fields = ("learning_rate", "value", "grad", "info")

    learning_rate: Scalar = shared(metric=True)
    value: Scalar = shared()
    grad: PyTree = like_params(exact=True)
    info: BacktrackingLinesearchInfo = shared()


class ScaleByBacktrackingLinesearch(AbstractLinesearch):
    r"""Backtracking line search: shortens the step until the loss decreases sufficiently (Armijo condition).

    $$
    f(w + \eta u) \le f(w) + c\, \eta\, \langle u, \nabla f(w) \rangle + \delta |f(w)| + \epsilon
    $$

    The search starts from `increase_factor` times the previous step size. The updates are the direction of search and
    must point downhill, as in

        Chain(SGD(1.0), ScaleByBacktrackingLinesearch(15))

    `update` needs `value`, the loss at the parameters, `grad`, its gradient there, and `value_fn`, the loss as a
    function of the parameters. See `ScaleByZoomLinesearch` for the arguments passed to `value_fn`, and for complex
    parameters.

    If no step satisfies the condition, the shortest one is taken, or none if the loss is not finite there. After a
    search that took no step, the next one starts from the longest step. `state.info` reports what happened.

    Args:
        max_backtracking_steps: largest number of times the step is shortened; each one costs an evaluation of the loss.
        slope_rtol: $c$, the required decrease relative to the slope.
        decrease_factor: factor by which the step size is reduced.
        increase_factor: factor by which the previous step size is increased for the first trial: 1 to start from the
            previous step size, infinity to start from the longest.
        max_learning_rate: the largest step size.
        atol: $\epsilon$, absolute tolerance of the condition.
        rtol: $\delta$, tolerance of the condition relative to the loss.
        store_grad: whether to compute the gradient at the new parameters and keep it in the state, for
            `value_and_grad_from_state`.
        verbose: whether to print one line per search.

    References:
        Nocedal and Wright, [Numerical Optimization](https://doi.org/10.1007/978-0-387-40065-5), 2006, algorithm 3.1;
        Vaswani et al., [Painless Stochastic Gradient: Interpolation, Line-Search, and Convergence
        Rates](https://arxiv.org/abs/1905.09997), 2019.
    """

    max_backtracking_steps: int = eqx.field(static=True, metadata={"least": 1})
    slope_rtol: Number = number(1e-4, needs=NON_NEGATIVE)
    decrease_factor: Number = number(0.8, needs=DECAY)
    increase_factor: Number = number(1.5, needs=POSITIVE)
    max_learning_rate: Number = number(1.0, needs=POSITIVE)
    atol: Number = number(0.0, needs=NON_NEGATIVE)
    rtol: Number = number(0.0, needs=NON_NEGATIVE)
    store_grad: bool = eqx.field(static=True, default=False)
    verbose: bool = eqx.field(static=True, default=False)

    def init(self, params: Params) -> ScaleByBacktrackingLinesearchState:
        """A step size of 1, and an infinite loss, which means that none is stored."""
        dtype = default_float()
        info = BacktrackingLinesearchInfo(jnp.zeros((), jnp.int32), jnp.full((), jnp.inf, dtype))
        grad = jtu.tree_map(jnp.zeros_like, params) if self.store_grad else None
        return ScaleByBacktrackingLinesearchState(jnp.ones((), dtype), jnp.full((), jnp.inf, dtype), grad, info)

    def _step_along(
        self, line: Line, state: ScaleByBacktrackingLinesearchState, value: Scalar, slope: Scalar, here: Updates
    ) -> tuple[Scalar, ScaleByBacktrackingLinesearchState]:
        """Nocedal and Wright, algorithm 3.1."""
        last = state.learning_rate
        # A search that failed has stored a step of zero, and no multiple of it leads away from there.
        first = jnp.where(last > 0, self.increase_factor * jnp.where(last > 0, last, 1), jnp.inf)
        tried, trial = self._search(line, value, slope, here, jnp.minimum(first, self.max_learning_rate))
        fails = ~jnp.isfinite(trial.value)
        step = jnp.where(fails, 0, trial.step)
        if self.verbose:
            report(self, tried, value, slope, trial._replace(step=step))
        info = BacktrackingLinesearchInfo(tried, trial.decrease_error)
        grad = jtu.tree_map(lambda a, b: jnp.where(fails, a, b), here, trial.grad) if self.store_grad else None
        value = jnp.where(fails, value, trial.value)
        return step, ScaleByBacktrackingLinesearchState(step, value, grad, info)

    def _search(self, line: Line, value: Scalar, slope: Scalar, here: Updates, first: Scalar) -> tuple[Count, Trial]:
        """The number of evaluations, and the last of them."""

        def error(step: Scalar, new_value: Scalar) -> Scalar:
            excess = new_value - value - self.rtol * jnp.abs(value) - self.slope_rtol * step * slope
            return miss(excess, jnp.isfinite(new_value))

        def body(carry: tuple[Count, Trial]) -> tuple[Count, Trial]:
            tried, trial = carry
            # The first trial is a round of the loop as well, so that the loss is compiled once.
            step = jnp.where(tried == 0, trial.step, self.decrease_factor * trial.step)
            if not self.store_grad:
                new_value = line.objective(line.at(step))
                return tried + 1, Trial(step, new_value, None, error(step, new_value))
            new_value, pullback = jax.vjp(line.objective, line.at(step))
            decrease_error = error(step, new_value)
            # The backward pass costs more than the loss, and only the gradient of the final trial is kept.
            is_last = (decrease_error <= self.atol) | (tried == self.max_backtracking_steps)
            new_grad = cond(is_last, lambda: pullback(jnp.ones_like(new_value))[0], lambda: trial.grad)
            return tried + 1, Trial(step, new_value, new_grad, decrease_error)

        def proceeds(carry: tuple[Count, Trial]) -> Array:
            tried, trial = carry
            return (tried == 0) | (trial.decrease_error > self.atol)

        infinite = jnp.full_like(first, jnp.inf)
        start = Trial(first, infinite, here if self.store_grad else None, infinite)
        return bounded_loop(proceeds, body, (jnp.zeros((), jnp.int32), start), self.max_backtracking_steps + 1)


_STATES = (ScaleByZoomLinesearchState, ScaleByBacktrackingLinesearchState)


def value_and_grad_from_state(value_fn: Callable[..., Array]) -> Callable[..., tuple[Array, Updates]]:
    """`jax.value_and_grad` that reuses loss and gradient of the last line search, for deterministic losses.

        value_and_grad = value_and_grad_from_state(loss)
        value, grads = value_and_grad(params, state=state)
        params, state = optimizer.step(grads, state, params, value=value, grad=grads, value_fn=loss)

    The line search may be anywhere in the state. Before the first step, and after a search that ended where the loss is
    not finite, both are computed. The stored pair is right only if the parameters are those the line search arrived at:
    nothing may change the updates after it, and the loss must be the same function as before.

    Args:
        value_fn: the loss, a function of the parameters and, optionally, further arguments.

    Returns:
        A function of the parameters, the further arguments of `value_fn`, and the keyword `state`. It returns the loss,
        in JAX's default float dtype, and the gradient.

    Raises:
        ValueError: by the returned function, if the state contains no line search, more than one, one that doesn't
            store the gradient, or one that has some of the parameters only, or another form of them.
    """

    def value_and_grad(params: Params, *args: Any, state: State, **kwargs: Any) -> tuple[Array, Updates]:
        search = _search_in(state)

        def compute() -> tuple[Array, Updates]:
            value, grad = eqx.filter_value_and_grad(value_fn)(params, *args, **kwargs)
            return loss_of(value), grad

        stored = _as_computed((search.value, search.grad), jax.eval_shape(compute))
        # `cond` and not `where`, because a stored gradient saves the computation of a new one.
        return cond(~jnp.isfinite(stored[0]), compute, lambda: stored)

    return value_and_grad


def _as_computed(stored: PyTree, computed: PyTree) -> PyTree:
    """The stored loss and gradient on the device; an error if the gradient is not one of these parameters."""
    kinds = [[(x.shape, x.dtype) for x in jtu.tree_leaves(tree)] for tree in (stored, computed)]
    if jtu.tree_structure(stored) != jtu.tree_structure(computed) or kinds[0] != kinds[1]:
        raise ValueError(
            "`value_and_grad_from_state`: the line search is inside a container that gives it some of the parameters, "
            "or another form of them, such as a mask, `Flatten` or `MasterWeights`, and stores a gradient of these. "
            "Call `jax.value_and_grad`."
        )
    # `Offload` keeps a state in the memory of the host.
    return jtu.tree_map(lambda x: jax.device_put(x, jax.memory.Space.Device), stored)


def _search_in(state: State) -> Any:
    """The state of the only line search in a state."""
    nodes = jtu.tree_leaves(state, is_leaf=lambda x: isinstance(x, _STATES))
    searches = [node for node in nodes if isinstance(node, _STATES)]
    if len(searches) != 1:
        raise ValueError(
            f"`value_and_grad_from_state` needs a state that contains exactly one line search, found {len(searches)}. "
            "`LBFGS` and `Chain(SGD(1.0), ScaleByZoomLinesearch(20))` have one; for other optimizers call "
            "`jax.value_and_grad`."
        )
    if searches[0].grad is None:
        raise ValueError(
            "`value_and_grad_from_state`: the line search doesn't store the gradient. Use "
            "`ScaleByBacktrackingLinesearch(..., store_grad=True)`."
        )
    return searches[0]
