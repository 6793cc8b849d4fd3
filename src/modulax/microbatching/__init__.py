"""Microbatching (gradient accumulation): evaluate a function on parts of a large batch, one after another."""

from ._accumulators import AccumulationType as AccumulationType, Accumulator as Accumulator
from ._batch_axis import reshape_batch_axis as reshape_batch_axis
from ._gradients import IndividualOutputs as IndividualOutputs, micro_grad as micro_grad
from ._microbatch import micro_vmap as micro_vmap, microbatch as microbatch
from ._noise_scale import critical_batch as critical_batch
