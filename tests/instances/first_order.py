"""Optimizers with another momentum than Adam, or another weight decay."""

import modulax as mx
from modulax import schedules

from ..differences import Difference
from ._instance import Instance
from ._masks import KERNELS, decaying

TRANSFORMS = (
    # --- LaProp
    Instance("ScaleByLaProp", mx.ScaleByLaProp),
    Instance("LaProp", lambda: mx.LaProp(0.05, weight_decay=0.01)),
    Instance(
        "LaProp-options",
        lambda: mx.LaProp(0.05, 0.8, 0.95, 1e-6, weight_decay=0.01, mask=KERNELS, centered=True, amsgrad=True),
    ),
    Instance(
        "LaProp-schedules",
        lambda: mx.LaProp(decaying, schedules.Linear(0.8, 0.95, 10), eps=1e-6, weight_decay=decaying),
    ),
)
DIFFERENCES: tuple[Difference, ...] = ()
