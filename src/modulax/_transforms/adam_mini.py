"""The direction of Adam-mini: Adam with one number of the second moment for each block of an array."""

from dataclasses import KW_ONLY
from typing import Any

import equinox as eqx
from jaxtyping import DTypeLike, PyTree

from .._protocol.fields import Number, number
from .._support.arithmetic import abs_sq, moment, safe_sqrt, second_moment_like, zeros_in
from .._support.checks import DECAY
from .._support.module import AbstractState, counter, like_params
from .._support.types import Count, Shared
from .adam import adam_numbers
from .block_means import AbstractByBlocks, means, per_head, per_output, roles_of_blocks, spread_over, whole


class ScaleByAdamMiniState(AbstractState):
    """State of `ScaleByAdamMini`: step count, first moment, and a second moment with a number for each block."""

    mu: PyTree = like_params(moment=1.0)
    nu: PyTree = like_params(nonnegative=True)
    count: Shared[Count] = counter()


class ScaleByAdamMini(AbstractByBlocks[ScaleByAdamMiniState]):
    r"""Divides the first moment by the root of a second moment that is a mean over blocks: the direction of Adam-mini.

    $$
    \begin{aligned}
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t \\
    v_t &= \beta_2 v_{t-1} + (1 - \beta_2) \operatorname{mean}_{\text{block}} |g_t|^2 \\
    u_t &= \frac{m_t / (1 - \beta_1^t)}{\sqrt{v_t / (1 - \beta_2^t)} + \varepsilon}
    \end{aligned}
    $$

    The blocks follow from the role of the parameter:

    * each head of a query and of a key, where the number of heads is known, also of several projections in one array;
    * each output of every other matrix: of hidden layers, values, outputs of attention, the head and LoRA;
    * each token of an embedding, and each place of a table of positions;
    * each entry of a bias;
    * the whole array of everything else, such as gains and convolutions.

    State: the first moment, which is as large as the parameter, and 4 bytes for each block.

    Args:
        b1: exponential decay rate $\beta_1$ of the first moment.
        b2: exponential decay rate $\beta_2$ of the second moment.
        eps: $\varepsilon$, added to the denominator.
        mu_dtype: dtype of the first moment; by default that of the parameters.
        roles: roles of parameters for which they are not found, or found wrongly: a mapping from patterns to roles, or
            the result of `roles(model)`. `{"*.qkv": Attention(heads=8)}` gives heads, and `Other()` is one block.

    References:
        Zhang et al., [Adam-mini: Use Fewer Learning Rates To Gain More](https://arxiv.org/abs/2406.16793), 2024, and
        the authors' [code](https://github.com/zyushun/Adam-mini).
    """

    b1: Number = number(0.9, needs=DECAY)
    b2: Number = number(0.999, needs=DECAY)
    eps: Number = number(1e-8)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    _: KW_ONLY
    roles: Any = roles_of_blocks()

    def numbers_of(self, role, shape):
        if role.kind == "bias":
            return shape
        if role.kind == "convolution":
            return whole(shape)
        return per_head(role, shape) or per_output(role, shape) or whole(shape)

    def by_blocks(self):
        return ("nu",)

    def init_leaf(self, p):
        return ScaleByAdamMiniState(mu=zeros_in(p, self.mu_dtype), nu=second_moment_like(p))

    def prepare(self, count):
        return adam_numbers(self.b1, self.b2, count)

    def update_leaf(self, now, g, s, p):
        del p
        mu = moment(self.b1, s.mu, g, now.c1)
        nu = moment(self.b2, s.nu, means(abs_sq(g), s.nu.shape), now.c2)
        denominator = self.eps + safe_sqrt(nu / now.bias2)
        return mu / now.bias1 / spread_over(denominator, g.shape), ScaleByAdamMiniState(mu=mu, nu=nu)
