"""Continue a training of optax with modulax, and the other way round.

`_optax_parts.py` pairs the names on both sides. Here the source is opened, the state in it is located, the values are
read and put into the template, and everything that is left over is reported.
"""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import PyTree

from .._support.checks import listing
from .._support.module import AbstractState
from ..tree._paths import Names, join, key_names, named_leaves, split
from ..tree._stacks import stack_like, unstack
from ._convert import as_stored, check, into, plain
from ._names import Rename, Report, is_stored, renamed, stored
from ._optax_parts import AVERAGE, COUNTERS, LEAD, OURS, SLOW, Part, every, our_scope, paired, their_scope
from ._store import opened

_Fetch = Callable[[dict[Names, Any]], Mapping[Names, Any]]
"""Reads arrays by name, each like the given leaf."""


class _Value(NamedTuple):
    """What a leaf is filled from: names in the source, and a function of their arrays."""

    sources: tuple[Names, ...]
    function: Callable[..., Any] = lambda x: x


@dataclasses.dataclass
class _Plan:
    """What every leaf of a template is filled from, and the names of both sides that may be left over."""

    values: dict[Names, _Value] = dataclasses.field(default_factory=dict)
    fresh: set[Names] = dataclasses.field(default_factory=set)
    unused: set[Names] = dataclasses.field(default_factory=set)

    def fill(self, name: Names, *sources: Names, function: Callable[..., Any] = lambda x: x) -> None:
        """Fill a leaf from sources, unless it is filled already."""
        self.values.setdefault(name, _Value(sources, function))

    def report(self, own: Iterable[Names], found: Iterable[Names], old: Mapping[Names, str]) -> Report:
        """List what is filled from where, and everything that is left over."""
        restored = {join(x): ", ".join(old[y] for y in self.values[x].sources) for x in own if x in self.values}
        taken = {source for value in self.values.values() for source in value.sources}
        fresh = tuple(join(x) for x in own if x not in self.values)
        return Report(restored, fresh, tuple(old[x] for x in found if x not in taken))


def state_from_optax(template: PyTree, source: Any, *, rename: Rename = None, strict: bool = True) -> Any:
    """Read a checkpoint of optax into modulax, to continue training.

        template = {"params": params, "opt_state": optimizer.init(params)}
        tree, report = checkpoint.state_from_optax(template, "runs/17/checkpoint")

    The source is a folder that orbax wrote, what orbax returns for it without a target, an optax state, or any tree
    with one in it, such as Flax's `TrainState` and `nnx.state(optimizer)`. The template is a modulax state, or a tree
    with modulax states and whatever else is to be read. The optax state is looked up under the same name as the state
    in the template, or else under `opt_state`.

    Fields are matched by name: `mu` and `nu`, `trace`, `acc_grads` and so on, in nested containers and under the same
    labels. Floats are cast to the dtypes of the template. The step count that an optimizer keeps for its schedules is
    taken from optax's. `Lookahead` and `ScheduleFree` need the parameters too, since optax keeps the slow parameters
    among them and computes the average from them.

    This converts a state. To use an optax transformation in modulax, see `modulax.from_optax`.

    Args:
        template: a tree with states of modulax, or one state, `optimizer.init(params)`.
        source: the checkpoint, as described above.
        rename: renamed modules, see `restore`.
        strict: whether to raise an error for arrays without counterpart. Otherwise they are only listed in the report.
            Counters, and hyperparameters in an optax state, are never an error.

    Returns:
        The filled template, and a `Report` of where each array came from.

    Raises:
        ValueError: if the source has no optax state that corresponds, an array has another shape, or arrays are left
            over (unless `strict=False`).
        ImportError: if the source is a folder and orbax is not installed.
        FileNotFoundError: if there is no checkpoint at the path.
    """
    owner = "state_from_optax"
    form, template = template, unstack(template)
    own = _by_names(template)
    states = _states(template)
    if not states:
        raise ValueError(
            f"`{owner}`: the template has no state of modulax. Pass `optimizer.init(params)`, or a tree with it."
        )
    with _opened(source, own) as (found, read):
        old = {split(new): name for new, name in renamed({join(x): spec for x, spec in found.items()}, rename).items()}
        theirs = {name: found[split(before)] for name, before in old.items()}
        plan, considered = _Plan(), dict[Names, Any]()
        for where, state in states:
            there = _location(owner, where, theirs)
            considered |= {name: x for name, x in theirs.items() if name[: len(there)] == there}
            _plan_from(plan, our_scope(state, where), there, theirs, own)
        if states[0][0] or len(states) > 1:  # a tree with a state in it, which may hold parameters too
            considered = theirs
            _plan_others(plan, states, own, theirs)
        report = plan.report(own, considered, old)
        lacking = [name for name in report.fresh if split(name) not in plan.fresh]
        left = [name for name in report.unused if name not in {old[x] for x in plan.unused}]
        if strict and (lacking or left):
            raise ValueError(_disagreement(owner, lacking, left))

        def fetch(wanted: dict[Names, Any]) -> dict[Names, Any]:
            arrays = read({split(old[name]): spec for name, spec in wanted.items()})
            return {name: arrays[split(old[name])] for name in wanted}

        values = _values(plan, own, theirs, fetch)
    return stack_like(_filled(template, values), form), report


def state_to_optax(template: PyTree, source: PyTree) -> Any:
    """Convert a state of modulax to one of optax, to continue training there.

        opt_state, report = checkpoint.state_to_optax(tx.init(params), state)

    It is the inverse of `state_from_optax`. Restore a checkpoint of modulax first (`restore`). Where optax keeps a part
    of the state among the parameters, as the slow parameters of `lookahead`, pass trees with both:
    `{"params": params, "opt_state": state}`.

    Args:
        template: the initial state of the optax transformation, `tx.init(params)`, or a tree with it.
        source: the state of the corresponding modulax optimizer, or a tree with it.

    Returns:
        The filled template, and a `Report`. Constants in the optax state, such as hyperparameters, are those of the
        template, and are listed as fresh.

    Raises:
        ValueError: if one of the states has a field without counterpart in the other, or an array has another shape.
    """
    owner = "state_to_optax"
    source = unstack(source)
    own, found = _by_names(template), {name: plain(x) for name, x in _by_names(source).items()}
    states = _states(source)
    if not states:
        raise ValueError(
            f"`{owner}`: the source has no state of modulax. The template, `tx.init(params)`, is the first argument, "
            f"and the state the second."
        )
    plan = _Plan()
    for where, state in states:
        _plan_to(plan, our_scope(state, where), _location(owner, where, own), own, found)
    _plan_others(plan, states, own, found)
    report = plan.report(own, found, {name: join(name) for name in found})
    lacking = [name for name in report.fresh if split(name) not in plan.fresh]
    lost = [name for name in report.unused if split(name) not in plan.unused]
    if lost:
        raise ValueError(
            f"`{owner}`: the optax state has no field for {listing(lost)} of the modulax state. Pass `tx.init(params)` "
            f"of the transformation that corresponds to the optimizer.{_hint(lost)}"
        )
    if lacking:
        raise ValueError(
            f"`{owner}`: the modulax state has nothing for {listing(lacking)} of the optax state. Pass "
            f"`tx.init(params)` of the transformation that corresponds to the optimizer."
        )
    return _filled(template, _values(plan, own, found, lambda wanted: {name: found[name] for name in wanted})), report


def _by_names(tree: PyTree) -> dict[Names, Any]:
    return {split(name): x for name, x in stored(tree).items()}


def _states(tree: PyTree) -> list[tuple[Names, AbstractState]]:
    """The outermost states of modulax in a tree, with their locations."""
    found = jtu.tree_leaves_with_path(tree, is_leaf=lambda x: isinstance(x, AbstractState))
    return [(key_names(path), x) for path, x in found if isinstance(x, AbstractState)]


@contextlib.contextmanager
def _opened(source: Any, own: Iterable[Names]) -> Iterator[tuple[dict[Names, Any], _Fetch]]:
    """Open a source: its arrays by name, or their shapes and dtypes, and a function that reads some of them."""
    if isinstance(source, (str, os.PathLike)):
        with opened(source) as (paths, specs, read):
            found = _unboxed(dict(zip(paths, specs, strict=True)), own)
            yield found, lambda wanted: dict(zip(found, read([wanted.get(name) for name in found]), strict=True))
    else:
        live = _unboxed({name: plain(x) for name, x in _by_names(source).items()}, own)
        yield live, lambda wanted: {name: live[name] for name in wanted}


def _unboxed(found: Mapping[Names, Any], own: Iterable[Names]) -> dict[Names, Any]:
    """Drop the `value` that orbax appends for an NNX variable, whose box is not part of a path."""
    ends = {name[-2:] for name in own}
    boxed = {name for name in found if name[-1:] == ("value",) and name[-2:] not in ends}
    siblings = {name[:-1] for name in found if name not in boxed}
    return {name[:-1] if name in boxed and name[:-1] not in siblings else name: x for name, x in found.items()}


def _location(owner: str, where: Names, names: Iterable[Names]) -> Names:
    """Where the optax state is that corresponds to a state of modulax.

    Raises:
        ValueError: if there are several.
    """
    prefixes = dict.fromkeys(name[:stop] for name in names for stop in range(1, len(name)))
    if where and (near := [x for x in (where, (*where[:-1], "opt_state")) if x in prefixes]):
        return near[0]
    # The state of `sam` has a field of that name.
    found = [x for x in prefixes if x[-1] == "opt_state" and (*x[:-1], "adv_state") not in prefixes]
    outermost = [x for x in found if not any(x != y and x[: len(y)] == y for y in found)]
    if len(outermost) <= 1:
        return outermost[0] if outermost else where
    raise ValueError(
        f"`{owner}` found several states of optax, {listing([join(x) for x in outermost])}. Pass one of them, or a "
        f"tree in which the states have the same keys on both sides."
    )


def _plan_from(
    plan: _Plan, ours: list[Part], there: Names, theirs: Mapping[Names, Any], own: Mapping[Names, Any]
) -> None:
    """Plan what a state of modulax is filled from."""
    pairs = paired(ours, their_scope(theirs, there, ours))
    for name, source in pairs.same:
        plan.fill(name, source)
        if source[-1] in COUNTERS:
            plan.unused.add(source)
    for name, source in pairs.initial:
        plan.fill(name, source, function=lambda x: 1 - x.astype(np.int32))
        plan.unused.add(source)
    plan.unused |= pairs.constants | {name for name in pairs.factors if np.size(theirs[name]) == 1}
    for part in every(ours):
        plan.fresh |= _without_value(part, OURS)
        for rest, name in part.fields.get(SLOW, {}).items():
            before = _beside(theirs, there, (SLOW, *rest))
            if before is not None:
                plan.fill(name, (*before, SLOW, *rest))
                if (*before, *rest) in own:
                    plan.fill((*before, *rest), (*before, "fast", *rest))
        if part.is_average:
            name = part.fields[LEAD][()]
            lead = 1 - _first_count(own[name], join(name))
            if name in plan.values:
                plan.values[name] = plan.values[name]._replace(function=lambda x, lead=lead: x - lead)
        for rest, name in part.fields.get(AVERAGE, {}).items() if part.is_average else ():
            z, before = plan.values.get(part.fields["z"][rest]), _beside(theirs, there, rest)
            if z is not None and before is not None:
                b1 = (*z.sources[0][: -1 - len(rest)], "b1")
                plan.fill(name, (*before, *rest), z.sources[0], b1, function=_average)


def _plan_to(plan: _Plan, ours: list[Part], there: Names, own: Mapping[Names, Any], found: Mapping[Names, Any]) -> None:
    """Plan what a state of optax is filled from."""
    pairs = paired(ours, their_scope(own, there, ours))
    for source, name in pairs.same:
        plan.fill(name, source)
    for source, name in pairs.initial:
        plan.fill(name, source, function=lambda x: x == 0)
    plan.fresh |= pairs.constants | pairs.factors
    for part in every(ours):
        plan.unused |= _without_value(part, OURS - {"schedule_states"})
        # Pairs that were discarded are in the count and not in the memory, which optax cannot express.
        plan.unused -= {name for name in part.fields.get("skipped", {}).values() if np.any(found[name])}
        if part.is_average:
            lead = part.fields[LEAD][()]
            plan.unused |= {lead, *part.fields[AVERAGE].values()}
            inside = [x.counter for labelled in part.scopes.values() for x in every(labelled[""]) if x.counter]
            steps = next(iter(inside), next((x.counter for x in ours if x.counter), None))
            for name in [name for name, value in plan.values.items() if value.sources == (lead,)]:
                plan.values[name] = plan.values[name] if steps is None else _Value((steps,), lambda x: x + 1)
        for rest, source in part.fields.get(SLOW, {}).items():
            before = _beside(own, there, (SLOW, *rest))
            if before is not None:
                plan.fill((*before, SLOW, *rest), source)
                if (*before, *rest) in found:
                    plan.fill((*before, "fast", *rest), (*before, *rest))


def _without_value(part: Part, fields: Iterable[str]) -> set[Names]:
    """The counter of a part, and what is in certain fields: nothing that has to be carried over."""
    found = {name for field in fields for name in part.fields.get(field, {}).values()}
    return found | ({part.counter} if part.counter else set())


def _plan_others(
    plan: _Plan, states: list[tuple[Names, Any]], own: Mapping[Names, Any], found: Mapping[Names, Any]
) -> None:
    """Plan what everything that is not in a state is filled from: what has the same name."""
    for name in own:
        if name in found and not any(name[: len(where)] == where for where, _ in states):
            plan.fill(name, name)


def _beside(names: Iterable[Names], state: Names, rest: Names) -> Names | None:
    """Where a parameter is in a tree that holds a state too; None if that is not clear."""
    ends = [name[: len(name) - len(rest)] for name in names if name[len(name) - len(rest) :] == rest]
    found = [before for before in dict.fromkeys(ends) if before[: len(state)] != state]
    return found[0] if len(found) == 1 else ("params",) if ("params",) in found else None


def _first_count(leaf: Any, name: str) -> int:
    """The step count of `ScheduleFree` in a template, which is that of the initial state."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        raise ValueError(f"`{name}` of the template has no value. Pass `optimizer.init(params)`, whose count is known.")
    if int(leaf) > 1:
        raise ValueError(f"`{name}` of the template is {int(leaf)}. Pass the initial state, `optimizer.init(params)`.")
    return int(leaf)


def _average(y: Any, z: Any, b1: Any) -> Any:
    """The average of `schedule_free`, from the parameters that are trained."""
    y, z, b1 = (jnp.asarray(x).astype(z.dtype) for x in (y, z, b1))
    return (y - (1 - b1) * z) / b1


def _values(plan: _Plan, own: Mapping[Names, Any], found: Mapping[Names, Any], fetch: _Fetch) -> dict[Names, Any]:
    """Read what the leaves are filled from, in their dtypes and on their devices.

    Raises:
        ValueError: if the shape of an array differs.
    """
    wanted: dict[Names, Any] = {}
    for name, value in plan.values.items():
        for source in value.sources:
            x, place = jax.ShapeDtypeStruct(tuple(found[source].shape), found[source].dtype), None
            if len(value.sources) == 1:
                result = jax.eval_shape(lambda x, f=value.function, leaf=own[name]: _cast(f(x), leaf), x)
                check(join(name), join(source), own[name], result)
                place = getattr(own[name], "sharding", None) if result.shape == x.shape else None
            wanted[source] = jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place)
    arrays = fetch(wanted)
    made = {name: value.function(*(arrays[x] for x in value.sources)) for name, value in plan.values.items()}
    return {name: into(own[name], _cast(x, own[name])) for name, x in made.items()}


def _cast(x: Any, leaf: Any) -> Any:
    """Cast an array to the dtype of a leaf, if it is of the same kind.

    optax stores some scalars as arrays of one element, and some counts as floats.
    """
    wanted = as_stored(leaf)
    if np.size(x) == wanted.size == 1:
        x = jnp.reshape(x, wanted.shape)
    fits = _kind(x.dtype, x.shape) == _kind(wanted.dtype, x.shape) and x.dtype != wanted.dtype
    return jnp.asarray(x).astype(wanted.dtype) if fits else x


def _kind(dtype: Any, shape: tuple[int, ...]) -> Any:
    """Complex, floating or integer, of which the last two are one for scalars; any other dtype is its own kind."""
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return jnp.complexfloating
    if jnp.issubdtype(dtype, jnp.floating) or (jnp.issubdtype(dtype, jnp.integer) and not shape):
        return jnp.floating
    return jnp.integer if jnp.issubdtype(dtype, jnp.integer) else dtype


def _filled(template: PyTree, values: Mapping[Names, Any]) -> PyTree:
    """Put values into the leaves of a template.

    Raises:
        ValueError: if a leaf that is not filled has no value to keep.
    """
    out = []
    for name, x in named_leaves(template):
        if name not in values and isinstance(x, jax.ShapeDtypeStruct) and is_stored(x):
            raise ValueError(
                f"`{join(name)}` of the template is a `jax.ShapeDtypeStruct` without values, and the checkpoint does "
                f"not have it. Put an array there to keep."
            )
        out.append(values.get(name, x))
    return jtu.tree_unflatten(jtu.tree_structure(template), out)


def _hint(names: Iterable[str]) -> str:
    """What to do about fields that optax keeps among the parameters."""
    fields = {key for name in names for key in split(name)}
    if fields & {SLOW, AVERAGE}:
        return (
            " optax keeps the slow parameters of `lookahead` and the average of `schedule_free` with the parameters: "
            'pass trees with both, `{"params": params, "opt_state": state}`.'
        )
    return ""


def _disagreement(owner: str, lacking: list[str], left: list[str]) -> str:
    """Write the error message for states that don't correspond."""
    said = [f"the optax state lacks {listing(lacking)}"] if lacking else []
    said += [f"the template has no place for {listing(left)}"] if left else []
    return (
        f"`{owner}`: the optax state and the template do not agree: {'; '.join(said)}. Pass a template of the "
        f"optimizer that was saved, or `strict=False` to restore what both have.{_hint(lacking)}"
    )
