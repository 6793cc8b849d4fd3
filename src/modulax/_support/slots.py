"""Modules of upper rooms that lower ones call, as for the warnings of `init`.

`modulax/__init__.py`, which stands above all rooms, says which they are. They are imported at the first call.
"""

import functools
import importlib
from types import ModuleType


class Slot:
    """The place of a module."""

    name: str

    @functools.cached_property
    def module(self) -> ModuleType:
        """The module."""
        return importlib.import_module(self.name)


library = Slot()  # all public names
likely_mistakes = Slot()  # warnings of `init`
metrics = Slot()  # the scalars of a log
vocabulary = Slot()  # words of other libraries, for error messages
states_of_flax = Slot()  # modules in `flax.serialization`
