"""Containers that gate, watch and reshape, and the rules that belong to them."""

import optax

import modulax as mx

from ._instance import Difference, Instance
from ._masks import two_of_three

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
)

DIFFERENCES = (
    Difference(
        "`ApplyIfFinite` after `max_consecutive_errors`",
        "takes one update that is not finite, and begins to count anew",
        "takes every further one, until there is a finite update",
        "so many in a row are ignored, and not the first ones of a row alone",
        "optax PR 1746",
        "test_gating.py::test_after_giving_up_it_counts_anew",
    ),
)
