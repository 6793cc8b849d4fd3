"""Continue a training of optax with modulax, and the other way round.

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

from .._plugin.messages import listing
from .._plugin.states import outermost, states_with_names
from .._plugin.trees import Names, join, named_leaves, split
from ..authoring import AbstractTransform
from ..tree import dequantize, unstack
from ._convert import check, fill_by_name
from ._low_bit import Side, widened
from ._names import Report, Template, named
from ._nesting import Nesting
from ._renaming import Rename, renamed
from ._store import opened, unescaped
from ._stored import as_stored, cast, plain
from ._whole_states import in_part

_Arrays = Mapping[Names, Any]
_Fetch = Callable[[dict[Names, Any]], _Arrays]
"""Reads arrays by name, each like the given leaf."""


def state_from_optax(
    template: PyTree,
    source: Any,
    optimizer: PyTree = None,
    params: PyTree = None,
    *,
    rename: Rename = None,
    strict: bool = True,
) -> Any:
    """Read a checkpoint of optax into modulax, to continue training.

        template = {"params": params, "opt_state": optimizer.init(params)}
        tree, report = checkpoint.state_from_optax(template, "runs/17/checkpoint", optimizer)

    The source is a folder that orbax wrote, the result of restoring it with orbax without a target, an optax state, or
    any tree with one in it, such as Flax's `TrainState` and `nnx.state(optimizer)`. The template is a modulax state, or
    a tree with modulax states and anything else to read. The optax state is looked up under the same name as the state
    in the template, or else under `opt_state`.

    The optimizer and the parameters say which form the state has in optax. The states of a chain are matched in its
    order, those of groups and of `named_chain` by name. optax may have them in other chains and masks, and with other
    schedules. Floats are cast to the dtypes of the template. The step count that an optimizer keeps for its schedules
    is taken from optax's. `Lookahead` and `ScheduleFree` need the parameters in the source too, since optax keeps the
    slow parameters among them and computes the average from them.

    Some fields hold a different quantity with `follow="optax"`, such as the maximum in `AMSGrad`. Give the optimizer
    this option if a remark in the report names such a field.

    This converts a state. To use an optax transformation in modulax, see `modulax.from_optax`.

    Args:
        template: a tree with states of modulax, or one state, `optimizer.init(params)`.
        source: the checkpoint, as described above.
        optimizer: the optimizer whose state is in the template; of several ones, a tree with the keys of the template.
            By default the one in the template, such as `tx` of a `TrainState`.
        params: the parameters, or their shapes and dtypes; by default those under `params` beside the state in the
            template.
        rename: renamed modules, see `restore`.
        strict: whether to raise an error for arrays without counterpart. Otherwise they are only listed in the report.
            Counters are never an error, nor are hyperparameters of transforms in the template, nor numbers that optax
            keeps in a state and modulax does not, such as `b1` of `schedule_free`. Those of `inject_hyperparams` belong
            in the state of `Injected`.

    Returns:
        The filled template, and a `Report` of where each array came from.

    Raises:
        ValueError: if the optimizer or the parameters are missing, the source has no optax state that corresponds, an
            array has another shape, or arrays are left over (unless `strict=False`).
        ImportError: if the source is a folder and orbax is not installed.
        FileNotFoundError: if there is no checkpoint at the path.
    """
    from ._optax_plan import Plan, places_of

    owner = "state_from_optax"
    form = unstack(widened(template))
    ours = Side.beside_wide(named(template), named(form))
    own, places = ours.arrays, places_of(owner, "template", form, optimizer, params)
    with _opened(source, own, rename) as (theirs, before, fetch):
        plan, considered = Plan(), dict[Names, Any]()
        plan.without[0].update(ours.phases, _hyperparameters(form))
        for place in places:
            there = _location(owner, place.where, theirs)
            plan.add_from_optax(place, there, theirs)
            considered |= {name: x for name, x in theirs.items() if name[: len(there)] == there}
        if places[0].where or len(places) > 1:  # a tree with a state in it, which may hold parameters too
            considered = theirs
            plan.add_others(places, own, theirs)
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


def state_to_optax(template: PyTree, source: PyTree, optimizer: PyTree = None, params: PyTree = None) -> Any:
    """Convert a state of modulax to one of optax, to continue training there.

        opt_state, report = checkpoint.state_to_optax(tx.init(params), state, optimizer, params)

    It is the inverse of `state_from_optax`. Restore a checkpoint of modulax first (`restore`). Where optax keeps a part
    of the state among the parameters, as the slow parameters of `lookahead`, pass trees with both:
    `{"params": params, "opt_state": state}`.

    Args:
        template: the initial state of the optax transformation, `tx.init(params)`, or a tree with it.
        source: the state of the corresponding modulax optimizer, or a tree with it.
        optimizer: the modulax optimizer; by default the one in the source, see `state_from_optax`.
        params: the parameters; by default those under `params` beside the state in the source.

    Returns:
        The filled template, and a `Report`. Constants in the optax state, such as hyperparameters, are those of the
        template, and are listed as fresh.

    Raises:
        ValueError: if the optimizer or the parameters are missing, one of the states has a field without counterpart
            in the other, or an array has another shape.
    """
    from ._optax_plan import Plan, places_of

    owner = "state_to_optax"
    form = unstack(dequantize(source))
    own, found = named(template), {name: plain(x) for name, x in named(form).items()}
    plan, places = Plan(), places_of(owner, "source", form, optimizer, params)
    plan.without[1].update(Side.beside_wide(named(source), found).phases, _hyperparameters(form))
    for place in places:
        plan.add_to_optax(place, _location(owner, place.where, own), own)
    plan.add_others(places, own, found)
    shown = {name: join(name) for name in found}
    report, lacking, lost = _report(plan, own, shown, shown)
    if lost or lacking:
        what = f"optax state has no field for {listing(lost)} of the modulax" if lost else ""
        what = what or f"modulax state has nothing for {listing(lacking)} of the optax"
        raise ValueError(
            f"`{owner}`: the {what} state. Pass `tx.init(params)` of the transformation that corresponds to the "
            f"optimizer.{_hint(lost)}"
        )
    report = dataclasses.replace(report, remarks=tuple(_remarks_on_forms(form, plan.used)))
    return _filled(template, own, plan, found, lambda wanted: {x: found[x] for x in wanted}, True), report


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
            found = _unboxed({name: plain(x) for name, x in named(source).items()}, own)
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
    places = _optimizer_states(prefixes)
    if len(places) <= 1:
        return [*places, where][0]
    raise ValueError(
        f"`{owner}` found several states of optax, {listing([join(x) for x in places])}. Pass one of them, or a "
        f"tree in which the states have the same keys on both sides."
    )


def _optimizer_states(prefixes: Iterable[Names]) -> list[Names]:
    """The outermost places that are called `opt_state`; the state of `sam` has a field of that name."""
    found = [x for x in prefixes if x[-1] == "opt_state" and (*x[:-1], "adv_state") not in prefixes]
    return [x for x in found if not any(x != y and x[: len(y)] == y for y in found)]


def _report(
    plan: Any,
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
    taken = plan.used
    unused = {x: name for x, name in found.items() if x not in taken}
    lacking, left = map(_without, (fresh, unused), plan.without)
    initial = tuple(join(part) for x in fresh for part in parts(x))
    return Report(restored, initial, tuple(unused.values())), lacking, left


def _without(shown: Mapping[Names, str], free: Collection[Names]) -> list[str]:
    """What is shown of the names that need a counterpart."""
    return [x for name, x in shown.items() if name not in free]


def _filled(
    template: PyTree,
    own: _Arrays,
    plan: Any,
    found: _Arrays,
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
