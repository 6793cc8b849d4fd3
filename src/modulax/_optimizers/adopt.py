"""ADOPT."""

from collections.abc import Callable

import equinox as eqx
from jaxtyping import Array, DTypeLike

from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, number
from .._protocol.optimizer import AbstractOptimizer
from .._support.checks import DECAY
from .._transforms.adopt import ScaleByADOPT, fourth_root
from .._transforms.scaling import ScaleByLearningRate


class ADOPT(AbstractOptimizer):
    """Adam changed so that it converges with any decay of the mean square. See `ScaleByADOPT` for the equations.

    The first step only measures the gradient: the parameters stay where they are.

    Args:
        learning_rate: the step size.
        b1: the decay of the mean.
        b2: the decay of the mean square.
        eps: the smallest denominator.
        mu_dtype: the dtype of the mean; by default the parameter's.
        nesterov: whether to look ahead.
        use_clipping: whether to clip what enters the mean.
        clip_value_fn: the bound for that, a function of the step.

    References:
        Taniguchi et al., [ADOPT: Modified Adam Can Converge with Any β2 with the Optimal
        Rate](https://arxiv.org/abs/2411.02853), 2024.
    """

    learning_rate: Hyperparameter = number()
    b1: Hyperparameter = number(0.9, needs=DECAY)
    b2: Hyperparameter = number(0.9999, needs=DECAY)
    eps: Hyperparameter = number(1e-6)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nesterov: bool = eqx.field(static=True, default=False, kw_only=True)
    use_clipping: bool = eqx.field(static=True, default=True, kw_only=True)
    clip_value_fn: Callable[[Array], Array] = eqx.field(static=True, default=fourth_root, kw_only=True)

    def transform(self) -> Chain:
        adopt = ScaleByADOPT(
            self.b1,
            self.b2,
            self.eps,
            self.mu_dtype,
            nesterov=self.nesterov,
            use_clipping=self.use_clipping,
            clip_value_fn=self.clip_value_fn,
        )
        return Chain(adopt, ScaleByLearningRate(self.learning_rate))
