r"""Helpers shared by D-Adaptation (`dadapt.py`) and Prodigy (`prodigy.py`), which estimate their own step size.

Both rules keep an estimate $d_t$ of the distance from the initial parameters to the solution, the field `estim_lr` of
their states, and step by $\eta_t d_t$. The estimate needs inner products over all parameters, so it is made in their
`survey` and enters the state by `share`; the equations on one array follow in `update_leaf`. The optimizers decouple
their weight decay, multiplied by the same $\eta_t d_t$. A chain can't pass that number from one part to the next, so
`StepWithDecay` (`step_with_decay.py`) computes it again, by `estimated_rate` from the state before the step, and runs
rule, weight decay and sign as one run.
"""

from typing import Any

from jaxtyping import Array

from .._support.arithmetic import at_least_float32, bias, default_float, safe_sqrt, zeros_in


def wide_zeros(p: Array) -> Array:
    """Zeros in at least float32, for sums of terms that are tiny compared with the parameter."""
    return zeros_in(p, at_least_float32(p.dtype))


def estimated_rate(rule: Any, state: Any) -> Array:
    r"""The step size $\eta_t d_t$ of the next step, with Adam's bias corrections for `follow="optax"`."""
    rate = rule.learning_rate * state.estim_lr
    if rule.follow != "optax":
        return rate
    t = state.count.astype(default_float()) + 1
    return rate * (safe_sqrt(bias(rule.b2, t)) / bias(rule.b1, t))
