"""Masks and labels: which leaves of the parameters a transform applies to.

A user gives a tree, a function of the parameters, or patterns (`patterns.py`). `as_labels`, the converter of such
fields, makes `AbstractLabels` of each. These are static, so they hash and compare by value: equal ones do not retrace.
Their method `labels(tree)` lists one label per leaf, in JAX's order; `mask_of` requires them to be booleans. It is
called while tracing, with the parameters in `init` and the updates in `update`, so that labels must not depend on their
values.

`select` restricts a tree to the chosen leaves, with None at all others, and `merge` puts new leaves back.
"""

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer
from jaxtyping import PyTree

from .._support.checks import listing
from .._support.tracing import call_user
from ..tree._paths import (
    Names,
    leaf_paths,
    leaves_by_names,
    leaves_with_paths,
    longest_prefix,
    matches,
    named_leaves,
    nodes_without_leaves,
)


class Call(NamedTuple):
    """A call of a function that makes labels, for `to_config`.

    Args:
        function: its public name, or one that `from_config` knows.
        arguments: its arguments.
    """

    function: str
    arguments: Mapping[str, Any]


def is_call(x: object) -> bool:
    """Whether it is a call of a function of modulax."""
    return isinstance(x, Call)


class AbstractLabels(abc.ABC):
    """A label for every leaf of any tree. It is static: it hashes and compares by value."""

    @abc.abstractmethod
    def labels(self, tree: PyTree, *, partial: bool = False) -> list[Any]:
        """Return the label of each leaf of `tree`, in JAX's order; absent leaves (None) are skipped.

        Args:
            tree: the parameters, or a tree like them.
            partial: whether a leaf without a label gets the label None; otherwise it is an error.
        """

    def bound(self, find: Callable[[Any], Any]) -> "AbstractLabels":
        """Return labels that know the roles of one model, if they depend on roles; else these.

        Args:
            find: a function of roles by pattern that returns the roles of the model.
        """
        del find
        return self

    def refuse_unused(self, owner: object, tree: PyTree) -> None:  # noqa: B027 (most labels have nothing to refuse)
        """Raise an error if something that the labels name is nowhere in the parameters, unless `labels` raises it.

        Args:
            owner: the transform that has the labels.
            tree: the parameters.
        """

    def plain(self) -> Any:
        """Return what the labels were made of, a tree of plain values or a `Call`; the labels themselves otherwise."""
        return self

    def patterns(self) -> list[tuple[str, Any]]:
        """Return the patterns that the labels are made of, as texts, each with its label; empty if there are none."""
        return []

    def winners(self, tree: PyTree) -> list[str | None]:
        """Return the pattern by which each leaf has its label, in JAX's order; None if it has it without one.

        Args:
            tree: the parameters, or a tree like them.
        """
        return [None] * len(jtu.tree_leaves(tree))


@dataclasses.dataclass(frozen=True, repr=False)
class _Function(AbstractLabels):
    """Labels from a function of the tree that returns a tree of labels."""

    function: Callable[[PyTree], PyTree]

    def __repr__(self) -> str:
        return getattr(self.function, "__qualname__", repr(self.function))

    def labels(self, tree: PyTree, *, partial: bool = False) -> list[Any]:
        with jax.ensure_compile_time_eval():  # `jnp.bool_(True)` is a value in a trace too
            try:
                labels = call_user(self.function, tree)
            except Exception as error:
                self._refuse_other_arguments(tree, 1, error)
                raise
            # One label for the whole tree is a valid result, unless the function returns several for the leaves.
            if isinstance(labels, (bool, str)):
                self._refuse_other_arguments(tree, 2)
        return _Tree.of(labels).labels(tree, partial=partial)

    def _refuse_other_arguments(self, tree: PyTree, least: int, error: Exception | None = None) -> None:
        """Raise an error if the function returns at least so many different labels when it is called for each leaf."""
        leaves = leaves_with_paths(tree)
        for calls in ([(path,) for path, _ in leaves], [(x,) for _, x in leaves], leaves):
            try:
                labels = {call_user(self.function, *call) for call in calls}
            except Exception:
                continue
            if len(labels) >= least and all(isinstance(label, (bool, str)) for label in labels):
                raise ValueError(
                    f"`{self!r}` is called with the whole tree of parameters, and not with each path or leaf. Write "
                    '`by_path({"*bias": False, "*": True})` for paths, and `lambda params: jax.tree.map(lambda p: '
                    "p.ndim > 1, params)`, or `jax.tree_util.tree_map_with_path`, for leaves."
                ) from error


@dataclasses.dataclass(frozen=True, repr=False)
class _Not(AbstractLabels):
    """A mask that is true where another one is false."""

    mask: AbstractLabels

    def __repr__(self) -> str:
        return f"not_in({self.mask!r})"

    def refuse_unused(self, owner: object, tree: PyTree) -> None:
        self.mask.refuse_unused(owner, tree)

    def plain(self) -> Call:
        return Call("not_in", {"mask": self.mask})

    def labels(self, tree: PyTree, *, partial: bool = False) -> list[Any]:
        labels = self.mask.labels(tree, partial=partial)
        return [not label if isinstance(label, bool) else label for label in labels]

    def bound(self, find: Callable[[Any], Any]) -> AbstractLabels:
        mask = self.mask.bound(find)
        return self if mask is self.mask else _Not(mask)


@dataclasses.dataclass(frozen=True, repr=False)
class _Tree(AbstractLabels):
    """Labels from a tree with the structure of the parameters, or a prefix of it.

    Trees of equal structure are paired by position, all others by the names of their keys, so a dict may be given for
    a FrozenDict, and a list for a tuple. A label may name a layer without parameters.
    """

    treedef: Any
    # With their types: a mask of 1 and 0 is refused, and must not be taken for an equal one of booleans.
    leaves: tuple[tuple[type, Any], ...]

    @classmethod
    def of(cls, tree: PyTree) -> "_Tree":
        """Return the labels in a tree."""
        leaves, treedef = jtu.tree_flatten(tree)
        return cls(treedef, tuple((type(x), x) for x in map(_as_label, leaves)))

    def __repr__(self) -> str:
        return repr(self.plain())

    def plain(self) -> Any:
        return jtu.tree_unflatten(self.treedef, [label for _, label in self.leaves])

    def labels(self, tree: PyTree, *, partial: bool = False) -> list[Any]:
        if jtu.tree_structure(tree) == self.treedef:
            return [label for _, label in self.leaves]
        labels = leaves_by_names("tree of labels", self.plain())
        unused, found = set(labels), []
        for names, leaf in named_leaves(tree, with_none=True):
            prefix = longest_prefix(names, labels)
            unused.discard(prefix)
            if leaf is None:
                continue
            if prefix is None and not partial:
                raise self._lacking(".".join(names), [".".join(names) for names in labels], tree)
            found.append(None if prefix is None else labels[prefix])
        if unused:
            self._refuse_unknown(unused, tree)
        return found

    def _lacking(self, path: str, known: list[str], tree: PyTree) -> ValueError:
        hint = " A key that contains a dot is not a path; use `by_path({...})`." * (path in known)
        if isinstance(given := self.plain(), Mapping):
            hint = _patterns_meant(given, tree) or hint
        return ValueError(f"The tree of labels has no label for the leaf `{path}`; it has {listing(known)}.{hint}")

    def _refuse_unknown(self, unused: set[Names], tree: PyTree) -> None:
        paths, empty = leaf_paths(tree, with_none=True), nodes_without_leaves(tree)
        # There is nothing to label in a tree without leaves, which `tree.map_params` initializes a state with.
        if paths and (unknown := [names for names in unused if longest_prefix(names, empty) is None]):
            raise ValueError(
                f"The tree of labels has {listing(sorted('.'.join(names) for names in unknown))}, which the parameters "
                f"don't have. The leaves of the parameters are {listing(paths)}."
            )


def _as_label(leaf: Any) -> Any:
    """A leaf of a mask or of a tree of labels as a Python value."""
    if not isinstance(leaf, (jax.Array, np.ndarray, np.bool_)):
        return leaf
    if isinstance(leaf, Tracer):
        raise ValueError("A mask or a tree of labels must not depend on the values of the parameters, got a tracer.")
    if leaf.shape or leaf.dtype != bool:
        raise ValueError(
            f"A mask or a tree of labels must hold Python values such as `True`, got an array of shape "
            f"{leaf.shape}. Write `bool(...)`, or give a function of the parameters that returns the tree."
        )
    return bool(leaf)


def as_labels(x: Any) -> AbstractLabels | None:
    """Convert a mask or labels. A callable Module is a tree of labels; a plain callable is a function."""
    if x is None or isinstance(x, AbstractLabels):
        return x
    # `callable` alone would take a tree of labels that is a callable Module for a function.
    is_plain_leaf = jtu.all_leaves([x])
    return _Function(x) if callable(x) and is_plain_leaf else _Tree.of(x)


# What a constructor takes: booleans for each leaf, a function of the parameters, or `by_path`, `by_role` and the like.
Mask: TypeAlias = Any


def mask() -> Any:
    """Declare a field that selects leaves of the parameters; None, the default, selects all."""
    return eqx.field(static=True, default=None, converter=as_labels)


def not_in(mask: Any) -> AbstractLabels:
    """Negate a mask."""
    labels = as_labels(mask)
    assert labels is not None
    return _Not(labels)


def mask_of(owner: object, mask: AbstractLabels, tree: PyTree, argument: str = "mask") -> list[bool]:
    """The labels of a mask, which must be booleans; the owner is a transform, or its name."""
    name = owner if isinstance(owner, str) else type(owner).__name__
    try:
        labels = mask.labels(tree)
    except ValueError as error:
        hint = _patterns_meant(mask.plain(), tree) if type(mask.plain()) in (list, tuple) else ""
        message = (
            str(error).replace("tree of labels has no label", "mask has no entry").replace("tree of labels", "mask")
        )
        raise ValueError(f"`{name}({argument}=...)`: {message}{hint}") from error
    for path, label in zip(leaf_paths(tree), labels, strict=True):
        if not isinstance(label, bool):
            raise ValueError(
                f"`{name}({argument}=...)` needs `True` or `False` for every leaf, got {label!r} at `{path}`."
                f"{_patterns_meant(mask.plain(), tree)}"
            )
    return labels


def _patterns_meant(x: Any, tree: PyTree) -> str:
    """What to write for names or patterns that were given without `by_path`, if each of them matches a path."""
    given = x.items() if isinstance(x, Mapping) else [(n, True) for n in (x if isinstance(x, (list, tuple)) else [x])]
    groups, paths = {}, leaf_paths(tree)
    for name, label in given:
        groups |= {_pattern_meant(name, paths) if isinstance(label, (bool, str)) else None: label}
    rest = groups.pop("*", next((not x for x in groups.values() if isinstance(x, bool)), None))
    groups |= {} if rest is None else {"*": rest}
    return f" For patterns, write `by_path({groups})`." if groups and None not in groups else ""


def _pattern_meant(name: Any, paths: Sequence[str]) -> str | None:
    """The pattern, a name or with `*` before and after it, that matches a path."""
    forms = (name, f"*.{name}", f"{name}.*", f"*.{name}.*", f"*{name}*") if isinstance(name, str) else ()
    return next((form for form in forms if any(matches(path, form) for path in paths)), None)


def mask_or_all(owner: object, mask: AbstractLabels | None, tree: PyTree, argument: str = "mask") -> list[bool] | None:
    """The labels of a mask, which must be booleans; None, which means all leaves, if there is no mask."""
    return None if mask is None else mask_of(owner, mask, tree, argument)


def merge(tree: PyTree, part: PyTree, chosen: Sequence[bool]) -> PyTree:
    """Replace the chosen leaves of a tree by the leaves of `part`, which has only these."""
    leaves, treedef = jtu.tree_flatten(tree)
    remaining = iter(jtu.tree_leaves(part))
    return treedef.unflatten([next(remaining) if c else x for x, c in zip(leaves, chosen, strict=True)])


def select(tree: PyTree, keep: Sequence[bool]) -> PyTree:
    """Replace all leaves except those to keep by None."""
    leaves, treedef = jtu.tree_flatten(tree)
    # None and no placeholder, as for absent leaves in Equinox.
    return treedef.unflatten([x if k else None for x, k in zip(leaves, keep, strict=True)])
