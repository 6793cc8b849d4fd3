"""`groups`: parameter groups that differ in numbers of one optimizer."""

import collections
from collections.abc import Mapping
from typing import Any

import jax.tree_util as jtu
import numpy as np

from .._protocol.container import check_optimizer
from .._protocol.hyperparameters import find_all
from .._protocol.transform import AbstractTransform
from .._roles.labels import by_path_or_role
from .._roles.role import AbstractRole
from .._support.keys import is_key_data
from .._support.wrong_calls import explained
from .partition import Partition

_REST = "default"


@explained
def groups(optimizer: AbstractTransform, changes: Mapping[Any, Mapping[str, Any]]) -> Partition:
    """Make parameter groups: one optimizer with different hyperparameters for some parameters, by pattern or by role.

        optimizer = groups(
            AdamW(1e-3),
            {
                "head.*": {"learning_rate": 1e-2, "weight_decay": 0.0},
                "*.bias": {"weight_decay": 0.0},
            },
        )

    These are the `param_groups` of PyTorch. The first pattern that matches a path wins: here, `head.bias` has the
    numbers of `head.*` alone. All other parameters are in the group `default`. The result is a `Partition` whose labels
    are the patterns, so a group is named by its pattern:

        optimizer.replace(**{"head.*.learning_rate": 3e-3})
        optimizer.hyperparameters()["head.*.learning_rate"]

    A key may also be the class of a role, as in `roles`: `{Embedding: {"learning_rate": 0.1}, Bias: {"weight_decay":
    0.0}}`. The group then has the name of the role, `optimizer.replace(**{"embedding.learning_rate": 0.3})`.

    Every group draws its own random numbers, which `NoisySGD` and `DPSGD` need, unless its `key` is among the changes.

    Groups that differ only in numbers share the traced rules of the optimizer, so they cost little compile time. A
    transform that looks at all parameters, such as `ClipByGlobalNorm`, sees one group only; to clip by the norm of all
    gradients, put it before the groups: `Chain(ClipByGlobalNorm(1.0), groups(...))`.

    Args:
        optimizer: the optimizer, with the hyperparameters of the group `default`.
        changes: mapping from pattern, as in `by_path`, or from role, to what differs: a mapping from names, as in
            `replace`, to values. A value may be a schedule. An option such as `mask` or `nesterov` may differ too; the
            group then has a different compiled program.

    Returns:
        a `Partition`.

    Raises:
        ValueError: if a name is not a hyperparameter or an option of the optimizer; in `init` and `update`, if a
            pattern matches no path, or if no parameter has the role and some could not be classified.
    """
    check_optimizer("groups(optimizer, changes)", optimizer, changes)
    if not isinstance(changes, Mapping) or not changes or not all(isinstance(x, Mapping) for x in changes.values()):
        raise ValueError(
            "`groups` needs a mapping from patterns to the hyperparameters that differ, such as "
            f'`groups(AdamW(1e-3), {{"*.bias": {{"weight_decay": 0.0}}}})`, got {changes!r}.'
        )
    if _REST in changes:
        raise ValueError(
            f"`groups`: `{_REST}` is the group of all other parameters. Give their hyperparameters to the optimizer, "
            f"or write the pattern differently: `{_REST}*`."
        )
    names = _names_of(changes)
    for key, named in changes.items():
        find_all(optimizer, named, f"groups, {key!r}: dict")
    transforms = {
        names[key]: _with_own_draws(optimizer.replace(**named), optimizer, n)
        for n, (key, named) in enumerate(changes.items(), 1)
    }
    return Partition({**transforms, _REST: optimizer}, by_path_or_role(names, default=_REST))


def _with_own_draws(changed: AbstractTransform, optimizer: AbstractTransform, n: int) -> AbstractTransform:
    """The optimizer of a group with other random keys, where they are those of the whole optimizer."""
    before = [x for x in jtu.tree_leaves(optimizer) if is_key_data(x)]
    leaves, treedef = jtu.tree_flatten(changed)
    # A key that was given to the group is another object.
    return treedef.unflatten([_another_key(x, n) if any(x is y for y in before) else x for x in leaves])


def _names_of(changes: Mapping[Any, Any]) -> dict[Any, str]:
    """The names of the groups."""
    names = {key: key if isinstance(key, str) else _name(key) for key in changes}
    if twice := [name for name, n in collections.Counter(names.values()).items() if n > 1]:
        raise ValueError(
            f"`groups`: the pattern {twice[0]!r} has the name of the group of `{twice[0].capitalize()}`. Write the "
            f"pattern differently, such as `[{twice[0][0]}]{twice[0][1:]}`."
        )
    return names


def _name(key: Any) -> str:
    if not isinstance(key, type) or not issubclass(key, AbstractRole):
        raise ValueError(f"`groups`: a key must be a pattern or the class of a role, such as `Bias`, got {key!r}.")
    return key.__name__.lower()


def _another_key(x: Any, n: int) -> Any:
    """Raw key data of other draws than those of `x`, for each number `n` above 0 of other ones."""
    shift = np.zeros(x.shape[-1], np.uint32)
    shift[0] = n * 0x9E3779B9 % 2**32
    return x + shift
