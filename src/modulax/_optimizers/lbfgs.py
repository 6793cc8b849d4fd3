"""L-BFGS with a line search."""

import equinox as eqx

from .._containers.chain import Chain
from .._protocol.container import part
from .._protocol.fields import Hyperparameter, number
from .._protocol.optimizer import AbstractOptimizer
from .._protocol.transform import AbstractTransform
from .._transforms.basic import Identity
from .._transforms.lbfgs import ScaleByLBFGS
from .._transforms.scaling import Scale, ScaleByLearningRate
from .._transforms.zoom import ScaleByZoomLinesearch


def _zoom() -> ScaleByZoomLinesearch:
    return ScaleByZoomLinesearch(20, initial_guess_strategy="one")


class LBFGS(AbstractOptimizer):
    r"""L-BFGS: a quasi-Newton method with a line search, for losses without noise, such as on a full batch.

    $w_{k+1} = w_k - \eta_k H_k g_k$, with $H_k$ of `ScaleByLBFGS` and $\eta_k$ of the line search. It converges
    superlinearly, and needs no learning rate. Every call needs the loss, its value and its gradient; the line search
    leaves those of the next point in the state:

        optimizer = LBFGS()
        value_and_grad = value_and_grad_from_state(loss)
        value, grads = value_and_grad(params, state=state)
        params, state = optimizer.step(grads, state, params, value=value, grad=grads, value_fn=loss)

    See `ScaleByZoomLinesearch` on `value_fn`, batches, and complex parameters.

    Args:
        learning_rate: a factor of the direction, or None for 1. The line search finds the step size.
        memory_size: the number of pairs that are kept; the state has twice as many numbers per parameter.
        scale_init_precond: whether the estimate of the inverse Hessian begins with a scaled identity.
        linesearch: the transform that finds the step size, or None for none; by default
            `ScaleByZoomLinesearch(20, initial_guess_strategy="one")`.

    References:
        Nocedal and Wright, [Numerical Optimization](https://doi.org/10.1007/978-0-387-40065-5), 2006, algorithm 7.5;
        Liu and Nocedal, [On the limited memory BFGS method for large scale
        optimization](https://doi.org/10.1007/BF01589116), 1989.
    """

    learning_rate: Hyperparameter | None = number(None, optional=True)
    memory_size: int = eqx.field(static=True, default=10)
    scale_init_precond: bool = eqx.field(static=True, default=True)
    # Made for each optimizer: numbers that are made at the import are rounded to float32, also under x64.
    linesearch: AbstractTransform | None = part(default_factory=_zoom, optional=True)

    def transform(self) -> Chain:
        direction = ScaleByLBFGS(self.memory_size, self.scale_init_precond)
        rate = Scale(-1.0) if self.learning_rate is None else ScaleByLearningRate(self.learning_rate)
        return Chain(direction, rate, Identity() if self.linesearch is None else self.linesearch)
