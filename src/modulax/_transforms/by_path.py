"""Multipliers by parameter: of each path, and by depth."""

import abc
import functools
import operator
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import PyTree

from .._protocol.fields import Number, required_number, required_numbers
from .._protocol.leafwise import AbstractLeafwise
from .._protocol.masks import AbstractLabels, as_labels
from .._protocol.patterns import by_path
from .._protocol.schedule import has_schedule, is_schedule
from .._protocol.transform import Effect, EmptyState
from .._support.checks import POSITIVE, check_integer
from .._support.module import AbstractState, counter
from .._support.types import Count, Shared
from ..tree._paths import leaf_paths


class MultiplierState(AbstractState):
    """State of multipliers that follow a schedule: step count."""

    count: Shared[Count] = counter()


def _as_multipliers(given: Any) -> OrderedDict[str, Any]:
    if not isinstance(given, Mapping) or not given or not all(isinstance(x, str) for x in given):
        raise ValueError(
            "`ScaleByPath` needs a mapping from patterns to multipliers, such as "
            f'`ScaleByPath({{"head.*": 10.0, "*": 1.0}})`, got {given!r}.'
        )
    # JAX sorts the keys of a plain dict, and the first pattern that fits wins.
    return OrderedDict(given)


class AbstractMultiplier(AbstractLeafwise):
    """Multiplies the update of every parameter by a number that its path chooses."""

    @abc.abstractmethod
    def _rule(self) -> AbstractLabels:
        """Return the labels of the leaves."""

    @abc.abstractmethod
    def _multiplier(self, label: Any) -> Any:
        """Return the multiplier of the leaves with a label; a tuple of them for blocks that are stacked."""

    def _labels(self, tree):
        return self._rule().labels(tree)

    def _by_label(self, tree):
        return {label: self._multiplier(label) for label in dict.fromkeys(self._labels(tree))}

    def init_leaf(self, p):
        """Return a step count if a number is a schedule."""
        del p
        # A constant needs no step count, so that a chain of constants has no counter in its state.
        return MultiplierState() if has_schedule(self) else EmptyState()

    def where(self, tree):
        """Return the multiplier of every leaf, in JAX's order; an array of them for blocks that are stacked."""
        found = self._by_label(tree)
        values = {k: jnp.stack(x) if isinstance(x, tuple) and not has_schedule(x) else x for k, x in found.items()}
        return [values[k] for k in self._labels(tree)]

    def multipliers_of(self, tree: PyTree) -> list[Any]:
        """Return the multiplier of every leaf, in JAX's order; a tuple of them for blocks that are stacked.

        Args:
            tree: the parameters, or a tree like them.
        """
        found = self._by_label(tree)
        return [found[k] for k in self._labels(tree)]

    def multipliers_by_pattern(self) -> list[tuple[str, Any]]:
        """Return pairs of a pattern and its multiplier, for a log; for stacked blocks a tuple of multipliers."""
        return [(text, self._multiplier(k)) for text, k in self._rule().patterns()]

    def patterns_of(self, tree: PyTree) -> list[str | None]:
        """Return the pattern of every leaf, in JAX's order; None for a leaf that has its multiplier without one.

        Args:
            tree: the parameters, or a tree like them.
        """
        return self._rule().winners(tree)

    def _effect(self, tree):
        return Effect(self.multipliers_of(tree))


class ScaleByPath(AbstractMultiplier):
    r"""Multiplies the update of every parameter by a number chosen by its path: a learning rate per layer.

    $$
    u = m_{\text{path}}\, g
    $$

    Place it after the optimizer, where it multiplies the learning rate:

        Chain(AdamW(1e-3), ScaleByPath({"head.*": 10.0, "blocks.0.*": 0.5, "*": 1.0}))

    A decoupled weight decay is multiplied too, as in a parameter group of PyTorch with its own `lr`. The multipliers
    are hyperparameters, named by their patterns, and each may be a schedule:

        optimizer.replace(**{"head.*": 5.0})
        sweeps.grid(optimizer, **{"head.*": [1.0, 3.0, 10.0]})
        optimizer.hyperparameters()["head.*"]

    Args:
        multipliers: mapping from pattern to multiplier $m$. The patterns are those of `by_path`: the first one that
            matches a path wins. A path without a pattern, or a pattern that matches no path, is an error.
    """

    multipliers: Any = required_numbers(arranged=_as_multipliers)

    def _rule(self):
        return by_path({pattern: i for i, pattern in enumerate(self.multipliers)})

    def _multiplier(self, label: Any) -> Any:
        return list(self.multipliers.values())[label]

    def update_leaf(self, now, g, s, p):
        del p
        return now * g, s


class ScaleByDepth(AbstractMultiplier):
    r"""Multiplies the update of every parameter by a power of one factor: layer-wise learning rate decay (LLRD).

    $$
    u = \gamma^{k}\, g
    $$

    `layerwise_decay` computes the exponents $k$ from a model. All multipliers follow from the factor, so a change, a
    sweep or a schedule of the factor moves all of them:

        optimizer = layerwise_decay(AdamW(1e-3), model, 0.75)
        optimizer.replace(factor=0.65)

    Placed after the optimizer, it multiplies a decoupled weight decay too, as timm and BEiT do.

    Args:
        factor: factor $\gamma$ from one layer to the next.
        exponents: $k$ of every leaf: patterns, `by_path({"embedding*": 3, "blocks.0.*": 2, ...})`, a tree of integers
            with the structure of the parameters or a prefix of it, or a function of the parameters that returns such a
            tree. For blocks that are stacked in one array, a tuple with one exponent per block.
        axis: the axis along which blocks are stacked.

    References:
        Howard and Ruder, [Universal Language Model Fine-tuning for Text Classification](https://arxiv.org/abs/1801.06146),
        2018. Bao et al., [BEiT: BERT Pre-Training of Image Transformers](https://arxiv.org/abs/2106.08254), 2021.
    """

    factor: Number = required_number(needs=POSITIVE._replace(usual=(0, 1)))
    exponents: Any = eqx.field(static=True, converter=as_labels)
    axis: int = eqx.field(static=True, default=0)

    def check(self):
        if self.exponents is None:
            raise ValueError('`ScaleByDepth` needs `exponents`, such as `by_path({"blocks.0.*": 1, "*": 0})`.')
        check_integer("ScaleByDepth", "axis", self.axis, least=0)

    def _rule(self):
        return self.exponents

    def _labels(self, tree):
        labels = super()._labels(tree)
        for path, label in zip(leaf_paths(tree), labels, strict=True):
            if not all(type(k) is int for k in (label if isinstance(label, tuple) else (label,))):
                raise ValueError(
                    f"`ScaleByDepth(exponents=...)` needs an integer for every leaf, or a tuple of integers for "
                    f"stacked blocks, got {label!r} at `{path}`."
                )
        return labels

    def _multiplier(self, label: Any) -> Any:
        return tuple(map(self._power, label)) if isinstance(label, tuple) else self._power(label)

    def _power(self, exponent):
        if is_schedule(self.factor):  # for `describe`; in `update` it is a number
            # Arithmetic on schedules has no power.
            power = functools.reduce(operator.mul, [self.factor] * abs(exponent)) if exponent else 1.0
            return power if exponent >= 0 else 1.0 / power
        return self.factor**exponent

    def update_leaf(self, now, g, s, p):
        del p
        if now.ndim:
            if g.ndim <= self.axis or g.shape[self.axis] != now.size:
                raise ValueError(
                    f"`ScaleByDepth(axis={self.axis})` has the exponents of {now.size} stacked blocks for an array of "
                    f"shape {g.shape}."
                )
            now = now.reshape([-1 if i == self.axis else 1 for i in range(g.ndim)])
        return now * g, s
