"""AdEMAMix: Adam with a fast and a slow moving average of the gradients, and its variant with a single buffer."""

import jax.numpy as jnp

from .. import authoring as ma


class ScaleByAdEMAMixState(ma.AbstractState):
    """State of `ScaleByAdEMAMix`: step count, fast and slow first moments `m1` and `m2`, second moment `nu`."""

    optax_fields = ("count", "count_m2=count", "m1", "m2", "nu")

    m1: ma.PyTree = ma.like_params(moment=1.0)
    m2: ma.PyTree = ma.like_params()
    nu: ma.PyTree = ma.like_params(nonnegative=True)
    count: ma.Shared[ma.Count] = ma.counter()


class AbstractAdEMAMix(ma.AbstractFields):
    r"""The hyperparameters of AdEMAMix.

    Args:
        b1: exponential decay rate $\beta_1$ of the fast first moment.
        b2: exponential decay rate $\beta_2$ of the second moment.
        b3: exponential decay rate $\beta_3$ of the slow first moment.
        alpha: weight $\alpha$ of the slow first moment.
        eps: $\varepsilon$, added to the denominator outside the root.
        eps_root: $\bar\varepsilon$, added to the second moment inside the root.
        mu_dtype: dtype of both first moments; by default that of the parameters. The second moment is stored in at
            least float32.
    """

    b1: ma.Number = ma.number(0.9, needs=ma.DECAY)
    b2: ma.Number = ma.number(0.999, needs=ma.DECAY)
    b3: ma.Number = ma.number(0.9999, needs=ma.DECAY)
    alpha: ma.Number = ma.number(6.0)
    eps: ma.Number = ma.number(1e-8)
    _: ma.KW_ONLY
    eps_root: ma.Number = ma.number(0.0)
    mu_dtype: ma.DTypeLike | None = ma.static(None)


class ScaleByAdEMAMix(AbstractAdEMAMix, ma.AbstractLeafwise[ScaleByAdEMAMixState]):
    r"""Adds a second, slow moving average of the updates to Adam's first moment: the direction of AdEMAMix.

    $$
    \begin{aligned}
    m_{1,t} &= \beta_1 m_{1,t-1} + (1 - \beta_1) g_t, \qquad \hat m_{1,t} = m_{1,t} / (1 - \beta_1^t) \\
    m_{2,t} &= \beta_3 m_{2,t-1} + (1 - \beta_3) g_t \\
    v_t &= \beta_2 v_{t-1} + (1 - \beta_2) |g_t|^2, \qquad \hat v_t = v_t / (1 - \beta_2^t) \\
    u_t &= (\hat m_{1,t} + \alpha m_{2,t}) / (\sqrt{\hat v_t + \bar\varepsilon} + \varepsilon)
    \end{aligned}
    $$

    The slow moment has no bias correction, so that its influence grows slowly. The paper increases $\alpha$ and
    $\beta_3$ by schedules: pass them as `alpha` and `b3`. They are called with 0 at the first step.

    Args:
        b1: exponential decay rate $\beta_1$ of the fast first moment.
        b2: exponential decay rate $\beta_2$ of the second moment.
        b3: exponential decay rate $\beta_3$ of the slow first moment.
        alpha: weight $\alpha$ of the slow first moment.
        eps: $\varepsilon$, added to the denominator outside the root.
        eps_root: $\bar\varepsilon$, added to the second moment inside the root.
        mu_dtype: dtype of both first moments; by default that of the parameters. The second moment is stored in at
            least float32.

    References:
        Pagliardini et al., [The AdEMAMix Optimizer: Better, Faster, Older](https://arxiv.org/abs/2409.03137), 2024.
    """

    def init_leaf(self, p):
        m1, m2 = (ma.zeros_in(p, self.mu_dtype) for _ in range(2))
        return ScaleByAdEMAMixState(m1=m1, m2=m2, nu=ma.second_moment_like(p))

    def prepare(self, count):
        return ma.bias(self.b1, count + 1), ma.bias(self.b2, count + 1)

    def update_leaf(self, now, g, s, p):
        del p
        bias1, bias2 = now
        m1 = ma.moment(self.b1, s.m1, g)
        m2 = ma.moment(self.b3, s.m2, g)
        nu = ma.moment(self.b2, s.nu, ma.abs_sq(g))
        # `m2` has no bias correction, as in the paper: the slow average is to grow slowly.
        u = (m1 / bias1 + self.alpha * m2) / (self.eps + ma.safe_sqrt(self.eps_root + nu / bias2))
        return u, ScaleByAdEMAMixState(m1=m1, m2=m2, nu=nu)


class ScaleBySimplifiedAdEMAMixState(ma.AbstractState):
    """State of `ScaleBySimplifiedAdEMAMix`: step count, momentum `m`, second moment `n`."""

    optax_fields = ("t=count", "m", "n")

    m: ma.PyTree = ma.like_params(moment=lambda rule: 1 - rule.b1)
    n: ma.PyTree = ma.like_params(nonnegative=True)
    count: ma.Shared[ma.Count] = ma.counter()


class AbstractSimplifiedAdEMAMix(ma.AbstractFields):
    r"""The hyperparameters of AdEMAMix with a single momentum buffer.

    Args:
        b1: exponential decay rate $\beta_1$ of the momentum.
        b2: exponential decay rate $\beta_2$ of the second moment.
        alpha: weight $\alpha$ of the current gradient.
        eps: $\varepsilon$, added to the denominator outside the root.
        eps_root: $\bar\varepsilon$, added to the second moment inside the root.
    """

    b1: ma.Number = ma.number(0.99, needs=ma.DECAY)
    b2: ma.Number = ma.number(0.95, needs=ma.DECAY)
    alpha: ma.Number = ma.number(0.0)
    eps: ma.Number = ma.number(1e-8)
    _: ma.KW_ONLY
    eps_root: ma.Number = ma.number(0.0)


class ScaleBySimplifiedAdEMAMix(AbstractSimplifiedAdEMAMix, ma.AbstractLeafwise[ScaleBySimplifiedAdEMAMixState]):
    r"""Momentum plus the current update, over the root of the second moment: AdEMAMix with a single momentum buffer.

    $$
    \begin{aligned}
    m_t &= \beta_1 m_{t-1} + g_t \\
    v_t &= \beta_2 v_{t-1} + (1 - \beta_2) |g_t|^2, \qquad \hat v_t = v_t / (1 - \beta_2^t) \\
    u_t &= (m_t + \alpha g_t) / (\sqrt{\hat v_t + \bar\varepsilon} + \varepsilon)
    \end{aligned}
    $$

    The momentum is a sum, not an average, so the learning rate has to be about $1 - \beta_1$ times that of Adam.

    Args:
        b1: exponential decay rate $\beta_1$ of the momentum.
        b2: exponential decay rate $\beta_2$ of the second moment.
        alpha: weight $\alpha$ of the current gradient.
        eps: $\varepsilon$, added to the denominator outside the root.
        eps_root: $\bar\varepsilon$, added to the second moment inside the root.

    References:
        Morwani et al., [Connections between Schedule-Free Optimizers, AdEMAMix, and Accelerated SGD
        Variants](https://arxiv.org/abs/2502.02431), 2025.
    """

    def init_leaf(self, p):
        return ScaleBySimplifiedAdEMAMixState(m=jnp.zeros_like(p), n=ma.second_moment_like(p))

    def prepare(self, count):
        return ma.bias(self.b2, count + 1)

    def update_leaf(self, now, g, s, p):
        del p
        m = self.b1 * s.m + g
        n = ma.moment(self.b2, s.n, ma.abs_sq(g))
        u = (self.alpha * g + m) / (self.eps + ma.safe_sqrt(self.eps_root + n / now))
        return u, ScaleBySimplifiedAdEMAMixState(m=m, n=n)


class AdEMAMix(ma.AbstractDecayedByName, AbstractAdEMAMix, ma.AbstractRated):
    r"""AdamW with a second, slow momentum that keeps old gradients in use, for long training runs.

        optimizer = AdEMAMix(1e-3, b3=0.9999, alpha=5.0, weight_decay=0.1)

    $$
    \begin{aligned}
    m_{1,t} &= \beta_1 m_{1,t-1} + (1 - \beta_1) g_t, \qquad \hat m_{1,t} = m_{1,t} / (1 - \beta_1^t) \\
    m_{2,t} &= \beta_3 m_{2,t-1} + (1 - \beta_3) g_t \\
    v_t &= \beta_2 v_{t-1} + (1 - \beta_2) |g_t|^2, \qquad \hat v_t = v_t / (1 - \beta_2^t) \\
    w_{t+1} &= w_t - \eta \left( \frac{\hat m_{1,t} + \alpha m_{2,t}}{\sqrt{\hat v_t + \bar\varepsilon} + \varepsilon}
        + \lambda w_t \right)
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$, $t = 1, 2, \dots$, and all moments zero at $t = 0$. The paper increases $\alpha$
    and $\beta_3$ by schedules over the first part of training: pass them as `alpha` and `b3`. As in optax, the default
    of `alpha` is 5 here and 6 in `ScaleByAdEMAMix`.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        b1: exponential decay rate $\beta_1$ of the fast first moment.
        b2: exponential decay rate $\beta_2$ of the second moment.
        b3: exponential decay rate $\beta_3$ of the slow first moment.
        alpha: weight $\alpha$ of the slow first moment.
        eps: $\varepsilon$, added to the denominator outside the root.
        eps_root: $\bar\varepsilon$, added to the second moment inside the root.
        mu_dtype: dtype of both first moments; by default that of the parameters. The second moment is stored in at
            least float32.
        weight_decay: weight decay coefficient $\lambda$, multiplied by the learning rate.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.

    References:
        Pagliardini et al., [The AdEMAMix Optimizer: Better, Faster, Older](https://arxiv.org/abs/2409.03137), 2024.
    """

    direction = ScaleByAdEMAMix
    alpha: ma.Number = ma.number(5.0)


class SimplifiedAdEMAMix(ma.AbstractDecayedByName, AbstractSimplifiedAdEMAMix, ma.AbstractRated):
    r"""AdEMAMix with a single momentum buffer, which saves the memory of the second one.

        optimizer = SimplifiedAdEMAMix(1e-5, b1=0.99, alpha=0.0)

    $$
    \begin{aligned}
    m_t &= \beta_1 m_{t-1} + g_t \\
    v_t &= \beta_2 v_{t-1} + (1 - \beta_2) |g_t|^2, \qquad \hat v_t = v_t / (1 - \beta_2^t) \\
    w_{t+1} &= w_t - \eta \left( \frac{m_t + \alpha g_t}{\sqrt{\hat v_t + \bar\varepsilon} + \varepsilon}
        + \lambda w_t \right)
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$, $t = 1, 2, \dots$, and $m_0 = v_0 = 0$. The momentum is a sum, not an average, so
    the learning rate has to be about $1 - \beta_1$ times that of Adam.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        b1: exponential decay rate $\beta_1$ of the momentum.
        b2: exponential decay rate $\beta_2$ of the second moment.
        alpha: weight $\alpha$ of the current gradient.
        eps: $\varepsilon$, added to the denominator outside the root.
        eps_root: $\bar\varepsilon$, added to the second moment inside the root.
        weight_decay: weight decay coefficient $\lambda$, multiplied by the learning rate.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.

    References:
        Morwani et al., [Connections between Schedule-Free Optimizers, AdEMAMix, and Accelerated SGD
        Variants](https://arxiv.org/abs/2502.02431), 2025.
    """

    direction = ScaleBySimplifiedAdEMAMix
