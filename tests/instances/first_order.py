"""Optimizers with another momentum than Adam, or another weight decay."""

import modulax as mx

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
    # --- quasi-hyperbolic momentum
    Instance("ScaleByQHM", mx.ScaleByQHM),
    Instance("QHM", lambda: mx.QHM(0.05)),
    Instance("ScaleByQHAdam", mx.ScaleByQHAdam),
    Instance("QHAdam", lambda: mx.QHAdam(0.05, nu1=0.7, nu2=0.9, weight_decay=0.1, mask=KERNELS)),
    # --- aggregated momentum
    Instance("ScaleByAggMo", mx.ScaleByAggMo),
    Instance("AggMo", lambda: mx.AggMo(0.05)),
    # --- corrected weight decay
    Instance("AdamC", lambda: mx.AdamC(decaying, weight_decay=0.1, mask=KERNELS)),
    Instance("AdamC-peak", lambda: mx.AdamC(0.05, 0.8, 0.95, weight_decay=decaying, peak=0.1)),
    # --- FTRL
    Instance("ScaleByFTRL", lambda: mx.ScaleByFTRL(0.1)),
    Instance("FTRL", lambda: mx.FTRL(0.1, l1=0.01)),
    # --- averaged SGD
    Instance("ASGD", lambda: mx.ASGD(0.05, 0.1, start=2)),
    # --- Tiger
    Instance("ScaleByTiger", lambda: mx.ScaleByTiger(0.1)),
    Instance("ScaleByTiger-rows", lambda: mx.ScaleByTiger(0.1, every_k=2, relative="rows")),
    Instance("Tiger", lambda: mx.Tiger(0.1)),
    Instance("Tiger-roles", lambda: mx.Tiger(decaying, 0.9, decaying, every_k=2, roles={"*": mx.Embedding()})),
    # --- FOCUS
    Instance("ScaleByFOCUS", mx.ScaleByFOCUS),
    Instance("FOCUS", lambda: mx.FOCUS(0.05, weight_decay=0.1, mask=KERNELS)),
)
