"""Different transforms for different leaves."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu

from .._checks import listing
from .._leafwise import AbstractLeafwise
from .._module import AbstractState, nested
from .._rules import AbstractRule, as_rule, mask_of, select
from .._transform import AbstractTransform
from .._types import Params, State, Updates
from ..tree._paths import leaf_paths


class MaskedState(AbstractState):
    """The state of `Masked`: that of the inner transform, with None where a leaf is masked out."""

    inner_state: State = nested()


class Masked(AbstractTransform):
    """Applies a transform to some leaves; the updates of the others pass through unchanged.

    To keep the others from being changed at all, use `Freeze`.

    Args:
        inner: the transform.
        mask: the leaves it is for: a tree of booleans of the parameters' structure or a prefix of it, a function of
            the parameters that returns one, or `by_path({...})`.
    """

    inner: AbstractTransform
    mask: Any = eqx.field(static=True, converter=as_rule)

    def init(self, params: Params) -> MaskedState:
        """The inner transform's state for the chosen leaves."""
        return MaskedState(self.inner.init(select(params, self.chosen(params))))

    def update(
        self, updates: Updates, state: MaskedState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, MaskedState]:
        """One step of the inner transform on the chosen leaves."""
        chosen = self.chosen(updates)
        inner_params = None if params is None else select(params, chosen)
        new, inner_state = self.inner.update(select(updates, chosen), state.inner_state, inner_params, **extra)
        leaves, treedef = jtu.tree_flatten(updates)
        remaining = iter(jtu.tree_leaves(new))
        merged = [next(remaining) if c else u for u, c in zip(leaves, chosen, strict=True)]
        return treedef.unflatten(merged), MaskedState(inner_state)

    def at(self, state: MaskedState) -> "Masked":
        """This transform with every schedule replaced by its number for the next step."""
        return Masked(self.inner.at(state.inner_state), self.mask)

    def chosen(self, tree: Params) -> list[bool]:
        """Which leaves the inner transform is for, in JAX's order."""
        rule: AbstractRule = self.mask
        return mask_of(self, rule, tree)


class Freeze(AbstractLeafwise):
    """Keeps some parameters as they are: their updates become zero. The last part of a chain, or around it all.

        Chain(AdamW(1e-3), Freeze(by_path({"embedding*": True, "*": False})))

    The transforms before it still hold a state for the frozen leaves. To save that memory, use `Partition` with
    `SetToZero()` for them.

    Args:
        mask: the leaves that are frozen: a tree of booleans of the parameters' structure or a prefix of it, a function
            of the parameters that returns one, or `by_path({...})`.
    """

    mask: Any = eqx.field(static=True, converter=as_rule)

    def where(self, tree):
        """The frozen leaves."""
        return mask_of(self, self.mask, tree)

    def update_leaf(self, now, g, s, p):
        """Zeros."""
        del now, p
        return jnp.zeros_like(g), s


class PartitionState(AbstractState):
    """The states of a partition's transforms, by label."""

    inner_states: OrderedDict[Hashable, State] = nested()


class Partition(AbstractTransform):
    """Applies to each leaf the transform of its label.

        Partition(
            {"decay": AdamW(1e-3), "no_decay": Adam(1e-3)},
            by_path({"*.bias": "no_decay", "*norm*": "no_decay", "*": "decay"}),
        )

    Each transform sees only its own leaves and holds a state for them alone.

    Args:
        transforms: the transform of each label.
        labels: a tree of labels of the parameters' structure or a prefix of it, a function of the parameters that
            returns one, or `by_path({...})`.
    """

    transforms: OrderedDict[Hashable, AbstractTransform] = eqx.field(converter=OrderedDict)
    labels: Any = eqx.field(static=True, converter=as_rule)

    def init(self, params: Params) -> PartitionState:
        """Every transform's state for its own leaves."""
        groups = self.groups(params)
        return PartitionState(
            OrderedDict((label, t.init(select(params, groups[label]))) for label, t in self.transforms.items())
        )

    def update(
        self, updates: Updates, state: PartitionState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, PartitionState]:
        """One step of every transform on its own leaves."""
        leaves, treedef = jtu.tree_flatten(updates)
        new_states: OrderedDict[Hashable, State] = OrderedDict()
        for label, chosen in self.groups(updates).items():
            group_params = None if params is None else select(params, chosen)
            group, new_states[label] = self.transforms[label].update(
                select(updates, chosen), state.inner_states[label], group_params, **extra
            )
            remaining = iter(jtu.tree_leaves(group))
            leaves = [next(remaining) if c else u for u, c in zip(leaves, chosen, strict=True)]
        return treedef.unflatten(leaves), PartitionState(new_states)

    def at(self, state: PartitionState) -> "Partition":
        """This transform with every schedule replaced by its number for the next step."""
        return Partition({k: t.at(state.inner_states[k]) for k, t in self.transforms.items()}, self.labels)

    def groups(self, tree: Params) -> dict[Hashable, list[bool]]:
        """For each label, which leaves bear it, in JAX's order."""
        rule: AbstractRule = self.labels
        labels = rule.labels(tree)
        for path, label in zip(leaf_paths(tree), labels, strict=True):
            if label not in self.transforms:
                raise ValueError(
                    f"`Partition`: the leaf `{path}` is labelled {label!r}, and there is no transform of that name; "
                    f"there are {listing(self.transforms)}."
                )
        return {known: [label == known for label in labels] for known in self.transforms}
