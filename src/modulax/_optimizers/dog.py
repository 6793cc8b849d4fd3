"""The optimizers DoG and DoWG."""

from typing import Any

import equinox as eqx

from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, OptionalNumber, number
from .._protocol.masks import as_labels
from .._protocol.optimizer import AbstractOptimizer
from .._protocol.transform import AbstractTransform
from .._transforms.dog import ScaleByDoG, ScaleByDoWG, as_initial_step, check_initial_step
from .._transforms.regularization import AddDecayedWeights
from .._transforms.scaling import ScaleByLearningRate


class DoG(AbstractOptimizer):
    r"""SGD without a learning rate to tune: the step size is distance over gradients (DoG).

        optimizer = ParamAverage(DoG())  # evaluate the average: optimizer.eval_params(state, params)

    $$
    \begin{aligned}
    g_t &= \nabla f(w_t) + \lambda w_t \\
    \bar r_t &= \max(\bar r_{t-1}, \|w_t - w_0\|), \qquad G_t = G_{t-1} + \|g_t\|^2 \\
    w_{t+1} &= w_t - \eta\, \bar r_t\, g_t / \sqrt{G_t + \varepsilon}
    \end{aligned}
    $$

    with $w_0$ the initial parameters, and norms over all parameters. `init_step` sets $\bar r_0$. The authors recommend
    evaluating an average of the parameters.

    Args:
        learning_rate: factor $\eta$ of the step size, a number or a schedule, for example one that decays to zero.
        init_step: the first step: `("heuristic", 1e-6)` for $\bar r_0 = 10^{-6} (1 + \|w_0\|)$, `("distance", r)` for
            $\bar r_0 = r$, or `("learning_rate", lr)` for a first step size of `lr`.
        eps: $\varepsilon$, added to the sum of squares inside the root.
        weight_decay: coefficient $\lambda$ of the $L_2$ penalty, whose gradient $\lambda w_t$ is added to the gradient;
            None for none.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.

    References:
        Ivgi, Hinder and Carmon, [DoG is SGD's Best Friend: A Parameter-Free Dynamic Step Size
        Schedule](https://arxiv.org/abs/2302.12022), 2023.
    """

    learning_rate: Hyperparameter = number(1.0)
    init_step: Any = eqx.field(default=("heuristic", 1e-6), converter=as_initial_step)
    eps: Hyperparameter = number(1e-8)
    weight_decay: OptionalNumber = number(None, optional=True)
    mask: Any = eqx.field(static=True, default=None, converter=as_labels)

    def check(self) -> None:
        check_initial_step(self, self.init_step)

    def transform(self) -> Chain:
        return _penalized(self.weight_decay, self.mask, ScaleByDoG(self.init_step, self.eps), self.learning_rate)


class DoWG(AbstractOptimizer):
    r"""SGD without a learning rate to tune: distance over weighted gradients (DoWG), with longer steps than DoG.

        optimizer = DoWG()

    $$
    \begin{aligned}
    g_t &= \nabla f(w_t) + \lambda w_t \\
    \bar r_t^2 &= \max(\bar r_{t-1}^2, \|w_t - w_0\|^2), \qquad v_t = v_{t-1} + \bar r_t^2 \|g_t\|^2 \\
    w_{t+1} &= w_t - \eta\, \bar r_t^2\, g_t / (\sqrt{v_t} + \varepsilon)
    \end{aligned}
    $$

    with $w_0$ the initial parameters, and norms over all parameters.

    Args:
        learning_rate: factor $\eta$ of the step size, a number or a schedule, for example one that decays to zero.
        init_estim_sq_dist: initial estimate $\bar r_0^2$ of the squared distance to the solution; by default `eps`.
        eps: $\varepsilon$, added to the denominator outside the root.
        weight_decay: coefficient $\lambda$ of the $L_2$ penalty, whose gradient $\lambda w_t$ is added to the gradient;
            None for none.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.

    References:
        Khaled, Mishchenko and Jin, [DoWG Unleashed: An Efficient Universal Parameter-Free Gradient Descent
        Method](https://arxiv.org/abs/2305.16284), 2023.
    """

    learning_rate: Hyperparameter = number(1.0)
    init_estim_sq_dist: OptionalNumber = number(None, optional=True)
    eps: Hyperparameter = number(1e-4)
    weight_decay: OptionalNumber = number(None, optional=True)
    mask: Any = eqx.field(static=True, default=None, converter=as_labels)

    def transform(self) -> Chain:
        scaling = ScaleByDoWG(self.init_estim_sq_dist, self.eps)
        return _penalized(self.weight_decay, self.mask, scaling, self.learning_rate)


def _penalized(weight_decay: Any, mask: Any, scaling: AbstractTransform, learning_rate: Any) -> Chain:
    parts = [] if weight_decay is None else [AddDecayedWeights(weight_decay, mask)]
    return Chain(*parts, scaling, ScaleByLearningRate(learning_rate))
