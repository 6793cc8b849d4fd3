"""Every public name of optax, and what it is called here."""

import inspect
import operator
from types import ModuleType

import optax
import optax.experimental

from modulax._vocabulary import RENAMED, home

# The modules of optax, and the place of ours that is asked first.
MODULES = {
    "": "",
    "assignment": "assignment",
    "contrib": "",
    "experimental.aggregating": "aggregate",
    "losses": "losses",
    "microbatching": "microbatching",
    "perturbations": "perturbations",
    "projections": "projections",
    "schedules": "schedules",
    "second_order": "second_order",
    "transforms": "",
    "tree": "tree",
    "tree_utils": "tree",
}
# What has no name of its own here, because it needs none.
NAMELESS = {
    "AggregatedUpdates": "any pytree",
    "ArrayTree": "any pytree",
    "ConditionFn": "any function of the updates and the extra arguments",
    "MaskOrFn": "a tree of booleans, a function that makes one, or `modulax.by_path`",
    "MaskedNode": "`None`, in the place of a parameter that is left out",
    "MaybeAxis": "an integer or None",
    "NamedTupleKey": "a string: states have named fields, and paths are strings",
    "Params": "any pytree, also a whole model",
    "PerElementUpdates": "any pytree",
    "ShouldSkipUpdateFunction": "any function such as `modulax.skip_not_finite`",
    "Updates": "any pytree, also a whole model",
}


def names() -> dict[str, str | None]:
    """The names of optax without the package, and where that is in modulax; None if it has no name of its own."""
    found: dict[str, str | None] = {}
    for module, first in MODULES.items():
        for name, value in vars(_module(module)).items():
            # A type alias does not know where it is from.
            is_own = getattr(value, "__module__", "optax").startswith("optax") or name in NAMELESS | RENAMED
            if is_own and not name.startswith("_") and not inspect.ismodule(value):
                found[f"{module}.{name}".lstrip(".")] = None if name in NAMELESS else home(name, first)
    return found


def rows() -> list[tuple[str, str]]:
    """A line for every name; none for one that is the same here in the same module, or that optax itself has too."""
    lines = []
    for path, there in names().items():
        module, _, name = path.rpartition(".")
        is_same = module and there == f"{MODULES[module]}.{name.removeprefix('tree_')}"
        is_elsewhere = module and vars(optax).get(name) is getattr(_module(module), name)
        if not is_same and not is_elsewhere:
            lines.append((f"`optax.{path}`", f"`modulax.{there}`" if there else NAMELESS[name]))
    return sorted(lines, key=lambda line: line[0].lower())


def _module(path: str) -> ModuleType:
    return operator.attrgetter(path)(optax) if path else optax
