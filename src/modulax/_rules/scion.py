"""Scion: the momentum of each array, projected on the unit ball of a norm that its role chooses."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu

from .. import authoring as ma
from .._protocol.counted import AbstractCounted
from .._protocol.over_steps import largest
from .._protocol.transform import Effect
from .._roles.role import AbstractRole
from .._support.arithmetic import scalar_like
from .._transforms.matrices import Matrix, matrices_of
from .._transforms.momentum import Ema, EmaState
from .._transforms.spread import on_auto_axes
from ..linalg._eigenbasis import largest_entry
from ..linalg._newton_schulz import PRECONDITIONINGS
from ..tree._math import widened
from .beside_adamw import AbstractByRole, names_that_deny
from .muon import AbstractNewtonSchulz, ScaleByMuon, polar_factors

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


class ScaleByScion(AbstractScion, AbstractCounted):
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

    def init(self, params: ma.Params) -> EmaState:
        """Return a momentum of zeros."""
        return self._momentum().init(params)

    def update(
        self, updates: ma.Updates, state: EmaState, params: ma.Params | None = None, **extra: Any
    ) -> tuple[ma.Updates, EmaState]:
        """Return the projected momentum, and the new state."""
        now = self.at(state)
        momentum, new_state = now._momentum().update(widened(updates), state, params, **extra)
        found, treedef = jtu.tree_flatten(momentum)
        kinds = now._kinds(updates)
        spectral = {i: matrix for i, (norm, _, matrix) in enumerate(kinds) if matrix is not None and norm == "spectral"}
        factors = polar_factors(now._muon(), list(spectral.values()), [found[i] for i in spectral])
        for i, factor in zip(spectral, factors, strict=True):
            found[i] = factor
        projected = jax.jit(now._projected, static_argnums=(0, 1, 2))
        like = jtu.tree_leaves(updates)
        found = [projected(*kind, d).astype(g.dtype) for kind, d, g in zip(kinds, found, like, strict=True)]
        return treedef.unflatten(found), new_state

    def _effect(self, tree: ma.Params, state: ma.PyTree | None = None) -> Effect:
        """The root mean square of the entries of each update, where its scale is on the host."""
        del state
        sizes = []
        for norm, radius, matrix in self._kinds(tree):
            given = getattr(self, radius)
            scale = largest(self.scale if given is None else given)
            sizes.append(None if scale is None else scale * self._size(norm, matrix))
        return Effect(sizes=sizes)

    def _size(self, norm: str, matrix: Matrix | None) -> float:
        """The root mean square of the entries of a matrix, or of a vector, whose norm is 1."""
        if matrix is None or norm == "input":
            return 1.0
        rows, columns = matrix.size
        if norm != "spectral":
            return 1 / rows
        columns = min(matrix.blocks or (columns,))
        return math.sqrt(max(columns / rows, 1.0 if self.clamped else 0.0) / max(rows, columns))

    def _momentum(self) -> Ema:
        return Ema(self.beta, debias=False, accumulator_dtype=self.mu_dtype)

    def _muon(self) -> ScaleByMuon:
        return ScaleByMuon(
            self.ns_coeffs,
            self.ns_steps,
            eps=self.eps,
            preconditioning=self.preconditioning,
            dtype=self.dtype,
            over=self.over,
        )

    def _kinds(self, tree: ma.PyTree) -> list[tuple[str, str, Matrix | None]]:
        """The norm of each leaf, the field with its radius, and how it is a matrix."""
        matrices = matrices_of("ScaleByScion(roles=...)", self.roles, tree, hidden=False)
        return [
            ("rms", "vector_scale", None) if matrix is None or role.is_vector else (*self._norm_of(role), matrix)
            for role, matrix in zip(self.roles.labels(tree), matrices, strict=True)
        ]

    def _norm_of(self, role: AbstractRole) -> tuple[str, str]:
        own = {"head": (self.head_norm, "head_scale"), "embedding": (self.embedding_norm, "embedding_scale")}
        return own.get(role.kind, (self.norm, "scale"))

    def _projected(self, norm: str, radius: str, matrix: Matrix | None, d: ma.Array) -> ma.Array:
        """The momentum of an array, or its orthogonal factor for the spectral norm, with the right norm."""

        def projected(now: ScaleByScion, arrays: list[ma.Array]) -> list[ma.Array]:
            (x,) = arrays
            given = getattr(now, radius)
            scale = scalar_like(now.scale if given is None else given, d)
            if matrix is None:
                return [scale.astype(x.dtype) * now._divided(x, None)]
            return [scale.astype(x.dtype) * matrix.joined([now._of_matrix(norm, y) for y in matrix.pieces(x)])]

        return on_auto_axes(projected, self, [d])[0]

    def _of_matrix(self, norm: str, d: ma.Array) -> ma.Array:
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
        x = d / largest.astype(d.dtype)
        size = factor * ma.safe_sqrt(jnp.mean(ma.abs_sq(x), axis=axis, keepdims=True))
        eps = jnp.asarray(self.rms_eps).astype(size.dtype) / largest
        return x * ma.ratio(jnp.ones_like(size), size + eps).astype(d.dtype)


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

    def _effect(self, tree: ma.Params, state: ma.PyTree | None = None) -> Effect:
        del state
        sizes = self._part(ScaleByScion)._effect(tree).sizes
        return Effect(sizes=sizes, warnings=names_that_deny(self, self.roles, tree))

    def decays(self):
        return [ma.AddDecayedWeights(1.0)] if self.constrained else []
