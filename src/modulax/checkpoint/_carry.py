"""From the state of one optimizer into that of another one, in the middle of a run.

The unit is the state of one transform (`_parts.py`). `_fill` looks for the old states that a new one goes on from, and
takes everything from them that belongs together, or nothing:

* for each parameter, all arrays that the state holds for it, such as both moments of Adam, or none;
* the numbers that all parameters share, such as the step count of the bias corrections, together with the arrays of all
  parameters, from old states that agree about them; or none of the arrays either.

An old state of the same transform, with the same input, gives all fields. One of another transform gives a sum of the
same inputs, if the field is declared to be one (`like_params(moment=...)`).
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from .._plugin.arrays import State, is_narrower
from .._plugin.messages import listing
from .._plugin.states import is_quantized, stack_like
from .._plugin.trees import Names, join, named_leaves, trainable
from ..authoring import AbstractState, AbstractTransform, Params
from ..numerics import at_least_float32
from ..tree import unstack
from ._parts import Found, StatePart, boxed, parts_of, quotient, shapes_of, states_in


@dataclasses.dataclass(frozen=True)
class Carried:
    """What `carry` took into the state of another optimizer.

    Attributes:
        carried: for every carried array of the new state, the array of the old one.
        factors: the factors by which arrays were multiplied, where the two optimizers scale them differently: numbers,
            or traced values if a decay rate is traced.
        fresh: for every other array of the new state, which has its initial value, the reason.
        unused: arrays of the old state that were not carried.
    """

    carried: dict[str, str]
    factors: dict[str, Any]
    fresh: dict[str, str]
    unused: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"carried {len(self.carried)}, fresh {len(self.fresh)}, unused {len(self.unused)}"]
        for name, source in self.carried.items():
            lines.append(f"  carried {source} -> {name}{_times(self.factors.get(name))}")
        lines += [f"  fresh   {name}: {reason}" for name, reason in self.fresh.items()]
        return "\n".join([*lines, *(f"  unused  {x}" for x in self.unused)])


def _times(factor: Any) -> str:
    return "" if factor is None else f" times {factor}" if isinstance(factor, Tracer) else f" times {factor:.4g}"


def carry(
    optimizer: AbstractTransform, params: Params, old_optimizer: AbstractTransform, old_state: State
) -> tuple[Any, Carried]:
    r"""Return the initial state of an optimizer with the moments of another one, to change it in the middle of a run.

        state, report = checkpoint.carry(mx.SGD(0.1, momentum=0.9), params, mx.AdamW(1e-3), state)

    The states of two transforms of one class are carried with their step counts, such as those of `ScaleByAdam` in
    `Adam` and in `AdamW`, and the averages, counters and keys of containers. The momentum is carried between different
    classes too: the average of the gradients that Adam keeps, $m_t = (1 - \beta) \sum_k \beta^{t-k} g_k$, becomes the
    sum $v_t = \sum_k \mu^{t-k} g_k$ of SGD by $v = m / (1 - \mu)$, and the sum becomes the average of Lion or Muon by
    $m = (1 - \mu) v$. With equal decay rates this is the momentum that the new optimizer would have after the same
    gradients. Between two sums with different decay rates, also of one class, the average stays the same.

    Arrays that belong together are carried together or begin fresh: the moments of a parameter, and a step count with
    the moments of all parameters whose steps it counts. So if the new Adam has a parameter that the old one lacked, its
    whole state is fresh, because a step count would be wrong for zero moments. A momentum is not carried if its input
    differs, such as the scaled updates in RMSProp, nor into a transform that divides it by its own second moment, such
    as Adam after SGD, nor if it could come from several states. The report gives the reason for each array. Two inputs
    are the same if the transforms before are of the same classes: after a different factor of `Scale`, or a different
    `every_k` of the sums of `MultiSteps(use_grad_mean=False)`, the momentum keeps its old scale.

    Schedules of an optimizer of the same class continue, as after `optimizer.replace(...)`. In an optimizer of a
    different class, their step count is 0; to continue them, set it: `tree.set(state, step=old_state.step)`.
    Hyperparameters are always those of the new optimizer.

    Args:
        optimizer: the new optimizer.
        params: the parameters, or the whole model.
        old_optimizer: the old optimizer.
        old_state: its state. The new state shares no arrays with it.

    Returns:
        the state, and a report of what was carried, by name.

    Raises:
        ValueError: if `old_state` is not a state of `old_optimizer`.
    """
    old = unstack(old_state)
    _check_state(old_optimizer, old, params)
    start = optimizer.init(params)
    new = unstack(start)
    own = dict(named_leaves(trainable(params)))
    sources, parts = (list(parts_of(*pair, own)) for pair in ((old_optimizer, old), (optimizer, new)))
    values: dict[Names, Found] = {}
    reasons: dict[Names, str] = {}
    for part in parts:
        found, missing = _fill(part, sources, parts)
        values |= found
        reasons |= missing | {
            name: missing[name] + said for name, said in _rounded(part, own).items() if name in missing
        }
    for part in parts:
        values |= _clock(part, parts, values)
    leaves, treedef = boxed(new)
    state = treedef.unflatten([_fitted(values[name], x) if name in values else x for name, x in leaves])
    return stack_like(state, start), _report(values, reasons, new, old)


def _rounded(part: StatePart, params: Mapping[Names, Any]) -> dict[Names, str]:
    """What to say of copies of parameters that have fewer bits than the copies, such as those of `MasterWeights`."""
    copied = {name for name, declared in part.declared.items() if declared.get("copied")}
    arrays = [(unit, key, x) for unit, found in part.units.items() for key, x in found.items() if key[0] in copied]
    said = "; a copy of a rounded parameter: write `tree.set(state, {}=params)` with those before"
    low = [key for unit, key, x in arrays if unit in params and is_narrower(params[unit].dtype, x.dtype)]
    return {(*part.where, *key): said.format(key[0]) for key in low}


def _clock(part: StatePart, parts: Sequence[StatePart], values: Mapping[Names, Found]) -> dict[Names, Found]:
    """The step count that schedules follow in a new container, from the optimizer that it holds, if that went on."""
    clocks = {x.where: (*x.where, x.counter) for x in parts if x.transform.clock == "keeper" and x.counter}
    own = clocks.get(part.where)
    inside = [name for where, name in clocks.items() if where[:-1] == part.where and name in values]
    return {own: values[inside[0]]} if own is not None and own not in values and len(inside) == 1 else {}


def _report(values: Mapping[Names, Found], reasons: Mapping[Names, str], new: State, old: State) -> Carried:
    taken = {found.names for found in values.values()}
    return Carried(
        {join(name): join(found.names) for name, found in values.items()},
        {join(name): x.factor for name, x in values.items() if isinstance(x.factor, Tracer) or x.factor != 1},
        {join(name): reasons[name] for name, _ in boxed(new)[0] if name not in values},
        tuple(join(name) for name, _ in boxed(old)[0] if name not in taken),
    )


def _check_state(optimizer: AbstractTransform, state: Any, params: Params) -> None:
    """Raise an error for a state of another optimizer."""
    name = type(optimizer).__name__
    remedy = "Write `carry(optimizer, params, old_optimizer, old_state)`."
    if not isinstance(state, AbstractState):
        raise ValueError(f"`carry` was given a `{type(state).__name__}`, which is no state of `{name}`. {remedy}")
    given = states_in(state)
    expected = states_in(jax.eval_shape(lambda p: unstack(optimizer.init(p)), trainable(params)))
    for where in [*expected, *given]:
        holds, needs = (f"`{x[where].__name__}`" if where in x else "none" for x in (given, expected))
        if holds != needs:
            place = f"at `{join(where)}`, " if where else ""
            raise ValueError(
                f"`carry(old_state=...)` is not a state of `{name}`: {place}it has {holds}, and one of `{name}` has "
                f"{needs}. {remedy}"
            )


class _Unit(NamedTuple):
    """What is carried for one parameter: the part that it comes from, and the arrays by field and path."""

    source: StatePart
    arrays: dict[Names, Found]


def _fill(
    part: StatePart, sources: Sequence[StatePart], parts: Sequence[StatePart]
) -> tuple[dict[Names, Found], dict[Names, str]]:
    """What the state of a part gets from the old states, by name, and why the rest of it is fresh."""
    same, peers = ([x for x in states if x.kind == part.kind] for states in (sources, parts))
    alike = [x for x in same if x.other_form(part) is None]
    if same and not alike:
        found = dict.fromkeys(part.units, _in_another_form(part, same[0]))
    else:
        found = {x: _same(x, part, alike, peers) if alike else _moment(x, part, sources) for x in part.units}
    values, fresh = _joined(part, found, alike, peers)
    fresh |= dict.fromkeys(part.settings, "it is a hyperparameter of the new optimizer")
    return part.located(values), part.located(fresh)


def _joined(
    part: StatePart,
    found: Mapping[Names, _Unit | str],
    alike: Sequence[StatePart],
    peers: Sequence[StatePart],
) -> tuple[dict[Names, Found], dict[Names, str]]:
    """The arrays of a part with the numbers that all parameters share, or neither; and why the others are fresh."""
    units = [x for x in found.values() if not isinstance(x, str)]
    missing = {unit: x for unit, x in found.items() if isinstance(x, str)}
    values, fresh = {key: x for one in units for key, x in one.arrays.items()}, dict[Names, str]()
    if part.numbers:
        numbers = _because_of(missing) if missing else _numbers(part, units, alike, peers)
        if isinstance(numbers, str):
            values, fresh = {}, dict.fromkeys(part.arrays(), numbers)
        else:
            values |= numbers
            none = "the old state counts no steps" if part.counter else "the old state has none"
            fresh = dict.fromkeys(part.numbers.keys() - numbers.keys(), none)
    return values, fresh | {key: reason for unit, reason in missing.items() for key in part.units[unit]}


def _because_of(missing: Mapping[Names, str]) -> str:
    paths = listing([join(unit) or "the parameters" for unit in missing])
    return f"the state has numbers that all parameters share, and the arrays for {paths} are fresh"


def _partners(part: StatePart, sources: Sequence[StatePart], peers: Sequence[StatePart]) -> Sequence[StatePart]:
    """The old state that corresponds to that of a part, one of its peers; all of them if it cannot be told."""
    if len(sources) != len(peers):
        return sources
    by_place = {x.where: x for x in sources}
    if all(x.where in by_place for x in peers):
        return [by_place[part.where]]
    return [source for source, peer in zip(sources, peers, strict=True) if peer is part]


def _same(unit: Names, part: StatePart, alike: Sequence[StatePart], peers: Sequence[StatePart]) -> _Unit | str:
    """The arrays for a parameter in an old state of the same transform, or the reason why there are none."""
    holding = _holding(unit, alike)
    if not holding:
        return "the old state has nothing for this parameter"
    found = _partners(part, holding, _holding(unit, peers))
    if len(found) > 1:
        return f"{len(found)} old states have one"
    (source,) = found
    old, new = source.units[unit], part.units[unit]
    if shapes_of(old) != shapes_of(new):
        return "the old state has it in another shape"
    factors = {key: source.factor_for(part, key) for key in new}
    if any(factor is None for factor in factors.values()):
        return _in_another_form(part, source)
    return _Unit(source, {key: Found((*source.where, *key), old[key], factors[key]) for key in new})


def _holding(unit: Names, parts: Sequence[StatePart]) -> list[StatePart]:
    return [x for x in parts if unit in x.units]


def _in_another_form(part: StatePart, source: StatePart) -> str:
    name = source.other_form(part)
    what = f"`{name}`" if name else "one of its fields"
    return f"by its options, the old `{type(part.transform).__name__}` holds something else in {what}"


def _none_of(part: StatePart) -> str:
    return f"the old optimizer has no `{type(part.transform).__name__}` with the same input"


def _moment(unit: Names, part: StatePart, sources: Sequence[StatePart]) -> _Unit | str:
    """The momentum for a parameter in an old state of another transform, or the reason why there is none."""
    names = part.moment_of(unit)
    if names is None or len(part.units[unit]) > 1:
        return _none_of(part)
    (x,) = part.units[unit].values()
    moments = [(source, source.moment_of(unit)) for source in sources if source.inputs == part.inputs]
    found = [(source, old) for source, old in moments if old and _is_like(names, x, old, source.units[unit][old])]
    if len(found) != 1:
        return f"{len(found)} old states have a momentum of the same inputs"
    ((source, old),) = found
    factor = quotient(source.weight(old), part.weight(names))
    if factor is None:
        return "a sum without decay has no average"
    return _Unit(source, {names: Found((*source.where, *old), source.units[unit][old], factor)})


def _is_like(names: Names, x: Any, old: Names, old_x: Any) -> bool:
    """Whether two moments have one path, in fields of any name, and one shape."""
    return old[1:] == names[1:] and old_x.shape == x.shape


def _numbers(
    part: StatePart, found: Sequence[_Unit], alike: Sequence[StatePart], peers: Sequence[StatePart]
) -> dict[Names, Found] | str:
    """The shared numbers of a part from the states from which its arrays come; or the reason why there are none."""
    sources = list({id(x.source): x.source for x in found}.values()) or _partners(part, alike, peers)
    if not sources:
        return _none_of(part)
    numbers = [source.numbers_for(part) for source in sources]
    known: list[Any] = list(itertools.takewhile(lambda x: not isinstance(x, str), numbers))
    differing = next(filter(None, (_difference(known[0], other) for other in known[1:])), None)
    return differing or next((x for x in numbers if isinstance(x, str)), numbers[0])


def _difference(first: Mapping[Names, Found], other: Mapping[Names, Found]) -> str | None:
    """Why two old states don't agree about the shared numbers, if they don't."""
    for key in first.keys() | other.keys():
        x, y = (found[key].value if key in found else None for found in (first, other))
        if not _is_equal(x, y):
            is_traced = isinstance(x, Tracer) or isinstance(y, Tracer)
            may, because = ("may ", ", which is traced") if is_traced else ("", "")
            return f"the old states {may}differ in `{join(key)}`{because}"
    return None


def _is_equal(x: Any, y: Any) -> bool:
    if x is y or any(z is None or isinstance(z, Tracer) for z in (x, y)):
        return x is y
    return np.asarray(x).tobytes() == np.asarray(y).tobytes()


def _fitted(found: Found, like: Any) -> Any:
    """A copy of a value of the old state in the dtype, or in the fewer bits, that the new state has in its place."""
    x, is_scaled = found.value, isinstance(found.factor, Tracer) or found.factor != 1
    if is_quantized(x) and not is_scaled and jax.tree.map(jnp.result_type, x) == jax.tree.map(jnp.result_type, like):
        return jax.tree.map(lambda array: jnp.array(array, copy=True), x)
    x = x.dequantize() if is_quantized(x) else x
    if is_scaled:
        wide = at_least_float32(x.dtype)
        x = jnp.asarray(x).astype(wide) * jnp.asarray(found.factor).astype(wide)
    if is_quantized(like):
        return like.quantize(jnp.asarray(x, jnp.float32))
    x = jnp.array(x, like.dtype, copy=True)
    is_placed = isinstance(like, jax.Array) and not any(isinstance(y, Tracer) for y in (like, x))
    is_elsewhere = is_placed and x.sharding.memory_kind != like.sharding.memory_kind
    return jax.device_put(x, like.sharding) if is_elsewhere else x
