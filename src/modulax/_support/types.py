"""Type aliases for signatures."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from jaxtyping import Array, Inexact, Int, PyTree

if TYPE_CHECKING:
    # Any: type checkers don't know `PyTree`, and report it as unknown. What comes back as `P` or `S` has the type of
    # the argument: a step returns a model of the same class.
    Params: TypeAlias = Any
    Updates: TypeAlias = Any
    State: TypeAlias = Any
    P = TypeVar("P")
    S = TypeVar("S")
else:
    Params = Updates = State = P = S = PyTree


Count: TypeAlias = Int[Array, ""]


Leaf: TypeAlias = Inexact[Array, "..."]


ScheduleFunction: TypeAlias = Callable[[Any], Any]


Follow: TypeAlias = Literal["paper", "optax"]


FollowReference: TypeAlias = Literal["reference", "paper", "optax"]
