"""Losses: functions of what a model says and what it should have said, one value for every example."""

from ._fenchel_young import (
    make_fenchel_young_loss as make_fenchel_young_loss,
    multiclass_sparsemax_loss as multiclass_sparsemax_loss,
    sparsemax_loss as sparsemax_loss,
)
from ._regression import (
    cosine_distance as cosine_distance,
    cosine_similarity as cosine_similarity,
    huber_loss as huber_loss,
    l2_loss as l2_loss,
    log_cosh as log_cosh,
    squared_error as squared_error,
)
