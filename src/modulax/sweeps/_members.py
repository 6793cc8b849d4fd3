"""A sequence of members as a table of what differs between them: of a `Sweep`, or of what a folder says of one."""

import abc
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ._html import columns_of, html_rows


class AbstractMembers(Sequence[Any]):
    """The members of a sweep, which show as a table.

    Attributes:
        names: the names of the hyperparameters that vary, as the caller wrote them, and their dotted paths.
        labels: what each member is called.
    """

    names: dict[str, tuple[str, ...]]
    labels: tuple[str, ...]

    @abc.abstractmethod
    def __getitem__(self, index: Any) -> Any:
        """Return a member."""

    @abc.abstractmethod
    def _all_values(self) -> list[dict[str, Any]]:
        """Return a dict per member: the values that may differ between members, by dotted path."""

    def __repr__(self) -> str:
        counts = dict.fromkeys(self.labels, 0) | Counter(self.labels)
        classes = ", ".join(f"{count} x {label}" for label, count in counts.items())
        return f"Sweep({classes}; varied: {', '.join(columns_of(self.table())[1:]) or 'nothing'})"

    def _repr_html_(self) -> str:
        return html_rows(repr(self), self.table())

    def table(self) -> list[dict[str, Any]]:
        """Return a dict per member: what it is called under `"optimizer"`, and the hyperparameters that vary.

        An optimizer is named by its class, a container also by its parts: `ClipByGlobalNorm > AdamW` is a chain. You
        can pass your own names to `concat`.

        `pandas.DataFrame` takes it as it is. A member has no entry for a hyperparameter that its class doesn't have.
        """
        values = self._all_values()
        columns = self.names | {path: (path,) for path in self._varied(values)}
        rows = []
        for label, of_one in zip(self.labels, values, strict=True):
            row: dict[str, Any] = {"optimizer": label}
            for name, paths in columns.items():  # of several values with one name, the first
                row.update((name, of_one[path]) for path in reversed(paths) if path in of_one)
            rows.append(row)
        return rows

    def _varied(self, values: Sequence[Mapping[str, Any]]) -> list[str]:
        """The paths of what differs between members, besides what the caller named."""
        explicit = [path for paths in self.names.values() for path in paths]
        seen: dict[tuple[str, str], Any] = {}
        varied = []
        for label, of_one in zip(self.labels, values, strict=True):
            for path, value in of_one.items():
                # Only within a class: that two classes have other defaults says nothing about the sweep.
                if seen.setdefault((label, path), value) != value:
                    varied.append(path)
        return [path for path in varied if not any(_contains(path, x) or _contains(x, path) for x in explicit)]


def _contains(path: str, other: str) -> bool:
    return f"{other}.".startswith(f"{path}.")
