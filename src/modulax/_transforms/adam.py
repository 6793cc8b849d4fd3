"""The direction of Adam and NAdam, with the pieces that AdaBelief, AMSGrad, RAdam and Yogi use too."""

from typing import Any, ClassVar, NamedTuple

import equinox as eqx
from jaxtyping import Array, DTypeLike, PyTree

from .._protocol.fields import Number, number
from .._protocol.leafwise import AbstractLeafwise
from .._support.arithmetic import abs_sq, bias, moment, safe_sqrt, second_moment_like, zeros_in
from .._support.checks import DECAY
from .._support.module import AbstractState, counter, like_params
from .._support.types import Count, Shared


class ScaleByAdamState(AbstractState):
    """State of `ScaleByAdam` and its relatives: step count, first moment `mu`, second moment `nu`."""

    optax_fields: ClassVar[tuple[str, ...]] = ("count", "mu", "nu")

    mu: PyTree = like_params(moment=1.0)
    nu: PyTree = like_params(nonnegative=True)
    count: Shared[Count] = counter()


class AdamNumbers(NamedTuple):
    """Numbers shared by all leaves in a step of Adam: weights of the new update, and bias corrections."""

    c1: Array
    c2: Array
    bias1: Array
    bias2: Array
    bias1_next: Array


def adam_numbers(b1: Any, b2: Any, count: Any) -> AdamNumbers:
    """The shared numbers of the step that follows after `count` steps."""
    t = count + 1
    return AdamNumbers(c1=1 - b1, c2=1 - b2, bias1=bias(b1, t), bias2=bias(b2, t), bias1_next=bias(b1, t + 1))


def corrected_mean(now: AdamNumbers, b1: Any, mu: Array, g: Array, nesterov: bool) -> Array:
    """The bias-corrected first moment; with `nesterov`, the one of NAdam."""
    if nesterov:
        # Dozat corrects the momentum for the step that it looks ahead to, and the gradient for this one.
        return b1 * mu / now.bias1_next + now.c1 * g / now.bias1
    return mu / now.bias1


class ScaleByAdam(AbstractLeafwise[ScaleByAdamState]):
    r"""Divides the first moment of the updates by the root of their second moment: the direction of Adam and NAdam.

    $$
    \begin{aligned}
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t \\
    v_t &= \beta_2 v_{t-1} + (1 - \beta_2) |g_t|^2 \\
    \hat m_t &= m_t / (1 - \beta_1^t), \qquad \hat v_t = v_t / (1 - \beta_2^t) \\
    u_t &= \hat m_t / (\sqrt{\hat v_t + \bar\varepsilon} + \varepsilon)
    \end{aligned}
    $$

    With `nesterov`, $\hat m_t = \beta_1 m_t / (1 - \beta_1^{t+1}) + (1 - \beta_1) g_t / (1 - \beta_1^t)$, as in Dozat's
    NAdam.

    Args:
        b1: exponential decay rate $\beta_1$ of the first moment.
        b2: exponential decay rate $\beta_2$ of the second moment.
        eps: $\varepsilon$, added to the denominator outside the root.
        eps_root: $\bar\varepsilon$, added to the second moment inside the root.
        mu_dtype: dtype of the first moment; by default that of the parameters. The second moment is stored in at least
            float32.
        nesterov: whether to use Nesterov momentum.
        corrected_eps: whether $\varepsilon$ is added after the bias correction, as in Adam. Otherwise it is added
            before, $(\sqrt{v_t} + \varepsilon) / \sqrt{1 - \beta_2^t}$, as in the authors' code of GaLore.

    References:
        Kingma and Ba, [Adam: A Method for Stochastic Optimization](https://arxiv.org/abs/1412.6980), 2014.
    """

    b1: Number = number(0.9, needs=DECAY)
    b2: Number = number(0.999, needs=DECAY)
    eps: Number = number(1e-8)
    eps_root: Number = number(0.0)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nesterov: bool = eqx.field(static=True, default=False)
    corrected_eps: bool = eqx.field(static=True, default=True, kw_only=True)

    def init_leaf(self, p):
        # `nu` is float32 whatever `mu_dtype` is: with the 8 bits of bfloat16, `0.999 * nu + 0.001 * g²` rounds to `nu`.
        return ScaleByAdamState(mu=zeros_in(p, self.mu_dtype), nu=second_moment_like(p))

    def prepare(self, count):
        return adam_numbers(self.b1, self.b2, count)

    def update_leaf(self, now, g, s, p):
        del p
        mu = moment(self.b1, s.mu, g, now.c1)
        nu = moment(self.b2, s.nu, abs_sq(g), now.c2)
        mu_hat = corrected_mean(now, self.b1, mu, g, self.nesterov)
        # The scalars come first, and the corrections divide: other orders cost XLA:CPU one kernel more for each shape
        # (`docs/design_edges.md`, "Compilation cost").
        nu_hat = nu / now.bias2
        eps = self.eps if self.corrected_eps else self.eps / safe_sqrt(now.bias2)
        u = mu_hat / (eps + safe_sqrt(self.eps_root + nu_hat))
        return u, ScaleByAdamState(mu=mu, nu=nu)
