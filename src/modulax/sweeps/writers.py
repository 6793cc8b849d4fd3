"""Writers: hooks that log the runs of a sweep, as CSV files or to TensorBoard, Weights & Biases or MLflow.

Pass one as `on_segment` to `sweeps.run` or to a search, for example `on_segment=sweeps.writers.CSV("logs")`.
"""

from ._writers import (
    CSV as CSV,
    AbstractWriter as AbstractWriter,
    MLflow as MLflow,
    TensorBoard as TensorBoard,
    WandB as WandB,
)
