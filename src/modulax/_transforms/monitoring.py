"""Monitoring: measurements of the updates on their way through a chain, kept in the state.

`Snapshot` keeps one measurement and `Monitor` any number, by name; both return the updates unchanged. A measure is a
plain function of the updates, a transform, or an `AbstractMeasure` with a state of its own, such as `MeasureWithEma`;
`as_measure` gives all of them the `init` and `update` of a measure. `init` of the state needs arrays of the right
shapes before there is anything to measure: `_blank` gets these by `jax.eval_shape`, with zeros for the extra arguments.
`_kept` then holds every measurement to that structure and those dtypes, so that the state never changes its type under
`jit` and `scan`.
"""

import abc
import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, DTypeLike, PyTree

from .._protocol.fields import Number, required_number
from .._protocol.hyperparameters import AbstractHyperparameters
from .._protocol.transform import AbstractTransform, EmptyState, extra_arguments
from .._support.arithmetic import at_least_float32, default_float, safe_increment
from .._support.checks import DECAY
from .._support.module import AbstractState, shared
from .._support.printing import format_value
from .._support.tracing import call_user
from .._support.types import Params, State, Updates
from ..tree._align import align
from .momentum import Ema, EmaState


class AbstractMeasure(AbstractHyperparameters):
    """A measurement with its own state, or one that uses more than the updates, for `Monitor`.

    Implement `init(params)` and `update(updates, state, params=None, **extra)`, which returns the measurement, any tree
    of arrays, and the new state. Hyperparameters are fields as in transforms.
    """

    needs: ClassVar[tuple[str, ...]] = ()
    """The extra arguments, each a number such as `value`, without which it cannot measure."""

    @abc.abstractmethod
    def init(self, params: Params) -> State:
        """The state before the first measurement."""

    @abc.abstractmethod
    def update(
        self, updates: Updates, state: State, params: Params | None = None, **extra: Any
    ) -> tuple[PyTree, State]:
        """The measurement, and the new state."""

    def at(self, state: State) -> "AbstractMeasure":
        """The measure with every schedule replaced by its value at the next step."""
        del state
        return self


class _Function(AbstractMeasure):
    """A plain function of the updates as a measure."""

    function: Callable[[Updates], PyTree] = eqx.field(static=True)

    def init(self, params: Params) -> EmptyState:
        del params
        return EmptyState()

    def update(
        self, updates: Updates, state: EmptyState, params: Params | None = None, **extra: Any
    ) -> tuple[PyTree, EmptyState]:
        del params, extra
        return call_user(self.function, updates), state

    def __repr__(self) -> str:
        return format_value(self.function)


def as_measure(x: Any) -> Any:
    """Converts a function of the updates to a measure; measures and transforms are returned unchanged."""
    if isinstance(x, (AbstractMeasure, AbstractTransform)):
        return x
    if not callable(x):
        raise ValueError(
            f"A measure must be a function of the updates such as `modulax.tree.norm`, an `AbstractMeasure` such as "
            f"`MeasureWithEma`, or a transform such as `Stateless`; got {x!r}."
        )
    return _Function(x)


def _extra_arguments(measure: Any) -> set[str]:
    """The extra arguments that a measure, or any measure or transform inside it, requires."""
    kinds = (AbstractMeasure, AbstractTransform)
    parts = jtu.tree_leaves(measure, is_leaf=lambda x: x is not measure and isinstance(x, kinds))
    return set(extra_arguments(measure)).union(*(_extra_arguments(part) for part in parts if isinstance(part, kinds)))


def _blank(measure: Any, params: Params) -> tuple[PyTree, State]:
    """A measurement of zeros, with the shapes and dtypes of all later ones, and the state of the measure."""
    state = measure.init(params)
    extra = {name: jnp.zeros((), default_float()) for name in _extra_arguments(measure)}
    # The state has the structure of later ones from the start, as `jax.lax.scan` requires. Nothing is measured yet.
    shapes, _ = jax.eval_shape(lambda p, s: measure.update(p, s, p, **extra), params, state)
    return jtu.tree_map(lambda x: jnp.zeros(x.shape, x.dtype), shapes), state


def _kept(measurement: PyTree, before: PyTree, owner: str) -> PyTree:
    """A copy of the measurement, with the structure and dtypes of the previous one."""
    old, rebuild = align(before, measurement, f"{owner}.update", "the measurement that `init` returned")
    new = jtu.tree_leaves(measurement)
    return rebuild([jnp.array(x, y.dtype, copy=True) for x, y in zip(new, old, strict=True)])


class SnapshotState(AbstractState):
    """State of `Snapshot`: the last measurement, under its name."""

    optax_fields = ("measurement",)

    measurement: dict[str, PyTree] = shared(metric=True)


class Snapshot(AbstractTransform):
    """Records a measurement of the updates in the state, such as their norm, and returns the updates unchanged.

        Chain(AdamW(1e-3), Snapshot("step_size", modulax.tree.norm))

    In a chain it measures the output of the part before it. Before the first step the measurement is zero. For several
    measurements or a running average, use `Monitor`.

    Args:
        measure_name: name of the measurement in `state.measurement`.
        measure: function of the updates that returns an array or a tree of arrays.
    """

    _keeps = "updates"

    measure_name: str = eqx.field(static=True)
    measure: Callable[[Updates], PyTree] = eqx.field(static=True)

    def init(self, params: Params) -> SnapshotState:
        """A measurement of zeros."""
        blank, _ = _blank(_Function(self.measure), params)
        return SnapshotState({self.measure_name: blank})

    def update(
        self, updates: Updates, state: SnapshotState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, SnapshotState]:
        """The updates unchanged, and their measurement."""
        del params, extra
        before = state.measurement[self.measure_name]
        return updates, SnapshotState({self.measure_name: _kept(call_user(self.measure, updates), before, "Snapshot")})


class MonitorState(AbstractState):
    """State of `Monitor`: the last measurements by name, and the states of the measures in the same order.

    The name of a measurement occurs in it only once, so that `tree.get(state, name)` finds the measurement.
    """

    optax_fields = ("measurements", "measure_states")

    measurements: dict[str, PyTree] = shared(metric=True)
    measure_states: tuple[State, ...] = shared()


if TYPE_CHECKING:
    _Measures: TypeAlias = Mapping[str, Any]
else:
    _Measures = Any  # `_as_measures` raises the error


def _as_measures(measures: _Measures) -> OrderedDict[str, Any]:
    if not isinstance(measures, Mapping):
        raise ValueError(
            f"`Monitor(measures=...)` must be a mapping from names to measures, such as "
            f'`Monitor({{"norm": modulax.tree.norm}})`; got {measures!r}.'
        )
    # JAX sorts the keys of a plain dict, and `measure_states` has the order in which they were given.
    return OrderedDict((name, as_measure(measure)) for name, measure in measures.items())


class Monitor(AbstractTransform):
    """Records measurements of the updates in the state, such as gradient norms, and returns the updates unchanged.

        Chain(
            Monitor({"gradient": modulax.tree.norm, "average": MeasureWithEma(modulax.tree.norm, 0.99)}),
            AdamW(1e-3),
        )

    In a chain it measures the output of the part before it. `state["monitor"].measurements["gradient"]` is the
    measurement of the last step, or zero before the first. Measurements are part of the compiled step: they cost their
    own computation, and nothing waits for them until they are read.

    Args:
        measures: mapping from names to measures. A measure is a function of the updates that returns an array or a tree
            of arrays; an `AbstractMeasure` such as `MeasureWithEma`; or a transform whose output is the measurement,
            such as `Stateless(function)` for a function of updates and parameters.
    """

    _keeps = "updates"

    measures: Mapping[str, Any] = eqx.field(converter=_as_measures)

    def init(self, params: Params) -> MonitorState:
        """Measurements of zeros, and the states of the measures."""
        blanks = [_blank(measure, params) for measure in self.measures.values()]
        measurements = {name: blank for name, (blank, _) in zip(self.measures, blanks, strict=True)}
        return MonitorState(measurements, tuple(state for _, state in blanks))

    def update(
        self, updates: Updates, state: MonitorState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, MonitorState]:
        """The updates unchanged, and their measurements."""
        measurements, states = {}, []
        for (name, measure), before in zip(self.measures.items(), state.measure_states, strict=True):
            measurement, after = measure.update(updates, before, params, **extra)
            measurements[name] = _kept(measurement, state.measurements[name], "Monitor")
            states.append(after)
        return updates, MonitorState(measurements, tuple(states))

    def at(self, state: MonitorState) -> "Monitor":
        """The transform with every schedule replaced by its value at the next step."""
        pairs = zip(self.measures.items(), state.measure_states, strict=True)
        return Monitor({name: measure.at(before) for (name, measure), before in pairs})


class MeasureWithEmaState(AbstractState):
    """State of `MeasureWithEma`: the state of the average, and the state of the measure."""

    ema_state: EmaState = shared()
    measure_state: State = shared()


class MeasureWithEma(AbstractMeasure):
    """Exponential moving average of a measurement, for `Monitor`.

        Monitor({"norm": MeasureWithEma(modulax.tree.norm, decay=0.99)})

    Booleans are averaged as 0 and 1, so the average of `lambda u: norm(u) > 1.0` is the fraction of steps with a norm
    above 1. A NaN in the measurement stays in the average; to keep it out, put the `Monitor` inside `ApplyIfFinite`.

    Args:
        measure: the measure to average, anything that `Monitor` accepts.
        decay: exponential decay rate of the average.
        debias: whether to correct the bias of the start at zero.
        accumulator_dtype: dtype of the average; by default that of the measurement, at least float32.
    """

    measure: Any = eqx.field(converter=as_measure)
    decay: Number = required_number(needs=DECAY)
    debias: bool = eqx.field(static=True, default=True)
    accumulator_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def init(self, params: Params) -> MeasureWithEmaState:
        """An average of zeros, and the state of the measure."""
        blank, state = _blank(self.measure, params)
        return MeasureWithEmaState(self._ema().init(_as_floats(blank)), state)

    def update(
        self, updates: Updates, state: MeasureWithEmaState, params: Params | None = None, **extra: Any
    ) -> tuple[PyTree, MeasureWithEmaState]:
        """The average including the new measurement, and the new state."""
        measurement, measure_state = self.measure.update(updates, state.measure_state, params, **extra)
        average, ema_state = self._ema().update(_as_floats(measurement), state.ema_state)
        return average, MeasureWithEmaState(ema_state, measure_state)

    def at(self, state: MeasureWithEmaState) -> "MeasureWithEma":
        """The measure with every schedule replaced by its value at the next step."""
        decay = self._ema().at(state.ema_state).decay
        return dataclasses.replace(self, measure=self.measure.at(state.measure_state), decay=decay)

    def _ema(self) -> Ema:
        return Ema(self.decay, self.debias, self.accumulator_dtype)


class FirstNotFiniteState(AbstractState):
    """State of `FirstNotFinite`: the number of calls, and for each array the number of its first bad one."""

    calls: Array = shared()
    first: PyTree = shared()


class FirstNotFinite(AbstractMeasure):
    """The step in which each array first had a NaN or an infinity, for `Monitor`.

        Chain(Monitor({"bad": FirstNotFinite()}), AdamW(1e-3))

    Steps count from 1; 0 means that all values were finite so far. The smallest number among the arrays of a gradient
    is the step in which a run broke, and its arrays are those that broke first. Within one step, the NaN of one layer
    reaches the gradients of all layers below it.
    """

    def init(self, params: Params) -> FirstNotFiniteState:
        """No call, and no bad one."""
        zero = jnp.zeros((), jnp.int32)
        return FirstNotFiniteState(zero, jtu.tree_map(lambda _: jnp.zeros_like(zero), params))

    def update(
        self, updates: Updates, state: FirstNotFiniteState, params: Params | None = None, **extra: Any
    ) -> tuple[PyTree, FirstNotFiniteState]:
        """The number of the first bad call of each array, and the new state."""
        del params, extra
        calls = safe_increment(state.calls)

        def one(x: Array, first: Array) -> Array:
            return jnp.where((first == 0) & ~jnp.all(jnp.isfinite(x)), calls, first)

        first = jtu.tree_map(one, updates, state.first)
        return first, FirstNotFiniteState(calls, first)


def _as_floats(tree: PyTree) -> PyTree:
    def one(x: Any) -> Array:
        x = jnp.asarray(x)
        return x.astype(at_least_float32(x.dtype) if jnp.issubdtype(x.dtype, jnp.inexact) else default_float())

    return jtu.tree_map(one, tree)
