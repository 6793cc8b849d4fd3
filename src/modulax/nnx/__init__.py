"""Training Flax NNX models. Needs flax: `pip install modulax[nnx]`."""

from ._optimizer import Hyperparameter as Hyperparameter, Optimizer as Optimizer, labels as labels
