"""Different transforms for different leaves."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Any, Literal

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu

from .._checks import listing
from .._leafwise import AbstractLeafwise
from .._module import AbstractState, nested
from .._rules import AbstractRule, as_rule, mask_of, merge, not_in, select
from .._schedule import choice
from .._transform import AbstractTransform
from .._types import Params, State, Updates
from .._wrapper import AbstractWrapper, check_part, extra_for
from ..tree._paths import leaf_paths


class MaskedState(AbstractState):
    """The state of `Masked`: that of the inner transform, with None where a leaf is masked out."""

    inner_state: State = nested()


class Masked(AbstractWrapper):
    """Applies a transform to some leaves; the updates of the others pass through unchanged, or become zero.

    To keep the others from being changed at all, say `otherwise="zero"`, or use `Freeze` or `selective_transform`.

    Args:
        inner: the transform.
        mask: the leaves it is for: a tree of booleans of the parameters' structure or a prefix of it, a function of
            the parameters that returns one, or `by_path({...})`.
        otherwise: what becomes of the updates of the other leaves: `"keep"` or `"zero"`.
    """

    inner: AbstractTransform
    mask: Any = eqx.field(static=True, converter=as_rule)
    otherwise: Literal["keep", "zero"] = choice(("keep", "zero"), "keep")

    def init(self, params: Params) -> MaskedState:
        """The inner transform's state for the chosen leaves."""
        return MaskedState(self.inner.init(select(params, self.chosen(params))))

    def update(
        self, updates: Updates, state: MaskedState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, MaskedState]:
        """One step of the inner transform on the chosen leaves."""
        chosen = self.chosen(updates)
        inner_params = None if params is None else select(params, chosen)
        inner_extra = extra_for(extra, chosen, updates, params, "Masked.update")
        new, inner_state = self.inner.update(select(updates, chosen), state.inner_state, inner_params, **inner_extra)
        if self.otherwise == "zero":
            updates = jtu.tree_map(jnp.zeros_like, updates)
        return merge(updates, new, chosen), MaskedState(inner_state)

    def eval_params(self, state: MaskedState, params: Params) -> Params:
        """Those of the inner transform for the chosen leaves, the others as they are."""
        chosen = self.chosen(params)
        inner = self.inner.at(state.inner_state)
        return merge(params, inner.eval_params(state.inner_state, select(params, chosen)), chosen)

    def chosen(self, tree: Params) -> list[bool]:
        """Which leaves the inner transform is for, in JAX's order."""
        rule: AbstractRule = self.mask
        return mask_of(self, rule, tree)


def selective_transform(optimizer: AbstractTransform, *, freeze_mask: Any) -> Masked:
    """An optimizer for some parameters, while the others are frozen and have no state.

        selective_transform(AdamW(1e-3), freeze_mask=by_path({"embedding*": True, "*": False}))

    Args:
        optimizer: the transform of the parameters that are trained.
        freeze_mask: true where a parameter is frozen; a mask as in `Masked`.
    """
    return Masked(optimizer, not_in(freeze_mask), otherwise="zero")


class Freeze(AbstractLeafwise):
    """Keeps some parameters as they are: their updates become zero. The last part of a chain, or around it all.

        Chain(AdamW(1e-3), Freeze(by_path({"embedding*": True, "*": False})))

    The transforms before it still hold a state for the frozen leaves. To save that memory, use `selective_transform`.

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
        default: the label of leaves that `labels` gives none; by default that is an error.
    """

    transforms: OrderedDict[Hashable, AbstractTransform] = eqx.field(converter=OrderedDict)
    labels: Any = eqx.field(static=True, converter=as_rule)
    default: Hashable = eqx.field(static=True, default=None)

    def __check_init__(self) -> None:
        for label, part in self.transforms.items():
            check_part(f"`Partition`: the transform of {label!r}", part)
        if self.default is not None and self.default not in self.transforms:
            raise ValueError(
                f"`Partition(default={self.default!r})` must be the label of a transform; "
                f"there are {listing(self.transforms)}."
            )

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
        new = updates
        new_states: OrderedDict[Hashable, State] = OrderedDict()
        for label, chosen in self.groups(updates).items():
            group_params = None if params is None else select(params, chosen)
            group_extra = extra_for(extra, chosen, updates, params, "Partition.update")
            group, new_states[label] = self.transforms[label].update(
                select(updates, chosen), state.inner_states[label], group_params, **group_extra
            )
            new = merge(new, group, chosen)
        return new, PartitionState(new_states)

    def at(self, state: PartitionState) -> "Partition":
        """This transform with every schedule replaced by its number for the next step."""
        transforms = {k: t.at(state.inner_states[k]) for k, t in self.transforms.items()}
        return Partition(transforms, self.labels, self.default)

    def eval_params(self, state: PartitionState, params: Params) -> Params:
        """For each leaf that of the transform of its label."""
        transforms = self.at(state).transforms
        out = params
        for label, chosen in self.groups(params).items():
            group = transforms[label].eval_params(state.inner_states[label], select(params, chosen))
            out = merge(out, group, chosen)
        return out

    def groups(self, tree: Params) -> dict[Hashable, list[bool]]:
        """For each label, which leaves bear it, in JAX's order."""
        rule: AbstractRule = self.labels
        labels = rule.labels(tree, partial=self.default is not None)
        labels = [self.default if label is None else label for label in labels]
        for path, label in zip(leaf_paths(tree), labels, strict=True):
            if label not in self.transforms:
                raise ValueError(
                    f"`Partition`: the leaf `{path}` is labelled {label!r}, and there is no transform of that name; "
                    f"there are {listing(self.transforms)}."
                )
        return {known: [label == known for label in labels] for known in self.transforms}
