"""A call of a function on arrays, and what it must be equal to."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

SEED = 20_240_229


@dataclass(frozen=True)
class Case:
    """One way to call a function, with an oracle and the function of optax that it replaces.

    Everything is called by keyword, so that the names of the arguments are tested as well.

    Args:
        function: of `modulax`.
        arguments: makes the arguments from a generator: NumPy arrays in float64, integers, booleans; whatever else
            there is (an axis, a function, a Python number) is passed as it is.
        oracle: the same mathematics in NumPy or SciPy in float64, given the same arguments.
        twin: the function of optax; None if it has none, or if it is wrong on these arguments.
        name: what is particular about this call.
        floats: the arguments that must be floats; an array of integers is refused. They are differentiated.
        numbers: other arrays of floats that the function is differentiated by.
        batched: the arrays whose first axis is that of the examples, which may be empty and which `vmap` may map over.
        misfits: for each of these arguments, a shape that does not fit the others.
        said_of_labels: what `checkify` says where one of `labels` is no class, whose loss is NaN.
        is_smooth: whether the derivatives exist around these arguments and can be compared with differences.
        exemptions: laws that cannot hold, and the reason.
    """

    function: Callable[..., Any]
    arguments: Callable[[np.random.Generator], dict[str, Any]]
    oracle: Callable[..., Any]
    twin: Callable[..., Any] | None = None
    name: str = ""
    floats: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    batched: tuple[str, ...] = ()
    misfits: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    said_of_labels: str = ""
    is_smooth: bool = True
    exemptions: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.function.__name__}{'-' if self.name else ''}{self.name.replace(' ', '_')}"

    @property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        return inspect.signature(self.function).parameters

    @property
    def differentiated(self) -> tuple[str, ...]:
        return self.floats + self.numbers

    def make(self, dtype: Any = np.float64, seed: int = SEED) -> dict[str, Any]:
        """The arguments, those that are arrays of floats rounded to a dtype."""
        made = self.arguments(np.random.default_rng(seed))
        return {name: _rounded(x, dtype) for name, x in made.items()}

    def parts(self, arguments: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The arrays, and what is none."""
        arrays = {name: x for name, x in arguments.items() if isinstance(x, np.ndarray | jax.Array)}
        return arrays, {name: x for name, x in arguments.items() if name not in arrays}


def _rounded(x: Any, dtype: Any) -> Any:
    return x.astype(dtype) if isinstance(x, np.ndarray) and x.dtype.kind == "f" else x


def plain(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments as NumPy knows them, in float64, for an oracle."""
    return {
        name: np.asarray(x, np.float64) if hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.floating) else x
        for name, x in arguments.items()
    }
