"""`to_config` and `from_config`: an optimizer as plain values for YAML, JSON and trackers of experiments, and back."""

import dataclasses
import functools
import inspect
import math
import operator
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from .. import AbstractRole, by_path, freeze_hyperparameters
from .._plugin.arrays import ARRAY_TYPES, is_key_data
from .._plugin.labels import AbstractLabels, as_labels, by_path_or_role, is_call, not_in
from .._plugin.messages import brief, format_value, wrong_call
from .._plugin.transforms import AbstractHyperparameters, check_part, is_frozen, library
from ..authoring import AbstractTransform, Chain
from .optax_names import home, known_elsewhere
from .registry import get

VERSION = 1
_MARKS = ("name", "items", "list", "object", "dtype")
_MODULES = ("", "schedules", "aggregate")
# Functions that make labels inside other functions, `selective_transform` and `groups`.
_LABELS = {"not_in": not_in, "by_path_or_role": by_path_or_role}


def to_config(optimizer: AbstractTransform) -> dict[str, Any]:
    """Return an optimizer as nested dicts and lists of strings, numbers, booleans and None.

        config = to_config(Chain(ClipByGlobalNorm(1.0), AdamW(schedules.CosineDecay(1e-3, 1000))))
        json.dumps(config)
        wandb.init(config={"optimizer": config})
        optimizer = from_config(config)

    `name` is the class, and the other keys are its fields, all of them, so that the result means the same after a
    default has changed. Schedules, transforms inside, patterns such as `by_path` and roles are dicts too. A mapping
    whose order matters is a list of pairs under the key `items`, because YAML and trackers sort keys. The result of
    `freeze_hyperparameters` has the key `frozen`.

    Args:
        optimizer: any transform; its numbers must be known, and not traced.

    Raises:
        ValueError: if a field has no such form, such as a function, a batch of numbers or an optax optimizer; the
            message names the field.
    """
    check_part("`to_config`: the argument", optimizer)
    return {"version": VERSION, **_encoded(optimizer, ())}


def from_config(config: Mapping[str, Any], classes: Iterable[type] = ()) -> Any:
    """Return the optimizer of a configuration, from `to_config` or written by hand.

        from_config({"name": "adamw", "learning_rate": 1e-3})
        from_config({"name": "Chain", "parts": [{"name": "Clip", "max_delta": 1}, {"name": "sgd", ...}]})

    Omitted fields have their defaults, and a class may have any name that `get` knows. A number may be a string,
    because YAML reads `1e-3` as one. A mapping from patterns in place of a mask or labels is read as `by_path`, and the
    key `_target_` of Hydra, `{"_target_": "modulax.AdamW", ...}`, as `name`.

    Args:
        config: the configuration.
        classes: classes outside modulax that it may name.

    Raises:
        ValueError: if a class is not known, if the configuration is of a later version, or if a value is invalid.
    """
    if not isinstance(config, Mapping) or not {"name", "_target_"} & config.keys():
        raise ValueError(
            f'`from_config` needs a mapping with a `name`, such as `{{"name": "adamw", "learning_rate": 1e-3}}`, got '
            f"{brief(config)}."
        )
    if config.get("version", VERSION) > VERSION:
        raise ValueError(
            f"`from_config` was given a configuration of version {config['version']}, and this version of modulax "
            f"reads those up to {VERSION}."
        )
    fields = {key: value for key, value in config.items() if key != "version"}
    return _decoded(fields, {cls.__name__: cls for cls in classes})


def _encoded(x: Any, path: tuple[str, ...], is_in_frozen: bool = False) -> Any:
    """A value as plain values; `path` is where it is, for the error message.

    A frozen transform or schedule is marked, but not those inside it.
    """
    if isinstance(x, ARRAY_TYPES):
        return _number(x, path)
    if x is None or isinstance(x, (bool, str, int)):
        return x
    if isinstance(x, float):
        return x if math.isfinite(x) else str(x)
    if isinstance(x, AbstractLabels):
        plain = x.plain()
        return _refused(x, path) if plain is x else _encoded(plain, path, is_in_frozen)
    if _is_record(x) or isinstance(x, (Mapping, tuple, list)):
        return _encoded_tree(x, path, is_in_frozen)
    return _public(x, path)


def _encoded_tree(x: Any, path: tuple[str, ...], is_in_frozen: bool) -> Any:
    is_marked = not is_in_frozen and _is_frozen_module(x)

    def each(items: Mapping[Any, Any]) -> dict[Any, Any]:
        return {key: _encoded(value, (*path, str(key)), is_in_frozen or is_marked) for key, value in items.items()}

    if is_call(x):
        return {"name": x.function} | each(x.arguments)
    if _is_record(x):
        return {"name": _name(type(x))} | ({"frozen": True} if is_marked else {}) | each(_fields(x))
    if type(x) is dict and all(isinstance(key, str) and key not in _MARKS for key in x):
        return each(x)
    if isinstance(x, Mapping):
        return {"items": [[_encoded(key, path), value] for key, value in each(x).items()]}
    items = list(each(dict(enumerate(x))).values())
    return items if isinstance(x, tuple) else {"list": items}


def _is_frozen_module(x: Any) -> bool:
    return isinstance(x, AbstractHyperparameters) and is_frozen(x)


def _fields(x: Any) -> dict[str, Any]:
    if hasattr(x, "_fields"):
        return x._asdict()
    values = [(field, getattr(x, field.name)) for field in dataclasses.fields(x)]
    # A function that is the default of its class has no other name than that.
    return {field.name: value for field, value in values if not (value is field.default and inspect.isroutine(value))}


def _number(x: Any, path: tuple[str, ...]) -> Any:
    if isinstance(x, Tracer):
        raise ValueError(f"`to_config`: `{'.'.join(path)}` is traced. Call it outside of `jax.jit`.")
    if is_key_data(x) and x.shape == (2,):
        return int(format_value(x))
    if np.shape(x):
        raise ValueError(
            f"`to_config`: `{'.'.join(path)}` is a batch of numbers of shape {np.shape(x)}. Write the configuration of "
            f"one of the optimizers: `to_config(jax.tree.map(lambda x: x[0], batch))`."
        )
    value = np.asarray(x).item()
    # The shortest text that is read back as the same number in this dtype.
    return _encoded(float(format_value(x)) if isinstance(value, float) else value, path)


def _public(x: Any, path: tuple[str, ...]) -> Any:
    """A class or a function of modulax, or a dtype, by its name."""
    if getattr(x, "__module__", "").startswith("modulax.") and (name := _name(x)):
        return {"object": name}
    if isinstance(x, np.dtype) or isinstance(getattr(x, "dtype", None), np.dtype):  # `jnp.float32` has a dtype
        return {"dtype": jnp.dtype(x).name}
    return _refused(x, path)


def _is_record(x: Any) -> bool:
    """Whether it has fields: a call, a NamedTuple, or a dataclass that modulax exports, such as axes of matrices."""
    if is_call(x) or hasattr(x, "_fields") or isinstance(x, (AbstractHyperparameters, AbstractRole)):
        return True
    return dataclasses.is_dataclass(x) and getattr(library.module, type(x).__name__, None) is type(x)


def _refused(x: Any, path: tuple[str, ...]) -> Any:
    what = "a function" if inspect.isroutine(x) else f"a `{type(x).__name__}`"
    raise ValueError(
        f"`to_config`: `{'.'.join(path)}` holds {what}, {brief(x)}, which JSON does not have. Replace it first: "
        f"a function of the step by a schedule of `modulax.schedules`, a mask by `by_path(...)`."
    )


def _name(x: Any) -> str:
    """The name under which modulax exports a class or a function; the bare name for one of a user."""
    modulax = library.module
    own = x.__name__
    for module in _MODULES:
        place = getattr(modulax, module) if module else modulax
        if getattr(place, own, None) is x:
            return f"{module}.{own}".lstrip(".")
    return "" if inspect.isroutine(x) else own


def _decoded(x: Any, classes: Mapping[str, type]) -> Any:
    each = functools.partial(_decoded, classes=classes)
    if isinstance(x, Sequence) and not isinstance(x, str):  # a list, also one of OmegaConf
        return tuple(map(each, x))
    if not isinstance(x, Mapping):
        return x
    if "_target_" in x:
        x = _of_hydra(x, classes)
    values = {key: each(value) for key, value in x.items()}
    if "name" in x:
        made_by, is_frozen = _named(values.pop("name"), classes), values.pop("frozen", False)
        made = _made(made_by, values)
        return freeze_hyperparameters(made) if is_frozen else made
    mark = next(iter(x)) if len(x) == 1 else None
    return _MARKED[mark](values[mark]) if mark in _MARKED else values


_MARKED: dict[Any, Callable[[Any], Any]] = {
    "object": lambda name: operator.attrgetter(name)(library.module),
    "dtype": jnp.dtype,
    "list": list,
    "items": OrderedDict,
}


def _of_hydra(x: Mapping[str, Any], classes: Mapping[str, type]) -> dict[str, Any]:
    """A configuration with `name` in the place of `_target_`."""
    module, _, own = x["_target_"].rpartition(".")
    if own not in classes and module.partition(".")[0] not in ("modulax", "optax"):
        raise ValueError(f"`_target_: {x['_target_']}` is not of modulax. Write `modulax.{home(own) or 'AdamW'}`.")
    name = own if own in classes else x["_target_"].removeprefix("modulax.")
    return {"name": name} | {key: value for key, value in x.items() if key != "_target_"}


def _named(name: Any, classes: Mapping[str, type]) -> Any:
    """The class, the function or the labels of a name, which may be that of another library."""
    place = library.module
    try:
        found = classes.get(name) or _LABELS.get(name) or operator.attrgetter(name)(place)
    except (AttributeError, TypeError):
        there = home(str(name)) or ""
        if known := re.match(r"Write `modulax\.(schedules\.\w+)", known_elsewhere(str(name)) or ""):
            raise ValueError(f'`from_config`: there is no `{name}`. Write `"name": "{known[1]}"`.') from None
        found = operator.attrgetter(there)(place) if there.startswith("schedules.") else get(name)
    return chain if found is Chain else found


def _made(made_by: Any, fields: dict[str, Any]) -> Any:
    """The result of a class or of a function of modulax, from its arguments or from all of its fields."""
    if isinstance(made_by, AbstractLabels):  # `decays`
        return made_by
    if not inspect.isclass(made_by) or not issubclass(made_by, AbstractHyperparameters):
        if message := wrong_call(made_by, (), fields):
            raise TypeError(message)
        return made_by(**(_read_all(fields) if _makes_transform(made_by) else fields))
    declared = {field.name: field for field in dataclasses.fields(made_by)}
    fields = {key: _read(declared.get(key), value) for key, value in fields.items()}
    is_call = fields.keys() <= inspect.signature(made_by).parameters.keys()
    return made_by(**fields) if is_call or fields.keys() != declared.keys() else _of_fields(made_by, fields)


def chain(parts: Any = ()) -> Chain:
    """The arguments of `Chain` as a configuration has them."""
    return Chain(**parts) if isinstance(parts, Mapping) else Chain(*parts)


def _makes_transform(function: Any) -> bool:
    """Whether this is a function such as `groups`, whose arguments are numbers, and no labels."""
    result = inspect.signature(function).return_annotation
    return inspect.isclass(result) and issubclass(result, AbstractTransform)


def _read(field: dataclasses.Field | None, value: Any) -> Any:
    """An argument of a class, in which numbers may be strings: a field, or what a field is made of."""
    if field is None:
        return _read_all(value, keys=True)
    is_of_labels = field.metadata.get("converter") is as_labels and isinstance(value, dict)
    if is_of_labels and any(set("*?[") & {*str(key)} for key in value):
        return by_path(dict(sorted(value.items(), key=lambda item: item[0] == "*")))  # trackers sort keys
    if field.metadata.get("number") or field.metadata.get("numbers"):
        return _read_all(value, infinite=True)
    return value if field.metadata.get("static") else _read_all(value)


def _read_all(x: Any, *, keys: bool = False, infinite: bool = False) -> Any:
    """A value in which strings are read as numbers; the steps of `PiecewiseConstant` are keys."""
    each = functools.partial(_read_all, keys=keys, infinite=infinite)
    if isinstance(x, str) and (infinite or any(map(str.isdigit, x))):
        try:
            return float(x)
        except ValueError:
            return x  # the class says what it needs
    if isinstance(x, (tuple, list)) and not hasattr(x, "_fields"):
        return type(x)(map(each, x))
    if isinstance(x, (dict, OrderedDict)):
        return type(x)((each(key) if keys else key, each(value)) for key, value in x.items())
    return x


def _of_fields(cls: type[Any], fields: Mapping[str, Any]) -> Any:
    """An instance from its fields, for a class whose constructor takes its arguments in another form."""
    new = object.__new__(cls)
    for field in dataclasses.fields(cls):
        converter = field.metadata.get("converter", lambda x: x)
        object.__setattr__(new, field.name, converter(fields[field.name]))
    new.__check_init__()
    return new
