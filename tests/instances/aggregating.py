"""Aggregators of the examples' updates, and what is made of them."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from optax.experimental import aggregating

import modulax as mx
from modulax import aggregate
from modulax.numerics import abs_sq, at_least_float32

from ._instance import Instance, twins


def no_state(params: Any) -> mx.EmptyState:
    del params
    return mx.EmptyState()


def middle(updates: Any, state: Any, params: Any = None, **extra: Any) -> Any:
    """The updates in the middle between the least and the largest."""
    del params, extra
    return jax.tree.map(lambda g: (g[0] + g[1]) / jnp.asarray(2, g.dtype), updates), state


def halved(updates: Any, params: Any) -> Any:
    del params
    return jax.tree.map(lambda g: g / jnp.asarray(2, g.dtype), updates)


def statistics(params: Any, updates: Any) -> Any:
    """The input of `TrackPerElementMeanAndVarianceWithEma`: sums of squares of five examples."""
    del updates
    squares = jax.tree.map(lambda p: abs_sq(jnp.asarray(p).astype(at_least_float32(p.dtype))), params)
    return {"sum_sq_diff_grads": squares, "sample_size": jnp.asarray(5)}


TRANSFORMS = (
    Instance(
        "AveragePerElementUpdates",
        aggregate.AveragePerElementUpdates,
        aggregating.average_per_element_updates,
        examples=3,
    ),
    twins("AccumulateAvgUpdates", aggregate.AccumulateAvgUpdates, aggregating.accumulate_avg_updates, 3),
    twins("AccumulateAvgUpdates-single", aggregate.AccumulateAvgUpdates, aggregating.accumulate_avg_updates, 1),
    Instance(
        "AverageIncrementallyUpdates",
        lambda: aggregate.AverageIncrementallyUpdates(0, 2),
        lambda: aggregating.average_incrementally_updates(0, 2),
        examples=3,
    ),
    Instance(
        "GetPerElementMeanAndSumSqDiffGrads",
        lambda: aggregate.GetPerElementMeanAndSumSqDiffGrads(accumulation_steps=2),
        examples=3,
    ),
    Instance(
        "TrackPerElementMeanAndVarianceWithEma",
        aggregate.TrackPerElementMeanAndVarianceWithEma,
        aggregating.track_per_element_mean_and_variance_with_ema,
        extra=statistics,
    ),
    Instance(
        "Aggregator",
        lambda: aggregate.Aggregator(no_state, middle),
        lambda: aggregating.Aggregator(optax.init_empty_state, middle),
        examples=3,
    ),
    Instance(
        "Process",
        lambda: aggregate.Process(mx.Stateless(halved), aggregate.AverageIncrementallyUpdates(0, 3), mx.Adam(0.1)),
        lambda: aggregating.process(
            optax.stateless(halved), aggregating.average_incrementally_updates(0, 3), optax.adam(0.1)
        ),
        examples=3,
    ),
    Instance(
        "AddMeanVarianceToOpt",
        lambda: aggregate.AddMeanVarianceToOpt(mx.Adam(0.1)),
        lambda: aggregating.add_mean_variance_to_opt(optax.adam(0.1)),
        examples=3,
    ),
    Instance(
        "AddMeanVarianceToOpt-accumulated",
        lambda: aggregate.AddMeanVarianceToOpt(mx.SGD(0.1, 0.9), 0.5, accumulation_steps=3),
        lambda: aggregating.add_mean_variance_to_opt(optax.sgd(0.1, 0.9), 0.5, accumulation_steps=3),
        examples=3,
    ),
)
