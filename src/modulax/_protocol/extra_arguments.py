"""The extra arguments of `update`: which ones a step reads, and those of a part that gets other parameters.

A step reads those in `needs`, and those of functions of the user. `extra_for` and `extra_inside` convert them for a
part that receives only some of the leaves, or the parameters in another form.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax.tree_util as jtu
from jaxtyping import PyTree

from .._support.arithmetic import is_inexact_array
from .._support.types import ARRAY_TYPES, Params, Updates
from .._support.wrong_calls import meant_by
from ..tree._align import paired
from ..tree._math import trainable
from ..tree._names import Path, as_argument, joined
from ..tree._paths import key_names
from .hyperparameters import AbstractHyperparameters, numeric_fields
from .masks import merge, select

RATES = ("learning_rate", "adam_learning_rate")

# A loop may pass these whatever the optimizer is.
USUAL = ("value", "grad", "value_fn", "obj_fn", "grad_fn")
# Extra arguments that are always trees like the parameters, even if their leaves have other shapes.
TREES = ("grad", "previous_grad")

# Extra arguments that are functions of the parameters.
FUNCTIONS = ("value_fn", "obj_fn", "grad_fn")
_LIBRARY = __name__.partition(".")[0]


def extra_arguments(module: Any) -> list[str]:
    """The extra arguments that a transform, a measure or a stateful schedule requires."""
    return [argument for argument in module.needs if argument not in ("params", "real")]


def everything_in(transform: Any) -> Iterator[Any]:
    """Yield a transform and all transforms inside it, the outermost first."""
    yield transform
    for part in transform.each_part():
        yield from everything_in(part.transform)


def required_arguments(optimizer: Any) -> list[str]:
    """The extra arguments in `needs` of the transforms, stateful schedules and measures of an optimizer."""
    parts = (x for x in _inside(optimizer) if isinstance(x, AbstractHyperparameters) and hasattr(x, "needs"))
    return list(dict.fromkeys(name for part in parts for name in extra_arguments(part)))


def optional_arguments(optimizer: Any, given: Mapping[str, Any]) -> tuple[set[str], bool]:
    """The other arguments that functions and classes of the user read by name, and whether one of them takes any.

    Args:
        optimizer: the optimizer.
        given: the extra arguments of the step: a function among them, such as `value_fn`, may take others.
    """
    names, takes_any = set[str](), False
    for x in (*_functions(optimizer), *given.values()):
        try:
            parameters = inspect.signature(x).parameters.values()
        except (TypeError, ValueError):  # no function, or one in C
            continue
        names.update(p.name for p in parameters)
        takes_any = takes_any or any(p.kind is p.VAR_KEYWORD for p in parameters)
    return names, takes_any


def hyperparameters_among(optimizer: Any, extra: Mapping[str, Any]) -> dict[str, list[Path]]:
    """The extra arguments that nothing reads and that are called as hyperparameters, with the paths of these."""
    if not (words := _read_by_nothing(optimizer, extra)):
        return {}
    paths = [path for path, _ in numeric_fields(optimizer)]
    names = {path[-1] for path in paths}
    usual = names.intersection((*RATES, "weight_decay"))
    meant = ((x, meant_by(x, usual | names.intersection([x]))) for x in words)
    return {x: [path for path in paths if path[-1] in found] for x, found in meant if found}


def _read_by_nothing(optimizer: Any, extra: Mapping[str, Any]) -> list[str]:
    if extra.keys() <= {*USUAL}:
        return []
    named, takes_any = optional_arguments(optimizer, extra)
    known = {*USUAL, *required_arguments(optimizer), *named}
    return [] if takes_any else [x for x in extra if x not in known]


def refuse_hyperparameters(owner: str, optimizer: Any, extra: Mapping[str, Any]) -> None:
    """Raise an error for the name of a hyperparameter among the extra arguments, unless something may read it.

    Args:
        owner: the method that was called.
        optimizer: the optimizer.
        extra: the extra arguments of the step.
    """
    if "donate" in extra:
        remedy = "write `step(grads, state, params, donate=True)`, or `jax.jit(..., donate_argnums=...)` around it"
        raise ValueError(f"`{owner}(donate=...)`: `donate` is an argument of `step`; {remedy}.")
    for word, found in hyperparameters_among(optimizer, extra).items():
        changed = as_argument(found[0][-1] if len(found) == 1 else joined(found[0]))
        of_nnx = [jtu.keystr(keys) for keys, _ in jtu.tree_leaves_with_path(optimizer) if key_names(keys) in found]
        hint = f" (in NNX, `optimizer.hyperparameters{of_nnx[0]}[...] = ...`)" if of_nnx else ""
        raise ValueError(
            f"`{owner}({word}=...)`: nothing reads an argument `{word}`; a hyperparameter is changed by "
            f"`optimizer = optimizer.replace({changed})`{hint}."
        )


def _functions(optimizer: Any) -> Iterator[Any]:
    """What an optimizer holds that is not of this library and may be called, and the method `update` of it."""
    for x in _inside(optimizer):
        module = (x if inspect.isroutine(x) else type(x)).__module__ or ""
        if module.partition(".")[0] != _LIBRARY and not isinstance(x, ARRAY_TYPES):
            yield from (x, getattr(x, "update", None))


def _inside(optimizer: Any) -> Iterator[Any]:
    """The transforms, schedules, measures, functions and other objects that an optimizer is made of."""
    waiting: list[Any] = list(everything_in(optimizer))
    for x in waiting:  # which grows
        if isinstance(x, AbstractHyperparameters):
            waiting += [getattr(x, field.name) for field in dataclasses.fields(x)]
        elif isinstance(x, Mapping):
            waiting += x.values()
        elif type(x) in (tuple, list):
            waiting += x
        if not isinstance(x, type):  # a dtype
            yield x


def extra_inside(
    extra: Mapping[str, Any],
    updates: Updates,
    down: Callable[[PyTree], PyTree],
    up: Callable[[PyTree], PyTree],
) -> dict[str, Any]:
    """Convert the extra arguments for an inner transform that receives the parameters in another form.

    Trees with the structure and shapes of the updates are converted under any name, and functions of the parameters,
    such as `value_fn`, are called with the parameters in the outer form.

    Args:
        extra: the extra arguments of the container.
        updates: the updates of the container.
        down: maps a tree like the parameters to the inner form.
        up: maps parameters in the inner form back, for the functions of the caller.
    """

    def of_inner(function: Callable[..., Any], is_gradient: bool) -> Callable[..., Any]:
        # `wraps` keeps the signature, from which line searches read the names of further arguments.
        @functools.wraps(function, updated=())
        def call(params: Params, *args: Any, **kwargs: Any) -> Any:
            out = function(up(params), *args, **kwargs)
            return down(out) if is_gradient else out

        return call

    inner = dict(extra)
    for name, value in extra.items():
        if value is not None and (name in TREES or _is_like(value, updates)):
            inner[name] = down(value)
    for name in FUNCTIONS:
        if inner.get(name) is not None:
            inner[name] = of_inner(inner[name], name == "grad_fn")
    return inner


def _is_like(tree: PyTree, updates: Updates) -> bool:
    """Whether it is a tree of inexact arrays with the structure and shapes of the updates; never for a single array."""
    leaves, treedef = jtu.tree_flatten(updates)
    return (
        # If the parameters are one array, any extra array of its shape would match, such as the loss beside a scalar.
        not jtu.treedef_is_leaf(treedef)
        and jtu.tree_structure(tree) == treedef
        and all(is_inexact_array(x) and x.shape == u.shape for x, u in zip(jtu.tree_leaves(tree), leaves, strict=True))
    )


def extra_for(
    extra: Mapping[str, Any], chosen: Sequence[bool], updates: Updates, params: Params | None, owner: str
) -> dict[str, Any]:
    """Convert the extra arguments for a part that receives the chosen leaves only.

    Functions of the parameters are called with all of them, the other leaves at their current values.
    """

    def down(tree: PyTree) -> PyTree:
        # Paired by path, because an extra tree may be a whole model, or have other containers.
        return select(paired(trainable(tree), updates, owner), chosen)

    def up(part: PyTree) -> PyTree:
        return part if params is None else merge(params, part, chosen)

    return extra_inside(extra, updates, down, up)
