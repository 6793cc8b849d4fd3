"""What the optimizers of matrices share that leave all other parameters to AdamW: Muon and its family."""

from typing import Any

from .._containers.chain import Chain
from .._containers.partition import Partition
from .._protocol.masks import AbstractLabels
from .._protocol.small_steps import largest
from .._protocol.transform import AbstractTransform, Effect
from .._support.checks import listing
from .._support.types import Params
from .._transforms.matrices import MatrixLabels, mistaken_for_matrices, without_role
from .._transforms.regularization import AddDecayedWeights
from .._transforms.scaling import ScaleByLearningRate
from .adam import AdamW

_LARGE = 0.01  # AdamW diverges on a transformer with the learning rate 0.02 of Muon


def beside_adamw(
    optimizer: Any, matrices: AbstractLabels, *direction: AbstractTransform, argument: str = "roles", **adam: Any
) -> Partition:
    """Return the transform of matrices, and AdamW for all other parameters.

    Args:
        optimizer: the optimizer, which has the hyperparameters of both.
        matrices: labels that tell which parameters are matrices.
        direction: the transforms of the matrices before weight decay and learning rate.
        argument: the argument of the optimizer from which the labels are, to name in error messages.
        adam: arguments of AdamW that not all of these optimizers have.
    """
    muon = Chain(
        *direction,
        AddDecayedWeights(optimizer.weight_decay, optimizer.mask, cautious=optimizer.cautious_weight_decay),
        ScaleByLearningRate(optimizer.learning_rate),
    )
    own_rate = optimizer.adam_learning_rate
    adamw = AdamW(
        optimizer.learning_rate if own_rate is None else own_rate,
        optimizer.adam_b1,
        optimizer.adam_b2,
        mu_dtype=optimizer.mu_dtype,
        weight_decay=optimizer.adam_weight_decay,
        **adam,
    )
    call = f"{type(optimizer).__name__}({argument}=...)"
    return Partition({"muon": muon, "adam": adamw}, MatrixLabels(call, matrices, "muon", "adam"))


def names_that_deny(optimizer: Any, matrices: AbstractLabels, tree: Params) -> list[str]:
    """Return a warning for each array that an optimizer takes for a matrix, and whose name denies it."""
    return [
        f"`{path}` is trained as a matrix, and `{word}` sounds like something else. Give its role, "
        f'`{type(optimizer).__name__}(roles={{"{path}": Embedding()}})`, or `Hidden()` if it is a matrix.'
        for path, word in mistaken_for_matrices(matrices, tree)
    ]


def mistakes_beside_adamw(optimizer: Any, matrices: AbstractLabels, tree: Params) -> Effect:
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
