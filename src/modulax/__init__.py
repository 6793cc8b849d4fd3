"""An object-oriented optimizer library for JAX, in which an optimizer is a pytree."""

# A name is imported when it is first used, so that a program loads the optimizers that it has and no others. The list
# of the names is `__init__.pyi`, which type checkers read instead of this file.

import ast as _ast
import functools as _functools
import importlib as _importlib
import pkgutil as _pkgutil
import sys as _sys
import types as _types

from ._support import slots as _slots

_slots.library.name = "modulax"
_slots.likely_mistakes.name = "modulax._explain.likely_mistakes"
_slots.metrics.name = "modulax._explain.metrics"
_slots.vocabulary.name = "modulax._catalog.vocabulary"
_slots.states_of_flax.name = "modulax.checkpoint._flax"

# Modules that `from modulax import *` leaves out: some need an extra.
_EDGES = ("checkpoint", "compat", "linen", "nnx", "planning", "sweeps", "testing")


@_functools.cache
def _places() -> tuple[dict[str, str], ...]:
    """The module of every public name below `modulax`, from the imports in `__init__.pyi`; those to complete first."""
    body = _ast.parse(_pkgutil.get_data(__name__, "__init__.pyi") or b"").body
    middle = [type(x) for x in body].index(_ast.AnnAssign)  # `__version__`
    imports = ([x for x in part if isinstance(x, _ast.ImportFrom)] for part in (body[:middle], body[middle:]))
    return tuple({alias.name: x.module or alias.name for x in part for alias in x.names} for part in imports)


def __getattr__(name: str) -> object:
    if name == "__all__":
        value = [x for names in _places() for x in names if x not in _EDGES] + ["__version__"]
    elif name == "__version__":
        value = _importlib.import_module("importlib.metadata").version("modulax")
    elif place := {**_places()[0], **_places()[1]}.get(name):
        try:
            module = _importlib.import_module(f"modulax.{place}")
        except ImportError as error:
            if error.name != "flax":
                raise
            # An AttributeError, because `help(modulax)` skips a name with one.
            raise AttributeError(f"`modulax.{name}` needs flax: `pip install modulax[nnx]`.") from error
        value = module if place == name else getattr(module, name)
    else:
        return _refuse("", name)
    globals()[name] = value
    return value


def _refuse(place: str, name: str) -> object:
    """Raise the error for a name that a module does not have."""
    explain = _importlib.import_module("modulax._catalog.optax_names").no_such_name
    raise AttributeError(explain(name, place), name=None, obj=None)  # Python adds no second suggestion


class _Package(_types.ModuleType):
    """The class of this module, to which Python assigns each module below it once that is loaded."""

    def __setattr__(self, name: str, value: object) -> None:
        if isinstance(value, _types.ModuleType) and name[0] != "_" and not hasattr(value, "__getattr__"):
            value.__getattr__ = _functools.partial(_refuse, name)
        super().__setattr__(name, value)


_sys.modules[__name__].__class__ = _Package


def __dir__() -> list[str]:
    first, others = _places()
    return sorted({*first, "__version__", *(x for x in globals() if not x.startswith("_") and x not in others)})
