"""Type aliases for signatures."""

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from jaxtyping import Array, Inexact, Int, PyTree

Params: TypeAlias = PyTree


Updates: TypeAlias = PyTree


State: TypeAlias = PyTree


Count: TypeAlias = Int[Array, ""]


Leaf: TypeAlias = Inexact[Array, "..."]


ScheduleFunction: TypeAlias = Callable[[Any], Any]


Follow: TypeAlias = Literal["paper", "optax"]


FollowReference: TypeAlias = Literal["reference", "paper", "optax"]
