"""Two sets of parameters in one tree, for the one transform that trains both."""

from typing import Any, Self

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import PyTree

from .._support.module import AbstractModule


class LookaheadParams(AbstractModule):
    """The fast and the slow parameters of `Lookahead`, for programs that hold both themselves.

        params = LookaheadParams.init_synced(params)
        state = optimizer.init(params)
        params, state = optimizer.step(jax.grad(loss)(params.fast), state, params)

    Gradients are taken at the fast ones; the slow ones are for evaluation. Only a `Lookahead` itself takes such a pair.
    Given plain parameters it keeps the slow ones in its state, and works inside of any container.

    Args:
        fast: the parameters that are trained.
        slow: the parameters to evaluate.
    """

    fast: PyTree
    slow: PyTree

    @classmethod
    def init_synced(cls, params: PyTree) -> Self:
        """A pair of equal parameters, which share no array: both can be donated.

        Args:
            params: the parameters, or the whole model.
        """
        slow = jtu.tree_map(lambda x: jnp.array(x, copy=True) if eqx.is_array(x) else x, params)
        return cls(fast=params, slow=slow)


def single(params: Any) -> Any:
    """The parameters to evaluate of a pair; of anything else, the parameters themselves."""
    return params.slow if isinstance(params, LookaheadParams) else params
