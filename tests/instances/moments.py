"""Relatives of Adam, and optimizers that accumulate squares."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax

import modulax as mx
from modulax import schedules

from ..differences import Difference
from ._instance import ROUNDED, Instance, twins
from ._masks import KERNELS, decaying, not_bias


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
    twins("ScaleByAMSGrad-optax", mx.ScaleByAMSGrad, optax.scale_by_amsgrad, 0.8, 0.95, 1e-6, 1e-5, follow="optax"),
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
    twins("ScaleByBelief-nesterov", mx.ScaleByBelief, optax.scale_by_belief, 0.8, 0.95, 1e-6, 1e-8, nesterov=True),
    Instance("ScaleByYogi", mx.ScaleByYogi),
    Instance("ScaleByYogi-optax", lambda: mx.ScaleByYogi(follow="optax"), optax.scale_by_yogi),
    twins("ScaleByYogi-numbers", mx.ScaleByYogi, optax.scale_by_yogi, 0.8, 0.9, 1e-4, 1e-5, 0.3, follow="optax"),
    # At b2 = 0.999 optax loses the twelfth digit where ρ cancels.
    twins("ScaleByRAdam", mx.ScaleByRAdam, optax.scale_by_radam, b2=0.95),
    twins("ScaleByRAdam-nesterov", mx.ScaleByRAdam, optax.scale_by_radam, 0.8, 0.9, 1e-6, 1e-5, 7.0, nesterov=True),
    twins("ScaleByNovoGrad", mx.ScaleByNovoGrad, optax.scale_by_novograd, weight_decay=0.1),
    twins("ScaleByNovoGrad-numbers", mx.ScaleByNovoGrad, optax.scale_by_novograd, 0.8, 0.95, 1e-3, 1e-2),
    Instance("ScaleByAdan", mx.ScaleByAdan),
    twins("ScaleByAdan-optax", mx.ScaleByAdan, optax.scale_by_adan, 0.9, 0.8, 0.95, 1e-6, 1e-5, follow="optax"),
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
    Instance(
        "RAdam-schedules",
        lambda: mx.RAdam(decaying, schedules.Linear(0.8, 0.9, 10), threshold=schedules.Constant(6.0)),
    ),
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

DIFFERENCES = (
    Difference(
        "AMSGrad",
        "takes the maximum of the second moment, then corrects its bias",
        "takes the maximum of the bias-corrected second moment",
        "with the correction first, the first gradient is weighted by 1 / (1 - b2); `follow='optax'` does this",
        "test_equations_moments.py::test_amsgrad_takes_the_maximum_before_the_correction",
        "https://openreview.net/forum?id=ryQu7f-RZ",
    ),
    Difference(
        "Adan",
        "weights the difference of the updates by b2",
        "weights it by 1 - b2",
        "the paper's β₂ is 1 - b2 here; `follow='optax'` follows optax",
        "test_equations_moments.py::test_adan_weights_the_difference_by_b2",
        "https://arxiv.org/abs/2208.06677, algorithm 1",
    ),
    Difference(
        "Adan with weight decay",
        "divides the parameters by 1 + learning_rate * weight_decay after the step",
        "subtracts learning_rate * weight_decay times the parameters, as AdamW does",
        "the paper's weight decay is proximal; `follow='optax'` follows optax",
        "test_equations_moments.py::test_adan_decays_proximally",
        "https://arxiv.org/abs/2208.06677, algorithm 1",
    ),
    Difference(
        "ScaleByYogi, Yogi",
        "corrects the bias of the whole denominator, with its eps; the first moment starts at zero",
        "corrects the bias of the second moment inside the root; both moments start at 1e-6; so does `follow='optax'`",
        "the first author's code. The paper's algorithm 2 has no bias corrections: `follow='paper'`",
        "test_equations_moments.py::test_yogi_in_optax_corrects_inside_the_root",
        "https://github.com/tensorflow/addons/blob/master/tensorflow_addons/optimizers/yogi.py",
    ),
    Difference(
        "Adadelta without a learning rate",
        "descends, with a learning rate of 1",
        "ascends: with `learning_rate=None` the sign is not flipped",
        "the paper's step is minus the scaled gradient",
        "test_equations_moments.py::test_adadelta_needs_no_learning_rate",
        "https://arxiv.org/abs/1212.5701, algorithm 1",
    ),
    Difference(
        "RAdam in float32",
        "rectifies from the same step on as in exact arithmetic, by the correct factor",
        "steps are wrong by one percent at b2 = 0.999, and rectified from step 2 instead of 6 at b2 = 0.9999",
        "the usual formula for the length of the average suffers from cancellation",
        "test_equations_moments.py::test_radam_knows_the_length_of_its_average_in_float32",
        "https://arxiv.org/abs/1908.03265, algorithm 2",
    ),
    Difference(
        "RAdam(threshold) below 4",
        "rectifies only where the factor exists, from a length of 4 on",
        "NaN from the first step at which the length is between the threshold and 4",
        "the root of a negative number",
        "test_equations_moments.py::test_radam_with_a_threshold_below_four",
        "https://arxiv.org/abs/1908.03265, algorithm 2",
    ),
)
