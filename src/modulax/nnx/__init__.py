"""Training Flax NNX models. Needs flax: `pip install modulax[nnx]`."""

from flax import nnx as _nnx

from .._support.flax_nodes import check_nnx as _check_nnx

_check_nnx(_nnx)

from ._optimizer import Hyperparameter as Hyperparameter, Optimizer as Optimizer, labels as labels  # noqa: E402
