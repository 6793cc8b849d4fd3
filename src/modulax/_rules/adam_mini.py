"""Adam-mini: Adam with one number of the second moment for each block of an array."""

from typing import Any

from .. import authoring as ma
from .._transforms.block_means import AbstractByBlocks, means, per_head, per_output, roles_of_blocks, spread_over, whole
from .adam import AbstractAdamRule


class ScaleByAdamMiniState(ma.AbstractState):
    """State of `ScaleByAdamMini`: step count, first moment, and a second moment with a number for each block."""

    mu: ma.PyTree = ma.like_params(moment=1.0)
    nu: ma.PyTree = ma.like_params(nonnegative=True)
    count: ma.Shared[ma.Count] = ma.counter()


class AbstractAdamMini(ma.AbstractMoments):
    r"""The hyperparameters of Adam-mini.

    Args:
        mu_dtype: dtype of the first moment; by default that of the parameters.
        roles: roles of parameters for which they are not found, or found wrongly: a mapping from patterns to roles, or
            the result of `roles(model)`. `{"*.qkv": Attention(heads=8)}` gives heads, and `Other()` is one block.
    """

    mu_dtype: ma.DTypeLike | None = ma.static(None)
    _: ma.KW_ONLY
    roles: Any = roles_of_blocks()


class ScaleByAdamMini(AbstractAdamMini, AbstractByBlocks[ScaleByAdamMiniState], AbstractAdamRule[ScaleByAdamMiniState]):
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
        eps: $\varepsilon$, added to the denominator outside the root.
        mu_dtype: dtype of the first moment; by default that of the parameters.
        roles: roles of parameters for which they are not found, or found wrongly: a mapping from patterns to roles, or
            the result of `roles(model)`. `{"*.qkv": Attention(heads=8)}` gives heads, and `Other()` is one block.

    References:
        Zhang et al., [Adam-mini: Use Fewer Learning Rates To Gain More](https://arxiv.org/abs/2406.16793), 2024, and
        the authors' [code](https://github.com/zyushun/Adam-mini).
    """

    by_blocks = ("nu",)

    def numbers_of(self, role, shape):
        if role.kind == "bias":
            return shape
        if role.kind == "convolution":
            return whole(shape)
        return per_head(role, shape) or per_output(role, shape) or whole(shape)

    def init_leaf(self, p):
        return ScaleByAdamMiniState(mu=ma.zeros_in(p, self.mu_dtype), nu=ma.second_moment_like(p))

    def update_leaf(self, now, g, s, p):
        del p
        mu = ma.moment(self.b1, s.mu, g, now.c1)
        nu = ma.moment(self.b2, s.nu, means(ma.abs_sq(g), s.nu.shape), now.c2)
        denominator = self.eps + ma.safe_sqrt(nu / now.bias2)
        return mu / now.bias1 / spread_over(denominator, g.shape), ScaleByAdamMiniState(mu=mu, nu=nu)


class AdamMini(AbstractAdamMini, ma.AbstractDecayed, ma.AbstractMoments, ma.AbstractRated):
    r"""AdamW with half the state: one second moment for each head, output or token.

        optimizer = AdamMini(1e-3, weight_decay=0.1)

    $$
    \begin{aligned}
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t \\
    v_t &= \beta_2 v_{t-1} + (1 - \beta_2) \operatorname{mean}_{\text{block}} |g_t|^2 \\
    w_{t+1} &= w_t - \eta \left( \frac{m_t / (1 - \beta_1^t)}{\sqrt{v_t / (1 - \beta_2^t)} + \varepsilon}
        + \lambda w_t \right)
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$ and $m_0 = v_0 = 0$. The blocks follow from the role of a parameter, see
    `ScaleByAdamMini`: each head of queries and keys, each output of other matrices, each token of an embedding, each
    entry of a bias, and the whole array of everything else. `print(roles(model))` shows the roles. Hyperparameters are
    those of AdamW. The authors exclude biases and the gains of norms from the weight decay: `mask=by_role({Bias: False,
    Gain: False}, default=True)`.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        b1: exponential decay rate $\beta_1$ of the first moment.
        b2: exponential decay rate $\beta_2$ of the second moment.
        eps: $\varepsilon$, added to the denominator outside the root.
        weight_decay: weight decay coefficient $\lambda$, multiplied by the learning rate.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.
        mu_dtype: dtype of the first moment; by default that of the parameters.
        roles: roles of parameters for which they are not found, or found wrongly: a mapping from patterns to roles, or
            the result of `roles(model)`. `{"*.qkv": Attention(heads=8)}` gives heads, and `Other()` is one block.

    References:
        Zhang et al., [Adam-mini: Use Fewer Learning Rates To Gain More](https://arxiv.org/abs/2406.16793), 2024, and
        the authors' [code](https://github.com/zyushun/Adam-mini).
    """

    direction = ScaleByAdamMini
    learning_rate: ma.Number = ma.number(1e-3)
