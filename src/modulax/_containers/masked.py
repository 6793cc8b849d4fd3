"""`Masked` and `Freeze`: transform or freeze some of the parameters only."""

from typing import Any, ClassVar, Literal

import equinox as eqx
import jax.numpy as jnp

from .._protocol.container import AbstractContainer, required_part
from .._protocol.extra_arguments import extra_for
from .._protocol.fields import choice
from .._protocol.leafwise import AbstractLeafwise
from .._protocol.masks import AbstractLabels, as_labels, mask_of, merge, not_in, select
from .._protocol.transform import AbstractTransform, Effect
from .._roles.labels import with_roles_of
from .._support.module import AbstractState, nested
from .._support.types import Params, State, Updates
from ..tree._math import shapes_without, zeros_without


class MaskedState(AbstractState):
    """State of `Masked`: the state of the inner transform, with None for leaves that are masked out."""

    optax_fields = ("inner_state",)

    inner_state: State = nested()


class Masked(AbstractContainer):
    """Applies a transform to the parameters that a mask selects; other updates pass through, or become zero.

        Masked(Centralize(), by_path({"*.bias": False, "*": True}))

    Updates that pass through still change their parameters. To freeze these, use `otherwise="zero"`,
    `selective_transform` or `Freeze`.

    Args:
        inner: the inner transform.
        mask: which leaves it is applied to: a tree of booleans with the structure of the parameters or a prefix of it,
            a function of the parameters that returns such a tree, or patterns: `by_path`, `by_regex`, `by_type`.
        otherwise: whether the updates of the other leaves are returned unchanged, `"keep"`, or as zeros, `"zero"`.
    """

    _keeps = "gradients"

    inner: AbstractTransform = required_part(receives=lambda masked, _, tree: masked.chosen(tree))
    # Static, because the mask decides which arrays the program updates.
    mask: Any = eqx.field(static=True, converter=as_labels)
    otherwise: Literal["keep", "zero"] = choice(("keep", "zero"), "keep")

    is_one_pass: ClassVar[bool] = True

    def init(self, params: Params) -> MaskedState:
        """Return the initial state of the inner transform, for the chosen leaves."""
        self.mask.refuse_unused(self, params)
        chosen = self.chosen(params)
        if self.otherwise == "keep" and self.inner.example_axes and any(chosen) and not all(chosen):
            raise ValueError(
                "`Masked` returns the updates of the other leaves unchanged, but its transform takes per-example "
                'gradients, which are no updates. Write `Masked(..., otherwise="zero")` or `selective_transform`, '
                "which freeze the other leaves."
            )
        return MaskedState(with_roles_of(params, self.inner).init(select(params, chosen)))

    def update(
        self, updates: Updates, state: MaskedState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, MaskedState]:
        """Run one step of the inner transform, on the chosen leaves."""
        whole = shapes_without(self.inner.example_axes, updates)
        chosen, inner = self.chosen(whole), with_roles_of(whole, self.inner)
        inner_params = None if params is None else select(params, chosen)
        # A line search inside gets the gradient of its own parameters, and a loss of these alone.
        inner_extra = extra_for(extra, chosen, updates, params, "Masked.update")
        new, inner_state = inner.update(select(updates, chosen), state.inner_state, inner_params, **inner_extra)
        if self.otherwise == "zero":
            updates = zeros_without(self.inner.example_axes, updates)
        return merge(updates, new, chosen), MaskedState(inner_state)

    def _effect(self, tree: Params) -> Effect:
        return _frozen(self, [not x for x in self.chosen(tree)]) if self.otherwise == "zero" else Effect()

    def chosen(self, tree: Params) -> list[bool]:
        """Return which leaves the inner transform is applied to, in JAX's order.

        Args:
            tree: the parameters, or a tree like them.
        """
        mask: AbstractLabels = self.mask
        return mask_of(self, mask, tree)


def _frozen(transform: AbstractTransform, where: list[bool]) -> Effect:
    """The effect of freezing some leaves."""
    nothing = f"`{type(transform).__name__}` freezes nothing: its mask leaves no parameter frozen."
    return Effect(frozen=where, suspects=() if any(where) or not where else (nothing,))


def selective_transform(optimizer: AbstractTransform, *, freeze_mask: Any) -> Masked:
    """Freeze some parameters and optimize the others; frozen parameters have no optimizer state.

        selective_transform(AdamW(1e-3), freeze_mask=by_path({"embedding*": True, "*": False}))

    Args:
        optimizer: the optimizer of the other parameters.
        freeze_mask: which parameters are frozen; a mask as in `Masked`.

    Returns:
        a `Masked` transform.
    """
    return Masked(optimizer, not_in(freeze_mask), otherwise="zero")


class Freeze(AbstractLeafwise):
    """Freezes parameters: sets their updates to zero. Put it last in a chain.

        Chain(AdamW(1e-3), Freeze(by_path({"embedding*": True, "*": False})))

    The transforms before it still have a state for the frozen parameters. To save that memory, use
    `selective_transform`.

    Args:
        mask: which parameters are frozen: a tree of booleans with the structure of the parameters or a prefix of it, a
            function of the parameters that returns such a tree, or patterns: `by_path`, `by_regex`, `by_type`.
    """

    _keeps = "gradients"

    mask: Any = eqx.field(static=True, converter=as_labels)

    def where(self, tree):
        """Return which leaves are frozen."""
        self.mask.refuse_unused(self, tree)
        return mask_of(self, self.mask, tree)

    def _effect(self, tree):
        return _frozen(self, self.where(tree))

    def update_leaf(self, now, g, s, p):
        """Return zeros."""
        del now, p
        return jnp.zeros_like(g), s
