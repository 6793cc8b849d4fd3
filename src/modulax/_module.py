"""The base of all Modules of the library."""

from typing import TYPE_CHECKING

import equinox as eqx


class AbstractModule(eqx.Module):
    """An Equinox Module whose methods are bound as Python binds them.

    Equinox wraps every bound method as a pytree, for which it intercepts every attribute that is read. Ours are called,
    not passed around; without the interception a step spends half the time on taking states apart, and
    `jax.jit(optimizer.step)` works, because a method of Python's hashes.
    """

    if not TYPE_CHECKING:
        __getattribute__ = object.__getattribute__


class AbstractState(AbstractModule):
    """The state of a transform: a Module of arrays, whose field names are those of checkpoints."""
