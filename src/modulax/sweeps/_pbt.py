"""Population-based training: members copy from better ones while they train, and change their hyperparameters.

A carry may hold hyperparameters too, in the state of `Injected` or as copies: they are changed there as well.
"""

import functools
import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.extend.core import Jaxpr, Literal
from jaxtyping import PRNGKeyArray, PyTree

from .._plugin.arguments import check_option
from .._plugin.containers import hyperparameters_in, injected_paths
from .._plugin.messages import listing
from .._plugin.states import states_with_names
from .._plugin.trees import Names, joined, named_leaves
from ..authoring import AbstractTransform
from ._experiment import Experiment, Settings
from ._hooks import Hook, Hooks
from ._population import Lane, Structure
from ._program import described
from ._results import Results
from ._spaces import AbstractSpace, seed_of
from ._sweep import Members, Sweep, as_sweep, paths_of
from ._training import LaneProgram, Trainable

Explore = float | AbstractSpace | Callable[[float, float], float]
Changes = Mapping[str, Callable[[float, float], Any]]  # by dotted path: the new value
COPIES = ("copy", "copy_p", "device_put", "convert_element_type")  # operations that keep a value
CALLS = ("jit", "pjit")  # the name of the operation depends on the version of JAX


def pbt(
    sweep: Sweep | Members,
    trainable: Trainable,
    metric: str | None = None,
    *,
    segments: int,
    explore: Mapping[str, Explore],
    exploit: float = 0.25,
    mode: str = "min",
    key: PRNGKeyArray | None = None,
    data: Any = None,
    chunk: int | None = None,
    devices: Any = None,
    memory: float | int | None = None,
    folder: str | os.PathLike[str] | None = None,
    tags: Mapping[str, Any] | None = None,
    progress: bool = True,
    on_segment: Hook | Sequence[Hook] | None = None,
) -> Results:
    """Train a population; after each segment, the worst members continue from the best, with other hyperparameters.

        results = sweeps.pbt(population, trainable, "loss", segments=20, explore={"learning_rate": 1.2})
        optimizer, row = results.best("loss")
        results.lineage(row["member"])   # the schedule of hyperparameters that was found

    After a segment, each of the worst members takes the carry and the optimizer of a random one of the best
    (exploitation), and changes the named hyperparameters (exploration). The values are leaves, so all segments run in
    one program. Every member has its own random key.

    References:
        Jaderberg et al., "Population Based Training of Neural Networks", 2017. https://arxiv.org/abs/1711.09846

    Args:
        sweep: the population: a sweep of optimizers of one structure, such as one of `sample`.
        trainable: the training in segments.
        metric: the name of the metric that ranks the members; may be left out if there is only one.
        segments: the number of segments.
        explore: how a hyperparameter is changed. A number is a factor, by which the value is multiplied or divided; a
            space is sampled again; a function of the value and of a uniform random number in [0, 1) returns the new
            value. For a decay: `{"b2": lambda b2, u: 1 - (1 - b2) * (1.2 if u < 0.5 else 1 / 1.2)}`. If a name stands
            for several values, such as the learning rates of groups, each is changed by itself.
        exploit: the fraction of the members that is replaced after each segment, and from which they are replaced.
        mode: `"min"` if small values are good, `"max"` if large ones are.
        key: random key; by default `jax.random.key(0)`.
        data: as in `run`.
        chunk: as in `run`.
        devices: as in `run`.
        memory: as in `run`.
        folder: as in `run`; a training that was interrupted goes on.
        tags: as in `run`.
        progress: as in `run`.
        on_segment: as in `run`, without stopping members.

    Returns:
        The results, whose `sweep` has the hyperparameters of the last segment. `history` has those of all segments,
        and `parents` the member from whose carry each continued.

    Raises:
        ValueError: if the members don't have one structure, if a name in `explore` is not a hyperparameter, if a
            changed value is out of range, or for the reasons of `run`.
    """
    check_option("sweeps.pbt", "mode", mode, ("min", "max"))
    population = as_sweep(sweep)
    size = len(population)
    replaced = _replaced(population, exploit)
    paths = paths_of(population[0], explore, "sweeps.pbt", 'explore={{"{}": ...}}')
    # A name that stands for several values, such as the rates of groups, changes each of them by itself.
    columns = {path: name if len(of_name) == 1 else path for name, of_name in paths.items() for path in of_name}
    changes = {path: _as_function(name, explore[name]) for name, of_name in paths.items() for path in of_name}
    experiment = Experiment(
        population, trainable, key=key, devices=devices, segments=segments, data=data, name="sweeps.pbt", own_keys=True
    )
    experiment.results().scores(metric)  # an error before anything is trained
    search = [sorted((name, _text(x)) for name, x in explore.items()), exploit, metric or "", mode]
    search += [described(member) for member in population]
    stored = leaves_of(experiment.structures[0], paths)
    history = experiment.history = {name: np.zeros((size, segments)) for name in columns.values()}
    parents = np.tile(np.arange(size)[:, None], (1, segments))
    settings = Settings(chunk, memory, folder, tags, progress, Hooks(on_segment, may_stop=False))
    with experiment.session("pbt", settings, work=size * segments, search=search):
        spent = set[str]()
        for segment in range(segments):
            others = np.zeros(0, int)
            if segment > 0:
                random = np.random.default_rng(seed_of(experiment.key, segment - 1))
                so_far = experiment.results(parents=parents)
                sources = parents[:, segment] = _sources(so_far._finite_costs(metric, mode=mode), replaced, random)
                others = np.flatnonzero(sources != np.arange(size))
                for place, source in zip(others.tolist(), sources[others].tolist(), strict=True):
                    spent.update(experiment.names[place])
                    experiment.replace(place, _changed(experiment.members[source], changes, random), source, segment)
            for path, name in columns.items():
                history[name][:, segment] = [member.hyperparameters()[path] for member in experiment.members]
            write = functools.partial(write_values, replaced=others, leaves=stored)
            experiment.train([*range(size)], segment + 1, keeps=True, spent=spent, prepare=write)
        final = _with_members(population, experiment.members, columns)
        results = experiment.results(final, history=history, parents=parents)
    return results


def _replaced(population: Sweep, exploit: float) -> int:
    """How many members are replaced after a segment."""
    size = len(population)
    if len(population.groups) > 1:
        labels = listing(group.label for group in population.groups)
        raise ValueError(
            f"`sweeps.pbt` copies between members, so they need one structure, and there are {labels}. Call it for "
            f"each of them."
        )
    if not 0 < exploit <= 0.5 or int(exploit * size) < 1:
        raise ValueError(
            f"`sweeps.pbt(exploit={exploit!r})` must be at most 0.5, and at least one of the {size} members: "
            f"{1 / size:.2g} or more."
        )
    return int(exploit * size)


def _text(change: Explore) -> str:
    """A change as a folder notes it; of a function, it notes the values that this returned."""
    return repr(change) if isinstance(change, (int, float, AbstractSpace)) else ""


def _with_members(population: Sweep, members: Members, columns: Mapping[str, str]) -> Sweep:
    """The population with other members, and a column for each value that was changed by itself."""
    shared = {name: paths for name, paths in population.names.items() if not columns.keys() & {*paths[1:]}}
    return Sweep(members, shared | {name: (path,) for path, name in columns.items()}, population.labels)


def _as_function(name: str, change: Any) -> Callable[[float, float], Any]:
    """A change of a hyperparameter as a function of the value and of a uniform random number."""
    if isinstance(change, AbstractSpace):
        return lambda _, u: change.at(u)
    if callable(change):
        return change
    if not isinstance(change, (int, float)) or change <= 1:
        raise ValueError(
            f"`sweeps.pbt(explore={{{name!r}: {change!r}}})` must be a factor above 1, such as 1.2, a space, such as "
            f"`sweeps.LogUniform(low, high)`, or a function of the value and a random number in [0, 1)."
        )
    return lambda value, u: value * change if u < 0.5 else value / change


def _sources(scores: np.ndarray, replaced: int, random: np.random.Generator) -> np.ndarray:
    """The member from whose carry each continues: itself, or for the last ones a random one of the first."""
    order = np.argsort(scores, kind="stable")
    sources = np.arange(len(scores))
    best = order[: min(replaced, np.isfinite(scores).sum())]  # one that diverged stays what it is in each copy
    sources[order[-replaced:]] = random.choice(best, size=replaced)
    return sources


def _changed(optimizer: AbstractTransform, changes: Changes, random: np.random.Generator) -> AbstractTransform:
    """The optimizer with changed hyperparameters."""
    for path, change in changes.items():
        value = float(optimizer.hyperparameters()[path])
        new = change(value, float(random.random()))
        try:
            optimizer = optimizer.replace(**{path: new})
        except ValueError as error:
            raise ValueError(
                f"`sweeps.pbt(explore=...)` changed `{path}` from {value:.6g} to {new:.6g}. {error} Give a space, or a "
                f"function that stays in the range."
            ) from error
    return optimizer


def leaves_of(structure: Structure, names: Mapping[str, Sequence[str]]) -> dict[str, list[int]]:
    """The leaves of a carry that hold hyperparameters of its optimizer, by the dotted paths of these.

    Args:
        structure: the training, traced.
        names: the paths that each name in `explore` stands for.

    Raises:
        ValueError: if the carry has no state of an optimizer with `Injected`, where a hyperparameter would be, or if
            the training ignores all hyperparameters of a name.
    """
    optimizer, start = structure.group.members[0], structure.start
    carry = start.traced.result if start else ()
    paths = [path for of_name in names.values() for path in of_name]
    in_states, copies, read = _in_states(optimizer, carry, paths), _copied(structure, carry), _read(structure)
    found = {path: leaves for path in paths if (leaves := in_states.get(path, []) + copies.get(path, []))}
    for name, of_name in names.items():
        if found.keys().isdisjoint(of_name) and read.isdisjoint(of_name):
            raise ValueError(
                f"`sweeps.pbt(explore={{{name!r}: ...}})` has no effect, because `advance(optimizer, carry)` doesn't "
                f"use `{name}` of its optimizer. Take the steps with that optimizer. If the carry has another one, as "
                f"a training state of Flax has, write `state = state.replace(tx=optimizer)` first."
            )
    return found


def _in_states(optimizer: AbstractTransform, carry: PyTree, paths: Sequence[str]) -> dict[str, list[int]]:
    """The hyperparameters in the states of `Injected`."""
    injected = injected_paths(optimizer)
    paths = [path for path in paths if path in injected]
    if not paths:
        return {}
    leaves, treedef = jtu.tree_flatten(carry)
    found = defaultdict[str, list[int]](list)
    for _, state in states_with_names(treedef.unflatten(range(len(leaves)))):
        for path, leaf in hyperparameters_in(optimizer, state):
            found[path].append(leaf)
    if not found:
        raise ValueError(
            f"`sweeps.pbt(explore=...)` changes {listing(paths)}, and `Injected` follows the values in its state, "
            f"which the carry of the training doesn't hold as a state of modulax. Give the optimizer inside "
            f"`Injected`: its hyperparameters are arguments of the training already."
        )
    return dict(found)


def _copied(structure: Structure, carry: PyTree) -> dict[str, list[int]]:
    """The copies of hyperparameters under their own names, such as those in a training state that has the optimizer."""
    returned = [] if structure.start is None else _flow_of(structure, structure.start)[0]
    found = defaultdict[str, list[int]](list)
    for i, ((names, _), own) in enumerate(zip(named_leaves(carry), returned, strict=True)):
        if own is not None and names[-len(own) :] == own:
            found[joined(own)].append(i)
    return found


def _read(structure: Structure) -> set[str]:
    """The dotted paths of the hyperparameters that a segment computes with, and not only returns, as for a log."""
    return {joined(names) for names in _flow_of(structure, structure.segment)[1]}


def _flow_of(structure: Structure, program: LaneProgram) -> tuple[list[Names | None], set[Names]]:
    """The hyperparameter that each result of a program is a copy of, or None, and those that it computes with."""
    jaxpr, read = program.traced.closed.jaxpr, set[Any]()
    names = [names for names, _ in named_leaves(structure.group.members[0])]  # of the first arguments
    returned = _flow(jaxpr, [*names, *[None] * (len(jaxpr.invars) - len(names))], read)
    return returned, read - {None}


def _flow(jaxpr: Jaxpr, arguments: Sequence[Any], read: set[Any]) -> list[Any]:
    """The argument that each result of a program is a copy of, else None. Adds to `read` what it computes with."""
    origins: dict[Any, Any] = dict(zip(jaxpr.invars, arguments, strict=True))

    def origin(x: Any) -> Any:
        return None if isinstance(x, Literal) else origins.get(x)

    for equation in jaxpr.eqns:
        given, returned = [*map(origin, equation.invars)], [None] * len(equation.outvars)
        if equation.primitive.name in COPIES:
            returned = given
        elif equation.primitive.name in CALLS:  # with its own arguments
            returned = _flow(equation.params["jaxpr"].jaxpr, given, read)
        else:
            read.update(given)
        origins |= zip(equation.outvars, returned, strict=True)
    return [*map(origin, jaxpr.outvars)]


def write_values(lane: Lane, places: Sequence[int], replaced: np.ndarray, leaves: Mapping[str, list[int]]) -> None:
    """Write the hyperparameters of the replaced members into the carry with which a lane begins, for all seeds."""
    rows = np.array([row for row, place in enumerate(places) if place in replaced])
    carry = list(lane.current())
    for path, of_path in leaves.items() if rows.size else ():
        values = np.asarray([lane.members[row].hyperparameters()[path] for row in rows])
        for i in of_path:
            new = values.reshape(-1, *[1] * (carry[i].ndim - 1))
            carry[i] = jnp.asarray(carry[i]).at[rows].set(new.astype(carry[i].dtype))
    lane.carry = carry
