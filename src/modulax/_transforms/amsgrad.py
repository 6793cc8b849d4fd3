"""AMSGrad: Adam with the running maximum of the second moment."""

from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import DTypeLike, PyTree

from .._protocol.fields import Number, followed, number
from .._protocol.leafwise import AbstractLeafwise
from .._support.arithmetic import abs_sq, moment, safe_sqrt, second_moment_like, zeros_in
from .._support.checks import DECAY
from .._support.module import AbstractState, counter, like_params
from .._support.types import Count, Follow, Shared
from .adam import adam_numbers


class ScaleByAMSGradState(AbstractState):
    """State of `ScaleByAMSGrad`: step count, first moment `mu`, second moment `nu`, and its maximum `nu_max`."""

    optax_fields: ClassVar[tuple[str, ...]] = ("count", "mu", "nu", "nu_max")
    optax_forms: ClassVar[tuple[str, ...]] = ("nu_max",)

    mu: PyTree = like_params(moment=1.0)
    nu: PyTree = like_params(nonnegative=True)
    # The maximum of the corrected moments is not that of the uncorrected ones, corrected.
    nu_max: PyTree = like_params(nonnegative=True, form=lambda rule: rule.follow == "optax" and rule.bias_correction_nu)
    count: Shared[Count] = counter()


class ScaleByAMSGrad(AbstractLeafwise[ScaleByAMSGradState]):
    r"""Divides the first moment by the root of the largest second moment so far: the direction of AMSGrad.

    $$
    \begin{aligned}
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t \\
    v_t &= \beta_2 v_{t-1} + (1 - \beta_2) |g_t|^2 \\
    \bar v_t &= \max(\bar v_{t-1}, v_t), \qquad \hat v_t = \bar v_t / (1 - \beta_2^t) \\
    u_t &= \frac{m_t / (1 - \beta_1^t)}{\sqrt{\hat v_t + \bar\varepsilon} + \varepsilon}
    \end{aligned}
    $$

    Without bias correction, $\hat v_t = \bar v_t$ and the numerator is $m_t$. Three forms are in use:

    * The paper's has no bias correction: `bias_correction_mu=False, bias_correction_nu=False`.
    * The default is that of torch and Keras: take the maximum of $v_t$, then correct it.
    * optax corrects $v_t$ first, `follow="optax"`: $\bar v_t = \max(\bar v_{t-1}, v_t / (1 - \beta_2^t))$ and
      $\hat v_t = \bar v_t$. A large first gradient then counts in full for the rest of the run, because
      $v_1 / (1 - \beta_2) = |g_1|^2$. With `bias_correction_nu=False` the two agree.

    Args:
        b1: exponential decay rate $\beta_1$ of the first moment.
        b2: exponential decay rate $\beta_2$ of the second moment.
        eps: $\varepsilon$, added to the denominator outside the root.
        eps_root: $\bar\varepsilon$, added to the second moment inside the root.
        mu_dtype: dtype of the first moment; by default that of the parameters. The second moment is stored in at least
            float32.
        bias_correction_mu: whether to correct the bias of the first moment.
        bias_correction_nu: whether to correct the bias of the second moment.
        follow: `"paper"` takes the maximum of the second moment before its bias correction, `"optax"` after it.

    References:
        Reddi, Kale and Kumar, [On the Convergence of Adam and Beyond](https://openreview.net/forum?id=ryQu7f-RZ), 2018.
    """

    b1: Number = number(0.9, needs=DECAY)
    b2: Number = number(0.999, needs=DECAY)
    eps: Number = number(1e-8)
    eps_root: Number = number(0.0)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    bias_correction_mu: bool = eqx.field(static=True, default=True)
    bias_correction_nu: bool = eqx.field(static=True, default=True)
    follow: Follow = followed()

    def init_leaf(self, p):
        return ScaleByAMSGradState(
            mu=zeros_in(p, self.mu_dtype), nu=second_moment_like(p), nu_max=second_moment_like(p)
        )

    def prepare(self, count):
        return adam_numbers(self.b1, self.b2, count)

    def update_leaf(self, now, g, s, p):
        del p
        mu = moment(self.b1, s.mu, g, now.c1)
        nu = moment(self.b2, s.nu, abs_sq(g), now.c2)
        bias1 = now.bias1 if self.bias_correction_mu else 1
        bias2 = now.bias2 if self.bias_correction_nu else 1
        if self.follow == "optax":
            nu_max = nu_hat = jnp.maximum(s.nu_max, nu / bias2)
        else:
            nu_max = jnp.maximum(s.nu_max, nu)
            nu_hat = nu_max / bias2
        u = mu / bias1 / (self.eps + safe_sqrt(self.eps_root + nu_hat))
        return u, ScaleByAMSGradState(mu=mu, nu=nu, nu_max=nu_max)
