"""Line searches and L-BFGS."""

from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import optax

import modulax as mx
from modulax.numerics import abs_sq, at_least_float32

from ..differences import Difference
from ._instance import Instance


def valley(params: Any) -> Any:
    """A convex loss whose curvature depends on the point, and differs from leaf to leaf."""
    leaves = [jnp.asarray(p, at_least_float32(p.dtype)) for p in jtu.tree_leaves(params)]
    rounds = [i * jnp.sum(jnp.sqrt(1 + abs_sq(p))).astype(float) for i, p in enumerate(leaves, 1)]
    total = sum((jnp.sum(p.real).astype(float) for p in leaves), jnp.zeros((), float))
    return sum(rounds, 0.05 * total**2)


@jax.jit  # one program, which is started and not waited for
def _computed(params: Any) -> Any:
    value, grad = jax.value_and_grad(valley)(params)
    return value, jtu.tree_map(jnp.conj, grad)


def uphill(params: Any) -> Any:
    return _computed(params)[1]


def downhill(params: Any) -> Any:
    return jtu.tree_map(lambda g: -g, uphill(params))


def searched(params: Any, updates: Any) -> Any:
    """The extra arguments of a line search: the loss, its value and its gradient."""
    del updates
    value, grad = _computed(params)
    return {"value": value, "grad": grad, "value_fn": valley}


TRANSFORMS = (
    Instance(
        "ScaleByZoomLinesearch",
        lambda: mx.ScaleByZoomLinesearch(4, max_learning_rate=3.0),
        lambda: optax.scale_by_zoom_linesearch(4, max_learning_rate=3.0),
        extra=searched,
        updates=downhill,
    ),
    Instance(
        "ScaleByBacktrackingLinesearch",
        lambda: mx.ScaleByBacktrackingLinesearch(4),
        lambda: optax.scale_by_backtracking_linesearch(4),
        extra=searched,
        updates=downhill,
    ),
    Instance(
        "ScaleByBacktrackingLinesearch-store_grad",
        lambda: mx.ScaleByBacktrackingLinesearch(6, 0.3, 0.6, 1.2, 2.0, 1e-3, 1e-4, True),
        lambda: optax.scale_by_backtracking_linesearch(6, 0.3, 0.6, 1.2, 2.0, 1e-3, 1e-4, True),
        extra=searched,
        updates=downhill,
        rtol=1e-5,
    ),
    Instance("ScaleByLBFGS", lambda: mx.ScaleByLBFGS(3), lambda: optax.scale_by_lbfgs(3), updates=uphill),
    Instance(
        "LBFGS",
        lambda: mx.LBFGS(memory_size=3, linesearch=mx.ScaleByZoomLinesearch(4, initial_guess_strategy="one")),
        lambda: optax.lbfgs(memory_size=3, linesearch=optax.scale_by_zoom_linesearch(4, initial_guess_strategy="one")),
        extra=searched,
        updates=uphill,
    ),
    Instance(
        "LBFGS-rate",
        lambda: mx.LBFGS(0.1, 3, False, None),
        lambda: optax.lbfgs(0.1, 3, False, None),
        updates=uphill,
    ),
)

_SEARCH, _LBFGS = "test_linesearch.py", "test_lbfgs.py"
_WRIGHT = "https://doi.org/10.1007/978-0-387-40065-5"
DIFFERENCES = (
    Difference(
        "ScaleByLBFGS, pairs of parameters and gradients without positive curvature",
        "skipped, without dropping an older pair; `count` counts it as a step, and `skipped` as a pair",
        "kept, unless their product is exactly zero; the direction may ascend or be infinite",
        "the estimate of the inverse Hessian stays positive definite",
        f"{_LBFGS}::test_a_pair_of_negative_curvature_is_left_out",
        "https://github.com/google-deepmind/optax/issues/1203",
    ),
    Difference(
        "ScaleByLBFGS, after a step that did not move",
        "the direction is computed as if the step had not happened",
        "the direction may be zero",
        "a failed step must not block progress forever",
        f"{_LBFGS}::test_after_no_step_there_is_still_a_direction",
        _WRIGHT,
    ),
    Difference(
        "line searches, after a step size of zero",
        "the next search starts with 1, or with the maximal step size",
        "the next search starts with the last step size, and stays at zero",
        "a batch without a finite loss must not block progress forever",
        f"{_SEARCH}::test_a_step_of_zero_is_no_end_for_the_next_search",
        _WRIGHT,
    ),
    Difference(
        "ScaleByZoomLinesearch, if no step decreases the loss enough",
        "the trial step with the smallest loss",
        "the last trial step",
        "never worse, and often still progress",
        f"{_SEARCH}::test_of_bad_steps_the_least_bad_is_taken",
        _WRIGHT,
    ),
    Difference(
        "ScaleByBacktrackingLinesearch, `grad` of complex parameters",
        "the conjugate of the result of `jax.grad`, like the updates",
        "the result of `jax.grad`; optax's zoom search takes the conjugate",
        "both searches share one convention",
        f"{_SEARCH}::test_optax_wants_other_gradients_of_complex_parameters_for_its_other_search",
        "https://github.com/google-deepmind/optax",
    ),
    Difference(
        "ScaleByBacktrackingLinesearch, `rtol` where the loss is negative",
        "a fraction of the loss's absolute value",
        "a fraction of the signed loss, which makes the condition stricter",
        "a tolerance must relax a condition",
        f"{_SEARCH}::test_a_relative_tolerance_is_one_for_negative_losses_too",
        "https://github.com/google-deepmind/optax",
    ),
    Difference(
        "line searches, extra arguments that the loss does not accept",
        "ignored",
        "a TypeError",
        "another part of the chain may need them",
        f"{_SEARCH}::test_extra_arguments_of_others_are_no_mistake",
        "https://github.com/google-deepmind/optax",
    ),
)
