"""Error messages for calls and attributes that Python refuses: what was meant, and what to write instead."""

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax.tree_util as jtu

from .checks import listing, suggestion
from .optree_nodes import entry_of

# The words of torch, Keras, optax and their users, by the field that they may mean. A word may mean several fields: the
# first ones that a class has are suggested.
_WORDS = {
    "learning_rate": "lr alpha eta step_size stepsize rate learning_rate_fn learning_rate_schedule lr_schedule",
    "b1": "beta1 beta_1 beta momentum",
    "b2": "beta2 beta_2 rho alpha",
    "b3": "beta3 beta_3",
    "eps": "epsilon adam_epsilon",
    "momentum": "beta b1 beta1 beta_1 mu",
    "decay": "rho alpha beta beta2 momentum decay_rate smoothing",
    "decay_rate": "gamma decay",
    "weight_decay": "wd decay l2 weight_decay_rate decoupled_weight_decay lambda_ weight_lambda",
    "mask": "weight_decay_mask wd_mask decay_mask exclude exclude_from_weight_decay no_decay",
    "weight_decay_mask": "mask wd_mask decay_mask exclude exclude_from_weight_decay no_decay",
    "every_k": "k every_k_schedule n every steps accumulation_steps accumulate_steps gradient_accumulation_steps "
    "accumulate_grad_batches",
    "warmup_steps": "warmup num_warmup_steps n_warmup warmup_iters",
    "decay_steps": "T_max t_max total_steps num_steps total_iters max_steps steps num_training_steps",
    "transition_steps": "T_max t_max total_steps num_steps total_iters max_steps steps num_training_steps decay_steps "
    "step_size",
    "init_value": "init_lr initial_learning_rate init start start_value base_lr initial_value learning_rate lr value",
    "peak_value": "peak_lr max_lr learning_rate lr peak base_lr init_value",
    "end_value": "end_lr eta_min min_lr final_lr end final_value min_value",
    "max_norm": "max_grad_norm clip_norm clipnorm global_clipnorm norm threshold clip",
    "max_delta": "value clip_value clipvalue delta",
    "factor": "gamma decay_rate",
    "sync_period": "k",
    "slow_step_size": "alpha",
    "start": "update_after_step start_step start_iter swa_start begin",
    "every": "k n every_k update_every interval period frequency",
    "window": "k n window_size num_checkpoints",
    "boundaries_and_scales": "milestones boundaries",
    "inner": "optimizer opt tx base inner_optimizer base_optimizer",
    "transforms": "groups param_groups optimizers",
    "labels": "param_labels",
}
_PAIRS = {"betas": ("b1", "b2"), "moments": ("b1", "b2")}
_PARAMETERS = ("params", "parameters", "model", "var_list", "model_parameters")


def meant_by(word: str, known: Iterable[str]) -> list[str]:
    """The known names that a word from another library may mean: one, two for a pair such as `betas`, or none."""
    known = list(known)
    if word in _PAIRS and set(_PAIRS[word]) <= set(known):
        return list(_PAIRS[word])
    return [name for name in known if word in _WORDS.get(name, "").split()][:1]


def wrong_call(cls: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], hint: str = "") -> str | None:
    """The error message for arguments that a class doesn't take; None if it takes them.

    Args:
        cls: the class, or a function that constructs it.
        args: the arguments by position.
        kwargs: the arguments by name.
        hint: what the class has to say about wrong arguments.
    """
    signature = inspect.signature(cls)
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        parameters = list(signature.parameters.values())
        named = listing([p.name for p in parameters], 20)
        takes = f"Its arguments are {named}." if parameters else "It takes no arguments."
        return " ".join(filter(None, [*_what_is_wrong(cls.__name__, parameters, args, kwargs), takes, hint]))
    return None


def wrong_method_call(
    method: Callable[..., Any], owner: str, self: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> str | None:
    """The error message for missing or surplus arguments of a method; None if it takes them.

    Args:
        method: the method, as a function.
        owner: the name of its class.
        self: the object that it was called on.
        args: the arguments by position.
        kwargs: the arguments by name.
    """
    try:
        inspect.signature(method).bind(self, *args, **{k: x for k, x in kwargs.items() if k != "allow_empty"})
    except TypeError as error:
        parameters = list(inspect.signature(method).parameters.values())[1:]
        call = ", ".join(p.name for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD)
        return f"`{owner}.{method.__name__}`: {error}. Write `optimizer.{method.__name__}({call})`."
    return None


def _what_is_wrong(
    name: str, parameters: list[inspect.Parameter], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> list[str]:
    names = [p.name for p in parameters]
    if unknown := [key for key in kwargs if key not in names]:
        key = unknown[0]
        start = f"`{name}({key}=...)`: there is no argument `{key}`."
        if key in _PARAMETERS:
            return [start, "The parameters are given to `init(params)` and `step(grads, state, params)`."]
        if key == "lr_scheduler":
            return [start, f"Give a schedule in place of a number: `{name}(schedules.CosineDecay(1e-3, 1000))`."]
        if meant := meant_by(key, names):
            before = _written_out(args, {k: x for k, x in kwargs.items() if k != key})
            return [start, f"Write `{name}({', '.join([*before, _written(meant, kwargs[key])])})`."]
        return [start + suggestion(key, names)]
    positional = [p.name for p in parameters if p.kind is not inspect.Parameter.KEYWORD_ONLY]
    if len(args) > len(positional):
        taken = f"takes {listing(positional)} by position" if positional else "takes no argument by position"
        named = {key: x for key, x in zip(names, args, strict=False) if key not in positional and key not in kwargs}
        call = ", ".join(_written_out(args[: len(positional)], named))
        remedy = f"Give the others by name, such as `{name}({call})`." if named else ""
        return [f"`{name}` {taken}, and {len(args)} values were given.", remedy]
    if twice := [n for n in positional[: len(args)] if n in kwargs]:
        value = _text(args[positional.index(twice[0])])
        return [f"`{name}({twice[0]}=...)` was given twice: its position has the value {value} already."]
    required = [p.name for p in parameters if p.default is p.empty and p.kind is not p.VAR_POSITIONAL]
    lacking = [n for n in required if n not in {*positional[: len(args)], *kwargs}]
    given = _written_out(args, kwargs)
    return [
        f"`{name}` needs {listing(lacking)}: write `{name}({', '.join([*given, *(f'{n}=...' for n in lacking)])})`."
    ]


def _written_out(args: Iterable[Any], kwargs: Mapping[str, Any]) -> list[str]:
    return [*map(_text, args), *(f"{key}={_text(x)}" for key, x in kwargs.items())]


def _text(x: Any) -> str:
    return repr(x) if isinstance(x, (int, float, str)) else "..."


def _written(names: list[str], value: Any) -> str:
    values = value if len(names) > 1 and isinstance(value, (tuple, list)) else [value] * len(names)
    return ", ".join(f"{n}={_text(x)}" for n, x in zip(names, values, strict=False))


class NoAttributeError(AttributeError):
    """An attribute that a Module doesn't have. The message is written when it is read: `hasattr` costs little."""

    def __init__(self, module: Any, attribute: str):
        # With the name, Python's traceback would add a suggestion of its own.
        super().__init__(name=None, obj=None)
        self.module, self.attribute = module, attribute

    def __str__(self) -> str:
        return no_attribute(self.module, self.attribute)


def no_attribute(module: Any, name: str) -> str:
    """The error message for a missing attribute of a Module: where it has one of this name, or a similar one."""
    owner = type(module).__name__
    start = f"`{owner}` has no attribute `{name}`."
    if found := inside(module, name):
        return f"{start} {found}"
    own = [field.name for field in dataclasses.fields(module)]
    meant = meant_by(name, own)
    return f"{start} It is called `{meant[0]}`." if meant else start + suggestion(name, [*own, *_public(module)])


def _public(module: Any) -> list[str]:
    return [name for name in dir(type(module)) if not name.startswith("_")]


def inside(module: Any, name: str) -> str | None:
    """Say where a Module has a value of this name further inside, and how to read it; None if it has none."""
    found: dict[str, None] = {}
    for path, _ in jtu.tree_leaves_with_path(module):
        names = [str(entry_of(key)) for key in path]
        if name in names:
            found[jtu.keystr(path[: names.index(name) + 1])] = None
    if not found:
        return None
    what, remedy = type(module)._inside_is_read_by(name)
    return f"It has {listing((what + path for path in found), 4)}. {remedy}"
