"""Labels by role: `by_role`, and `decays`, the mask of weight decay."""

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import jax.tree_util as jtu
import numpy as np
from jaxtyping import PyTree

from .._protocol.hyperparameters import AbstractHyperparameters, with_value
from .._protocol.masks import AbstractLabels, Call
from .._protocol.patterns import by_path
from .._support.checks import listing
from ..tree._paths import leaf_paths
from .find import AbstractRoles, Roles, as_roles, model_of, table_of
from .role import AbstractRole

T = TypeVar("T", bound=AbstractHyperparameters)


@dataclasses.dataclass(frozen=True, repr=False)
class _ByRole(AbstractLabels):
    """Labels by the role of each leaf.

    Args:
        groups: pairs of the class of a role and a label, in the order in which they are tried.
        default: label of all other leaves.
        roles: the roles of the leaves.
        name: how it is written in code.
    """

    groups: tuple[tuple[type[AbstractRole], Any], ...]
    default: Any
    roles: AbstractRoles
    name: str

    def __repr__(self) -> str:
        return self.name

    def labels(self, tree: PyTree, *, partial: bool = False) -> list[Any]:
        del partial
        return [
            next((label for kind, label in self.groups if isinstance(role, kind)), self.default)
            for role in self.roles.labels(tree)
        ]

    def refuse_unused(self, owner: object, tree: PyTree) -> None:
        # With absent leaves, as in a group of a `Partition`, the roles may be those of others. A part of a container
        # may have no parameters.
        paths = leaf_paths(tree)
        if not paths or len(leaf_paths(tree, with_none=True)) > len(paths):
            return
        roles = self.roles.labels(tree)
        kind = next((kind for kind, _ in self.groups if not any(isinstance(x, kind) for x in roles)), None)
        if kind is not None:
            found = listing(dict.fromkeys(type(x).__name__ for x in roles))
            raise ValueError(
                f"`{type(owner).__name__}`, `{self!r}`: no parameter has the role `{kind.__name__}`; there are "
                f"{found}. `modulax.roles(model)` shows those of all parameters. Leave this role out, or say which "
                f"parameters have it: `by_role(..., roles={{{paths[-1]!r}: {kind.__name__}()}})`."
            )

    def refuse_unknown(self, tree: PyTree) -> None:
        """Raise an error if parameters of which nothing is known may be those that the first role means."""
        kind = self.groups[0][0]
        roles = zip(leaf_paths(tree), self.roles.labels(tree), strict=True)
        unknown = [path for path, x in roles if not x.kind or not (x.is_known or kind.is_vector)]
        if unknown:
            raise ValueError(
                f"`groups`: no parameter has the role `{kind.__name__}`, and nothing is known of "
                f"{listing(unknown)}. Write a pattern in place of the role: `{{{unknown[0]!r}: ...}}`."
            )

    def bound(self, find: Callable[[Any], Any]) -> AbstractLabels:
        return dataclasses.replace(self, roles=self.roles.bound(find))

    def patterns(self) -> list[tuple[str, Any]]:
        return [(kind.__name__, label) for kind, label in self.groups]

    def winners(self, tree: PyTree) -> list[str | None]:
        kinds = [kind for kind, _ in self.groups]
        roles = self.roles.labels(tree)
        return [next((kind.__name__ for kind in kinds if isinstance(role, kind)), None) for role in roles]

    def plain(self) -> Call:
        return Call("by_role", {"groups": OrderedDict(self.groups), "default": self.default, "roles": self.roles})


def by_role(groups: Mapping[Any, Any], default: Any = False, roles: Any = None) -> AbstractLabels:
    """Select or label parameters by their roles: the labels of a `Partition`, or the mask of a transform.

        labels = by_role({Embedding: "embedding", Head: "head"}, default="rest")
        mask = by_role({Bias: False, Gain: False}, default=True)

    Args:
        groups: mapping from the class of a role to a label; the first match wins.
        default: label of all other parameters.
        roles: roles by pattern, for parameters whose role is not found, or the result of `roles`.

    Raises:
        ValueError: if a key is not the class of a role; in `init` of `Partition`, `Masked` and `Freeze`, if no
            parameter has one of the roles.
    """
    if not isinstance(groups, Mapping) or not all(isinstance(x, type) and issubclass(x, AbstractRole) for x in groups):
        raise ValueError(
            f"`by_role` needs a mapping from roles to labels, `by_role({{Bias: False}}, True)`, got {groups!r}."
        )
    kinds = list(groups)
    for i, kind in enumerate(kinds):
        if earlier := next((x for x in kinds[:i] if issubclass(kind, x)), None):
            raise ValueError(
                f"`by_role`: `{kind.__name__}` can never match: `{earlier.__name__}` comes first and already matches "
                f"all that it would. Write it first: the first role wins."
            )
    written = ", ".join(f"{kind.__name__}: {label!r}" for kind, label in groups.items())
    return _ByRole(tuple(groups.items()), default, as_roles(roles), f"by_role({{{written}}}, {default!r})")


@dataclasses.dataclass(frozen=True, repr=False)
class _First(AbstractLabels):
    """The label of the first key that fits, which is a pattern or the class of a role.

    Args:
        labels_of_keys: the labels of each key, None for leaves that it doesn't fit.
        default: label of the leaves that no key fits.
        keys: how the keys are written in code.
    """

    labels_of_keys: tuple[AbstractLabels, ...]
    default: Any
    keys: str

    def __repr__(self) -> str:
        return self.keys

    def labels(self, tree: PyTree, *, partial: bool = False) -> list[Any]:
        del partial
        columns = [labels.labels(tree, partial=True) for labels in self.labels_of_keys]
        for labels, column in zip(self.labels_of_keys, columns, strict=True):
            if isinstance(labels, _ByRole) and not any(column):
                labels.refuse_unknown(tree)
        rows = zip(*columns, strict=True)
        return [next((label for label in row if label is not None), self.default) for row in rows]

    def plain(self) -> Any:
        # Each key has labels of its own, which have that key alone.
        pairs: list[tuple[Any, Any]] = [labels.groups[0] for labels in self.labels_of_keys]  # pyright: ignore
        same = by_path_or_role(OrderedDict(pairs), self.default)
        # The roles of one model have no such form.
        return Call("by_path_or_role", {"names": OrderedDict(pairs), "default": self.default}) if self == same else self

    def bound(self, find: Callable[[Any], Any]) -> AbstractLabels:
        return dataclasses.replace(self, labels_of_keys=tuple(x.bound(find) for x in self.labels_of_keys))


def by_path_or_role(names: Mapping[Any, str], default: str) -> AbstractLabels:
    """Return labels by keys that are patterns, as in `by_path`, or classes of roles; the first that fits wins.

    Args:
        names: the label of each key.
        default: the label of all other leaves.
    """
    if all(isinstance(key, str) for key in names):
        return by_path(names, default=default)
    labels = [
        by_path({key: name}) if isinstance(key, str) else by_role({key: name}, default=None)
        for key, name in names.items()
    ]
    return _First(tuple(labels), default, f"groups({', '.join(names.values())})")


@dataclasses.dataclass(frozen=True, repr=False)
class _Decays(AbstractLabels):
    """Whether weight decay applies to each leaf, by its role."""

    roles: AbstractRoles

    def __repr__(self) -> str:
        return "decays"

    def labels(self, tree: PyTree, *, partial: bool = False) -> list[bool]:
        del partial
        leaves = jtu.tree_leaves(tree)
        return [role.decays_in(x.ndim) for role, x in zip(self.roles.labels(tree), leaves, strict=True)]

    def plain(self) -> Any:
        return Call("decays", {}) if self == decays else self

    def bound(self, find: Callable[[Any], Any]) -> AbstractLabels:
        return dataclasses.replace(self, roles=self.roles.bound(find))


decays: AbstractLabels = _Decays(as_roles(None))
"""The usual mask of weight decay: matrices and kernels decay; biases, gains, embeddings and positions do not."""


def with_roles(optimizer: T, find: Callable[[Any], Roles]) -> T:
    """Return an optimizer in which every role is that of one model, for trees of parameters without classes.

    Args:
        optimizer: the optimizer.
        find: a function of roles by pattern that returns the roles of the model.
    """
    for path, labels in _labels_in(optimizer, ()):
        if (bound := labels.bound(find)) is not labels:
            optimizer = with_value(optimizer, path, bound)
    return optimizer


def with_roles_of(tree: PyTree, optimizer: T) -> T:
    """Return an optimizer of some leaves of a tree, in which every role is that in the whole tree.

    The axes of a matrix may follow from the shapes of leaves that the optimizer doesn't see, such as its bias.

    Args:
        tree: the whole tree.
        optimizer: the optimizer, or a transform in it.
    """
    if all(np.ndim(x) < 3 for x in jtu.tree_leaves(tree)):
        return optimizer  # paths tell the roles
    return with_roles(optimizer, lambda given: table_of(model_of(tree), given))


def roles_read_by(optimizer: AbstractHyperparameters, tree: PyTree) -> list[AbstractRole]:
    """Return the roles of the leaves of a tree as an optimizer reads them; nothing if it reads none."""
    read = [getattr(labels, "roles", labels) for _, labels in _labels_in(optimizer, ())]
    found = sorted((x for x in read if isinstance(x, AbstractRoles)), key=lambda x: not x.is_given)
    return found[0].labels(tree, partial=True) if found else []


def read_by_role(optimizer: AbstractHyperparameters) -> list[AbstractLabels]:
    """Return the roles in an optimizer, and the masks and labels that tell parameters apart by their roles."""
    found = [labels for _, labels in _labels_in(optimizer, ())]
    return [x for x in found if isinstance(x, AbstractRoles) or type(x).bound is not AbstractLabels.bound]


def taken_as_hidden(optimizer: AbstractHyperparameters, tree: PyTree) -> tuple[int, str] | None:
    """Return what may be the head, if matrices are trained by their roles and no parameter is the head.

    Args:
        optimizer: the optimizer.
        tree: the parameters.

    Returns:
        the index of the last linear layer, and the name of the argument that gives roles.
    """
    found = _labels_in(optimizer, (), but="head_is_like_others")
    read = [(labels, path[-1]) for path, labels in found if isinstance(labels, AbstractRoles)]
    if not read:
        return None
    roles = roles_read_by(optimizer, tree)
    linear = [i for i, role in enumerate(roles) if role.is_linear and role.is_known]
    # `Muon` has two such arguments, and reads the one that was given, else `roles`.
    name = min(read, key=lambda x: (not x[0].is_given, x[1] != "roles"))[1]
    return (linear[-1], name) if linear and all(role.kind != "head" for role in roles) else None


def _labels_in(x: Any, path: tuple[Any, ...], but: str = "") -> Iterator[tuple[tuple[Any, ...], AbstractLabels]]:
    """The labels in the fields of a transform and of all inside it, with their paths.

    Fields whose metadata has `but` are left out.
    """
    if isinstance(x, AbstractLabels):
        yield path, x
    elif isinstance(x, AbstractHyperparameters):
        for field in dataclasses.fields(x):
            if but not in field.metadata:
                yield from _labels_in(getattr(x, field.name), (*path, field.name), but)
    elif isinstance(x, (Mapping, list, tuple)):
        for key, value in x.items() if isinstance(x, Mapping) else enumerate(x):
            yield from _labels_in(value, (*path, key), but)
