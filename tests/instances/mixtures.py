"""Contributed adaptive methods, sign methods, and Sophia."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from optax import contrib

import modulax as mx
from modulax import schedules

from ._instance import ROUNDED, Instance, twins
from ._masks import KERNELS, bowl, decaying, not_bias

OBJECTIVE = {"obj_fn": bowl}
# Schedules in bare transforms that count, which the annotations do not say.
ALPHA: Any = schedules.Linear(0.0, 5.0, 20)
B3: Any = schedules.Linear(0.9, 0.999, 20)


def square_root(step: Any) -> Any:
    """A bound that depends on the step."""
    return step**0.5


def counting_in_float64(twin: Any) -> Any:
    """A transform of optax that takes roots of its counter, which are in float32 as long as that is an integer."""

    def init(params: Any) -> Any:
        is_count = jnp.dtype(jnp.int32)
        return jax.tree.map(lambda x: x.astype(float) if x.dtype == is_count else x, twin.init(params))

    return optax.GradientTransformationExtraArgs(init, twin.update)


TRANSFORMS = (
    # --- mixtures
    Instance("ScaleByADOPT", mx.ScaleByADOPT, contrib.scale_by_adopt),
    twins(
        "ScaleByADOPT-nesterov",
        mx.ScaleByADOPT,
        contrib.scale_by_adopt,
        0.8,
        0.95,
        1e-3,
        nesterov=True,
        clip_value_fn=square_root,
    ),
    Instance(
        "ScaleByADOPT-unclipped",
        lambda: mx.ScaleByADOPT(use_clipping=False),
        lambda: contrib.scale_by_adopt(use_clipping=False),
        rtol=1e-5,
    ),
    Instance("ScaleByAdEMAMix", mx.ScaleByAdEMAMix, contrib.scale_by_ademamix),
    Instance(
        "ScaleByAdEMAMix-schedules",
        lambda: mx.ScaleByAdEMAMix(0.8, 0.95, B3, ALPHA, 1e-4, eps_root=1e-6),
        lambda: contrib.scale_by_ademamix(
            0.8, 0.95, optax.linear_schedule(0.9, 0.999, 20), optax.linear_schedule(0.0, 5.0, 20), 1e-4, 1e-6
        ),
    ),
    Instance(
        "ScaleByAdEMAMix-float32",
        lambda: mx.ScaleByAdEMAMix(mu_dtype=jnp.float32),
        exemptions=ROUNDED,
    ),
    Instance("ScaleBySimplifiedAdEMAMix", mx.ScaleBySimplifiedAdEMAMix, contrib.scale_by_simplified_ademamix),
    twins(
        "ScaleBySimplifiedAdEMAMix-alpha",
        mx.ScaleBySimplifiedAdEMAMix,
        contrib.scale_by_simplified_ademamix,
        0.9,
        0.99,
        2.0,
        1e-4,
        eps_root=1e-6,
    ),
    Instance(
        "ScaleByACProp", mx.ScaleByACProp, rtol=1e-5
    ),  # 1 - b2 divides what it multiplied: in float32, four digits
    twins(
        "ScaleByACProp-optax", mx.ScaleByACProp, contrib.scale_by_acprop, 0.8, 0.95, 1e-4, eps_root=1e-6, follow="optax"
    ),
    Instance(
        "ScaleByMADGRAD", lambda: mx.ScaleByMADGRAD(0.05), lambda: counting_in_float64(contrib.scale_by_madgrad(0.05))
    ),
    # --- signs
    Instance("ScaleBySign", mx.ScaleBySign, optax.scale_by_sign),
    Instance("ScaleByRprop", lambda: mx.ScaleByRprop(0.1)),
    twins("ScaleByRprop-optax", mx.ScaleByRprop, optax.scale_by_rprop, 0.1, 0.4, 1.5, 1e-3, 0.5, follow="optax"),
    # --- curvature
    Instance("HutchinsonDiagonal", mx.HutchinsonDiagonal, contrib.hutchinson_estimator_diag_hessian, extra=OBJECTIVE),
    Instance("ScaleBySophia", mx.ScaleBySophia, extra=OBJECTIVE),
    Instance(
        "ScaleBySophia-optax",
        lambda: mx.ScaleBySophia(0.9, 0.8, 1e-3, 0.5, 2.0, 3, follow="optax"),
        lambda: contrib.sophia(-1.0, 0.9, 0.8, 1e-3, 0.0, gamma=0.5, clip_threshold=2.0, update_interval=3),
        extra=OBJECTIVE,
    ),
    Instance(
        "ScaleBySophia-unclipped",
        lambda: mx.ScaleBySophia(eps=0.1, gamma=1.0, clip_threshold=None, follow="optax"),
        lambda: contrib.sophia(-1.0, eps=0.1, weight_decay=0.0, gamma=1.0, clip_threshold=None),
        extra=OBJECTIVE,
    ),
    # --- optimizers
    twins("ADOPT", mx.ADOPT, contrib.adopt, 0.05),
    twins("AdEMAMix", mx.AdEMAMix, contrib.ademamix, 0.05),
    twins("AdEMAMix-mask", mx.AdEMAMix, contrib.ademamix, 0.05, b3=0.99, weight_decay=0.1, mask=KERNELS),
    twins("SimplifiedAdEMAMix", mx.SimplifiedAdEMAMix, contrib.simplified_ademamix, 0.01),
    twins(
        "SimplifiedAdEMAMix-mask",
        mx.SimplifiedAdEMAMix,
        contrib.simplified_ademamix,
        0.01,
        alpha=3.0,
        weight_decay=0.1,
        mask=KERNELS,
    ),
    Instance("ACProp", lambda: mx.ACProp(0.05), rtol=1e-5),
    Instance("ACProp-rectified", lambda: mx.ACProp(0.05, rectified=True), rtol=1e-5),
    Instance("ADOPT-decay", lambda: mx.ADOPT(0.05, weight_decay=0.1, mask=KERNELS)),
    Instance(
        "ACProp-optax",
        lambda: mx.ACProp(0.05, weight_decay=0.1, mask=KERNELS, follow="optax"),
        lambda: contrib.acprop(0.05, weight_decay=0.1, mask=not_bias),
        rtol=1e-5,
    ),
    Instance("MADGRAD", lambda: mx.MADGRAD(0.05), lambda: counting_in_float64(contrib.madgrad(0.05))),
    Instance(
        "MADGRAD-decay",
        lambda: mx.MADGRAD(0.05, 0.5, 0.1, 1e-3),
        lambda: counting_in_float64(contrib.madgrad(0.05, 0.5, 0.1, 1e-3)),
    ),
    Instance(
        "MADGRAD-schedule",
        lambda: mx.MADGRAD(schedules.Linear(0.1, 0.01, 20)),
        lambda: counting_in_float64(contrib.madgrad(optax.linear_schedule(0.1, 0.01, 20))),
    ),
    twins("SignSGD", mx.SignSGD, optax.sign_sgd, 0.05),
    twins("Signum", mx.Signum, optax.signum, 0.05),
    Instance("Rprop", lambda: mx.Rprop(0.05)),
    twins("Rprop-optax", mx.Rprop, optax.rprop, 0.05, follow="optax"),
    Instance("Sophia", lambda: mx.Sophia(0.05), extra=OBJECTIVE),
    Instance(
        "Sophia-optax",
        lambda: mx.Sophia(0.05, weight_decay=0.1, mask=KERNELS, gamma=0.5, update_interval=2, follow="optax"),
        lambda: contrib.sophia(0.05, weight_decay=0.1, weight_decay_mask=not_bias, gamma=0.5, update_interval=2),
        extra=OBJECTIVE,
    ),
    Instance(
        "Sophia-functions",
        lambda: mx.Sophia(decaying, clip_threshold=None, hessian_diagonal_fn=mx.HutchinsonDiagonal(3)),
        extra=OBJECTIVE,
        rtol=1e-5,
    ),
)
