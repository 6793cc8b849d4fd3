"""State classes with the fields and the order of optax's, for programs that build or test them."""

from typing import Any

# Positional order in optax, where it differs; `t=count` is a field that has another name here.
FIELDS = {
    "ApplyEvery": "count grad_acc",
    "DoGState": "is_init_step init_params max_dist sum_sq_norm_grads",
    "EmaState": "count ema",
    "FactoredState": "count v_row v_col v",
    "MadgradState": "count grad_sum_sq s x0",
    "MuonState": "count mu",
    "AccumulateAvgUpdatesState": "micro_step ready avg_grad",
    "ScaleByAdamState": "count mu nu",
    "ScaleByAdanState": "m v n g t=count",
    "ScaleByAmsgradState": "count mu nu nu_max",
    "ScaleByBeliefState": "count mu nu",
    "ScaleByLionState": "count mu",
    "ScaleByNovogradState": "count mu nu",
    "ScaleBySimplifiedAdEMAMixState": "t=count m n",
}


def state_class(name: str, ours: type) -> type:
    """A class that constructs the state of ours from the arguments of optax's, and whose instances are all of ours."""
    pairs = [field.partition("=") for field in FIELDS[name].split()]
    names = {theirs: own or theirs for theirs, _, own in pairs}

    class Meta(type):
        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            if len(args) > len(names):
                raise TypeError(f"`{name}` takes {len(names)} arguments ({', '.join(names)}), got {len(args)}.")
            given = dict(zip(names, args, strict=False))
            if twice := given.keys() & kwargs.keys():
                raise TypeError(f"`{name}` got two values for `{min(twice)}`.")
            return ours(**{names.get(key, key): x for key, x in {**given, **kwargs}.items()})

        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, ours)

        def __subclasscheck__(cls, subclass: type) -> bool:
            return issubclass(subclass, ours)

    return Meta(name, (), {"__doc__": ours.__doc__, "_fields": tuple(names)})
