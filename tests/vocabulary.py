"""Every public name of optax, and its name in modulax."""

import enum
import functools
import inspect
import operator
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import optax
import optax.experimental

import modulax
from modulax._catalog.optax_names import RENAMED, home

PAGE = Path(__file__).parents[1] / "docs" / "optax_names.md"
# The modules of optax, and the module of modulax that is searched first.
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
# Names of optax that need no counterpart.
NAMELESS = {
    "AggregatedUpdates": "any pytree",
    "ArrayTree": "any pytree",
    "ConditionFn": "any function of the updates and the extra arguments",
    "MaskOrFn": "a tree of booleans, a function that makes one, or patterns: `modulax.by_path`, `by_regex`, `by_type`",
    "MaskedNode": "`None`, in place of a parameter that is masked out",
    "MaybeAxis": "an integer or None",
    "NamedTupleKey": "a string: states have named fields, and paths are strings",
    "Params": "any pytree, also a whole model",
    "PerElementUpdates": "any pytree",
    "ShouldSkipUpdateFunction": "any function such as `modulax.skip_not_finite`",
    "Updates": "any pytree, also a whole model",
}

# Names of which there are several uses, with what their counterpart is for.
_PAIR = "`modulax.AbstractTransform` as a type; `modulax.from_functions(init, update)` for the call with two functions"
USES = {"GradientTransformation": _PAIR, "GradientTransformationExtraArgs": _PAIR}


@functools.cache
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
    """A line for every name; none for one that is the same in the same module here, or in optax itself."""
    lines = []
    for path, there in names().items():
        module, _, name = path.rpartition(".")
        is_same = module and there == f"{MODULES[module]}.{name.removeprefix('tree_')}"
        is_elsewhere = module and vars(optax).get(name) is getattr(_module(module), name)
        if not is_same and not is_elsewhere:
            lines.append((f"`optax.{path}`", USES.get(name) or (f"`modulax.{there}`" if there else NAMELESS[name])))
    return sorted(lines, key=lambda line: line[0].lower())


def followers() -> list[tuple[str, str, str]]:
    """A line for every optax name whose class computes something else by default: with what it computes the same."""
    lines = []
    for path, there in names().items():
        x = operator.attrgetter(there)(modulax) if there else None
        field = getattr(x, "__dataclass_fields__", {}).get("follow")
        if field is not None and path.rpartition(".")[0] != "transforms":
            lines.append((f"`optax.{path}`", f'`{there}(follow="optax")`', f'`"{field.default}"`'))
    return sorted(set(lines))


@functools.cache
def listed_arguments() -> frozenset[str]:
    """The functions of which the page says that their arguments or defaults differ."""
    section = PAGE.read_text(encoding="utf-8").partition("\n## Renamed arguments")[2].partition("\n## ")[0]
    return frozenset(re.findall(r"^\| `optax\.([\w.]+)` \|", section, re.MULTILINE))


def has_other_arguments(path: str, there: str) -> bool:
    """Whether a function of optax has arguments in another order, or arguments or defaults that ours has not.

    The order of those counts that ours takes by position. Others, such as those after `eps`, are given by name.
    """
    module, _, name = path.rpartition(".")
    theirs = inspect.signature(vars(_module(module))[name]).parameters
    ours = inspect.signature(operator.attrgetter(there)(modulax)).parameters
    positional = [name for name, p in theirs.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    in_order = [name for name, p in ours.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    both = min(len(positional), len(in_order))
    by_name = [name for name, p in theirs.items() if p.kind is p.KEYWORD_ONLY]
    return (
        positional[:both] != in_order[:both]
        or not {*positional, *by_name} <= ours.keys()
        or any(_differs(p.default, ours[name].default) for name, p in theirs.items() if name in ours)
    )


def _differs(theirs: Any, ours: Any) -> bool:
    """Whether two defaults differ; functions and objects of optax are not compared."""
    if isinstance(theirs, enum.Enum):
        return theirs.name != ours.name
    is_plain = theirs is None or (
        isinstance(theirs, bool | int | float | str | tuple) and not hasattr(theirs, "_fields")
    )
    return is_plain and theirs is not ours and theirs != ours


@functools.cache
def functions() -> dict[str, str]:
    """Those names that are functions in optax, each once, and where they are in modulax."""
    found = {}
    for path, there in names().items():
        module, _, name = path.rpartition(".")
        function = vars(_module(module))[name]
        if there and (inspect.isfunction(function) or hasattr(function, "__wrapped__")):
            found.setdefault(function, (path, there))
    return dict(found.values())


def _module(path: str) -> ModuleType:
    return operator.attrgetter(path)(optax) if path else optax
