"""Muon whose orthogonalized matrices are normalized by their second moments: NorMuon and AdaMuon."""

import jax.numpy as jnp

from .. import authoring as ma
from .._transforms.outer_products import norm
from .beside_adamw import AbstractBesideOwnAdamW
from .muon import AbstractMuonMomentum, AbstractOfMatrices, AbstractScaleByMuon, AbstractScaledByShape, AbstractShaped


class NormalizedMuonState(ma.AbstractState):
    """State of `ScaleByNorMuon` and `ScaleByAdaMuon`: momentum, second moment of the orthogonalized matrices, count.

    The moments are None for leaves that aren't matrices. The second moment of NorMuon has one entry for each output.
    """

    mu: ma.PyTree = ma.like_params(moment=1.0)
    nu: ma.PyTree = ma.like_params(nonnegative=True)
    count: ma.Shared[ma.Count] = ma.shared(None)


class AbstractNorMuon(AbstractMuonMomentum):
    r"""The hyperparameters of NorMuon.

    Args:
        b2: exponential decay rate $\beta_2$ of the second moment.
        eps: added to the norm that a matrix is divided by before the first iteration.
        moment_eps: $\bar\varepsilon$, added to the root of the second moment.
    """

    b2: ma.Number = ma.number(0.95, needs=ma.DECAY)
    eps: ma.Number = ma.number(1e-8)
    moment_eps: ma.Number = ma.number(1e-10)


class ScaleByNorMuon(AbstractOfMatrices, AbstractNorMuon, AbstractScaleByMuon[NormalizedMuonState]):
    r"""Orthogonalizes the momentum of every matrix, and gives all its outputs steps of a similar size: NorMuon.

    $$
    \begin{aligned}
    m_t &= \beta m_{t-1} + (1 - \beta) g_t \\
    d_t &= \beta m_t + (1 - \beta) g_t \quad\text{or, without Nesterov momentum,}\quad d_t = m_t \\
    o_t &= U V^\top \quad\text{where}\quad d_t = U \Sigma V^\top \\
    v_{t,j} &= \beta_2 v_{t-1,j} + (1 - \beta_2) \frac{1}{m} \sum_{i=1}^m |o_{t,ij}|^2 \\
    \hat o_{t,ij} &= \frac{o_{t,ij}}{\sqrt{v_{t,j}} + \bar\varepsilon}, \qquad
        u_t = \frac{\|o_t\|_F}{\|\hat o_t\|_F} \hat o_t
    \end{aligned}
    $$

    for a matrix of $m$ rows (inputs) whose columns $j$ are outputs, the neurons. $o_t$ is approximated by
    `linalg.orthogonalize`, as in `ScaleByMuon`. Leaves that aren't matrices pass through unchanged.

    Args:
        beta: exponential decay rate $\beta$ of the momentum.
        b2: exponential decay rate $\beta_2$ of the second moment.
        eps: added to the norm that a matrix is divided by before the first iteration.
        moment_eps: $\bar\varepsilon$, added to the root of the second moment.
        mu_dtype: dtype of the momentum; by default that of the parameters.
        nesterov: whether to use Nesterov momentum.
        ns_coeffs: coefficients of the Newton-Schulz iteration: three numbers, or one triple per iteration, or the name
            of a preset, as in `linalg.orthogonalize`. They are stored as a tuple of triples, each number of which may
            be a schedule.
        ns_steps: number of iterations with a single triple of coefficients.
        dtype: dtype of the matrices within the iteration, as in `linalg.orthogonalize`. Momentum and updates keep
            theirs.
        over: axes of the mesh over which the work is divided, such as `"data"`, if parameters or state are on one; all
            axes by default. With `()`, each array is computed where it is, which suits stacks of layers that are
            divided along the axis of the layers.
        preconditioning: how a matrix is scaled before the first iteration: `"frobenius"`, `"spectral"`, `"aol"` or
            `"schatten"`, see `linalg.orthogonalize`.
        per_head: whether each head of a query, key or value is orthogonalized on its own. Query, key and value in one
            array always are, where the role says so.
        weight_dimension_numbers: which parameters are matrices: a `MuonDimensionNumbers` for all with at least two
            axes; a tree of them, with None for the others, or a function of the parameters that returns one; or
            `by_path({...})`; or the result of `roles`. By default the roles of the parameters tell: the matrices of
            hidden layers, of convolutions and of attention.

    References:
        Li et al., [NorMuon: Making Muon more efficient and scalable](https://arxiv.org/abs/2510.05491), 2025, and the
        authors' [code](https://github.com/zichongli5/NorMuon).
    """

    def init_matrix(self, x):
        nu = jnp.mean(ma.second_moment_like(x), axis=-2, keepdims=True)
        return NormalizedMuonState(ma.zeros_in(x, self.mu_dtype), nu)

    def update_matrix(self, now, g, s, p):
        del now, p
        (o,) = g
        nu = ma.moment(self.b2, s.nu, jnp.mean(ma.abs_sq(o), axis=-2, keepdims=True))
        x = o / (ma.safe_sqrt(nu) + self.moment_eps)
        return ma.ratio(norm(o), norm(x)) * x, NormalizedMuonState(s.mu, nu)


class AbstractAdaMuon(AbstractMuonMomentum):
    r"""The hyperparameters of AdaMuon.

    Args:
        b2: exponential decay rate $\beta_2$ of the second moment; by default $\beta$.
        eps: added to the norm that a matrix is divided by before the first iteration.
        moment_eps: $\bar\varepsilon$, added to the root of the second moment and to the norm.
        consistent_rms: $\rho$, the root mean square of $u_t$.
        sign: whether the signs of the entries of $d_t$ are orthogonalized, and not $d_t$ itself.
    """

    b2: ma.OptionalNumber = ma.number(None, needs=ma.DECAY, optional=True)
    eps: ma.Number = ma.number(1e-8)
    moment_eps: ma.Number = ma.number(1e-8)
    consistent_rms: ma.Number = ma.number(0.2)
    _: ma.KW_ONLY
    sign: bool = ma.static(True)


class ScaleByAdaMuon(AbstractOfMatrices, AbstractAdaMuon, AbstractScaleByMuon[NormalizedMuonState]):
    r"""Orthogonalizes the signs of the momentum of every matrix, and divides by a second moment as Adam does: AdaMuon.

    $$
    \begin{aligned}
    m_t &= \beta m_{t-1} + (1 - \beta) g_t \\
    d_t &= \beta m_t + (1 - \beta) g_t \quad\text{or, without Nesterov momentum,}\quad d_t = m_t \\
    o_t &= U V^\top \quad\text{where}\quad \operatorname{sign}(d_t) = U \Sigma V^\top \\
    v_t &= \beta_2 v_{t-1} + (1 - \beta_2) |o_t|^2 \\
    \hat o_t &= \frac{o_t}{\sqrt{v_t} + \bar\varepsilon}, \qquad
        u_t = \frac{\rho \sqrt{m n}}{\|\hat o_t\|_F + \bar\varepsilon} \hat o_t
    \end{aligned}
    $$

    for a matrix of $m$ rows and $n$ columns. The root mean square of its update is $\rho$. $o_t$ is approximated by
    `linalg.orthogonalize`, as in `ScaleByMuon`. Leaves that aren't matrices pass through unchanged.

    Args:
        beta: exponential decay rate $\beta$ of the momentum.
        b2: exponential decay rate $\beta_2$ of the second moment; by default $\beta$.
        eps: added to the norm that a matrix is divided by before the first iteration.
        moment_eps: $\bar\varepsilon$, added to the root of the second moment and to the norm.
        consistent_rms: $\rho$, the root mean square of $u_t$.
        mu_dtype: dtype of the momentum; by default that of the parameters.
        nesterov: whether to use Nesterov momentum.
        ns_coeffs: coefficients of the Newton-Schulz iteration: three numbers, or one triple per iteration, or the name
            of a preset, as in `linalg.orthogonalize`. They are stored as a tuple of triples, each number of which may
            be a schedule.
        ns_steps: number of iterations with a single triple of coefficients.
        dtype: dtype of the matrices within the iteration, as in `linalg.orthogonalize`. Momentum and updates keep
            theirs.
        over: axes of the mesh over which the work is divided, such as `"data"`, if parameters or state are on one; all
            axes by default. With `()`, each array is computed where it is, which suits stacks of layers that are
            divided along the axis of the layers.
        preconditioning: how a matrix is scaled before the first iteration: `"frobenius"`, `"spectral"`, `"aol"` or
            `"schatten"`, see `linalg.orthogonalize`.
        per_head: whether each head of a query, key or value is orthogonalized on its own. Query, key and value in one
            array always are, where the role says so.
        sign: whether the signs of the entries of $d_t$ are orthogonalized, and not $d_t$ itself.
        weight_dimension_numbers: which parameters are matrices: a `MuonDimensionNumbers` for all with at least two
            axes; a tree of them, with None for the others, or a function of the parameters that returns one; or
            `by_path({...})`; or the result of `roles`. By default the roles of the parameters tell: the matrices of
            hidden layers, of convolutions and of attention.

    References:
        Si et al., [AdaMuon: Adaptive Muon Optimizer](https://arxiv.org/abs/2507.11005), 2025, and the authors'
        [code](https://github.com/Chongjie-Si/AdaMuon).
    """

    def init_matrix(self, x):
        return NormalizedMuonState(ma.zeros_in(x, self.mu_dtype), ma.second_moment_like(x))

    def direction(self, now, g, mu):
        d = super().direction(now, g, mu)
        return jnp.sign(d) if self.sign else d

    def update_matrix(self, now, g, s, p):
        del now, p
        (o,) = g
        nu = ma.moment(self.beta if self.b2 is None else self.b2, s.nu, ma.abs_sq(o))
        x = o / (ma.safe_sqrt(nu) + self.moment_eps)
        wanted = self.consistent_rms * (o.shape[-2] * o.shape[-1]) ** 0.5
        return ma.ratio(wanted, norm(x) + self.moment_eps) * x, NormalizedMuonState(s.mu, nu)


class NorMuon(AbstractShaped, AbstractScaledByShape, AbstractBesideOwnAdamW, AbstractNorMuon, ma.AbstractRated):
    r"""Muon with a second moment for each output, so that all outputs of a matrix take steps of similar size.

        optimizer = NorMuon(2e-2, adam_learning_rate=3e-4, weight_decay=0.01)

    $$
    \begin{aligned}
    m_t &= \beta m_{t-1} + (1 - \beta) g_t \\
    d_t &= \beta m_t + (1 - \beta) g_t \quad\text{or, without Nesterov momentum,}\quad d_t = m_t \\
    o_t &= U V^\top \quad\text{where}\quad d_t = U \Sigma V^\top \\
    v_{t,j} &= \beta_2 v_{t-1,j} + (1 - \beta_2) \frac{1}{m} \sum_{i=1}^m |o_{t,ij}|^2 \\
    \hat o_{t,ij} &= \frac{o_{t,ij}}{\sqrt{v_{t,j}} + \bar\varepsilon}, \qquad
        u_t = \frac{\|o_t\|_F}{\|\hat o_t\|_F} \hat o_t \\
    s &= \sqrt{\max(1, n / m)} \quad\text{or}\quad s = \sqrt{n / m} \quad\text{or, with }
        \texttt{consistent\_rms},\quad s = \rho \sqrt{\max(m, n)} \\
    w_{t+1} &= w_t - \eta (s\, u_t + \lambda w_t)
    \end{aligned}
    $$

    for a matrix of $m$ rows (inputs) and $n$ columns (outputs $j$, the neurons), with $g_t$ the gradient at $w_t$,
    $m_0 = 0$ and $v_0 = 0$. $U V^\top$ is approximated by a Newton-Schulz iteration, as in `Muon`. `roles` finds the
    matrices, and AdamW trains all other parameters.

    The `NorMuon` of the package dion is

        NorMuon(
            0.01, ns_coeffs="polar_express", nesterov=False, moment_eps=1e-8, weight_decay=0.01, clamped=False
        )

    and its momentum is a sum, which has the same direction.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        beta: exponential decay rate $\beta$ of the momentum.
        b2: exponential decay rate $\beta_2$ of the second moment.
        eps: added to the norm that a matrix is divided by before the first iteration.
        moment_eps: $\bar\varepsilon$, added to the root of the second moment.
        weight_decay: weight decay coefficient $\lambda$ of the matrices, multiplied by the learning rate.
        mask: which matrices decay, as in `AddDecayedWeights`; by default all.
        mu_dtype: dtype of the momentum and of AdamW's first moment; by default that of the parameters.
        nesterov: whether to use Nesterov momentum.
        ns_coeffs: coefficients of the Newton-Schulz iteration: three numbers, or one triple per iteration, or the name
            of a preset, as in `linalg.orthogonalize`. They are stored as a tuple of triples, each number of which may
            be a schedule.
        ns_steps: number of iterations with a single triple of coefficients.
        dtype: dtype of the matrices within the iteration, as in `linalg.orthogonalize`. Momentum and updates keep
            theirs.
        over: axes of the mesh over which the work is divided, such as `"data"`, if parameters or state are on one; all
            axes by default. With `()`, each array is computed where it is, which suits stacks of layers that are
            divided along the axis of the layers.
        preconditioning: how a matrix is scaled before the first iteration: `"frobenius"`, `"spectral"`, `"aol"` or
            `"schatten"`, see `linalg.orthogonalize`.
        per_head: whether each head of a query, key or value is orthogonalized on its own. Query, key and value in one
            array always are, where the role says so.
        adam_b1: exponential decay rate of AdamW's first moment.
        adam_b2: exponential decay rate of AdamW's second moment.
        adam_weight_decay: weight decay coefficient of AdamW, multiplied by its learning rate.
        adam_learning_rate: learning rate of AdamW, a number or a schedule; None for $\eta$.
        roles: roles of parameters for which they are not found, or found wrongly: a mapping from patterns to roles, or
            the result of `roles(model)`.
        cautious_weight_decay: whether only entries of matrices decay that the update moves towards zero, as in
            `AddDecayedWeights(cautious=True)`.
        adam_eps: AdamW's $\varepsilon$.
        consistent_rms: $\rho$, the root mean square of an update, for the third form of $s$; None for another.
        clamped: True for the first form of $s$, False for the second.

    References:
        Li et al., [NorMuon: Making Muon more efficient and scalable](https://arxiv.org/abs/2510.05491), 2025, and the
        authors' [code](https://github.com/zichongli5/NorMuon).
    """

    direction = ScaleByNorMuon
    learning_rate: ma.Number = ma.number(0.02)
    eps: ma.Number = ma.number(1e-7)
    _: ma.KW_ONLY
    adam_eps: ma.Number = ma.number(1e-10)
    adam_learning_rate: ma.OptionalNumber = ma.number(3e-4, optional=True)


class AdaMuon(AbstractBesideOwnAdamW, AbstractAdaMuon, ma.AbstractRated):
    r"""Muon on the signs of the momentum, with each update divided by its second moment, as in Adam.

        optimizer = AdaMuon(2e-3, weight_decay=0.1)

    $$
    \begin{aligned}
    m_t &= \beta m_{t-1} + (1 - \beta) g_t \\
    d_t &= \beta m_t + (1 - \beta) g_t \quad\text{or, without Nesterov momentum,}\quad d_t = m_t \\
    o_t &= U V^\top \quad\text{where}\quad \operatorname{sign}(d_t) = U \Sigma V^\top \\
    v_t &= \beta_2 v_{t-1} + (1 - \beta_2) |o_t|^2 \\
    \hat o_t &= \frac{o_t}{\sqrt{v_t} + \bar\varepsilon}, \qquad
        u_t = \frac{\rho \sqrt{m n}}{\|\hat o_t\|_F + \bar\varepsilon} \hat o_t \\
    w_{t+1} &= w_t - \eta (u_t + \lambda w_t)
    \end{aligned}
    $$

    for a matrix of $m$ rows and $n$ columns, with $g_t$ the gradient at $w_t$, $m_0 = 0$ and $v_0 = 0$. The root mean
    square of an update is $\eta \rho$. $U V^\top$ is approximated by a Newton-Schulz iteration, as in `Muon`. `roles`
    finds the matrices, and AdamW trains all other parameters.

    timm's form has no sign: `AdaMuon(sign=False, b2=0.95, nesterov=False, ns_coeffs="dion")`.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        beta: exponential decay rate $\beta$ of the momentum.
        b2: exponential decay rate $\beta_2$ of the second moment; by default $\beta$.
        eps: added to the norm that a matrix is divided by before the first iteration.
        moment_eps: $\bar\varepsilon$, added to the root of the second moment and to the norm.
        consistent_rms: $\rho$, the root mean square of $u_t$.
        weight_decay: weight decay coefficient $\lambda$ of the matrices, multiplied by the learning rate.
        mask: which matrices decay, as in `AddDecayedWeights`; by default all.
        mu_dtype: dtype of the momentum and of AdamW's first moment; by default that of the parameters.
        nesterov: whether to use Nesterov momentum.
        ns_coeffs: coefficients of the Newton-Schulz iteration: three numbers, or one triple per iteration, or the name
            of a preset, as in `linalg.orthogonalize`. They are stored as a tuple of triples, each number of which may
            be a schedule.
        ns_steps: number of iterations with a single triple of coefficients.
        dtype: dtype of the matrices within the iteration, as in `linalg.orthogonalize`. Momentum and updates keep
            theirs.
        over: axes of the mesh over which the work is divided, such as `"data"`, if parameters or state are on one; all
            axes by default. With `()`, each array is computed where it is, which suits stacks of layers that are
            divided along the axis of the layers.
        preconditioning: how a matrix is scaled before the first iteration: `"frobenius"`, `"spectral"`, `"aol"` or
            `"schatten"`, see `linalg.orthogonalize`.
        per_head: whether each head of a query, key or value is orthogonalized on its own. Query, key and value in one
            array always are, where the role says so.
        sign: whether the signs of the entries of $d_t$ are orthogonalized, and not $d_t$ itself.
        adam_b1: exponential decay rate of AdamW's first moment.
        adam_b2: exponential decay rate of AdamW's second moment.
        adam_weight_decay: weight decay coefficient of AdamW, multiplied by its learning rate.
        adam_learning_rate: learning rate of AdamW, a number or a schedule; None for $\eta$.
        roles: roles of parameters for which they are not found, or found wrongly: a mapping from patterns to roles, or
            the result of `roles(model)`.
        cautious_weight_decay: whether only entries of matrices decay that the update moves towards zero, as in
            `AddDecayedWeights(cautious=True)`.
        adam_eps: AdamW's $\varepsilon$.

    References:
        Si et al., [AdaMuon: Adaptive Muon Optimizer](https://arxiv.org/abs/2507.11005), 2025, and the authors'
        [code](https://github.com/Chongjie-Si/AdaMuon).
    """

    direction = ScaleByAdaMuon
    learning_rate: ma.Number = ma.number(0.02)
    eps: ma.Number = ma.number(1e-7)
    weight_decay: ma.Number = ma.number(0.01)
    _: ma.KW_ONLY
    adam_learning_rate: ma.OptionalNumber = ma.number(3e-4, optional=True)
