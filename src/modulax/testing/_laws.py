"""The ordered collection of laws, and `check_transform`, which checks all of them."""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from .._plugin.messages import listing, suggestion
from ..authoring import AbstractTransform, Params
from . import _containers, _fields, _numbers, _programs, _storage, _trees
from ._case import Case, default_params, is_installed


@dataclasses.dataclass(frozen=True)
class Law:
    """A property that every transform has.

    Args:
        name: its name, for `exempt=`.
        check: function of a case that raises if the transform breaks the law.
    """

    name: str
    check: Callable[[Case], None]

    @property
    def statement(self) -> str:
        """The property, and how to ensure it: the docstring of the law."""
        lines = (self.check.__doc__ or "").strip().splitlines()
        return "\n".join(line.strip() for line in lines)

    def speaks_of(self, case: Case) -> bool:
        """Whether the law applies to a case; a law on hyperparameters doesn't apply to a transform without any."""
        packages = getattr(self.check, "packages", ())
        condition = getattr(self.check, "condition", lambda case: True)
        return all(map(is_installed, packages)) and condition(case)


def _collected() -> dict[str, Law]:
    """Collect the functions called `law_…` of all law modules, in the order of their definition."""
    laws: dict[str, Law] = {}
    for module in (_trees, _programs, _numbers, _fields, _containers, _storage):
        for function_name, function in vars(module).items():
            if function_name.startswith("law_"):
                name = function_name.removeprefix("law_")
                laws[name] = Law(name, function)
    return laws


LAWS = _collected()


def check_transform(
    transform: AbstractTransform,
    params: Params = None,
    *,
    extra: Mapping[str, Any] | Callable[[Any, Any], Mapping[str, Any]] | None = None,
    exempt: Collection[str] = (),
    examples: int = 0,
) -> None:
    """Check a transform of your own against every law that the transforms of modulax obey.

        from modulax.testing import check_transform

        def test_my_transform():
            check_transform(MyTransform(0.1))

    Laws that need flax, optax or orbax are checked if these are installed. It takes some seconds, because programs are
    compiled for many dtypes and containers.

    Args:
        transform: the transform.
        params: parameters to test with; by default a small nested tree of vectors, matrices and scalars.
        extra: extra arguments for its `update`, or a function of `(params, updates)` that returns them.
        exempt: names of laws that do not hold, preferably as a mapping from name to reason. The names are in
            `modulax.testing.LAWS`.
        examples: number of examples on a leading axis of the updates, if the transform takes per-example gradients.

    Raises:
        AssertionError: if laws are broken; it names each of them and says what was expected.
        TypeError: if `transform` is not a transform.
        ValueError: if `exempt` names an unknown law.
    """
    if not isinstance(transform, AbstractTransform):
        raise TypeError(f"`check_transform` needs a transform, got {transform!r}.")
    if unknown := next((name for name in exempt if name not in LAWS), None):
        raise ValueError(
            f"`check_transform(exempt=...)`: there is no law `{unknown}`.{suggestion(unknown, list(LAWS))} "
            f"The laws are {listing(LAWS, limit=len(LAWS))}."
        )
    case = Case(transform, default_params() if params is None else params, extra or {}, examples=examples)
    broken = broken_laws(case, [law for name, law in LAWS.items() if name not in exempt])
    if broken:
        raise AssertionError(report_of(transform, broken)) from broken[0][1]


def broken_laws(case: Case, laws: Iterable[Law]) -> list[tuple[Law, Exception]]:
    """All laws that a case breaks, not only the first, with the errors."""
    broken = []
    for law in laws:
        if law.speaks_of(case):
            try:
                law.check(case)
            except Exception as error:
                broken.append((law, error))
    return broken


def report_of(transform: AbstractTransform, broken: list[tuple[Law, Exception]]) -> str:
    """Describe the broken laws: what each of them says, and what was found."""
    count = "a law" if len(broken) == 1 else f"{len(broken)} laws"
    parts = [f"`{transform!r}` breaks {count} that every transform obeys."]
    for law, error in broken:
        kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
        found = f"{kind}{error}".strip()
        statement = law.statement.replace("\n", "\n    ")
        parts.append(f"Law `{law.name}`:\n    {statement}\n  But: " + found.replace("\n", "\n    "))
    parts.append("Exempt a law that cannot hold by `check_transform(..., exempt={name: reason})`.")
    return "\n\n".join(parts)
