"""Containers for parameters and gradients in low precision."""

import modulax as mx

from ._instance import Instance

TRANSFORMS = (
    Instance(
        "MasterWeights",
        lambda: mx.MasterWeights(mx.AdamW(0.1)),
        exemptions={"a_field_that_is_a_dtype_is_one_of_the_state": "the masters are at least float32"},
    ),
    Instance("StochasticRounding", lambda: mx.StochasticRounding(mx.AdamW(0.1))),
    Instance("LossScaling", lambda: mx.LossScaling(mx.SGD(0.1, 0.9), 8.0, growth_interval=2)),
)
