"""optax's private modules, `optax._src.base`, `optax.contrib._muon` and so on: they answer with the public names."""

import importlib
import sys
import types
from typing import Any

from ._names import NAMES
from ._states import CLASSES
from ._unlisted import UNLISTED

# The private modules of optax 0.2.8 by the package that they are in.
MODULES: dict[str, str] = {
    "_src": """
        alias base combine constrain deprecations factorized linear_algebra linesearch lookahead numerics schedule
        transform update utils wrappers
    """,
    "assignment": "_hungarian_algorithm",
    "contrib": """
        _acprop _ademamix _adopt _cocob _complex_valued _dadapt_adamw _dog _galore _madgrad _mechanic _momo _muon
        _privacy _prodigy _reduce_on_plateau _sam _schedule_free _sophia
    """,
    "experimental": "_aggregating",
    "losses": "_classification _fenchel_young _ranking _regression _segmentation _self_supervised _smoothing",
    "microbatching": "_microbatching",
    "perturbations": "_make_pert",
    "projections": "_projections",
    "schedules": "_inject _join _schedule",
    "second_order": "_deprecated",
    "transforms": """
        _accumulation _adding _clipping _combining _conditionality _constraining _freezing _layouts _masking _monitoring
    """,
    "tree_utils": "_casting _random _state_utils _tree_math",
}


class PrivateModule(types.ModuleType):
    """A private module of optax.

    Args:
        package: the package that it is in, without `optax`.
        name: its name there; "" for the package `_src` itself.
    """

    def __init__(self, package: str, name: str = ""):
        super().__init__(".".join(filter(None, ("modulax.compat", package, name))), f"`optax.{package}.{name}`.")
        self._package = package
        if not name:
            self.__path__ = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _public(self._package, name, self.__name__)


def _public(package: str, name: str, path: str) -> Any:
    """What a name in a private module is: the public one, first of the package that it is in."""
    if name in CLASSES:
        return CLASSES[name]
    if name in UNLISTED:
        return UNLISTED[name]
    for place in dict.fromkeys((*([] if package == "_src" else [package]), "", *NAMES)):
        module = importlib.import_module(f"modulax.compat.{place}".rstrip("."))
        try:
            return getattr(module, name)
        except AttributeError:
            continue
    raise AttributeError(f"module '{path}' has no attribute '{name}': modulax.compat has the public names of optax.")


def _made() -> dict[str, PrivateModule]:
    found = {"_src": PrivateModule("_src")}
    for package, names in MODULES.items():
        for name in names.split():
            found[f"{package}.{name}"] = module = PrivateModule(package, name)
            if package == "_src":
                setattr(found["_src"], name, module)
    return found


PRIVATE = _made()


def register() -> None:
    """Make the private modules importable, as `modulax.compat._src.base`."""
    sys.modules.update({f"modulax.compat.{name}": module for name, module in PRIVATE.items()})
