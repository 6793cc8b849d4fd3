"""Scion: the momentum of each array, projected on the unit ball of a norm that its role chooses."""

import dataclasses
import math
from typing import ClassVar

import jax.numpy as jnp
import jax.tree_util as jtu

from .. import authoring as ma
from .._protocol.schedule_values import largest
from .._protocol.transform import Effect
from .._transforms.blocks import Layout
from .._transforms.matrices import Matrix
from .._transforms.momentum import EmaState
from ..linalg._eigenbasis import largest_entry
from ..linalg._newton_schulz import PRECONDITIONINGS
from .beside_adamw import AbstractByRole, names_that_deny
from .muon import AbstractNewtonSchulz, AbstractPolar

NORMS = ("spectral", "sign", "input", "output")


class AbstractScion(AbstractByRole, AbstractNewtonSchulz):
    r"""The hyperparameters of Scion.

    Args:
        beta: exponential decay rate $\beta$ of the momentum.
        scale: radius $\rho$ of hidden matrices.
        head_scale: radius of the head; None for that of hidden matrices.
        embedding_scale: radius of embeddings; None for that of hidden matrices.
        vector_scale: radius of all other arrays; None for that of hidden matrices.
        rms_eps: $\varepsilon$, added to root mean squares.
        mu_dtype: dtype of the momentum; by default that of the parameters.
        norm: norm of hidden matrices.
        head_norm: norm of the head.
        embedding_norm: norm of embeddings.
        eps: added to the norm that a matrix is divided by before the first iteration.
        preconditioning: how a matrix is scaled before the first iteration, as in `ScaleByMuon`.
        clamped: whether the factor of the spectral norm is $\sqrt{\max(1, n / m)}$.
    """

    beta: ma.Number = ma.number(0.9, needs=ma.DECAY)
    scale: ma.Number = ma.number(50.0)
    head_scale: ma.OptionalNumber = ma.number(3000.0, optional=True)
    embedding_scale: ma.OptionalNumber = ma.number(None, optional=True)
    vector_scale: ma.OptionalNumber = ma.number(None, optional=True)
    rms_eps: ma.Number = ma.number(1e-8)
    mu_dtype: ma.DTypeLike | None = ma.static(None)
    _: ma.KW_ONLY
    norm: str = ma.choice(NORMS, "spectral")
    head_norm: str = ma.choice(NORMS, "sign")
    embedding_norm: str = ma.choice(NORMS, "input")
    eps: ma.Number = ma.number(1e-7)
    preconditioning: str = ma.choice(tuple(PRECONDITIONINGS), "frobenius")
    clamped: bool = ma.static(False)


@jtu.register_static
@dataclasses.dataclass(frozen=True)
class _Ball:
    """What the momentum of an array is projected on: the norm of the ball, and the field with its radius."""

    norm: str
    radius: str


class ScaleByScion(AbstractScion, AbstractPolar[EmaState]):
    r"""Projects the momentum of each array on a sphere, in a norm that suits its role: the direction of Scion.

    $$
    d_t = \beta d_{t-1} + (1 - \beta) g_t, \qquad u_t = \rho \operatorname{lmo}(d_t)
    $$

    For a matrix of $m$ rows $i$ (inputs) and $n$ columns $j$ (outputs), $\operatorname{lmo}(d)$ is

    * with the norm `"spectral"`, $\sqrt{n / m}\, U V^\top$ where $d = U \Sigma V^\top$, approximated as in
      `ScaleByMuon`;
    * with `"sign"`, $\operatorname{sign}(d) / m$;
    * with `"input"`, $d_{ij} / (\sqrt{\frac{1}{n} \sum_k |d_{ik}|^2} + \varepsilon)$: the outputs of each input have a
      root mean square of 1;
    * with `"output"`, $d_{ij} / (\sqrt{m \sum_k |d_{kj}|^2} + \varepsilon)$.

    The norm of hidden matrices is `norm`, that of the head `head_norm`, and that of embeddings, whose inputs are
    tokens, `embedding_norm`. All other arrays, such as biases and gains, are divided by their root mean square.

    Args:
        beta: exponential decay rate $\beta$ of the momentum.
        scale: radius $\rho$ of hidden matrices.
        head_scale: radius of the head; None for that of hidden matrices.
        embedding_scale: radius of embeddings; None for that of hidden matrices.
        vector_scale: radius of all other arrays; None for that of hidden matrices.
        rms_eps: $\varepsilon$, added to root mean squares.
        mu_dtype: dtype of the momentum; by default that of the parameters.
        ns_coeffs: coefficients of the Newton-Schulz iteration: three numbers, or one triple per iteration, or the name
            of a preset, as in `linalg.orthogonalize`. They are stored as a tuple of triples, each number of which may
            be a schedule.
        ns_steps: number of iterations with a single triple of coefficients.
        dtype: dtype of the matrices within the iteration, as in `linalg.orthogonalize`. Momentum and updates keep
            theirs.
        over: axes of the mesh over which the work is divided, such as `"data"`, if parameters or state are on one; all
            axes by default. With `()`, each array is computed where it is, which suits stacks of layers that are
            divided along the axis of the layers.
        roles: roles of parameters for which they are not found, or found wrongly: a mapping from patterns to roles, or
            the result of `roles(model)`.
        norm: norm of hidden matrices.
        head_norm: norm of the head.
        embedding_norm: norm of embeddings.
        eps: added to the norm that a matrix is divided by before the first iteration.
        preconditioning: how a matrix is scaled before the first iteration, as in `ScaleByMuon`.
        clamped: whether the factor of the spectral norm is $\sqrt{\max(1, n / m)}$.

    References:
        Pethick et al., [Training Deep Learning Models with Norm-Constrained LMOs](https://arxiv.org/abs/2502.07529),
        2025, and the authors' [code](https://github.com/LIONS-EPFL/scion).
    """

    others: ClassVar = "array"
    _matrices_from: ClassVar = "roles"

    def init_matrix(self, x):
        return EmaState(ema=ma.zeros_in(x, self.mu_dtype))

    def _beside(self, updates, params):
        del params
        return jtu.tree_structure(updates).unflatten([ball for ball, _ in self._balls(updates)])

    def filter_leaf(self, now, g, s):
        del now
        ema = ma.moment(self.beta, s.ema, g)
        return ema, EmaState(ema=ema)

    def update_matrix(self, now, g, s, p):
        del now
        radius = getattr(self, p.radius)
        return (self.scale if radius is None else radius) * self._projected(p.norm, g), s

    def _projected(self, norm: str, d: ma.Array) -> ma.Array:
        """The momentum of matrices, or of an array, or orthogonal factors for the spectral norm, with a norm of one."""
        if norm == "rms":
            return self._divided(d, None)
        rows, columns = d.shape[-2:]
        if norm == "spectral":
            return math.sqrt(max(columns / rows, 1.0 if self.clamped else 0.0)) * d
        if norm == "sign":
            return jnp.sign(d) / rows
        return self._divided(d, -1) if norm == "input" else self._divided(d, -2, rows)

    def _divided(self, d: ma.Array, axis: int | None, factor: int = 1) -> ma.Array:
        """An array divided by root mean squares along an axis, times a factor."""
        # By the largest entry first, so that no square overflows or underflows.
        largest = largest_entry(d, axis)
        x = d / largest
        size = factor * ma.safe_sqrt(jnp.mean(ma.abs_sq(x), axis=axis, keepdims=True))
        return x * ma.ratio(jnp.ones_like(size), size + self.rms_eps / largest)

    def _balls(self, tree: ma.PyTree) -> "list[tuple[_Ball, Layout]]":
        """The ball of each leaf, and how it is matrices."""
        own = {"head": (self.head_norm, "head_scale"), "embedding": (self.embedding_norm, "embedding_scale")}
        found = []
        for role, layout in zip(self.roles.labels(tree), super()._layouts(tree).values(), strict=True):
            if layout.is_array or role.is_vector:
                found.append((_Ball("rms", "vector_scale"), Layout(layout.matrix, is_array=True, is_whole=False)))
            else:
                ball = _Ball(*own.get(role.kind, (self.norm, "scale")))
                found.append((ball, layout._replace(is_whole=ball.norm == "spectral")))
        return found

    def _layouts(self, tree):
        return {i: layout for i, (_, layout) in enumerate(self._balls(tree))}

    def _effect(self, tree: ma.Params) -> Effect:
        """The root mean square of the entries of each update, where its scale is on the host."""
        sizes = []
        for ball, layout in self._balls(tree):
            given = getattr(self, ball.radius)
            scale = largest(self.scale if given is None else given)
            sizes.append(None if scale is None else scale * self._size(ball.norm, layout.matrix))
        return Effect(sizes=sizes)

    def _size(self, norm: str, matrix: Matrix) -> float:
        """The root mean square of the entries of a matrix, or of a vector, whose norm is 1."""
        if norm in ("rms", "input"):
            return 1.0
        rows, columns = matrix.size
        if norm != "spectral":
            return 1 / rows
        columns = min(matrix.blocks or (columns,))
        return math.sqrt(max(columns / rows, 1.0 if self.clamped else 0.0) / max(rows, columns))


class Scion(AbstractScion, ma.AbstractRated):
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
        ns_coeffs: coefficients of the Newton-Schulz iteration: three numbers, or one triple per iteration, or the name
            of a preset, as in `linalg.orthogonalize`. They are stored as a tuple of triples, each number of which may
            be a schedule.
        ns_steps: number of iterations with a single triple of coefficients.
        dtype: dtype of the matrices within the iteration, as in `linalg.orthogonalize`. Momentum and updates keep
            theirs.
        over: axes of the mesh over which the work is divided, such as `"data"`, if parameters or state are on one; all
            axes by default. With `()`, each array is computed where it is, which suits stacks of layers that are
            divided along the axis of the layers.
        roles: roles of parameters for which they are not found, or found wrongly: a mapping from patterns to roles, or
            the result of `roles(model)`.
        norm: norm of hidden matrices.
        head_norm: norm of the head.
        embedding_norm: norm of embeddings.
        eps: added to the norm that a matrix is divided by before the first iteration.
        preconditioning: how a matrix is scaled before the first iteration, as in `ScaleByMuon`.
        clamped: whether the factor of the spectral norm is $\sqrt{\max(1, n / m)}$.
        constrained: True for the first form, False for the second.

    References:
        Pethick et al., [Training Deep Learning Models with Norm-Constrained LMOs](https://arxiv.org/abs/2502.07529),
        2025, and the authors' [code](https://github.com/LIONS-EPFL/scion).
    """

    direction = ScaleByScion
    learning_rate: ma.Number = ma.number(2.0**-12)
    _: ma.KW_ONLY
    constrained: bool = ma.static(True)

    def _effect(self, tree: ma.Params) -> Effect:
        sizes = self._part(ScaleByScion)._effect(tree).sizes
        return Effect(sizes=sizes, warnings=names_that_deny(self, self.roles, tree))

    def decays(self):
        return [ma.AddDecayedWeights(1.0)] if self.constrained else []
