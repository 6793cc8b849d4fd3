"""`ParamEMA` and `ParamAverage`: averages of the parameters, for evaluation and deployment.

Both count the steps of their inner transform, and take the parameters after every `every`-th step from `start` on.
The updates pass through unchanged.
"""

import abc
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Bool, DTypeLike, Float, PyTree

from .._protocol.container import AbstractContainer, in_dtypes_of, required_part
from .._protocol.fields import Number, number
from .._protocol.schedule_values import resolve
from .._protocol.step import applied, sums
from .._protocol.transform import KEEPS_PARAMETERS, AbstractTransform, Clock
from .._support.arithmetic import at_least_float32, copy_in, default_float, ratio, safe_increment
from .._support.checks import DECAY, NON_NEGATIVE, WHOLE
from .._support.module import AbstractState, like_params, nested, shared, with_fields
from .._support.placement import typed_like
from .._support.types import Count, Params, State, Updates
from ..tree._align import align
from ..tree._leafmap import map_arithmetic, map_leaves
from ..tree._math import choose


def _moved(average: PyTree, new: Params, rate: Any, moves: Array, owner: str) -> PyTree:
    """The average, moved by a fraction of the way to new parameters, if it moves at all."""

    def move(now: Any, mean: Array, p: Array) -> list[Array]:
        rate, moves = now
        p = typed_like(p, mean)
        nearer = jnp.where(rate < 1, mean + rate * (p - mean), p)  # with the whole rate exactly the parameters
        return [jnp.where(moves, nearer, mean)]

    means, put = align(average, new, owner)
    (means,) = map_arithmetic(move, (rate, moves), (means, jtu.tree_leaves(new)), (means,))
    return put(means)


class AbstractParameterAverage(AbstractContainer):
    """A container that averages the parameters which its part trains."""

    _keeps = "direction"
    _why_last = KEEPS_PARAMETERS
    needs: ClassVar[tuple[str, ...]] = ("params",)
    clock: ClassVar[Clock] = "steps"
    is_arraywise: ClassVar[bool] = True
    is_one_pass: ClassVar[bool] = True

    inner: eqx.AbstractVar[AbstractTransform]

    @abc.abstractmethod
    def averaged(self, state: Any, new: Params, has_begun: Array, is_due: Array) -> Any:
        """Return the state with another average, with schedules at their values.

        Args:
            state: the state before the step.
            new: the parameters after the step, in the structure of the updates.
            has_begun: whether averaging has begun.
            is_due: whether the parameters are averaged now.
        """

    def update(self, updates: Updates, state: Any, params: Params | None = None, **extra: Any) -> tuple[Updates, Any]:
        """Run one step of the inner transform, and average the parameters after it."""
        now: Any = resolve(self, state.count)
        steps, inner_state = now.inner.update(updates, state.inner_state, params, **extra)
        count = safe_increment(state.count)
        # In integers, because float32 counts exactly to 2**24 only.
        since = count - jnp.asarray(now.start).astype(count.dtype)
        is_due = (since > 0) & (since % jnp.asarray(now.every).astype(count.dtype) == 0)
        state = now.averaged(state, applied(sums, params, steps), since > 0, is_due)
        return steps, with_fields(state, inner_state=inner_state, count=count)


class ParamEMAState(AbstractState):
    """State of `ParamEMA`: the inner state, the number of steps, the sum of the weights, and the average."""

    inner_state: State = nested()
    count: Count = shared()
    weight_sum: Float[Array, ""] = shared()
    ema: PyTree = like_params(copied=True)


class ParamEMA(AbstractParameterAverage):
    r"""Exponential moving average (EMA) of the parameters, for evaluation.

    $$
    \begin{aligned}
    W_n &= \beta W_{n-1} + (1 - \beta) \\
    m_n &= m_{n-1} + \frac{1 - \beta}{W_n} (\theta_n - m_{n-1})
    \end{aligned}
    $$

    where $\theta_n$ are the parameters after the $n$-th step, and $W_0 = 0$. So $m_n$ is the mean of all parameters so
    far with normalized weights $\beta^\text{age}$. The first average is $\theta_1$, and there is no bias towards the
    initial parameters for any schedule of $\beta$. Without `debias`, $W_0 = 1$ and $m_0 = \theta_0$, as in timm and
    TensorFlow; `start=1` then begins with $\theta_1$, as PyTorch's `AveragedModel` does.

        optimizer = ParamEMA(AdamW(1e-3), decay=0.999)
        ...
        averaged = optimizer.eval_params(state, model)  # a whole model

    The updates are those of the inner transform, unchanged: the average does not influence the training. For an average
    of the updates, use `Ema`.

    The average is of the parameters after `apply_updates`, so `ParamEMA` must see the final updates: put it outermost,
    or last in a chain. `MultiSteps(ParamEMA(...), k)` averages once per optimizer step, `SAM(ParamEMA(...), adversary)`
    averages the unperturbed parameters. Before the first average, `eval_params` returns the parameters themselves.
    After that, the average replaces the evaluation parameters of the inner transform, if it has any. In a model with
    batch normalization, recompute the statistics under the average before evaluating.

    Args:
        inner: the optimizer.
        decay: decay $\beta$; a schedule of the number of steps, such as `schedules.EMAWarmup(0.9999)`, averages fewer
            parameters at the beginning. The average reaches back about $1 / (1 - \beta)$ averaged steps.
        debias: whether to normalize the weights, so that the initial parameters have none.
        start: number of steps before the averaging.
        every: number of steps between two averages; `decay` is then the decay per average.
        dtype: dtype of the average; by default that of the parameters, at least float32. In bfloat16, an average with
            a large decay doesn't move.

    References:
        Polyak and Juditsky, [Acceleration of Stochastic Approximation by
        Averaging](https://doi.org/10.1137/0330046), 1992; Morales-Brotons et al., [Exponential Moving Average of
        Weights in Deep Learning: Dynamics and Benefits](https://arxiv.org/abs/2411.18704), 2024.
    """

    inner: AbstractTransform = required_part()
    decay: Number = number(0.999, needs=DECAY._replace(usual=(0.5, 1)))
    debias: bool = eqx.field(static=True, default=True)
    start: Number = number(0, needs=NON_NEGATIVE)
    every: Number = number(1, needs=WHOLE)
    dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def init(self, params: Params) -> ParamEMAState:
        """Return the inner state, and a copy of the parameters as their average."""
        count = jnp.zeros((), jnp.int32)
        return ParamEMAState(
            inner_state=resolve(self, count).inner.init(params),
            count=count,
            weight_sum=jnp.full((), not self.debias, default_float()),
            # In bfloat16, with its 8 bits, a step of 0.001 of the way would be rounded away.
            ema=jtu.tree_map(lambda p: copy_in(p, self.dtype or at_least_float32(p.dtype)), params),
        )

    def averaged(self, state: ParamEMAState, new: Params, has_begun: Array, is_due: Array) -> ParamEMAState:
        """Return the state with the average moved towards the parameters."""
        # Normalized at every step and not at the evaluation: the average in the state is always a mean of parameters,
        # and a schedule of the decay is normalized exactly.
        weight = 1 - jnp.asarray(self.decay).astype(state.weight_sum.dtype)
        # Not the decayed sum plus the weight: with `debias=False`, this one stays exactly 1.
        weight_sum = state.weight_sum + weight * (1 - state.weight_sum)
        # Until it begins the average is the parameters, from which it starts without `debias`.
        rate = jnp.where(has_begun, ratio(weight, weight_sum), 1)
        ema = _moved(state.ema, new, rate, is_due | ~has_begun, "ParamEMA.update")
        return with_fields(state, weight_sum=jnp.where(is_due, weight_sum, state.weight_sum), ema=ema)

    # Overridden because the average replaces the evaluation parameters of the inner transform.
    def eval_params(self, state: ParamEMAState, params: Params) -> Params:
        """Return the average, in the dtypes of the parameters; before the first one, the parameters.

        Args:
            state: the state of this container.
            params: the parameters that are trained, or the whole model.
        """
        return choose(state.weight_sum > 0, in_dtypes_of(params, state.ema, "ParamEMA.eval_params"), params)


class ParamAverageState(AbstractState):
    """State of `ParamAverage`: the inner state, the numbers of steps and of averaged parameters, and the average.

    With a window, `average` is None, and `snapshots` holds the last parameters, with a leading axis of the length of
    the window: the snapshot taken as number `i`, counting from zero, is at index `i % window`. Without one, `snapshots`
    is None.
    """

    inner_state: State = nested()
    count: Count = shared()
    num_averaged: Count = shared(metric=True)
    average: PyTree = like_params(exact=True)
    snapshots: PyTree = like_params(exact=True)


class ParamAverage(AbstractParameterAverage):
    r"""Uniform average of the parameters, for evaluation: of all (SWA) or of the latest (LAWA).

    $$
    m_n = \frac{1}{n} \sum_{i=1}^n \theta_i \qquad\text{or, with a window,}\qquad
    m_n = \frac{1}{\min(n, k)} \sum_{i > n - k} \theta_i
    $$

    where $\theta_i$ are the parameters after every `every`-th step from `start` on.

        ParamAverage(SGD(0.05, momentum=0.9), start=75_000, every=390)  # SWA, once per epoch
        ParamAverage(AdamW(schedule), every=1_000, window=6)            # LAWA

    SWA averages the end of a run with a constant or cyclic learning rate, for flatter minima. LAWA averages the last
    $k$ checkpoints of a run, and so shows the final loss before the learning rate has decayed. A window keeps $k$
    copies of the parameters in the state, in their dtype.

    `ParamAverage` behaves like `ParamEMA` with respect to its updates, its place in a chain and `eval_params`.

    Args:
        inner: the optimizer.
        start: number of steps before the averaging.
        every: number of steps between two averaged parameters.
        window: number $k$ of parameters in the average; by default all.

    References:
        Izmailov et al., [Averaging Weights Leads to Wider Optima and Better
        Generalization](https://arxiv.org/abs/1803.05407), 2018 (SWA); Kaddour, [Stop Wasting My Time! Saving Days of
        ImageNet and BERT Training with Latest Weight Averaging](https://arxiv.org/abs/2209.14981), 2022 (LAWA).
    """

    inner: AbstractTransform = required_part()
    start: Number = number(0, needs=NON_NEGATIVE)
    every: Number = number(1, needs=WHOLE)
    window: int | None = eqx.field(static=True, default=None, metadata={"least": 1})

    def init(self, params: Params) -> ParamAverageState:
        """Return the inner state, and copies of the parameters in the places of the average or of the snapshots."""
        count = jnp.zeros((), jnp.int32)
        inner_state = resolve(self, count).inner.init(params)
        average = snapshots = None
        if self.window is None:
            average = jtu.tree_map(lambda p: copy_in(p, at_least_float32(p.dtype)), params)
        else:
            # Copies of the parameters in place of zeros: they have their sharding. None of them is averaged.
            snapshots = jtu.tree_map(lambda p: jnp.broadcast_to(p, (self.window, *p.shape)), params)
        return ParamAverageState(inner_state, count, jnp.zeros((), jnp.int32), average, snapshots)

    def averaged(self, state: ParamAverageState, new: Params, has_begun: Array, is_due: Array) -> ParamAverageState:
        """Return the state with the parameters in the mean, or as the newest snapshot."""
        del has_begun
        n = safe_increment(state.num_averaged)
        average, snapshots, owner = state.average, state.snapshots, "ParamAverage.update"
        if self.window is None:
            average = _moved(average, new, 1 / n.astype(default_float()), is_due, owner)
        else:
            place = state.num_averaged % self.window
            buffers, put = align(snapshots, new, owner)
            # The parameters themselves: a running sum from which the oldest are subtracted would drift.
            snapshots = put(map_leaves(_store, (place, is_due), list(zip(buffers, jtu.tree_leaves(new), strict=True))))
        num_averaged = jnp.where(is_due, n, state.num_averaged)
        return with_fields(state, num_averaged=num_averaged, average=average, snapshots=snapshots)

    # Overridden because the average replaces the evaluation parameters of the inner transform.
    def eval_params(self, state: ParamAverageState, params: Params) -> Params:
        """Return the average, in the dtypes of the parameters; before the first one, the parameters.

        Args:
            state: the state of this container.
            params: the parameters that are trained, or the whole model.
        """
        average = state.average
        if self.window is not None:
            # At least 1, because `choose` below computes the mean before the first snapshot too.
            average = _means(state.snapshots, jnp.clip(state.num_averaged, 1, self.window))
        return choose(state.num_averaged > 0, in_dtypes_of(params, average, "ParamAverage.eval_params"), params)


def _store(now: tuple[Array, Bool[Array, ""]], kept: Array, p: Array) -> Array:
    """Replace the oldest snapshot, if one is due."""
    place, is_due = now
    # Chosen within one row: a choice between whole buffers would read and write every snapshot.
    return kept.at[place].set(jnp.where(is_due, typed_like(p, kept[place]), kept[place]))


def _means(snapshots: PyTree, n: Array) -> PyTree:
    """The means of the first `n` snapshots."""

    def mean(n: Array, kept: Array) -> list[Array]:
        is_taken = jnp.arange(len(kept), dtype=n.dtype).reshape(-1, *[1] * (kept.ndim - 1)) < n
        return [jnp.sum(jnp.where(is_taken, kept, 0), axis=0) / n]

    leaves, treedef = jtu.tree_flatten(snapshots)
    (means,) = map_arithmetic(mean, n.astype(default_float()), (leaves,), (leaves,))
    return treedef.unflatten(means)
