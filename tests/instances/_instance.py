"""The arguments of tests of all transforms."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

from ._masks import KERNELS, not_bias


@dataclasses.dataclass(frozen=True, eq=False)
class Instance:
    """A transform or a schedule under test.

    Args:
        name: what the test is called.
        make: builds it, from no arguments.
        optax: builds its optax counterpart, if it has one.
        extra: the extra arguments that `update` needs, or a function of parameters and updates that returns them.
        exemptions: the laws that do not hold, by name, with the reason. They are expected to fail.
        rtol: how far two ways of computing the same may differ in float32.
        optax_rtol: how far optax may differ in double precision: more where a part of it is in float32.
        examples: how many examples its updates have on a leading axis, if it takes examples.
        updates: a function of the parameters that returns the updates on which it is compared with optax, if it is
            meant for some only, such as gradients of one loss, or steps that lead downhill.
    """

    name: str
    make: Callable[[], Any]
    optax: Callable[[], Any] | None = None
    extra: Mapping[str, Any] | Callable[[Any, Any], Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    exemptions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    rtol: float = 1e-6
    optax_rtol: float = 1e-12
    examples: int = 0
    updates: Callable[[Any], Any] | None = None

    @functools.cached_property
    def made(self) -> Any:
        """What is built, once."""
        return self.make()

    @property
    def cls(self) -> type:
        """The class of what is built."""
        return type(self.made)

    def __str__(self) -> str:
        return self.name


def twins(name: str, ours: Callable[..., Any], theirs: Callable[..., Any], *args: Any, **kwargs: Any) -> Instance:
    """An instance and its counterpart from the same arguments. For optax, a mask is a function, and `follow` absent."""
    given = {key: not_bias if value is KERNELS else value for key, value in kwargs.items() if key != "follow"}
    return Instance(name, functools.partial(ours, *args, **kwargs), functools.partial(theirs, *args, **given))


# Laws that do not hold, and why.
ROUNDED = {"gradients_are_finite_and_right": "a state in float32: finite differences measure its rounding"}
