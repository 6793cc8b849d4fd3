"""Few numbers in place of a second moment, and estimates of the curvature: CAME, Adam-mini."""

import modulax as mx
from modulax import schedules

from ._instance import Instance
from ._masks import KERNELS, decaying

TRANSFORMS = (
    # --- CAME
    Instance("ScaleByCAME", mx.ScaleByCAME),
    Instance("ScaleByCAME-numbers", lambda: mx.ScaleByCAME(0.5, 0.9, 0.95, 1e-8, 1e-4, 0.5)),
    Instance("CAME", lambda: mx.CAME(0.05)),
    Instance(
        "CAME-schedules",
        lambda: mx.CAME(decaying, decaying, b3=0.95, instability_eps=1e-6, weight_decay=decaying, mask=KERNELS),
    ),
    # --- Adam-mini
    Instance("ScaleByAdamMini", mx.ScaleByAdamMini),
    Instance("ScaleByAdamMini-heads", lambda: mx.ScaleByAdamMini(roles={"*.kernel": mx.Attention("query", heads=2)})),
    Instance("AdamMini", lambda: mx.AdamMini(0.05)),
    Instance(
        "AdamMini-schedules",
        lambda: mx.AdamMini(
            decaying,
            schedules.Linear(0.8, 0.95, 10),
            weight_decay=decaying,
            mask=KERNELS,
            roles={"*.kernel": mx.Embedding()},
        ),
    ),
)

DIFFERENCES = ()
