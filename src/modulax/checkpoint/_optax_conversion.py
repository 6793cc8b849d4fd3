"""Conversion of checkpoints from optax and to it.

`compat` converts a state of optax to ours and back, given the optimizer and the parameters. Here the source is opened,
the state in it is located and paired with the form that it has in `compat`, the arrays are read and converted, and
everything that is left over is reported.
"""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import jax
from jaxtyping import PyTree

from .._protocol.transform import AbstractTransform
from .._support.checks import listing
from .._support.module import AbstractState
from ..tree._paths import Names, join, named_leaves, split
from ..tree._quantized import dequantize
from ..tree._stacks import unstack
from ..tree._state import states_with_names
from ._convert import check, fill_by_name
from ._low_bit import Side, widened
from ._names import Report, Template, named
from ._nesting import Nesting
from ._optax_plan import Arrays, Plan, cast, outermost, places_of
from ._renaming import Rename, renamed
from ._store import opened, unescaped
from ._stored import as_stored, plain
from ._whole_states import in_part

_Fetch = Callable[[dict[Names, Any]], Arrays]
"""Reads arrays by name, each like the given leaf."""


def from_optax(
    template: PyTree, source: Any, optimizer: PyTree, params: PyTree, rename: Rename, strict: bool
) -> tuple[PyTree, Report]:
    """Convert a state from optax: `state_from_optax`, whose arguments these are."""
    owner = "state_from_optax"
    form = unstack(widened(template))
    states, ours = outermost(form, AbstractState), Side.beside_wide(_arrays(template), named(form))
    own = ours.arrays
    if not states:
        raise ValueError(
            f"`{owner}`: the template has no state of modulax. Pass `optimizer.init(params)`, or a tree with it."
        )
    places = places_of(owner, form, states, optimizer, params)
    with _opened(source, own, rename) as (theirs, before, fetch):
        plan, considered = Plan(), dict[Names, Any]()
        plan.without[0].update(ours.phases, _hyperparameters(form))
        for place in places:
            there = _location(owner, place.where, theirs)
            plan.add_from_optax(place, there, theirs)
            considered |= {name: x for name, x in theirs.items() if name[: len(there)] == there}
        if states[0][0] or len(states) > 1:  # a tree with a state in it, which may hold parameters too
            considered = theirs
            plan.add_others(states, own, theirs)
        sources = {name: x for name, x in plan.sources.items() if name in own}  # no stacks in fewer bits
        left_out, said = (set[Names](), []) if strict else in_part(Nesting(form, set(), own, ()), own, sources)
        plan.sources = {name: x for name, x in sources.items() if name not in left_out}
        shown = {x: before[x] for x in considered}
        report, lacking, left = _report(plan, own, shown, before, ours.parts)
        if strict and (lacking or left):
            raise ValueError(_disagreement(owner, lacking, left))
        lent = not isinstance(source, (str, os.PathLike))
        report = dataclasses.replace(report, remarks=(*said, *_remarks_on_forms(form, plan.sources)))
        return _filled(template, own, plan, theirs, fetch, lent, before, rename), report


def to_optax(template: PyTree, source: PyTree, optimizer: PyTree, params: PyTree) -> tuple[PyTree, Report]:
    """Convert a state to optax: `state_to_optax`, whose arguments these are."""
    owner = "state_to_optax"
    form = unstack(dequantize(source))
    own, found = _arrays(template), {name: plain(x) for name, x in named(form).items()}
    states = outermost(form, AbstractState)
    if not states:
        raise ValueError(
            f"`{owner}`: the source has no state of modulax. The template, `tx.init(params)`, is the first argument, "
            f"and the state the second."
        )
    plan = Plan()
    plan.without[1].update(Side.beside_wide(_arrays(source), found).phases, _hyperparameters(form))
    for place in places_of(owner, form, states, optimizer, params):
        plan.add_to_optax(place, _location(owner, place.where, own), own)
    plan.add_others(states, own, found)
    shown = {name: join(name) for name in found}
    report, lacking, lost = _report(plan, own, shown, shown)
    if lost or lacking:
        what = f"optax state has no field for {listing(lost)} of the modulax" if lost else ""
        what = what or f"modulax state has nothing for {listing(lacking)} of the optax"
        raise ValueError(
            f"`{owner}`: the {what} state. Pass `tx.init(params)` of the transformation that corresponds to the "
            f"optimizer.{_hint(lost)}"
        )
    converted = [name for names in plan.sources.values() for name in names]
    report = dataclasses.replace(report, remarks=tuple(_remarks_on_forms(form, converted)))
    return _filled(template, own, plan, found, lambda wanted: {x: found[x] for x in wanted}, True), report


def _arrays(tree: PyTree) -> dict[Names, Any]:
    return named(unstack(tree))


def _remarks_on_forms(form: PyTree, converted: Collection[Names]) -> list[str]:
    """What to say of converted fields that hold something else without `follow="optax"`."""
    return [
        f"`{join(path)}` is in optax what it is with `follow='optax'`: give our optimizer this option."
        for where, state in states_with_names(form)
        for path in ((*where, field) for field in state.optax_forms)
        if any(name[: len(path)] == path for name in converted)
    ]


def _hyperparameters(tree: PyTree) -> list[Names]:
    """The names in the transforms of a tree, such as a `TrainState`: those of optax are functions without leaves."""
    return [where + names for where, x in outermost(tree, AbstractTransform) for names, _ in named_leaves(x)]


@contextlib.contextmanager
def _opened(
    source: Any, own: Iterable[Names], rename: Rename
) -> Iterator[tuple[dict[Names, Any], dict[Names, str], _Fetch]]:
    """Open a source: its arrays, or their shapes and dtypes, by new names; the old ones; and a function that reads."""
    with contextlib.ExitStack() as stack:
        if isinstance(source, (str, os.PathLike)):
            paths, specs, read = stack.enter_context(opened(source))
            found = _unboxed(dict(zip(map(unescaped, paths), specs, strict=True)), own)
        else:
            found = _unboxed({name: plain(x) for name, x in _arrays(source).items()}, own)
            read = None
        old = {split(new): split(x) for new, x in renamed({join(x): y for x, y in found.items()}, rename).items()}

        def fetch(wanted: dict[Names, Any]) -> dict[Names, Any]:
            specs = {old[name]: spec for name, spec in wanted.items()}
            arrays = dict(zip(found, read([specs.get(x) for x in found]), strict=True)) if read else found
            return {name: arrays[old[name]] for name in wanted}

        yield {name: found[x] for name, x in old.items()}, {name: join(x) for name, x in old.items()}, fetch


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
    outermost = _optimizer_states(prefixes)
    if len(outermost) <= 1:
        return [*outermost, where][0]
    raise ValueError(
        f"`{owner}` found several states of optax, {listing([join(x) for x in outermost])}. Pass one of them, or a "
        f"tree in which the states have the same keys on both sides."
    )


def _optimizer_states(prefixes: Iterable[Names]) -> list[Names]:
    """The outermost places that are called `opt_state`; the state of `sam` has a field of that name."""
    found = [x for x in prefixes if x[-1] == "opt_state" and (*x[:-1], "adv_state") not in prefixes]
    return [x for x in found if not any(x != y and x[: len(y)] == y for y in found)]


def _report(
    plan: Plan,
    own: Iterable[Names],
    found: Mapping[Names, str],
    shown: Mapping[Names, str],
    parts: Callable[[Names], tuple[Names, ...]] = lambda name: (name,),
) -> tuple[Report, list[str], list[str]]:
    """List what is filled from where, and what is left over on both sides: all of it, and what lacks a counterpart.

    Args:
        plan: what the template is made from.
        own: the names in the template.
        found: the names in the source that may be left over, as they are shown.
        shown: all names in the source, as they are shown.
        parts: under which names an array of the template is stored.
    """
    sources = {x: ", ".join(shown[y] for y in plan.sources[x]) for x in own if x in plan.sources}
    restored = {join(part): source for x, source in sources.items() for part in parts(x)}
    fresh = {x: join(x) for x in own if x not in plan.sources}
    taken = {source for names in plan.sources.values() for source in names}
    unused = {x: name for x, name in found.items() if x not in taken}
    lacking, left = ([a[x] for x in a if x not in b] for a, b in zip((fresh, unused), plan.without, strict=True))
    initial = tuple(join(part) for x in fresh for part in parts(x))
    return Report(restored, initial, tuple(unused.values())), lacking, left


def _filled(
    template: PyTree,
    own: Arrays,
    plan: Plan,
    found: Arrays,
    fetch: _Fetch,
    lent: bool,
    old_names: Mapping[Names, str] = MappingProxyType({}),
    rename: Rename = None,
) -> PyTree:
    """Read what the leaves are made from, in their dtypes and on their devices; `lent` is as in `fill`.

    `old_names` has the names in a source of which some may be left out, and `rename` the rules of the user for them.

    Raises:
        ValueError: if the shape of an array differs.
    """
    wanted, made, pairs = dict[Names, Any](), dict[Names, Any](), list[tuple[str, str, Any, Any]]()

    def cast_spec(x: Any, leaf: Any) -> Any:
        return jax.eval_shape(lambda x: cast(x, leaf), jax.ShapeDtypeStruct(tuple(x.shape), x.dtype))

    for name, sources in plan.sources.items():
        result, given = plan.specs[name]
        shown = [old_names.get(source, join(source)) for source in sources]
        casts = [(spec, cast_spec(found[source], spec)) for source, spec in zip(sources, given, strict=True)]
        made[name] = cast_spec(as_stored(result), own[name])
        casts.append((own[name], made[name]))
        pairs += [(join(name), source, *x) for source, x in zip([*shown, shown[0]], casts, strict=True)]
        is_alike = len(sources) == 1 and made[name].shape == tuple(found[sources[0]].shape)
        place = getattr(own[name], "sharding", None) if is_alike else None
        wanted |= {x: jax.ShapeDtypeStruct(tuple(found[x].shape), found[x].dtype, sharding=place) for x in sources}
    # Shapes and dtypes are checked before anything is read.
    check(pairs, list(old_names.values()), rename)
    arrays = fetch(wanted)

    def computed(leaves: dict[Names, Any]) -> dict[Names, Any]:
        values = {name: x for run in plan.runs for name, x in run(arrays).items()}
        return {name: cast(values[name], own[name]) for name in leaves}

    return fill_by_name(Template(template), made, computed, lent=lent)


def _hint(names: Iterable[str]) -> str:
    """What to do about fields that optax keeps elsewhere."""
    keys = {key for name in names for key in split(name)}
    if "hyperparams" in keys:
        return (
            " The `hyperparams` of `inject_hyperparams` are read into the state of `Injected`. Without it, pass "
            "`strict=False`, and give the optimizer their values: `optimizer.replace(learning_rate=...)`."
        )
    if {"slow", "x"} & keys:
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
        f"optimizer that was saved, or `strict=False` to restore what both have.{_hint(lacking + left)}"
    )
