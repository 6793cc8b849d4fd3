"""Containers that gate, watch and reshape, and the rules that belong to them."""

from typing import Any

import optax

import modulax as mx
from modulax.tree import norm

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
