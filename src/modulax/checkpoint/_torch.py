"""Convert optimizer states of PyTorch to states of modulax."""

import collections
import dataclasses
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from .. import AbstractRole
from .._plugin.arrays import State
from .._plugin.labels import model_of, roles_of
from .._plugin.messages import listing
from .._plugin.states import sections, states_with_names
from .._plugin.trees import Names, split
from ..tree import unstack
from ._convert import load_state_dict
from ._low_bit import widened
from ._names import Report, stored

_TORCH_FIELDS = {
    "mu": ("exp_avg", "grad_avg"),
    "nu": ("exp_avg_sq", "square_avg"),
    "trace": ("momentum_buffer",),
}


def state_from_torch(
    template: State,
    state_dict: Mapping[str, Any],
    names: Mapping[str, Any],
    convert: Callable[[str, np.ndarray], np.ndarray | None] = lambda path, x: None,
) -> tuple[State, Report]:
    """Convert the state of a PyTorch optimizer to a modulax state: `AdamW`, `Adam`, `SGD` and `RMSprop`.

        state, report = mx.checkpoint.state_from_torch(
            optimizer.init(params), torch_optimizer.state_dict(), {"hidden.weight": 0, "hidden.bias": 1}
        )

    torch stores weights as `(outputs, inputs, *window)`, as Equinox does. Flax's kernels are transposed, and those of
    attention split by heads. The layout of an array follows from its role in the model, see `modulax.roles`, or else
    from its shape.

    torch's `RMSprop` stores its momentum without the learning rate, ours includes it, so it is multiplied by the rate.

    Args:
        template: the initial state of the modulax optimizer, `optimizer.init(params)`.
        state_dict: the result of `state_dict()` of the torch optimizer, with tensors as NumPy arrays.
        names: the key of each parameter in `state_dict["state"]`, by the path of our parameter.
        convert: function of the path and an array of torch that returns the array in our layout, for layouts that can't
            be found: `lambda path, x: x.T if path == "w" else None`. None selects the layout that is found.

    Returns:
        The filled state, and a `Report`.

    Raises:
        ValueError: if `names` contains a key that torch's state doesn't have, a shape differs from the template, or
            nothing tells the layout of an array, such as a square matrix in a dict.
    """
    theirs = _states_by_path(state_dict, names)
    rates = {key: group["lr"] for group in state_dict.get("param_groups", ()) for key in group["params"]}
    moments = {path: _moments(x, rates.get(names[path])) for path, x in theirs.items()}
    steps = [int(x["step"]) for x in theirs.values() if "step" in x]
    form = unstack(widened(template))
    wanted, flat = stored(form), {}
    places = [place for place in _places(form) if place.field in moments.get(place.path, {})]
    roles, unclear = _roles(form, places), collections.defaultdict[Any, dict[str, None]](dict)
    for place in places:
        (name, _, path, _), x = place, moments[place.path][place.field]
        shape, y = wanted[name].shape, convert(path, x)
        y = _in_our_layout(x, shape, *roles[place]) if y is None else y
        if y is not None and y.shape == shape:
            flat[name] = _cast(y, wanted[name].dtype)
        elif x.size == math.prod(shape):
            unclear[x.shape, shape][path] = None
        else:
            said = f"`{path}` has shape {shape}, and `{names[path]}` in torch has {x.shape}. Check `names`"
            raise ValueError(f"`state_from_torch`: {said}.")
    _refuse_unclear(unclear)
    for name in _step_counts(form, {place.state for place in places}) if steps else ():
        # torch counts for each parameter, and one that had no gradient at first is behind.
        flat[name] = np.asarray(max(steps), wanted[name].dtype)
    return load_state_dict(template, flat, strict=False)


def _states_by_path(state_dict: Mapping[str, Any], names: Mapping[str, Any]) -> dict[str, Any]:
    """The states of torch by the paths of our parameters."""
    theirs = state_dict["state"]
    for path, key in names.items():
        if key not in theirs:
            raise ValueError(
                f"`state_from_torch`: `names` has `{key}` for `{path}`, but torch's state has {listing(theirs)}."
            )
    return {path: theirs[key] for path, key in names.items()}


def _refuse_unclear(unclear: Mapping[Any, Collection[str]]) -> None:
    """Raise an error if there are paths of arrays whose layout nothing tells, by their shapes in torch and here."""
    for (there, shape), paths in unclear.items():
        flax = "x.T" if len(there) == 2 else "np.moveaxis(x, (0, 1), (-1, -2))"
        flax += "" if len(there) == len(shape) else f".reshape{shape}"
        raise ValueError(
            f"`state_from_torch`: nothing tells the layout of {listing(paths)}, of shape {there} in torch, and {shape} "
            f"here. For kernels of Flax, write `convert=lambda path, x: {flax} if path in {list(paths)} else None`, "
            f"and `x` in the place of `{flax}` for weights as in torch."
        )


def _step_counts(form: State, filled: set[Names]) -> Iterator[str]:
    """The names of the counts that torch's count is: those beside moments, and the clocks of schedules.

    An optimizer has a clock beside the states inside it, and a factor that follows a schedule holds nothing else.
    Other states that count, such as that of `ReduceOnPlateau`, have nothing in torch.

    Args:
        form: the template.
        filled: the names of the states that torch has moments for.
    """
    kinds = {section.names: section.kind for section in sections(form)}
    states = dict(states_with_names(form))
    places = list(_places(form))
    sizes = collections.Counter(x.state for x in places)
    untouched = {x.state for x in places if kinds[*x.state, x.field] == "params"} - filled

    def is_clock(state: Names) -> bool:
        is_around_filled, is_around_others = (any(x[: len(state)] == state for x in xs) for xs in (filled, untouched))
        return (*state, "schedule_states") in kinds and (is_around_filled or not is_around_others)

    for name, field, _, state in places if filled else ():
        counts = next((x.metadata.get("counts") for x in dataclasses.fields(states[state]) if x.name == field), None)
        is_alone = counts == "steps" and sizes[state] == 1
        if (field == "count" and state in filled) or is_alone or (field in ("step", "count") and is_clock(state)):
            yield name


def _roles(form: State, places: list["_Place"]) -> dict["_Place", tuple[AbstractRole, bool]]:
    """The role of the parameter of each array, and whether it tells the layout."""
    states, found = dict(states_with_names(form)), {}
    for state, field in {(place.state, place.field) for place in places}:
        model = model_of(getattr(states[state], field))
        for names, role in roles_of(model, ()):
            # torch keeps the inputs of a transposed convolution first, and its window is the other way round.
            layer = f"{names[:-1]} {type(model.nodes.get(names[:-1])).__name__}"
            found[state, field, ".".join(names)] = role, role.is_known and "transpose" not in layer.lower()
    return {x: found[x.state, x.field, x.path] for x in places}


def _in_our_layout(x: np.ndarray, shape: tuple[int, ...], role: AbstractRole, is_known: bool) -> np.ndarray | None:
    """An array of torch, whose axes are outputs, inputs and window, as our one of this shape; None if it is unclear."""
    n = len(role.batch)
    if x.ndim < n + 2 or not role.decays_in(x.ndim):
        return x.reshape(shape) if role.is_vector and x.size == math.prod(shape) else x
    flax = np.moveaxis(x, (n, n + 1), (-1, -2))
    if role.fan_in and is_known:
        return _by_role(x, flax, shape, role)
    if shape not in (x.shape, flax.shape):
        return x
    is_clear = x.shape != flax.shape and x.shape[n] != x.shape[n + 1]
    return (x if x.shape == shape else flax) if is_clear else None


def _by_role(x: np.ndarray, flax: np.ndarray, shape: tuple[int, ...], role: AbstractRole) -> np.ndarray:
    """An array of torch in the layout of its layer, in which several axes may be the outputs."""
    n = len(role.batch)
    is_split = len(shape) > x.ndim == n + 2 and math.prod(shape[i] for i in role.fan_out) == x.shape[n]
    y = x if role.fan_out[0] < role.fan_in[0] else flax
    return y.reshape(shape) if is_split and x.size == math.prod(shape) else y


def _cast(x: Any, dtype: Any) -> Any:
    """Cast an array of floats."""
    return jnp.asarray(x).astype(dtype) if jnp.issubdtype(x.dtype, jnp.inexact) else x


class _Place(NamedTuple):
    """An array of the template: its name, the field that holds it, its path there, and where the state is."""

    name: str
    field: str
    path: str
    state: Names


def _places(template: State) -> Iterator[_Place]:
    fields = {section.names for section in sections(template) if section.kind != "states"}
    for name in stored(template):
        keys = split(name)
        stop = next((stop for stop in range(len(keys)) if keys[: stop + 1] in fields), None)
        if stop is not None:
            yield _Place(name, keys[stop], ".".join(keys[stop + 1 :]), keys[:stop])


def _moments(theirs: Mapping[str, Any], rate: Any) -> dict[str, np.ndarray]:
    """The arrays of a parameter in torch, by the names of our fields."""
    moments = {}
    for field, names in _TORCH_FIELDS.items():
        source = next((name for name in names if name in theirs), None)
        if source is not None and theirs[source] is not None:
            moments[field] = np.asarray(theirs[source])
    if "trace" in moments and "square_avg" in theirs:  # `RMSprop` keeps its momentum without the learning rate
        if rate is None:
            raise ValueError(
                "`state_from_torch` multiplies the momentum of `RMSprop` by the learning rate, and `state_dict` has no "
                "`param_groups`. Give the whole result of `optimizer.state_dict()`."
            )
        moments["trace"] = moments["trace"] * np.asarray(-rate, moments["trace"].dtype)
    return moments
