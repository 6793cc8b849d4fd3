"""Generalized primal averaging (GPA): the last step of a chain, with an average of the iterates at every step."""

from dataclasses import KW_ONLY

import equinox as eqx
from jaxtyping import PyTree

from .._protocol.container import in_dtypes_of
from .._protocol.fields import Number, OptionalNumber, number, required_number
from .._protocol.masks import Mask, mask
from .._protocol.transform import KEEPS_PARAMETERS, Effect
from .._support.arithmetic import at_least_float32, copy_in
from .._support.checks import FRACTION, Requirement
from .._support.module import AbstractState, counter, like_params
from .._support.types import Count, Params, Shared
from .regularization import AbstractDecayingRule, split_decay

WEIGHT = Requirement(lambda x: (x > 0) & (x <= 1), "must be in (0, 1]")


class PrimalAveragingState(AbstractState):
    """State of `PrimalAveraging`: step count, the iterates `z` of the base optimizer, and their average `x`."""

    z: PyTree = like_params(copied=True)
    x: PyTree = like_params(copied=True)
    count: Shared[Count] = counter()


class PrimalAveraging(AbstractDecayingRule[PrimalAveragingState]):
    r"""Generalized primal averaging: takes the step of an optimizer, and averages its iterates at every step.

    $$
    \begin{aligned}
    y_t &= \mu_y x_t + (1 - \mu_y) z_t \\
    z_{t+1} &= z_t - \eta\, u_t, \qquad u_t \text{ the direction for } \nabla f(y_t) \\
    x_{t+1} &= \mu_x x_t + (1 - \mu_x) z_{t+1}
    \end{aligned}
    $$

    The parameters that are trained are $y$. The evaluation parameters, which are also those to deploy, are the average
    $x$; `eval_params(state, params)` returns them. Put it last in a chain, in place of the learning rate:

        Chain(ScaleByAdam(), PrimalAveraging(1e-3))

    Weight decay multiplies $z_t$ by $1 - \eta \lambda$ while $y_t$ stays in place, so that $x_t$ moves by
    $(1 / \mu_y - 1)\, \eta \lambda z_t$, as in the authors' code.

    The way to $y_t$ is rounded to the dtype of the gradients: in low precision, put `MasterWeights` around the
    optimizer.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        train_interp_coeff: weight $\mu_y$ of the average in the parameters that are trained, in (0, 1].
        eval_interp_coeff: weight $\mu_x$ of the old average in the new one, in [0, 1].
        weight_decay: weight decay coefficient $\lambda$, multiplied by the learning rate; None for none.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.
        decay_on_y: whether $y_t$ decays instead of $z_t$.

    References:
        Defazio et al., [Smoothing DiLoCo with Primal Averaging for Faster Training of
        LLMs](https://arxiv.org/abs/2512.17131), 2025, and the authors'
        [code](https://github.com/facebookresearch/optimizers).
    """

    _why_last = KEEPS_PARAMETERS
    _negates = True

    learning_rate: Number = required_number()
    train_interp_coeff: Number = number(0.7, needs=WEIGHT)
    eval_interp_coeff: Number = number(0.9967, needs=FRACTION)
    _: KW_ONLY
    weight_decay: OptionalNumber = number(None, optional=True)
    mask: Mask = mask()
    decay_on_y: bool = eqx.field(static=True, default=False)

    @property
    def needs(self) -> tuple[str, ...]:
        return ("params",)

    def _effect(self, tree):
        del tree
        return Effect(is_fine=True)

    def init_leaf(self, p):
        dtype = at_least_float32(p.dtype)
        return PrimalAveragingState(z=copy_in(p, dtype), x=copy_in(p, dtype))

    def update_leaf(self, now, g, s, p):
        _, decays = split_decay(now)
        mu_y, mu_x = self.train_interp_coeff, self.eval_interp_coeff
        z, x = s.z, s.x
        if self.decay_on_y:
            x = x - self.learning_rate / mu_y * self.decay_of(decays, p)
        else:
            decay = self.learning_rate * self.decay_of(decays, z)
            z, x = z - decay, x + (1 / mu_y - 1) * decay
        z = z - self.learning_rate * g
        x = mu_x * x + (1 - mu_x) * z
        y = mu_y * x + (1 - mu_y) * z
        return y - p, PrimalAveragingState(z=z, x=x)

    # Overridden because the average x is not the parameters that are trained.
    def eval_params(self, state: PrimalAveragingState, params: Params) -> Params:
        """Return the average x, in the dtypes of the parameters.

        Args:
            state: the state of this transform.
            params: the parameters that are trained, or the whole model.
        """
        return in_dtypes_of(params, state.x, "PrimalAveraging.eval_params")
