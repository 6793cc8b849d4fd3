"""optax's names of classes, functions and fields, and their counterparts here: for `compat`, `checkpoint` and errors.

The lower layers load it only to write an error message.
"""

import importlib
import importlib.util

from .._support.checks import suggestion
from .vocabulary import ELSEWHERE, NOT_HERE, SCHEDULES

# Names that differ by more than case, underscores and the `_schedule` suffix, which `home` handles.
RENAMED = {
    "AdaptiveGradClipState": "EmptyState",
    "AddDecayedWeightsState": "EmptyState",
    "ApplyEvery": "states.ApplyEveryState",  # optax's class of this name is the state
    "ClipByGlobalNormState": "EmptyState",
    "ClipState": "EmptyState",
    "GradientTransformation": "AbstractTransform",
    "GradientTransformationExtraArgs": "AbstractTransform",
    "InjectHyperparamsState": "states.InjectedState",
    "InjectStatefulHyperparamsState": "states.InjectedState",
    "MadgradState": "states.ScaleByMADGRADState",
    "MultiTransformState": "states.PartitionState",
    "NonNegativeParamsState": "EmptyState",
    "NormalizeState": "EmptyState",
    "OptState": "AbstractState",
    "ScaleByRStdDevState": "states.ScaleByStddevState",
    "ScaleByTrustRatioState": "EmptyState",
    "ScaleState": "EmptyState",
    "Schedule": "AbstractSchedule",
    "SophiaState": "states.ScaleBySophiaState",
    "StatefulSchedule": "AbstractStatefulSchedule",
    "TransformInitFn": "AbstractTransform",
    "TransformUpdateExtraArgsFn": "AbstractTransform",
    "TransformUpdateFn": "AbstractTransform",
    "global_norm": "tree.norm",
    "hutchinson_estimator_diag_hessian": "HutchinsonDiagonal",
    "init_empty_state": "EmptyState",
    "inject_stateful_hyperparams": "inject_hyperparams",
    "join_schedules": "schedules.Join",
    "multi_transform": "Partition",
    "named_chain": "Chain",
    "optimistic_adam_v2": "OptimisticAdam",
    "safe_int32_increment": "safe_increment",
    "schedule_free_eval_params": "AbstractTransform.eval_params",
    "stateless_with_tree_map": "Stateless",
    "tree_utils": "tree",
    "with_extra_args_support": "from_optax",
}


# Submodules that `home` searches, in this order; "" is the package itself.
PLACES = (
    "",
    "schedules",
    "losses",
    "projections",
    "tree",
    "numerics",
    "linalg",
    "estimators",
    "assignment",
    "perturbations",
    "second_order",
    "states",
    "aggregate",
    "microbatching",
)


def home(name: str, first: str = "") -> str | None:
    """Find the modulax counterpart of an optax name, such as `schedules.CosineDecay`; None if there is none.

    Args:
        name: the last part of optax's dotted name.
        first: the entry of `PLACES` to search first, because optax has the name in a submodule called like it.
    """
    if name in RENAMED:
        return RENAMED[name]
    spellings = ((name, first), (name.removesuffix("_schedule"), "schedules"), (name.removeprefix("tree_"), "tree"))
    for word, likely in spellings:
        for place in (likely, *PLACES):
            names = [own for own in names_in(place) if plain(own) == plain(word)]
            if names:
                return f"{place}.{word if word in names else names[0]}".lstrip(".")
    return None


# What averages of the parameters are called elsewhere, in the spelling of `plain`.
_EMA = "ParamEMA(AdamW(1e-3), decay=0.999)"
_SWA = "ParamAverage(SGD(0.1), start=1000, every=100)"
_LAWA = "ParamAverage(AdamW(1e-3), every=1000, window=6)"
_AVERAGES = {
    **dict.fromkeys(("ema", "emamodel", "modelema", "paramsema", "emaparams", "weightema", "emaweights"), _EMA),
    **dict.fromkeys(("emaoptimizer", "averagedmodel", "exponentialmovingaverage", "weightaveraging"), _EMA),
    **dict.fromkeys(("swa", "stochasticweightaveraging", "polyakaveraging", "polyakaverage"), _SWA),
    **dict.fromkeys(("averageparams", "paramsaverage"), _SWA),
    **dict.fromkeys(("lawa", "latestweightaveraging"), _LAWA),
}


# Names of other libraries and of papers, in the spelling of `plain`.
_ELSEWHERE = {
    "autoclip": "ClipByNormPercentile",
    "clipupdaterms": "StableAdamW",
    "layerdecay": "layerwise_decay",
    "layerwiselrdecay": "layerwise_decay",
    "llrd": "layerwise_decay",
    "lrmultipliers": "ScaleByPath",
    "muadam": "mup",
    "muadamw": "mup",
    "musgd": "mup",
    "paramgroups": "groups",
    "paramgroupslayerdecay": "layerwise_decay",
    "parametergroups": "groups",
    "setbaseshapes": "mup",
    "skipsteponspikes": "SkipSpikes",
    "zclip": "ClipByRunningNorm",
}


def no_such_name(name: str, place: str = "") -> str:
    """Write the error message for a name that a module doesn't have, with a suggestion if there is one."""
    module = f"modulax.{place}".rstrip(".")
    message = f"module '{module}' has no attribute '{name}'."
    if name.startswith("_"):
        return message
    if importlib.util.find_spec(f"modulax.{name}"):
        return f"{message} `import modulax.{name}` first: `import modulax` does not load this module."
    if plain(name) in _AVERAGES:
        message += (
            f" To average the parameters, wrap the optimizer: `modulax.{_AVERAGES[plain(name)]}`; "
            f"`eval_params(state, params)` then returns the average. `modulax.Ema` averages the updates."
        )
        return message + " Did you mean `modulax.Ema`?" * (name == "ema")
    if name in ("contrib", "transforms", "optim", "optimizers"):
        return f"{message} Optimizers and transforms, those of `optax.contrib` too, are in `modulax` itself."
    if found := _ELSEWHERE.get(plain(name)) or home(name, place):
        return f"{message} Did you mean `modulax.{found}`?"
    if known := known_elsewhere(name):
        return f"{message} {known}"
    return message + suggestion(name, [own for own in names_in(place) if not own.startswith("_")])


def known_elsewhere(name: str) -> str | None:
    """Say how a name of another library or of a paper is written here, or that there is no such optimizer.

    None if the name is not known.
    """
    word = plain(name)
    for written, words in (ELSEWHERE | SCHEDULES).items():
        if word in words.split():
            return f"Write `modulax.{written}`."
    if word in NOT_HERE.split():
        return (
            f"modulax does not have `{name}`. An implementation for optax can be used, `modulax.from_optax(...)`; "
            f"`modulax.available()` lists the optimizers that are here."
        )
    return None


def names_in(place: str) -> list[str]:
    """The names in a module of the library, without importing what they stand for."""
    return dir(importlib.import_module(f"modulax.{place}".rstrip(".")))


def plain(name: str) -> str:
    """Fold case and underscores, so that `CosineDecay` equals `cosine_decay`."""
    return name if name.startswith("_") else name.replace("_", "").lower()


def fields_in_optax(cls: type) -> dict[str, str] | None:
    """The names of a state's fields by those in optax, in optax's order; None for a state that optax does not have.

    A class says so in `optax_fields`, where `t=count` is a field that is called `t` in optax. A field of optax's state
    that the class does not have holds a hyperparameter there.
    """
    declared = getattr(cls, "optax_fields", None)
    if declared is None:
        return None
    pairs = [name.partition("=") for name in declared]
    return {theirs: ours or theirs for theirs, _, ours in pairs}
