"""Steps in proportion to the parameters, clipping, constraints, noise, and methods with little memory."""

import jax.numpy as jnp
import jax.tree_util as jtu
import optax

import modulax as mx

from ._instance import Instance, twins
from ._masks import BIASES, KERNELS, decaying, is_bias, matrices, not_bias


def power_decay(step, exponent):
    """optax rounds its own to float32."""
    return 1 - (step + 1.0) ** -exponent


def bounded_decay(step, exponent):
    return jnp.minimum(power_decay(step, exponent), 0.9)


def optax_adafactor(rate, *middle, momentum=None, decay=None, **factored):
    """`optax.adafactor`, with the decay of the mean square in double precision."""
    parts = [
        optax.scale_by_factored_rms(**factored, decay_rate_fn=power_decay),
        *middle,
        optax.scale_by_learning_rate(rate, flip_sign=False),
        optax.scale_by_param_block_rms(),
    ]
    if momentum is not None:
        parts.append(optax.ema(momentum, debias=False))
    if decay is not None:
        parts.append(optax.add_decayed_weights(decay, mask=not_bias))
    return optax.chain(*parts, optax.scale(-1.0))


def with_scalars(twin):
    """optax's SM3 has no scalars: here they are vectors of one entry."""

    def vectors(tree):
        return jtu.tree_map(jnp.atleast_1d, tree)

    def update(updates, state, params=None):
        del params
        new, state = twin.update(vectors(updates), state)
        return jtu.tree_map(lambda u, g: u.reshape(g.shape), new, updates), state

    return optax.GradientTransformation(lambda params: twin.init(vectors(params)), update)


TRANSFORMS = (
    # --- in proportion to the parameters, normalized, centred
    Instance("ScaleByTrustRatio", mx.ScaleByTrustRatio, optax.scale_by_trust_ratio),
    twins("ScaleByTrustRatio-numbers", mx.ScaleByTrustRatio, optax.scale_by_trust_ratio, 1.5, 0.1, 0.01),
    Instance("ScaleByTrustRatio-decay", lambda: mx.ScaleByTrustRatio(weight_decay=0.1, mask=KERNELS)),
    Instance("ScaleByParamBlockNorm", mx.ScaleByParamBlockNorm, optax.scale_by_param_block_norm),
    Instance("ScaleByParamBlockRMS", mx.ScaleByParamBlockRMS, optax.scale_by_param_block_rms),
    twins("NormalizeByUpdateNorm", mx.NormalizeByUpdateNorm, optax.normalize_by_update_norm, 0.5, 1e-3),
    Instance("Normalize", mx.Normalize, optax.contrib.normalize),
    Instance("Centralize", mx.Centralize, optax.centralize),
    Instance("Centralize-last", lambda: mx.Centralize(output_axis=-1)),
    # --- clipping
    twins("ClipByBlockRMS", mx.ClipByBlockRMS, optax.clip_by_block_rms, 0.7),
    Instance("ClipByRunningNorm", lambda: mx.ClipByRunningNorm(0.5, 0.8, 2, 1e-2)),
    Instance("ClipByNormPercentile", lambda: mx.ClipByNormPercentile(40.0, 3)),
    twins("AdaptiveGradClip", mx.AdaptiveGradClip, optax.adaptive_grad_clip, 0.3),
    # --- constraints
    Instance("ZeroNaNs", mx.ZeroNaNs, optax.zero_nans),
    Instance("KeepParamsNonnegative", mx.KeepParamsNonnegative, optax.keep_params_nonnegative),
    # --- noise: the same as optax's, from the same key
    twins("AddNoise", mx.AddNoise, optax.add_noise, 0.5, 0.7, key=3),
    # --- little memory
    Instance("ScaleBySM3", mx.ScaleBySM3, lambda: with_scalars(optax.scale_by_sm3())),
    Instance(
        "ScaleBySM3-decay",
        lambda: mx.ScaleBySM3(0.5, 0.9, 1e-4),
        lambda: with_scalars(optax.scale_by_sm3(0.5, 0.9, 1e-4)),
    ),
    Instance(
        "ScaleByFactoredRMS",
        lambda: mx.ScaleByFactoredRMS(min_dim_size_to_factor=2),
        lambda: optax.scale_by_factored_rms(min_dim_size_to_factor=2, decay_rate_fn=power_decay),
    ),
    Instance(
        "ScaleByFactoredRMS-whole",
        lambda: mx.ScaleByFactoredRMS(False, decay_rate=0.6, epsilon=1e-3, decay_rate_fn=bounded_decay),
        lambda: optax.scale_by_factored_rms(False, 0.6, epsilon=1e-3, decay_rate_fn=bounded_decay),
    ),
    # --- optimizers
    twins("LARS", mx.LARS, optax.lars, 0.5),
    Instance(
        "LARS-optax",
        lambda: mx.LARS(0.5, 0.1, KERNELS, 0.02, 1e-3, BIASES, 0.8, nesterov=True, follow="optax"),
        lambda: optax.lars(0.5, 0.1, not_bias, 0.02, 1e-3, is_bias, 0.8, nesterov=True),
    ),
    Instance("LARS-decay", lambda: mx.LARS(0.5, 0.1, KERNELS, 0.02, trust_ratio_mask=matrices)),
    twins("LAMB", mx.LAMB, optax.lamb, 0.05),
    Instance(
        "LAMB-decay",
        lambda: mx.LAMB(0.05, 0.8, 0.95, 1e-4, eps_root=1e-5, weight_decay=0.1, mask=KERNELS),
        lambda: optax.lamb(0.05, 0.8, 0.95, 1e-4, 1e-5, 0.1, not_bias),
    ),
    twins("Fromage", mx.Fromage, optax.fromage, 0.05),
    twins("Fromage-schedule", mx.Fromage, optax.fromage, decaying, 1e-2),
    Instance(
        "Adafactor",
        lambda: mx.Adafactor(0.05, 2),
        lambda: optax_adafactor(0.05, optax.clip_by_block_rms(1.0), min_dim_size_to_factor=2),
    ),
    Instance(
        "Adafactor-schedule",
        lambda: mx.Adafactor(decaying, 2, momentum=0.8, dtype_momentum=None, weight_decay_rate=0.01, mask=KERNELS),
        lambda: optax_adafactor(
            decaying,
            optax.clip_by_block_rms(1.0),
            momentum=0.8,
            decay=0.01,
            min_dim_size_to_factor=2,
        ),
    ),
    Instance(
        "Adafactor-momentum",
        lambda: mx.Adafactor(
            0.05, 2, clipping_threshold=None, momentum=0.9, dtype_momentum=None, weight_decay_rate=0.01, mask=KERNELS
        ),
        lambda: optax_adafactor(0.05, momentum=0.9, decay=0.01, min_dim_size_to_factor=2),
    ),
    Instance(
        "Adafactor-relative",
        lambda: mx.Adafactor(min_dim_size_to_factor=2, decay_offset=3, multiply_by_parameter_scale=False),
    ),
    Instance(
        "Adafactor-whole",
        lambda: mx.Adafactor(eps=1e-3, factored=False, follow="optax"),
        lambda: optax_adafactor(1.0, optax.clip_by_block_rms(1.0), factored=False, epsilon=1e-3),
    ),
    Instance("NoisySGD", lambda: mx.NoisySGD(0.05), lambda: optax.noisy_sgd(0.05, key=0)),
    Instance("SM3", lambda: mx.SM3(0.05), lambda: with_scalars(optax.sm3(0.05))),
)
