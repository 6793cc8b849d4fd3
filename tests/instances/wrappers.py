"""Containers that gate, watch and reshape, and the rules that belong to them."""

from typing import Any

import optax

import modulax as mx
from modulax.tree import norm

from ..differences import Difference
from ._instance import Instance
from ._masks import is_long, loss, ratio, two_of_three


def begun(monitor: Any) -> Any:
    """Optax's monitor with a measurement in its first state, so that `scan` takes it."""
    return monitor._replace(init=lambda params: monitor.update(params, monitor.init(params), params)[1])


TRANSFORMS = (
    # --- gating
    Instance(
        "ApplyIfFinite",
        lambda: mx.ApplyIfFinite(mx.AdamW(0.1), 3),
        lambda: optax.apply_if_finite(optax.adamw(0.1), 3),
    ),
    Instance(
        "ConditionallyTransform",
        lambda: mx.ConditionallyTransform(mx.ScaleByAdam(), two_of_three),
        lambda: optax.conditionally_transform(optax.scale_by_adam(), two_of_three),
    ),
    Instance(
        "ConditionallyMask",
        lambda: mx.ConditionallyMask(mx.SGD(0.1, 0.9), two_of_three, forward_extra_args=True),
        lambda: optax.conditionally_mask(optax.sgd(0.1, 0.9), two_of_three, forward_extra_args=True),
    ),
    # --- accumulating
    Instance("ApplyEvery", lambda: mx.ApplyEvery(3), lambda: optax.apply_every(3)),
    # --- reshaping
    Instance(
        "SplitRealAndImaginary",
        lambda: mx.SplitRealAndImaginary(mx.Adam(0.1)),
        lambda: optax.contrib.split_real_and_imaginary(optax.adam(0.1)),
    ),
    Instance("Flatten", lambda: mx.Flatten(mx.AdamW(0.1)), lambda: optax.flatten(optax.adamw(0.1))),
    # --- watching
    Instance("Snapshot", lambda: mx.Snapshot("norm", norm), lambda: optax.snapshot("norm", norm)),
    Instance(
        "Monitor",
        lambda: mx.Monitor({"norm": norm, "often": mx.MeasureWithEma(is_long, 0.9), "ratio": mx.Stateless(ratio)}),
        lambda: begun(optax.monitor({"norm": norm})),
    ),
    Instance(
        "ReduceOnPlateau",
        lambda: mx.ReduceOnPlateau(0.5, 2, 0.01, cooldown=1, accumulation_size=2, min_scale=0.05),
        lambda: optax.contrib.reduce_on_plateau(0.5, 2, 0.01, cooldown=1, accumulation_size=2, min_scale=0.05),
        extra=loss,
    ),
)

DIFFERENCES = (
    Difference(
        "`Flatten` of several dtypes",
        "one vector for each dtype; every update leaves in its own",
        "one vector in the dtype that holds them all, in which the updates leave",
        "a bfloat16 parameter is not moved by a float32 update because a float32 one lies beside it",
        "test_reshaping.py::test_every_dtype_has_a_vector_of_its_own",
        "follows from the definition",
    ),
    Difference(
        "`ApplyIfFinite` after `max_consecutive_errors`",
        "takes one update that is not finite, and begins to count anew",
        "takes every further one, until there is a finite update",
        "so many in a row are ignored, and not the first ones of a row alone",
        "test_gating.py::test_after_giving_up_it_counts_anew",
        "https://github.com/google-deepmind/optax/pull/1746",
    ),
    Difference(
        "`Monitor` and `Snapshot` before the first step",
        "zeros where the measurements will be",
        "no measurements in a monitor, so that `scan` refuses its state; a snapshot has measured the parameters",
        "a state keeps its structure, and nothing was measured yet",
        "test_monitoring.py::test_before_the_first_step",
        "follows from the definition",
    ),
    Difference(
        "`ReduceOnPlateau` with negative values",
        "an improvement is relative to the absolute value of the best",
        "relative to the best with its sign: a negative value that stays as it is, or rises, is an improvement",
        "a plateau is one below zero too",
        "test_plateau.py::test_a_plateau_below_zero",
        "https://github.com/google-deepmind/optax/pull/1767",
    ),
    Difference(
        "`ReduceOnPlateau` with an infinite value",
        "a value that is not finite is no improvement",
        "minus infinity stays the best for ever",
        "one bad value shall not keep the learning rate falling",
        "test_plateau.py::test_what_is_not_finite_is_never_the_best",
        "follows from the definition",
    ),
)
