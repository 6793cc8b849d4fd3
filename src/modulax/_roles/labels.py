"""Labels by role: `by_role`, and `decays`, the mask of weight decay."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from jaxtyping import PyTree

from .._protocol.hyperparameters import AbstractHyperparameters, with_value
from .._protocol.masks import AbstractLabels
from .find import AbstractRoles, Roles, as_roles
from .role import Attention, Convolution, Head, Hidden, LoRA, Role

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

    groups: tuple[tuple[type[Role], Any], ...]
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

    def bound(self, find: Callable[[Any], Any]) -> AbstractLabels:
        return dataclasses.replace(self, roles=self.roles.bound(find))


def by_role(groups: Mapping[type[Role], Any], default: Any = False, roles: Any = None) -> AbstractLabels:
    """Select or label parameters by what they are: the labels of a `Partition`, or the mask of a transform.

        labels = by_role({Embedding: "embedding", Head: "head"}, default="rest")
        mask = by_role({Bias: False, Gain: False}, default=True)

    Args:
        groups: mapping from the class of a role to a label; the first that fits wins.
        default: label of all other parameters.
        roles: roles by pattern, for what is not found, or the result of `roles`.

    Raises:
        ValueError: if a key is not the class of a role.
    """
    if not isinstance(groups, Mapping) or not all(isinstance(x, type) and issubclass(x, Role) for x in groups):
        raise ValueError(
            f"`by_role` needs a mapping from roles to labels, `by_role({{Bias: False}}, True)`, got {groups!r}."
        )
    written = ", ".join(f"{kind.__name__}: {label!r}" for kind, label in groups.items())
    return _ByRole(tuple(groups.items()), default, as_roles(roles), f"by_role({{{written}}}, {default!r})")


_DECAYING = (Hidden, Head, Convolution, Attention, LoRA)

decays: AbstractLabels = _ByRole(tuple((kind, True) for kind in _DECAYING), False, as_roles(None), "decays")
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


def roles_read_by(optimizer: AbstractHyperparameters, tree: PyTree) -> list[Role]:
    """Return the roles of the leaves of a tree as an optimizer reads them; nothing if it reads none."""
    for _, labels in _labels_in(optimizer, ()):
        found = labels.roles if isinstance(labels, _ByRole) else labels
        if isinstance(found, AbstractRoles):
            return found.labels(tree, partial=True)
    return []


def _labels_in(x: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], AbstractLabels]]:
    """The labels in the fields of a transform and of all inside it, with their paths."""
    if isinstance(x, AbstractLabels):
        yield path, x
    elif isinstance(x, AbstractHyperparameters):
        for field in dataclasses.fields(x):
            yield from _labels_in(getattr(x, field.name), (*path, field.name))
    elif isinstance(x, (Mapping, list, tuple)):
        for key, value in x.items() if isinstance(x, Mapping) else enumerate(x):
            yield from _labels_in(value, (*path, key))
