"""Identity, zero, and a plain function as transforms."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu

from .._protocol.leafwise import AbstractLeafwise
from .._protocol.transform import AbstractStatelessTransform, Effect
from .._support.failures import at_leaf, located
from .._support.tracing import call_user
from .._support.types import Params, Updates
from ..tree._paths import leaf_paths


class Identity(AbstractLeafwise):
    """Returns the updates unchanged, for example as a placeholder in a chain."""

    _keeps = "updates"

    def update_leaf(self, now, g, s, p):
        del now, p
        return g, s


class SetToZero(AbstractLeafwise):
    """Replaces the updates by zeros, so that parameters don't change. To freeze some of them, use `Freeze`."""

    def _effect(self, tree):
        return Effect(frozen=[True] * len(jtu.tree_leaves(tree)))

    def update_leaf(self, now, g, s, p):
        del now, p
        return jnp.zeros_like(g), s


class Stateless(AbstractStatelessTransform):
    """A plain function of updates and parameters as a transform.

        Stateless(lambda updates, params: jax.tree.map(jnp.sign, updates))
        Stateless(lambda g, p: g + 0.1 * p, leafwise=True)

    Args:
        function: function that maps `(updates, params)` to updates; `params` is None if `update` was called without. It
            is traced once.
        leafwise: whether the function takes two arrays and is called for every leaf, instead of for the whole trees.
    """

    function: Callable[[Any, Any], Any] = eqx.field(static=True)
    leafwise: bool = eqx.field(static=True, default=False)

    def apply(self, updates: Updates, params: Params | None, **extra: Any) -> Updates:
        """Calls the function on the updates and the parameters."""
        del extra
        if not self.leafwise:
            return call_user(self.function, updates, params)
        leaves, treedef = jtu.tree_flatten(updates)
        others = [None] * len(leaves) if params is None else treedef.flatten_up_to(params)

        def one(i: int) -> Any:
            with at_leaf(lambda: leaf_paths(updates)[i], leaves[i]), located("Stateless", "function"):
                return call_user(self.function, leaves[i], others[i])

        return treedef.unflatten([one(i) for i in range(len(leaves))])
