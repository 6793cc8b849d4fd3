"""The optimizer Scion: steps of a fixed size in a norm that suits the role of each parameter."""

from dataclasses import KW_ONLY
from typing import Any

import equinox as eqx
from jaxtyping import DTypeLike

from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, OptionalNumber, choice, number, numbers
from .._protocol.optimizer import AbstractOptimizer
from .._protocol.transform import Effect
from .._roles.find import as_roles
from .._support.checks import DECAY
from .._support.types import Params, State
from .._transforms.regularization import AddDecayedWeights
from .._transforms.scaling import ScaleByLearningRate
from .._transforms.scion import NORMS, ScaleByScion
from .._transforms.spread import axis_names
from ..linalg._newton_schulz import PRECONDITIONINGS, as_coefficients
from .beside_adamw import names_that_deny


class Scion(AbstractOptimizer):
    r"""Steps of a fixed size in a norm chosen by the role of each parameter, with one learning rate for all widths.

        optimizer = Scion(3e-4, scale=50.0, head_scale=3000.0)

    $$
    \begin{aligned}
    d_t &= \beta d_{t-1} + (1 - \beta) g_t \\
    w_{t+1} &= (1 - \eta) w_t - \eta \rho \operatorname{lmo}(d_t) \quad\text{or, unconstrained,}\quad
        w_{t+1} = w_t - \eta \rho \operatorname{lmo}(d_t)
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$ and $d_0 = 0$. $-\operatorname{lmo}(d)$ is the point of the unit ball of a norm at
    which its inner product with $d$ is least. The first form keeps the weights in the ball of radius $\rho$.

    For a matrix of $m$ rows $i$ (inputs) and $n$ columns $j$ (outputs), $\operatorname{lmo}(d)$ is

    * with the norm `"spectral"`, for hidden matrices, $\sqrt{n / m}\, U V^\top$ where $d = U \Sigma V^\top$,
      approximated by a Newton-Schulz iteration as in `Muon`;
    * with `"sign"`, for the head, $\operatorname{sign}(d) / m$;
    * with `"input"`, for embeddings, whose inputs are tokens,
      $d_{ij} / (\sqrt{\frac{1}{n} \sum_k |d_{ik}|^2} + \varepsilon)$;
    * with `"output"`, $d_{ij} / (\sqrt{m \sum_k |d_{kj}|^2} + \varepsilon)$.

    All other arrays, such as biases and gains, are divided by their root mean square. `roles` finds the role of each
    parameter, as in `Muon`. The $m$ inputs of a convolution are those of its whole window of $k$ places: the authors
    divide by another $\sqrt k$.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        beta: exponential decay rate $\beta$ of the momentum.
        scale: radius $\rho$ of hidden matrices.
        head_scale: radius of the head; None for that of hidden matrices.
        embedding_scale: radius of embeddings; None for that of hidden matrices.
        vector_scale: radius of all other arrays; None for that of hidden matrices.
        rms_eps: $\varepsilon$, added to root mean squares.
        mu_dtype: dtype of the momentum; by default that of the parameters.
        constrained: True for the first form, False for the second.
        norm: norm of hidden matrices.
        head_norm: norm of the head.
        embedding_norm: norm of embeddings.
        roles: roles of parameters for which they are not found, or found wrongly: a mapping from patterns to roles, or
            the result of `roles(model)`.
        ns_coeffs: coefficients of the Newton-Schulz iteration, as in `ScaleByMuon`.
        ns_steps: number of iterations with a single triple of coefficients.
        eps: added to the norm of a matrix before the first iteration.
        preconditioning: how a matrix is scaled before the first iteration, as in `linalg.orthogonalize`.
        clamped: whether the factor of the spectral norm is $\sqrt{\max(1, n / m)}$.
        dtype: dtype of the matrices within the Newton-Schulz iteration, as in `ScaleByMuon`.
        over: axes of the mesh over which the iteration is divided, as in `ScaleByMuon`.

    References:
        Pethick et al., [Training Deep Learning Models with Norm-Constrained LMOs](https://arxiv.org/abs/2502.07529),
        2025, and the authors' [code](https://github.com/LIONS-EPFL/scion).
    """

    learning_rate: Hyperparameter = number(2.0**-12)
    beta: Hyperparameter = number(0.9, needs=DECAY)
    scale: Hyperparameter = number(50.0)
    head_scale: OptionalNumber = number(3000.0, optional=True)
    embedding_scale: OptionalNumber = number(None, optional=True)
    vector_scale: OptionalNumber = number(None, optional=True)
    rms_eps: Hyperparameter = number(1e-8)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    _: KW_ONLY
    constrained: bool = eqx.field(static=True, default=True)
    norm: str = choice(NORMS, "spectral")
    head_norm: str = choice(NORMS, "sign")
    embedding_norm: str = choice(NORMS, "input")
    roles: Any = eqx.field(static=True, default=None, converter=as_roles)
    ns_coeffs: Any = numbers(((3.4445, -4.775, 2.0315),), arranged=as_coefficients)
    ns_steps: int = eqx.field(static=True, default=5, metadata={"least": 0})
    eps: Hyperparameter = number(1e-7)
    preconditioning: str = choice(tuple(PRECONDITIONINGS), "frobenius")
    clamped: bool = eqx.field(static=True, default=False)
    dtype: DTypeLike | None = eqx.field(static=True, default=None)
    over: str | tuple[str, ...] | None = eqx.field(static=True, default=None, converter=axis_names)

    def _effect(self, tree: Params, state: State | None = None) -> Effect:
        del state
        return Effect(warnings=names_that_deny(self, self.roles, tree))

    def sizes_of(self, tree: Params) -> list[float | None]:
        """Return about the size of the entries of each update for a learning rate of 1; None if it is not known.

        Args:
            tree: the parameters, or anything with their shapes.
        """
        return self._direction().sizes_of(tree)

    def transform(self) -> Chain:
        pull = [AddDecayedWeights(1.0)] if self.constrained else []
        return Chain(self._direction(), *pull, ScaleByLearningRate(self.learning_rate))

    def _direction(self) -> ScaleByScion:
        return self._part(ScaleByScion)
