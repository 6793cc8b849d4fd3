"""An object-oriented optimizer library for JAX, in which an optimizer is a pytree."""

import typing as _typing

from . import (
    aggregate as aggregate,
    assignment as assignment,
    estimators as estimators,
    linalg as linalg,
    losses as losses,
    microbatching as microbatching,
    numerics as numerics,
    perturbations as perturbations,
    projections as projections,
    schedules as schedules,
    second_order as second_order,
    tree as tree,
)
from ._containers.accumulation import (
    MultiSteps as MultiSteps,
    MultiStepsState as MultiStepsState,
    skip_large_updates as skip_large_updates,
    skip_not_finite as skip_not_finite,
)
from ._containers.adapters import (
    FromOptax as FromOptax,
    FromOptaxState as FromOptaxState,
    from_optax as from_optax,
    to_optax as to_optax,
    with_extra_args_support as with_extra_args_support,
)
from ._containers.chain import (
    Chain as Chain,
    ChainState as ChainState,
)
from ._containers.gating import (
    ApplyIfFinite as ApplyIfFinite,
    ApplyIfFiniteState as ApplyIfFiniteState,
    ConditionallyMask as ConditionallyMask,
    ConditionallyMaskState as ConditionallyMaskState,
    ConditionallyTransform as ConditionallyTransform,
    ConditionallyTransformState as ConditionallyTransformState,
)
from ._containers.injection import (
    Injected as Injected,
    InjectedState as InjectedState,
    inject_hyperparams as inject_hyperparams,
)
from ._containers.lookahead import (
    Lookahead as Lookahead,
    LookaheadState as LookaheadState,
)
from ._containers.mechanic import (
    MechanicState as MechanicState,
    Mechanize as Mechanize,
)
from ._containers.partition import (
    Freeze as Freeze,
    Masked as Masked,
    MaskedState as MaskedState,
    Partition as Partition,
    PartitionState as PartitionState,
    selective_transform as selective_transform,
)
from ._containers.reshaping import (
    Flatten as Flatten,
    FlattenState as FlattenState,
    RealAndImaginary as RealAndImaginary,
    SplitRealAndImaginary as SplitRealAndImaginary,
    SplitRealAndImaginaryState as SplitRealAndImaginaryState,
)
from ._containers.schedule import (
    OptimizerState as OptimizerState,
    Scheduled as Scheduled,
)
from ._containers.schedule_free import (
    ScheduleFree as ScheduleFree,
    ScheduleFreeState as ScheduleFreeState,
    schedule_free_eval_params as schedule_free_eval_params,
)
from ._containers.sharpness import (
    SAM as SAM,
    SAMState as SAMState,
)
from ._describe import (
    Description as Description,
    LeafDescription as LeafDescription,
    describe as describe,
)
from ._leafwise import (
    AbstractLeafwise as AbstractLeafwise,
)
from ._module import (
    AbstractState as AbstractState,
    like_params as like_params,
    nested as nested,
    shared as shared,
)
from ._optimizers.adagrad import (
    Adadelta as Adadelta,
    Adagrad as Adagrad,
)
from ._optimizers.adam import (
    Adam as Adam,
    AdamW as AdamW,
    Lion as Lion,
    NAdam as NAdam,
    NAdamW as NAdamW,
    RMSProp as RMSProp,
)
from ._optimizers.adam_family import (
    AdaBelief as AdaBelief,
    Adamax as Adamax,
    AdamaxW as AdamaxW,
    Adan as Adan,
    AMSGrad as AMSGrad,
    NovoGrad as NovoGrad,
    OptimisticAdam as OptimisticAdam,
    OptimisticGradientDescent as OptimisticGradientDescent,
    RAdam as RAdam,
    Yogi as Yogi,
)
from ._optimizers.base import (
    AbstractOptimizer as AbstractOptimizer,
)
from ._optimizers.factored import (
    SM3 as SM3,
    Adafactor as Adafactor,
)
from ._optimizers.galore import (
    GaLore as GaLore,
)
from ._optimizers.layerwise import (
    LAMB as LAMB,
    LARS as LARS,
    Fromage as Fromage,
)
from ._optimizers.lbfgs import (
    LBFGS as LBFGS,
)
from ._optimizers.mixtures import (
    ADOPT as ADOPT,
    MADGRAD as MADGRAD,
    ACProp as ACProp,
    AdEMAMix as AdEMAMix,
    SimplifiedAdEMAMix as SimplifiedAdEMAMix,
)
from ._optimizers.muon import (
    Muon as Muon,
)
from ._optimizers.noisy import (
    NoisySGD as NoisySGD,
)
from ._optimizers.privacy import (
    DPSGD as DPSGD,
)
from ._optimizers.schedule_free import (
    ScheduleFreeAdamW as ScheduleFreeAdamW,
    ScheduleFreeSGD as ScheduleFreeSGD,
)
from ._optimizers.sgd import (
    SGD as SGD,
)
from ._optimizers.signs import (
    Rprop as Rprop,
    SignSGD as SignSGD,
    Signum as Signum,
)
from ._optimizers.sophia import (
    Sophia as Sophia,
)
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
from ._pair import (
    LookaheadParams as LookaheadParams,
)
from ._registry import (
    Card as Card,
    available as available,
    card as card,
    citation as citation,
    get as get,
)
from ._rules import (
    by_path as by_path,
)
from ._schedule import (
    AbstractSchedule as AbstractSchedule,
    AbstractStatefulSchedule as AbstractStatefulSchedule,
    Hyperparameter as Hyperparameter,
    Number as Number,
    number as number,
)
from ._sharding import (
    state_sharding as state_sharding,
)
from ._transform import (
    AbstractStatelessTransform as AbstractStatelessTransform,
    AbstractTransform as AbstractTransform,
    EmptyState as EmptyState,
    apply_updates as apply_updates,
    init_empty_state as init_empty_state,
)
from ._transforms.accumulators import (
    ScaleByAdadelta as ScaleByAdadelta,
    ScaleByAdadeltaState as ScaleByAdadeltaState,
    ScaleByAdan as ScaleByAdan,
    ScaleByAdanState as ScaleByAdanState,
    ScaleByNovoGrad as ScaleByNovoGrad,
    ScaleByNovoGradState as ScaleByNovoGradState,
    ScaleByOptimisticGradient as ScaleByOptimisticGradient,
    ScaleByOptimisticGradientState as ScaleByOptimisticGradientState,
    ScaleByRSS as ScaleByRSS,
    ScaleByRSSState as ScaleByRSSState,
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
from ._transforms.basic import (
    Identity as Identity,
    SetToZero as SetToZero,
    Stateless as Stateless,
)
from ._transforms.clipping import (
    AdaptiveGradClip as AdaptiveGradClip,
    Clip as Clip,
    ClipByBlockRMS as ClipByBlockRMS,
    ClipByGlobalNorm as ClipByGlobalNorm,
    unitwise_clip as unitwise_clip,
    unitwise_norm as unitwise_norm,
)
from ._transforms.constraints import (
    KeepParamsNonnegative as KeepParamsNonnegative,
    ZeroNaNs as ZeroNaNs,
    ZeroNaNsState as ZeroNaNsState,
)
from ._transforms.curvature import (
    HutchinsonDiagonal as HutchinsonDiagonal,
    HutchinsonState as HutchinsonState,
    ScaleBySophia as ScaleBySophia,
    ScaleBySophiaState as ScaleBySophiaState,
)
from ._transforms.distance import (
    COCOBState as COCOBState,
    DoGState as DoGState,
    DoWGState as DoWGState,
    InitialStep as InitialStep,
    ScaleByCOCOB as ScaleByCOCOB,
    ScaleByDoG as ScaleByDoG,
    ScaleByDoWG as ScaleByDoWG,
)
from ._transforms.factored import (
    FactoredState as FactoredState,
    ScaleByFactoredRMS as ScaleByFactoredRMS,
    ScaleBySM3 as ScaleBySM3,
    ScaleBySM3State as ScaleBySM3State,
)
from ._transforms.galore import (
    GaLoreDimensionNumbers as GaLoreDimensionNumbers,
    GaLoreState as GaLoreState,
    ScaleByGaLore as ScaleByGaLore,
)
from ._transforms.layerwise import (
    Centralize as Centralize,
    Normalize as Normalize,
    NormalizeByUpdateNorm as NormalizeByUpdateNorm,
    ScaleByParamBlockNorm as ScaleByParamBlockNorm,
    ScaleByParamBlockRMS as ScaleByParamBlockRMS,
    ScaleByTrustRatio as ScaleByTrustRatio,
)
from ._transforms.lbfgs import (
    ScaleByLBFGS as ScaleByLBFGS,
    ScaleByLBFGSState as ScaleByLBFGSState,
)
from ._transforms.linesearch import (
    BacktrackingLinesearchInfo as BacktrackingLinesearchInfo,
    ScaleByBacktrackingLinesearch as ScaleByBacktrackingLinesearch,
    ScaleByBacktrackingLinesearchState as ScaleByBacktrackingLinesearchState,
    value_and_grad_from_state as value_and_grad_from_state,
)
from ._transforms.mixtures import (
    ScaleByACProp as ScaleByACProp,
    ScaleByACPropState as ScaleByACPropState,
    ScaleByAdEMAMix as ScaleByAdEMAMix,
    ScaleByAdEMAMixState as ScaleByAdEMAMixState,
    ScaleByADOPT as ScaleByADOPT,
    ScaleByADOPTState as ScaleByADOPTState,
    ScaleByMADGRAD as ScaleByMADGRAD,
    ScaleByMADGRADState as ScaleByMADGRADState,
    ScaleBySimplifiedAdEMAMix as ScaleBySimplifiedAdEMAMix,
    ScaleBySimplifiedAdEMAMixState as ScaleBySimplifiedAdEMAMixState,
)
from ._transforms.moments import (
    ScaleByAdamax as ScaleByAdamax,
    ScaleByAMSGrad as ScaleByAMSGrad,
    ScaleByAMSGradState as ScaleByAMSGradState,
    ScaleByBelief as ScaleByBelief,
    ScaleByBeliefState as ScaleByBeliefState,
    ScaleByRAdam as ScaleByRAdam,
    ScaleByYogi as ScaleByYogi,
)
from ._transforms.momentum import (
    ApplyEvery as ApplyEvery,
    ApplyEveryState as ApplyEveryState,
    Ema as Ema,
    EmaState as EmaState,
    Trace as Trace,
    TraceState as TraceState,
)
from ._transforms.monitoring import (
    AbstractMeasure as AbstractMeasure,
    MeasureWithEma as MeasureWithEma,
    MeasureWithEmaState as MeasureWithEmaState,
    Monitor as Monitor,
    MonitorState as MonitorState,
    Snapshot as Snapshot,
    SnapshotState as SnapshotState,
)
from ._transforms.muon import (
    MuonDimensionNumbers as MuonDimensionNumbers,
    MuonState as MuonState,
    ScaleByMuon as ScaleByMuon,
    ScaleByShape as ScaleByShape,
)
from ._transforms.noise import (
    AddNoise as AddNoise,
    AddNoiseState as AddNoiseState,
)
from ._transforms.plateau import (
    ReduceLROnPlateauState as ReduceLROnPlateauState,
    ReduceOnPlateau as ReduceOnPlateau,
)
from ._transforms.privacy import (
    DifferentiallyPrivateAggregate as DifferentiallyPrivateAggregate,
    DifferentiallyPrivateAggregateState as DifferentiallyPrivateAggregateState,
    per_example_global_norm_clip as per_example_global_norm_clip,
    per_example_layer_norm_clip as per_example_layer_norm_clip,
)
from ._transforms.regularization import (
    AddDecayedWeights as AddDecayedWeights,
    ProximalWeightDecay as ProximalWeightDecay,
)
from ._transforms.scaling import (
    Scale as Scale,
    ScaleByLearningRate as ScaleByLearningRate,
    ScaleBySchedule as ScaleBySchedule,
    ScaleByScheduleState as ScaleByScheduleState,
)
from ._transforms.signs import (
    ScaleByRprop as ScaleByRprop,
    ScaleByRpropState as ScaleByRpropState,
    ScaleBySign as ScaleBySign,
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
from ._transforms.zoom import (
    ScaleByZoomLinesearch as ScaleByZoomLinesearch,
    ScaleByZoomLinesearchState as ScaleByZoomLinesearchState,
    ZoomLinesearchInfo as ZoomLinesearchInfo,
)
from ._vocabulary import (
    no_such_name as _no_such_name,
)
from ._wrapper import (
    AbstractWrapper as AbstractWrapper,
)
from .linalg import (
    matrix_inverse_pth_root as matrix_inverse_pth_root,
    nnls as nnls,
    power_iteration as power_iteration,
)
from .microbatching import (
    microbatch as microbatch,
)
from .numerics import (
    safe_increment as safe_increment,
    safe_int32_increment as safe_int32_increment,
    safe_norm as safe_norm,
    safe_root_mean_squares as safe_root_mean_squares,
    scale_gradient as scale_gradient,
)
from .tree import (
    bias_correction as bias_correction,
    update_infinity_moment as update_infinity_moment,
    update_moment as update_moment,
    update_moment_per_elem_norm as update_moment_per_elem_norm,
)
from .tree._math import (
    global_norm as global_norm,
)
from .tree._moments import (
    incremental_update as incremental_update,
    periodic_update as periodic_update,
)
from .tree._state import (
    tree_map_params as tree_map_params,
)

if not _typing.TYPE_CHECKING:  # to a type checker, every name would be there

    def __getattr__(name: str) -> object:
        raise AttributeError(_no_such_name(name))
