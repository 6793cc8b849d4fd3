"""The fast and the slow parameters of `Lookahead` in one tree."""

from typing import Any, Self

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import PyTree

from .._support.module import AbstractModule


class LookaheadParams(AbstractModule):
    """A pair of the fast and the slow parameters of `Lookahead`, for training loops that keep both themselves.

        params = LookaheadParams.init_synced(params)
        state = optimizer.init(params)
        params, state = optimizer.step(jax.grad(loss)(params.fast), state, params)

    Gradients are taken at the fast parameters; the slow ones are the evaluation parameters. Only `Lookahead` itself
    accepts such a pair. With plain parameters, it keeps the slow ones in its state and works inside any container.

    Args:
        fast: the parameters that are trained.
        slow: the evaluation parameters.
    """

    fast: PyTree
    slow: PyTree

    @classmethod
    def init_synced(cls, params: PyTree) -> Self:
        """Return a pair of equal parameters that share no array, so that both can be donated.

        Args:
            params: the parameters, or the whole model.
        """
        slow = jtu.tree_map(lambda x: jnp.array(x, copy=True) if eqx.is_array(x) else x, params)
        return cls(fast=params, slow=slow)


def is_pair(params: Any) -> bool:
    """Whether these are `LookaheadParams`."""
    return isinstance(params, LookaheadParams)


def both(params: Any) -> tuple[PyTree, PyTree]:
    """Return the fast and the slow parameters of a `LookaheadParams`."""
    return params.fast, params.slow


def single(params: Any) -> Any:
    """Return the slow parameters of a `LookaheadParams`; any other parameters are returned unchanged."""
    return params.slow if isinstance(params, LookaheadParams) else params
