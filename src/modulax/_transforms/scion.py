"""The direction of Scion: the momentum of each array, projected on the unit ball of a norm that its role chooses."""

import math
from dataclasses import KW_ONLY
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, DTypeLike, PyTree

from .._protocol.counted import AbstractCounted
from .._protocol.fields import Number, OptionalNumber, choice, number, numbers
from .._protocol.small_steps import largest
from .._roles.find import as_roles
from .._roles.role import AbstractRole
from .._support.arithmetic import abs_sq, ratio, safe_sqrt, scalar_like
from .._support.checks import DECAY
from .._support.types import Params, Updates
from ..linalg._eigenbasis import largest_entry
from ..linalg._newton_schulz import PRECONDITIONINGS, as_coefficients
from ..tree._math import widened
from .matrices import Matrix, matrices_of
from .momentum import Ema, EmaState
from .muon import ScaleByMuon, polar_factors
from .spread import axis_names, on_auto_axes

NORMS = ("spectral", "sign", "input", "output")


class ScaleByScion(AbstractCounted):
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
        norm: norm of hidden matrices.
        head_norm: norm of the head.
        embedding_norm: norm of embeddings.
        roles: what parameters are, as in `Muon`.
        ns_coeffs: coefficients of the Newton-Schulz iteration, as in `ScaleByMuon`.
        ns_steps: number of iterations with a single triple.
        eps: added to the norm that a matrix is divided by before the first iteration.
        preconditioning: how a matrix is scaled before the first iteration, as in `ScaleByMuon`.
        clamped: whether the factor of the spectral norm is $\sqrt{\max(1, n / m)}$.
        dtype: dtype of the matrices within the iteration, as in `ScaleByMuon`.
        over: axes of the mesh over which the iteration is divided, as in `ScaleByMuon`.

    References:
        Pethick et al., [Training Deep Learning Models with Norm-Constrained LMOs](https://arxiv.org/abs/2502.07529),
        2025, and the authors' [code](https://github.com/LIONS-EPFL/scion).
    """

    beta: Number = number(0.9, needs=DECAY)
    scale: Number = number(50.0)
    head_scale: OptionalNumber = number(3000.0, optional=True)
    embedding_scale: OptionalNumber = number(None, optional=True)
    vector_scale: OptionalNumber = number(None, optional=True)
    rms_eps: Number = number(1e-8)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    _: KW_ONLY
    norm: str = choice(NORMS, "spectral")
    head_norm: str = choice(NORMS, "sign")
    embedding_norm: str = choice(NORMS, "input")
    roles: Any = eqx.field(static=True, default=None, converter=as_roles)
    ns_coeffs: Any = numbers(((3.4445, -4.775, 2.0315),), arranged=as_coefficients)
    ns_steps: int = eqx.field(static=True, default=5, metadata={"least": 0})
    eps: Number = number(1e-7)
    preconditioning: str = choice(tuple(PRECONDITIONINGS), "frobenius")
    clamped: bool = eqx.field(static=True, default=False)
    dtype: DTypeLike | None = eqx.field(static=True, default=None)
    over: str | tuple[str, ...] | None = eqx.field(static=True, default=None, converter=axis_names)

    def init(self, params: Params) -> EmaState:
        """Return a momentum of zeros."""
        return self._momentum().init(params)

    def update(
        self, updates: Updates, state: EmaState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, EmaState]:
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

    def sizes_of(self, tree: PyTree) -> list[float | None]:
        """Return about the root mean square of the entries of each update; None for a scale that is not on the host.

        Args:
            tree: the parameters, or anything with their shapes.
        """
        found = []
        for norm, radius, matrix in self._kinds(tree):
            given = getattr(self, radius)
            scale = largest(self.scale if given is None else given)
            found.append(None if scale is None else scale * self._size(norm, matrix))
        return found

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

    def _kinds(self, tree: PyTree) -> list[tuple[str, str, Matrix | None]]:
        """The norm of each leaf, the field with its radius, and how it is a matrix."""
        matrices = matrices_of("ScaleByScion(roles=...)", self.roles, tree, hidden=False)
        return [
            ("rms", "vector_scale", None) if matrix is None or role.is_vector else (*self._norm_of(role), matrix)
            for role, matrix in zip(self.roles.labels(tree), matrices, strict=True)
        ]

    def _norm_of(self, role: AbstractRole) -> tuple[str, str]:
        own = {"head": (self.head_norm, "head_scale"), "embedding": (self.embedding_norm, "embedding_scale")}
        return own.get(role.kind, (self.norm, "scale"))

    def _projected(self, norm: str, radius: str, matrix: Matrix | None, d: Array) -> Array:
        """The momentum of an array, or its orthogonal factor for the spectral norm, with the right norm."""

        def projected(now: ScaleByScion, arrays: list[Array]) -> list[Array]:
            (x,) = arrays
            given = getattr(now, radius)
            scale = scalar_like(now.scale if given is None else given, d)
            if matrix is None:
                return [scale.astype(x.dtype) * now._divided(x, None)]
            return [scale.astype(x.dtype) * matrix.joined([now._of_matrix(norm, y) for y in matrix.pieces(x)])]

        return on_auto_axes(projected, self, [d])[0]

    def _of_matrix(self, norm: str, d: Array) -> Array:
        rows, columns = d.shape[-2:]
        if norm == "spectral":
            return math.sqrt(max(columns / rows, 1.0 if self.clamped else 0.0)) * d
        if norm == "sign":
            return jnp.sign(d) / rows
        return self._divided(d, -1) if norm == "input" else self._divided(d, -2, rows)

    def _divided(self, d: Array, axis: int | None, factor: int = 1) -> Array:
        """An array divided by root mean squares along an axis, times a factor."""
        # By the largest entry first, so that no square overflows or underflows.
        largest = largest_entry(d, axis)
        x = d / largest.astype(d.dtype)
        size = factor * safe_sqrt(jnp.mean(abs_sq(x), axis=axis, keepdims=True))
        eps = jnp.asarray(self.rms_eps).astype(size.dtype) / largest
        return x * ratio(jnp.ones_like(size), size + eps).astype(d.dtype)
