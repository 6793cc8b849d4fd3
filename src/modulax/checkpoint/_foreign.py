"""States of optax and of torch, carried over into states of modulax."""

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


def from_optax(template: State, state: PyTree) -> tuple[State, Report]:
    """A state of optax as one of ours, so that training goes on where it was.

        optimizer = mx.AdamW(1e-3)
        state, report = mx.checkpoint.from_optax(optimizer.init(params), optax_state)

    What is converted is the state. The optimizers of optax themselves stand among ours by `modulax.from_optax`.

    Parts are paired by the names of their fields, in their order: `mu` and `nu`, `trace`, `acc_grads` and so on. The
    steps that an optimizer counts for its schedules are taken from the first part that counts. Moments take the dtype
    that they have here.

    Args:
        template: what `init` of the optimizer of modulax returns.
        state: the state of its counterpart in optax.

    Returns:
        the filled state, and a `Report`; read in it what was kept and what found no place.
    """
    theirs = [(where, fields) for where, fields in _parts(state, (), _is_optax_state) if fields]
    counts = [fields["count"] for _, fields in theirs if "count" in fields]
    flat: dict[str, Any] = {}
    for where, fields in _parts(template, (), _is_state):
        wanted = fields.keys() - _COUNTERS
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
            f"`from_optax` found nothing in {type(state).__name__} that the state of modulax has: it holds "
            f"{listing(report.kept)}. Give `optimizer.init(params)` of the optimizer that corresponds to optax's."
        )
    return filled, report


_TORCH_FIELDS = {
    "mu": ("exp_avg", "grad_avg"),
    "nu": ("exp_avg_sq", "square_avg"),
    "trace": ("momentum_buffer",),
}


def from_torch(
    template: State,
    state_dict: Mapping[str, Any],
    names: Mapping[str, Any],
    convert: Callable[[str, np.ndarray], np.ndarray] = lambda path, x: x,
) -> tuple[State, Report]:
    """The state of a torch optimizer as one of ours: `AdamW`, `Adam`, `SGD` and `RMSprop`.

        state, report = mx.checkpoint.from_torch(
            optimizer.init(params), torch_optimizer.state_dict(), {"hidden.weight": 0, "hidden.bias": 1}
        )

    torch's `RMSprop` keeps its momentum without the learning rate, which ours has in it; it is multiplied in.

    Args:
        template: what `init` of the optimizer of modulax returns.
        state_dict: what `state_dict()` of torch's optimizer returned, its tensors as NumPy arrays.
        names: for the path of each of our parameters the key of torch's, as in `state_dict["state"]`.
        convert: called with the path and every array, where the layout differs: Flax's kernels are torch's weights
            transposed, Equinox's are the same.

    Returns:
        the filled state, and a `Report`.
    """
    theirs = state_dict["state"]
    if lacking := [path for path, key in names.items() if key not in theirs]:
        raise ValueError(
            f"`from_torch`: `names` wants `{names[lacking[0]]}` for `{lacking[0]}`, and torch's state has "
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
    """The floats in the dtype that the template has for them."""
    wanted = stored(template)

    def cast(name: str, x: Any) -> Any:
        is_float = name in wanted and jnp.issubdtype(x.dtype, jnp.inexact)
        return jnp.asarray(x).astype(wanted[name].dtype) if is_float else x

    return {name: cast(name, x) for name, x in flat.items()}


def _is_state(x: Any) -> bool:
    return isinstance(x, AbstractState)


def _is_optax_state(x: Any) -> bool:
    return isinstance(x, tuple) and hasattr(x, "_fields") and type(x).__name__.endswith("State")


def _parts(
    node: Any, where: tuple[str, ...], is_state: Callable[[Any], bool]
) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """The states that a state is made of, outermost first: where each is, and those of its fields that hold arrays."""
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
    if isinstance(state, tuple):
        return state._asdict()  # pyright: ignore[reportAttributeAccessIssue]
    fields = dataclasses.fields(state)
    return {f.name: getattr(state, f.name) for f in fields if not f.metadata.get("static", False)}
