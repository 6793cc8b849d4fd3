"""Modules of upper rooms that lower ones call, as for the warnings of `init`.

`modulax/__init__.py`, which stands above all rooms, says which they are. They are imported at the first call.
"""

import functools
import importlib
from types import ModuleType


class _Slot:
    """The place of a module."""

    name: str

    @functools.cached_property
    def module(self) -> ModuleType:
        """The module."""
        return importlib.import_module(self.name)


library = _Slot()  # all public names
likely_mistakes = _Slot()  # warnings of `init`
metrics = _Slot()  # the scalars of a log
vocabulary = _Slot()  # words of other libraries, for error messages
states_of_flax = _Slot()  # modules in `flax.serialization`
