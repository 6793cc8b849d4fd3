"""Large batches in small parts: a function of a batch, evaluated on one part after the other."""

from ._accumulators import AccumulationType as AccumulationType, Accumulator as Accumulator
from ._batch_axis import reshape_batch_axis as reshape_batch_axis
from ._gradients import IndividualOutputs as IndividualOutputs, micro_grad as micro_grad
from ._microbatch import micro_vmap as micro_vmap, microbatch as microbatch
