"""The optimizer Tiger."""

from typing import Any

import equinox as eqx
from jaxtyping import DTypeLike

from .._containers.partition import Partition
from .._protocol.fields import Hyperparameter, number
from .._protocol.optimizer import AbstractOptimizer
from .._roles.find import as_roles
from .._support.checks import DECAY, WHOLE
from .._transforms.tiger import ScaleByTiger, TigerLabels


class Tiger(AbstractOptimizer):
    r"""Sign-based momentum with steps relative to the parameters, which accumulates gradients without a buffer.

        optimizer = Tiger(1e-3, every_k=4)

    $$
    \begin{aligned}
    m_t &= \beta m_{t-1} + (1 - \beta) g_t \\
    w_{t+1} &= w_t - \eta \operatorname{RMS}(w_t) (\operatorname{sign}(m_t) + \lambda w_t)
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$ and $m_0 = 0$. The root mean square is that of each array, and of each row of
    embeddings. For biases, gains and other vectors, it is replaced by $\rho$, and they don't decay. A matrix of zeros
    doesn't move.

    An array whose gradient is not finite is shrunk by a factor instead, a gain towards 1. With `every_k` of $k$, the
    momentum accumulates the gradients of $k$ steps, and the last one moves the parameters; see `ScaleByTiger`. The
    kinds of parameters follow from the names of layers; pass `roles` for other names.

    Args:
        learning_rate: learning rate $\eta$, relative to the size of the parameters, a number or a schedule.
        beta: exponential decay rate $\beta$ of the momentum.
        weight_decay: weight decay coefficient $\lambda$, multiplied by the learning rate.
        vector_scale: $\rho$, the factor of the learning rate for biases, gains and other vectors.
        every_k: number of steps whose gradients are averaged.
        shrink_ratio: factor of an array whose gradient is not finite.
        mu_dtype: dtype of the momentum; by default that of the parameters.
        roles: roles of parameters for which they are not found, or found wrongly: a mapping from patterns to roles, or
            the result of `roles(model)`.

    References:
        Su, [Tiger: A Tight-fisted Optimizer](https://github.com/bojone/tiger), 2023.
    """

    learning_rate: Hyperparameter = number(1e-3)
    beta: Hyperparameter = number(0.965, needs=DECAY)
    weight_decay: Hyperparameter = number(0.01)
    vector_scale: Hyperparameter = number(0.5)
    every_k: Hyperparameter = number(1, needs=WHOLE)
    shrink_ratio: Hyperparameter = number(0.99)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    roles: Any = eqx.field(
        static=True, default=None, converter=as_roles, kw_only=True, metadata={"head_is_like_others": True}
    )

    def transform(self) -> Partition:
        def rule(**different: Any) -> ScaleByTiger:
            shared = {name: getattr(self, name) for name in ("beta", "weight_decay", "every_k", "shrink_ratio")}
            return ScaleByTiger(self.learning_rate, mu_dtype=self.mu_dtype, **shared | different)

        vectors: dict[str, Any] = {"scale": self.vector_scale, "weight_decay": 0.0, "relative": "none"}
        groups = {
            "matrices": rule(),
            "embeddings": rule(relative="rows"),
            "vectors": rule(**vectors),
            "gains": rule(**vectors, center=1.0),
        }
        return Partition(groups, TigerLabels(self.roles))
