"""The scalars that `metrics` returns for a log, by name.

Two sources have them: the hyperparameters that change during a run, and the fields of states that are declared with
`shared(metric=True)`. Neither needs the program of a step: hyperparameters are read from the transform, with schedules
replaced by their values, and states as they are.

Each is found with its whole path. Its name is short where only one has it (`learning_rate`); else it begins with the
keys of the parts that tell them apart (`body.learning_rate`), or, where no keys do, with the whole path.
"""

import collections
import dataclasses
import functools
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import jax.tree_util as jtu

from .._plugin.arrays import tracing
from .._plugin.labels import AbstractMultiplier
from .._plugin.states import is_quantized, kind_of
from .._plugin.transforms import RATES, AbstractHyperparameters, is_schedule, reading
from .._plugin.trees import Names, is_plain, key_names, leaves_with_paths
from ..authoring import AbstractContainer, AbstractOptimizer, AbstractState
from ..tree import unstack
from .rates import Rate, factors_held, is_of_library, parts_over_run, rates_by_pattern, rates_of


class Metric(NamedTuple):
    """A scalar, its name, and where it is: the keys of the parts on the way, and the whole path before the name."""

    name: str
    keys: Names
    path: Names
    value: Any


def metrics_of(transform: Any, state: Any) -> dict[str, Any]:
    """Return what `transform.metrics(state)` returns."""
    with reading(steps_back=1, with_factors=True):
        found = list(_hyperparameters_in_force(transform, transform.at(state), state))
    return _by_short_names([*found, *_measured_in(state)])


def factors_in(transform: Any, state: Any) -> list[tuple[Names, Any]]:
    """Return the factors that the state of a transform holds, and those of its parts, with their paths."""
    own: list[tuple[Names, Any]] = [((name,), x) for name, x in factors_held(state).items()]
    for part in transform.each_part(state) if isinstance(transform, AbstractContainer) else ():
        own += [(_below((part.field,), part) + path, x) for path, x in factors_in(part.transform, part.state)]
    return own


def _hyperparameters_in_force(transform: Any, now: Any, state: Any) -> Iterator[Metric]:
    """Yield the learning rates, also those of the groups of a multiplier, and hyperparameters that follow a schedule.

    Args:
        transform: the transform, whose fields hold the schedules.
        now: the transform with every schedule replaced by its value.
        state: the state of the transform.
    """
    values = dict(jtu.tree_leaves_with_path(now))
    for path, x in jtu.tree_leaves_with_path(transform, is_leaf=is_schedule):
        *before, name = key_names(path)
        if path in values and (is_schedule(x) or name in RATES):
            keys = tuple(str(key.key) for key in path[:-1] if isinstance(key, jtu.DictKey))
            yield Metric(name, keys, tuple(before), values[path])
    with tracing():  # what optimizers are made of has numbers that were checked
        yield from list(_computed(now, state))
        yield from list(_multiplied(now, state) if _has_multiplier(now) else ())


def _computed(transform: Any, state: Any, keys: Names = ()) -> Iterator[Metric]:
    """Yield the learning rates inside optimizers that have none in their fields, such as that of a function."""
    if not isinstance(transform, AbstractOptimizer):
        for part in transform.each_part(state):
            yield from _computed(part.transform, part.state, _below(keys, part))
    elif not any(key_names(path)[-1] in RATES for path, _ in jtu.tree_leaves_with_path(transform)):
        found = list(_inside(transform, state, keys))
        yield from (found[0]._replace(keys=keys),) if len(found) == 1 else found


def _inside(transform: Any, state: Any, keys: Names) -> Iterator[Metric]:
    """Yield the learning rates in the outermost parts of an optimizer that have one."""
    for part in parts_over_run(transform, state):
        if part.auxiliary:
            continue
        below = _below(keys, part)
        own = [(name, rate) for name in RATES if (rate := getattr(part.transform, name, None)) is not None]
        yield from (Metric(name, below, below, x) for name, x in own if not is_schedule(x))
        if not own:
            yield from _inside(part.transform, part.state, below)


def _below(keys: Names, part: Any) -> Names:
    return keys if part.key is None else (*keys, str(part.key))


def _has_multiplier(transform: Any) -> bool:
    parts = () if is_of_library(transform) else transform.each_part()
    return isinstance(transform, AbstractMultiplier) or any(_has_multiplier(part.transform) for part in parts)


def _multiplied(now: Any, state: Any) -> Iterator[Metric]:
    """Yield the learning rates that a multiplier chose by pattern, each once, where all numbers are known."""
    found: dict[tuple[Names, Names], dict[Names, Any]] = {}
    for rate in _rates_by_pattern(now, state):
        for number, value in _values(rate):
            patterns = (*rate.patterns, *number)
            found.setdefault((rate.keys, patterns), {}).setdefault(rate.inside, value)
    for (keys, patterns), by_rule in found.items():
        apart = _without_common_end(list(by_rule))  # of the two rules of Muon, for example
        for inside, value in zip(apart, by_rule.values(), strict=True):
            names = (*keys, *patterns, *(inside if len(by_rule) > 1 else ()))
            yield Metric("learning_rate", names, names, value)


def _rates_by_pattern(now: Any, state: Any) -> Iterator[Any]:
    """Yield the learning rates of the parameters of which each multiplier chose by pattern."""
    try:
        # Without the parameters, where they would tell nothing: of many arrays, each takes its time.
        if not (rates := rates_by_pattern(now, state)) and (tree := _params_in(state)) is not None:
            rates = rates_of(now, tree, state)
    except ValueError:  # moments may have other shapes than the parameters, by which a mask looks for these
        return
    yield from (rate for rate in rates if rate is not None and rate.patterns and None not in rate.patterns)


def _without_common_end(names: list[Names]) -> list[Names]:
    if len(names) < 2 or not all(names) or len({x[-1] for x in names}) > 1:
        return names
    return _without_common_end([x[:-1] for x in names])


def _values(rate: Rate) -> Iterator[tuple[Names, Any]]:
    """Yield the learning rate, or those of stacked blocks with their numbers, if they are known."""
    factors = [rate.value, *rate.factors, *[-1.0] * (rate.sign < 0)]
    blocks = max((len(x) for x in factors if isinstance(x, tuple)), default=None)
    for i in range(blocks or 1):
        numbers = [x[i] if isinstance(x, tuple) else x for x in factors]
        if not any(isinstance(x, AbstractHyperparameters) for x in numbers):
            yield () if blocks is None else (str(i),), functools.reduce(operator.mul, numbers)


def _params_in(state: Any) -> Any:
    """A tree like the parameters, of the moments in a state; None if there are none.

    Only moments have one array for each parameter. Those of a group have None in the place of the others.
    """
    found: dict[Any, list[Any]] = {}
    for tree in _moments(unstack(state)):
        leaves, treedef = jtu.tree_flatten(tree, is_leaf=_is_one)
        known = found.setdefault(treedef, [None] * len(leaves))
        found[treedef] = [x if y is None else y for x, y in zip(leaves, known, strict=True)]
    treedef, leaves = next(iter(found.items()), (None, ()))
    return None if treedef is None else treedef.unflatten([x if x is None else jtu.tree_leaves(x)[0] for x in leaves])


def _is_one(x: Any) -> bool:
    """Whether this is at the place of one parameter."""
    return x is None or is_quantized(x) or getattr(x, "stands_for_one_array", False)


def _moments(state: Any) -> Iterator[Any]:
    for _, x in _items(state):
        yield from _moments(x)
    for field, x in _fields_of(state):
        if field.metadata.get("moment") is not None:
            yield x
        elif kind_of(field) == "states":
            yield from _moments(x)


def _fields_of(state: Any) -> list[tuple[dataclasses.Field, Any]]:
    fields = dataclasses.fields(state) if isinstance(state, AbstractState) else ()
    return [(field, getattr(state, field.name)) for field in fields]


def _measured_in(state: Any, keys: Names = (), path: Names = ()) -> Iterator[Metric]:
    """Yield the scalars in the fields declared with `shared(metric=True)`, of a state and of the states inside it."""
    for key, x in _items(state):
        yield from _measured_in(x, (*keys, str(key)), (*path, str(key)))
    for field, x in _fields_of(state):
        if field.metadata.get("metric"):
            scalars = [(inside, leaf) for inside, leaf in leaves_with_paths(x) if jnp.ndim(leaf) == 0]
            yield from (Metric(inside or field.name, keys, path, leaf) for inside, leaf in scalars)
        elif kind_of(field) == "states" or isinstance(x, AbstractState):  # of vectors, in that of `Flatten`
            yield from _measured_in(x, keys, (*path, field.name))


def _items(states: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(states, Mapping):
        return states.items()
    return enumerate(states) if is_plain(states, list, tuple) else ()


def _by_short_names(metrics: Sequence[Metric]) -> dict[str, Any]:
    """Return the values by name, with as much of the path before the name as tells those of one name apart."""
    of_one_name = collections.defaultdict[str, list[Metric]](list)
    for metric in metrics:
        of_one_name[metric.name].append(metric)
    prefixes = {name: iter(_telling_apart(found)) for name, found in of_one_name.items()}
    values = {".".join((*next(prefixes[metric.name]), metric.name)): metric.value for metric in metrics}
    if len(values) < len(metrics):  # a name with dots can look like a path
        return {".".join((*metric.path, metric.name)): metric.value for metric in metrics}
    return values


def _telling_apart(metrics: Sequence[Metric]) -> list[Names]:
    """The keys of each metric without those that all have, if that tells them apart; else the whole paths."""
    keys = [metric.keys for metric in metrics]
    common = next((i for i, names in enumerate(zip(*keys, strict=False)) if len(set(names)) > 1), min(map(len, keys)))
    short = [names[common:] for names in keys]
    return short if len(set(short)) == len(short) else [metric.path for metric in metrics]
