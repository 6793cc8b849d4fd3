"""Few numbers in place of a second moment, and estimates of the curvature: Adam-mini, Amos, Apollo, CAME, Sophia."""

import modulax as mx

from ._instance import Instance
from ._masks import bowl, matrices

OBJECTIVE = {"obj_fn": bowl}

TRANSFORMS = (
    # --- CAME
    Instance("ScaleByCAME", mx.ScaleByCAME),
    Instance("CAME", lambda: mx.CAME(0.05, mask=matrices)),
    # --- Adam-mini
    Instance("ScaleByAdamMini", mx.ScaleByAdamMini),
    Instance("ScaleByAdamMini-heads", lambda: mx.ScaleByAdamMini(roles={"*": mx.Attention("query", heads=2)})),
    Instance("AdamMini", lambda: mx.AdamMini(0.05, mask=matrices)),
    # --- Amos
    Instance("ScaleByAmos", lambda: mx.ScaleByAmos(0.1)),
    Instance("ScaleByAmos-outputs", lambda: mx.ScaleByAmos(0.1, 0.5, 0.9, 1e-2, 0.5, 0.4, 0.1, per_output=True)),
    Instance("Amos", lambda: mx.Amos(0.05, {"*bias": 0.3}, momentum=0.9, clip_value=1.0)),
    # --- Apollo
    Instance("ScaleByApollo", mx.ScaleByApollo),
    Instance(
        "ScaleByApollo-numbers",
        lambda: mx.ScaleByApollo(
            1, 2, 4.0, 0.8, 0.9, 1e-3, scale_type="tensor", max_growth=1.5, scale_front=True, correct_bias=False, key=3
        ),
    ),
    Instance("ScaleByApollo-svd", lambda: mx.ScaleByApollo(1, method="svd", max_growth=None)),
    Instance("Apollo", lambda: mx.Apollo(0.05, 1, scale=4.0, mask=matrices, method="range")),
    Instance("ApolloMini", lambda: mx.ApolloMini(0.05)),
    # --- AdaHessian
    Instance("ScaleByAdaHessian", mx.ScaleByAdaHessian, extra=OBJECTIVE),
    Instance(
        "ScaleByAdaHessian-outputs",
        lambda: mx.ScaleByAdaHessian(0.8, 0.9, 1e-2, 0.5, mx.HutchinsonDiagonal(3), per_output=True),
        extra=OBJECTIVE,
    ),
    Instance("AdaHessian", lambda: mx.AdaHessian(0.05, mask=matrices), extra=OBJECTIVE),
    # --- SophiaG
    Instance("GaussNewtonBartlett", mx.GaussNewtonBartlett, extra=OBJECTIVE),
    Instance("ScaleBySophiaG", lambda: mx.ScaleBySophiaG(batch_size=10, update_interval=1), extra=OBJECTIVE),
    Instance("SophiaG", lambda: mx.SophiaG(0.05), extra=OBJECTIVE),
)
