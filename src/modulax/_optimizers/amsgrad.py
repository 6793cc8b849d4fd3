"""AMSGrad."""

import equinox as eqx
from jaxtyping import DTypeLike

from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, followed, number
from .._protocol.optimizer import AbstractOptimizer
from .._support.checks import DECAY
from .._support.types import Follow
from .._transforms.amsgrad import ScaleByAMSGrad
from .._transforms.scaling import ScaleByLearningRate


class AMSGrad(AbstractOptimizer):
    """Adam with the largest mean square so far in place of the last, so that no step grows again.

    See `ScaleByAMSGrad` for the equations, and for the three forms in use.

    Args:
        learning_rate: the step size.
        b1: the decay of the mean.
        b2: the decay of the mean square.
        eps: added to the root of the mean square.
        eps_root: added to the mean square inside the root.
        mu_dtype: the dtype of the mean; by default the parameter's.
        bias_correction_mu: whether the mean is corrected for its start at zero.
        bias_correction_nu: whether the mean square is.
        follow: `"paper"`: the maximum of the mean square as it is; `"optax"`: of the corrected one.

    References:
        Reddi, Kale and Kumar, [On the Convergence of Adam and Beyond](https://openreview.net/forum?id=ryQu7f-RZ), 2018.
    """

    learning_rate: Hyperparameter = number()
    b1: Hyperparameter = number(0.9, needs=DECAY)
    b2: Hyperparameter = number(0.999, needs=DECAY)
    eps: Hyperparameter = number(1e-8)
    eps_root: Hyperparameter = number(0.0)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    bias_correction_mu: bool = eqx.field(static=True, default=True)
    bias_correction_nu: bool = eqx.field(static=True, default=True)
    follow: Follow = followed()

    def transform(self) -> Chain:
        return Chain(
            ScaleByAMSGrad(
                self.b1,
                self.b2,
                self.eps,
                self.eps_root,
                self.mu_dtype,
                self.bias_correction_mu,
                self.bias_correction_nu,
                follow=self.follow,
            ),
            ScaleByLearningRate(self.learning_rate),
        )
