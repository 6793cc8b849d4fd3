"""AMSGrad: Adam with the running maximum of the second moment."""

import jax.numpy as jnp

from .. import authoring as ma
from .adam import AbstractAdam, AbstractAdamRule


class ScaleByAMSGradState(ma.AbstractState):
    """State of `ScaleByAMSGrad`: step count, first moment `mu`, second moment `nu`, and its maximum `nu_max`."""

    optax_fields = ("count", "mu", "nu", "nu_max")
    optax_forms = ("nu_max",)

    mu: ma.PyTree = ma.like_params(moment=1.0)
    nu: ma.PyTree = ma.like_params(nonnegative=True)
    # The maximum of the corrected moments is not that of the uncorrected ones, corrected.
    nu_max: ma.PyTree = ma.like_params(
        nonnegative=True, form=lambda rule: rule.follow == "optax" and rule.bias_correction_nu
    )
    count: ma.Shared[ma.Count] = ma.counter()


class AbstractAMSGrad(AbstractAdam):
    r"""The hyperparameters of AMSGrad.

    Args:
        bias_correction_mu: whether to correct the bias of the first moment.
        bias_correction_nu: whether to correct the bias of the second moment; if False, $\hat v_t = \bar v_t$.
        follow: `"paper"` takes the maximum of the second moment before its bias correction, `"optax"` after it.
    """

    _: ma.KW_ONLY
    bias_correction_mu: bool = ma.static(True)
    bias_correction_nu: bool = ma.static(True)
    follow: ma.Follow = ma.followed()


class ScaleByAMSGrad(AbstractAMSGrad, AbstractAdamRule[ScaleByAMSGradState]):
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
        bias_correction_nu: whether to correct the bias of the second moment; if False, $\hat v_t = \bar v_t$.
        follow: `"paper"` takes the maximum of the second moment before its bias correction, `"optax"` after it.

    References:
        Reddi, Kale and Kumar, [On the Convergence of Adam and Beyond](https://openreview.net/forum?id=ryQu7f-RZ), 2018.
    """

    def init_leaf(self, p):
        return ScaleByAMSGradState(
            mu=ma.zeros_in(p, self.mu_dtype), nu=ma.second_moment_like(p), nu_max=ma.second_moment_like(p)
        )

    def update_leaf(self, now, g, s, p):
        del p
        mu = ma.moment(self.b1, s.mu, g, now.c1)
        nu = ma.moment(self.b2, s.nu, ma.abs_sq(g), now.c2)
        bias1 = now.bias1 if self.bias_correction_mu else 1
        bias2 = now.bias2 if self.bias_correction_nu else 1
        if self.follow == "optax":
            nu_max = nu_hat = jnp.maximum(s.nu_max, nu / bias2)
        else:
            nu_max = jnp.maximum(s.nu_max, nu)
            nu_hat = nu_max / bias2
        u = mu / bias1 / (self.eps + ma.safe_sqrt(self.eps_root + nu_hat))
        return u, ScaleByAMSGradState(mu=mu, nu=nu, nu_max=nu_max)


class AMSGrad(AbstractAMSGrad, ma.AbstractRated):
    r"""Adam with the maximum of past second moments in the denominator, which converges where Adam may not.

        optimizer = AMSGrad(1e-3)

    $$
    \begin{aligned}
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t, \qquad \hat m_t = m_t / (1 - \beta_1^t) \\
    v_t &= \beta_2 v_{t-1} + (1 - \beta_2) |g_t|^2 \\
    \bar v_t &= \max(\bar v_{t-1}, v_t), \qquad \hat v_t = \bar v_t / (1 - \beta_2^t) \\
    w_{t+1} &= w_t - \eta\, \hat m_t / (\sqrt{\hat v_t + \bar\varepsilon} + \varepsilon)
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$, $t = 1, 2, \dots$, and $m_0 = v_0 = \bar v_0 = 0$. This is the form of torch and
    Keras. The paper has no bias corrections: `bias_correction_mu=False, bias_correction_nu=False`. With
    `follow="optax"`, $\bar v_t = \max(\bar v_{t-1}, v_t / (1 - \beta_2^t))$ and $\hat v_t = \bar v_t$.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        b1: exponential decay rate $\beta_1$ of the first moment.
        b2: exponential decay rate $\beta_2$ of the second moment.
        eps: $\varepsilon$, added to the denominator outside the root.
        eps_root: $\bar\varepsilon$, added to the second moment inside the root.
        mu_dtype: dtype of the first moment; by default that of the parameters. The second moment is stored in at least
            float32.
        bias_correction_mu: whether to correct the bias of the first moment.
        bias_correction_nu: whether to correct the bias of the second moment; if False, $\hat v_t = \bar v_t$.
        follow: `"paper"` takes the maximum of the second moment before its bias correction, `"optax"` after it.

    References:
        Reddi, Kale and Kumar, [On the Convergence of Adam and Beyond](https://openreview.net/forum?id=ryQu7f-RZ), 2018.
    """

    direction = ScaleByAMSGrad
