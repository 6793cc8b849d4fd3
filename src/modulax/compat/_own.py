"""Names of optax that don't follow the rule: other arguments, state classes, types, pairs of functions."""

import functools
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
from jaxtyping import PyTree

from .. import ScalarOrSchedule
from .._plugin.messages import suggestion
from . import _functions, _schedules, _trees
from ._counterparts import PRINTING, as_function, counterpart, equivalent
from ._helpers import HELPERS
from ._multi_steps import MultiSteps
from ._names import NAMES, SHARED
from ._private import PRIVATE
from ._states import CLASSES
from ._transformations import (
    Aggregator,
    GradientTransformation,
    GradientTransformationExtraArgs,
    making,
    with_extra_args_support,
)
from ._trees import OLD_TREES, NamedTupleKey

VERSION = "0.2.8"
"""The version of optax whose names, arguments and states these are."""


class Changed(NamedTuple):
    """How the arguments of a function of optax differ from those of the class here.

    Attributes:
        names: arguments that have other names: ours by optax's.
        defaults: defaults of optax, by its names; `inspect.Parameter.empty` for a required argument.
        without: arguments that optax does not have.
        by_name: the first argument that optax takes by name only, if that is not `nesterov`.
        ignored: arguments of optax that do nothing here, with their defaults.
    """

    names: Mapping[str, str] = {}
    defaults: Mapping[str, Any] = {}
    without: Sequence[str] = ()
    by_name: Sequence[str] = ()
    ignored: Mapping[str, Any] = {}


_DECAY_MASK = {"weight_decay_mask": "mask"}
_COEFFICIENTS = {"ns_coeffs": (3.4445, -4.775, 2.0315)}
CHANGED = {
    "add_decayed_weights": Changed(without=("cautious",)),
    "adabelief": Changed(without=("weight_decay", "mask")),
    "adafactor": Changed(_DECAY_MASK),
    "adan": Changed(without=("proximal", "max_grad_norm")),
    "acprop": Changed(without=("rectified",)),
    "adopt": Changed(without=("weight_decay", "mask")),
    "centralize": Changed(without=("output_axis",)),
    "clip_by_global_norm": Changed(without=("logged",)),
    "constant_schedule": Changed({"value": "constant"}),
    "dpsgd": Changed({"seed": "key"}),
    "galore": Changed(without=("method",)),
    "lars": Changed(_DECAY_MASK, {"weight_decay_mask": True, "trust_ratio_mask": True}),
    "mechanize": Changed(without=("store_delta",)),
    "muon": Changed(
        _DECAY_MASK, _COEFFICIENTS, ("roles", "per_head", "clamped", "cautious_weight_decay", "dtype", "over")
    ),
    "optimistic_adam_v2": Changed(by_name=("alpha",)),
    "prodigy": Changed(without=("mask",)),
    "scale_by_acprop": Changed(without=("rectified",)),
    "scale_by_adam": Changed(without=("corrected_eps",)),
    "scale_by_adopt": Changed(without=("weight_decay", "mask")),
    "scale_by_galore": Changed(without=("method",)),
    "scale_by_lion": Changed(by_name=("mode",)),
    "scale_by_muon": Changed(defaults=_COEFFICIENTS, without=("sign", "per_head", "dtype", "over")),
    "scale_by_schedule": Changed({"step_size_fn": "step_size"}),
    "scale_by_trust_ratio": Changed(without=("weight_decay", "mask")),
    "schedule_free_adamw": Changed(without=("mask",)),
    "schedule_free_sgd": Changed(without=("mask",)),
    "sgdr_schedule": Changed({"cosine_kwargs": "cycles"}),
    "sophia": Changed(_DECAY_MASK, ignored=PRINTING),
    "stateless": Changed({"f": "function"}, without=("leafwise",)),
    "trace": Changed(defaults={"decay": inspect.Parameter.empty}),
}
# Other names of the same thing.
ALIASES = {
    "inject_stateful_hyperparams": "inject_hyperparams",
    "maybe_update": "conditionally_transform",
    "multi_transform": "partition",
    "piecewise_linear_schedule": "piecewise_interpolate_schedule",
}
# Names that optax itself has only for older programs, and what to write instead: those that warn when they are read.
DEPRECATED = {
    "DifferentiallyPrivateAggregateState": "contrib.DifferentiallyPrivateAggregateState",
    "differentially_private_aggregate": "contrib.differentially_private_aggregate",
    "dpsgd": "contrib.dpsgd",
}
# Those that warn when they are called.
DEPRECATED_CALLS = {
    "convex_kl_divergence": "generalized_kl_divergence",
    "fisher_diag": "jax.hessian",
    "global_norm": "tree.norm",
    "hessian_diag": "jax.hessian",
    "hvp": "jax.jvp of jax.grad",
    "inject_stateful_hyperparams": "inject_hyperparams",
}


_CLASSES = (Aggregator, GradientTransformation, GradientTransformationExtraArgs, MultiSteps, NamedTupleKey)
_TREES = ("AggregatedUpdates", "ArrayTree", "OptState", "Params", "PerElementUpdates", "Updates")
TYPES: dict[str, Any] = {
    "ConditionFn": Callable[..., jax.Array],
    "MaskOrFn": PyTree | Callable[[PyTree], PyTree] | None,
    "MaybeAxis": int | None,
    "ScalarOrSchedule": ScalarOrSchedule,
    "Schedule": Callable[[Any], Any],
    "ShouldSkipUpdateFunction": Callable[..., tuple[Any, PyTree]],
    "TransformInitFn": Callable[[PyTree], PyTree],
    "TransformUpdateExtraArgsFn": Callable[..., tuple[PyTree, PyTree]],
    "TransformUpdateFn": Callable[..., tuple[PyTree, PyTree]],
    "WrappedSchedule": _schedules.WrappedSchedule,
    **dict.fromkeys(_TREES, PyTree),
    **{cls.__name__: cls for cls in _CLASSES},
}
# Functions of our own, by their names in optax.
_FUNCTIONS = {
    name: x if part is _trees else making(x)
    for part in (_functions, _schedules, _trees)
    for name, x in vars(part).items()
    if inspect.isfunction(x) and x.__module__ == part.__name__ and name[0] != "_"
} | {"with_extra_args_support": with_extra_args_support}
_FUNCTIONS |= {
    f"n{name}": as_function(functools.partial(counterpart("", name), nesterov=True), "", f"n{name}")
    for name in ("adam", "adamw")
}


def names_of(module: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a module of optax, given by its name without the package."""

    def get(name: str) -> Any:
        if module == "tree_utils" and name in OLD_TREES:
            message, function = OLD_TREES[name]
            warnings.warn(f"`tree_utils.{name}` is deprecated: use `{message}`.", DeprecationWarning, stacklevel=2)
            return function
        if (private := PRIVATE.get(f"{module}.{name}")) is not None:
            return private
        if name not in NAMES[module] and name not in CLASSES and (module or name not in HELPERS):
            path = f"modulax.compat.{module}".rstrip(".")
            hint = "" if name.startswith("_") else suggestion(name, NAMES[module])
            raise AttributeError(f"module '{path}' has no attribute '{name}'.{hint}")
        if not module and name in DEPRECATED:
            warnings.warn(
                f"`optax.{name}` is deprecated: use `optax.{DEPRECATED[name]}`.", DeprecationWarning, stacklevel=2
            )
        is_in_both = module in SHARED and name in NAMES[""]
        return _object("" if is_in_both else module, name)

    return get, lambda: sorted({*NAMES[module]} - ({} if module else DEPRECATED).keys())


@functools.cache
def _object(module: str, name: str) -> Any:
    found = _current(module, ALIASES.get(name, name))
    return _warning(name, found) if name in DEPRECATED_CALLS else found


def _warning(name: str, function: Any) -> Any:
    """A function that warns of being deprecated."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        message = f"`{name}` is deprecated: use {DEPRECATED_CALLS[name]}."
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return function(*args, **kwargs)

    return call


def _current(module: str, name: str) -> Any:
    """What a name of a module is, without a warning."""
    if name in HELPERS:
        return HELPERS[name]
    if name in TYPES:
        return TYPES[name]
    if name in CLASSES:
        return CLASSES[name]
    if module in ("tree", "tree_utils") and (function := f"tree_{name.removeprefix('tree_')}") in _FUNCTIONS:
        return _FUNCTIONS[function]
    if name in CHANGED:
        return as_function(counterpart(module, name), module, name, *CHANGED[name])
    if name in _FUNCTIONS:
        return _FUNCTIONS[name]
    return equivalent(module, name)
