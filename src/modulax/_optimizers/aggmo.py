"""The optimizer AggMo."""

import equinox as eqx
from jaxtyping import DTypeLike

from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, Numbers, numbers, required_number
from .._protocol.optimizer import AbstractOptimizer
from .._support.checks import DECAY
from .._transforms.aggmo import ScaleByAggMo, as_betas
from .._transforms.scaling import ScaleByLearningRate


class AggMo(AbstractOptimizer):
    r"""SGD with aggregated momentum: averages several momenta, so that fast ones damp the oscillations of slow ones.

        optimizer = AggMo(0.1, betas=(0.0, 0.9, 0.99))

    $$
    \begin{aligned}
    v_t^{(i)} &= \beta_i v_{t-1}^{(i)} + g_t \\
    w_{t+1} &= w_t - \frac{\eta}{K} \sum_{i=1}^K v_t^{(i)}
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$ and $v_0^{(i)} = 0$. The state has $K$ momenta. The authors' decay rates are
    $\beta_i = 1 - 0.1^{i-1}$. For weight decay as in SGD, write `Chain(AddDecayedWeights(1e-4), AggMo(0.1))`.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        betas: decay rates $\beta_1, \dots, \beta_K$ of the momenta.
        accumulator_dtype: dtype of the momenta; by default that of the parameters.

    References:
        Lucas et al., [Aggregated Momentum: Stability Through Passive Damping](https://arxiv.org/abs/1804.00325), 2018.
    """

    learning_rate: Hyperparameter = required_number()
    betas: Numbers = numbers((0.0, 0.9, 0.99), needs=DECAY, arranged=as_betas)
    accumulator_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def transform(self) -> Chain:
        return Chain(ScaleByAggMo(self.betas, self.accumulator_dtype), ScaleByLearningRate(self.learning_rate))
