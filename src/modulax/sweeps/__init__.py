"""Sweeps: many optimizers trained together, in one compiled program per structure, and searches that stand on it."""

from . import writers as writers
from ._compare import Comparison as Comparison, SearchSpace as SearchSpace, compare as compare
from ._coordinates import CoordinateCheck as CoordinateCheck, coordinate_check as coordinate_check
from ._hooks import Row as Row
from ._hypergradient import (
    Hypergradient as Hypergradient,
    checkpointed_scan as checkpointed_scan,
    hypergradient as hypergradient,
)
from ._loaded import load as load, merge as merge
from ._lr_finder import RangeTest as RangeTest, lr_finder as lr_finder
from ._optuna import optuna as optuna
from ._over import over as over
from ._pbt import pbt as pbt
from ._results import Results as Results
from ._run import halving as halving, run as run
from ._spaces import (
    AbstractSpace as AbstractSpace,
    Choice as Choice,
    LogUniform as LogUniform,
    Normal as Normal,
    OneMinus as OneMinus,
    Uniform as Uniform,
    sample as sample,
)
from ._sweep import Sweep as Sweep, concat as concat, grid as grid, zipped as zipped
from ._training import Trainable as Trainable
