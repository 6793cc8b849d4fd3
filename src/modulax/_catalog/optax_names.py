"""optax's names of classes, functions and fields, and their counterparts here: for `compat`, `checkpoint` and errors.

The lower layers load it only to write an error message.
"""

import operator

from .._plugin.messages import foreign_attribute, suggestion
from .._plugin.transforms import library
from .vocabulary import ELSEWHERE, NOT_HERE

# Names that differ by more than case, underscores and the `_schedule` suffix, which `home` handles.
_RENAMED = {
    "EmptyState": "AdaptiveGradClipState AddDecayedWeightsState ClipByGlobalNormState ClipState "
    "NonNegativeParamsState NormalizeState ScaleByTrustRatioState ScaleState init_empty_state",
    "states.ApplyEveryState": "ApplyEvery",
    "AbstractTransform": "GradientTransformation GradientTransformationExtraArgs TransformInitFn "
    "TransformUpdateExtraArgsFn TransformUpdateFn",
    "states.InjectedState": "InjectHyperparamsState InjectStatefulHyperparamsState",
    "states.ScaleByMADGRADState": "MadgradState",
    "states.PartitionState": "MultiTransformState",
    "AbstractState": "OptState",
    "states.ScaleByStddevState": "ScaleByRStdDevState",
    "AbstractSchedule": "Schedule",
    "states.ScaleBySophiaState": "SophiaState",
    "AbstractStatefulSchedule": "StatefulSchedule",
    "tree.norm": "global_norm",
    "HutchinsonDiagonal": "hutchinson_estimator_diag_hessian",
    "inject_hyperparams": "inject_stateful_hyperparams",
    "schedules.Join": "join_schedules",
    "Partition": "multi_transform",
    "Chain": "named_chain",
    "OptimisticAdam": "optimistic_adam_v2",
    "safe_increment": "safe_int32_increment",
    "AbstractTransform.eval_params": "schedule_free_eval_params",
    "Stateless": "stateless_with_tree_map",
    "tree": "tree_utils",
    "from_optax": "with_extra_args_support",
}
RENAMED = {name: own for own, names in _RENAMED.items() for name in names.split()}


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


def no_such_name(name: str, place: str = "") -> str:
    """Write the error message for a name that a module doesn't have, with a suggestion if there is one."""
    module = f"modulax.{place}".rstrip(".")
    message = f"module '{module}' has no attribute '{name}'."
    if name.startswith("_"):
        return message
    if plain(name) == "ema":
        return f"{message} {known_elsewhere('emamodel')} Did you mean `modulax.Ema`?"
    if name in ("contrib", "transforms", "optim", "optimizers"):
        return f"{message} Optimizers and transforms, those of `optax.contrib` too, are in `modulax` itself."
    if found := home(name, place) or home(f"projection_{name}" if place == "projections" else name):
        return f"{message} Did you mean `modulax.{found}`?"
    if known := foreign_attribute("module", plain(name)) or known_elsewhere(name):
        return f"{message} {known}"
    return message + suggestion(name, [own for own in names_in(place) if not own.startswith("_")])


def known_elsewhere(name: str) -> str | None:
    """Say how a name of another library or of a paper is written here, or that there is no such optimizer.

    None if the name is not known.
    """
    word = plain(name)
    for written, words in ELSEWHERE.items():
        if word in words.split():
            call, _, note = written.partition(" # ")
            return " ".join(filter(None, [f"Write `modulax.{call}`.", note]))
    if word in NOT_HERE.split():
        return (
            f"modulax does not have `{name}`. An implementation for optax can be used, `modulax.from_optax(...)`; "
            f"`modulax.available()` lists the optimizers that are here."
        )
    return None


def names_in(place: str) -> list[str]:
    """The names in a module of the library, without importing what they stand for."""
    module = operator.attrgetter(place)(library.module) if place else library.module
    return sorted({*getattr(module, "__all__", ()), *dir(module)})


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
