"""Type aliases for signatures."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional, TypeAlias, TypeVar

import jax
import numpy as np
from jaxtyping import Array, Float, Inexact, Int, PyTree

ARRAY_TYPES = (jax.Array, np.ndarray, np.generic)

if TYPE_CHECKING:
    # Any: type checkers don't know `PyTree`, and report it as unknown. What comes back as `P` or `S` has the type of
    # the argument: a step returns a model of the same class.
    Params: TypeAlias = Any
    Updates: TypeAlias = Any
    State: TypeAlias = Any
    P = TypeVar("P")
    S = TypeVar("S")
    # A field with one value for all parameters is None in the state of one array only, which users never see.
    Shared: TypeAlias = Annotated[P, "shared"]
else:
    Params = Updates = State = P = S = PyTree
    Shared = Optional


Count: TypeAlias = Int[Array, ""]


Scalar: TypeAlias = Float[Array, ""]


Leaf: TypeAlias = Inexact[Array, "..."]


ScheduleFunction: TypeAlias = Callable[[Any], Any]


Follow: TypeAlias = Literal["paper", "optax"]


FollowReference: TypeAlias = Literal["reference", "paper", "optax"]
