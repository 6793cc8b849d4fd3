"""Pipelines around an aggregator: what is done to per-example gradients before and after they are reduced."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu

from .. import Identity
from .._plugin.arrays import State
from .._plugin.transforms import zeros_returned
from ..authoring import (
    DECAY,
    AbstractContainer,
    AbstractState,
    AbstractTransform,
    Chain,
    Number,
    Params,
    Updates,
    nested,
    number,
    required_part,
)
from ..numerics import cond
from ..tree import get_all_with_path
from ._base import AbstractAggregator, as_axes
from ._statistics import GetPerElementMeanAndSumSqDiffGrads, TrackPerElementMeanAndVarianceWithEma


class ProcessState(AbstractState):
    """The states of the three parts of a `Process`."""

    preprocess_state: State = nested()
    aggregate_state: State = nested()
    postprocess_state: State = nested()


class Process(AbstractContainer):
    """Preprocess per-example updates, aggregate them, and postprocess the result with an optimizer.

        Process(Identity(), AverageIncrementallyUpdates(per_elt_axis=0, accumulation_steps=4), AdamW(1e-3))

    An aggregator that waits for further batches has a field `ready` in its state. While it is false, the updates are
    zero and the postprocessor does not run.

    Args:
        preprocessor: transform of the per-example updates, with their example axis.
        aggregator: reduces them to one update: an aggregator, `DifferentiallyPrivateAggregate`, or any transform of the
            updates of a whole batch.
        postprocessor: transform of the aggregated update: an optimizer.
        aggregator_has_aux: whether the auxiliary outputs of the aggregator become extra arguments of the postprocessor.

    Raises:
        ValueError: if a part is not a transform, or `aggregator_has_aux` is set for an aggregator without auxiliary
            outputs.
    """

    _keeps = "gradients"

    preprocessor: AbstractTransform = required_part(state="preprocess_state")
    aggregator: AbstractTransform = required_part(state="aggregate_state")
    postprocessor: AbstractTransform = required_part(state="postprocess_state")
    aggregator_has_aux: bool = eqx.field(static=True, default=False)

    def check(self) -> None:
        if self.aggregator_has_aux and not isinstance(self.aggregator, AbstractAggregator):
            raise ValueError(
                f"`Process(aggregator_has_aux=True)` needs an aggregator with auxiliary outputs, such as "
                f"`GetPerElementMeanAndSumSqDiffGrads()`; `{type(self.aggregator).__name__}` has none."
            )

    def init(self, params: Params) -> ProcessState:
        """Return the states of the three parts."""
        return ProcessState(
            preprocess_state=self.preprocessor.init(params),
            aggregate_state=self.aggregator.init(params),
            postprocess_state=self.postprocessor.init(params),
        )

    def update(
        self, updates: Updates, state: ProcessState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, ProcessState]:
        """Run the parts in turn; the last one only if the aggregator is ready."""
        updates, before = self.preprocessor.update(updates, state.preprocess_state, params, **extra)
        if isinstance(self.aggregator, AbstractAggregator):
            aggregated, aux, statistics = self.aggregator.aggregate(updates, state.aggregate_state, params, **extra)
        else:
            aggregated, statistics = self.aggregator.update(updates, state.aggregate_state, params, **extra)
            aux = {}
        extra = extra | aux if self.aggregator_has_aux else extra

        # The branches of a `cond` return the same dtypes, which may be wider than those of the updates.
        zeros = zeros_returned(self.postprocessor, aggregated, state.postprocess_state, params, extra)

        def go_on() -> tuple[Updates, State]:
            new, after = self.postprocessor.update(aggregated, state.postprocess_state, params, **extra)
            return jtu.tree_map(lambda u, z: u.astype(z.dtype), new, zeros), after

        def wait() -> tuple[Updates, State]:
            return zeros, state.postprocess_state

        def is_flag(path: str, x: Any) -> bool:
            del path  # a parameter may be called `ready` too, but isn't a boolean scalar
            return getattr(x, "shape", None) == () and jnp.issubdtype(x.dtype, jnp.bool_)

        flags = [flag for _, flag in get_all_with_path(statistics, "ready", is_flag)]
        new, after = cond(jnp.all(jnp.stack(flags)), go_on, wait) if flags else go_on()
        return new, ProcessState(preprocess_state=before, aggregate_state=statistics, postprocess_state=after)


class AddMeanVarianceToOpt(AbstractContainer):
    """Run an optimizer on the mean of per-example updates, and track moving averages of their mean and variance.

        optimizer = AddMeanVarianceToOpt(AdamW(1e-3))
        updates, state = optimizer.update(gradients_of_examples, state, params)
        mean, variance = get_unbiased_mean_and_variance_ema(state)

    It is a `Process` of `GetPerElementMeanAndSumSqDiffGrads`, followed by a chain of
    `TrackPerElementMeanAndVarianceWithEma` and the optimizer.

    Args:
        opt: the optimizer, or any transform of the updates of a whole batch.
        ema_decay: exponential decay rate of the moving averages.
        per_elt_axis: example axis, or several.
        accumulation_steps: number of batches per step of the optimizer.
    """

    _keeps = "gradients"

    opt: AbstractTransform = required_part(state=lambda state: state.postprocess_state[1])
    ema_decay: Number = number(0.9, needs=DECAY)
    per_elt_axis: int | Sequence[int] = eqx.field(static=True, default=0, converter=as_axes)
    accumulation_steps: int = eqx.field(static=True, default=1)

    def check(self) -> None:
        self.transform()  # checks the parts

    @property
    def example_axes(self) -> tuple[int, ...]:
        return as_axes(self.per_elt_axis)

    def transform(self) -> Process:
        """Build the process."""
        return Process(
            Identity(),
            GetPerElementMeanAndSumSqDiffGrads(self.per_elt_axis, self.accumulation_steps),
            Chain(TrackPerElementMeanAndVarianceWithEma(self.ema_decay), self.opt),
            aggregator_has_aux=True,
        )

    def init(self, params: Params) -> ProcessState:
        """Return the state of the process."""
        return self.transform().init(params)

    def update(
        self, updates: Updates, state: ProcessState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, ProcessState]:
        """Run one step of the process."""
        return self.transform().update(updates, state, params, **extra)
