"""`NamedChain`: a chain whose state is a dict by name in optax."""

from typing import Any

from ..authoring import AbstractContainer, Chain, required_part
from ..states import ChainState


class NamedChain(AbstractContainer):
    """A chain of which optax keeps the states in a dict.

    Args:
        inner: the chain.
    """

    inner: Chain = required_part(state=lambda state: state)

    def init(self, params: Any) -> ChainState:
        """Return the initial states of all parts."""
        return self.inner.init(params)

    def update(self, updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        """Run one step of every part in turn."""
        return self.inner.update(updates, state, params, **extra)
