"""Distributions of hyperparameters, and `sample`, which draws optimizers from them.

A space maps a number in $[0, 1)$ to a value: it is the inverse of its distribution function. So the same code serves
independent draws and quasi-random points.
"""

import abc
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np
from jaxtyping import PRNGKeyArray
from scipy.special import ndtri

from .._plugin.arguments import check_integer, check_option
from .._plugin.messages import one_line
from ..authoring import AbstractTransform
from ._sweep import Sweep, check_optimizer, combined


class Parameter(NamedTuple):
    """A space as a parameter of Optuna, and the hyperparameter that belongs to its value.

    The distribution is the name of a class in `optuna.distributions`, which only `sweeps.optuna` imports.
    """

    name: str
    distribution: str
    arguments: dict[str, Any]
    value: Callable[[Any], Any]


class AbstractSpace(abc.ABC):
    """A distribution of one hyperparameter: `Uniform`, `LogUniform`, `Normal`, `Choice`, `OneMinus`."""

    @abc.abstractmethod
    def at(self, u: float) -> Any:
        """Return the value below which a fraction `u` of the distribution lies."""

    def parameter(self, name: str) -> Parameter:
        """Return the parameter that Optuna samples for a hyperparameter: by default, the quantile, in [0, 1]."""
        bounds = {"low": 0.0, "high": 1.0}
        return Parameter(f"quantile of {name}", "FloatDistribution", bounds, lambda u: self.at(min(u, 1 - 1e-12)))

    def beyond(self, above: bool, share: float = 1.0) -> "AbstractSpace | None":
        """Return the space next to this one, half as wide, in which a better value may be; None if there is none.

        Args:
            above: whether on the side of the largest values, or of the smallest ones.
            share: the part of it that is returned, which is next to this space.
        """
        del above, share
        return None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{x!r}' for x in vars(self).values())})"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((type(self), *vars(self).values()))


Spaces: TypeAlias = dict[str, AbstractSpace]  # by the names of hyperparameters


class _AbstractInterval(AbstractSpace):
    """The numbers between two bounds."""

    is_log = False

    def __init__(self, low: float, high: float):
        self.low, self.high = float(low), float(high)
        if not (self.low < self.high and math.isfinite(self.low) and math.isfinite(self.high)):
            name = type(self).__name__
            raise ValueError(f"`{name}({self.low!r}, {self.high!r})` needs finite bounds, the lower one first.")

    def parameter(self, name: str) -> Parameter:
        """Return the parameter that Optuna samples, the hyperparameter itself."""
        bounds = {"low": self.low, "high": self.high, "log": self.is_log}
        return Parameter(name, "FloatDistribution", bounds, lambda x: x)


class Uniform(_AbstractInterval):
    """Uniform between `low` and `high`."""

    def at(self, u: float) -> float:
        r"""Return the quantile, $low + u\,(high - low)$."""
        return self.low + u * (self.high - self.low)

    def beyond(self, above: bool, share: float = 1.0) -> "Uniform | None":
        """Return the interval next to this one, half as wide. One of nonnegative numbers is not continued below 0."""
        reach = (self.high - self.low) / 2
        if above:
            return Uniform(self.high, self.high + share * reach)
        reach = reach if self.low < 0 else min(reach, self.low)
        return Uniform(self.low - share * reach, self.low) if reach else None


class LogUniform(_AbstractInterval):
    """Uniform in the logarithm between `low` and `high`, for learning rates and other scales."""

    is_log = True

    def __init__(self, low: float, high: float):
        super().__init__(low, high)
        if self.low <= 0:
            raise ValueError(
                f"`LogUniform({low!r}, {high!r})` needs positive bounds. For an interval with 0: `Uniform`."
            )

    def at(self, u: float) -> float:
        r"""Return the quantile, $low\,(high / low)^u$."""
        return math.exp(math.log(self.low) + u * (math.log(self.high) - math.log(self.low)))

    def beyond(self, above: bool, share: float = 1.0) -> "LogUniform":
        """Return the interval next to this one, half as wide in the logarithm."""
        factor = (self.high / self.low) ** (share / 2)
        return LogUniform(self.high, self.high * factor) if above else LogUniform(self.low / factor, self.low)


class Normal(AbstractSpace):
    """Normal with a mean and a standard deviation."""

    def __init__(self, mean: float, std: float):
        self.mean, self.std = float(mean), float(std)
        if not self.std > 0:
            raise ValueError(f"`Normal({mean!r}, {std!r})` needs a positive standard deviation.")

    def at(self, u: float) -> float:
        """Return the quantile, by the inverse of the error function."""
        return float(self.mean + self.std * ndtri(min(max(u, 1e-12), 1 - 1e-12)))


class Choice(AbstractSpace):
    """One of the given values, all equally likely."""

    def __init__(self, values: Sequence[Any]):
        self.values = tuple(values)
        if not self.values:
            raise ValueError("`Choice([])` has no values to choose from.")

    def at(self, u: float) -> Any:
        """Return the value whose part of $[0, 1)$ contains `u`."""
        return self.values[int(u * len(self.values))]

    def parameter(self, name: str) -> Parameter:
        """Return the parameter that Optuna samples: the value, or its text if Optuna can't store it."""
        choices = {_storable(value): value for value in self.values}
        if len(choices) < len(self.values):
            # Objects without a text of their own, such as two `WrappedSchedule`s of functions called `<lambda>`.
            choices = {f"{i}: {_storable(value)}": value for i, value in enumerate(self.values)}
        return Parameter(name, "CategoricalDistribution", {"choices": tuple(choices)}, choices.__getitem__)


def _storable(value: Any) -> Any:
    value = value.item() if isinstance(value, (np.ndarray, np.generic, jax.Array)) and not np.ndim(value) else value
    return value if value is None or isinstance(value, (bool, int, float, str)) else one_line(value)


class OneMinus(AbstractSpace):
    """One minus a value of another space, for decays: `b2=OneMinus(LogUniform(1e-4, 1e-1))` is in [0.9, 0.9999]."""

    def __init__(self, space: AbstractSpace):
        if not isinstance(space, AbstractSpace):
            raise TypeError(f"`OneMinus` takes a space, such as `OneMinus(LogUniform(1e-4, 1e-1))`, got {space!r}.")
        self.space = space

    def at(self, u: float) -> float:
        """Return one minus the value of the other space above which a fraction `u` lies."""
        return 1.0 - self.space.at(min(1.0 - u, 1 - 1e-12))  # a space is asked for quantiles below 1

    def parameter(self, name: str) -> Parameter:
        """Return the parameter that Optuna samples, that of the other space: one minus the hyperparameter."""
        inside = self.space.parameter(f"1 - {name}")
        return inside._replace(value=lambda x: 1.0 - inside.value(x))

    def beyond(self, above: bool, share: float = 1.0) -> "OneMinus | None":
        """Return one minus the space next to the other one."""
        inside = self.space.beyond(not above, share)
        return None if inside is None else OneMinus(inside)


def check_spaces(function: str, spaces: dict[str, Any]) -> None:
    """Raise an error if no space is given, or something that is not a space."""
    if not spaces:
        raise ValueError(
            f"`{function}` needs a space for at least one hyperparameter: `learning_rate=LogUniform(...)`."
        )
    for name, space in spaces.items():
        if not isinstance(space, AbstractSpace):
            values = isinstance(space, (list, tuple, np.ndarray, jax.Array))
            remedy = "Choice([...])" if values else "LogUniform(low, high)"
            raise ValueError(f"`{function}({name}=...)` must be a space, such as `sweeps.{remedy}`, got {space!r}.")


def seed_of(key: PRNGKeyArray, fold: int = 0) -> list[int]:
    """A seed for NumPy's generators from a random key of JAX."""
    bits = jax.random.key_data(jax.random.fold_in(key, fold))
    return [int(x) for x in np.asarray(bits).ravel()]


def _points(key: PRNGKeyArray, n: int, dimensions: int, sampler: str) -> np.ndarray:
    """Points in the unit cube: independent ones (`"random"`), or a scrambled Sobol sequence (`"sobol"`)."""
    generator = np.random.default_rng(seed_of(key))
    if sampler == "random":
        return generator.random((n, dimensions))
    from scipy.stats import qmc

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The balance properties")  # n need not be a power of two
        return qmc.Sobol(dimensions, rng=generator).random(n)


def sample(
    key: PRNGKeyArray, optimizer: AbstractTransform, n: int, /, *, sampler: str | None = None, **spaces: AbstractSpace
) -> Sweep:
    """Return a sweep of `n` optimizers with hyperparameters drawn from spaces.

        sweep = sweeps.sample(key, mx.AdamW(1e-3), 64, learning_rate=sweeps.LogUniform(1e-4, 1e-1),
                              b2=sweeps.OneMinus(sweeps.LogUniform(1e-4, 1e-1)))

    Args:
        key: random key.
        optimizer: the optimizer; whatever is not named is the same in all members.
        n: the number of members.
        sampler: `"random"` for independent draws, or `"sobol"` for a scrambled Sobol sequence, which covers several
            dimensions more evenly (Bergstra & Bengio, 2012, section 4). The default is `"sobol"` for more than one
            space.
        **spaces: the space of each hyperparameter, by the names of `replace`.

    Raises:
        ValueError: if a name or a space is invalid, or if a drawn value is out of the range of its hyperparameter.
    """
    check_optimizer("sweeps.sample", optimizer)
    check_integer("sweeps.sample", "n", n)
    check_spaces("sweeps.sample", spaces)
    return drawn("sweeps.sample", key, optimizer, n, spaces, sampler)[0]


def drawn(
    function: str, key: PRNGKeyArray, optimizer: AbstractTransform, n: int, spaces: Spaces, sampler: str | None = None
) -> tuple[Sweep, np.ndarray]:
    """Return `n` optimizers with hyperparameters drawn from spaces, and the quantiles, `[member, hyperparameter]`.

    Args:
        function: the function that the user called, for error messages.
        key: as in `sample`.
        optimizer: as in `sample`.
        n: as in `sample`.
        spaces: as in `sample`.
        sampler: as in `sample`.
    """
    sampler = ("sobol" if len(spaces) > 1 else "random") if sampler is None else sampler
    check_option(function, "sampler", sampler, ("random", "sobol"))
    points = _points(key, n, len(spaces), sampler)
    rows = [[space.at(u) for space, u in zip(spaces.values(), point, strict=True)] for point in points.tolist()]
    return combined(function, optimizer, spaces, rows), points
