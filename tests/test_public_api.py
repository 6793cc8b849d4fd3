"""What a user may import, and what importing costs."""

import inspect

import equinox as eqx
import pytest

import modulax
import modulax.aggregate
import modulax.checkpoint
import modulax.linalg
import modulax.linen
import modulax.microbatching
import modulax.nnx
import modulax.numerics
import modulax.schedules
import modulax.testing
import modulax.tree

MODULES = (
    modulax,
    modulax.aggregate,
    modulax.assignment,
    modulax.estimators,
    modulax.linalg,
    modulax.losses,
    modulax.microbatching,
    modulax.numerics,
    modulax.perturbations,
    modulax.projections,
    modulax.schedules,
    modulax.second_order,
    modulax.tree,
    modulax.testing,
    modulax.nnx,
    modulax.linen,
    modulax.checkpoint,
)
PROMISED = {
    modulax: """
        ACProp ADOPT AMSGrad AbstractLeafwise AbstractMeasure AbstractOptimizer AbstractSchedule AbstractState
        AbstractStatefulSchedule AbstractStatelessTransform AbstractTransform AbstractWrapper AdEMAMix AdaBelief
        Adadelta Adafactor Adagrad Adam AdamW Adamax AdamaxW Adan AdaptiveGradClip AddDecayedWeights AddNoise
        AddNoiseState ApplyEvery ApplyEveryState ApplyIfFinite ApplyIfFiniteState BacktrackingLinesearchInfo
        COCOB COCOBState Card Centralize Chain ChainState Clip ClipByBlockRMS ClipByGlobalNorm ConditionallyMask
        ConditionallyMaskState ConditionallyTransform ConditionallyTransformState DAdaptAdamW DAdaptAdamWState
        DPSGD Description DifferentiallyPrivateAggregate DifferentiallyPrivateAggregateState DoG DoGState DoWG
        DoWGState Ema EmaState EmptyState FactoredState Flatten FlattenState Freeze FromOptax FromOptaxState
        Fromage GaLore GaLoreDimensionNumbers GaLoreState HutchinsonDiagonal HutchinsonState Hyperparameter
        Identity InitialStep Injected InjectedState KeepParamsNonnegative LAMB LARS LBFGS LeafDescription Lion
        Lookahead LookaheadParams LookaheadState MADGRAD Masked MaskedState MeasureWithEma MeasureWithEmaState
        MechanicState Mechanize MoMo MoMoAdam MomoAdamState MomoState Monitor MonitorState MultiSteps
        MultiStepsState Muon MuonDimensionNumbers MuonState NAdam NAdamW NoisySGD Normalize
        NormalizeByUpdateNorm NovoGrad Number OptimisticAdam OptimisticGradientDescent OptimizerState Partition
        PartitionState PolyakSGD Prodigy ProdigyState ProximalWeightDecay RAdam RMSProp RealAndImaginary
        ReduceLROnPlateauState ReduceOnPlateau Rprop SAM SAMState SGD SM3 Scale ScaleByACProp ScaleByACPropState
        ScaleByADOPT ScaleByADOPTState ScaleByAMSGrad ScaleByAMSGradState ScaleByAdEMAMix ScaleByAdEMAMixState
        ScaleByAdadelta ScaleByAdadeltaState ScaleByAdam ScaleByAdamState ScaleByAdamax ScaleByAdan
        ScaleByAdanState ScaleByBacktrackingLinesearch ScaleByBacktrackingLinesearchState ScaleByBelief
        ScaleByBeliefState ScaleByCOCOB ScaleByDAdaptAdam ScaleByDistanceOverGradients
        ScaleByDistanceOverGradientsState ScaleByDoG ScaleByDoWG ScaleByFactoredRMS ScaleByGaLore ScaleByLBFGS
        ScaleByLBFGSState ScaleByLearningRate ScaleByLion ScaleByLionState ScaleByMADGRAD ScaleByMADGRADState
        ScaleByMoMo ScaleByMoMoAdam ScaleByMuon ScaleByNovoGrad ScaleByNovoGradState ScaleByOptimisticGradient
        ScaleByOptimisticGradientState ScaleByParamBlockNorm ScaleByParamBlockRMS ScaleByPolyak ScaleByProdigy
        ScaleByRAdam ScaleByRMS ScaleByRMSState ScaleByRSS ScaleByRSSState ScaleByRprop ScaleByRpropState
        ScaleBySM3 ScaleBySM3State ScaleBySchedule ScaleByScheduleState ScaleByShape ScaleBySign
        ScaleBySimplifiedAdEMAMix ScaleBySimplifiedAdEMAMixState ScaleBySophia ScaleBySophiaState ScaleByStddev
        ScaleByStddevState ScaleByTrustRatio ScaleByYogi ScaleByZoomLinesearch ScaleByZoomLinesearchState
        ScheduleFree ScheduleFreeAdamW ScheduleFreeSGD ScheduleFreeState Scheduled SetToZero SignSGD Signum
        SimplifiedAdEMAMix Snapshot SnapshotState Sophia SplitRealAndImaginary SplitRealAndImaginaryState
        Stateless Trace TraceState Yogi ZeroNaNs ZeroNaNsState ZoomLinesearchInfo aggregate apply_updates
        assignment available bias_correction by_path card citation describe estimators from_optax get
        incremental_update inject_hyperparams like_params linalg losses matrix_inverse_pth_root microbatch
        microbatching nested nnls number numerics per_example_global_norm_clip per_example_layer_norm_clip
        periodic_update perturbations power_iteration projections schedule_free_eval_params schedules second_order
        selective_transform shared skip_large_updates skip_not_finite state_sharding to_optax tree unitwise_clip
        unitwise_norm update_infinity_moment update_moment update_moment_per_elem_norm value_and_grad_from_state
        with_extra_args_support
        global_norm init_empty_state safe_increment safe_int32_increment safe_norm safe_root_mean_squares
        scale_gradient tree_map_params
    """,
    modulax.aggregate: """
        AbstractAggregator AccumulateAvgUpdates AccumulateAvgUpdatesState AddMeanVarianceToOpt Aggregator
        AggregatorUpdateFn AverageIncrementallyUpdates AveragePerElementUpdates GetPerElementMeanAndSumSqDiffGrads
        PerElementMeanAndSumSqDiffGradsState PerElementMeanAndVarianceEMAState Process ProcessState
        TrackPerElementMeanAndVarianceWithEma get_batch_size_from_per_elt_updates get_unbiased_mean_and_variance_ema
    """,
    modulax.microbatching: """
        AccumulationType Accumulator IndividualOutputs micro_grad micro_vmap microbatch reshape_batch_axis
    """,
    modulax.assignment: """
        base_hungarian_algorithm hungarian_algorithm
    """,
    modulax.estimators: """
        MultiNormal control_delta_method control_variates_jacobians measure_valued_jacobians moving_avg_baseline
        multi_normal pathwise_jacobians score_function_jacobians
    """,
    modulax.linalg: """
        leading_directions matrix_inverse_pth_root nnls orthogonalize power_iteration
    """,
    modulax.losses: """
        cosine_distance cosine_similarity huber_loss l2_loss log_cosh squared_error
        ctc_loss ctc_loss_with_forward_probs
        binary_dice_loss convex_kl_divergence dice_loss generalized_kl_divergence hinge_loss kl_divergence
        kl_divergence_with_log_targets multiclass_generalized_dice_loss multiclass_hinge_loss
        multiclass_perceptron_loss ntxent perceptron_loss ranking_softmax_loss triplet_margin_loss
        poly_loss_cross_entropy safe_softmax_cross_entropy sigmoid_binary_cross_entropy sigmoid_focal_loss
        smooth_labels softmax_cross_entropy softmax_cross_entropy_with_integer_labels
        make_fenchel_young_loss multiclass_sparsemax_loss sparsemax_loss
    """,
    modulax.numerics: """
        abs_sq at_least_float32 safe_increment safe_int32_increment safe_norm safe_root_mean_squares safe_sqrt
        scale_gradient
    """,
    modulax.perturbations: """
        AbstractNoise Gumbel Normal make_perturbed_fun
    """,
    modulax.projections: """
        projection_box projection_halfspace projection_hypercube projection_hyperplane projection_l1_ball
        projection_l1_sphere projection_l2_ball projection_l2_sphere projection_linf_ball projection_non_negative
        projection_simplex projection_vector
    """,
    modulax.second_order: """
        fisher_diag hessian_diag hvp
    """,
    modulax.schedules: """
        AbstractSchedule Constant CosineDecay Join Linear PiecewiseConstant WarmupCosineDecay WrappedSchedule
        CosineOneCycle ExponentialDecay InverseSqrt LinearOneCycle PiecewiseInterpolate Polynomial Power REX SGDR
        Stretched WarmupConstant WarmupExponentialDecay WarmupStableDecay
        AbstractSchedule AbstractStatefulSchedule Constant CosineDecay Join Linear PiecewiseConstant WarmupCosineDecay
        WrappedSchedule WrappedStatefulSchedule
    """,
    modulax.tree: """
        bias_correction leaf_paths norm update_infinity_moment update_moment update_moment_per_elem_norm zeros_like
        filter get get_all_with_path map_params set
        add add_scale allclose batch_shape cast cast_like clip conj div dtype full_like max min mul ones_like
        random_like real scale size split_key_like sub sum unwrap_random_key_data vdot where
    """,
    modulax.testing: "LAWS Case Law check_transform default_params",
    modulax.nnx: "Hyperparameter Optimizer labels",
    modulax.linen: "TrainState",
    modulax.checkpoint: "Report from_optax from_torch load_state_dict restore save state_dict",
}


def public_names(module) -> set[str]:
    """What the module offers: names without an underscore that are no submodules brought in by an import."""
    promised_modules = {
        "aggregate", "assignment", "estimators", "linalg", "losses", "microbatching", "numerics", "perturbations",
        "projections", "schedules", "second_order", "tree",
    }  # fmt: skip
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and (not inspect.ismodule(value) or name in promised_modules)
    }


@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.__name__)
def test_the_public_names_are_the_promised_ones(module):
    # The edges are attributes of `modulax` only because this file imports them.
    assert public_names(module) == set(PROMISED[module].split())


@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.__name__)
def test_every_public_object_has_a_docstring_of_its_own(module):
    for name in public_names(module):
        value = getattr(module, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert value.__dict__.get("__doc__") or (not inspect.isclass(value) and value.__doc__), name


def test_the_docstring_of_a_class_names_every_field():
    for module in MODULES:
        for name in public_names(module):
            cls = getattr(module, name)
            is_module = inspect.isclass(cls) and issubclass(cls, eqx.Module)
            if is_module and not inspect.isabstract(cls) and not issubclass(cls, modulax.AbstractState):
                undocumented = [p for p in inspect.signature(cls).parameters if f"{p}:" not in (cls.__doc__ or "")]
                assert not undocumented, f"{name}: {undocumented}"


def test_every_abstract_class_refuses_to_be_made():
    for name in public_names(modulax):
        cls = getattr(modulax, name)
        if inspect.isclass(cls) and name.startswith("Abstract") and name != "AbstractState":
            with pytest.raises(TypeError, match="abstract"):
                cls()
