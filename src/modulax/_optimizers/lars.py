"""LARS."""

from typing import Any, ClassVar

import equinox as eqx
import jax.tree_util as jtu
from jaxtyping import PyTree

from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, followed, number
from .._protocol.masks import AbstractRule, as_rule
from .._protocol.optimizer import AbstractOptimizer
from .._support.types import Follow
from .._transforms.momentum import Trace
from .._transforms.regularization import AddDecayedWeights
from .._transforms.scaling import ScaleByLearningRate
from .._transforms.trust_ratio import ScaleByTrustRatio


class _Both(AbstractRule):
    """A mask: the leaves for which each of two masks says what is wanted of it. None stands for all leaves."""

    def __init__(self, masks: tuple[AbstractRule | None, ...], wanted: tuple[bool, ...]):
        self.masks, self.wanted = masks, wanted

    def __eq__(self, other: object) -> bool:
        return type(other) is _Both and (self.masks, self.wanted) == (other.masks, other.wanted)

    def __hash__(self) -> int:
        return hash((self.masks, self.wanted))

    def labels(self, tree: PyTree, *, partial: bool = False) -> list[Any]:
        del partial
        every = [True] * len(jtu.tree_leaves(tree))
        found = [every if mask is None else mask.labels(tree) for mask in self.masks]
        # What is no boolean is handed on, to be refused by whom the mask is for.
        return [
            next((x for x in labels if not isinstance(x, bool)), labels == self.wanted)
            for labels in zip(*found, strict=True)
        ]


class LARS(AbstractOptimizer):
    r"""Momentum whose steps are, for each array, a fraction of the norm of its parameters.

    $$
    \begin{aligned}
    \lambda_t &= \eta\, c\, \frac{\|w_t\|}{\|g_t\| + \beta \|w_t\| + \varepsilon} \\
    v_{t+1} &= \mu v_t + \lambda_t (g_t + \beta w_t), \qquad w_{t+1} = w_t - v_{t+1}
    \end{aligned}
    $$

    with the norms of one array. Where the denominator is zero, or $w_t$ is, it takes $\eta$ for $\lambda_t$.

    Args:
        learning_rate: $\eta$.
        weight_decay: $\beta$.
        mask: the leaves that decay, as in `AddDecayedWeights`; by default all.
        trust_coefficient: $c$.
        eps: $\varepsilon$.
        trust_ratio_mask: the leaves whose steps are in proportion; by default all. The others take gradient descent.
        momentum: the decay $\mu$.
        nesterov: whether the momentum looks ahead.
        follow: whose ratio it is where parameters decay: the paper's, as above, or optax's, which divides by
            $\|g_t + \beta w_t\|$.

    References:
        You et al., [Large Batch Training of Convolutional Networks](https://arxiv.org/abs/1708.03888), 2017.
    """

    cites: ClassVar[tuple[str, ...]] = ("you2017",)

    learning_rate: Hyperparameter = number()
    weight_decay: Hyperparameter = number(0.0)
    mask: Any = eqx.field(static=True, default=None, converter=as_rule)
    trust_coefficient: Hyperparameter = number(0.001)
    eps: Hyperparameter = number(0.0)
    trust_ratio_mask: Any = eqx.field(static=True, default=None, converter=as_rule)
    momentum: Hyperparameter = number(0.9)
    nesterov: bool = eqx.field(static=True, default=False)
    follow: Follow = followed()

    def transform(self) -> Chain:
        scaled = ScaleByTrustRatio(trust_coefficient=self.trust_coefficient, eps=self.eps, mask=self.trust_ratio_mask)
        if self.follow == "optax":
            parts = [AddDecayedWeights(self.weight_decay, self.mask), scaled]
        else:
            decays_only, both, scaled_only = (
                _Both((self.mask, self.trust_ratio_mask), wanted)
                for wanted in ((True, False), (True, True), (False, True))
            )
            parts = [
                AddDecayedWeights(self.weight_decay, decays_only),
                scaled.replace(weight_decay=self.weight_decay, mask=both),
                scaled.replace(mask=scaled_only),
            ]
        return Chain(*parts, ScaleByLearningRate(self.learning_rate), Trace(self.momentum, self.nesterov))
