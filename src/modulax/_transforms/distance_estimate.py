"""What Prodigy and D-Adaptation share: an estimate of the distance to the solution, and the step size from it."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from .._support.arithmetic import at_least_float32, bias, default_float, safe_sqrt, zeros_in


def wide_zeros(p: Array) -> Array:
    """Zeros in at least float32, for sums of terms that are tiny beside the parameter."""
    return zeros_in(p, at_least_float32(p.dtype))


def first_estimate(estim_lr0: Any) -> dict[str, Array]:
    """The numbers in the state before the first step."""
    return {
        "estim_lr": jnp.array(estim_lr0, default_float()),
        "numerator_weighted": jnp.zeros((), default_float()),
    }


def estimated_rate(rule: Any, state: Any) -> Array:
    """The step size of the step that comes next; with Adam's bias corrections, where optax is followed."""
    rate = rule.learning_rate * state.estim_lr
    if rule.follow == "paper":
        return rate
    t = state.count.astype(default_float()) + 1
    return rate * (safe_sqrt(bias(rule.b2, t)) / bias(rule.b1, t))
