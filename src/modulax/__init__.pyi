"""The public names of `modulax`. Type checkers read these imports, and so does Python when a name is first used."""

from . import (
    aggregate as aggregate,
    assignment as assignment,
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
from ._catalog.check import check as check
from ._catalog.config import from_config as from_config, to_config as to_config
from ._catalog.describe import describe as describe
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
from ._optimizers.acprop import ACProp as ACProp
from ._optimizers.adabelief import AdaBelief as AdaBelief
from ._optimizers.adadelta import Adadelta as Adadelta
from ._optimizers.adafactor import Adafactor as Adafactor
from ._optimizers.adagrad import Adagrad as Adagrad
from ._optimizers.adahessian import AdaHessian as AdaHessian
from ._optimizers.adam import Adam as Adam, AdamW as AdamW, NAdam as NAdam, NAdamW as NAdamW
from ._optimizers.adam_mini import AdamMini as AdamMini
from ._optimizers.adamax import Adamax as Adamax, AdamaxW as AdamaxW
from ._optimizers.adamc import AdamC as AdamC
from ._optimizers.adan import Adan as Adan
from ._optimizers.ademamix import AdEMAMix as AdEMAMix, SimplifiedAdEMAMix as SimplifiedAdEMAMix
from ._optimizers.adopt import ADOPT as ADOPT
from ._optimizers.aggmo import AggMo as AggMo
from ._optimizers.amos import Amos as Amos
from ._optimizers.amsgrad import AMSGrad as AMSGrad
from ._optimizers.apollo import Apollo as Apollo, ApolloMini as ApolloMini
from ._optimizers.asgd import ASGD as ASGD
from ._optimizers.came import CAME as CAME
from ._optimizers.cautious import CautiousAdamW as CautiousAdamW, CautiousLion as CautiousLion
from ._optimizers.cocob import COCOB as COCOB
from ._optimizers.dadapt import DAdaptAdamW as DAdaptAdamW
from ._optimizers.dion import Dion as Dion
from ._optimizers.dog import DoG as DoG, DoWG as DoWG
from ._optimizers.eshampoo import EShampoo as EShampoo
from ._optimizers.focus import FOCUS as FOCUS
from ._optimizers.fromage import Fromage as Fromage
from ._optimizers.ftrl import FTRL as FTRL
from ._optimizers.galore import GaLore as GaLore
from ._optimizers.gpa import GPAAdamW as GPAAdamW
from ._optimizers.grams import GramsAdamW as GramsAdamW
from ._optimizers.kron import Kron as Kron
from ._optimizers.lamb import LAMB as LAMB
from ._optimizers.laprop import LaProp as LaProp
from ._optimizers.lars import LARS as LARS
from ._optimizers.lbfgs import LBFGS as LBFGS
from ._optimizers.lion import Lion as Lion
from ._optimizers.madgrad import MADGRAD as MADGRAD
from ._optimizers.mars import MARS as MARS, MARSLion as MARSLion, MARSShampoo as MARSShampoo
from ._optimizers.marsm import MARSM as MARSM
from ._optimizers.momo import MoMo as MoMo, MoMoAdam as MoMoAdam
from ._optimizers.muon import Muon as Muon
from ._optimizers.noise import NoisySGD as NoisySGD
from ._optimizers.normalized_muon import AdaMuon as AdaMuon, NorMuon as NorMuon
from ._optimizers.novograd import NovoGrad as NovoGrad
from ._optimizers.optimistic import (
    OptimisticAdam as OptimisticAdam,
    OptimisticGradientDescent as OptimisticGradientDescent,
)
from ._optimizers.polyak import PolyakSGD as PolyakSGD
from ._optimizers.privacy import DPSGD as DPSGD
from ._optimizers.prodigy import Prodigy as Prodigy
from ._optimizers.quasi_hyperbolic import QHM as QHM, QHAdam as QHAdam
from ._optimizers.radam import RAdam as RAdam
from ._optimizers.rmsprop import RMSProp as RMSProp
from ._optimizers.rprop import Rprop as Rprop
from ._optimizers.schedule_free import ScheduleFreeAdamW as ScheduleFreeAdamW, ScheduleFreeSGD as ScheduleFreeSGD
from ._optimizers.scion import Scion as Scion
from ._optimizers.sgd import SGD as SGD
from ._optimizers.shampoo import KLShampoo as KLShampoo, Shampoo as Shampoo
from ._optimizers.signsgd import SignSGD as SignSGD, Signum as Signum
from ._optimizers.sm3 import SM3 as SM3
from ._optimizers.soap import SOAP as SOAP
from ._optimizers.sophia import Sophia as Sophia, SophiaG as SophiaG
from ._optimizers.stable_adam import StableAdamW as StableAdamW
from ._optimizers.tiger import Tiger as Tiger
from ._optimizers.yogi import Yogi as Yogi
from ._protocol.apply_updates import apply_updates as apply_updates
from ._protocol.frozen import freeze_hyperparameters as freeze_hyperparameters
from ._protocol.patterns import by_path as by_path, by_regex as by_regex, by_type as by_type
from ._roles.find import roles as roles
from ._roles.labels import by_role as by_role, decays as decays
from ._transforms.acprop import ScaleByACProp as ScaleByACProp
from ._transforms.adabelief import ScaleByBelief as ScaleByBelief
from ._transforms.adadelta import ScaleByAdadelta as ScaleByAdadelta
from ._transforms.adafactor import ScaleByFactoredRMS as ScaleByFactoredRMS
from ._transforms.adagrad import ScaleByRSS as ScaleByRSS
from ._transforms.adahessian import ScaleByAdaHessian as ScaleByAdaHessian
from ._transforms.adam import ScaleByAdam as ScaleByAdam
from ._transforms.adam_mini import ScaleByAdamMini as ScaleByAdamMini
from ._transforms.adamax import ScaleByAdamax as ScaleByAdamax
from ._transforms.adan import ScaleByAdan as ScaleByAdan
from ._transforms.ademamix import (
    ScaleByAdEMAMix as ScaleByAdEMAMix,
    ScaleBySimplifiedAdEMAMix as ScaleBySimplifiedAdEMAMix,
)
from ._transforms.adopt import ScaleByADOPT as ScaleByADOPT
from ._transforms.aggmo import ScaleByAggMo as ScaleByAggMo
from ._transforms.amos import ScaleByAmos as ScaleByAmos
from ._transforms.amsgrad import ScaleByAMSGrad as ScaleByAMSGrad
from ._transforms.apollo import ScaleByApollo as ScaleByApollo
from ._transforms.backtracking import (
    ScaleByBacktrackingLinesearch as ScaleByBacktrackingLinesearch,
    value_and_grad_from_state as value_and_grad_from_state,
)
from ._transforms.basic import Identity as Identity, SetToZero as SetToZero, Stateless as Stateless
from ._transforms.by_path import ScaleByDepth as ScaleByDepth, ScaleByPath as ScaleByPath
from ._transforms.came import ScaleByCAME as ScaleByCAME
from ._transforms.clipping import (
    AdaptiveGradClip as AdaptiveGradClip,
    Clip as Clip,
    ClipByBlockRMS as ClipByBlockRMS,
    ClipByGlobalNorm as ClipByGlobalNorm,
)
from ._transforms.cocob import ScaleByCOCOB as ScaleByCOCOB
from ._transforms.constraints import (
    KeepParamsNonnegative as KeepParamsNonnegative,
    ZeroNaNs as ZeroNaNs,
)
from ._transforms.dadapt import ScaleByDAdaptAdam as ScaleByDAdaptAdam
from ._transforms.dion import ScaleByDion as ScaleByDion
from ._transforms.distance_over_gradients import (
    ScaleByDistanceOverGradients as ScaleByDistanceOverGradients,
)
from ._transforms.dog import (
    InitialStep as InitialStep,
    ScaleByDoG as ScaleByDoG,
    ScaleByDoWG as ScaleByDoWG,
)
from ._transforms.eshampoo import ScaleByEShampoo as ScaleByEShampoo
from ._transforms.focus import ScaleByFOCUS as ScaleByFOCUS
from ._transforms.ftrl import ScaleByFTRL as ScaleByFTRL
from ._transforms.galore import ScaleByGaLore as ScaleByGaLore
from ._transforms.grokfast import GrokFast as GrokFast, GrokFastMA as GrokFastMA
from ._transforms.hessian_diagonal import (
    GaussNewtonBartlett as GaussNewtonBartlett,
    HutchinsonDiagonal as HutchinsonDiagonal,
)
from ._transforms.kron import ScaleByKron as ScaleByKron
from ._transforms.laprop import ScaleByLaProp as ScaleByLaProp
from ._transforms.lbfgs import ScaleByLBFGS as ScaleByLBFGS
from ._transforms.lion import ScaleByLion as ScaleByLion
from ._transforms.madgrad import ScaleByMADGRAD as ScaleByMADGRAD
from ._transforms.momentum import (
    ApplyEvery as ApplyEvery,
    Ema as Ema,
    Trace as Trace,
)
from ._transforms.momo import (
    ScaleByMoMo as ScaleByMoMo,
    ScaleByMoMoAdam as ScaleByMoMoAdam,
)
from ._transforms.monitoring import (
    FirstNotFinite as FirstNotFinite,
    MeasureWithEma as MeasureWithEma,
    Monitor as Monitor,
    Snapshot as Snapshot,
)
from ._transforms.muon import ScaleByMuon as ScaleByMuon, ScaleByShape as ScaleByShape
from ._transforms.noise import AddNoise as AddNoise
from ._transforms.normalization import (
    Centralize as Centralize,
    Normalize as Normalize,
    NormalizeByUpdateNorm as NormalizeByUpdateNorm,
)
from ._transforms.normalized_muon import (
    ScaleByAdaMuon as ScaleByAdaMuon,
    ScaleByNorMuon as ScaleByNorMuon,
)
from ._transforms.novograd import ScaleByNovoGrad as ScaleByNovoGrad
from ._transforms.optimistic import (
    ScaleByOptimisticGradient as ScaleByOptimisticGradient,
)
from ._transforms.param_block import (
    ScaleByParamBlockNorm as ScaleByParamBlockNorm,
    ScaleByParamBlockRMS as ScaleByParamBlockRMS,
)
from ._transforms.plateau import ReduceOnPlateau as ReduceOnPlateau
from ._transforms.polyak import ScaleByPolyak as ScaleByPolyak
from ._transforms.primal_averaging import PrimalAveraging as PrimalAveraging
from ._transforms.privacy import DifferentiallyPrivateAggregate as DifferentiallyPrivateAggregate
from ._transforms.prodigy import ScaleByProdigy as ScaleByProdigy
from ._transforms.quasi_hyperbolic import ScaleByQHAdam as ScaleByQHAdam, ScaleByQHM as ScaleByQHM
from ._transforms.query_key import clip_query_key as clip_query_key
from ._transforms.radam import ScaleByRAdam as ScaleByRAdam
from ._transforms.regularization import (
    AddDecayedWeights as AddDecayedWeights,
    ProximalWeightDecay as ProximalWeightDecay,
)
from ._transforms.rmsprop import (
    ScaleByRMS as ScaleByRMS,
    ScaleByStddev as ScaleByStddev,
)
from ._transforms.rprop import ScaleByRprop as ScaleByRprop
from ._transforms.running_norm import (
    ClipByNormPercentile as ClipByNormPercentile,
    ClipByRunningNorm as ClipByRunningNorm,
)
from ._transforms.scaling import (
    Scale as Scale,
    ScaleByLearningRate as ScaleByLearningRate,
    ScaleBySchedule as ScaleBySchedule,
)
from ._transforms.scion import ScaleByScion as ScaleByScion
from ._transforms.shampoo import ScaleByShampoo as ScaleByShampoo
from ._transforms.signsgd import ScaleBySign as ScaleBySign
from ._transforms.sm3 import ScaleBySM3 as ScaleBySM3
from ._transforms.soap import ScaleBySOAP as ScaleBySOAP
from ._transforms.sophia import ScaleBySophia as ScaleBySophia, ScaleBySophiaG as ScaleBySophiaG
from ._transforms.stable_adam import ScaleByStableAdam as ScaleByStableAdam
from ._transforms.tiger import ScaleByTiger as ScaleByTiger
from ._transforms.trust_ratio import ScaleByTrustRatio as ScaleByTrustRatio
from ._transforms.variance_reduction import ReduceVariance as ReduceVariance
from ._transforms.yogi import ScaleByYogi as ScaleByYogi
from ._transforms.zoom import (
    ScaleByZoomLinesearch as ScaleByZoomLinesearch,
)
from .microbatching import microbatch as microbatch
from .tree._moments import incremental_update as incremental_update, periodic_update as periodic_update

__version__: str

# What programs rarely name. `dir(modulax)` and completion leave it out.
from ._catalog.check import Findings as Findings
from ._catalog.describe import Description as Description, LeafDescription as LeafDescription
from ._catalog.registry import Card as Card
from ._protocol.container import AbstractContainer as AbstractContainer, part as part, required_part as required_part
from ._protocol.fields import (
    Hyperparameter as Hyperparameter,
    Number as Number,
    ScalarOrSchedule as ScalarOrSchedule,
    number as number,
    required_number as required_number,
)
from ._protocol.leafwise import AbstractLeafwise as AbstractLeafwise
from ._protocol.mistakes import LikelyMistake as LikelyMistake
from ._protocol.optimizer import AbstractOptimizer as AbstractOptimizer
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
from ._support.module import (
    AbstractState as AbstractState,
    counter as counter,
    like_params as like_params,
    nested as nested,
    shared as shared,
)
from ._transforms.clipping import unitwise_clip as unitwise_clip, unitwise_norm as unitwise_norm
from ._transforms.galore import GaLoreDimensionNumbers as GaLoreDimensionNumbers
from ._transforms.matrixwise import AbstractMatrixwise as AbstractMatrixwise
from ._transforms.monitoring import AbstractMeasure as AbstractMeasure
from ._transforms.muon import MuonDimensionNumbers as MuonDimensionNumbers
from ._transforms.privacy import (
    per_example_global_norm_clip as per_example_global_norm_clip,
    per_example_layer_norm_clip as per_example_layer_norm_clip,
)
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
