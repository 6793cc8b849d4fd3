"""Training Flax Linen models. Needs flax: `pip install modulax[nnx]`."""

from ._train_state import TrainState as TrainState
