"""What goes around an optimizer, and the optimizers that are made of it."""

import modulax as mx
from modulax import schedules

from ._instance import Instance
from ._masks import KERNELS, matrices, previous

FALLING = schedules.Linear(2.0, 0.5, 10)
TRANSFORMS = (
    # --- filters of the gradient
    Instance("GrokFast", mx.GrokFast),
    Instance(
        "GrokFast-schedules", lambda: mx.GrokFast(schedules.Linear(0.8, 0.95, 10), schedules.Linear(2.0, 0.5, 10))
    ),
    Instance("GrokFastMA", lambda: mx.GrokFastMA(2)),
    Instance("GrokFastMA-sum", lambda: mx.GrokFastMA(3, FALLING, use_mean=False, warmup=False)),
    # --- by the gradient at the last parameters
    Instance("MARS", lambda: mx.MARS(0.05, 0.8, max_norm=2.0), extra=previous),
    Instance(
        "MARS-vectors",
        lambda: mx.MARS(0.05, where=KERNELS, weight_decay=0.1, adam_learning_rate=0.01, max_norm=None, amsgrad=True),
    ),
    Instance("MARSShampoo", lambda: mx.MARSShampoo(0.05, 0.8, adam_learning_rate=0.05)),
    Instance(
        "MARSShampoo-all", lambda: mx.MARSShampoo(0.05, weight_decay=0.1, mask=KERNELS, where=True, consistent_rms=0.2)
    ),
    Instance("MARSLion", lambda: mx.MARSLion(0.05, 0.8, weight_decay=0.1, mask=KERNELS), extra=previous),
    # --- averaging at every step
    Instance("PrimalAveraging", lambda: mx.PrimalAveraging(0.1)),
    Instance(
        "PrimalAveraging-decay",
        lambda: mx.PrimalAveraging(FALLING, 0.9, 0.8, weight_decay=0.1, mask=KERNELS, decay_on_y=True),
    ),
    Instance("GPAAdamW", lambda: mx.GPAAdamW(0.05, weight_decay=0.1, mask=KERNELS)),
    # --- workers
    Instance("DiLoCo", lambda: mx.DiLoCo(mx.AdamW(0.05), 2)),
    Instance("DiLoCo-outer", lambda: mx.DiLoCo(mx.SGD(FALLING), 3, mx.AdamW(FALLING))),
    # --- by the signs of the gradient
    Instance("Cautious", lambda: mx.Cautious(mx.AdamW(0.1, weight_decay=0.1))),
    Instance("Cautious(direction)", lambda: mx.Cautious(mx.ScaleByLion(), normalize="count")),
    Instance("CautiousAdamW", lambda: mx.CautiousAdamW(0.05, mask=matrices)),
    Instance("Grams", lambda: mx.Grams(mx.AdamW(0.1, weight_decay=0.1))),
    Instance("Grams(direction)", lambda: mx.Grams(mx.ScaleByAdam())),
    Instance("GramsAdamW", lambda: mx.GramsAdamW(0.05, weight_decay=0.1, mask=KERNELS)),
    Instance("CautiousLion", lambda: mx.CautiousLion(0.05, weight_decay=0.1, mask=KERNELS)),
)
