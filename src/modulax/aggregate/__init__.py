"""Aggregate per-example gradients to one update: means over one or more batches, and their variance."""

from ._aggregators import (
    AccumulateAvgUpdates as AccumulateAvgUpdates,
    AccumulateAvgUpdatesState as AccumulateAvgUpdatesState,
    AverageIncrementallyUpdates as AverageIncrementallyUpdates,
    AveragePerElementUpdates as AveragePerElementUpdates,
)
from ._base import (
    AbstractAggregator as AbstractAggregator,
    Aggregator as Aggregator,
    AggregatorUpdateFn as AggregatorUpdateFn,
    get_batch_size_from_per_elt_updates as get_batch_size_from_per_elt_updates,
)
from ._process import AddMeanVarianceToOpt as AddMeanVarianceToOpt, Process as Process, ProcessState as ProcessState
from ._statistics import (
    GetPerElementMeanAndSumSqDiffGrads as GetPerElementMeanAndSumSqDiffGrads,
    PerElementMeanAndSumSqDiffGradsState as PerElementMeanAndSumSqDiffGradsState,
    PerElementMeanAndVarianceEMAState as PerElementMeanAndVarianceEMAState,
    TrackPerElementMeanAndVarianceWithEma as TrackPerElementMeanAndVarianceWithEma,
    get_unbiased_mean_and_variance_ema as get_unbiased_mean_and_variance_ema,
)
