"""Losses: functions of what a model says and what it should have said, one value for every example."""

from ._ctc import (
    ctc_loss as ctc_loss,
    ctc_loss_with_forward_probs as ctc_loss_with_forward_probs,
)
from ._regression import (
    cosine_distance as cosine_distance,
    cosine_similarity as cosine_similarity,
    huber_loss as huber_loss,
    l2_loss as l2_loss,
    log_cosh as log_cosh,
    squared_error as squared_error,
)
