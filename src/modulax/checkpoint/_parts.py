"""The states of the transforms that an optimizer is made of, each with what it holds itself and where it is."""

import dataclasses
import functools
from collections.abc import Container, Iterator, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import jax.tree_util as jtu
from jax.core import Tracer
from jaxtyping import PyTree

from .._plugin.states import FieldKind, is_quantized, kind_of, one_level, states_with_names
from .._plugin.transforms import keeps_gradients
from .._plugin.trees import Names, key_names, longest_prefix, named_leaves
from ..authoring import AbstractLeafwise, AbstractState, AbstractTransform


class Found(NamedTuple):
    """An array of the old state: its names, its value, and by what it is to be multiplied."""

    names: Names
    value: Any
    factor: Any


class _Box:
    """A leaf that holds a quantized array, which counts as one array here."""

    def __init__(self, content: Any):
        self.content = content


def boxed(tree: PyTree) -> tuple[list[tuple[Names, Any]], Any]:
    """Return the arrays of a tree with their names, quantized ones as one each, and the structure."""
    tree = jtu.tree_map(lambda x: _Box(x) if is_quantized(x) else x, tree, is_leaf=is_quantized)
    leaves = [(names, x.content if isinstance(x, _Box) else x) for names, x in named_leaves(tree)]
    return leaves, jtu.tree_structure(tree)


@dataclasses.dataclass(frozen=True, eq=False)
class StatePart:
    """A transform with its state.

    Attributes:
        transform: the transform, with schedules at their current values.
        state: its state.
        where: the names that lead to the state.
        inputs: what is between the gradients and its input: the classes of the transforms before it, without those
            whose updates are gradients.
        is_auxiliary: whether its updates affect the parameters only through other parts.
        around: the count of the steps of the optimizer around it, if there is one.
        units: the arrays for each parameter, by field and path. In a state of parameters in another form, such as that
            inside `Flatten`, each array is one for itself.
        numbers: the other arrays, which all parameters share.
        settings: names of the hyperparameters in the state.
    """

    transform: AbstractTransform
    state: AbstractState
    where: Names
    inputs: tuple[type, ...]
    is_auxiliary: bool
    around: Found | None
    units: dict[Names, dict[Names, Any]]
    numbers: dict[Names, Any]
    settings: list[Names]

    @property
    def kind(self) -> Any:
        """Equal for two states of which one can go on from the other, unless they hold something in another form."""
        return type(self.transform), type(self.state), self.inputs, self.is_auxiliary

    def weight(self, key: Names) -> Any:
        """The number that makes a declared moment of the state an average of the inputs, or one of several."""
        declared = self.declared[self._moment]["moment"]
        found = declared(self.transform) if callable(declared) else declared
        return found[int(key[-1])] if isinstance(found, tuple) else found

    @functools.cached_property
    def declared(self) -> dict[str, Mapping[str, Any]]:
        """What each field of the state declares."""
        return {field.name: field.metadata for field in dataclasses.fields(self.state)}

    @functools.cached_property
    def _moment(self) -> str:
        """The name of the field that is declared to be a moment of the inputs; nothing if there is none."""
        return next((name for name, declared in self.declared.items() if declared.get("moment") is not None), "")

    def other_form(self, part: "StatePart") -> str | None:
        """The field of a part of the same kind that holds something else there than here, and cannot be converted."""
        return next((x for x in self.declared if self._differs(part, x) and not self.declared[x].get("scale")), None)

    def factor_for(self, part: "StatePart", key: Names) -> Any:
        """By what an array is multiplied for a part of the same kind; None if it becomes nothing."""
        name = key[0]
        if name == self._moment:
            return quotient(self.weight(key), part.weight(key))
        if not self._differs(part, name):
            return 1.0
        return quotient(*(self.declared[name]["scale"](x.transform, self.state) for x in (self, part)))

    def _differs(self, part: "StatePart", name: str) -> bool:
        form = self.declared[name].get("form")
        return form is not None and form(self.transform) != form(part.transform)

    def _shift_for(self, part: "StatePart", name: str) -> int:
        """What is added to a count for a part of the same kind, which may begin at another number."""
        origin = self.declared[name].get("origin")
        return 0 if origin is None else origin(part.transform) - origin(self.transform)

    def moment_of(self, unit: Names) -> Names | None:
        """The field and the path of the moment of the inputs for a parameter, if the state has one."""
        found = [key for key in self.units.get(unit, ()) if key[0] == self._moment]
        return found[0] if len(found) == 1 and not self.is_auxiliary else None

    def numbers_for(self, part: "StatePart") -> dict[Names, Found] | str:
        """The numbers of a part that takes the arrays of this state; or the reason why it has none."""
        if self.kind == part.kind:
            numbers = self._numbers_beside(part)
            if shapes_of(numbers) != shapes_of(part._numbers_beside(self)):
                return "the numbers that all parameters share have another form in the old state"
            shifts = {key: self._shift_for(part, key[0]) for key in numbers}
            return {
                key: Found((*self.where, *key), x + shifts[key] if shifts[key] else x, 1.0)
                for key, x in numbers.items()
            }
        if part.counter is None or list(part.numbers) != [(part.counter,)]:
            return "the state has numbers that a momentum does not tell"
        if self.steps is None:
            return "the old state counts no steps" if part.uses_count else {}
        return {(part.counter,): self.steps}

    def _numbers_beside(self, other: "StatePart") -> dict[Names, Any]:
        """The numbers without those of what an option measures here alone, such as the noise scale of `MultiSteps`."""

        def is_measured(name: str) -> bool:
            return isinstance(getattr(self.state, name), AbstractState) and getattr(other.state, name) is None

        return {key: x for key, x in self.numbers.items() if not is_measured(key[0])}

    @property
    def uses_count(self) -> bool:
        """Whether the rule itself uses the step count, for a correction of bias, and not only its schedules."""
        own, base = type(self.transform), AbstractLeafwise
        return not (issubclass(own, base) and own.prepare is base.prepare and own.survey is base.survey)

    @property
    def counter(self) -> str | None:
        """The name of the field that counts steps, if there is one."""
        by_clock = {"keeper": ("step", "count"), "steps": ("count",)}.get(self.transform.clock, ())
        counts = [name for name, declared in self.declared.items() if declared.get("counts") == "steps"]
        return next((name for name in (*counts, *by_clock) if name in self.declared), None)

    @property
    def steps(self) -> Found | None:
        """The number of steps, by the state itself or else by that of the optimizer around it."""
        if self.counter is None:
            return self.around
        return Found((*self.where, self.counter), getattr(self.state, self.counter), 1.0)

    def arrays(self) -> Iterator[Names]:
        """The fields and paths of everything that can be carried."""
        for arrays in self.units.values():
            yield from arrays
        yield from self.numbers

    def located(self, values: dict[Names, Any]) -> dict[Names, Any]:
        """Values by field and path with the whole names."""
        return {(*self.where, *key): x for key, x in values.items()}


def quotient(x: Any, y: Any) -> Any:
    """The factor between two sums, from the numbers that make them equal; None if only one of them is zero."""
    if isinstance(x, Tracer) or isinstance(y, Tracer):
        is_zero = jnp.equal(y, 0)
        return jnp.where(jnp.equal(x, y), 1, jnp.where(is_zero, 0, x / jnp.where(is_zero, 1, y)))
    return 1.0 if x == y else float(x) / float(y) if x and y else None


def shapes_of(arrays: Mapping[Names, Any]) -> dict[Names, tuple[int, ...]]:
    """The shapes of arrays."""
    return {key: tuple(x.shape) for key, x in arrays.items()}


def parts_of(transform: AbstractTransform, state: Any, params: Container[Names]) -> Iterator[StatePart]:
    """The parts that have a state, the innermost first.

    Args:
        transform: the transform.
        state: its state, without stacks.
        params: the names of the parameters.
    """
    places = {id(x): names for names, x in states_with_names(state)}
    return _parts_of(transform, state, params, places, (), False, None)


def _parts_of(
    transform: AbstractTransform,
    state: Any,
    params: Container[Names],
    places: dict[int, Names],
    inputs: tuple[type, ...],
    is_auxiliary: bool,
    around: Found | None,
) -> Iterator[StatePart]:
    transform = transform.at(state)
    inside = list(transform.each_part(state))
    own = list[StatePart]()
    if isinstance(state, AbstractState) and jtu.tree_leaves(state):
        fields = _own_fields(state, [part.state for part in inside], params)
        own = [StatePart(transform, state, places[id(state)], inputs, is_auxiliary, around, *fields)]
        around = own[0].steps
    inputs = inputs if transform._gives_gradients else (*inputs, type(transform))
    before = inputs
    for part in inside:
        # The parts of a partition are beside each other, those of a chain one after the other.
        at = inputs if part.auxiliary or part.receives is not None else before
        hidden = is_auxiliary or part.auxiliary
        yield from _parts_of(part.transform, part.state, params, places, at, hidden, around)
        if not part.auxiliary:
            before = (*before, *_changing(part.transform))
    yield from own


def _changing(transform: AbstractTransform) -> Iterator[type]:
    """The classes of the transforms inside, and of the transform, whose updates are no gradients."""
    if not keeps_gradients(transform):
        yield type(transform)
    for part in transform.each_part():
        if not part.auxiliary:
            yield from _changing(part.transform)


class _Own(NamedTuple):
    """The arrays that a state holds beside those of the states inside it: by parameter, shared, and hyperparameters."""

    units: dict[Names, dict[Names, Any]]
    numbers: dict[Names, Any]
    settings: list[Names]


def _own_fields(state: AbstractState, inside: list[Any], params: Container[Names]) -> _Own:
    own = _Own({}, {}, [])
    of_parts = {id(x) for x in inside}

    def add_fields(node: AbstractState, names: Names) -> None:
        for field in dataclasses.fields(node):
            if not field.metadata.get("static"):
                add(getattr(node, field.name), (*names, field.name), kind_of(field))

    def add(value: Any, names: Names, kind: FieldKind) -> None:
        nodes = jtu.tree_leaves(value, is_leaf=lambda x: id(x) in of_parts)
        if id(value) in of_parts:
            return
        if isinstance(value, AbstractTransform):
            own.settings.extend((*names, *path) for path, _ in boxed(value)[0])
        elif kind == "states" or any(id(x) in of_parts for x in nodes):
            if isinstance(value, AbstractState):
                add_fields(value, names)
            elif children := one_level(value)[0]:
                for key, child in children:
                    add(child, names + key_names(key), kind)
            elif nodes:
                own.numbers[names] = value
        else:
            for path, x in boxed(value)[0]:
                owner = longest_prefix(path, params) if kind == "params" else None
                arrays = own.numbers if kind == "shared" else own.units.setdefault(path if owner is None else owner, {})
                arrays[(*names, *path)] = x

    add_fields(state, ())
    return own


def states_in(tree: PyTree) -> dict[Names, type]:
    """The classes of the states in a tree, by name."""
    return {names: type(x) for names, x in states_with_names(tree)}
