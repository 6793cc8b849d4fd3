"""The laws in order, and `check_transform`, which runs them all."""

import dataclasses
import difflib
from collections.abc import Callable, Collection, Mapping
from typing import Any

from .._protocol.transform import AbstractTransform
from .._support.checks import listing
from .._support.types import Params
from . import _containers, _numbers, _programs, _storage, _trees
from ._case import Case, default_params, is_installed


@dataclasses.dataclass(frozen=True)
class Law:
    """A promise that every transform makes.

    Args:
        name: its name, for `exempt=`.
        check: a function of a case that raises if the transform breaks the law.
    """

    name: str
    check: Callable[[Case], None]

    @property
    def statement(self) -> str:
        """What is promised, and how it is kept: the docstring of the law."""
        lines = (self.check.__doc__ or "").strip().splitlines()
        return "\n".join(line.strip() for line in lines)

    def speaks_of(self, case: Case) -> bool:
        """Whether there is something to check; a transform without numbers cannot break a law on them."""
        packages = getattr(self.check, "packages", ())
        condition = getattr(self.check, "condition", lambda case: True)
        return all(map(is_installed, packages)) and condition(case)


def _collected() -> dict[str, Law]:
    """The functions called `law_…` of all modules of laws, in the order in which they are written."""
    laws: dict[str, Law] = {}
    for module in (_trees, _programs, _numbers, _containers, _storage):
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
    """Checks a transform of your own against every law that those of modulax obey.

        from modulax.testing import check_transform

        def test_my_transform():
            check_transform(MyTransform(0.1))

    Laws that need flax, optax or orbax are checked where these are installed. It takes some seconds:
    programs are compiled for many dtypes and containers.

    Args:
        transform: the transform.
        params: parameters to try it on; by default a small nested tree of vectors, matrices, scalars.
        extra: the extra arguments that its `update` needs, or a function of `(params, updates)` that
            returns them.
        exempt: the names of laws that do not hold, best as a mapping from name to reason. The names
            are in `modulax.testing.LAWS`.
        examples: how many examples its updates shall have on a leading axis, if it takes examples.

    Raises:
        AssertionError: names each law that is broken, and says what was expected.
    """
    if not isinstance(transform, AbstractTransform):
        raise TypeError(f"`check_transform` checks transforms, got {transform!r}.")
    for name in exempt:
        if name not in LAWS:
            close = difflib.get_close_matches(name, LAWS, n=1)
            hint = f" Did you mean `{close[0]}`?" if close else ""
            raise ValueError(
                f"`check_transform(exempt=...)`: there is no law `{name}`.{hint} "
                f"There are {listing(LAWS, limit=len(LAWS))}."
            )
    case = Case(transform, default_params() if params is None else params, extra or {}, examples=examples)
    broken = []
    for name, law in LAWS.items():
        if name in exempt or not law.speaks_of(case):
            continue
        try:
            law.check(case)
        except Exception as error:  # whatever it is, the author wants to know of the other laws too
            broken.append((law, error))
    if broken:
        raise AssertionError(_report(transform, broken)) from broken[0][1]


def _report(transform: AbstractTransform, broken: list[tuple[Law, Exception]]) -> str:
    """The broken laws, each with what it promises and what was found."""
    count = "a law" if len(broken) == 1 else f"{len(broken)} laws"
    parts = [f"`{transform!r}` breaks {count} that every transform obeys."]
    for law, error in broken:
        kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
        found = f"{kind}{error}".strip()
        statement = law.statement.replace("\n", "\n    ")
        parts.append(f"Law `{law.name}`:\n    {statement}\n  But: " + found.replace("\n", "\n    "))
    parts.append("A law that cannot hold is excused by `check_transform(..., exempt={name: reason})`.")
    return "\n\n".join(parts)
