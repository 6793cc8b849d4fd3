"""The scalars that `metrics` returns for a log, by name.

Two sources have them: the hyperparameters that change during a run, and the fields of states that are declared with
`shared(metric=True)`. Neither needs the program of a step: hyperparameters are read from the transform, with schedules
replaced by their values, and states as they are.

Each is found with its whole path. Its name is short where only one has it (`learning_rate`); else it begins with the
keys of the parts that tell them apart (`body.learning_rate`), or, where no keys do, with the whole path.
"""

import collections
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import jax.tree_util as jtu

from .._support.module import AbstractState, kind_of
from ..tree._paths import Names, is_plain, key_names, leaves_with_paths
from .schedule import is_schedule

_RATES = ("learning_rate", "adam_learning_rate")


class Metric(NamedTuple):
    """A scalar, its name, and where it is: the keys of the parts on the way, and the whole path before the name."""

    name: str
    keys: Names
    path: Names
    value: Any


def hyperparameters_in_force(transform: Any, now: Any) -> Iterator[Metric]:
    """Yield the learning rates, also those of the groups of a multiplier, and hyperparameters that follow a schedule.

    Args:
        transform: the transform, whose fields hold the schedules.
        now: the transform with every schedule replaced by its value.
    """
    values = dict(jtu.tree_leaves_with_path(now))
    for path, x in jtu.tree_leaves_with_path(transform, is_leaf=is_schedule):
        *before, name = key_names(path)
        if path in values and (is_schedule(x) or name in _RATES):
            keys = tuple(str(key.key) for key in path[:-1] if isinstance(key, jtu.DictKey))
            yield Metric(name, keys, tuple(before), values[path])
    yield from (rate for rate, is_multiplied in _rates(now) if is_multiplied)


def _rates(now: Any, keys: Names = ()) -> list[tuple[Metric, bool]]:
    """The learning rates of a transform, and whether each was multiplied for a group of parameters."""
    rates = {name: getattr(now, name, None) for name in _RATES}
    if own := [(Metric(name, keys, keys, rate), False) for name, rate in rates.items() if rate is not None]:
        return own
    found: list[tuple[Metric, bool]] = []
    for part in now.each_part():
        multipliers = getattr(part.transform, "multipliers_by_pattern", None)
        if multipliers is None:
            inside = keys if part.key is None else (*keys, str(part.key))
            found += _rates(part.transform, inside)
        else:
            # Which patterns match in which of several groups, the parameters would tell: nothing is better than a
            # number that no step had.
            single = found if len(found) == 1 else []
            found = [
                (before._replace(keys=(*before.keys, name), path=(*before.path, name), value=before.value * x), True)
                for before, _ in single
                for name, x in multipliers().items()
            ]
    return found


def measured_in(state: Any, keys: Names = (), path: Names = ()) -> Iterator[Metric]:
    """Yield the scalars in the fields declared with `shared(metric=True)`, of a state and of the states inside it."""
    for key, x in _items(state):
        yield from measured_in(x, (*keys, str(key)), (*path, str(key)))
    for field in dataclasses.fields(state) if isinstance(state, AbstractState) else ():
        x = getattr(state, field.name)
        if field.metadata.get("metric"):
            scalars = [(inside, leaf) for inside, leaf in leaves_with_paths(x) if jnp.ndim(leaf) == 0]
            yield from (Metric(inside or field.name, keys, path, leaf) for inside, leaf in scalars)
        elif kind_of(field) == "states" or isinstance(x, AbstractState):  # of vectors, in that of `Flatten`
            yield from measured_in(x, keys, (*path, field.name))


def _items(states: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(states, Mapping):
        return states.items()
    return enumerate(states) if is_plain(states, list, tuple) else ()


def by_short_names(metrics: Sequence[Metric]) -> dict[str, Any]:
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
