"""Relatives of Adam, and optimizers that accumulate squares."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax

import modulax as mx

from ._instance import ROUNDED, Instance, twins
from ._masks import KERNELS, not_bias


def shrunk(updates: Any, params: Any) -> Any:
    """`ProximalWeightDecay(0.5, 0.2)`, which optax does not have."""
    return jax.tree.map(lambda u, p: (u - 0.1 * p) / 1.1, updates, params)


TRANSFORMS = (
    # --- Lion's other signs
    twins("ScaleByLion-smooth", mx.ScaleByLion, optax.scale_by_lion, 0.8, 0.95, mode="smooth", smooth_beta=3.0),
    twins("ScaleByLion-refined", mx.ScaleByLion, optax.scale_by_lion, mode="refined"),
    # --- transforms
    Instance("ScaleByAdamax", mx.ScaleByAdamax, optax.scale_by_adamax),
    Instance("ScaleByAMSGrad", mx.ScaleByAMSGrad),
    twins(
        "ScaleByAMSGrad-optax",
        mx.ScaleByAMSGrad,
        optax.scale_by_amsgrad,
        0.8,
        0.95,
        1e-6,
        eps_root=1e-5,
        follow="optax",
    ),
    twins(
        "ScaleByAMSGrad-uncorrected",
        mx.ScaleByAMSGrad,
        optax.scale_by_amsgrad,
        bias_correction_mu=False,
        bias_correction_nu=False,
    ),
    Instance(
        "ScaleByAMSGrad-float32",
        lambda: mx.ScaleByAMSGrad(mu_dtype=jnp.float32, bias_correction_mu=False),
        exemptions=ROUNDED,
    ),
    Instance("ScaleByBelief", mx.ScaleByBelief, optax.scale_by_belief),
    twins(
        "ScaleByBelief-nesterov", mx.ScaleByBelief, optax.scale_by_belief, 0.8, 0.95, 1e-6, eps_root=1e-8, nesterov=True
    ),
    Instance("ScaleByYogi", mx.ScaleByYogi),
    Instance("ScaleByYogi-optax", lambda: mx.ScaleByYogi(follow="optax"), optax.scale_by_yogi),
    twins("ScaleByYogi-numbers", mx.ScaleByYogi, optax.scale_by_yogi, 0.8, 0.9, 1e-4, 1e-5, 0.3, follow="optax"),
    # At b2 = 0.999 optax loses the twelfth digit where ρ cancels.
    twins("ScaleByRAdam", mx.ScaleByRAdam, optax.scale_by_radam, b2=0.95),
    twins(
        "ScaleByRAdam-nesterov",
        mx.ScaleByRAdam,
        optax.scale_by_radam,
        0.8,
        0.9,
        1e-6,
        eps_root=1e-5,
        threshold=7.0,
        nesterov=True,
    ),
    twins("ScaleByNovoGrad", mx.ScaleByNovoGrad, optax.scale_by_novograd, weight_decay=0.1),
    twins("ScaleByNovoGrad-numbers", mx.ScaleByNovoGrad, optax.scale_by_novograd, 0.8, 0.95, 1e-3, eps_root=1e-2),
    Instance("ScaleByAdan", mx.ScaleByAdan),
    twins(
        "ScaleByAdan-optax", mx.ScaleByAdan, optax.scale_by_adan, 0.9, 0.8, 0.95, 1e-6, eps_root=1e-5, follow="optax"
    ),
    Instance("ScaleByAdadelta", mx.ScaleByAdadelta, optax.scale_by_adadelta),
    Instance("ScaleByRSS", mx.ScaleByRSS, optax.scale_by_rss),
    twins("ScaleByOptimisticGradient", mx.ScaleByOptimisticGradient, optax.scale_by_optimistic_gradient, 0.7, 0.4),
    Instance("ProximalWeightDecay", lambda: mx.ProximalWeightDecay(0.5, 0.2), lambda: optax.stateless(shrunk)),
    # --- optimizers
    twins("Adamax", mx.Adamax, optax.adamax, 0.05),
    twins("AdamaxW", mx.AdamaxW, optax.adamaxw, 0.05, weight_decay=0.1, mask=KERNELS),
    twins("AMSGrad", mx.AMSGrad, optax.amsgrad, 0.05, bias_correction_nu=False),
    twins("AMSGrad-optax", mx.AMSGrad, optax.amsgrad, 0.05, follow="optax"),
    Instance("ScaleByStableAdam", lambda: mx.ScaleByStableAdam(b2=0.9, clip_threshold=0.9)),
    Instance("StableAdamW", lambda: mx.StableAdamW(0.05, weight_decay=0.1, mask=KERNELS)),
    twins("AdaBelief", mx.AdaBelief, optax.adabelief, 0.05),
    Instance(
        "AdaBelief-mask",
        lambda: mx.AdaBelief(0.05, weight_decay=0.1, mask=KERNELS, nesterov=True),
        lambda: optax.chain(
            optax.scale_by_belief(nesterov=True), optax.add_decayed_weights(0.1, not_bias), optax.scale(-0.05)
        ),
    ),
    Instance("Yogi", lambda: mx.Yogi(0.05)),
    twins("Yogi-optax", mx.Yogi, optax.yogi, 0.05, follow="optax"),
    twins("RAdam", mx.RAdam, optax.radam, 0.05, b2=0.95),
    twins("NovoGrad", mx.NovoGrad, optax.novograd, 0.05, weight_decay=0.1),
    Instance("Adan", lambda: mx.Adan(0.05, weight_decay=0.1, mask=KERNELS)),
    Instance("Adan-clipped", lambda: mx.Adan(0.05, weight_decay=0.1, proximal=False, max_grad_norm=0.5)),
    dataclasses.replace(
        twins("Adan-optax", mx.Adan, optax.adan, 0.05, weight_decay=0.1, mask=KERNELS, follow="optax"),
        exemptions={"a_field_of_an_optimizer_is_handed_on": "the decay of optax is never proximal"},
    ),
    Instance(
        "Adadelta",
        lambda: mx.Adadelta(0.5, weight_decay=0.1, mask=KERNELS),
        lambda: optax.adadelta(0.5, weight_decay=0.1, weight_decay_mask=not_bias),
    ),
    twins("Adagrad", mx.Adagrad, optax.adagrad, 0.05),
    twins("OptimisticGradientDescent", mx.OptimisticGradientDescent, optax.optimistic_gradient_descent, 0.05, 0.7, 0.4),
    twins("OptimisticAdam", mx.OptimisticAdam, optax.optimistic_adam_v2, 0.05, alpha=0.9, beta=0.6),
)
