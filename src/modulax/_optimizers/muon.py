"""Muon for the matrices, AdamW for the rest."""

from dataclasses import KW_ONLY
from typing import Any, ClassVar

import equinox as eqx
from jaxtyping import DTypeLike

from .._containers.chain import Chain
from .._containers.partition import Partition
from .._protocol.fields import Hyperparameter, followed, number, numbers
from .._protocol.masks import as_rule
from .._protocol.optimizer import AbstractOptimizer
from .._support.checks import DECAY, check_choice
from .._support.types import Follow
from .._transforms.matrices import MatrixLabels, matrices_as
from .._transforms.muon import MuonDimensionNumbers, ScaleByMuon, ScaleByShape
from .._transforms.regularization import AddDecayedWeights
from .._transforms.scaling import ScaleByLearningRate
from ..linalg._newton_schulz import PRECONDITIONINGS, as_coefficients
from .adam import AdamW


class Muon(AbstractOptimizer):
    r"""Momentum made orthogonal, for the matrices of the hidden layers; AdamW for everything else.

    $w_{t+1} = w_t - \eta (s\, u_t + \lambda w_t)$, with $u_t$ of `ScaleByMuon` and the factor $s$ of `ScaleByShape`.
    Embeddings and the last layer are better trained with AdamW too: give `muon_weight_dimension_numbers`.

    optax's AdamW beside it becomes NAdamW wherever Muon looks ahead; ours does with `follow="optax"` alone.

    Args:
        learning_rate: $\eta$.
        ns_coeffs: the coefficients of the Newton-Schulz iteration, as in `ScaleByMuon`.
        ns_steps: how many steps are made with one triple.
        beta: the decay of Muon's momentum.
        eps: added to the norm of a matrix, and to the root of AdamW's mean square.
        weight_decay: $\lambda$ of the matrices, which is multiplied by the learning rate.
        mask: the matrices that decay, as in `AddDecayedWeights`; by default all.
        mu_dtype: the dtype of the momentum and of AdamW's mean; by default the parameter's.
        nesterov: whether Muon looks ahead.
        adaptive: whether to multiply by the nuclear norm of the momentum.
        preconditioning: what a matrix is divided by at first, as in `linalg.orthogonalize`.
        adam_b1: the decay of AdamW's mean.
        adam_b2: the decay of AdamW's mean square.
        adam_eps_root: added to AdamW's mean square inside the root.
        adam_weight_decay: the weight decay of AdamW.
        adam_learning_rate: the learning rate of AdamW; None for Muon's.
        muon_weight_dimension_numbers: which parameters are Muon's, and which of their axes make a matrix, as in
            `ScaleByMuon`; by default those of two axes.
        consistent_rms: the root mean square of an update, as in `ScaleByShape`; None for the other factor.
        follow: `"paper"`, or `"optax"` for its bias correction, and for NAdamW with `nesterov`.

    References:
        Jordan et al., [Muon: An optimizer for hidden layers in neural
        networks](https://kellerjordan.github.io/posts/muon/), 2024;
        Liu et al., [Muon is Scalable for LLM Training](https://arxiv.org/abs/2502.16982), 2025.
    """

    cites: ClassVar[tuple[str, ...]] = ("jordan2024",)

    learning_rate: Hyperparameter = number()
    ns_coeffs: Any = numbers(((3.4445, -4.775, 2.0315),), arranged=as_coefficients)
    ns_steps: int = eqx.field(static=True, default=5)
    beta: Hyperparameter = number(0.95, needs=DECAY)
    eps: Hyperparameter = number(1e-8)
    weight_decay: Hyperparameter = number(0.0)
    mask: Any = eqx.field(static=True, default=None, converter=as_rule)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    _: KW_ONLY
    nesterov: bool = eqx.field(static=True, default=True)
    adaptive: bool = eqx.field(static=True, default=False)
    preconditioning: str = eqx.field(static=True, default="frobenius")
    adam_b1: Hyperparameter = number(0.9, needs=DECAY)
    adam_b2: Hyperparameter = number(0.999, needs=DECAY)
    adam_eps_root: Hyperparameter = number(0.0)
    adam_weight_decay: Hyperparameter = number(0.0)
    adam_learning_rate: Hyperparameter | None = number(None, optional=True)
    muon_weight_dimension_numbers: Any = eqx.field(
        static=True, default=None, converter=matrices_as(MuonDimensionNumbers)
    )
    consistent_rms: Hyperparameter | None = number(None, optional=True)
    follow: Follow = followed()

    def check(self) -> None:
        check_choice(self, "preconditioning", tuple(PRECONDITIONINGS))

    def transform(self) -> Partition:
        matrices = self.muon_weight_dimension_numbers
        muon = Chain(
            ScaleByMuon(
                self.ns_coeffs,
                self.ns_steps,
                self.beta,
                self.eps,
                self.mu_dtype,
                nesterov=self.nesterov,
                adaptive=self.adaptive,
                preconditioning=self.preconditioning,
                weight_dimension_numbers=matrices,
                follow=self.follow,
            ),
            ScaleByShape(matrices, self.consistent_rms),
            AddDecayedWeights(self.weight_decay, self.mask),
            ScaleByLearningRate(self.learning_rate),
        )
        adam = AdamW(
            self.learning_rate if self.adam_learning_rate is None else self.adam_learning_rate,
            self.adam_b1,
            self.adam_b2,
            self.eps,
            self.adam_eps_root,
            self.mu_dtype,
            self.adam_weight_decay,
            nesterov=self.nesterov and self.follow == "optax",
        )
        labels = MatrixLabels("Muon(muon_weight_dimension_numbers=...)", matrices, "muon", "adam")
        return Partition({"muon": muon, "adam": adam}, labels)
