"""Methods for matrices: Muon, GaLore; and differential privacy."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

import modulax as mx
from modulax import schedules

from ._instance import ROUNDED, Instance, twins
from ._masks import KERNELS, matrices, not_bias, previous

DION = (
    (4.0848, -6.8946, 2.9270),
    (3.9505, -6.3029, 2.6377),
    (3.7418, -5.5913, 2.3037),
    (2.8769, -3.1427, 1.2046),
    (2.8366, -3.0525, 1.2012),
)
# optax decomposes matrices in float32 always.
IN_FLOAT32: Any = {"optax_rtol": 1e-5}


def two_axes(tree: Any) -> Any:
    return jax.tree.map(lambda x: x.ndim == 2, tree)


def last_two_axes(tree: Any) -> Any:
    """Every array that has two axes or more as matrices of its last two."""
    return jax.tree.map(lambda x: mx.MuonDimensionNumbers(-2, -1) if x.ndim > 1 else None, tree)


def last_two_axes_for_optax(tree: Any) -> Any:
    return jax.tree.map(lambda x: optax.contrib.MuonDimensionNumbers(-2, -1) if x.ndim > 1 else None, tree)


def flattened(tree: Any) -> Any:
    """The kernel of a convolution as one matrix, and so every other array."""
    return jax.tree.map(lambda x: mx.GaLoreDimensionNumbers(tuple(range(x.ndim - 1)), -1) if x.ndim > 1 else None, tree)


def flattened_for_optax(tree: Any) -> Any:
    def numbers(x: Any) -> Any:
        return optax.contrib.GaLoreDimensionNumbers(tuple(range(x.ndim - 1)), -1) if x.ndim > 1 else None

    return jax.tree.map(numbers, tree)


def scale_by_muon(**arguments: Any) -> Any:
    """optax's accepts only matrices."""
    specification = optax.contrib.MuonDimensionNumbers()
    inner = optax.contrib.scale_by_muon(
        **arguments, weight_dimension_numbers=lambda tree: jax.tree.map(lambda _: specification, tree)
    )
    return optax.masked(inner, two_axes)


def scale_by_shape(**arguments: Any) -> Any:
    specification = optax.contrib.MuonDimensionNumbers()
    inner = optax.contrib._muon.scale_by_shape(  # pyright: ignore[reportAttributeAccessIssue]
        **arguments, weight_dimension_numbers=lambda tree: jax.tree.map(lambda _: specification, tree)
    )
    return optax.masked(inner, two_axes)


TRANSFORMS = (
    # --- Muon
    Instance("ScaleByMuon", mx.ScaleByMuon),
    Instance("ScaleByMuon-optax", lambda: mx.ScaleByMuon(follow="optax"), scale_by_muon),
    Instance(
        "ScaleByMuon-adaptive",
        lambda: mx.ScaleByMuon("dion", beta=0.9, eps=1e-4, nesterov=False, adaptive=True, follow="optax"),
        lambda: scale_by_muon(ns_coeffs=DION, beta=0.9, eps=1e-4, nesterov=False, adaptive=True),
    ),
    *(
        Instance(
            f"ScaleByMuon-{name}",
            lambda name=name: mx.ScaleByMuon(ns_steps=3, preconditioning=name, follow="optax"),
            lambda name=name: scale_by_muon(ns_steps=3, preconditioning=name),
        )
        for name in ("spectral", "aol", "schatten")
    ),
    Instance("ScaleByMuon-float32", lambda: mx.ScaleByMuon(mu_dtype=jnp.float32), exemptions=ROUNDED),
    Instance("ScaleByShape", mx.ScaleByShape, scale_by_shape),
    Instance(
        "ScaleByShape-rms",
        lambda: mx.ScaleByShape(consistent_rms=0.2, follow="optax"),
        lambda: scale_by_shape(consistent_rms=0.2),
    ),
    Instance("Muon", lambda: mx.Muon(0.05, adam_learning_rate=0.05)),
    Instance(
        "Muon-roles",
        lambda: mx.Muon(
            0.05,
            weight_decay=0.1,
            adam_learning_rate=0.01,
            per_head=True,
            clamped=False,
            cautious_weight_decay=True,
        ),
    ),
    twins("Muon-optax", mx.Muon, optax.contrib.muon, 0.05, follow="optax"),
    Instance(
        "Muon-mask",
        lambda: mx.Muon(
            0.05,
            beta=0.9,
            weight_decay=0.1,
            mask=KERNELS,
            adam_b1=0.8,
            adam_b2=0.99,
            adam_eps_root=1e-6,
            adam_weight_decay=0.2,
            adam_learning_rate=0.01,
            muon_weight_dimension_numbers=last_two_axes,
            consistent_rms=0.2,
            follow="optax",
        ),
        lambda: optax.contrib.muon(
            0.05,
            beta=0.9,
            weight_decay=0.1,
            weight_decay_mask=not_bias,
            adam_b1=0.8,
            adam_b2=0.99,
            adam_eps_root=1e-6,
            adam_weight_decay=0.2,
            adam_learning_rate=0.01,
            muon_weight_dimension_numbers=last_two_axes_for_optax,
            consistent_rms=0.2,
        ),
        exemptions={"a_field_of_an_optimizer_is_handed_on": "roles mean nothing beside the axes of each matrix"},
    ),
    Instance("ScaleByMuon-sign", lambda: mx.ScaleByMuon(sign=True)),
    # --- NorMuon and AdaMuon
    Instance("ScaleByNorMuon", mx.ScaleByNorMuon),
    Instance(
        "ScaleByNorMuon-polar",
        lambda: mx.ScaleByNorMuon(
            0.9, 0.8, 1e-6, 1e-4, jnp.float32, ns_coeffs="polar_express", nesterov=False, per_head=True
        ),
        exemptions=ROUNDED,
    ),
    Instance("NorMuon", lambda: mx.NorMuon(0.05, mask=matrices, adam_learning_rate=0.05)),
    Instance("ScaleByAdaMuon", mx.ScaleByAdaMuon),
    Instance(
        "ScaleByAdaMuon-timm",
        lambda: mx.ScaleByAdaMuon(
            0.9, 0.8, 1e-6, 1e-4, 0.3, ns_coeffs="dion", nesterov=False, sign=False, per_head=True
        ),
    ),
    Instance("AdaMuon", lambda: mx.AdaMuon(0.05, mask=matrices, adam_learning_rate=0.05)),
    # --- Scion
    Instance("ScaleByScion", mx.ScaleByScion),
    *(
        Instance(f"ScaleByScion-{norm}", lambda norm=norm: mx.ScaleByScion(0.8, 2.0, vector_scale=0.5, norm=norm))
        for norm in ("sign", "input", "output")
    ),
    Instance("Scion", lambda: mx.Scion(0.05, scale=2.0)),
    Instance(
        "Scion-free",
        lambda: mx.Scion(
            0.05,
            0.8,
            2.0,
            None,
            3.0,
            0.5,
            1e-3,
            constrained=False,
            roles={"*": mx.Head()},
            clamped=True,
        ),
    ),
    # --- MARS-M
    Instance("ReduceVariance", mx.ReduceVariance, extra=previous),
    Instance(
        "ReduceVariance-exact",
        lambda: mx.ReduceVariance(exact=True),
        extra=previous,
        exemptions={"multisteps_steps_on_the_mean": "`MultiSteps` doesn't average extra arguments, and warns of it"},
    ),
    Instance("ReduceVariance-unclipped", lambda: mx.ReduceVariance(0.5, schedules.Linear(0.8, 0.95, 10), None)),
    Instance("MARSM", lambda: mx.MARSM(0.05, mask=matrices, adam_learning_rate=0.01)),
    # --- Dion
    Instance("ScaleByDion", mx.ScaleByDion),
    Instance("ScaleByDion-part", lambda: mx.ScaleByDion(rank_fraction=0.5, rank_multiple_of=2)),
    Instance(
        "ScaleByDion-inputs",
        lambda: mx.ScaleByDion(0.8, 1e-3, jnp.float32, rank=1, power_iterations=2, basis="inputs", key=3),
        exemptions=ROUNDED,
    ),
    Instance(
        "Dion",
        lambda: mx.Dion(
            0.05, rank=1, mask=matrices, basis="inputs", power_iterations=2, consistent_rms=0.2, adam_learning_rate=0.05
        ),
    ),
    # --- SOAP
    # A large `eps`: where a rotated gradient is zero but for rounding, Adam would divide rounding by its own root.
    Instance("ScaleBySOAP", lambda: mx.ScaleBySOAP(eps=1e-3)),
    Instance("ScaleBySOAP-often", lambda: mx.ScaleBySOAP(0.8, 0.9, 0.7, 1e-6, 1, 2)),
    Instance("SOAP", lambda: mx.SOAP(0.05, eps=1e-3, mask=matrices)),
    # --- Shampoo
    Instance("ScaleByShampoo", lambda: mx.ScaleByShampoo(eps=0.1, precondition_frequency=40, start=1)),
    Instance(
        "ScaleByShampoo-all",
        lambda: mx.ScaleByShampoo(0.8, 0.9, 0.7, 0.1, 40, 1, 2, 0.4, mx.ScaleByAdam(), kl=True),
    ),
    Instance(
        "Shampoo",
        lambda: mx.Shampoo(
            0.05, b2=0.9, eps=0.1, precondition_frequency=40, start=1, grafting=mx.ScaleByRMS(), mask=matrices
        ),
    ),
    Instance("KLShampoo", lambda: mx.KLShampoo(0.05, eps=0.1, precondition_frequency=40, start=1)),
    # --- EShampoo
    Instance("ScaleByEShampoo", lambda: mx.ScaleByEShampoo(eps=0.1, start=2)),
    Instance("ScaleByEShampoo-qr", lambda: mx.ScaleByEShampoo(0.8, 1.0, 0.7, 0.1, 40, 1, 2, qr_iterations=2)),
    Instance("EShampoo", lambda: mx.EShampoo(0.05, eps=0.1, start=1, mask=matrices)),
    # --- Kron
    Instance("ScaleByKron", mx.ScaleByKron),
    Instance(
        "ScaleByKron-diagonal",
        lambda: mx.ScaleByKron(
            0.8, 0.6, 0.3, 0.5, 2, 1, diagonal="longer", momentum_into_precond_update=False, key=jax.random.key(7)
        ),
    ),
    Instance("ScaleByKron-blocks", lambda: mx.ScaleByKron(block_size=3)),
    Instance("Kron", lambda: mx.Kron(0.05)),
    Instance(
        "Kron-mask",
        lambda: mx.Kron(
            0.05, preconditioner_update_probability=0.3, weight_decay=0.1, mask=KERNELS, diagonal="one", key=3
        ),
    ),
    # --- GaLore
    Instance("ScaleByGaLore", mx.ScaleByGaLore),
    Instance(
        "ScaleByGaLore-optax",
        lambda: mx.ScaleByGaLore(1, 3, 0.25, follow="optax"),
        lambda: optax.contrib.scale_by_galore(1, 3, 0.25),
        **IN_FLOAT32,
    ),
    Instance(
        "ScaleByGaLore-tensors",
        lambda: mx.ScaleByGaLore(2, 7, 1.0, mx.Trace(0.8), flattened, follow="optax"),
        lambda: optax.contrib.scale_by_galore(2, 7, 1.0, optax.trace(0.8), flattened_for_optax),
        **IN_FLOAT32,
    ),
    Instance("GaLore", lambda: mx.GaLore(0.05, rank=1)),
    Instance(
        "GaLore-optax",
        lambda: mx.GaLore(0.05, 1, 5, 0.5, weight_decay=0.1, mask=KERNELS, follow="optax"),
        lambda: optax.contrib.galore(0.05, 1, 5, 0.5, weight_decay=0.1, mask=not_bias),
        **IN_FLOAT32,
    ),
    # --- differential privacy; the noise of optax is another, so the twins have none
    Instance("DifferentiallyPrivateAggregate", lambda: mx.DifferentiallyPrivateAggregate(1.5, 0.3, 0), examples=3),
    Instance(
        "DifferentiallyPrivateAggregate-silent",
        lambda: mx.DifferentiallyPrivateAggregate(1.5, 0.0, 0),
        lambda: optax.contrib.differentially_private_aggregate(1.5, 0.0, 0),
        examples=3,
    ),
    Instance("DPSGD", lambda: mx.DPSGD(0.05, 1.5, 0.3, jax.random.key(7)), examples=3),
    Instance(
        "DPSGD-silent",
        lambda: mx.DPSGD(0.05, 1.5, 0.0, 0, 0.9, True),
        # `optax.contrib.dpsgd` itself warns that its seed is deprecated.
        lambda: optax.chain(
            optax.contrib.differentially_private_aggregate(1.5, 0.0, 0), optax.sgd(0.05, 0.9, nesterov=True)
        ),
        examples=3,
    ),
)
