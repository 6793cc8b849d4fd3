"""SM3: second moments stored as one sum per row, column, and so on."""

import functools

import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import ArrayLike

from .. import authoring as ma


def inverse_root(x: ma.Array, eps: ArrayLike = 0) -> ma.Array:
    r"""$1 / \sqrt{x + \varepsilon}$, and zero where `x` is not positive; so is its derivative there."""
    positive = x > 0
    return jnp.where(positive, 1 / ma.safe_sqrt(eps + jnp.where(positive, x, 1)), 0)


class ScaleBySM3State(ma.AbstractState):
    """State of `ScaleBySM3`: momentum, stored in `nu`, and sums of squares along each axis, in `mu`."""

    optax_fields = ("mu", "nu")

    mu: ma.PyTree = ma.like_params(nonnegative=True)
    nu: ma.PyTree = ma.like_params()


class ScaleBySM3(ma.AbstractLeafwise[ScaleBySM3State]):
    r"""Adagrad with one sum of squares per row, column, and so on, instead of one per entry: the direction of SM3.

    The sum of an entry is the smallest of the sums it belongs to, plus its own square. Each new sum is the largest of
    its entries:

    $$
    \begin{aligned}
    \nu_t(i) &= w \min_{a} \mu_{t-1}^a(i_a) + w' g_t(i)^2, \qquad
    \mu_t^a(k) = \max_{i: i_a = k} \nu_t(i) \\
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t / \sqrt{\nu_t + \varepsilon}, \qquad u_t = m_t
    \end{aligned}
    $$

    with $w = w' = 1$ for $\beta_2 = 1$, as in the paper, and $w = \beta_2$, $w' = 1 - \beta_2$ otherwise. Entries whose
    gradients have all been zero don't move.

    State: $4 (n_1 + \dots + n_d)$ bytes of sums for a parameter of shape $n_1 \times \dots \times n_d$, in float32, in
    addition to the momentum, which is as large as the parameter. A scalar has one sum.

    Args:
        b1: exponential decay rate $\beta_1$ of the momentum.
        b2: exponential decay rate $\beta_2$ of the sums of squares; 1 for no decay.
        eps: $\varepsilon$, added to the sum of squares inside the root.

    References:
        Anil et al., [Memory-Efficient Adaptive Optimization](https://arxiv.org/abs/1901.11150), 2019, SM3-II.
    """

    b1: ma.Number = ma.number(0.9, needs=ma.DECAY)
    b2: ma.Number = ma.number(1.0, needs=ma.FRACTION)
    eps: ma.Number = ma.number(1e-8)

    def init_leaf(self, p):
        dtype = ma.second_moment_like(p).dtype
        lengths = [(n,) for n in p.shape] or [()]
        return ScaleBySM3State(mu=[jnp.zeros(n, dtype) for n in lengths], nu=jnp.zeros_like(p))

    def update_leaf(self, now, g, s, p):
        del now, p
        axes = range(g.ndim)
        sums_before, treedef = jtu.tree_flatten(s.mu)  # NNX turns lists into mappings
        lines = [jnp.expand_dims(mu, [i for i in axes if i != a]) for a, mu in enumerate(sums_before)]
        least = functools.reduce(jnp.minimum, [jnp.broadcast_to(line, g.shape) for line in lines])
        # With `b2 = 1` the squares are added up, as in the paper, and not averaged with a weight of zero.
        total = self.b2 * least + jnp.where(self.b2 == 1, 1, 1 - self.b2) * ma.abs_sq(g)
        # An array without entries needs the initial value: a maximum of nothing is an error.
        sums = [jnp.max(total, axis=tuple(i for i in axes if i != a), initial=0) for a in axes] or [total]
        momentum = ma.moment(self.b1, s.nu, inverse_root(total, self.eps) * g)
        return momentum, ScaleBySM3State(mu=treedef.unflatten(sums), nu=momentum)


class SM3(ma.AbstractRated):
    r"""Memory-efficient Adagrad: one sum of squared gradients per row and column instead of one per entry.

        optimizer = SM3(0.1)

    $$
    \begin{aligned}
    \nu_t(i) &= \min_{a} \mu_{t-1}^a(i_a) + g_t(i)^2, \qquad
    \mu_t^a(k) = \max_{i: i_a = k} \nu_t(i) \\
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t / \sqrt{\nu_t + 10^{-8}} \\
    w_{t+1} &= w_t - \eta\, m_t
    \end{aligned}
    $$

    for the entry at index $i = (i_1, \dots, i_d)$ of an array with axes $a = 1, \dots, d$, with $g_t$ the gradient at
    $w_t$, and sums $\mu^a$ and momentum $m$ started from zero.

    State: $4 (n_1 + \dots + n_d)$ bytes of sums for a parameter of shape $n_1 \times \dots \times n_d$, where Adagrad
    needs 4 bytes per entry, in addition to the momentum, which is as large as the parameter.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        momentum: exponential decay rate $\beta_1$ of the momentum.

    References:
        Anil et al., [Memory-Efficient Adaptive Optimization](https://arxiv.org/abs/1901.11150), 2019.
    """

    momentum: ma.Number = ma.number(0.9, needs=ma.DECAY)

    def directions(self):
        return [ScaleBySM3(self.momentum)]
