"""Adan: Nesterov momentum estimated from the differences of successive gradients."""

from typing import Any, NamedTuple

import jax.numpy as jnp

from .. import authoring as ma
from .._support.arithmetic import kept
from .._transforms.clipping import reduced, reduction
from .._transforms.regularization import ProximalWeightDecay


class ScaleByAdanState(ma.AbstractState):
    """State of `ScaleByAdan`: step count, moving averages `m`, `v` and `n`, and the previous updates `g`."""

    optax_fields = ("m", "v", "n", "g", "t=count")

    m: ma.PyTree = ma.like_params(moment=1.0)
    v: ma.PyTree = ma.like_params()
    n: ma.PyTree = ma.like_params(nonnegative=True)
    g: ma.PyTree = ma.like_params()
    count: ma.Shared[ma.Count] = ma.counter()


class _AdanNumbers(NamedTuple):
    """Bias corrections, the weight of the gradient difference, and the number of steps before."""

    bias1: Any
    bias2: Any
    bias3: Any
    weight: Any
    count: Any


class AbstractAdan(ma.AbstractFields):
    r"""The hyperparameters of Adan.

    Args:
        b1: exponential decay rate $\beta_1$ of the first moment. The paper's $\beta_1$ is 1 minus this one, and so are
            its $\beta_2$ and $\beta_3$.
        b2: exponential decay rate $\beta_2$ of the average of gradient differences.
        b3: exponential decay rate $\beta_3$ of the second moment.
        eps: $\varepsilon$, added to the denominator outside the root.
        eps_root: $\bar\varepsilon$, added to the second moment inside the root.
        follow: `"paper"` for the weight $\beta_2$ of the difference, `"optax"` for $1 - \beta_2$; in `Adan`, `"optax"`
            also means the weight decay of `AdamW`.
    """

    b1: ma.Number = ma.number(0.98, needs=ma.DECAY)
    b2: ma.Number = ma.number(0.92, needs=ma.DECAY)
    b3: ma.Number = ma.number(0.99, needs=ma.DECAY)
    eps: ma.Number = ma.number(1e-8)
    _: ma.KW_ONLY
    eps_root: ma.Number = ma.number(0.0)
    follow: ma.Follow = ma.followed()


class ScaleByAdan(AbstractAdan, ma.AbstractLeafwise[ScaleByAdanState]):
    r"""Nesterov momentum estimated from update differences, over the root of a second moment: the direction of Adan.

    $$
    \begin{aligned}
    d_t &= g_t - g_{t-1}, \qquad d_1 = 0 \\
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t \\
    v_t &= \beta_2 v_{t-1} + (1 - \beta_2) d_t \\
    n_t &= \beta_3 n_{t-1} + (1 - \beta_3) |g_t + \gamma d_t|^2 \\
    \hat m_t &= \frac{m_t}{1 - \beta_1^t}, \qquad \hat v_t = \frac{v_t}{1 - \beta_2^t}, \qquad
        \hat n_t = \frac{n_t}{1 - \beta_3^t} \\
    u_t &= \frac{\hat m_t + \gamma \hat v_t}{\sqrt{\hat n_t + \bar\varepsilon} + \varepsilon}
    \end{aligned}
    $$

    The bias corrections are from the authors' code. The paper's coefficients are $1 - \beta$ in this notation, so its
    weight of the difference is $\gamma = \beta_2$. optax takes $\gamma = 1 - \beta_2$, and so does `follow="optax"`.

    Args:
        b1: exponential decay rate $\beta_1$ of the first moment. The paper's $\beta_1$ is 1 minus this one, and so are
            its $\beta_2$ and $\beta_3$.
        b2: exponential decay rate $\beta_2$ of the average of gradient differences.
        b3: exponential decay rate $\beta_3$ of the second moment.
        eps: $\varepsilon$, added to the denominator outside the root.
        eps_root: $\bar\varepsilon$, added to the second moment inside the root.
        follow: `"paper"` for the weight $\beta_2$ of the difference, `"optax"` for $1 - \beta_2$; in `Adan`, `"optax"`
            also means the weight decay of `AdamW`.

    References:
        Xie et al., [Adan: Adaptive Nesterov Momentum Algorithm for Faster Optimizing Deep
        Models](https://arxiv.org/abs/2208.06677), 2022.
    """

    def init_leaf(self, p):
        return ScaleByAdanState(
            m=jnp.zeros_like(p), v=jnp.zeros_like(p), n=ma.second_moment_like(p), g=jnp.zeros_like(p)
        )

    def prepare(self, count):
        t = count + 1
        weight = self.b2 if self.follow == "paper" else 1 - self.b2
        return _AdanNumbers(ma.bias(self.b1, t), ma.bias(self.b2, t), ma.bias(self.b3, t), weight, count)

    def update_leaf(self, now, g, s, p):
        del p
        # The zeros of a fresh state are not a previous gradient.
        difference = jnp.where(now.count > 0, g - s.g, 0)
        m = ma.moment(self.b1, s.m, g)
        v = ma.moment(self.b2, s.v, difference)
        n = ma.moment(self.b3, s.n, ma.abs_sq(g + now.weight * difference))
        direction = m / now.bias1 + now.weight * v / now.bias2
        u = direction / (self.eps + ma.safe_sqrt(self.eps_root + n / now.bias3))
        return u, ScaleByAdanState(m=m, v=v, n=n, g=kept(g, s.g, now.count))


class Adan(ma.AbstractDecayedByName, AbstractAdan, ma.AbstractRated):
    r"""Adam with Nesterov momentum estimated from gradient differences, for training large models in fewer steps.

        optimizer = Adan(5e-3, weight_decay=0.02)

    $$
    \begin{aligned}
    d_t &= g_t - g_{t-1}, \qquad d_1 = 0 \\
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t \\
    v_t &= \beta_2 v_{t-1} + (1 - \beta_2) d_t \\
    n_t &= \beta_3 n_{t-1} + (1 - \beta_3) |g_t + \beta_2 d_t|^2 \\
    \hat m_t &= \frac{m_t}{1 - \beta_1^t}, \qquad \hat v_t = \frac{v_t}{1 - \beta_2^t}, \qquad
        \hat n_t = \frac{n_t}{1 - \beta_3^t} \\
    u_t &= \frac{\hat m_t + \beta_2 \hat v_t}{\sqrt{\hat n_t + \bar\varepsilon} + \varepsilon} \\
    w_{t+1} &= (w_t - \eta u_t) / (1 + \eta \lambda)
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$, $t = 1, 2, \dots$, and $m_0 = v_0 = n_0 = 0$. With `follow="optax"`, the weight
    $\beta_2$ of $d_t$ and $\hat v_t$ is replaced by $1 - \beta_2$, and the weight decay is that of `AdamW`,
    $w_{t+1} = w_t - \eta (u_t + \lambda w_t)$.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        b1: exponential decay rate $\beta_1$ of the first moment. The paper's $\beta_1$ is 1 minus this one, and so are
            its $\beta_2$ and $\beta_3$.
        b2: exponential decay rate $\beta_2$ of the average of gradient differences.
        b3: exponential decay rate $\beta_3$ of the second moment.
        eps: $\varepsilon$, added to the denominator outside the root.
        eps_root: $\bar\varepsilon$, added to the second moment inside the root.
        follow: `"paper"` for the weight $\beta_2$ of the difference, `"optax"` for $1 - \beta_2$; in `Adan`, `"optax"`
            also means the weight decay of `AdamW`.
        weight_decay: weight decay coefficient $\lambda$, multiplied by the learning rate.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.
        proximal: whether the decay is proximal, as above; else that of `AdamW`, as with `no_prox` in the authors' code.
        max_grad_norm: largest global norm of the gradients, which are clipped before, with $\varepsilon$ added to the
            norm as in the authors' code; None for no bound.

    References:
        Xie et al., [Adan: Adaptive Nesterov Momentum Algorithm for Faster Optimizing Deep
        Models](https://arxiv.org/abs/2208.06677), 2022.
    """

    direction = ScaleByAdan
    _: ma.KW_ONLY
    eps_root: ma.Number = ma.number(1e-8)
    proximal: bool = ma.static(True)
    max_grad_norm: ma.OptionalNumber = ma.number(None, needs=ma.POSITIVE, optional=True)

    def directions(self):
        clip = [] if self.max_grad_norm is None else [_Clip(self.max_grad_norm, self.eps)]
        return [*clip, *super().directions()]

    def transform(self):
        if self.follow == "paper" and self.proximal:
            rate = ma.ScaleByLearningRate(self.learning_rate)
            return ma.Chain(*self.directions(), rate, self._part(ProximalWeightDecay))
        return super().transform()


class _Clip(ma.AbstractLeafwise):
    r"""The gradient clipping of the authors' code of Adan: by $\min(1, \Delta / (\|g\| + \varepsilon))$.

    Args:
        max_norm: largest norm $\Delta$ of all updates together.
        eps: $\varepsilon$.
    """

    max_norm: ma.Number = ma.required_number(needs=ma.NON_NEGATIVE)
    eps: ma.Number = ma.number(1e-8)

    def survey(self, count, state, updates, params, **extra):
        del count, state, params, extra
        return reduction(self.max_norm, self.eps + ma.norm(updates))

    def update_leaf(self, now, g, s, p):
        del p
        return reduced(g, now), s
