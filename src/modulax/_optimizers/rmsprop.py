"""RMSProp."""

import equinox as eqx

from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, number
from .._protocol.optimizer import AbstractOptimizer
from .._support.checks import DECAY
from .._transforms.momentum import Trace
from .._transforms.rmsprop import ScaleByRMS, ScaleByStddev
from .._transforms.scaling import ScaleByLearningRate


class RMSProp(AbstractOptimizer):
    r"""Gradient descent with each coordinate divided by the root of its mean square. See `ScaleByRMS`.

    The momentum, if any, is applied behind the learning rate. `eps_in_sqrt=False` is torch's form.

    Args:
        learning_rate: the step size.
        decay: the decay of the mean square.
        eps: added to the mean square, or to its root.
        initial_scale: the mean square at the start.
        eps_in_sqrt: whether `eps` is added inside the root.
        centered: whether to divide by the standard deviation instead, as `ScaleByStddev` does.
        momentum: the decay of the momentum; None for none, and no state for it.
        nesterov: whether the momentum looks ahead.
        bias_correction: whether the mean square is corrected for its start.

    References:
        Tieleman and Hinton,
        [Lecture 6.5](https://www.cs.toronto.edu/~tijmen/csc321/slides/lecture_slides_lec6.pdf), 2012;
        Graves, [Generating Sequences With Recurrent Neural Networks](https://arxiv.org/abs/1308.0850), 2013.
    """

    learning_rate: Hyperparameter = number()
    decay: Hyperparameter = number(0.9, needs=DECAY)
    eps: Hyperparameter = number(1e-8)
    initial_scale: Hyperparameter = number(0.0)
    eps_in_sqrt: bool = eqx.field(static=True, default=True)
    centered: bool = eqx.field(static=True, default=False)
    momentum: Hyperparameter | None = number(None, optional=True)
    nesterov: bool = eqx.field(static=True, default=False)
    bias_correction: bool = eqx.field(static=True, default=False)

    def transform(self) -> Chain:
        scaling = ScaleByStddev if self.centered else ScaleByRMS
        rms = scaling(self.decay, self.eps, self.initial_scale, self.eps_in_sqrt, self.bias_correction)
        rate = ScaleByLearningRate(self.learning_rate)
        return Chain(rms, rate) if self.momentum is None else Chain(rms, rate, Trace(self.momentum, self.nesterov))
