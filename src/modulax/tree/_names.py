"""What a name refers to: a whole path, the end of one, or a shell-style pattern; and the error if that is unclear.

A path is a tuple of keys. The end of a path consists of whole keys.
"""

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from .._support.checks import listing, suggestion
from .._support.wrong_calls import meant_by
from ._paths import matches

Path = tuple[Any, ...]
SomePath = TypeVar("SomePath", bound=Path)


class NamingError(KeyError, ValueError):
    """A name refers to nothing, or to several values where one is wanted."""

    def __str__(self) -> str:
        return str(self.args[0])  # a KeyError would show its repr


def joined(path: Sequence[Any]) -> str:
    """The dotted form of a path."""
    return ".".join(map(str, path))


def as_argument(name: str, value: str = "...") -> str:
    """A name and its value as they are written in a call: as a keyword, or in a mapping if the name has dots."""
    return f"{name}={value}" if name.isidentifier() else f'**{{"{name}": {value}}}'


def ends_with(path: Path, name: str) -> bool:
    """Whether a name, as it is written, is a path or the end of one."""
    is_candidate = joined(path).endswith(name)  # most paths are not
    return is_candidate and any(joined(path[start:]) == name for start in range(len(path)))


def fits(path: Path, pattern: str) -> bool:
    """Whether a shell-style pattern matches a path or the end of one."""
    text = joined(path)
    return matches(text, pattern) or matches(text, f"*.{pattern}")


def is_pattern(name: str) -> bool:
    """Whether a name contains wildcards."""
    return any(c in name for c in "*?[")


def paths_named(paths: Iterable[SomePath], name: str) -> list[SomePath]:
    """Return the paths that a name refers to: the whole path, else those that end with it, else all that it matches.

    A key may contain wildcards, so that a name is a pattern only if no path ends with it.
    """
    paths = list(paths)
    whole = [path for path in paths if joined(path) == name]
    ending = whole or [path for path in paths if ends_with(path, name)]
    return ending or [path for path in paths if is_pattern(name) and fits(path, name)]


def outermost(paths: Iterable[SomePath]) -> list[SomePath]:
    """The paths that are not inside another one of them that comes before."""
    chosen: dict[SomePath, None] = {}
    for path in paths:
        # Prefixes are looked up in a dict, because two loops over the paths would take quadratic time.
        if not any(path[:length] in chosen for length in range(len(path) + 1)):
            chosen[path] = None
    return list(chosen)


def unknown_name(
    call: str, name: str, paths: Iterable[Path], among: Iterable[str] = (), what: str = "`{}`"
) -> NamingError:
    """The error for a name that refers to nothing: it lists the paths, and suggests one of them or of `among`."""
    paths = list(dict.fromkeys(paths))
    names, ends = [joined(path) for path in paths], [str(path[-1]) for path in paths if path]
    meant = meant_by(name, ends)
    close = f" Did you mean {listing(meant)}?" if meant else suggestion(name, [*names, *ends, *among])
    return NamingError(f"`{call}`: there is no {what.format(name)}.{close} There are {listing(names)}.")


def ambiguous_name(call: str, paths: Iterable[Path], remedy: str = "Write one of them.") -> NamingError:
    """The error for a name that refers to several values where one is wanted."""
    return NamingError(f"`{call}` is ambiguous: it could be {listing(map(joined, paths))}. {remedy}")
