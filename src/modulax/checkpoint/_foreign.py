"""Convert optimizer states of optax and PyTorch to states of modulax."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import PyTree

from .._support.checks import listing
from .._support.module import AbstractState
from .._support.types import State
from ..tree._paths import join, named_leaves
from ._convert import load_state_dict
from ._names import Report, stored

_COUNTERS = {"count", "step"}
_OURS = {"skipped"}  # fields that optax does not have; their initial values are right for its states
# States of optax with a count of something other than steps: losses, or mini-batches.
_OTHER_COUNTS = {"plateau_count", "grad_acc"}
# States of optax whose names don't end in `State`.
_STATES = {"ApplyEvery", "WeightDecaySchedule"}


def state_from_optax(template: State, state: PyTree) -> tuple[State, Report]:
    """Convert an optax state to a modulax state, to continue training.

        optimizer = mx.AdamW(1e-3)
        state, report = mx.checkpoint.state_from_optax(optimizer.init(params), optax_state)

    This converts a state. To use an optax transformation in modulax, see `modulax.from_optax`.

    Parts are matched by the names of their fields, in order: `mu` and `nu`, `trace`, `acc_grads` and so on. The step
    count that an optimizer keeps for its schedules is taken from the first part that counts steps. Moments are cast to
    the dtypes of the template.

    Args:
        template: the initial state of the modulax optimizer, `optimizer.init(params)`.
        state: the state of the corresponding optax optimizer.

    Returns:
        The filled state, and a `Report`; check it for leaves that stayed fresh and names that were not used.

    Raises:
        ValueError: if nothing in the optax state matches the template.
    """
    theirs = [(where, fields) for where, fields in _parts(state, (), _is_optax_state) if fields]
    counts = [fields["count"] for _, fields in theirs if "count" in fields and not fields.keys() & _OTHER_COUNTS]
    flat: dict[str, Any] = {}
    for where, fields in _parts(template, (), _is_state):
        wanted = fields.keys() - _COUNTERS - _OURS
        found = next((part for part in theirs if wanted and part[1].keys() - _COUNTERS == wanted), None)
        if found is not None:
            theirs.remove(found)
            for field in fields.keys() & found[1].keys():
                flat |= {join((*where, field, *names)): x for names, x in named_leaves(found[1][field])}
        elif not wanted and counts:
            flat |= {join((*where, field)): counts[0] for field in fields}
        elif "step" in fields and counts:
            flat[join((*where, "step"))] = counts[0]
    for where, fields in theirs:
        for field in fields.keys() - {"count"}:
            flat |= {join(("optax", *where, field, *names)): x for names, x in named_leaves(fields[field])}
    filled, report = load_state_dict(template, _cast(template, flat), strict=False)
    if not report.restored:
        raise ValueError(
            f"`state_from_optax` found nothing in {type(state).__name__} that matches the modulax state, which holds "
            f"{listing(report.fresh)}. Pass `optimizer.init(params)` of the optimizer that corresponds to optax's."
        )
    return filled, report


_TORCH_FIELDS = {
    "mu": ("exp_avg", "grad_avg"),
    "nu": ("exp_avg_sq", "square_avg"),
    "trace": ("momentum_buffer",),
}


def state_from_torch(
    template: State,
    state_dict: Mapping[str, Any],
    names: Mapping[str, Any],
    convert: Callable[[str, np.ndarray], np.ndarray] = lambda path, x: x,
) -> tuple[State, Report]:
    """Convert the state of a PyTorch optimizer to a modulax state: `AdamW`, `Adam`, `SGD` and `RMSprop`.

        state, report = mx.checkpoint.state_from_torch(
            optimizer.init(params), torch_optimizer.state_dict(), {"hidden.weight": 0, "hidden.bias": 1}
        )

    torch's `RMSprop` keeps its momentum without the learning rate, ours with it, so it is multiplied by the rate.

    Args:
        template: the initial state of the modulax optimizer, `optimizer.init(params)`.
        state_dict: the result of `state_dict()` of the torch optimizer, with tensors as NumPy arrays.
        names: the key of each parameter in `state_dict["state"]`, by the path of our parameter.
        convert: function of the path and an array that changes the layout where it differs: Flax's kernels are torch's
            weights transposed, while Equinox's are the same.

    Returns:
        The filled state, and a `Report`.

    Raises:
        ValueError: if `names` contains a key that torch's state doesn't have, or a shape differs from the template.
    """
    theirs = state_dict["state"]
    if lacking := [path for path, key in names.items() if key not in theirs]:
        raise ValueError(
            f"`state_from_torch`: `names` has `{names[lacking[0]]}` for `{lacking[0]}`, but torch's state has "
            f"{listing(theirs)}."
        )
    rates = {key: group["lr"] for group in state_dict.get("param_groups", ()) for key in group["params"]}
    flat: dict[str, Any] = {}
    for where, fields in _parts(template, (), _is_state):
        for field, tree in fields.items():
            for path, leaf in named_leaves(tree):
                name = join((*where, field, *path))
                if field in _COUNTERS:
                    steps = [int(theirs[key]["step"]) for key in names.values() if "step" in theirs[key]]
                    if steps:
                        flat[name] = np.asarray(max(steps), leaf.dtype)
                elif (parameter := ".".join(path)) in names:
                    key = names[parameter]
                    source = next((s for s in _TORCH_FIELDS.get(field, ()) if s in theirs[key]), None)
                    if source is None or theirs[key][source] is None:
                        continue
                    value = convert(parameter, np.asarray(theirs[key][source]))
                    if field == "trace" and "square_avg" in theirs[key]:
                        value = value * np.asarray(-rates[key], value.dtype)
                    flat[name] = value
    return load_state_dict(template, _cast(template, flat), strict=False)


def _cast(template: State, flat: Mapping[str, Any]) -> dict[str, Any]:
    """Cast floats to the dtypes of the template."""
    wanted = stored(template)

    def cast(name: str, x: Any) -> Any:
        is_float = name in wanted and jnp.issubdtype(x.dtype, jnp.inexact)
        return jnp.asarray(x).astype(wanted[name].dtype) if is_float else x

    return {name: cast(name, x) for name, x in flat.items()}


def _is_state(x: Any) -> bool:
    return isinstance(x, AbstractState)


def _is_optax_state(x: Any) -> bool:
    name = type(x).__name__
    return isinstance(x, tuple) and hasattr(x, "_fields") and (name.endswith("State") or name in _STATES)


def _parts(
    node: Any, where: tuple[str, ...], is_state: Callable[[Any], bool]
) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Iterate over the states within a state, outermost first: the location, and the fields that hold arrays."""
    if is_state(node):
        fields = _fields(node)
        inner = {name: x for name, x in fields.items() if any(map(is_state, jtu.tree_leaves(x, is_leaf=is_state)))}
        yield where, {name: x for name, x in fields.items() if name not in inner}
        for name, x in inner.items():
            yield from _parts(x, (*where, name), is_state)
    elif isinstance(node, Mapping):
        for key, x in node.items():
            yield from _parts(x, (*where, str(key)), is_state)
    elif isinstance(node, (tuple, list)):
        for i, x in enumerate(node):
            yield from _parts(x, (*where, str(i)), is_state)


def _fields(state: Any) -> dict[str, Any]:
    """The fields of a state by name."""
    if isinstance(state, tuple):
        return state._asdict()  # pyright: ignore[reportAttributeAccessIssue]
    fields = dataclasses.fields(state)
    return {f.name: getattr(state, f.name) for f in fields if not f.metadata.get("static", False)}
