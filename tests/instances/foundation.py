"""The transforms and optimizers of the foundation, and the containers."""

import jax.numpy as jnp
import optax

import modulax as mx
from modulax import schedules

from ._instance import ROUNDED, Instance, twins
from ._masks import (
    B1,
    BIASES,
    DECAY,
    FROZEN,
    KERNELS,
    WARMUP,
    Cautious,
    bias_or_rest,
    decaying,
    doubled,
    growing,
    is_huge,
    kind,
    loss,
    matrices,
    momentum_init,
    momentum_update,
    not_bias,
    tied,
)

TRANSFORMS = (
    # --- basic
    Instance("Identity", mx.Identity, optax.identity),
    Instance("SetToZero", mx.SetToZero, optax.set_to_zero),
    twins("Stateless", mx.Stateless, optax.stateless, doubled),
    # --- scaling
    twins("Scale", mx.Scale, optax.scale, -0.5),
    Instance(
        "ScaleBySchedule",
        lambda: mx.ScaleBySchedule(schedules.Linear(1.0, 0.1, 20)),
        lambda: optax.scale_by_schedule(optax.linear_schedule(1.0, 0.1, 20)),
    ),
    Instance(
        "ScaleByPath",
        lambda: mx.ScaleByPath({"*bias": 0.5, "*": 2.0}),
        lambda: optax.partition({"bias": optax.scale(0.5), "rest": optax.scale(2.0)}, bias_or_rest),
    ),
    Instance(
        "ScaleByPath-schedule",
        lambda: mx.ScaleByPath({"*bias": schedules.Linear(1.0, 0.1, 20), "*": 2.0}),
        lambda: optax.partition(
            {"bias": optax.scale_by_schedule(optax.linear_schedule(1.0, 0.1, 20)), "rest": optax.scale(2.0)},
            bias_or_rest,
        ),
    ),
    Instance(
        "ScaleByDepth",
        lambda: mx.ScaleByDepth(0.8, mx.by_path({"*bias": 2, "*": 0})),
        lambda: optax.partition({"bias": optax.scale(0.8**2), "rest": optax.identity()}, bias_or_rest),
    ),
    twins("ScaleBySchedule-number", mx.ScaleBySchedule, optax.scale, 0.3),
    twins("ScaleByLearningRate", mx.ScaleByLearningRate, optax.scale_by_learning_rate, 0.1),
    Instance(
        "ScaleByLearningRate-schedule",
        lambda: mx.ScaleByLearningRate(schedules.CosineDecay(0.1, 20, 0.1)),
        lambda: optax.scale_by_learning_rate(optax.cosine_decay_schedule(0.1, 20, 0.1)),
    ),
    twins("ScaleByLearningRate-ascent", mx.ScaleByLearningRate, optax.scale_by_learning_rate, 0.1, flip_sign=False),
    # --- momentum
    twins("Trace", mx.Trace, optax.trace, 0.8),
    Instance("Trace-nesterov", lambda: mx.Trace(0.8, True), lambda: optax.trace(0.8, nesterov=True)),
    Instance(
        "Trace-float32",
        lambda: mx.Trace(0.8, accumulator_dtype=jnp.float32),
        exemptions=ROUNDED,
    ),
    twins("Ema", mx.Ema, optax.ema, 0.9),
    twins("Ema-biased", mx.Ema, optax.ema, 0.9, debias=False),
    # --- adaptive
    Instance("ScaleByAdam", mx.ScaleByAdam, optax.scale_by_adam),
    twins("ScaleByAdam-nesterov", mx.ScaleByAdam, optax.scale_by_adam, 0.8, 0.95, 1e-6, nesterov=True),
    Instance(
        "ScaleByAdam-eps_root",
        lambda: mx.ScaleByAdam(eps=1e-4, eps_root=1e-6, mu_dtype=jnp.float32),
        exemptions=ROUNDED,
    ),
    Instance("ScaleByRMS", mx.ScaleByRMS, optax.scale_by_rms),
    twins(
        "ScaleByRMS-corrected",
        mx.ScaleByRMS,
        optax.scale_by_rms,
        0.95,
        1e-4,
        0.1,
        eps_in_sqrt=False,
        bias_correction=True,
    ),
    twins("ScaleByStddev", mx.ScaleByStddev, optax.scale_by_stddev, eps=1e-3),
    Instance(
        "ScaleByStddev-corrected",
        # Started at zero, the first variance would be a difference of equals: nothing but rounding.
        lambda: mx.ScaleByStddev(0.9, 1e-2, 0.5, eps_in_sqrt=False, bias_correction=True),
        lambda: optax.scale_by_stddev(0.9, 1e-2, 0.5, eps_in_sqrt=False, bias_correction=True),
    ),
    Instance("ScaleByLion", mx.ScaleByLion, optax.scale_by_lion),
    # --- clipping, regularization
    twins("Clip", mx.Clip, optax.clip, 0.7),
    twins("ClipByGlobalNorm", mx.ClipByGlobalNorm, optax.clip_by_global_norm, 1.5),
    Instance("ClipByGlobalNorm-logged", lambda: mx.ClipByGlobalNorm(1.5, logged=True)),
    twins("AddDecayedWeights", mx.AddDecayedWeights, optax.add_decayed_weights, 0.1),
    Instance("AddDecayedWeights-cautious", lambda: mx.AddDecayedWeights(0.1, cautious=True)),
    twins("AddDecayedWeights-mask", mx.AddDecayedWeights, optax.add_decayed_weights, 0.1, mask=KERNELS),
    # --- containers
    Instance(
        "Chain-runs",
        lambda: mx.Chain(
            mx.Trace(0.5),
            mx.ClipByGlobalNorm(1.0),
            mx.AdamW(0.1, mask=KERNELS),
            mx.Stateless(doubled),
            scale=mx.Scale(0.5),
        ),
        lambda: optax.chain(
            optax.trace(0.5),
            optax.clip_by_global_norm(1.0),
            optax.adamw(0.1, mask=not_bias),
        ),
    ),
    Instance("Chain-empty", mx.Chain, optax.identity),
    Instance(
        "Chain-fused",
        lambda: mx.Chain(mx.Clip(1.0), mx.ScaleByAdam(), mx.AddDecayedWeights(0.01), mx.ScaleByLearningRate(0.1)),
        lambda: optax.chain(
            optax.clip(1.0),
            optax.scale_by_adam(),
            optax.add_decayed_weights(0.01),
            optax.scale(-0.1),
        ),
    ),
    Instance(
        "Masked",
        lambda: mx.Masked(mx.Adam(0.1), KERNELS),
        lambda: optax.masked(optax.adam(0.1), not_bias),
    ),
    Instance(
        "Masked-function",
        lambda: mx.Masked(mx.Trace(0.9), matrices),
        lambda: optax.masked(optax.trace(0.9), matrices),
    ),
    Instance(
        "Freeze",
        lambda: mx.Freeze(BIASES),
        lambda: optax.transforms.freeze(FROZEN),
    ),
    Instance(
        "Partition",
        lambda: mx.Partition(
            {"rest": mx.AdamW(0.1), "bias": mx.SGD(0.2, 0.9)},
            mx.by_path({"*bias": "bias", "*": "rest"}),
        ),
        lambda: optax.partition({"rest": optax.adamw(0.1), "bias": optax.sgd(0.2, 0.9)}, bias_or_rest),
    ),
    Instance(
        "Partition-function",
        lambda: mx.Partition(
            {"other": mx.SetToZero(), "matrix": mx.ClipByGlobalNorm(1.0), "unused": mx.Scale(2.0)},
            kind,
        ),
        lambda: optax.partition({"other": optax.set_to_zero(), "matrix": optax.clip_by_global_norm(1.0)}, kind),
    ),
    Instance(
        "MultiSteps",
        lambda: mx.MultiSteps(mx.AdamW(0.1), 3),
        lambda: optax.MultiSteps(optax.adamw(0.1), 3, accumulator_dtype=jnp.float64),
    ),
    Instance(
        "MultiSteps-schedule",
        lambda: mx.MultiSteps(mx.SGD(0.1, 0.9), growing, should_skip=is_huge),
        lambda: optax.MultiSteps(optax.sgd(0.1, 0.9), growing, accumulator_dtype=jnp.float64),
    ),
    Instance(
        "MultiSteps-sum",
        lambda: mx.MultiSteps(mx.Adam(0.1), 2, use_grad_mean=False),
        lambda: optax.MultiSteps(optax.adam(0.1), 2, use_grad_mean=False, accumulator_dtype=jnp.float64),
    ),
    Instance("MultiSteps-noise_scale", lambda: mx.MultiSteps(mx.Adam(0.1), 2, noise_scale=True)),
    Instance(
        "Scheduled",
        lambda: mx.Scheduled(
            mx.Chain(
                mx.ScaleByAdam(b1=B1),
                mx.AddDecayedWeights(DECAY),
                mx.ScaleByLearningRate(0.1),
            )
        ),
    ),
    Instance(
        "Injected",
        lambda: mx.Injected(mx.AdamW(0.1, b2=0.99, eps=1e-3)),  # which a dtype of 16 bits holds
        lambda: optax.inject_hyperparams(optax.adamw)(0.1, b2=0.99, eps=1e-3),
    ),
    Instance(
        "FromFactory",
        lambda: mx.FromFactory(tied, learning_rate=0.1, decay=0.5),
        lambda: optax.chain(optax.scale_by_adam(), optax.add_decayed_weights(0.05), optax.scale(-0.1)),
        exemptions={"a_field_of_an_optimizer_is_handed_on": "another function may compute the same"},
    ),
    Instance(
        "Injected-factory",
        lambda: mx.inject_hyperparams(tied)(schedules.Linear(0.1, 0.02, 10), 0.5),
        exemptions={"at_is_the_transform_of_the_next_step": "the number of the last step in the state rules"},
    ),
    Instance(
        "Injected-schedule",
        lambda: mx.Injected(mx.SGD(schedules.Linear(0.1, 0.01, 20), 0.9)),
        lambda: optax.inject_hyperparams(optax.sgd)(optax.linear_schedule(0.1, 0.01, 20), 0.9),
        exemptions={"at_is_the_transform_of_the_next_step": "the number of the last step in the state rules"},
    ),
    Instance(
        "Injected-some",
        lambda: mx.Injected(mx.SGD(Cautious(0.1), 0.9), "momentum", jnp.float32),
        extra=loss,
        exemptions=ROUNDED,
    ),
    # --- adapters
    Instance(
        "FromFunctions",
        lambda: mx.from_functions(momentum_init, momentum_update),
        lambda: optax.sgd(0.05, momentum=0.9),
    ),
    Instance(
        "FromOptax",
        lambda: mx.from_optax(optax.sgd(0.05, momentum=0.9)),
        lambda: optax.sgd(0.05, momentum=0.9),
        exemptions={"pickle_can_save_it": "optax's functions are local ones, which pickle refuses"},
    ),
    # --- optimizers
    twins("SGD", mx.SGD, optax.sgd, 0.05),
    twins("SGD-nesterov", mx.SGD, optax.sgd, 0.05, momentum=0.9, nesterov=True),
    Instance("SGD-schedules", lambda: mx.SGD(decaying, momentum=schedules.Linear(0.5, 0.9, 10))),
    Instance("SGD-stateful", lambda: mx.SGD(Cautious(0.05), momentum=0.9), extra=loss),
    twins("Adam", mx.Adam, optax.adam, 0.05),
    twins("AdamW", mx.AdamW, optax.adamw, 0.05),
    twins("AdamW-mask", mx.AdamW, optax.adamw, 0.05, 0.8, 0.99, weight_decay=0.1, mask=KERNELS, nesterov=True),
    Instance(
        "AdamW-schedule",
        lambda: mx.AdamW(schedules.WarmupCosineDecay(**WARMUP)),
        lambda: optax.adamw(optax.warmup_cosine_decay_schedule(**WARMUP)),
    ),
    twins("NAdam", mx.NAdam, optax.nadam, 0.05),
    twins("NAdamW", mx.NAdamW, optax.nadamw, 0.05, weight_decay=0.01),
    twins("RMSProp", mx.RMSProp, optax.rmsprop, 0.05),
    twins("RMSProp-momentum", mx.RMSProp, optax.rmsprop, 0.05, eps_in_sqrt=False, momentum=0.8, nesterov=True),
    twins("RMSProp-centered", mx.RMSProp, optax.rmsprop, 0.05, initial_scale=0.5, centered=True, bias_correction=True),
    twins("Lion", mx.Lion, optax.lion, 0.05),
    Instance(
        "Lion-mask",
        lambda: mx.Lion(0.05, weight_decay=0.1, mask=KERNELS, mu_dtype=jnp.float32),
    ),
)
