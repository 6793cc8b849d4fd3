"""What the arrays of a template are made from, when a state is converted from optax or to it.

`compat` converts a state. A trace of the conversion says which arrays each array is made from, and so what can be made
from the arrays that there are. The form that the state has in `compat` is paired by name with the one that is given.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import PyTree

from .._plugin.containers import is_chain_state
from .._plugin.messages import listing
from .._plugin.states import one_level, outermost, states_with_names
from .._plugin.trees import Names, join, key_names, named_leaves, shapes_of
from ..authoring import AbstractState, AbstractTransform
from ..compat._plugin import Traced, Whole, whole_from_optax, whole_to_optax
from ..tree import unstack
from ._low_bit import widened
from ._optax_nesting import Pairing
from ._stored import as_stored, cast, is_key, plain

Arrays = Mapping[Names, Any]


class Place(NamedTuple):
    """A state of modulax in a tree: where it is, its conversion to optax, and where its parameters are, if anywhere."""

    where: Names
    params_at: Names | None
    optimizer: AbstractTransform
    outward: Traced

    @property
    def chains(self) -> list[tuple[str, ...]]:
        """The names of the parts of each chain."""
        return [getattr(x, "names", ()) for _, x in states_with_names(self.outward.given.state) if is_chain_state(x)]

    @property
    def names(self) -> dict[Names, Names]:
        """The names in the tree of what is in it of the state and its parameters."""
        return _located(self.outward.given, self.params_at, self.where)


def places_of(owner: str, role: str, tree: PyTree, optimizer: PyTree, params: PyTree) -> list[Place]:
    """Find the states in a tree, with the optimizer and the parameters of each.

    Args:
        owner: the function, for error messages.
        role: which of its arguments the tree is.
        tree: the tree with the states.
        optimizer: the optimizer, or a tree with one around each state; None if they are beside the states.
        params: the parameters; None if they are beside the states.

    Raises:
        ValueError: if there is no state, its optimizer or its parameters are missing, or it is not one of these.
    """
    transforms = outermost(tree if optimizer is None else optimizer, AbstractTransform)
    states, found = outermost(tree, AbstractState), []
    if not states:
        raise ValueError(
            f"`{owner}`: the {role} has no state of modulax. Pass `optimizer.init(params)`, or a tree with it. The "
            f"template is the first argument, and what it is filled from the second."
        )
    for where, state in states:
        around = [x for at, x in transforms if where[: len(at)] == at]
        near = around or [x for at, x in transforms if where[:-1] == at[:-1]]
        beside = _subtree(tree, (*where[:-1], "params")) if where else None
        given = beside if params is None else params
        if len(near) != 1 or given is None:
            call = "template, source, optimizer" + ", params" * (beside is None)
            raise ValueError(
                f"`{owner}` needs the optimizer and the parameters, which say what form a state has in optax. Write "
                f"`checkpoint.{owner}({call})`."
            )
        ours = Whole(shapes_of(given), state)
        _check_state(owner, near[0], ours)
        outward = Traced(functools.partial(whole_to_optax, near[0]), ours)
        found.append(Place(where, None if beside is None else (*where[:-1], "params"), near[0], outward))
    return found


def _check_state(owner: str, optimizer: AbstractTransform, ours: Whole) -> None:
    """Raise an error if a state is not one of an optimizer for some parameters."""
    expected = unstack(widened(jax.eval_shape(optimizer.init, ours.params)))
    other = {*_names(expected)} ^ {*_names(ours.state)}
    if other:
        raise ValueError(
            f"`{owner}` was given a state that is not one of this `{type(optimizer).__name__}` with these parameters: "
            f"only one of the two has {listing(sorted(map(join, other)))}. Pass the optimizer and the parameters for "
            f"which the state is `optimizer.init(params)`."
        )


def _names(tree: PyTree) -> list[Names]:
    return [name for name, _ in named_leaves(tree)]


def _subtree(tree: PyTree, names: Names) -> PyTree:
    """The node of a tree at a place; None if there is none."""
    for name in names:
        tree = next((child for key, child in one_level(tree)[0] if key_names(key) == (name,)), None)
    return tree


@dataclasses.dataclass
class Plan:
    """What the arrays of a template are made from.

    Args:
        sources: the names of arrays in the source by names in the template.
        specs: the shape and dtype of each, and those of what it is made from.
        runs: functions that make arrays by name, from those of the source.
        without: names of the template and of the source that need no counterpart.
    """

    sources: dict[Names, tuple[Names, ...]] = dataclasses.field(default_factory=dict)
    specs: dict[Names, tuple[Any, list[Any]]] = dataclasses.field(default_factory=dict)
    runs: list[Callable[[Arrays], Arrays]] = dataclasses.field(default_factory=list)
    without: tuple[set[Names], set[Names]] = dataclasses.field(default_factory=lambda: (set(), set()))

    @property
    def used(self) -> set[Names]:
        """The names in the source of what anything is made from."""
        return {name for names in self.sources.values() for name in names}

    def add_from_optax(self, place: Place, there: Names, found: Arrays) -> None:
        """Plan what a state of modulax is made from, and the parameters beside it.

        Args:
            place: the state of modulax.
            there: the place of the state of optax.
            found: the arrays on the side of optax.
        """
        theirs = place.outward.made
        conversion = Traced(functools.partial(whole_from_optax, place.optimizer), theirs)
        pairing = Pairing(_names(theirs.state), _below(there, found), place.chains)
        params = _located(theirs, _params_at(there, theirs.params, found), None)
        inputs = {name: x for name, x in params.items() if x in found}
        inputs |= {("state", *name): there + x for name, x in pairing.links.items()}
        lacking = {name for name, x in named_leaves(theirs) if name not in inputs and not _is_free(name, x)}
        own = place.names
        self._add(conversion, inputs, {own[name]: name for name in conversion.depends if name in own})
        self.without[0].update(x for name, x in own.items() if lacking.isdisjoint(conversion.depends.get(name, ())))
        self.without[1].update(inputs.values(), (there + x for x in pairing.spare))

    def add_to_optax(self, place: Place, there: Names, own: Arrays) -> None:
        """Plan what a state of optax is made from, and the parameters beside it.

        Args:
            place: the state of modulax.
            there: the place of the state of optax.
            own: the arrays on the side of optax.
        """
        theirs, depends = place.outward.made, place.outward.depends
        pairing = Pairing(_below(there, own), _names(theirs.state), place.chains)
        params = _located(theirs, _params_at(there, theirs.params, own), None)
        outputs = {x: name for name, x in params.items()}
        outputs |= {there + name: ("state", *x) for name, x in pairing.links.items()}
        self._add(place.outward, place.names, outputs)
        self.without[0].update(x for x, name in outputs.items() if not depends[name])
        free = {name for name, x in named_leaves(theirs) if _is_free(name, x) and "schedule_states" not in name}
        needed = {x for name, sources in depends.items() if name not in free for x in sources}
        self.without[1].update(x for name, x in place.names.items() if name not in needed)

    def add_others(self, places: list[Place], own: Arrays, found: Arrays) -> None:
        """Plan what everything that is not in a state is made from: what has the same name."""
        for name, leaf in own.items():
            if name in found and name not in self.sources and not any(_below(x.where, [name]) for x in places):
                self.sources[name], self.specs[name] = (name,), (leaf, [leaf])
                self.runs.append(lambda arrays, name=name: {name: arrays[name]})

    def _add(self, conversion: Traced, inputs: Mapping[Names, Names], outputs: Mapping[Names, Names]) -> None:
        """Plan to call a conversion.

        Args:
            conversion: the conversion.
            inputs: the names in the source of the leaves of its argument.
            outputs: the leaves of the result by names in the template.
        """
        given, made = dict(named_leaves(conversion.given)), dict(named_leaves(conversion.made))
        for name, x in outputs.items():
            needed = conversion.depends[x]
            if needed and inputs.keys() >= set(needed):
                self.sources[name] = tuple(inputs[y] for y in needed)
                self.specs[name] = made[x], [given[y] for y in needed]

        def run(arrays: Arrays) -> Arrays:
            leaves = [_given(arrays.get(inputs.get(x, ())), spec) for x, spec in given.items()]
            new = dict(named_leaves(conversion.function(jtu.tree_structure(conversion.given).unflatten(leaves))))
            return {name: plain(new[x]) for name, x in outputs.items()}

        self.runs.append(run)


def _located(whole: Whole, params_at: Names | None, state_at: Names | None) -> dict[Names, Names]:
    """The names in a tree of the leaves of parameters and of a state that are at places in it, and not None."""
    places = {"params": params_at, "state": state_at}
    return {name: at + name[1:] for name in _names(whole) if (at := places[name[0]]) is not None}


def _is_free(name: Names, leaf: Any) -> bool:
    """Whether an array of a state needs no counterpart: a step count, or what a step begins with."""
    is_count = name[-1] in ("count", "step") and jnp.issubdtype(leaf.dtype, jnp.integer) and not leaf.shape
    return is_count or not {"skip_state", "schedule_states"}.isdisjoint(name)


def _given(x: Any, spec: Any) -> Any:
    """An array as a conversion takes it; zeros without memory in the place of one that is not there."""
    kind = as_stored(spec)
    x = np.broadcast_to(np.zeros((), kind.dtype), kind.shape) if x is None else cast(x, spec)
    x = x if np.ndim(x) else jnp.asarray(x)
    return jax.random.wrap_key_data(x, impl=jax.random.key_impl(jnp.empty((), spec.dtype))) if is_key(spec) else x


def _below(where: Names, names: Iterable[Names]) -> list[Names]:
    return [name[len(where) :] for name in names if name[: len(where)] == where]


def _params_at(there: Names, params: PyTree, names: Arrays) -> Names | None:
    """Where the parameters are in a tree that holds the state of optax too; None if that is not clear."""
    beside = (*there[:-1], "params")
    if there and _below(beside, names):
        return beside
    ends = _names(params)
    places = dict.fromkeys(name[:i] for name in names for i in range(len(name)))
    found = [x for x in places if x[: len(there)] != there and all(x + end in names for end in ends)]
    return found[0] if len(found) == 1 else None
