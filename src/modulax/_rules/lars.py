"""LARS: SGD with momentum and layer-wise trust ratios."""

from typing import Any

import jax.tree_util as jtu

from .. import authoring as ma
from .._protocol.masks import AbstractLabels
from .._transforms.momentum import Trace
from .._transforms.trust_ratio import ScaleByTrustRatio


class _Both(AbstractLabels):
    """A mask of the leaves for which each of two masks has the wanted value. A mask of None selects all leaves."""

    def __init__(self, masks: tuple[AbstractLabels | None, ...], wanted: tuple[bool, ...]):
        self.masks, self.wanted = masks, wanted

    def __eq__(self, other: object) -> bool:
        return type(other) is _Both and (self.masks, self.wanted) == (other.masks, other.wanted)

    def __hash__(self) -> int:
        return hash((self.masks, self.wanted))

    def labels(self, tree: ma.PyTree, *, partial: bool = False) -> list[Any]:
        del partial
        every = [True] * len(jtu.tree_leaves(tree))
        found = [every if mask is None else mask.labels(tree) for mask in self.masks]
        # Labels that aren't booleans are passed on: the transform that owns the mask raises the error.
        return [
            next((x for x in labels if not isinstance(x, bool)), labels == self.wanted)
            for labels in zip(*found, strict=True)
        ]


class LARS(ma.AbstractRated):
    r"""SGD with momentum and layer-wise trust ratios, for large-batch training.

        optimizer = LARS(0.1, weight_decay=1e-4, momentum=0.9)

    $$
    \begin{aligned}
    \lambda_t &= \eta\, c\, \frac{\|w_t\|}{\|g_t\| + \beta \|w_t\| + \varepsilon} \\
    v_{t+1} &= \mu v_t + \lambda_t (g_t + \beta w_t) \\
    w_{t+1} &= w_t - v_{t+1}
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$, $v_0 = 0$, and the norms of one array. Where $\|w_t\|$ or
    $\|g_t\| + \beta \|w_t\|$ is zero, $\lambda_t = \eta$. With `nesterov`,
    $w_{t+1} = w_t - \mu v_{t+1} - \lambda_t (g_t + \beta w_t)$.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        weight_decay: weight decay coefficient $\beta$; the decay takes part in the trust ratio.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.
        trust_coefficient: trust coefficient $c$.
        eps: $\varepsilon$, added to the denominator of the ratio.
        trust_ratio_mask: which parameters are scaled by the trust ratio; by default all. For the others,
            $\lambda_t = \eta$.
        momentum: momentum coefficient $\mu$.
        nesterov: whether to use Nesterov momentum.
        follow: the trust ratio of parameters that decay: the paper's, `"paper"`, as above, or `"optax"`, which divides
            by $\|g_t + \beta w_t\|$.

    References:
        You et al., [Large Batch Training of Convolutional Networks](https://arxiv.org/abs/1708.03888), 2017.
    """

    weight_decay: ma.Number = ma.number(0.0)
    mask: ma.Mask = ma.mask()
    trust_coefficient: ma.Number = ma.number(0.001)
    eps: ma.Number = ma.number(0.0)
    trust_ratio_mask: ma.Mask = ma.mask()
    momentum: ma.Number = ma.number(0.9)
    nesterov: bool = ma.static(False)
    follow: ma.Follow = ma.followed()

    def transform(self) -> ma.Chain:
        scaled = ScaleByTrustRatio(trust_coefficient=self.trust_coefficient, eps=self.eps, mask=self.trust_ratio_mask)
        if self.follow == "optax":
            parts = [ma.AddDecayedWeights(self.weight_decay, self.mask), scaled]
        else:
            decays_only, both, scaled_only = (
                _Both((self.mask, self.trust_ratio_mask), wanted)
                for wanted in ((True, False), (True, True), (False, True))
            )
            parts = [
                ma.AddDecayedWeights(self.weight_decay, decays_only),
                scaled.replace(weight_decay=self.weight_decay, mask=both),
                scaled.replace(mask=scaled_only),
            ]
        return ma.Chain(*parts, ma.ScaleByLearningRate(self.learning_rate), Trace(self.momentum, self.nesterov))
