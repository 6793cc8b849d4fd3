"""Align two trees with the same leaves: updates with parameters, or with a tree in a state.

`align` is the core: it returns the values of one tree in the leaf order of another, and a function that rebuilds the
first tree from new values. Trees of equal structure are aligned by JAX; all others by path, so that a dict fits a
module with the same names. One tree may be deeper than the other: several arrays below a leaf of `like` are handled as
a list (SM3 keeps several per parameter).

`paired` aligns parameters with updates and checks the shapes, by `check_same_shapes`, or by `_check_examples` for
per-example gradients. `misfit` writes the error message for missing and unknown leaves.
"""

import collections
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import PyTree

from .._support.arithmetic import is_inexact_array
from .._support.checks import listing
from .._support.module import AbstractState
from ._math import trainable
from ._paths import Names, leaf_paths, leaves_by_names, leaves_with_paths, longest_prefix, named_leaves

PYTHON_NUMBERS = (float, complex)


def align(
    tree: PyTree, like: PyTree, owner: str, whose: str = "the parameters that `init` was given"
) -> tuple[list[Any], Callable[[list[Any]], PyTree]]:
    """Return what `tree` holds at each leaf of `like`, and a function that puts new values back into its structure.

    Trees of equal structure are aligned directly. Others are aligned by path, so that other container types and modules
    with other static metadata fit too.

    Args:
        tree: the tree to take apart.
        like: the updates, whose leaves give the order.
        owner: the call to name in the error message.
        whose: what `tree` is, for the error message.

    Raises:
        ValueError: if the trees don't have leaves at the same paths.
    """
    treedef = jtu.tree_structure(like)
    try:  # nearly always right, and many times faster than paths, which are strings
        return treedef.flatten_up_to(tree), treedef.unflatten
    except ValueError:
        found = leaves_by_names(owner, tree, with_none=True)
    wanted = leaves_by_names(owner, like)
    below: dict[Names | None, list[Names]] = collections.defaultdict(list)
    for names in found:
        below[longest_prefix(names, wanted)].append(names)
    lacking = [names for names in below[None] if found[names] is not None]
    unknown = [names for names in wanted if names not in below]
    if lacking or unknown:
        raise ValueError(misfit(owner, whose, lacking, unknown) + _looks_like(like, tree, whose))
    # With None as a leaf, because JAX drops it and the names of `found` include it.
    treedef = jtu.tree_structure(tree, is_leaf=lambda x: x is None)
    return _exchange(found, {names: below[names] for names in wanted}, treedef)


def _exchange(
    leaves: Mapping[Names, Any], below: Mapping[Names, Sequence[Names]], treedef: Any
) -> tuple[list[Any], Callable[[list[Any]], PyTree]]:
    """The value at each leaf of another tree: an array, None, or a list of the arrays below it; and the way back."""

    def rebuild(values: list[Any]) -> PyTree:
        new = dict.fromkeys(leaves)
        for (names, inner), value in zip(below.items(), values, strict=True):
            new.update(zip(inner, [value] if names in leaves else value, strict=True))
        return treedef.unflatten(new.values())

    return [leaves[names] if names in leaves else [leaves[n] for n in inner] for names, inner in below.items()], rebuild


def misfit(owner: str, whose: str, without: list[Names], beyond: list[Names]) -> str:
    """Write the error message for updates with missing or unknown leaves."""
    lacking, unknown = ([".".join(names) for names in leaves] for leaves in (without, beyond))
    parts = [f"lack {listing(lacking)}"] * bool(lacking) + [f"have an unknown {listing(unknown)}"] * bool(unknown)
    hint = " A key that contains a dot is not the path of a nested leaf." * bool({*lacking} & {*unknown})
    return f"`{owner}`: the updates must have the leaves of {whose}; they {' and '.join(parts)}.{hint}"


def _looks_like(updates: PyTree, tree: PyTree, whose: str) -> str:
    """Say what was given in place of gradients or parameters, if a tree shows it."""
    if isinstance(updates, AbstractState):
        return " They look like a state: the order is `update(grads, state, params)` and `step(grads, state, params)`."
    if isinstance(tree, AbstractState) and whose == "the parameters":
        return " The parameters look like a state: the order is `update(grads, state, params)`."
    if hint := getattr(type(tree), "_params_hint", ""):
        return f" The parameters are `{type(tree).__name__}`. {hint}"
    if isinstance(updates, tuple) and len(updates) == 2 and getattr(updates[0], "shape", None) == ():
        return " They look like the result of `jax.value_and_grad`: write `loss, grads = ...`, and give `grads`."
    return ""


def paired(params: PyTree, updates: PyTree, owner: str, *, per_example: tuple[int, ...] = ()) -> PyTree:
    """Return the parameters in the structure of the updates.

    Args:
        params: the parameters.
        updates: the updates.
        owner: the call to name in the error message.
        per_example: the example axes that the updates have in addition to the axes of the parameters, of the same
            length in all leaves.

    Raises:
        ValueError: if paths or shapes differ.
    """
    values, _ = align(params, updates, owner, "the parameters")
    if per_example:
        _check_examples(updates, values, owner, per_example)
    else:
        check_same_shapes(updates, values, owner)
    return jtu.tree_structure(updates).unflatten(values)


def trained(params: PyTree, updates: PyTree, owner: str, *, per_example: tuple[int, ...] = ()) -> tuple[PyTree, PyTree]:
    """Return what is trained of the parameters and of the updates, both in the structure of the updates.

    Args:
        params: the parameters, or the whole model.
        updates: the updates as they were given.
        owner: the call to name in the error message.
        per_example: as in `paired`.

    Raises:
        ValueError: if paths or shapes differ, or if there is an update for what is not trained.
    """
    _refuse_integers(params, updates, owner)  # before `trainable`, which drops integers
    updates = trainable(updates)
    refuse_numbers(params, updates, owner)
    return paired(trainable(params), updates, owner, per_example=per_example), updates


def is_python_number(x: Any) -> bool:
    """Whether it is a Python float or complex number, or the type in its place in a compiled program."""
    return type(x) in PYTHON_NUMBERS or x is float or x is complex


def refuse_numbers(params: PyTree, updates: PyTree, owner: str) -> None:
    """Refuse an update for a Python number among the parameters: only arrays are trained.

    Raises:
        ValueError: if there is one; the message names the path.
    """
    if not any(map(is_python_number, jtu.tree_leaves(params))):
        return
    trained = {names for names, _ in named_leaves(updates)}
    numbers = [".".join(names) for names, x in named_leaves(params) if is_python_number(x) and names in trained]
    if numbers:
        raise ValueError(
            f"`{owner}`: the updates have {listing(numbers)}, which is a Python number in the parameters. Only arrays "
            f"are trained: write `jnp.asarray(...)`, or None for its update, as `equinox.filter_grad` does."
        )


def _refuse_integers(params: PyTree, updates: PyTree, owner: str) -> None:
    """Refuse an integer update for a parameter that is trained, and an update for an integer parameter.

    Args:
        params: the parameters, or the whole model.
        updates: the updates as they were given.
        owner: the call to name in the error message.

    Raises:
        ValueError: if there is one; the message names the path and both dtypes.
    """

    def is_integer(x: Any) -> bool:
        return hasattr(x, "dtype") and hasattr(x, "shape") and not is_inexact_array(x)

    if not any(map(is_integer, jtu.tree_leaves((params, updates)))):
        return
    by_names = dict(named_leaves(params))
    for names, u in named_leaves(updates):
        p = by_names.get(names)
        if p is None:
            continue
        if is_inexact_array(p) and is_integer(u):
            remedy = "Gradients are floating-point or complex: compute them with `jax.grad`, or cast them."
        elif is_integer(p) and is_inexact_array(u):  # JAX's own derivative of an integer has dtype float0
            remedy = "Only floating-point and complex parameters are trained: write None for the update of this one."
        else:
            continue
        raise ValueError(
            f"`{owner}`: at `{'.'.join(names)}` the update has dtype {u.dtype} and the parameter {p.dtype}. {remedy}"
        )


def check_same_shapes(updates: PyTree, values: list[Any], owner: str) -> None:
    """Check that the updates have the shapes of the parameters, or of another tree like them.

    Raises:
        ValueError: if they don't; the message names the path.
    """
    shapes = [(jnp.shape(u), getattr(p, "shape", None)) for u, p in zip(jtu.tree_leaves(updates), values, strict=True)]
    for i, (of_update, of_parameter) in enumerate(shapes):
        if of_update != of_parameter:  # only then, because paths take longer than shapes
            hint = "They must be equal; nothing is broadcast."
            if of_parameter is None:
                hint = "The updates must be a tree like the parameters: `grads = jax.grad(loss)(params)`."
            elif of_update[1:] == of_parameter:
                hint = "Average per-example gradients: `jax.tree.map(lambda g: g.mean(0), grads)`."
            where = f"`{path}`" if (path := leaf_paths(updates)[i]) else "the tree itself"
            raise ValueError(
                f"`{owner}`: at {where} the update has shape {of_update} and the parameter {of_parameter}. {hint}"
            )


def _check_examples(updates: PyTree, values: list[Any], owner: str, axes: tuple[int, ...] = (0,)) -> None:
    """Check that the updates have the shapes of the parameters plus example axes, of the same length in all leaves.

    Raises:
        ValueError: if they don't; the message names the path and shows how to get per-example gradients.
    """
    lengths = None
    for (path, u), value in zip(leaves_with_paths(updates), values, strict=True):
        found, shape = _without_axes(u.shape, axes)
        lengths = found if lengths is None else lengths
        if shape != value.shape or found != lengths or len(found) != len(axes):
            raise ValueError(
                f"`{owner}` needs per-example gradients, with the examples on "
                f"{'a leading axis' if axes == (0,) else f'axes {axes}'}: at `{path}` the update has shape {u.shape} "
                f"and the parameter {value.shape}. {_remedy(axes, value.shape)}"
            )


def _without_axes(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[list[int], tuple[int, ...]]:
    """The lengths of those of the axes that there are, and the shape without them."""
    n = len(shape)
    places = [axis % n for axis in axes if -n <= axis < n]
    return [shape[i] for i in places], tuple(length for i, length in enumerate(shape) if i not in places)


def _remedy(axes: tuple[int, ...], shape: tuple[int, ...]) -> str:
    if axes != (0,):
        return "Without these axes the shapes must be equal, and along them all updates must have the same length."
    needed = ", ".join(map(str, ("n", *shape)))
    return (
        f"The update must have shape ({needed}), with the same n for all. "
        f"`jax.vmap(jax.grad(loss), in_axes=(None, 0))(params, examples)` computes them."
    )
