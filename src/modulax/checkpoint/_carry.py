"""From the state of one optimizer into that of another one, in the middle of a run."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import PyTree

from .._protocol.transform import AbstractTransform
from .._support.module import AbstractState
from .._support.types import Params, State
from ..tree._math import trainable
from ..tree._paths import Names, join, key_names, named_leaves
from ..tree._stacks import stack_like, unstack
from ..tree._state import section_kind


@dataclasses.dataclass(frozen=True)
class Carried:
    """What `carry` took into the state of another optimizer.

    Attributes:
        carried: for every carried array of the new state, the array of the old one.
        factors: the factors by which arrays were multiplied, where the two optimizers scale them differently.
        fresh: arrays of the new state that begin anew.
        unused: arrays of the old state without a counterpart.
    """

    carried: dict[str, str]
    factors: dict[str, float]
    fresh: tuple[str, ...]
    unused: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"carried {len(self.carried)}, fresh {len(self.fresh)}, unused {len(self.unused)}"]
        for name, source in self.carried.items():
            factor = f" times {self.factors[name]:.4g}" if name in self.factors else ""
            lines.append(f"  carried {source} -> {name}{factor}")
        return "\n".join([*lines, *(f"  fresh   {x}" for x in self.fresh), *(f"  unused  {x}" for x in self.unused)])


@dataclasses.dataclass(frozen=True)
class _Part:
    """A transform, what its state holds itself, and where that is."""

    transform: AbstractTransform
    state: AbstractState
    where: Names

    def fields(self) -> dict[str, dict[Names, Any]]:
        """The arrays of the state by field, and by the names within the field, without those of states inside it."""
        fields = {field: getattr(self.state, field.name) for field in dataclasses.fields(self.state)}
        return {field.name: dict(named_leaves(x)) for field, x in fields.items() if section_kind(field, x) != "states"}

    def momentum(self) -> tuple[str, float] | None:
        """The field that holds a moment of the gradients, and its size under a constant gradient of 1; or None."""
        names = {field.name for field in dataclasses.fields(self.state)}
        if "trace" in names:
            return "trace", 1 / (1 - float(getattr(self.transform, "decay", 0.0)))
        return ("mu", 1.0) if "mu" in names else None


def carry(
    optimizer: AbstractTransform, params: Params, old_optimizer: AbstractTransform, old_state: State
) -> tuple[Any, Carried]:
    r"""Return the initial state of an optimizer with the moments of another one, to change it in the middle of a run.

        state, report = checkpoint.carry(mx.SGD(0.1, momentum=0.9), params, mx.AdamW(1e-3), state)

    The states of two transforms of one class are carried with their step counts, such as those of `ScaleByAdam` in
    `Adam` and in `AdamW`. The momentum is carried between different classes too: the average of the gradients that Adam
    keeps, $m_t = (1 - \beta) \sum_k \beta^{t-k} g_k$, becomes the sum $v_t = \sum_k \mu^{t-k} g_k$ of SGD by
    $v = m / (1 - \mu)$, and the sum becomes the average of Lion or Muon by $m = (1 - \mu) v$. With equal decay rates
    this is the momentum that the new optimizer would have after the same gradients.

    A momentum is not carried into a transform that divides it by a second moment of its own, such as Adam after SGD:
    the second moment begins at zero, so that both start together with their bias corrections. Nor is one that could
    come from several states. The step counts that schedules follow begin at 0; to go on, set them:
    `tree.set(state, step=old_state.step)`.

    Args:
        optimizer: the new optimizer.
        params: the parameters, or the whole model.
        old_optimizer: the old optimizer.
        old_state: its state.

    Returns:
        the state, and a report of what was carried, by name.

    Raises:
        ValueError: if `old_state` is not a state of modulax.
    """
    old = unstack(old_state)
    if not isinstance(old, AbstractState):
        raise ValueError(
            f"`carry` was given a `{type(old_state).__name__}`, which is no state of `{type(old_optimizer).__name__}`. "
            f"Write `carry(optimizer, params, old_optimizer, old_state)`."
        )
    start = optimizer.init(params)
    new = unstack(start)
    given = dict(named_leaves(trainable(params)))
    sources = list(_parts(old_optimizer, old, old))
    values: dict[Names, tuple[Names, Any, float]] = {}
    for part in _parts(optimizer, new, new):
        _fill(part, sources, given, values)
    leaves = [values[names][1].astype(x.dtype) if names in values else x for names, x in named_leaves(new)]
    carried = {join(name): join(source) for name, (source, _, _) in values.items()}
    taken = {source for source, _, _ in values.values()}
    report = Carried(
        carried,
        {join(name): factor for name, (_, _, factor) in values.items() if factor != 1},
        tuple(join(names) for names, _ in named_leaves(new) if names not in values),
        tuple(join(names) for names, _ in named_leaves(old) if names not in taken),
    )
    return stack_like(jtu.tree_structure(new).unflatten(leaves), start), report


def _parts(transform: AbstractTransform, state: Any, whole: PyTree) -> Iterator[_Part]:
    """The transforms with a state, the innermost first."""
    for part in transform.each_part(state):
        yield from _parts(part.transform, part.state, whole)
    if isinstance(state, AbstractState) and jtu.tree_leaves(state):
        found = jtu.tree_leaves_with_path(whole, is_leaf=lambda x: x is state)
        yield _Part(transform.at(state), state, next(key_names(path) for path, x in found if x is state))


def _fill(
    part: _Part, sources: list[_Part], params: Mapping[Names, Any], values: dict[Names, tuple[Names, Any, float]]
) -> None:
    """Add what the state of a part gets from the old states: by name, the old name, the value and the factor."""
    alike = [x for x in sources if type(x.transform) is type(part.transform) and type(x.state) is type(part.state)]
    used = set[int]()
    for field, arrays in part.fields().items():
        for path, x in arrays.items():
            if path not in params or np.shape(x) != np.shape(params[path]):
                continue
            if found := _only(alike, field, path, x):
                used.add(id(found[0]))
                values[(*part.where, field, *path)] = (found[1], found[2], 1.0)
            elif not alike and (found := _momentum(part, field, path, x, sources)):
                values[(*part.where, field, *path)] = found
    if len(used) == 1:  # counts and other shared numbers belong to one old state
        (source,) = (x for x in alike if id(x) in used)
        for field, arrays in part.fields().items():
            for path, x in arrays.items():
                name, old = (*part.where, field, *path), source.fields()[field].get(path)
                if name not in values and old is not None and np.shape(old) == np.shape(x) and path not in params:
                    values[name] = ((*source.where, field, *path), old, 1.0)


def _only(parts: list[_Part], field: str, path: Names, x: Any) -> tuple[_Part, Names, Any] | None:
    """The array of the only part that has one in this field for this parameter."""
    found = [(part, part.fields()[field].get(path)) for part in parts if field in part.fields()]
    found = [(part, old) for part, old in found if old is not None and np.shape(old) == np.shape(x)]
    return (found[0][0], (*found[0][0].where, field, *path), found[0][1]) if len(found) == 1 else None


def _momentum(part: _Part, field: str, path: Names, x: Any, sources: list[_Part]) -> tuple[Names, Any, float] | None:
    """The momentum of another class for this field, and its factor."""
    own = part.momentum()
    if own is None or own[0] != field or "nu" in part.fields():
        return None
    candidates = [(source, source.momentum()) for source in sources]
    found = [(s, m, _only([s], m[0], path, x)) for s, m in candidates if m is not None]
    found = [(s, m, hit) for s, m, hit in found if hit is not None]
    if len(found) != 1:
        return None
    ((_, (_, size), hit),) = found
    factor = own[1] / size
    return hit[1], jnp.asarray(hit[2]) * jnp.asarray(factor, hit[2].dtype), factor
