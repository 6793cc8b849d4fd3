"""The state classes of all transforms, for annotations and for code that reads a state. Generated."""

from ._containers.averages import ParamAverageState as ParamAverageState, ParamEMAState as ParamEMAState
from ._containers.cautious import SignGuidedState as SignGuidedState
from ._containers.chain import ChainState as ChainState
from ._containers.conditional import (
    ApplyIfFiniteState as ApplyIfFiniteState,
    ConditionallyMaskState as ConditionallyMaskState,
    ConditionallyTransformState as ConditionallyTransformState,
)
from ._containers.diloco import DiLoCoState as DiLoCoState
from ._containers.gradient_noise import GradientNoiseState as GradientNoiseState
from ._containers.injected import InjectedState as InjectedState
from ._containers.lookahead import LookaheadState as LookaheadState
from ._containers.loss_scaling import LossScalingState as LossScalingState
from ._containers.low_bit import LowBitState as LowBitState
from ._containers.masked import MaskedState as MaskedState
from ._containers.master_weights import MasterWeightsState as MasterWeightsState
from ._containers.mechanize import MechanicState as MechanicState
from ._containers.multi_steps import MultiStepsState as MultiStepsState
from ._containers.offload import OffloadState as OffloadState
from ._containers.optax_adapters import FromFunctionsState as FromFunctionsState, FromOptaxState as FromOptaxState
from ._containers.partition import PartitionState as PartitionState
from ._containers.reshaping import (
    FlattenState as FlattenState,
    SplitRealAndImaginaryState as SplitRealAndImaginaryState,
)
from ._containers.sam import SAMState as SAMState
from ._containers.schedule_free import ScheduleFreeState as ScheduleFreeState
from ._containers.spikes import SkipSpikesState as SkipSpikesState
from ._containers.stacked import StackedState as StackedState
from ._containers.stochastic_rounding import StochasticRoundingState as StochasticRoundingState
from ._protocol.container import OptimizerState as OptimizerState
from ._rules.acprop import ScaleByACPropState as ScaleByACPropState
from ._rules.adabelief import ScaleByBeliefState as ScaleByBeliefState
from ._rules.adadelta import ScaleByAdadeltaState as ScaleByAdadeltaState
from ._rules.adafactor import FactoredState as FactoredState
from ._rules.adagrad import ScaleByRSSState as ScaleByRSSState
from ._rules.adahessian import ScaleByAdaHessianState as ScaleByAdaHessianState
from ._rules.adam import ScaleByAdamState as ScaleByAdamState
from ._rules.adam_mini import ScaleByAdamMiniState as ScaleByAdamMiniState
from ._rules.adan import ScaleByAdanState as ScaleByAdanState
from ._rules.ademamix import (
    ScaleByAdEMAMixState as ScaleByAdEMAMixState,
    ScaleBySimplifiedAdEMAMixState as ScaleBySimplifiedAdEMAMixState,
)
from ._rules.adopt import ScaleByADOPTState as ScaleByADOPTState
from ._rules.aggmo import ScaleByAggMoState as ScaleByAggMoState
from ._rules.amos import ScaleByAmosState as ScaleByAmosState
from ._rules.amsgrad import ScaleByAMSGradState as ScaleByAMSGradState
from ._rules.apollo import ApolloState as ApolloState
from ._rules.came import ScaleByCAMEState as ScaleByCAMEState
from ._rules.cocob import COCOBState as COCOBState
from ._rules.dadapt import DAdaptAdamWState as DAdaptAdamWState
from ._rules.dion import DionState as DionState
from ._rules.dog import DoGState as DoGState, DoWGState as DoWGState
from ._rules.eshampoo import EShampooState as EShampooState
from ._rules.focus import ScaleByFOCUSState as ScaleByFOCUSState
from ._rules.ftrl import ScaleByFTRLState as ScaleByFTRLState
from ._rules.galore import GaLoreState as GaLoreState
from ._rules.kron import KronState as KronState
from ._rules.laprop import ScaleByLaPropState as ScaleByLaPropState
from ._rules.lbfgs import ScaleByLBFGSState as ScaleByLBFGSState
from ._rules.lion import ScaleByLionState as ScaleByLionState
from ._rules.madgrad import ScaleByMADGRADState as ScaleByMADGRADState
from ._rules.momo import MomoAdamState as MomoAdamState, MomoState as MomoState
from ._rules.muon import MuonState as MuonState
from ._rules.noise import AddNoiseState as AddNoiseState
from ._rules.normalized_muon import NormalizedMuonState as NormalizedMuonState
from ._rules.novograd import ScaleByNovoGradState as ScaleByNovoGradState
from ._rules.optimistic import ScaleByOptimisticGradientState as ScaleByOptimisticGradientState
from ._rules.privacy import DifferentiallyPrivateAggregateState as DifferentiallyPrivateAggregateState
from ._rules.prodigy import ProdigyState as ProdigyState
from ._rules.quasi_hyperbolic import ScaleByQHMState as ScaleByQHMState
from ._rules.rmsprop import ScaleByRMSState as ScaleByRMSState, ScaleByStddevState as ScaleByStddevState
from ._rules.rprop import ScaleByRpropState as ScaleByRpropState
from ._rules.shampoo import ShampooState as ShampooState
from ._rules.sm3 import ScaleBySM3State as ScaleBySM3State
from ._rules.soap import SOAPState as SOAPState
from ._rules.sophia import ScaleBySophiaState as ScaleBySophiaState
from ._rules.tiger import ScaleByTigerState as ScaleByTigerState
from ._transforms.backtracking import (
    BacktrackingLinesearchInfo as BacktrackingLinesearchInfo,
    ScaleByBacktrackingLinesearchState as ScaleByBacktrackingLinesearchState,
)
from ._transforms.by_path import MultiplierState as MultiplierState
from ._transforms.clipping import ClipByGlobalNormState as ClipByGlobalNormState
from ._transforms.constraints import ZeroNaNsState as ZeroNaNsState
from ._transforms.decayed_step import DecayedStepState as DecayedStepState
from ._transforms.distance_over_gradients import ScaleByDistanceOverGradientsState as ScaleByDistanceOverGradientsState
from ._transforms.grokfast import GrokFastMAState as GrokFastMAState, GrokFastState as GrokFastState
from ._transforms.hessian_diagonal import HutchinsonState as HutchinsonState
from ._transforms.momentum import ApplyEveryState as ApplyEveryState, EmaState as EmaState, TraceState as TraceState
from ._transforms.monitoring import (
    FirstNotFiniteState as FirstNotFiniteState,
    MeasureWithEmaState as MeasureWithEmaState,
    MonitorState as MonitorState,
    SnapshotState as SnapshotState,
)
from ._transforms.plateau import ReduceLROnPlateauState as ReduceLROnPlateauState
from ._transforms.primal_averaging import PrimalAveragingState as PrimalAveragingState
from ._transforms.running_norm import (
    ClipByNormPercentileState as ClipByNormPercentileState,
    ClipByRunningNormState as ClipByRunningNormState,
)
from ._transforms.scaling import ScaleByScheduleState as ScaleByScheduleState
from ._transforms.variance_reduction import ReduceVarianceState as ReduceVarianceState
from ._transforms.zoom import (
    ScaleByZoomLinesearchState as ScaleByZoomLinesearchState,
    ZoomLinesearchInfo as ZoomLinesearchInfo,
)
from .numerics._quantized import Quantized as Quantized
