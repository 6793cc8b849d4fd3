"""`Chain`: composition of transforms.

The parts are named, and the state is a mapping by these names. `_runs` splits the parts into runs: consecutive rules on
one array (`AbstractLeafwise`) form one run, which `run_rules` applies as one function of an array. A rule with a
`survey` begins a new run, because it needs the updates of all leaves first. Any other part, such as an optimizer or a
container, is a run of its own.
"""

import itertools
import re
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, overload

import equinox as eqx

from .._protocol.container import AbstractContainer, check_part, required_part
from .._protocol.leafwise import AbstractLeafwise, reads_all_updates, run_rules
from .._protocol.transform import AbstractTransform, EmptyState, is_empty
from .._support.checks import listing
from .._support.module import AbstractState, nested
from .._support.printing import format_call
from .._support.types import Params, State, Updates
from .._support.wrong_calls import inside


class ChainState(AbstractState):
    """State of `Chain`: the states of the parts, by name. Read one with `state[0]` or `state["clip"]`.

    Stateless parts are left out, so that inserting one doesn't change the structure of checkpoints.
    """

    _operators: ClassVar[tuple[str, ...]] = (*AbstractState._operators, "__getitem__")

    # `parts` is a plain dict, which JAX flattens in C++ and sorts; the names are in the order of the chain.
    names: tuple[str, ...] = eqx.field(static=True)
    parts: dict[str, State] = nested()

    def __init__(self, states: Mapping[str, State]):
        # A part without a state takes no place, so that adding one leaves checkpoints as they are.
        self.parts = {name: state for name, state in states.items() if not is_empty(state)}
        self.names = tuple(states)

    def __getitem__(self, key: int | str) -> State:
        name = key if isinstance(key, str) else self.names[key]
        if name not in self.names:
            raise KeyError(f"This state of a chain has no part {name!r}; it has {listing(self.names)}.")
        return self.parts.get(name, EmptyState())

    def __len__(self) -> int:
        return len(self.names)

    def _ipython_key_completions_(self) -> list[str]:
        return list(self.names)


def is_chain_state(x: object) -> bool:
    """Whether this is the state of a chain."""
    return isinstance(x, ChainState)


class Chain(AbstractContainer):
    """Composes transforms: applies each one to the updates that the previous one returned.

    Each part has a name, given or derived from its class (`scale_by_adam`, for a second one `scale_by_adam_2`). States
    are stored under these names, so that inserting a part does not rename the others:

        Chain(ClipByGlobalNorm(1.0), AdamW(1e-3))
        Chain(clip=ClipByGlobalNorm(1.0), adam=ScaleByAdam(), rate=ScaleByLearningRate(1e-3))

    A chain behaves like a sequence of its parts (`chain[0]`, `chain[1:]`, `len`, `list`) and like a mapping
    (`chain["clip"]`, `"clip" in chain`). Consecutive rules on one array (`AbstractLeafwise`) run as one function of an
    array. An empty chain is the identity.

    Args:
        parts: transforms, named after their classes.
        named: transforms by name, applied after the others.

    Raises:
        ValueError: if a part is not a transform.
    """

    _keeps = "gradients"
    is_arraywise: ClassVar[bool] = True
    is_one_pass: ClassVar[bool] = True
    _operators: ClassVar[tuple[str, ...]] = (*AbstractContainer._operators, "__getitem__")

    # Not a dict: JAX sorts the keys of one when it unflattens it, and the chain would run in another order.
    parts: OrderedDict[str, AbstractTransform] = required_part(state="parts")

    def __init__(self, *parts: AbstractTransform, **named: AbstractTransform):
        found: OrderedDict[str, AbstractTransform] = OrderedDict()
        for i, x in enumerate(parts):
            check_part(f"`Chain`: argument {i}", x)
            found[_free_name(x, {*found, *named})] = x
        self.parts = OrderedDict({**found, **named})

    def init(self, params: Params) -> ChainState:
        """Return the initial states of all parts."""
        return ChainState({name: part.init(params) for name, part in self.parts.items()})

    def update(
        self, updates: Updates, state: ChainState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, ChainState]:
        """Run one step of every part in turn."""
        if not isinstance(state, ChainState) or state.names != tuple(self.parts):
            contents = listing(state.names) if isinstance(state, ChainState) else f"`{type(state).__name__}`"
            raise ValueError(
                f"`Chain.update` was given the state of another transform: it holds {contents}, and the parts are "
                f"{listing(self.parts)}. Call `init` of this chain."
            )
        new: dict[str, State] = {}
        for run in _runs(self.parts):
            names = list(run)
            if isinstance(run[names[0]], AbstractLeafwise):
                rules = [rule for rule in run.values() if isinstance(rule, AbstractLeafwise)]
                updates, states = run_rules(rules, updates, [state[name] for name in names], params, extra)
                new.update(zip(names, states, strict=True))
            else:
                (name,) = names
                updates, new[name] = run[name].update(updates, state[name], params, **extra)
        return updates, ChainState(new)

    @overload
    def __getitem__(self, key: int | str) -> Any: ...
    @overload
    def __getitem__(self, key: slice) -> "Chain": ...
    def __getitem__(self, key: int | str | slice) -> Any:
        if isinstance(key, slice):
            # By name, so that a part keeps the name that its state has.
            return Chain(**dict(list(self.parts.items())[key]))
        if isinstance(key, str) and key not in self.parts:
            found = f" {where}" if (where := inside(self, key)) else ""
            raise KeyError(f"`Chain` has no part {key!r}; it has {listing(self.parts)}.{found}")
        return self.parts[key] if isinstance(key, str) else list(self.parts.values())[key]

    def _ipython_key_completions_(self) -> list[str]:
        return list(self.parts)

    def __contains__(self, name: object) -> bool:
        return name in self.parts

    def __len__(self) -> int:
        return len(self.parts)

    def __repr__(self) -> str:
        return format_call("Chain", self.parts)


def is_chain(x: object) -> bool:
    """Whether this is a chain."""
    return isinstance(x, Chain)


def _free_name(part: object, taken: set[str]) -> str:
    """The class name of a part in snake case (`scale_by_rms`, `adamw`), with a number from the second one on."""
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z].)", "_", type(part).__name__).lower()
    numbered = (f"{name}_{i}" for i in itertools.count(2))
    return name if name not in taken else next(n for n in numbered if n not in taken)


def _runs(parts: Mapping[str, AbstractTransform]) -> Iterator[dict[str, AbstractTransform]]:
    """Split the parts into runs: consecutive rules on one array together, every other part on its own."""
    run: dict[str, AbstractTransform] = {}
    for name, transform in parts.items():
        # A `survey` needs the updates of all leaves, so that the rules before it have to be complete.
        joins = isinstance(transform, AbstractLeafwise) and not reads_all_updates(transform)
        if run and not (joins and all(isinstance(x, AbstractLeafwise) for x in run.values())):
            yield run
            run = {}
        run[name] = transform
    if run:
        yield run
