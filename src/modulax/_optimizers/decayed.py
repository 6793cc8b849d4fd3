"""The end that most optimizers share: weight decay as in AdamW, and the learning rate."""

from typing import Any

from .._containers.chain import Chain
from .._protocol.transform import AbstractTransform
from .._transforms.regularization import AddDecayedWeights
from .._transforms.scaling import ScaleByLearningRate


def decayed(optimizer: Any, *directions: AbstractTransform) -> Chain:
    """Return a chain that adds the decayed weights to a direction, and multiplies by the learning rate.

    Args:
        optimizer: the optimizer, with the fields `weight_decay`, `mask` and `learning_rate`.
        directions: the transforms of the direction.
    """
    decay = AddDecayedWeights(optimizer.weight_decay, optimizer.mask)
    return Chain(*directions, decay, ScaleByLearningRate(optimizer.learning_rate))
