"""Rules for `rename`: how they change names, and which rules would fill what a restore left fresh."""

import collections
import itertools
import re
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from .._plugin.messages import listing
from .._plugin.states import every_field
from .._plugin.trees import Names, join, split
from ..authoring import AbstractState
from ._stored import as_stored, has_dtype_of

Rename = Mapping[str, str] | Callable[[str], str | None] | None


def renamed(names: Iterable[str], rename: Rename) -> dict[str, str]:
    """Map the new names of a checkpoint to its old ones; names that were dropped are left out.

    Raises:
        ValueError: if two names become the same, or a rule matches nothing.
    """
    names, out = list(names), dict[str, str]()
    used: set[str] = set()
    for name in names:
        new = rename(name) if callable(rename) else _apply_rules(name, rename or {}, used)
        if new is None:
            continue
        if new in out:
            raise ValueError(
                f"`rename` gives `{out[new]}` and `{name}` of the checkpoint the same name, `{new}`. "
                f"Rename one of them differently."
            )
        out[new] = name
    if unused := [old for old in (rename if isinstance(rename, Mapping) else ()) if old not in used]:
        raise ValueError(f"`rename`: nothing in the checkpoint is called `{unused[0]}`; it has {listing(names)}.")
    return out


def _apply_rules(name: str, rules: Mapping[str, str], used: set[str]) -> str:
    """Apply the first rule that matches a part of a name."""
    for old, new in rules.items():
        changed = _replaced(split(name), split(old), split(new) if new else ())
        if changed is not None:
            used.add(old)
            return join(changed)
    return name


def _replaced(names: Names, old: Names, new: Names) -> Names | None:
    """Replace a part of the names where it occurs first; None if it doesn't."""
    for start in range(len(names) - len(old) + 1):
        stop = start + len(old)
        if names[start:stop] == old:
            return (*names[:start], *new, *names[stop:])
    return None


def leaving_out(sources: Iterable[str], names: Collection[str], rename: Rename) -> str:
    """The code of a `rename` that leaves out some names of a checkpoint, and follows the rules of the user for others.

    It has their shortest ends that no other name has. Rules move them to names that no template has.
    """
    dropped = {part for name in sources for part in (name, re.sub(r"\.codes$", ".scales", name))}.intersection(names)
    kept = {*names} - dropped
    ends = _own_ends(dropped, kept, anywhere=isinstance(rename, Mapping))
    if isinstance(rename, Mapping):
        return "" if ends is None else str({end: f"left_out.{end}" for end in ends} | _used(rename, kept))
    others = "name" if rename is None else "rename(name)"
    if ends is None:
        return f"lambda name: None if name in {sorted(dropped)} else {others}"
    return f"lambda name: None if name.endswith({ends if ends[1:] else repr(ends[0])}) else {others}"


def _used(rules: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """The rules that match any of the names."""
    used = set[str]()
    for name in names:
        _apply_rules(name, rules, used)
    return {old: new for old, new in rules.items() if old in used}


def _own_ends(names: Iterable[str], kept: Iterable[str], *, anywhere: bool) -> tuple[str, ...] | None:
    """The ends of names that no kept one has, the longest first; None if there is none for one of them."""
    ends = {_own_end(name, kept, anywhere=anywhere) for name in names}
    return None if None in ends else tuple(sorted(filter(None, ends), key=lambda end: (-len(end), end)))


def _own_end(name: str, kept: Iterable[str], *, anywhere: bool) -> str | None:
    """The shortest end of a name that is the end of no kept one, or with `anywhere` no part of one; None if all are."""
    keys = split(name)
    ends = (join(keys[start:]) for start in reversed(range(len(keys))))
    return next((x for x in ends if not any(f".{x}." in f".{y}." if anywhere else y.endswith(x) for y in kept)), None)


# Names of one shape are compared in pairs, which takes seconds for more of them.
_MOST_PAIRS = 10_000
_Rule = tuple[Names, Names]
_Pairs = dict[_Rule, list[tuple[Names, Names]]]  # old and new names, by the rule that makes the one of the other


def propose(
    fresh: Mapping[Names, Any],
    unused: Mapping[Names, Any],
    saved: list[Names],
    shared: Mapping[Names, Iterable[Names]],
    in_states: Mapping[Names, tuple[Names, Names]],
    rename: Rename,
    fits: Callable[[Names, Names], bool],
) -> tuple[dict[str, str], list[tuple[Names, Names]]]:
    """Find the rules for `rename` that would fill most fresh leaves from unused arrays of the same shapes.

    A change of names is proposed if no other one fills as many of the same leaves: two layers of one shape are
    ambiguous. It is written as a rule for the names that differ. If there are none in the checkpoint, because names are
    inserted, or the rule would change other names too, the next name belongs to the rule or the one before; or whole
    names are given.

    Args:
        fresh: the leaves of the template to fill.
        unused: the arrays of the checkpoint that can fill them.
        saved: all names in the checkpoint.
        shared: the leaves of the template that all parameters share in a state, with the moments next to them. One
            that is a scalar keeps its last name, and it is filled only together with moments.
        in_states: the leaves of the template in states, where no field is filled from another one, with the names of
            the state and of the parameter. What a state has for a parameter is filled together.
        rename: the rules of the user, which are part of what is proposed.
        fits: whether an array of the checkpoint has the shape and dtype of the leaf of this name, if there is one.

    Returns:
        the rules, and the leaves that they fill, each with the array.
    """
    given = dict(rename) if isinstance(rename, Mapping) else {}
    now = {split(old): split(new) for new, old in renamed(map(join, saved), given).items()}
    kept, rules = now.keys() - unused.keys(), dict[str, str]()
    filled = list[tuple[Names, Names]]()
    for pairs in _best_rules(_possible_rules(fresh, unused, shared, in_states)):
        if sound := next(_sound_ways(pairs, now, kept, fits), None):
            trial, now = sound
            rules = {join(a): join(b) for a, b in trial} | rules  # the new ones are tried first
            kept, filled = kept | dict(pairs).keys(), [*filled, *((name, old) for old, name in pairs)]
    return rules | {old: new for old, new in given.items() if old not in rules}, filled


def _sound_ways(
    pairs: list[tuple[Names, Names]],
    now: Mapping[Names, Names],
    kept: Iterable[Names],
    fits: Callable[[Names, Names], bool],
) -> Iterator[tuple[list[_Rule], dict[Names, Names]]]:
    """Yield lists of rules that make these pairs and leave the others right, with the names that they make."""
    for trial in _ways_to_write(pairs):
        new = {old: _changed(old, trial) or name for old, name in now.items()}
        if all(new[old] == name for old, name in pairs) and _is_sound(new, now, kept, fits):
            yield trial, new


def _ways_to_write(pairs: list[tuple[Names, Names]]) -> Iterator[list[_Rule]]:
    """Yield lists of rules that make each second name of the first one, from the rules for the fewest names on."""
    for before, behind in ((0, 0), (0, 1), (1, 0)):
        rules = list(dict.fromkeys(_part(*pair, before, behind) for pair in pairs))
        if all(old for old, _ in rules):  # a rule has to say where it inserts names
            yield rules
    yield pairs


def _changed(name: Names, rules: Iterable[_Rule]) -> Names | None:
    """What the first rule that matches makes of a name."""
    return next((new for rule in rules if (new := _replaced(name, *rule)) is not None), None)


def _is_sound(
    new: Mapping[Names, Names],
    before: Mapping[Names, Names],
    kept: Iterable[Names],
    fits: Callable[[Names, Names], bool],
) -> bool:
    """Whether all names differ, those that are right are the same as before, and the others fit the leaves."""
    is_kept = len({*new.values()}) == len(new) and all(new[old] == before[old] for old in kept)
    return is_kept and all(fits(old, name) for old, name in new.items() if name != before[old])


def _best_rules(pairs: _Pairs) -> Iterator[list[tuple[Names, Names]]]:
    """Yield the pairs that a rule makes, from the rule that makes most of them on."""
    while pairs:
        most = max(map(len, pairs.values()))
        best = {rule: found for rule, found in pairs.items() if len(found) == most}
        counts = collections.Counter(name for found in best.values() for pair in found for name in set(pair))
        for found in best.values():
            if max(counts[name] for name in itertools.chain(*found)) == 1:
                yield found
        pairs = _left(pairs, counts)


def _left(pairs: _Pairs, taken: Mapping[Names, Any]) -> _Pairs:
    """The pairs of names that are not taken, and their rules."""
    rest = {rule: [pair for pair in found if taken.keys().isdisjoint(pair)] for rule, found in pairs.items()}
    return {rule: found for rule, found in rest.items() if found}


def _possible_rules(
    fresh: Mapping[Names, Any],
    unused: Mapping[Names, Any],
    shared: Mapping[Names, Iterable[Names]],
    in_states: Mapping[Names, tuple[Names, Names]],
) -> _Pairs:
    """What changes from the name of an unused array to that of a fresh leaf of its shape and dtype."""
    fields = _state_fields()
    pairs: _Pairs = {}
    for old, name in _alike(fresh, unused, shared):
        rule = _part(old, name)
        if not _is_exchange(rule, fields if name in in_states else set()):
            pairs.setdefault(rule, []).append((old, name))
    together = _together(fresh, shared, in_states)

    def whole(pairs: list[tuple[Names, Names]]) -> list[tuple[Names, Names]]:
        filled = {name for _, name in pairs}
        return [(old, name) for old, name in pairs if together.get(name, filled) <= filled]

    return {rule: kept for rule, found in pairs.items() if (kept := _with_moments(whole(found), fresh, shared))}


def _alike(
    fresh: Mapping[Names, Any], unused: Mapping[Names, Any], shared: Container[Names]
) -> Iterator[tuple[Names, Names]]:
    """Yield the pairs of an unused array and a fresh leaf that have one shape and dtype."""
    by_shape = collections.defaultdict[Any, list[Names]](list)
    for old, x in unused.items():
        by_shape[tuple(np.shape(x))].append(old)
    for name, leaf in fresh.items():
        olds = [old for old in by_shape[as_stored(leaf).shape] if has_dtype_of(unused[old], leaf)]
        if len(olds) ** 2 <= _MOST_PAIRS:
            # All counts have one shape, so that it doesn't say which of them is meant.
            is_count = name in shared and not np.shape(leaf)
            yield from ((old, name) for old in olds if not is_count or old[-1:] == name[-1:])


def _together(
    fresh: Mapping[Names, Any], shared: Container[Names], in_states: Mapping[Names, tuple[Names, Names]]
) -> dict[Names, set[Names]]:
    """For each fresh leaf of a state, all those for the same parameter."""
    parts = collections.defaultdict[Any, set[Names]](set)
    for name, part in in_states.items():
        if name in fresh and name not in shared:
            parts[part].add(name)
    return {name: names for names in parts.values() for name in names}


def _state_fields() -> set[str]:
    """The names of all fields of states that hold no states of other transforms."""
    return {field.name for field in every_field(AbstractState) if field.metadata.get("holds") != "states"}


def _with_moments(
    pairs: list[tuple[Names, Names]], fresh: Mapping[Names, Any], shared: Mapping[Names, Iterable[Names]]
) -> list[tuple[Names, Names]]:
    """The pairs without those of counts next to which all moments would stay fresh."""
    left = fresh.keys() - {name for _, name in pairs}
    return [(old, name) for old, name in pairs if not (beside := set(shared.get(name, ()))) or not beside <= left]


def _part(a: Names, b: Names, before: int = 0, behind: int = 0) -> _Rule:
    """The parts in which two names differ, with some of the names that both have before and behind them."""
    shorter = min(len(a), len(b))
    start = next((i for i in range(shorter) if a[i] != b[i]), shorter)
    end = next((i for i in range(shorter - start) if a[-1 - i] != b[-1 - i]), shorter - start)
    start, end = max(start - before, 0), max(end - behind, 0)
    return a[start : len(a) - end], b[start : len(b) - end]


def _is_exchange(rule: _Rule, fields: set[str]) -> bool:
    """Whether a rule makes one of the fields of another one: accumulated gradients are no average of parameters."""
    old, new = ([name for name in names if name in fields] for names in rule)
    return bool(old and new and old != new)
