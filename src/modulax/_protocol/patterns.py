"""Rules by pattern: labels by the path of a leaf (`by_path`, `by_regex`), or by the class of its module (`by_type`)."""

import abc
import difflib
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax.tree_util as jtu
from jaxtyping import PyTree

from .._support.checks import listing, suggestion
from ..tree._paths import Names, key_names, leaf_paths, matches, named_leaves, nodes_without_leaves
from .masks import AbstractLabels, Call


class _AbstractPatterns(AbstractLabels):
    """Labels by pattern, of which the first that fits a leaf wins; every pattern must fit something."""

    what: ClassVar[str] = "pattern"

    def __init__(self, groups: Mapping[Any, Any], default: Any):
        # A tuple keeps the order, in which the first pattern that fits wins, and can be hashed.
        self.groups = tuple(groups.items())
        self.default = default
        patterns = list(groups)
        for i, pattern in enumerate(patterns):
            if earlier := next((x for x in patterns[:i] if self.covers(x, pattern)), None):
                raise ValueError(
                    f"`{type(self).__name__}`: {self.written(pattern)} can never match: {self.written(earlier)} "
                    f"comes first and already matches all that it would. Write it first: the first {self.what} wins."
                )

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> Any:
        # With the types of labels: a mask of 1 and 0 is refused, and must not be taken for an equal one of booleans.
        groups = tuple((pattern, type(label), label) for pattern, label in self.groups)
        return groups, type(self.default), self.default

    def __repr__(self) -> str:
        groups = ", ".join(f"{self.written(pattern)}: {label!r}" for pattern, label in self.groups)
        return f"{type(self).__name__}({{{groups}}}{'' if self.default is None else f', default={self.default!r}'})"

    @abc.abstractmethod
    def covers(self, pattern: Any, other: Any) -> bool:
        """Return whether a pattern fits whatever the other fits, in any tree."""

    @abc.abstractmethod
    def written(self, pattern: Any) -> str:
        """Return a pattern as it is written in code."""

    @abc.abstractmethod
    def fitting(self, tree: PyTree) -> tuple[list[Sequence[int]], set[int]]:
        """Return the positions of the patterns that match each leaf, in order, and of all that match something."""

    @abc.abstractmethod
    def unused(self, pattern: Any, tree: PyTree) -> str:
        """Return the error message for a pattern that fits nothing in the tree."""

    def patterns(self) -> list[tuple[str, Any]]:
        """Return the patterns, as texts without quotes, each with its label."""
        texts = [getattr(pattern, "pattern", pattern) for pattern, _ in self.groups]
        texts = [x if isinstance(x, str) else self.written(x) for x in texts]
        return [(text, label) for text, (_, label) in zip(texts, self.groups, strict=True)]

    def winners(self, tree: PyTree) -> list[str | None]:
        """Return the first pattern that fits each leaf, as in `patterns`; None if none does."""
        texts = [text for text, _ in self.patterns()]
        return [texts[fits[0]] if fits else None for fits in self.fitting(tree)[0]]

    def labels(self, tree: PyTree, *, partial: bool = False) -> list[Any]:
        """Return the label of the first pattern that fits, for each leaf."""
        fitting, used = self.fitting(tree)
        labels = [self.groups[fits[0]][1] if fits else self.default for fits in fitting]
        if not partial and self.default is None and not all(fitting):
            path = leaf_paths(tree)[list(map(bool, fitting)).index(False)]
            raise ValueError(
                f"`{self!r}`: no {self.what} matches the leaf `{path}`. Add one for it, or a label for the rest, "
                f"`{type(self).__name__}(..., default=...)`."
            )
        unused = [pattern for i, (pattern, _) in enumerate(self.groups) if i not in used]
        # A tree without leaves shows no pattern to be wrong: `tree.map_params` initializes a state with one.
        if unused and (labels or leaf_paths(tree, with_none=True)):
            raise ValueError(f"`{self._owner()}`: {self.unused(unused[0], tree)}")
        return labels

    def _owner(self) -> str:
        is_of_groups = self.default == "default" and all(pattern == label for pattern, label in self.groups)
        return "groups" if is_of_groups else str(self)


class _AbstractPathPatterns(_AbstractPatterns):
    """Labels by patterns on the paths of the leaves."""

    @abc.abstractmethod
    def fits(self, names: Names, pattern: Any) -> bool:
        """Return whether a pattern fits the path with these names."""

    def fitting(self, tree: PyTree) -> tuple[list[Sequence[int]], set[int]]:
        """Return the positions of the patterns that match each leaf, in order, and of all that match something."""
        found, used = [], set()
        for names, leaf in named_leaves(tree, with_none=True):
            fits = [i for i, (pattern, _) in enumerate(self.groups) if self.fits(names, pattern)]
            # A pattern also counts as used if an earlier one wins, or if the leaf is absent: a catch-all after
            # exhaustive patterns, or a pattern for biases in a model where they are None, is not a mistake.
            used.update(fits)
            if leaf is not None:
                found.append(fits)
        if len(used) < len(self.groups):  # nor is a pattern for a layer without parameters
            empty = nodes_without_leaves(tree)
            used.update(i for i, (p, _) in enumerate(self.groups) if any(self.fits(names, p) for names in empty))
        return found, used

    @abc.abstractmethod
    def hint(self, pattern: Any, names: Sequence[Names]) -> str:
        """Return what may be wrong with a pattern that fits none of the paths with these names."""

    def unused(self, pattern: Any, tree: PyTree) -> str:
        """Return the error message for a pattern that fits nothing in the tree."""
        names = [names for names, _ in named_leaves(tree, with_none=True)]
        paths = listing(map(".".join, names))
        text = pattern if isinstance(pattern, str) else pattern.pattern
        return f"the pattern `{text}` matches no leaf. The paths are {paths}.{self.hint(pattern, names)}"


def _forms(names: Names, pattern: str) -> list[tuple[str, str]]:
    """The forms of a path with which a pattern is compared, each with its separator."""
    path = ".".join(names)
    if "/" not in pattern:
        return [(path, ".")]
    # A key that contains `/` itself, as the names of Haiku's modules do, is also compared as error messages show it.
    return [("/".join(names), "/"), *([(path, ".")] if "/" in path else [])]


class by_path(_AbstractPathPatterns):  # noqa: N801 (read as a function: `labels=by_path({...})`)
    """Selects or labels parameters by shell-style patterns on their dotted paths; the first matching pattern wins.

        mask = by_path({"*.bias": False, "*norm*": False, "*": True})

    Use it as a mask (`Masked`, `Freeze`, weight decay) or as the labels of a `Partition`. A pattern that begins with
    `*.` also matches at the root, so `*.bias` matches both `bias` and `layers.0.bias`. A pattern with a `/` is compared
    with the path joined by `/`, as in Flax: `params/*/bias`. The exact path of a leaf is always a pattern for it, also
    if a key contains brackets.

    Args:
        patterns: mapping from pattern to label, in the order in which they are tried.
        default: label of the leaves that no pattern matches; by default, such a leaf is an error.

    Raises:
        ValueError: on use, if a pattern matches no path, or if no pattern matches a leaf; the message lists the paths.
    """

    def __init__(self, patterns: Any, default: Any = None):
        if not isinstance(patterns, Mapping) or not patterns:
            raise ValueError('`by_path` needs a mapping from patterns to labels, such as `by_path({"*": True})`.')
        super().__init__(patterns, default)

    def plain(self) -> Call:
        return Call("by_path", {"patterns": OrderedDict(self.groups), "default": self.default})

    def covers(self, pattern: str, other: str) -> bool:
        if not set("*?[") & {*other} and ("/" in other) == ("/" in pattern):  # it fits one path
            return pattern == other or matches(other, pattern, "/" if "/" in other else ".")
        # A `*` in the other stands for any text, which a `*` fits; `?` and `[...]` don't.
        return not set("?[") & {*pattern, *other} and matches(other, pattern, "/" if "/" in other else ".")

    def written(self, pattern: Any) -> str:
        return repr(pattern)

    def fits(self, names: Names, pattern: str) -> bool:
        return any(path == pattern or matches(path, pattern, separator) for path, separator in _forms(names, pattern))

    def _near(self, pattern: str, names: Sequence[Names]) -> str | None:
        """A pattern that fits something and differs in one name, or in what stands before or after it."""
        known = list(dict.fromkeys(name for path in names for name in path))
        separator = "/" if "/" in pattern else "."
        parts = pattern.split(separator)
        others = [
            separator.join([*parts[:i], name, *parts[i + 1 :]])
            for i, part in enumerate(parts)
            if not set("*?[") & set(part)
            for name in _alike(part, known)
        ]
        around = [f"*{separator}{pattern}", f"{pattern}{separator}*"] if parts[-1] != "*" else []
        around.append(re.sub(r"\[['\"]?(\w+)['\"]?\]", r".\1", pattern).lstrip("."))  # as Python or JAX writes a path
        return next((x for x in [*others, *around] if self._fits_any(names, x)), None)

    def _fits_any(self, names: Sequence[Names], pattern: str) -> bool:
        return any(self.fits(path, pattern) for path in names)

    def hint(self, pattern: str, names: Sequence[Names]) -> str:
        if near := self._near(pattern, names):
            return f" Did you mean `{near}`?"
        literal = pattern.replace("[", "[[]")
        if literal != pattern and self._fits_any(names, literal):
            return f" `[` begins a set of characters; write `{literal}` for the character itself."
        if any(c in pattern for c in "|^$\\(") or any(x in pattern and _finds(pattern, names) for x in (".*", ".+")):
            return f" This looks like a regular expression: use `by_regex({{{pattern!r}: ...}})`."
        return ""


def _alike(part: str, known: Sequence[str]) -> list[str]:
    """The names like a part of a pattern, those that differ by case only first."""
    folded = {name.lower(): name for name in known}
    return [folded[name] for name in difflib.get_close_matches(part.lower(), folded, n=3, cutoff=0.6)]


def _finds(pattern: str, names: Sequence[Names]) -> bool:
    """Whether a pattern is a regular expression that is found in one of the paths."""
    try:
        return any(re.search(pattern, path) for name in names for path, _ in _forms(name, pattern))
    except re.error:
        return False


class by_regex(_AbstractPathPatterns):  # noqa: N801
    r"""Selects or labels parameters by regular expressions on their paths; the first matching one wins.

        mask = by_regex({r".*\.(bias|scale)": False}, default=True)
        labels = by_regex({"encoder/.*": "encoder", ".*/(bias|scale)": "no_decay"}, default="rest")

    A regular expression must match the whole path (`re.fullmatch`), so write `.*bias.*` to search. It is compared with
    the dotted path, as in error messages and `modulax.tree.leaf_paths`: `params.Dense_0.kernel`. If it contains a `/`,
    it is compared with the path joined by `/`, as in Flax: `params/Dense_0/kernel`.

    Args:
        patterns: mapping from regular expression, a string or the result of `re.compile`, to label, in the order in
            which they are tried.
        default: label of the leaves that none matches; by default, such a leaf is an error.

    Raises:
        ValueError: if a pattern is not a regular expression; on use, if one matches no path, or if none matches a leaf;
            the message lists the paths.
    """

    def __init__(self, patterns: Any, default: Any = None):
        if not isinstance(patterns, Mapping) or not patterns:
            raise ValueError('`by_regex` needs a mapping from patterns to labels, such as `by_regex({".*": True})`.')
        super().__init__({_compiled(pattern): label for pattern, label in patterns.items()}, default)

    def plain(self) -> Any:
        if any(pattern.flags != re.UNICODE for pattern, _ in self.groups):
            return self
        groups = OrderedDict((pattern.pattern, label) for pattern, label in self.groups)
        return Call("by_regex", {"patterns": groups, "default": self.default})

    def covers(self, pattern: re.Pattern[str], other: re.Pattern[str]) -> bool:
        is_one_path = re.fullmatch(r"(?:[\w/]|\\\.)+", other.pattern) is not None
        fits_it = is_one_path and pattern.fullmatch(other.pattern.replace("\\.", ".")) is not None
        return fits_it or pattern.pattern in (".*", ".+", ".*?")

    def written(self, pattern: Any) -> str:
        return repr(pattern.pattern if pattern.flags == re.UNICODE else pattern)

    def fits(self, names: Names, pattern: re.Pattern[str]) -> bool:
        return any(pattern.fullmatch(path) for path, _ in _forms(names, pattern.pattern))

    def hint(self, pattern: re.Pattern[str], names: Sequence[Names]) -> str:
        if any(pattern.search(path) for name in names for path, _ in _forms(name, pattern.pattern)):
            return f" It must match the whole path: write `.*{pattern.pattern}.*` to find it anywhere."
        return ""


def _compiled(pattern: Any) -> re.Pattern[str]:
    try:
        if not isinstance(getattr(pattern, "pattern", pattern), str):
            raise TypeError("it must be a string")
        return re.compile(pattern)
    except (re.error, TypeError) as error:
        hint = "" if not isinstance(pattern, str) else " For patterns such as `*.bias`, use `by_path`."
        raise ValueError(f"`by_regex`: {pattern!r} is not a regular expression: {error}.{hint}") from error


class by_type(_AbstractPatterns):  # noqa: N801
    """Selects or labels the parameters of all modules of a class, such as the weights of all `equinox.nn.Linear`.

        mask = by_type(eqx.nn.Linear, "weight")
        mask = by_type({eqx.nn.LayerNorm: False, (eqx.nn.Linear, "bias"): False}, default=True)
        labels = by_type({eqx.nn.Embedding: "embedding", (eqx.nn.Linear, "weight"): "matrices"}, default="rest")

    A class selects every leaf in its instances, and in those of its subclasses; a pair of a class and the name of a
    field selects the leaves in that field. If several entries match a leaf, the first wins. With one class, instead of
    a mapping, the label is True, and False for all other leaves.

    The parameters must be a tree with modules, as in Equinox; so must the gradients, which `equinox.filter_grad` and
    `jax.grad` return. For NNX, use `modulax.nnx.labels`; for Linen and Haiku, whose parameters are dicts, `by_path`.

    Args:
        classes: mapping from class, or from pair of class and field, to label, in the order in which they are tried; or
            one class.
        field: name of a field, if `classes` is one class.
        default: label of all other leaves; by default, such a leaf is an error, or has the label False if `classes` is
            one class.

    Raises:
        ValueError: on use, if there is no module of a class, or no field of the name; the message lists those that
            there are.
    """

    what = "class"

    def __init__(self, classes: Any, field: str | None = None, default: Any = None):
        if isinstance(classes, type):
            classes, default = {(classes, field): True}, False if default is None else default
        elif field is not None or not isinstance(classes, Mapping) or not classes:
            raise ValueError(_CALLS)
        groups = {x if isinstance(x, tuple) else (x, None): label for x, label in classes.items()}
        if not all(map(_is_class_and_field, groups)):
            raise ValueError(_CALLS)
        super().__init__(groups, default)

    def covers(self, pattern: Any, other: Any) -> bool:
        return issubclass(other[0], pattern[0]) and pattern[1] in (None, other[1])

    def written(self, pattern: Any) -> str:
        cls, field = pattern
        return cls.__name__ if field is None else f"({cls.__name__}, {field!r})"

    def fitting(self, tree: PyTree) -> tuple[list[Sequence[int]], set[int]]:
        """Return the positions of the patterns that match each leaf, in order, and of all that match something."""
        leaves, nodes = nodes_of(tree)
        used = set()
        below: dict[tuple[Any, ...], list[int]] = {}  # the patterns that a node fits, by its path
        for path, node in nodes.items():
            for i, ((cls, field), _) in enumerate(self.groups):
                if isinstance(node, cls):
                    below.setdefault(path, []).append(i)
                    used.update([i] if field is None or (hasattr(node, field) and field not in _static(node)) else [])
        found = [self._fitting_at(path, below) for path in leaves]
        used.update(*found)
        return found, used

    def _fitting_at(self, path: tuple[Any, ...], below: Mapping[tuple[Any, ...], list[int]]) -> Sequence[int]:
        """The patterns of the nodes on a path that fit its end: all of it, or the field that it goes through."""
        around = [(i, path[n : n + 1]) for n in range(len(path) + 1) for i in below.get(path[:n], ())]
        return sorted({i for i, field in around if self.groups[i][0][1] in (None, *key_names(field))})

    def unused(self, pattern: Any, tree: PyTree) -> str:
        """Return the error message for a class without instances, or for a field that they don't have."""
        cls, field = pattern
        leaves, nodes = nodes_of(tree)
        found = [node for node in nodes.values() if isinstance(node, cls)]
        if found:
            return f"`{cls.__name__}` has {_fields_instead(found[0], field)}"
        parents = (node for path, node in nodes.items() if path not in {*leaves} and node is not None)
        classes = dict.fromkeys(map(type, parents))
        remedy = "" if any(x.__module__ != "builtins" for x in classes) else " Use `by_path` for trees without modules."
        return (
            f"there is no `{cls.__name__}` in the parameters. They consist of "
            f"{listing(x.__name__ for x in classes)}.{remedy}"
        )


def _fields_instead(node: Any, field: str) -> str:
    given = getattr(node, "_fields", None) or getattr(node, "__dict__", ())
    names = [name for name in given if not name.startswith("_") and name not in _static(node)]
    what = "no parameters in its" if hasattr(node, field) else "no"
    return f"{what} field `{field}`.{suggestion(field, names)} It has {listing(names)}."


def _is_class_and_field(x: tuple[Any, ...]) -> bool:
    return isinstance(x[0], type) and isinstance(x[-1], str | None) and len(x) == 2


def _static(node: Any) -> set[str]:
    """The names of the static fields of a module, which hold no parameters."""
    fields = getattr(node, "__dataclass_fields__", {}).values()
    return {field.name for field in fields if field.metadata.get("static")}


_CALLS = (
    '`by_type` needs a class and perhaps a field, `by_type(eqx.nn.Linear, "weight")`, or a mapping from classes, or '
    'pairs of class and field, to labels: `by_type({eqx.nn.LayerNorm: False, (eqx.nn.Linear, "bias"): False}, '
    "default=True)`."
)


def nodes_of(tree: PyTree) -> tuple[list[tuple[Any, ...]], dict[tuple[Any, ...], Any]]:
    """The key paths of the leaves of a tree, in order, and all its nodes by key path, the leaves included."""
    nodes: dict[tuple[Any, ...], Any] = {}

    def visit(path: tuple[Any, ...], node: Any) -> bool:
        nodes[path] = node
        return False

    leaves = jtu.tree_leaves_with_path(tree, is_leaf=visit, is_leaf_takes_path=True)
    return [path for path, _ in leaves], nodes
