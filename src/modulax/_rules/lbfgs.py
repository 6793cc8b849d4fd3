"""L-BFGS: quasi-Newton directions from the last few steps.

Each call of `ScaleByLBFGS.update` completes one pair: the differences of parameters and gradients between the previous
call, which are kept in the state, and this one. If the pair has enough positive curvature (`_weight`), it replaces the
oldest one in the ring buffers `diff_params_memory` and `diff_updates_memory`. The two-loop recursion (`two_loops`)
then multiplies the gradient by the inverse Hessian estimate. A line search should follow: its curvature condition makes
the next pair acceptable. `LBFGS` is that chain.
"""

from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Bool, Float, Inexact, Int

from .. import authoring as ma
from .._support.arithmetic import safe_increment
from .._transforms.basic import Identity
from .._transforms.line import Scalar, times
from .._transforms.zoom import ScaleByZoomLinesearch
from ..tree._align import align, check_same_shapes
from ..tree._math import choose, inner, total

Leaves = list[Inexact[ma.Array, "..."]]


class ScaleByLBFGSState(ma.AbstractState):
    """State of `ScaleByLBFGS`: step count, last parameters and gradient, pairs and their weights.

    `skipped` is the number of pairs that were discarded. The memories have a leading axis of length `memory_size`. The
    pair kept as number `i`, counting from zero, is at index `i % memory_size`. The weight of an empty slot is zero.
    """

    optax_fields = ("count", "params", "updates", "diff_params_memory", "diff_updates_memory", "weights_memory")

    count: ma.Count = ma.shared()
    params: ma.PyTree = ma.like_params(exact=True)
    updates: ma.PyTree = ma.like_params(exact=True)
    diff_params_memory: ma.PyTree = ma.like_params(exact=True)
    diff_updates_memory: ma.PyTree = ma.like_params(exact=True)
    weights_memory: Float[ma.Array, " memory"] = ma.shared()
    skipped: ma.Count = ma.shared()


class ScaleByLBFGS(ma.AbstractTransform):
    r"""Multiplies the gradient by the L-BFGS estimate of the inverse Hessian: $u_k = H_k g_k$.

    $$
    \begin{aligned}
    s_j &= w_{j+1} - w_j, \qquad y_j = g_{j+1} - g_j, \qquad \rho_j = 1 / (s_j^\top y_j) \\
    H &\leftarrow (I - \rho_j s_j y_j^\top)\, H\, (I - \rho_j y_j s_j^\top) + \rho_j s_j s_j^\top
    \end{aligned}
    $$

    for the last $m$ pairs, the oldest first, starting from $H = \gamma I$. Here $\gamma = s^\top y / y^\top y$ for the
    newest pair, and $\min(1, 1 / \|g\|)$ as long as there is none. $H$ itself is never formed.

    Pairs without enough positive curvature, $s^\top y \le \varepsilon \|s\| \|y\|$ with the machine epsilon
    $\varepsilon$, are discarded, so that $H$ stays positive definite and finite and $-H g$ points downhill. Inner
    products are $\operatorname{Re} \bar x^\top y$: for complex parameters this is the method applied to real and
    imaginary parts. Updates then are the conjugates of what `jax.grad` returns. The memories are stored in at least
    float32.

    A line search after it finds the step size and keeps the curvature positive:

        Chain(ScaleByLBFGS(), Scale(-1.0), ScaleByZoomLinesearch(20, initial_guess_strategy="one"))

    Args:
        memory_size: number $m$ of pairs that are kept.
        scale_init_precond: whether to start from $H = \gamma I$; if False, from $H = I$.

    References:
        Nocedal and Wright, [Numerical Optimization](https://doi.org/10.1007/978-0-387-40065-5), 2006, algorithms 7.4
        and 7.5;
        Liu and Nocedal, [On the limited memory BFGS method for large scale
        optimization](https://doi.org/10.1007/BF01589116), 1989.
    """

    needs = ("params",)

    memory_size: int = ma.static(10, least=1)
    scale_init_precond: bool = ma.static(True)

    def init(self, params: ma.Params) -> ScaleByLBFGSState:
        """Empty memories."""

        def memory(p: ma.Array) -> ma.Array:
            zeros = jnp.zeros_like(p, ma.at_least_float32(p.dtype))  # with the sharding of the parameter
            return jnp.broadcast_to(zeros, (self.memory_size, *p.shape))

        return ScaleByLBFGSState(
            count=jnp.zeros((), jnp.int32),
            params=jtu.tree_map(jnp.zeros_like, params),
            updates=jtu.tree_map(lambda p: jnp.zeros_like(p, ma.at_least_float32(p.dtype)), params),
            diff_params_memory=jtu.tree_map(memory, params),
            diff_updates_memory=jtu.tree_map(memory, params),
            weights_memory=jnp.zeros((self.memory_size,), ma.default_float()),
            skipped=jnp.zeros((), jnp.int32),
        )

    def update(
        self, updates: ma.Updates, state: ScaleByLBFGSState, params: ma.Params | None = None, **extra: Any
    ) -> tuple[ma.Updates, ScaleByLBFGSState]:
        """The quasi-Newton direction, and the memories with the newest pair."""
        del extra
        leaves, treedef = jtu.tree_flatten(updates)
        fields = ("params", "updates", "diff_params_memory", "diff_updates_memory")
        (w, put_w), (g, put_g), (memory_s, put_s), (memory_y, put_y) = (
            align(getattr(state, field), updates, "ScaleByLBFGS.update") for field in fields
        )
        check_same_shapes(updates, w, "ScaleByLBFGS.update")
        new_w, new_g = jtu.tree_leaves(params), [x.astype(m.dtype) for x, m in zip(leaves, g, strict=True)]
        s = [a.astype(m.dtype) - b.astype(m.dtype) for a, b, m in zip(new_w, w, memory_s, strict=True)]
        y = [a - b for a, b in zip(new_g, g, strict=True)]
        is_kept, weight = _weight(s, y, state.count)
        before = state.count - state.skipped  # number of pairs plus one, from the second step on
        place = (before - 1) % self.memory_size
        memory_s, memory_y, weights = jtu.tree_map(
            # Chosen within one row: a choice between whole memories would read and write all of them.
            lambda memory, x: memory.at[place].set(choose(is_kept, x, memory[place])),
            (memory_s, memory_y, state.weights_memory),
            (s, y, weight),
        )
        is_skipped = (state.count > 0) & ~is_kept
        after = jnp.where(is_skipped, before, safe_increment(before))
        # The memory is a ring, in which shifting would move every pair at every step.
        oldest_first = (after - 1 + jnp.arange(self.memory_size, dtype=after.dtype)) % self.memory_size
        scale = self._scale(new_g, memory_y, weights, oldest_first[-1])
        direction = two_loops(new_g, memory_s, memory_y, weights, oldest_first, scale)
        return treedef.unflatten(
            [d.astype(u.dtype) for d, u in zip(direction, leaves, strict=True)]
        ), ScaleByLBFGSState(
            count=safe_increment(state.count),
            # Copies, so that the state shares no buffer with the parameters and updates, which may be donated.
            params=put_w([jnp.array(p, old.dtype, copy=True) for p, old in zip(new_w, w, strict=True)]),
            updates=put_g([jnp.array(x, copy=True) for x in new_g]),
            diff_params_memory=put_s(memory_s),
            diff_updates_memory=put_y(memory_y),
            weights_memory=weights,
            skipped=jnp.where(is_skipped, safe_increment(state.skipped), state.skipped),
        )

    def _scale(self, g: Leaves, memory_y: Leaves, weights: ma.Array, newest: Int[ma.Array, ""]) -> Scalar:
        r"""Scale $\gamma$ of the initial inverse-Hessian estimate $\gamma I$."""
        if not self.scale_init_precond:
            return jnp.ones((), weights.dtype)
        weight = weights[newest]
        has_pair = weight > 0
        curvature = weight * total(ma.abs_sq, [m[newest] for m in memory_y])
        # The first direction has a length of at most 1, since nothing is known about the curvature.
        length = jnp.clip(_safe_norm(g), 1, _most(weights.dtype))
        return jnp.where(has_pair, 1 / jnp.where(has_pair, curvature, 1), 1 / length)


def _weight(s: Leaves, y: Leaves, count: ma.Count) -> tuple[Bool[ma.Array, ""], Scalar]:
    """Whether a pair has enough curvature to be kept, and the reciprocal of its inner product."""
    product, size_s, size_y = inner(s, y), total(ma.abs_sq, s), total(ma.abs_sq, y)
    limits = jnp.finfo(product.dtype)
    # Below `tiny`, the reciprocals of positive numbers overflow.
    is_kept = (count > 0) & (product > limits.eps * ma.safe_sqrt(size_s) * ma.safe_sqrt(size_y))
    is_kept &= (product >= limits.tiny) & (size_y >= limits.tiny) & jnp.isfinite(product) & jnp.isfinite(size_y)
    weight = jnp.where(is_kept, 1 / jnp.where(is_kept, product, 1), 0)
    return is_kept, weight.astype(ma.default_float())


def _safe_norm(leaves: Leaves) -> Scalar:
    """The norm, without overflow of the squares."""
    largest = jnp.max(jnp.stack([jnp.ones((), ma.default_float()), *map(_largest, leaves)]))
    # The unit cancels in the result, so that its derivative is zero.
    unit = jax.lax.stop_gradient(jnp.where(jnp.isfinite(largest), jnp.minimum(largest, _most(largest.dtype)), 1))
    return unit * ma.norm([times(x, 1 / unit) for x in leaves])


def _most(dtype: Any) -> float:
    """The largest number of a dtype whose reciprocal is normal: XLA makes denormal numbers zero."""
    return float(jnp.finfo(dtype).max) / 4


def _largest(x: ma.Array) -> Scalar:
    return jnp.max(jnp.abs(x), initial=0).astype(ma.default_float())


def two_loops(
    g: Leaves,
    memory_s: Leaves,
    memory_y: Leaves,
    weights: ma.Array,
    oldest_first: Int[ma.Array, " memory"],
    scale: Scalar,
) -> Leaves:
    """The two-loop recursion: Nocedal and Wright, algorithm 7.4."""

    def plus(x: Leaves, factor: Scalar, direction: Leaves) -> Leaves:
        return [a + times(d, factor) for a, d in zip(x, direction, strict=True)]

    def back(q: Leaves, i: ma.Array) -> tuple[Leaves, Scalar]:
        alpha = weights[i] * inner([m[i] for m in memory_s], q).astype(weights.dtype)
        return plus(q, -alpha, [m[i] for m in memory_y]), alpha

    def forth(r: Leaves, step: tuple[ma.Array, Scalar]) -> tuple[Leaves, None]:
        i, alpha = step
        beta = weights[i] * inner([m[i] for m in memory_y], r).astype(weights.dtype)
        return plus(r, alpha - beta, [m[i] for m in memory_s]), None

    q, alphas = jax.lax.scan(back, g, oldest_first, reverse=True)
    return jax.lax.scan(forth, [times(x, scale) for x in q], (oldest_first, alphas))[0]


def _zoom() -> ScaleByZoomLinesearch:
    return ScaleByZoomLinesearch(20, initial_guess_strategy="one")


class LBFGS(ma.AbstractOptimizer):
    r"""Limited-memory quasi-Newton method (L-BFGS) with a line search, for deterministic, full-batch losses.

    $$
    \begin{aligned}
    s_j &= w_{j+1} - w_j, \qquad y_j = g_{j+1} - g_j, \qquad \rho_j = 1 / (s_j^\top y_j), \qquad j < k \\
    H &\leftarrow (I - \rho_j s_j y_j^\top)\, H\, (I - \rho_j y_j s_j^\top) + \rho_j s_j s_j^\top,
        \qquad j = k - m, \dots, k - 1 \\
    w_{k+1} &= w_k - \eta_k \alpha\, H_k\, g_k
    \end{aligned}
    $$

    with $g_k$ the gradient at $w_k$. $H_k$ is the result of the recursion in the second line, which starts from
    $H = \gamma I$ with $\gamma = s_{k-1}^\top y_{k-1} / \|y_{k-1}\|^2$, or $\min(1, 1 / \|g_0\|)$ in the first step.
    Pairs without positive curvature are left out. The line search chooses $\eta_k$, by default so that the strong Wolfe
    conditions hold. Convergence is fast near a minimum, and there is no learning rate to tune.

    Every call needs the loss as a function, its value and its gradient. The line search keeps value and gradient at the
    next parameters in the state, where `value_and_grad_from_state` finds them:

        optimizer = LBFGS()
        value_and_grad = value_and_grad_from_state(loss)
        value, grads = value_and_grad(params, state=state)
        params, state = optimizer.step(grads, state, params, value=value, grad=grads, value_fn=loss)

    See `ScaleByZoomLinesearch` for `value_fn`, batches and complex parameters.

    Args:
        learning_rate: factor $\alpha$ of the direction, a number or a schedule; None for 1. The line search multiplies
            it by the step size.
        memory_size: number $m$ of pairs that are kept; the state holds twice as many numbers per parameter.
        scale_init_precond: whether to start from $H = \gamma I$; if False, from $H = I$.
        linesearch: the line search, or None for none; by default
            `ScaleByZoomLinesearch(20, initial_guess_strategy="one")`.

    References:
        Nocedal and Wright, [Numerical Optimization](https://doi.org/10.1007/978-0-387-40065-5), 2006, algorithm 7.5;
        Liu and Nocedal, [On the limited memory BFGS method for large scale
        optimization](https://doi.org/10.1007/BF01589116), 1989.
    """

    learning_rate: ma.OptionalNumber = ma.number(None, optional=True)
    memory_size: int = ma.static(10)
    scale_init_precond: bool = ma.static(True)
    # Made for each optimizer: numbers that are made at the import are rounded to float32, also under x64.
    linesearch: ma.AbstractTransform | None = ma.part(default_factory=_zoom, optional=True)

    def transform(self) -> ma.Chain:
        rate = ma.Scale(-1.0) if self.learning_rate is None else ma.ScaleByLearningRate(self.learning_rate)
        return ma.Chain(self._part(ScaleByLBFGS), rate, Identity() if self.linesearch is None else self.linesearch)
