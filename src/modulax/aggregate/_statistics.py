"""Mean and variance of per-example gradients: how much the examples of a batch disagree."""

from collections.abc import Sequence
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Bool, Float, PyTree

from .._plugin.arrays import State, real_dtype
from .._plugin.messages import listing
from .._plugin.trees import align, leaves_by_names
from ..authoring import (
    DECAY,
    AbstractState,
    AbstractTransform,
    Count,
    EmptyState,
    Number,
    Params,
    Updates,
    bias,
    default_float,
    like_params,
    moment,
    number,
    ratio,
    second_moment_like,
    shared,
    zeros_in,
)
from ..numerics import abs_sq, at_least_float32, safe_increment
from ..tree import get_all_with_path
from ._base import AbstractOverAxes, as_axes, check_steps, get_batch_size_from_per_elt_updates, wide


class PerElementMeanAndSumSqDiffGradsState(AbstractState):
    """The state of `GetPerElementMeanAndSumSqDiffGrads` over several batches.

    It holds the number of batches so far, whether the last mean was complete, the mean, and the sum of squared
    differences from it.
    """

    optax_fields = ("micro_step", "ready", "mean_grads", "sum_sq_diff_grads")

    micro_step: Count = shared()
    ready: Bool[Array, ""] = shared()
    mean_grads: PyTree = like_params(exact=True)
    sum_sq_diff_grads: PyTree = like_params(exact=True)


class GetPerElementMeanAndSumSqDiffGrads(AbstractOverAxes):
    r"""The mean of per-example updates, and the sum of squared differences from it, over one or more batches.

    $$
    \bar g = \frac 1 n \sum_i g_i, \qquad S = \sum_i |g_i - \bar g|^2
    $$

    So $S / (n - 1)$ estimates the variance of the update of one example. In a `Process` the postprocessor receives the
    extra arguments `sum_sq_diff_grads`, $S$, and `sample_size`, $n$. Over several batches of $n$ examples, of which
    this is the $m$-th, both cover the examples of all batches:

    $$
    \delta = \bar g - a, \qquad a \leftarrow a + \delta / m, \qquad
    S \leftarrow S + S_m + \delta^2\, n\, (m - 1) / m
    $$

    Args:
        per_elt_axis: example axis, or several.
        accumulation_steps: number of batches. Before the last one the update is zero. With 1 there is no state.

    References:
        Chan, Golub and LeVeque, [Algorithms for Computing the Sample
        Variance](https://doi.org/10.1080/00031305.1983.10483115), 1983.
    """

    per_elt_axis: int | Sequence[int] = eqx.field(static=True, default=0, converter=as_axes)
    accumulation_steps: int = eqx.field(static=True, default=1)

    def check(self) -> None:
        check_steps(self, self.accumulation_steps)

    def init(self, params: Params) -> State:
        """Return zeros, or the empty state for a single batch."""
        if self.accumulation_steps == 1:
            return EmptyState()
        return PerElementMeanAndSumSqDiffGradsState(
            micro_step=jnp.zeros((), jnp.int32),
            ready=jnp.zeros((), bool),
            mean_grads=_zeros_of_means(params),
            sum_sq_diff_grads=jtu.tree_map(second_moment_like, params),
        )

    def aggregate(
        self, updates: Updates, state: State, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, dict[str, Any], State]:
        """Return the mean, and as auxiliary outputs the sum of squared differences and the number of examples."""
        del params, extra
        size = get_batch_size_from_per_elt_updates(updates, self.example_axes)
        leaves, treedef = jtu.tree_flatten(updates)
        pairs = [self._of_batch(wide(g)) for g in leaves]
        if self.accumulation_steps == 1:
            sample_size = jnp.asarray(size, default_float())
        else:
            pairs, state, sample_size = self._accumulated(updates, pairs, size, state)
        mean = treedef.unflatten([m.astype(g.dtype) for (m, _), g in zip(pairs, leaves, strict=True)])
        squares = treedef.unflatten([s for _, s in pairs])
        return mean, {"sum_sq_diff_grads": squares, "sample_size": sample_size}, state

    def _of_batch(self, g: Array) -> tuple[Array, Array]:
        """Mean and sum of squared differences of one batch."""
        axes = self.example_axes
        mean = jnp.mean(g, axis=axes, keepdims=True)
        return jnp.squeeze(mean, axes), jnp.sum(abs_sq(g - mean), axis=axes)

    def _accumulated(
        self, updates: Updates, pairs: list[tuple[Array, Array]], size: int, state: State
    ) -> tuple[list[tuple[Array, Array]], State, Array]:
        """Merge the statistics of a batch into those in the state."""
        owner = "GetPerElementMeanAndSumSqDiffGrads.update"
        means, put_means = align(state.mean_grads, updates, owner)
        sums, put_sums = align(state.sum_sq_diff_grads, updates, owner)
        m = safe_increment(state.micro_step)
        is_last = m >= self.accumulation_steps
        new, after = [], []
        for (mean, squares), a, s in zip(pairs, means, sums, strict=True):
            n = m.astype(squares.dtype)
            delta = mean - a.astype(mean.dtype)
            a_new = a.astype(mean.dtype) + delta / n.astype(mean.dtype)
            s_new = s.astype(squares.dtype) + squares + abs_sq(delta) * (size * (n - 1) / n)
            new.append(tuple(jnp.where(is_last, x, 0) for x in (a_new, s_new)))
            after.append([jnp.where(is_last, 0, x).astype(old.dtype) for x, old in ((a_new, a), (s_new, s))])
        state = PerElementMeanAndSumSqDiffGradsState(
            micro_step=jnp.where(is_last, 0, m),
            ready=is_last,
            mean_grads=put_means([a for a, _ in after]),
            sum_sq_diff_grads=put_sums([s for _, s in after]),
        )
        return new, state, jnp.where(is_last, m * size, 0).astype(default_float())


def _zeros_of_means(params: Params) -> PyTree:
    return jtu.tree_map(lambda p: zeros_in(p, at_least_float32(real_dtype(p.dtype))), params)


class PerElementMeanAndVarianceEMAState(AbstractState):
    """The state of `TrackPerElementMeanAndVarianceWithEma`: the step count, the decay rate, and both averages."""

    optax_fields = ("count", "ema_decay", "mean_grads_ema", "variance_grads_ema")

    count: Count = shared()
    ema_decay: Float[Array, ""] = shared()
    mean_grads_ema: PyTree = like_params()
    variance_grads_ema: PyTree = like_params(nonnegative=True)


class TrackPerElementMeanAndVarianceWithEma(AbstractTransform):
    r"""Track exponential moving averages of the mean and variance of per-example updates. The updates pass through.

    $$
    m_t = \beta m_{t-1} + (1 - \beta)\, u_t, \qquad v_t = \beta v_{t-1} + (1 - \beta)\, S / (n - 1)
    $$

    Use it after `GetPerElementMeanAndSumSqDiffGrads` in a `Process`, which passes $S$ and $n$ to it. The variance of a
    single example is undefined and counts as zero. Read the averages with `get_unbiased_mean_and_variance_ema`.

    Args:
        ema_decay: $\beta$, exponential decay rate of the moving averages.
    """

    _keeps = "gradients"
    needs: ClassVar[tuple[str, ...]] = ("sum_sq_diff_grads", "sample_size")

    ema_decay: Number = number(0.9, needs=DECAY)

    def init(self, params: Params) -> PerElementMeanAndVarianceEMAState:
        """Return averages of zero."""
        return PerElementMeanAndVarianceEMAState(
            count=jnp.zeros((), jnp.int32),
            ema_decay=jnp.array(self.ema_decay, default_float()),
            mean_grads_ema=_zeros_of_means(params),
            variance_grads_ema=jtu.tree_map(second_moment_like, params),
        )

    def update(
        self,
        updates: Updates,
        state: PerElementMeanAndVarianceEMAState,
        params: Params | None = None,
        sum_sq_diff_grads: Any = None,
        sample_size: Any = None,
        **extra: Any,
    ) -> tuple[Updates, PerElementMeanAndVarianceEMAState]:
        """Return the updates unchanged, and the new averages.

        Raises:
            ValueError: if `sum_sq_diff_grads` is not a tree like the updates.
        """
        del params, extra
        freedom = jnp.maximum(jnp.asarray(sample_size).astype(default_float()) - 1, 1)
        squares = _of_leaves(sum_sq_diff_grads, updates)
        variances = [s / freedom.astype(s.dtype) for s in squares]
        return updates, PerElementMeanAndVarianceEMAState(
            count=safe_increment(state.count),
            ema_decay=jnp.asarray(self.ema_decay).astype(state.ema_decay.dtype),
            mean_grads_ema=self._averaged(state.mean_grads_ema, jtu.tree_leaves(updates), updates),
            variance_grads_ema=self._averaged(state.variance_grads_ema, variances, updates),
        )

    def _averaged(self, averages: PyTree, values: list[Array], updates: Updates) -> PyTree:
        leaves, rebuild = align(averages, updates, f"{type(self).__name__}.update")
        decay = jnp.asarray(self.ema_decay)
        pairs = zip(leaves, values, strict=True)
        return rebuild([moment(decay.astype(old.dtype), old, x.astype(old.dtype)) for old, x in pairs])


def _of_leaves(squares: PyTree, updates: Updates) -> list[Array]:
    """The sums of squares for the leaves of the updates, which are a subset in a group of a `Partition`."""
    owner = "TrackPerElementMeanAndVarianceWithEma.update"
    sums, leaves = leaves_by_names(owner, squares), leaves_by_names(owner, updates)
    lacking = [".".join(names) for names in leaves if names not in sums]
    if lacking:
        raise ValueError(
            f"`{owner}(sum_sq_diff_grads=...)` must be a tree like the updates; it lacks {listing(lacking)}."
        )
    return [sums[names] for names in leaves]


def get_unbiased_mean_and_variance_ema(state: PyTree) -> tuple[PyTree, PyTree]:
    r"""Read the averages of `TrackPerElementMeanAndVarianceWithEma` with bias correction.

    They are divided by $1 - \beta^t$. Before the first step they are zero.

    Args:
        state: any state that contains one of `TrackPerElementMeanAndVarianceWithEma`.

    Returns:
        Mean and variance of the update of one example.

    Raises:
        ValueError: if the state contains none or several.
    """
    found = get_all_with_path(state, "PerElementMeanAndVarianceEMAState")
    if len(found) != 1:
        raise ValueError(
            f"`get_unbiased_mean_and_variance_ema` needs a state with one `PerElementMeanAndVarianceEMAState` in it, "
            f"such as the state of `AddMeanVarianceToOpt`; this one contains {len(found)}."
        )
    averages = found[0][1]
    factor = bias(averages.ema_decay, averages.count.astype(averages.ema_decay.dtype))

    def corrected(x: Array) -> Array:
        return ratio(x, factor.astype(x.dtype))

    return jtu.tree_map(corrected, averages.mean_grads_ema), jtu.tree_map(corrected, averages.variance_grads_ema)
