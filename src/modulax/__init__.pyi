"""The public names of `modulax`. Type checkers read these imports, and so does Python when a name is first used."""

from . import (
    aggregate as aggregate,
    assignment as assignment,
    authoring as authoring,
    checkpoint as checkpoint,
    compat as compat,
    estimators as estimators,
    linalg as linalg,
    linen as linen,
    losses as losses,
    microbatching as microbatching,
    nnx as nnx,
    numerics as numerics,
    perturbations as perturbations,
    planning as planning,
    projections as projections,
    schedules as schedules,
    second_order as second_order,
    states as states,
    sweeps as sweeps,
    testing as testing,
    tree as tree,
)
from ._catalog.config import from_config as from_config, to_config as to_config
from ._catalog.registry import available as available, card as card, citation as citation, get as get
from ._catalog.sharding import state_sharding as state_sharding
from ._catalog.versions import show_versions as show_versions
from ._containers.averages import ParamAverage as ParamAverage, ParamEMA as ParamEMA
from ._containers.cautious import Cautious as Cautious, Grams as Grams
from ._containers.chain import Chain as Chain
from ._containers.conditional import (
    ApplyIfFinite as ApplyIfFinite,
    ConditionallyMask as ConditionallyMask,
    ConditionallyTransform as ConditionallyTransform,
)
from ._containers.diloco import DiLoCo as DiLoCo
from ._containers.from_factory import FromFactory as FromFactory
from ._containers.groups import groups as groups
from ._containers.injected import (
    Injected as Injected,
    inject_hyperparams as inject_hyperparams,
)
from ._containers.layerwise_decay import layerwise_decay as layerwise_decay
from ._containers.lookahead import Lookahead as Lookahead, LookaheadParams as LookaheadParams
from ._containers.loss_scaling import LossScaling as LossScaling, loss_scale as loss_scale
from ._containers.low_bit import LowBit as LowBit
from ._containers.masked import (
    Freeze as Freeze,
    Masked as Masked,
    selective_transform as selective_transform,
)
from ._containers.master_weights import MasterWeights as MasterWeights
from ._containers.mechanize import Mechanize as Mechanize
from ._containers.multi_steps import (
    MultiSteps as MultiSteps,
    skip_large_updates as skip_large_updates,
    skip_not_finite as skip_not_finite,
)
from ._containers.mup import mup as mup
from ._containers.offload import Offload as Offload
from ._containers.optax_adapters import (
    FromFunctions as FromFunctions,
    FromOptax as FromOptax,
    from_functions as from_functions,
    from_optax as from_optax,
    to_optax as to_optax,
)
from ._containers.partition import Partition as Partition
from ._containers.reshaping import (
    Flatten as Flatten,
    RealAndImaginary as RealAndImaginary,
    SplitRealAndImaginary as SplitRealAndImaginary,
)
from ._containers.sam import SAM as SAM
from ._containers.schedule_free import (
    ScheduleFree as ScheduleFree,
)
from ._containers.scheduled import Scheduled as Scheduled
from ._containers.spikes import SkipSpikes as SkipSpikes
from ._containers.stacked import Stacked as Stacked
from ._containers.stochastic_rounding import StochasticRounding as StochasticRounding
from ._explain.check import check as check
from ._explain.describe import describe as describe
from ._protocol.frozen import freeze_hyperparameters as freeze_hyperparameters
from ._protocol.patterns import by_path as by_path, by_regex as by_regex, by_type as by_type
from ._protocol.step import apply_updates as apply_updates
from ._roles.find import roles as roles
from ._roles.labels import by_role as by_role, decays as decays
from ._rules.acprop import ACProp as ACProp, ScaleByACProp as ScaleByACProp
from ._rules.adabelief import AdaBelief as AdaBelief, ScaleByBelief as ScaleByBelief
from ._rules.adadelta import Adadelta as Adadelta, ScaleByAdadelta as ScaleByAdadelta
from ._rules.adafactor import Adafactor as Adafactor, ScaleByFactoredRMS as ScaleByFactoredRMS
from ._rules.adagrad import Adagrad as Adagrad, ScaleByRSS as ScaleByRSS
from ._rules.adahessian import AdaHessian as AdaHessian, ScaleByAdaHessian as ScaleByAdaHessian
from ._rules.adam import Adam as Adam, AdamW as AdamW, NAdam as NAdam, NAdamW as NAdamW, ScaleByAdam as ScaleByAdam
from ._rules.adam_mini import AdamMini as AdamMini, ScaleByAdamMini as ScaleByAdamMini
from ._rules.adamax import Adamax as Adamax, AdamaxW as AdamaxW, ScaleByAdamax as ScaleByAdamax
from ._rules.adamc import AdamC as AdamC
from ._rules.adan import Adan as Adan, ScaleByAdan as ScaleByAdan
from ._rules.ademamix import (
    AdEMAMix as AdEMAMix,
    ScaleByAdEMAMix as ScaleByAdEMAMix,
    ScaleBySimplifiedAdEMAMix as ScaleBySimplifiedAdEMAMix,
    SimplifiedAdEMAMix as SimplifiedAdEMAMix,
)
from ._rules.adopt import ADOPT as ADOPT, ScaleByADOPT as ScaleByADOPT
from ._rules.aggmo import AggMo as AggMo, ScaleByAggMo as ScaleByAggMo
from ._rules.amos import Amos as Amos, ScaleByAmos as ScaleByAmos
from ._rules.amsgrad import AMSGrad as AMSGrad, ScaleByAMSGrad as ScaleByAMSGrad
from ._rules.apollo import Apollo as Apollo, ApolloMini as ApolloMini, ScaleByApollo as ScaleByApollo
from ._rules.asgd import ASGD as ASGD
from ._rules.came import CAME as CAME, ScaleByCAME as ScaleByCAME
from ._rules.cautious import CautiousAdamW as CautiousAdamW, CautiousLion as CautiousLion
from ._rules.cocob import COCOB as COCOB, ScaleByCOCOB as ScaleByCOCOB
from ._rules.dadapt import DAdaptAdamW as DAdaptAdamW, ScaleByDAdaptAdam as ScaleByDAdaptAdam
from ._rules.dion import Dion as Dion, ScaleByDion as ScaleByDion
from ._rules.dog import (
    DoG as DoG,
    DoWG as DoWG,
    InitialStep as InitialStep,
    ScaleByDoG as ScaleByDoG,
    ScaleByDoWG as ScaleByDoWG,
)
from ._rules.eshampoo import EShampoo as EShampoo, ScaleByEShampoo as ScaleByEShampoo
from ._rules.focus import FOCUS as FOCUS, ScaleByFOCUS as ScaleByFOCUS
from ._rules.fromage import Fromage as Fromage
from ._rules.ftrl import FTRL as FTRL, ScaleByFTRL as ScaleByFTRL
from ._rules.galore import GaLore as GaLore, ScaleByGaLore as ScaleByGaLore
from ._rules.gpa import GPAAdamW as GPAAdamW
from ._rules.grams import GramsAdamW as GramsAdamW
from ._rules.kron import Kron as Kron, ScaleByKron as ScaleByKron
from ._rules.lamb import LAMB as LAMB
from ._rules.laprop import LaProp as LaProp, ScaleByLaProp as ScaleByLaProp
from ._rules.lars import LARS as LARS
from ._rules.lbfgs import LBFGS as LBFGS, ScaleByLBFGS as ScaleByLBFGS
from ._rules.lion import Lion as Lion, ScaleByLion as ScaleByLion
from ._rules.madgrad import MADGRAD as MADGRAD, ScaleByMADGRAD as ScaleByMADGRAD
from ._rules.mars import MARS as MARS, MARSM as MARSM, MARSLion as MARSLion, MARSShampoo as MARSShampoo
from ._rules.momo import (
    MoMo as MoMo,
    MoMoAdam as MoMoAdam,
    ScaleByMoMo as ScaleByMoMo,
    ScaleByMoMoAdam as ScaleByMoMoAdam,
)
from ._rules.muon import Muon as Muon, ScaleByMuon as ScaleByMuon, ScaleByShape as ScaleByShape
from ._rules.noise import AddNoise as AddNoise, NoisySGD as NoisySGD
from ._rules.normalized_muon import (
    AdaMuon as AdaMuon,
    NorMuon as NorMuon,
    ScaleByAdaMuon as ScaleByAdaMuon,
    ScaleByNorMuon as ScaleByNorMuon,
)
from ._rules.novograd import NovoGrad as NovoGrad, ScaleByNovoGrad as ScaleByNovoGrad
from ._rules.optimistic import (
    OptimisticAdam as OptimisticAdam,
    OptimisticGradientDescent as OptimisticGradientDescent,
    ScaleByOptimisticGradient as ScaleByOptimisticGradient,
)
from ._rules.polyak import PolyakSGD as PolyakSGD, ScaleByPolyak as ScaleByPolyak
from ._rules.privacy import DPSGD as DPSGD, DifferentiallyPrivateAggregate as DifferentiallyPrivateAggregate
from ._rules.prodigy import Prodigy as Prodigy, ScaleByProdigy as ScaleByProdigy
from ._rules.quasi_hyperbolic import (
    QHM as QHM,
    QHAdam as QHAdam,
    ScaleByQHAdam as ScaleByQHAdam,
    ScaleByQHM as ScaleByQHM,
)
from ._rules.radam import RAdam as RAdam, ScaleByRAdam as ScaleByRAdam
from ._rules.rmsprop import RMSProp as RMSProp, ScaleByRMS as ScaleByRMS, ScaleByStddev as ScaleByStddev
from ._rules.rprop import Rprop as Rprop, ScaleByRprop as ScaleByRprop
from ._rules.schedule_free import ScheduleFreeAdamW as ScheduleFreeAdamW, ScheduleFreeSGD as ScheduleFreeSGD
from ._rules.scion import ScaleByScion as ScaleByScion, Scion as Scion
from ._rules.sgd import SGD as SGD
from ._rules.shampoo import KLShampoo as KLShampoo, ScaleByShampoo as ScaleByShampoo, Shampoo as Shampoo
from ._rules.signsgd import ScaleBySign as ScaleBySign, SignSGD as SignSGD, Signum as Signum
from ._rules.sm3 import SM3 as SM3, ScaleBySM3 as ScaleBySM3
from ._rules.soap import SOAP as SOAP, ScaleBySOAP as ScaleBySOAP
from ._rules.sophia import (
    ScaleBySophia as ScaleBySophia,
    ScaleBySophiaG as ScaleBySophiaG,
    Sophia as Sophia,
    SophiaG as SophiaG,
)
from ._rules.stable_adam import ScaleByStableAdam as ScaleByStableAdam, StableAdamW as StableAdamW
from ._rules.tiger import ScaleByTiger as ScaleByTiger, Tiger as Tiger
from ._rules.yogi import ScaleByYogi as ScaleByYogi, Yogi as Yogi
from ._transforms.backtracking import (
    ScaleByBacktrackingLinesearch as ScaleByBacktrackingLinesearch,
    value_and_grad_from_state as value_and_grad_from_state,
)
from ._transforms.basic import Identity as Identity, SetToZero as SetToZero, Stateless as Stateless
from ._transforms.by_path import ScaleByDepth as ScaleByDepth, ScaleByPath as ScaleByPath
from ._transforms.clipping import (
    AdaptiveGradClip as AdaptiveGradClip,
    Clip as Clip,
    ClipByBlockRMS as ClipByBlockRMS,
    ClipByGlobalNorm as ClipByGlobalNorm,
)
from ._transforms.constraints import (
    KeepParamsNonnegative as KeepParamsNonnegative,
    ZeroNaNs as ZeroNaNs,
)
from ._transforms.distance_over_gradients import (
    ScaleByDistanceOverGradients as ScaleByDistanceOverGradients,
)
from ._transforms.grokfast import GrokFast as GrokFast, GrokFastMA as GrokFastMA
from ._transforms.hessian_diagonal import (
    GaussNewtonBartlett as GaussNewtonBartlett,
    HutchinsonDiagonal as HutchinsonDiagonal,
)
from ._transforms.momentum import (
    ApplyEvery as ApplyEvery,
    Ema as Ema,
    Trace as Trace,
)
from ._transforms.monitoring import (
    FirstNotFinite as FirstNotFinite,
    MeasureWithEma as MeasureWithEma,
    Monitor as Monitor,
    Snapshot as Snapshot,
)
from ._transforms.normalization import (
    Centralize as Centralize,
    Normalize as Normalize,
    NormalizeByUpdateNorm as NormalizeByUpdateNorm,
)
from ._transforms.param_block import (
    ScaleByParamBlockNorm as ScaleByParamBlockNorm,
    ScaleByParamBlockRMS as ScaleByParamBlockRMS,
)
from ._transforms.plateau import ReduceOnPlateau as ReduceOnPlateau
from ._transforms.primal_averaging import PrimalAveraging as PrimalAveraging
from ._transforms.query_key import clip_query_key as clip_query_key
from ._transforms.regularization import (
    AddDecayedWeights as AddDecayedWeights,
    ProximalWeightDecay as ProximalWeightDecay,
)
from ._transforms.running_norm import (
    ClipByNormPercentile as ClipByNormPercentile,
    ClipByRunningNorm as ClipByRunningNorm,
)
from ._transforms.scaling import (
    Scale as Scale,
    ScaleByLearningRate as ScaleByLearningRate,
    ScaleBySchedule as ScaleBySchedule,
)
from ._transforms.trust_ratio import ScaleByTrustRatio as ScaleByTrustRatio
from ._transforms.variance_reduction import ReduceVariance as ReduceVariance
from ._transforms.zoom import (
    ScaleByZoomLinesearch as ScaleByZoomLinesearch,
)
from .microbatching import critical_batch as critical_batch, microbatch as microbatch
from .tree._moments import incremental_update as incremental_update, periodic_update as periodic_update

__version__: str

# What programs rarely name. `dir(modulax)` and completion leave it out.
from ._catalog.registry import Card as Card
from ._explain.check import Findings as Findings
from ._explain.describe import Description as Description, LeafDescription as LeafDescription
from ._explain.likely_mistakes import LikelyMistake as LikelyMistake
from ._protocol.container import (
    AbstractContainer as AbstractContainer,
    AbstractOptimizer as AbstractOptimizer,
    part as part,
    required_part as required_part,
)
from ._protocol.fields import (
    Hyperparameter as Hyperparameter,
    Number as Number,
    ScalarOrSchedule as ScalarOrSchedule,
    number as number,
    required_number as required_number,
)
from ._protocol.leafwise import AbstractLeafwise as AbstractLeafwise
from ._protocol.schedule import (
    AbstractSchedule as AbstractSchedule,
    AbstractStatefulSchedule as AbstractStatefulSchedule,
)
from ._protocol.transform import (
    AbstractStatelessTransform as AbstractStatelessTransform,
    AbstractTransform as AbstractTransform,
    EmptyState as EmptyState,
    Part as Part,
)
from ._roles.find import Roles as Roles
from ._roles.role import (
    AbstractRole as AbstractRole,
    Attention as Attention,
    Bias as Bias,
    Convolution as Convolution,
    Embedding as Embedding,
    Gain as Gain,
    Head as Head,
    Hidden as Hidden,
    LoRA as LoRA,
    Matrix as Matrix,
    Other as Other,
    Position as Position,
)
from ._rules.galore import GaLoreDimensionNumbers as GaLoreDimensionNumbers
from ._rules.muon import MuonDimensionNumbers as MuonDimensionNumbers
from ._rules.privacy import (
    per_example_global_norm_clip as per_example_global_norm_clip,
    per_example_layer_norm_clip as per_example_layer_norm_clip,
)
from ._support.module import (
    AbstractState as AbstractState,
    counter as counter,
    like_params as like_params,
    nested as nested,
    shared as shared,
)
from ._transforms.clipping import unitwise_clip as unitwise_clip, unitwise_norm as unitwise_norm
from ._transforms.matrixwise import AbstractMatrixwise as AbstractMatrixwise
from ._transforms.monitoring import AbstractMeasure as AbstractMeasure
from .linalg import matrix_inverse_pth_root as matrix_inverse_pth_root, nnls as nnls, power_iteration as power_iteration
from .numerics import (
    safe_increment as safe_increment,
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
