"""The optimizer L-BFGS: quasi-Newton directions followed by a line search."""

import equinox as eqx

from .._containers.chain import Chain
from .._protocol.container import part
from .._protocol.fields import OptionalNumber, number
from .._protocol.optimizer import AbstractOptimizer
from .._protocol.transform import AbstractTransform
from .._transforms.basic import Identity
from .._transforms.lbfgs import ScaleByLBFGS
from .._transforms.scaling import Scale, ScaleByLearningRate
from .._transforms.zoom import ScaleByZoomLinesearch


def _zoom() -> ScaleByZoomLinesearch:
    return ScaleByZoomLinesearch(20, initial_guess_strategy="one")


class LBFGS(AbstractOptimizer):
    r"""Limited-memory quasi-Newton method (L-BFGS) with a line search, for deterministic, full-batch losses.

    $$
    \begin{aligned}
    s_j &= w_{j+1} - w_j, \qquad y_j = g_{j+1} - g_j, \qquad \rho_j = 1 / (s_j^\top y_j), \qquad j < k \\
    H &\leftarrow (I - \rho_j s_j y_j^\top)\, H\, (I - \rho_j y_j s_j^\top) + \rho_j s_j s_j^\top,
        \qquad j = k - m, \dots, k - 1 \\
    w_{k+1} &= w_k - \eta_k \alpha\, H_k\, g_k
    \end{aligned}
    $$

    with $g_k$ the gradient at $w_k$. $H_k$ is the result of the recursion in the second line, which starts from
    $H = \gamma I$ with $\gamma = s_{k-1}^\top y_{k-1} / \|y_{k-1}\|^2$, or $\min(1, 1 / \|g_0\|)$ in the first step.
    Pairs without positive curvature are left out. The line search chooses $\eta_k$, by default so that the strong Wolfe
    conditions hold. Convergence is fast near a minimum, and there is no learning rate to tune.

    Every call needs the loss as a function, its value and its gradient. The line search keeps value and gradient at the
    next parameters in the state, where `value_and_grad_from_state` finds them:

        optimizer = LBFGS()
        value_and_grad = value_and_grad_from_state(loss)
        value, grads = value_and_grad(params, state=state)
        params, state = optimizer.step(grads, state, params, value=value, grad=grads, value_fn=loss)

    See `ScaleByZoomLinesearch` for `value_fn`, batches and complex parameters.

    Args:
        learning_rate: factor $\alpha$ of the direction, a number or a schedule; None for 1. The line search multiplies
            it by the step size.
        memory_size: number $m$ of pairs that are kept; the state holds twice as many numbers per parameter.
        scale_init_precond: whether to start from $H = \gamma I$; if False, from $H = I$.
        linesearch: the line search, or None for none; by default
            `ScaleByZoomLinesearch(20, initial_guess_strategy="one")`.

    References:
        Nocedal and Wright, [Numerical Optimization](https://doi.org/10.1007/978-0-387-40065-5), 2006, algorithm 7.5;
        Liu and Nocedal, [On the limited memory BFGS method for large scale
        optimization](https://doi.org/10.1007/BF01589116), 1989.
    """

    learning_rate: OptionalNumber = number(None, optional=True)
    memory_size: int = eqx.field(static=True, default=10)
    scale_init_precond: bool = eqx.field(static=True, default=True)
    # Made for each optimizer: numbers that are made at the import are rounded to float32, also under x64.
    linesearch: AbstractTransform | None = part(default_factory=_zoom, optional=True)

    def transform(self) -> Chain:
        direction = ScaleByLBFGS(self.memory_size, self.scale_init_precond)
        rate = Scale(-1.0) if self.learning_rate is None else ScaleByLearningRate(self.learning_rate)
        return Chain(direction, rate, Identity() if self.linesearch is None else self.linesearch)
