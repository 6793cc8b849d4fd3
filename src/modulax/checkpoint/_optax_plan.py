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

from .._containers.chain import is_chain_state
from .._protocol.transform import AbstractTransform
from .._support.checks import listing
from ..compat._whole import Traced, Whole, whole_from_optax, whole_to_optax
from ..tree._math import shapes_of
from ..tree._paths import Names, join, key_names, named_leaves
from ..tree._stacks import unstack
from ..tree._state import one_level, states_with_names
from ._low_bit import widened
from ._optax_nesting import Pairing
from ._stored import as_stored, is_key, plain

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
        return [x.names for _, x in states_with_names(self.outward.given.state) if is_chain_state(x)]

    def names(self, ours: Whole) -> list[Names | None]:
        """The names in the tree of the leaves of parameters and of a state; None for those that are not in it."""
        return [*_names_at(self.params_at, ours.params), *_names_at(self.where, ours.state)]


def outermost(tree: PyTree, kind: type) -> list[tuple[Names, Any]]:
    """The outermost nodes of a class in a tree, with their locations."""
    found = jtu.tree_leaves_with_path(tree, is_leaf=lambda x: isinstance(x, kind))
    return [(key_names(path), x) for path, x in found if isinstance(x, kind)]


def places_of(
    owner: str, tree: PyTree, states: list[tuple[Names, Any]], optimizer: PyTree, params: PyTree
) -> list[Place]:
    """Find the optimizer and the parameters of every state.

    Args:
        owner: the function, for error messages.
        tree: the tree with the states.
        states: the states, with their locations.
        optimizer: the optimizer, or a tree with one for each state; None if they are in the tree.
        params: the parameters; None if they are in the tree.

    Raises:
        ValueError: if one of them is missing, it is not clear which optimizer it is, or the state is not one of it.
    """
    known = outermost(tree if optimizer is None else optimizer, AbstractTransform)
    found = []
    for where, state in states:
        shared = [_shared(where, at) for at, _ in known]
        nearest = [x for (_, x), n in zip(known, shared, strict=True) if n == max(shared)]
        at = (*where[:-1], "params") if where else None
        beside = None if at is None else _subtree(tree, at)
        given = beside if params is None else params
        if len(nearest) != 1 or given is None:
            call = "template, source, optimizer" + ", params" * (beside is None)
            raise ValueError(
                f"`{owner}` needs the optimizer and the parameters, which say what form a state has in optax. Write "
                f"`checkpoint.{owner}({call})`."
            )
        transform, shapes = nearest[0], shapes_of(given)
        expected = unstack(widened(jax.eval_shape(transform.init, shapes)))
        other = {name for name, _ in named_leaves(expected)} ^ {name for name, _ in named_leaves(state)}
        if other:
            raise ValueError(
                f"`{owner}` was given a state that is not one of this `{type(transform).__name__}` with these "
                f"parameters: only one of the two has {listing(sorted(map(join, other)))}. Pass the optimizer and the "
                f"parameters for which the state is `optimizer.init(params)`."
            )
        outward = Traced(functools.partial(whole_to_optax, transform), Whole(shapes, state))
        found.append(Place(where, None if beside is None else at, transform, outward))
    return found


def _shared(a: Names, b: Names) -> int:
    """How many names two places have in common, from the root on."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


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

    def add_from_optax(self, place: Place, there: Names, found: Arrays) -> None:
        """Plan what a state of modulax is made from, and the parameters beside it.

        Args:
            place: the state of modulax.
            there: the place of the state of optax.
            found: the arrays on the side of optax.
        """
        theirs = place.outward.made
        conversion = Traced(functools.partial(whole_from_optax, place.optimizer), theirs)
        state = named_leaves(theirs.state)
        pairing = Pairing([name for name, _ in state], _below(there, found), place.chains)
        linked = {name: there + x for name, x in pairing.links.items()}
        at = _params_at(there, theirs.params, found)
        inputs = [name if name in found else None for name in _names_at(at, theirs.params)]
        lacking = {i for i, name in enumerate(inputs) if name is None}
        lacking |= {i for i, x in enumerate(state, len(inputs)) if x[0] not in linked and not _is_free(*x)}
        outputs = {name: i for i, name in enumerate(place.names(conversion.made)) if name is not None}
        own = ((place.where + name, leaf) for name, leaf in named_leaves(place.outward.given.state))
        self.without[0].update(name for name, leaf in own if name not in outputs and _is_free(name, leaf))
        self._add(conversion, [*inputs, *(linked.get(name) for name, _ in state)], outputs)
        self.without[0].update(name for name, i in outputs.items() if not conversion.depends[i] & lacking)
        self.without[1].update(linked.values(), (there + x for x in pairing.spare))

    def add_to_optax(self, place: Place, there: Names, own: Arrays) -> None:
        """Plan what a state of optax is made from, and the parameters beside it.

        Args:
            place: the state of modulax.
            there: the place of the state of optax.
            own: the arrays on the side of optax.
        """
        theirs, depends = place.outward.made, place.outward.depends
        state = named_leaves(theirs.state)
        pairing = Pairing(_below(there, own), [name for name, _ in state], place.chains)
        params = _names_at(_params_at(there, theirs.params, own), theirs.params)
        index = {name: i for i, (name, _) in enumerate(state, len(params))}
        outputs = {name: i for i, name in enumerate(params) if name is not None}
        outputs |= {there + name: index[x] for name, x in pairing.links.items()}
        inputs = place.names(place.outward.given)
        self._add(place.outward, inputs, outputs)
        self.without[0].update(name for name, i in outputs.items() if not depends[i])
        free = {index[name] for name, x in state if _is_free(name, x) and "schedule_states" not in name}
        needed = frozenset().union(*(x for i, x in enumerate(depends) if i not in free))
        self.without[1].update(name for i, name in enumerate(inputs) if name is not None and i not in needed)

    def add_others(self, states: list[tuple[Names, Any]], own: Arrays, found: Arrays) -> None:
        """Plan what everything that is not in a state is made from: what has the same name."""
        for name, leaf in own.items():
            if name in found and name not in self.sources and not any(name[: len(x)] == x for x, _ in states):
                self.sources[name], self.specs[name] = (name,), (leaf, [leaf])
                self.runs.append(lambda arrays, name=name: {name: arrays[name]})

    def _add(self, conversion: Traced, inputs: list[Names | None], outputs: Mapping[Names, int]) -> None:
        """Plan to call a conversion.

        Args:
            conversion: the conversion.
            inputs: the name of each leaf of its argument in the source.
            outputs: the leaves of the result by names in the template.
        """
        specs, made_specs = jtu.tree_leaves(conversion.given), jtu.tree_leaves(conversion.made)
        planned = dict[Names, int]()
        for name, i in outputs.items():
            sources = [(inputs[j], specs[j]) for j in sorted(conversion.depends[i])]
            if sources and all(source is not None for source, _ in sources):
                self.sources[name] = tuple(source for source, _ in sources)
                self.specs[name] = made_specs[i], [spec for _, spec in sources]
                planned[name] = i

        def run(arrays: Arrays) -> Arrays:
            wanted = {name: i for name, i in planned.items() if name in self.sources}
            copied = {name: j for name, i in wanted.items() if (j := conversion.copies[i]) is not None}
            computed = {name: i for name, i in wanted.items() if name not in copied}
            made = {name: arrays[inputs[j]] for name, j in copied.items()}
            if computed:
                needed = frozenset().union(*(conversion.depends[i] for i in computed.values()))
                given = {j: _given(arrays[inputs[j]], specs[j]) for j in needed}
                results = conversion.compute(list(computed.values()), given)
                made |= zip(computed, map(plain, results), strict=True)
            return made

        self.runs.append(run)


def _names_at(where: Names | None, tree: PyTree) -> list[Names | None]:
    """The names of the leaves of a tree that is at a place in another one; None if it is not in it."""
    return [None if where is None else where + name for name, _ in named_leaves(tree)]


def _is_free(name: Names, leaf: Any) -> bool:
    """Whether an array of a state needs no counterpart: a step count, or what a step begins with."""
    is_count = name[-1] in ("count", "step") and jnp.issubdtype(leaf.dtype, jnp.integer) and not leaf.shape
    return is_count or bool({"skip_state", "schedule_states"} & set(name))


def _given(x: Any, spec: Any) -> Any:
    """An array as a conversion takes it."""
    x = cast(x, spec)
    return jax.random.wrap_key_data(x, impl=jax.random.key_impl(jnp.empty((), spec.dtype))) if is_key(spec) else x


def _below(where: Names, names: Iterable[Names]) -> list[Names]:
    return [name[len(where) :] for name in names if name[: len(where)] == where]


def _params_at(there: Names, params: PyTree, names: Arrays) -> Names | None:
    """Where the parameters are in a tree that holds the state of optax too; None if that is not clear."""
    beside = (*there[:-1], "params")
    if there and _below(beside, names):
        return beside
    ends = [name for name, _ in named_leaves(params)]
    n = len(ends[0]) if ends else 0
    places = [name[: len(name) - n] for name in names if name[len(name) - n :] == ends[0]] if ends else []
    found = [x for x in places if x[: len(there)] != there and all(x + end in names for end in ends)]
    return found[0] if len(found) == 1 else None


def cast(x: Any, leaf: Any) -> Any:
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
