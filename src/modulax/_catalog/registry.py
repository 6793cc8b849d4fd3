"""The registry: transforms by name, and for optimizers a card with the properties of each, and citations."""

import dataclasses
import difflib
import fnmatch
import inspect
import math
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu

from .._plugin.messages import brief, listing
from .._plugin.transforms import check_part, everything_in, library, required_arguments
from ..authoring import AbstractOptimizer, AbstractTransform
from .bibliography import Reference, publications
from .optax_names import home, known_elsewhere, plain

SAMPLE = (1024, 1024)


@dataclasses.dataclass(frozen=True)
class Card:
    """Properties of an optimizer, to help choose one: memory, requirements, references.

    Args:
        name: name of the optimizer for `get`.
        optimizer: its class.
        summary: first paragraph of its docstring.
        references: papers, as authors and year.
        state_bytes: bytes of optimizer state per parameter, for a float32 matrix of 1024 × 1024; the parameter itself
            has 4 bytes.
        extra: extra arguments that `update` requires, besides gradients, state and parameters.
        takes_examples: whether it takes per-example gradients, with a leading batch axis.
        takes_complex: whether it is defined for complex parameters.
    """

    name: str
    optimizer: type[AbstractOptimizer]
    summary: str
    references: tuple[str, ...]
    state_bytes: float
    extra: tuple[str, ...]
    takes_examples: bool
    takes_complex: bool


def _registered() -> dict[str, type[AbstractTransform]]:
    """The named optimizers of the library; optimizers that users define are not registered."""
    optimizers = [cls for cls in _transforms().values() if issubclass(cls, AbstractOptimizer)]
    ours = [cls for cls in optimizers if cls.__module__.startswith("modulax._rules.")]
    return {cls.__name__.lower(): cls for cls in sorted(ours, key=lambda cls: cls.__name__.lower())}


def available(pattern: str = "*") -> list[str]:
    """List the names of the optimizers that match a shell-style pattern.

        modulax.available("adam*")  # ['adam', 'adamax', 'adamaxw', 'adamc', 'adammini', 'adamuon', 'adamw']

    Args:
        pattern: shell-style pattern; by default it matches all names.
    """
    return [name for name in _registered() if fnmatch.fnmatchcase(name, pattern.lower())]


def get(name: str) -> type[Any]:
    """Return the class of an optimizer or another transform by its name, for example from a configuration file.

        optimizer = modulax.get("adamw")(1e-3, weight_decay=0.1)
        chain = modulax.Chain(modulax.get("scale_by_adam")(b1=0.95), modulax.get("scale_by_learning_rate")(1e-3))

    Args:
        name: name of the class, or of its counterpart in optax: `"AdamW"`, `"adamw"`, `"contrib.schedule_free_adamw"`,
            `"multi_transform"`. Case, underscores and hyphens are ignored.

    Raises:
        ValueError: if there is no such transform; the message suggests similar names.
    """
    if not isinstance(name, str):
        raise ValueError(f'`modulax.get` needs a name, such as `get("adamw")`, got {brief(name)}.')
    word = name.rpartition(".")[2].replace("-", "_")
    classes = _transforms()
    there = home(word)
    if cls := classes.get(plain(word)) or classes.get(plain(there or "")):
        return cls
    if there:
        raise ValueError(f"`modulax.get`: `{name}` is not an optimizer or a transform; it is `modulax.{there}`.")
    if known := known_elsewhere(word):
        raise ValueError(f"`modulax.get`: there is no optimizer or transform `{name}`. {known}")
    close = difflib.get_close_matches(plain(word), classes, n=5, cutoff=0.6)
    near = f"Did you mean {listing(classes[key].__name__ for key in close)}?" if close else "`available()` lists them."
    raise ValueError(f"`modulax.get`: there is no optimizer or transform `{name}`. {near}")


def _transforms() -> dict[str, type[AbstractTransform]]:
    """The public transforms of the library, optimizers and containers included, by their names in lower case."""
    public = inspect.getmembers(library.module, inspect.isclass)
    classes = [cls for _, cls in public if issubclass(cls, AbstractTransform) and not inspect.isabstract(cls)]
    return {plain(cls.__name__): cls for cls in classes}


def card(optimizer: str | type[AbstractOptimizer] | AbstractOptimizer) -> Card:
    """Return a `Card` with the properties of an optimizer: its requirements, state size and references.

    Args:
        optimizer: name, class, or instance of the optimizer; an instance is described with its own hyperparameters.

    Raises:
        ValueError: if there is no optimizer of this name.
    """
    cls = get(optimizer) if isinstance(optimizer, str) else optimizer
    if isinstance(cls, type) and not issubclass(cls, AbstractOptimizer):
        raise ValueError(f"`modulax.card` describes optimizers, and `{cls.__name__}` is another transform.")
    instance = _example(cls) if isinstance(cls, type) else cls
    check_part("`card`: the argument", instance)
    parts = list(everything_in(instance))
    return Card(
        name=type(instance).__name__.lower(),
        optimizer=type(instance),
        summary=" ".join((type(instance).__doc__ or "").split("\n\n")[0].split()),
        references=tuple(map(_short, cited(instance).values())),
        state_bytes=_state_bytes(instance),
        extra=tuple(required_arguments(instance)),
        takes_examples=bool(instance.example_axes),
        takes_complex=all("real" not in part.needs for part in parts),
    )


def _state_bytes(optimizer: AbstractOptimizer) -> float:
    """The bytes of moments for each entry of a large matrix."""
    state = jax.eval_shape(optimizer.init, jax.ShapeDtypeStruct(SAMPLE, jnp.float32))
    arrays = [x for x in jtu.tree_leaves(state) if x.ndim and jnp.issubdtype(x.dtype, jnp.inexact)]
    return sum(x.size * x.dtype.itemsize for x in arrays) / math.prod(SAMPLE)


def _example(cls: type[AbstractOptimizer]) -> AbstractOptimizer:
    """Construct an instance with default hyperparameters, and 1 for those without a default."""
    fields = [f for f in dataclasses.fields(cls) if f.init and f.default_factory is dataclasses.MISSING]
    required = [f.name for f in fields if f.default is dataclasses.MISSING]
    return cls(**dict.fromkeys(required, 1))


def cited(transform: AbstractTransform) -> dict[str, Reference]:
    """The papers of a transform and its parts by their keys, its own first."""
    return {key: paper for part in everything_in(transform) for key, paper in publications(type(part)).items()}


def _short(paper: Reference) -> str:
    """Authors and year of a paper, as in an in-text citation."""
    names = [name.partition(",")[0] for name in paper.author.split(" and ")]
    who = names[0] if len(names) == 1 else f"{names[0]} and {names[1]}" if len(names) == 2 else f"{names[0]} et al."
    return f"{who} {paper.year}"


def citation(optimizer: AbstractTransform) -> str:
    """Return the BibTeX entries of the papers to cite for an optimizer.

        print(modulax.citation(modulax.Chain(modulax.ClipByGlobalNorm(1.0), modulax.AdamW(1e-3))))

    Args:
        optimizer: any transform; the papers of all its parts are included.
    """
    check_part("`citation`: the argument", optimizer)
    entries = []
    for key, paper in cited(optimizer).items():
        fields = [f"  {name} = {{{value}}}," for name, value in paper._asdict().items()]
        entries.append("\n".join([f"@misc{{{key},", *fields, "}"]))
    return "\n\n".join(entries)
