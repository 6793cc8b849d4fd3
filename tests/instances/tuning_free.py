"""Methods that find their own step size."""

import jax
import jax.numpy as jnp
import optax

import modulax as mx
from modulax import schedules

from ._instance import Instance, twins
from ._masks import KERNELS, loss, not_bias

contrib = optax.contrib


def _flipped(transform: optax.GradientTransformation) -> optax.GradientTransformation:
    """The counterpart of a bare transform: optax has only the whole optimizer, whose sign is flipped here."""
    return optax.chain(transform, optax.scale(-1.0))


def _reshaped(transform: optax.GradientTransformation) -> optax.GradientTransformation:
    """A counterpart whose scalars become arrays of shape [1], reshaped to scalars."""
    shapes = optax.stateless(lambda updates, params: jax.tree.map(lambda u, p: u.reshape(p.shape), updates, params))
    return optax.chain(transform, shapes)


TRANSFORMS = (
    # --- the distance travelled
    # Without bias correction the steps depend on the root of 1 - b2, which finite differences cannot follow at 0.999.
    Instance("ScaleByProdigy", lambda: mx.ScaleByProdigy(b2=0.99)),
    Instance(
        "ScaleByProdigy-optax",
        lambda: mx.ScaleByProdigy(b2=0.99, estim_lr0=0.01, follow="optax"),
        lambda: _flipped(contrib.prodigy(betas=(0.9, 0.99), estim_lr0=0.01)),
    ),
    Instance("Prodigy", lambda: mx.Prodigy(betas=(0.9, 0.99), weight_decay=0.01)),
    twins("Prodigy-optax", mx.Prodigy, contrib.prodigy, 0.5, (0.8, 0.99), 0.9, 1e-6, 1e-2, 1.2, 0.1, follow="optax"),
    Instance(
        "Prodigy-schedule",
        lambda: mx.Prodigy(schedules.Linear(1.0, 0.1, 20), (0.9, 0.99), safeguard_warmup=True, follow="optax"),
        lambda: contrib.prodigy(optax.linear_schedule(1.0, 0.1, 20), (0.9, 0.99), safeguard_warmup=True),
    ),
    Instance("Prodigy-mask", lambda: mx.Prodigy(betas=(0.9, 0.99), weight_decay=0.1, mask=KERNELS)),
    Instance("ScaleByDAdaptAdam", lambda: mx.ScaleByDAdaptAdam(b2=0.99)),
    Instance(
        "ScaleByDAdaptAdam-optax",
        lambda: mx.ScaleByDAdaptAdam(b2=0.99, estim_lr0=0.01, follow="optax"),
        lambda: _flipped(contrib.dadapt_adamw(betas=(0.9, 0.99), estim_lr0=0.01)),
    ),
    Instance("DAdaptAdamW", lambda: mx.DAdaptAdamW(betas=(0.9, 0.99), weight_decay=0.01)),
    twins("DAdaptAdamW-optax", mx.DAdaptAdamW, contrib.dadapt_adamw, 0.5, (0.8, 0.99), 1e-6, 1e-2, 0.1, follow="optax"),
    Instance(
        "ScaleByDoG",
        lambda: mx.ScaleByDoG(("distance", 0.1)),
        lambda: _flipped(contrib.dog(1.0, ("distance", 0.1))),
    ),
    Instance("DoG", mx.DoG, contrib.dog),
    Instance(
        "DoG-learning_rate",
        lambda: mx.DoG(0.5, ("learning_rate", 0.1), 1e-3, 0.1, KERNELS),
        lambda: contrib.dog(0.5, ("learning_rate", 0.1), 1e-3, 0.1, not_bias),
    ),
    Instance("ScaleByDoWG", lambda: mx.ScaleByDoWG(0.1), lambda: _flipped(contrib.dowg(1.0, 0.1))),
    Instance("DoWG", mx.DoWG, contrib.dowg),
    Instance(
        "DoWG-decay",
        lambda: mx.DoWG(0.5, 0.1, 1e-3, 0.1, KERNELS),
        lambda: contrib.dowg(0.5, 0.1, 1e-3, 0.1, not_bias),
    ),
    Instance(
        "ScaleByDistanceOverGradients",
        mx.ScaleByDistanceOverGradients,
        lambda: _reshaped(optax.scale_by_distance_over_gradients()),
    ),
    Instance(
        "ScaleByDistanceOverGradients-numbers",
        lambda: mx.ScaleByDistanceOverGradients(0.01, 1e-3, global_scale=-0.5),
        lambda: _reshaped(optax.scale_by_distance_over_gradients(0.01, 1e-3, jnp.float32, -0.5)),
    ),
    Instance("ScaleByCOCOB", mx.ScaleByCOCOB, contrib.scale_by_cocob),
    Instance(
        "COCOB",
        lambda: mx.COCOB(2.0, 10.0, 1e-4, 0.1, KERNELS),
        lambda: contrib.cocob(2.0, 10.0, 1e-4, 0.1, not_bias),
    ),
    # --- the loss
    Instance("ScaleByPolyak", lambda: mx.ScaleByPolyak(0.5), lambda: optax.scale_by_polyak(0.5), extra=loss),
    Instance(
        "ScaleByPolyak-plus",
        lambda: mx.ScaleByPolyak(3.0, 0.5, 0.1, "sps+"),
        lambda: optax.scale_by_polyak(3.0, 0.5, 0.1, "sps+"),
        extra=loss,
    ),
    Instance("PolyakSGD", mx.PolyakSGD, optax.polyak_sgd, extra=loss),
    Instance(
        "PolyakSGD-optax",
        lambda: mx.PolyakSGD(0.5, 0.7, 0.5, 0.1, follow="optax"),
        lambda: optax.polyak_sgd(0.5, 0.7, 0.5, 0.1),
        extra=loss,
    ),
    Instance("PolyakSGD-scaled", lambda: mx.PolyakSGD(scaling=0.5), extra=loss),
    Instance("ScaleByMoMo", mx.ScaleByMoMo, lambda: _flipped(contrib.momo()), extra=loss),
    Instance("MoMo", lambda: mx.MoMo(0.5, 0.8, 0.1), lambda: contrib.momo(0.5, 0.8, 0.1), extra=loss),
    Instance(
        "MoMo-bound",
        lambda: mx.MoMo(0.5, 0.8, 5.0, 0.1, True, follow="optax"),
        lambda: contrib.momo(0.5, 0.8, 5.0, 0.1, True),
        extra=loss,
        rtol=1e-5,
    ),
    Instance("MoMo-decay", lambda: mx.MoMo(0.5, weight_decay=0.1), extra=loss, rtol=1e-5),
    Instance("ScaleByMoMoAdam", mx.ScaleByMoMoAdam, lambda: _flipped(contrib.momo_adam()), extra=loss),
    Instance(
        "MoMoAdam",
        lambda: mx.MoMoAdam(0.5, 0.8, 0.99, 1e-4, 0.1),
        lambda: contrib.momo_adam(0.5, 0.8, 0.99, 1e-4, 0.1),
        extra=loss,
    ),
    Instance(
        "MoMoAdam-bound",
        lambda: mx.MoMoAdam(0.5, 0.8, 0.99, 1e-4, 5.0, 0.1, True, follow="optax"),
        lambda: contrib.momo_adam(0.5, 0.8, 0.99, 1e-4, 5.0, 0.1, True),
        extra=loss,
    ),
    Instance("MoMoAdam-decay", lambda: mx.MoMoAdam(0.5, weight_decay=0.1), extra=loss),
)
