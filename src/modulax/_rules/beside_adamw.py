"""What the optimizers of matrices share that leave all other parameters to AdamW: Muon and its family."""

from typing import Any, ClassVar

from .. import authoring as ma
from .._containers.partition import Partition
from .._protocol.masks import AbstractLabels
from .._protocol.schedule_values import largest
from .._protocol.transform import Effect
from .._roles.find import as_roles
from .._support.checks import listing
from .._transforms.matrices import MatrixLabels, mistaken_for_matrices, without_role
from .adam import AdamW

_LARGE = 0.01  # AdamW diverges on a transformer with the learning rate 0.02 of Muon


class AbstractByRole(ma.AbstractFields):
    """What each parameter of a model is, by which an optimizer treats it.

    Args:
        roles: roles of parameters for which they are not found, or found wrongly: a mapping from patterns to roles, or
            the result of `roles(model)`.
    """

    _: ma.KW_ONLY
    roles: Any = ma.static(None, converter=as_roles)


class AbstractAdamForOthers(ma.AbstractFields):
    r"""The hyperparameters of AdamW for the parameters that an optimizer leaves to it.

    Args:
        adam_b1: exponential decay rate of AdamW's first moment.
        adam_b2: exponential decay rate of AdamW's second moment.
        adam_weight_decay: weight decay coefficient of AdamW, multiplied by its learning rate.
        adam_learning_rate: learning rate of AdamW, a number or a schedule; None for $\eta$.
    """

    _: ma.KW_ONLY
    adam_b1: ma.Number = ma.number(0.9, needs=ma.DECAY)
    adam_b2: ma.Number = ma.number(0.95, needs=ma.DECAY)
    adam_weight_decay: ma.Number = ma.number(0.0)
    adam_learning_rate: ma.OptionalNumber = ma.number(None, optional=True)


class AbstractBesideAdamW(AbstractByRole, AbstractAdamForOthers, ma.AbstractDecayed, ma.AbstractRated):
    r"""An optimizer of matrices, beside AdamW for all other parameters.

    Args:
        weight_decay: weight decay coefficient $\lambda$ of the matrices, multiplied by the learning rate.
        mask: which matrices decay, as in `AddDecayedWeights`; by default all.
        mu_dtype: dtype of the momentum and of AdamW's first moment; by default that of the parameters.
        cautious_weight_decay: whether only entries of matrices decay that the update moves towards zero, as in
            `AddDecayedWeights(cautious=True)`.
    """

    _matrices_from: ClassVar[str] = "roles"
    """The argument that tells which parameters are matrices, to name in error messages."""

    mu_dtype: ma.DTypeLike | None = ma.static(None)
    _: ma.KW_ONLY
    cautious_weight_decay: bool = ma.static(False)

    def _matrices(self) -> AbstractLabels:
        """Return labels that tell which parameters are matrices."""
        return self.roles

    def _adamw(self, **options: Any) -> AdamW:
        """Return the optimizer of all other parameters.

        Args:
            options: arguments of AdamW that not all of these optimizers have.
        """
        return AdamW(
            self.learning_rate if self.adam_learning_rate is None else self.adam_learning_rate,
            self.adam_b1,
            self.adam_b2,
            mu_dtype=self.mu_dtype,
            weight_decay=self.adam_weight_decay,
            **options,
        )

    def _effect(self, tree: ma.Params) -> Effect:
        return mistakes_beside_adamw(self, self._matrices(), tree)

    def directions(self):
        return [self._part(self.direction, weight_dimension_numbers=self._matrices())]

    def decays(self):
        return [ma.AddDecayedWeights(self.weight_decay, self.mask, cautious=self.cautious_weight_decay)]

    def transform(self) -> Partition:
        call = f"{type(self).__name__}({self._matrices_from}=...)"
        labels = MatrixLabels(call, self._matrices(), "muon", "adam")
        return Partition({"muon": super().transform(), "adam": self._adamw()}, labels)


class AbstractBesideOwnAdamW(AbstractBesideAdamW):
    r"""`AbstractBesideAdamW`, where AdamW has an $\varepsilon$ of its own.

    Args:
        adam_eps: AdamW's $\varepsilon$.
    """

    _: ma.KW_ONLY
    adam_eps: ma.Number = ma.number(1e-8)

    def _adamw(self, **options: Any) -> AdamW:
        return super()._adamw(eps=self.adam_eps, **options)


def names_that_deny(optimizer: Any, matrices: AbstractLabels, tree: ma.Params) -> list[str]:
    """Return a warning for each array that an optimizer takes for a matrix, and whose name denies it."""
    return [
        f"`{path}` is trained as a matrix, and `{word}` sounds like something else. Give its role, "
        f'`{type(optimizer).__name__}(roles={{"{path}": Embedding()}})`, or `Hidden()` if it is a matrix.'
        for path, word in mistaken_for_matrices(matrices, tree)
    ]


def mistakes_beside_adamw(optimizer: Any, matrices: AbstractLabels, tree: ma.Params) -> Effect:
    """Return warnings of matrices that may be none, and of a learning rate that is too large for AdamW.

    Args:
        optimizer: the optimizer.
        matrices: labels that tell which parameters are matrices.
        tree: the parameters.
    """
    warnings = names_that_deny(optimizer, matrices, tree)
    name = type(optimizer).__name__
    if found := without_role(matrices, tree):
        warnings.append(
            f"AdamW trains {listing(found)}: what the axes mean isn't known. If these are matrices, give their roles, "
            f'`{name}(roles={{"{found[0]}": Hidden(fan_in=-2, fan_out=-1)}})`; else `Other()`.'
        )
    # With `consistent_rms`, the matrices have steps like those of AdamW.
    suits = optimizer.adam_learning_rate is not None or optimizer.consistent_rms is not None
    rate = None if suits else largest(optimizer.learning_rate)
    if rate and rate > _LARGE and "adam" in MatrixLabels(name, matrices, "muon", "adam").labels(tree):
        warnings.append(
            f"AdamW trains the other parameters with the learning rate of the matrices, {rate:.7g}, which is "
            f"large for it. Give it one, `{name}({rate:.7g}, adam_learning_rate=3e-4)`; or let the matrices move "
            f"as in AdamW, `{name}(3e-4, consistent_rms=0.2)`."
        )
    return Effect(warnings=warnings)
