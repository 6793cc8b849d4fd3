"""Align two trees with the same leaves: updates with parameters, or with a tree in a state.

`align` is the core: it returns the values of one tree in the leaf order of another, and a function that rebuilds the
first tree from new values. Trees of equal structure are aligned by JAX; all others by path, so that a dict fits a
module with the same names. One tree may be deeper than the other: several arrays below a leaf of `like` are handled as
a list (SM3 keeps several per parameter).

`paired` aligns parameters with updates and checks the shapes, by `check_same_shapes`, or by `check_examples` for
per-example gradients. `misfit` writes the error message for missing and unknown leaves.
"""

from collections.abc import Callable
from typing import Any

import jax.tree_util as jtu
from jaxtyping import PyTree

from .._support.arithmetic import is_inexact_array
from .._support.checks import listing
from .._support.module import AbstractState
from ._paths import Names, leaves_by_names, leaves_with_paths, longest_prefix, named_leaves

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
    try:
        return treedef.flatten_up_to(tree), treedef.unflatten
    except ValueError:
        pass
    found = leaves_by_names(owner, tree, with_none=True)
    below: dict[Names, list[tuple[int, Any, bool]]] = {names: [] for names in leaves_by_names(owner, like)}
    lacking = []
    for i, (names, leaf) in enumerate(found.items()):
        prefix = longest_prefix(names, below)
        if prefix is not None:
            below[prefix].append((i, leaf, prefix == names))
        elif leaf is not None:
            lacking.append(".".join(names))
    unknown = [".".join(names) for names, those in below.items() if not those]
    if lacking or unknown:
        raise ValueError(misfit(owner, whose, lacking, unknown) + _looks_like(like, tree, whose))
    own_treedef = jtu.tree_structure(tree, is_leaf=lambda x: x is None)

    def value(those: list[tuple[int, Any, bool]]) -> Any:
        """The value at a leaf of `like`: an array, None, or a list of the arrays below it."""
        return those[0][1] if those[0][2] else [leaf for _, leaf, _ in those]

    def rebuild(values: list[Any]) -> PyTree:
        """Put new values, one per leaf of `like`, into the structure of `tree`."""
        leaves: list[Any] = [None] * len(found)
        for those, new in zip(below.values(), values, strict=True):
            parts = [new] if those[0][2] else new
            for (i, _, _), part in zip(those, parts, strict=True):
                leaves[i] = part
        return own_treedef.unflatten(leaves)

    return [value(those) for those in below.values()], rebuild


def misfit(owner: str, whose: str, lacking: list[str], unknown: list[str]) -> str:
    """Write the error message for updates with missing or unknown leaves."""
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
        check_examples(updates, values, owner, per_example)
    else:
        check_same_shapes(updates, values, owner)
    return jtu.tree_structure(updates).unflatten(values)


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
    found = [".".join(names) for names, x in named_leaves(params) if is_python_number(x) and names in trained]
    if found:
        raise ValueError(
            f"`{owner}`: the updates have {listing(found)}, which is a Python number in the parameters. Only arrays "
            f"are trained: write `jnp.asarray(...)`, or None for its update, as `equinox.filter_grad` does."
        )


def refuse_integers(params: PyTree, updates: PyTree, owner: str) -> None:
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
    for (path, u), value in zip(leaves_with_paths(updates), values, strict=True):
        shape = getattr(value, "shape", None)
        if shape != u.shape:
            raise ValueError(
                f"`{owner}`: at `{path}` the update has shape {u.shape} and the parameter {shape}. "
                "They must be equal; nothing is broadcast."
            )


def check_examples(updates: PyTree, values: list[Any], owner: str, axes: tuple[int, ...] = (0,)) -> None:
    """Check that the updates have the shapes of the parameters plus example axes, of the same length in all leaves.

    Raises:
        ValueError: if they don't; the message names the path and shows how to get per-example gradients.
    """
    lengths = None
    for (path, u), value in zip(leaves_with_paths(updates), values, strict=True):
        at = [axis % u.ndim for axis in axes if -u.ndim <= axis < u.ndim]
        rest = tuple(length for i, length in enumerate(u.shape) if i not in at)
        found = [u.shape[i] for i in at]
        lengths = found if lengths is None else lengths
        if rest != value.shape or found != lengths or len(at) != len(axes):
            needed = ", ".join(map(str, ("n", *value.shape)))
            if axes != (0,):
                raise ValueError(
                    f"`{owner}` needs per-example gradients, with the examples on axes {axes}: at `{path}` the update "
                    f"has shape {u.shape} and the parameter {value.shape}. Without these axes the shapes must be "
                    f"equal, and along them all updates must have the same length."
                )
            raise ValueError(
                f"`{owner}` needs per-example gradients, with the examples on a leading axis: at `{path}` the update "
                f"has shape {u.shape} and the parameter {value.shape}. The update must have shape ({needed}), with "
                f"the same n for all. `jax.vmap(jax.grad(loss), in_axes=(None, 0))(params, examples)` computes them."
            )
