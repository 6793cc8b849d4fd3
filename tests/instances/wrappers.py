"""Containers that gate, watch and reshape, and the rules that belong to them."""

from typing import Any

import optax

import modulax as mx
from modulax.tree import norm

from ..differences import Difference
from ._instance import Instance, twins
from ._masks import is_long, loss, ratio, two_of_three


def begun(monitor: Any) -> Any:
    """Optax's monitor with a measurement in its first state, so that `scan` takes it."""
    return monitor._replace(init=lambda params: monitor.update(params, monitor.init(params), params)[1])


STEPS = {"gradients_are_finite_and_right": "codes are integers: no derivative passes through them"}

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
    Instance("SkipSpikes", lambda: mx.SkipSpikes(mx.AdamW(0.1), 3, 0.5)),
    Instance("SkipSpikes-both", lambda: mx.SkipSpikes(mx.SGD(0.1, 0.9), 4, 0.1, "both", 2), extra=loss),
    # --- accumulating
    twins("ApplyEvery", mx.ApplyEvery, optax.apply_every, 3),
    # --- reshaping
    Instance(
        "SplitRealAndImaginary",
        lambda: mx.SplitRealAndImaginary(mx.Adam(0.1)),
        lambda: optax.contrib.split_real_and_imaginary(optax.adam(0.1)),
    ),
    Instance("Flatten", lambda: mx.Flatten(mx.AdamW(0.1)), lambda: optax.flatten(optax.adamw(0.1))),
    Instance("Stacked", lambda: mx.Stacked(mx.AdamW(0.1)), lambda: optax.adamw(0.1)),
    # --- in the memory of the host
    Instance("Offload", lambda: mx.Offload(mx.AdamW(0.1)), lambda: optax.adamw(0.1)),
    # --- fewer bits
    Instance("LowBit", lambda: mx.LowBit(mx.AdamW(0.1), block=16, min_size=0), exemptions=STEPS),
    Instance("LowBit(bits=4)", lambda: mx.LowBit(mx.Lion(0.1), 4, block=16, min_size=0)),
    # --- watching
    twins("Snapshot", mx.Snapshot, optax.snapshot, "norm", norm),
    Instance(
        "Monitor",
        lambda: mx.Monitor({"norm": norm, "often": mx.MeasureWithEma(is_long, 0.9), "ratio": mx.Stateless(ratio)}),
        lambda: begun(optax.monitor({"norm": norm})),
    ),
    Instance(
        "Monitor(FirstNotFinite)",
        lambda: mx.Monitor({"bad": mx.FirstNotFinite()}),
        exemptions={"the_state_says_what_is_like_the_parameters": "a number about an array is not like the array"},
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
        "second moments `nu` in float32",
        "the decay rate is rounded to float32 first, in `1 - b2` and in the bias correction alike: `nu` is up to 2e-4 "
        "of its value away, and the first update of AdamW is exact to 1e-6",
        "`1 - b2` is computed in float64, and the bias correction in float32: the first update is up to 1e-4 away",
        "the rounding of a decay rate cancels where both have it; a number that is swept is a float32 array anyhow",
        "test_conformance.py::test_the_rounding_of_a_decay_rate_cancels",
        "definition of the bias correction",
    ),
    Difference(
        "`mu_dtype=bfloat16`, for example in AdamW, alone or in `MultiSteps`",
        "the first moment is stored in bfloat16, and multiplied by its decay rate in float32",
        "the product with the decay rate is rounded to bfloat16 too: parameters are a few thousandths apart after 40 "
        "steps, and more than twice as far from float32",
        "arithmetic is done in at least float32",
        "test_conformance.py::test_moments_stored_in_bfloat16_are_updated_in_float32",
        "design, section on numbers",
    ),
    Difference(
        "`Flatten` of several dtypes",
        "one vector per dtype; every update keeps its dtype",
        "one vector in the common dtype, which all updates get",
        "a float32 parameter must not change the dtype of a bfloat16 update",
        "test_reshaping.py::test_every_dtype_has_a_vector_of_its_own",
        "follows from the definition",
    ),
    Difference(
        "`ApplyIfFinite` after `max_consecutive_errors`",
        "lets one non-finite update through and resets the count",
        "lets every further one through, until an update is finite",
        "the limit applies to every run of errors, not only to its beginning",
        "test_gating.py::test_after_giving_up_it_counts_anew",
        "https://github.com/google-deepmind/optax/pull/1746",
    ),
    Difference(
        "`Monitor` and `Snapshot` before the first step",
        "zeros with the structure of the measurements",
        "a monitor has no measurements, so that `scan` rejects its state; a snapshot has measured the parameters",
        "states must keep their structure, and nothing has been measured yet",
        "test_monitoring.py::test_before_the_first_step",
        "follows from the definition",
    ),
    Difference(
        "`ReduceOnPlateau` with negative values",
        "improvements are relative to the absolute value of the best",
        "relative to the signed best: a negative value that stays constant, or rises, counts as an improvement",
        "plateaus exist below zero too",
        "test_plateau.py::test_a_plateau_below_zero",
        "https://github.com/google-deepmind/optax/pull/1767",
    ),
    Difference(
        "`ReduceOnPlateau` with an infinite value",
        "a non-finite value does not count as an improvement",
        "minus infinity stays the best value",
        "one bad value must not keep reducing the learning rate",
        "test_plateau.py::test_what_is_not_finite_is_never_the_best",
        "follows from the definition",
    ),
)
