"""An object-oriented optimizer library for JAX, in which an optimizer is a pytree."""

from . import numerics as numerics, schedules as schedules, tree as tree
from ._containers.accumulation import MultiSteps as MultiSteps, MultiStepsState as MultiStepsState
from ._containers.chain import Chain as Chain, ChainState as ChainState
from ._containers.partition import (
    Freeze as Freeze,
    Masked as Masked,
    MaskedState as MaskedState,
    Partition as Partition,
    PartitionState as PartitionState,
)
from ._containers.schedule import (
    Injected as Injected,
    InjectedState as InjectedState,
    OptimizerState as OptimizerState,
    Scheduled as Scheduled,
)
from ._describe import Description as Description, LeafDescription as LeafDescription, describe as describe
from ._leafwise import AbstractLeafwise as AbstractLeafwise
from ._module import AbstractState as AbstractState
from ._optimizers.adam import (
    Adam as Adam,
    AdamW as AdamW,
    Lion as Lion,
    NAdam as NAdam,
    NAdamW as NAdamW,
    RMSProp as RMSProp,
)
from ._optimizers.base import AbstractOptimizer as AbstractOptimizer
from ._optimizers.sgd import SGD as SGD
from ._optimizers.tuning_free import (
    COCOB as COCOB,
    DAdaptAdamW as DAdaptAdamW,
    DoG as DoG,
    DoWG as DoWG,
    MoMo as MoMo,
    MoMoAdam as MoMoAdam,
    PolyakSGD as PolyakSGD,
    Prodigy as Prodigy,
)
from ._rules import by_path as by_path
from ._schedule import (
    AbstractSchedule as AbstractSchedule,
    Hyperparameter as Hyperparameter,
    Number as Number,
    number as number,
)
from ._sharding import state_sharding as state_sharding
from ._transform import (
    AbstractStatelessTransform as AbstractStatelessTransform,
    AbstractTransform as AbstractTransform,
    EmptyState as EmptyState,
    apply_updates as apply_updates,
)
from ._transforms.adaptive import (
    ScaleByAdam as ScaleByAdam,
    ScaleByAdamState as ScaleByAdamState,
    ScaleByLion as ScaleByLion,
    ScaleByLionState as ScaleByLionState,
    ScaleByRMS as ScaleByRMS,
    ScaleByRMSState as ScaleByRMSState,
    ScaleByStddev as ScaleByStddev,
    ScaleByStddevState as ScaleByStddevState,
)
from ._transforms.basic import Identity as Identity, SetToZero as SetToZero, Stateless as Stateless
from ._transforms.clipping import Clip as Clip, ClipByGlobalNorm as ClipByGlobalNorm
from ._transforms.distance import (
    COCOBState as COCOBState,
    DoGState as DoGState,
    DoWGState as DoWGState,
    InitialStep as InitialStep,
    ScaleByCOCOB as ScaleByCOCOB,
    ScaleByDoG as ScaleByDoG,
    ScaleByDoWG as ScaleByDoWG,
)
from ._transforms.momentum import Ema as Ema, EmaState as EmaState, Trace as Trace, TraceState as TraceState
from ._transforms.regularization import AddDecayedWeights as AddDecayedWeights
from ._transforms.scaling import (
    Scale as Scale,
    ScaleByLearningRate as ScaleByLearningRate,
    ScaleBySchedule as ScaleBySchedule,
    ScaleByScheduleState as ScaleByScheduleState,
)
from ._transforms.step_size import (
    MomoAdamState as MomoAdamState,
    MomoState as MomoState,
    ScaleByDistanceOverGradients as ScaleByDistanceOverGradients,
    ScaleByDistanceOverGradientsState as ScaleByDistanceOverGradientsState,
    ScaleByMoMo as ScaleByMoMo,
    ScaleByMoMoAdam as ScaleByMoMoAdam,
    ScaleByPolyak as ScaleByPolyak,
)
from ._transforms.tuning_free import (
    DAdaptAdamWState as DAdaptAdamWState,
    ProdigyState as ProdigyState,
    ScaleByDAdaptAdam as ScaleByDAdaptAdam,
    ScaleByProdigy as ScaleByProdigy,
)
