"""A transform for some leaves only."""

from typing import Any, Literal

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import PyTree

from .._protocol.container import AbstractContainer, extra_for, part
from .._protocol.fields import choice, static
from .._protocol.leafwise import AbstractLeafwise
from .._protocol.masks import AbstractRule, as_rule, mask_of, merge, not_in, select
from .._protocol.transform import AbstractTransform, Part
from .._support.module import AbstractState, nested
from .._support.types import Params, State, Updates


class MaskedState(AbstractState):
    """The state of `Masked`: that of the inner transform, with None where a leaf is masked out."""

    inner_state: State = nested()


class Masked(AbstractContainer):
    """Applies a transform to some leaves; the updates of the others pass through unchanged, or become zero.

    To keep the others from being changed at all, say `otherwise="zero"`, or use `Freeze` or `selective_transform`.

    Args:
        inner: the transform.
        mask: the leaves it is for: a tree of booleans of the parameters' structure or a prefix of it, a function of
            the parameters that returns one, or `by_path({...})`.
        otherwise: what becomes of the updates of the other leaves: `"keep"` or `"zero"`.
    """

    inner: AbstractTransform = part()
    mask: Any = static(converter=as_rule)
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

    def seen_by(self, part: Part, tree: PyTree) -> list[bool]:
        """Return the chosen leaves."""
        del part
        return self.chosen(tree)

    def freezes(self, tree: Params) -> list[bool] | None:
        """Return the other leaves, if their updates become zero."""
        return [not chosen for chosen in self.chosen(tree)] if self.otherwise == "zero" else None

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

    def freezes(self, tree):
        """Return the frozen leaves."""
        return self.where(tree)

    def update_leaf(self, now, g, s, p):
        """Return zeros."""
        del now, p
        return jnp.zeros_like(g), s
