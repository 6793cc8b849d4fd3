"""The optimizers of matrices that leave all other parameters to AdamW: Muon and its family."""

import abc
from collections.abc import Sequence
from typing import Any

import equinox as eqx

from .._containers.chain import Chain
from .._containers.partition import Partition
from .._protocol.fields import Hyperparameter, OptionalNumber
from .._protocol.masks import AbstractLabels
from .._protocol.optimizer import AbstractOptimizer
from .._protocol.small_steps import largest
from .._protocol.transform import AbstractTransform, Effect
from .._support.types import Params, State
from .._transforms.matrices import MatrixLabels, mistaken_for_matrices
from .._transforms.regularization import AddDecayedWeights
from .._transforms.scaling import ScaleByLearningRate
from .adam import AdamW

_LARGE = 0.01  # AdamW diverges on a transformer with the learning rate 0.02 of Muon


def likely_mistakes(name: str, matrices: AbstractLabels, tree: Params) -> list[str]:
    """Return a warning for each array that an optimizer takes for a matrix, and whose name denies it."""
    return [
        f"`{path}` is trained as a matrix, and `{word}` sounds like something else. Give its role, "
        f'`{name}(roles={{"{path}": Embedding()}})`, or `Hidden()` if it is a matrix.'
        for path, word in mistaken_for_matrices(matrices, tree)
    ]


class AbstractBesideAdamW(AbstractOptimizer):
    """An optimizer of the matrices of hidden layers, with AdamW for all other parameters.

    A subclass declares the hyperparameters of both, and defines the direction of the matrices.
    """

    learning_rate: eqx.AbstractVar[Hyperparameter]
    weight_decay: eqx.AbstractVar[Hyperparameter]
    mask: eqx.AbstractVar[Any]
    mu_dtype: eqx.AbstractVar[Any]
    cautious_weight_decay: eqx.AbstractVar[bool]
    adam_b1: eqx.AbstractVar[Hyperparameter]
    adam_b2: eqx.AbstractVar[Hyperparameter]
    adam_weight_decay: eqx.AbstractVar[Hyperparameter]
    adam_learning_rate: eqx.AbstractVar[OptionalNumber]
    roles: eqx.AbstractVar[Any]

    @abc.abstractmethod
    def _direction(self, matrices: AbstractLabels) -> Sequence[AbstractTransform]:
        """The transforms of the matrices before weight decay and learning rate."""

    @abc.abstractmethod
    def _adam_options(self) -> dict[str, Any]:
        """The arguments of AdamW that not all of these optimizers have."""

    def _matrices(self) -> AbstractLabels:
        """The labels that tell which parameters are matrices."""
        return self.roles

    def _has_rate_of_adam(self) -> bool:
        """Whether the learning rate of AdamW is its own, or suits both."""
        return self.adam_learning_rate is not None

    def _effect(self, tree: Params, state: State | None = None) -> Effect:
        del state
        name = type(self).__name__
        warnings = likely_mistakes(name, self._matrices(), tree)
        rate = None if self._has_rate_of_adam() else largest(self.learning_rate)
        if rate and rate > _LARGE and "adam" in self._labels().labels(tree):
            remedy = f"Give it one, `{name}({rate:.7g}, adam_learning_rate=3e-4)`"
            if getattr(self, "consistent_rms", 0.0) is None:
                remedy += f"; or let the matrices move as in AdamW, `{name}(3e-4, consistent_rms=0.2)`"
            warnings.append(
                f"AdamW trains the other parameters with the learning rate of the matrices, {rate:.7g}, which is "
                f"large for it. {remedy}."
            )
        return Effect(warnings=warnings)

    def _labels(self) -> MatrixLabels:
        argument = "roles" if self._matrices() is self.roles else "muon_weight_dimension_numbers"
        return MatrixLabels(f"{type(self).__name__}({argument}=...)", self._matrices(), "muon", "adam")

    def transform(self) -> Partition:
        muon = Chain(
            *self._direction(self._matrices()),
            AddDecayedWeights(self.weight_decay, self.mask, cautious=self.cautious_weight_decay),
            ScaleByLearningRate(self.learning_rate),
        )
        adam = AdamW(
            self.learning_rate if self.adam_learning_rate is None else self.adam_learning_rate,
            self.adam_b1,
            self.adam_b2,
            mu_dtype=self.mu_dtype,
            weight_decay=self.adam_weight_decay,
            **self._adam_options(),
        )
        return Partition({"muon": muon, "adam": adam}, self._labels())
