"""The optimizer Amos."""

from dataclasses import KW_ONLY
from typing import Any

import equinox as eqx

from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, OptionalNumber, number, numbers, required_number
from .._protocol.optimizer import AbstractOptimizer
from .._support.checks import DECAY, NON_NEGATIVE
from .._transforms.amos import ScaleByAmos, as_scales
from .._transforms.block_means import roles_of_blocks
from .._transforms.clipping import Clip
from .._transforms.momentum import Ema
from .._transforms.scaling import Scale


class Amos(AbstractOptimizer):
    r"""Adam-like optimizer that decays its learning rate and weight decay by itself, given the scale of each parameter.

        optimizer = Amos(schedules.WarmupConstant(0.0, 0.02, 1000))

    $$
    \begin{aligned}
    v_t &= \beta v_{t-1} + (1 - \beta) \operatorname{mean}_{\text{block}} |g_t|^2, \qquad
        \hat v_t = \max(v_t, \varepsilon) / (1 - \beta^t) \\
    \gamma_t &= \frac{\xi^2}{\sqrt{1 + c \sqrt\xi\, b_{t-1}}}
        \frac{\operatorname{mean}_{\text{block}} |g_t|^2}{\hat v_t} \\
    u_t &= \frac{1}{1 + d \sqrt{\xi \eta}\, b_{t-1}} \left( \frac{\xi \eta}{\sqrt{\hat v_t}}\, g_t
        + \left( \frac{\gamma_t}{2} + \lambda \right) w_t \right) \\
    b_t &= b_{t-1} + \gamma_t (1 + b_{t-1}), \qquad w_{t+1} = w_t - u_t
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$ and $v_0 = b_0 = 0$. With `momentum`, the average of the steps $u_t$ is taken in
    their place. The scale $\eta$ of a parameter is the size to which its entries are expected to grow; by default it
    follows from the role, see `ScaleByAmos`. A block is a single entry, or with `per_output` all weights of one output
    of a matrix, of one token of an embedding, or of any other array.

    Args:
        learning_rate: learning rate $\xi$, a number or a schedule; about the root of the batch size over the number of
            examples, after a warm-up, and without a decay.
        eta: $\eta$, a number for all parameters, or a mapping from patterns to numbers, such as
            `{"*bias": 0.5, "head.*": 0.1}`. Otherwise it follows from the role.
        beta: exponential decay rate $\beta$ of the second moment; $1 - \beta$ is about the learning rate.
        momentum: exponential decay rate of the average of the steps; None for none.
        clip_value: the largest absolute value of an entry of the gradient; None for no clipping.
        extra_l2: $\lambda$, another weight decay.
        d_coef: $d$, how fast the learning rate falls.
        c_coef: $c$, how fast the weight decay falls.
        eps: $\varepsilon$, the smallest second moment.
        per_output: whether there is one number for each output and each token, and for each other array.
        roles: roles of parameters for which they are not found, or found wrongly: a mapping from patterns to roles, or
            the result of `roles(model)`.

    References:
        Tian and Parikh, [Amos: An Adam-style Optimizer with Adaptive Weight Decay towards Model-Oriented
        Scale](https://arxiv.org/abs/2210.11693), 2022, and the authors'
        [code](https://github.com/google-research/jestimator).
    """

    learning_rate: Hyperparameter = required_number(needs=NON_NEGATIVE)
    eta: Any = numbers(None, arranged=as_scales)
    beta: Hyperparameter = number(0.999, needs=DECAY)
    momentum: OptionalNumber = number(None, needs=DECAY, optional=True)
    clip_value: OptionalNumber = number(None, needs=NON_NEGATIVE, optional=True)
    extra_l2: Hyperparameter = number(0.0)
    d_coef: Hyperparameter = number(0.25)
    c_coef: Hyperparameter = number(0.25)
    eps: Hyperparameter = number(2.351e-38)
    _: KW_ONLY
    per_output: bool = eqx.field(static=True, default=False)
    roles: Any = roles_of_blocks()

    def transform(self) -> Chain:
        step = self._part(ScaleByAmos)
        clip = [] if self.clip_value is None else [Clip(self.clip_value)]
        average = [] if self.momentum is None else [Ema(self.momentum, debias=False)]
        return Chain(*clip, step, *average, Scale(-1.0))
