"""What optax's names are called here: for somebody who types one of them, and for the page that lists them all."""

import importlib.util
import sys

from .checks import suggestion

# What differs in more than capitals, underscores, and the suffix of schedules.
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
    "ScalarOrSchedule": "Hyperparameter",
    "ScaleByRStdDevState": "states.ScaleByStddevState",
    "ScaleByTrustRatioState": "EmptyState",
    "ScaleState": "EmptyState",
    "Schedule": "AbstractSchedule",
    "SophiaState": "states.ScaleBySophiaState",
    "StatefulSchedule": "AbstractStatefulSchedule",
    "TransformInitFn": "AbstractTransform",
    "TransformUpdateExtraArgsFn": "AbstractTransform",
    "TransformUpdateFn": "AbstractTransform",
    "hutchinson_estimator_diag_hessian": "HutchinsonDiagonal",
    "inject_stateful_hyperparams": "inject_hyperparams",
    "join_schedules": "schedules.Join",
    "multi_transform": "Partition",
    "named_chain": "Chain",
    "optimistic_adam_v2": "OptimisticAdam",
    "stateless_with_tree_map": "Stateless",
    "tree_utils": "tree",
}


# Where a name is looked for; the first is the package itself.
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
    """Where in modulax that is which optax calls by this name, such as `schedules.CosineDecay`; None if it is nowhere.

    Args:
        name: the last word of optax's name.
        first: the place of `PLACES` that is looked at before the others, because optax's name is in one of that name.
    """
    if name in RENAMED:
        return RENAMED[name]
    spellings = ((name, first), (name.removesuffix("_schedule"), "schedules"), (name.removeprefix("tree_"), "tree"))
    for word, likely in spellings:
        for place in (likely, *PLACES):
            names = [own for own in vars(sys.modules[f"modulax.{place}".rstrip(".")]) if _plain(own) == _plain(word)]
            if names:
                return f"{place}.{word if word in names else names[0]}".lstrip(".")
    return None


def no_such_name(name: str, place: str = "") -> str:
    """The sentence for somebody who asks a place for what it does not have."""
    module = f"modulax.{place}".rstrip(".")
    sentence = f"module '{module}' has no attribute '{name}'."
    if name.startswith("_"):
        return sentence
    if importlib.util.find_spec(f"modulax.{name}"):
        return f"{sentence} `import modulax.{name}` first: the package does not import this module."
    if name in ("contrib", "transforms"):
        return f"{sentence} What is in `optax.{name}` is in `modulax` itself."
    if found := home(name, place):
        return f"{sentence} Did you mean `modulax.{found}`?"
    return sentence + suggestion(name, [own for own in vars(sys.modules[module]) if not own.startswith("_")])


def _plain(name: str) -> str:
    return name if name.startswith("_") else name.replace("_", "").lower()
