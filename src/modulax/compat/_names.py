"""The public names of optax 0.2.8 by module, and the names that it has dropped since its specification."""

# Names that are in a module and in `optax` itself.
SHARED: dict[str, str] = {
    "losses": """
        convex_kl_divergence cosine_distance cosine_similarity ctc_loss ctc_loss_with_forward_probs
        generalized_kl_divergence hinge_loss huber_loss kl_divergence l2_loss log_cosh ntxent safe_softmax_cross_entropy
        sigmoid_binary_cross_entropy sigmoid_focal_loss smooth_labels softmax_cross_entropy
        softmax_cross_entropy_with_integer_labels squared_error
    """,
    "schedules": """
        InjectHyperparamsState InjectStatefulHyperparamsState Schedule WrappedSchedule constant_schedule
        cosine_decay_schedule cosine_onecycle_schedule exponential_decay inject_hyperparams inject_stateful_hyperparams
        join_schedules linear_onecycle_schedule linear_schedule piecewise_constant_schedule
        piecewise_interpolate_schedule polynomial_schedule sgdr_schedule warmup_constant_schedule
        warmup_cosine_decay_schedule warmup_exponential_decay_schedule
    """,
    "transforms": """
        AddNoiseState ApplyIfFiniteState ConditionallyMaskState ConditionallyTransformState EmaState MaskedNode
        MaskedState MonitorState MultiSteps MultiStepsState NonNegativeParamsState PartitionState
        ShouldSkipUpdateFunction SnapshotState TraceState ZeroNansState adaptive_grad_clip add_decayed_weights add_noise
        apply_if_finite chain clip clip_by_block_rms clip_by_global_norm conditionally_mask conditionally_transform ema
        flatten freeze keep_params_nonnegative masked measure_with_ema monitor named_chain partition
        per_example_global_norm_clip per_example_layer_norm_clip selective_transform skip_large_updates skip_not_finite
        snapshot trace zero_nans
    """,
}
_OWN: dict[str, str] = {
    "": """
        AdaptiveGradClipState AddDecayedWeightsState ApplyEvery ArrayTree ClipByGlobalNormState ClipState
        DifferentiallyPrivateAggregateState EmptyState FactoredState GradientTransformation
        GradientTransformationExtraArgs LookaheadParams LookaheadState MaskOrFn MultiTransformState OptState Params
        ScalarOrSchedule ScaleByAdaDeltaState ScaleByAdamState ScaleByAdanState ScaleByAmsgradState
        ScaleByBacktrackingLinesearchState ScaleByBeliefState ScaleByLBFGSState ScaleByLionState ScaleByNovogradState
        ScaleByRStdDevState ScaleByRmsState ScaleByRpropState ScaleByRssState ScaleBySM3State ScaleByScheduleState
        ScaleByTrustRatioState ScaleByZoomLinesearchState ScaleState TransformInitFn TransformUpdateExtraArgsFn
        TransformUpdateFn Updates ZoomLinesearchInfo adabelief adadelta adafactor adagrad adam adamax adamaxw adamw adan
        amsgrad apply_every apply_updates bias_correction centralize control_delta_method control_variates_jacobians
        differentially_private_aggregate dpsgd fromage global_norm identity incremental_update init_empty_state lamb
        lars lbfgs lion lookahead matrix_inverse_pth_root maybe_update measure_valued_jacobians microbatch
        moving_avg_baseline multi_normal multi_transform nadam nadamw nnls noisy_sgd normalize_by_update_norm novograd
        optimistic_adam optimistic_adam_v2 optimistic_gradient_descent pathwise_jacobians periodic_update
        piecewise_linear_schedule polyak_sgd power_iteration radam rmsprop rprop safe_increment safe_int32_increment
        safe_norm safe_root_mean_squares scale scale_by_adadelta scale_by_adam scale_by_adamax scale_by_adan
        scale_by_amsgrad scale_by_backtracking_linesearch scale_by_belief scale_by_distance_over_gradients
        scale_by_factored_rms scale_by_lbfgs scale_by_learning_rate scale_by_lion scale_by_novograd
        scale_by_optimistic_gradient scale_by_param_block_norm scale_by_param_block_rms scale_by_polyak scale_by_radam
        scale_by_rms scale_by_rprop scale_by_rss scale_by_schedule scale_by_sign scale_by_sm3 scale_by_stddev
        scale_by_trust_ratio scale_by_yogi scale_by_zoom_linesearch scale_gradient score_function_jacobians set_to_zero
        sgd sign_sgd signum sm3 stateless stateless_with_tree_map tree_map_params update_infinity_moment update_moment
        update_moment_per_elem_norm value_and_grad_from_state with_extra_args_support yogi
    """,
    "assignment": "base_hungarian_algorithm hungarian_algorithm",
    "contrib": """
        COCOBState DAdaptAdamWState DifferentiallyPrivateAggregateState DoGState DoWGState GaLoreDimensionNumbers
        GaLoreState HutchinsonState MadgradState MechanicState MomoAdamState MomoState MuonDimensionNumbers MuonState
        NormalizeState ProdigyState ReduceLROnPlateauState SAMState ScaleByAdemamixState ScaleBySimplifiedAdEMAMixState
        ScheduleFreeState SophiaState SplitRealAndImaginaryState acprop ademamix adopt cocob dadapt_adamw
        differentially_private_aggregate dog dowg dpsgd galore hutchinson_estimator_diag_hessian madgrad mechanize momo
        momo_adam muon normalize prodigy reduce_on_plateau sam scale_by_acprop scale_by_ademamix scale_by_adopt
        scale_by_cocob scale_by_galore scale_by_madgrad scale_by_muon scale_by_simplified_ademamix schedule_free
        schedule_free_adamw schedule_free_eval_params schedule_free_sgd simplified_ademamix sophia
        split_real_and_imaginary
    """,
    "experimental.aggregating": """
        AccumulateAvgUpdatesState AggregatedUpdates Aggregator AggregatorUpdateFn MaybeAxis
        PerElementMeanAndSumSqDiffGradsState PerElementMeanAndVarianceEMAState PerElementUpdates accumulate_avg_updates
        add_mean_variance_to_opt average_incrementally_updates average_per_element_updates
        get_batch_size_from_per_elt_updates get_per_element_mean_and_sum_sq_diff_grads
        get_unbiased_mean_and_variance_ema process track_per_element_mean_and_variance_with_ema
    """,
    "losses": """
        binary_dice_loss dice_loss kl_divergence_with_log_targets make_fenchel_young_loss
        multiclass_generalized_dice_loss multiclass_hinge_loss multiclass_perceptron_loss multiclass_sparsemax_loss
        perceptron_loss poly_loss_cross_entropy ranking_softmax_loss sparsemax_loss triplet_margin_loss
    """,
    "microbatching": "AccumulationType Accumulator micro_grad micro_vmap microbatch reshape_batch_axis",
    "perturbations": "Gumbel Normal make_perturbed_fun",
    "projections": """
        projection_box projection_halfspace projection_hypercube projection_hyperplane projection_l1_ball
        projection_l1_sphere projection_l2_ball projection_l2_sphere projection_linf_ball projection_non_negative
        projection_simplex projection_vector
    """,
    "schedules": "StatefulSchedule",
    "second_order": "fisher_diag hessian_diag hvp",
    "transforms": "ConditionFn unitwise_clip unitwise_norm",
    "tree": """
        add add_scale allclose batch_shape bias_correction cast cast_like clip conj div dtype full_like get
        get_all_with_path map_params max min mul norm ones_like random_like real scale set size split_key_like sub sum
        unwrap_random_key_data update_infinity_moment update_moment update_moment_per_elem_norm vdot where zeros_like
    """,
}
NAMES: dict[str, tuple[str, ...]] = {
    module: tuple(sorted(f"{names} {SHARED.get(module, '')}".split())) for module, names in _OWN.items()
}
NAMES[""] = tuple(sorted({*NAMES[""], *" ".join(SHARED.values()).split()}))
NAMES["tree_utils"] = ("NamedTupleKey", *(f"tree_{name}" for name in NAMES["tree"]))
