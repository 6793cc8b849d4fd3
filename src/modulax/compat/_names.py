"""The public names of optax 0.2.8 by module, and the names that it has dropped since its specification."""

NAMES: dict[str, tuple[str, ...]] = {
    module: tuple(names.split())
    for module, names in {
        "": """
            AdaptiveGradClipState AddDecayedWeightsState AddNoiseState ApplyEvery ApplyIfFiniteState ArrayTree
            ClipByGlobalNormState ClipState ConditionallyMaskState ConditionallyTransformState
            DifferentiallyPrivateAggregateState EmaState EmptyState FactoredState GradientTransformation
            GradientTransformationExtraArgs InjectHyperparamsState InjectStatefulHyperparamsState LookaheadParams
            LookaheadState MaskOrFn MaskedNode MaskedState MonitorState MultiSteps MultiStepsState MultiTransformState
            NonNegativeParamsState OptState Params PartitionState ScalarOrSchedule ScaleByAdaDeltaState ScaleByAdamState
            ScaleByAdanState ScaleByAmsgradState ScaleByBacktrackingLinesearchState ScaleByBeliefState ScaleByLBFGSState
            ScaleByLionState ScaleByNovogradState ScaleByRStdDevState ScaleByRmsState ScaleByRpropState ScaleByRssState
            ScaleBySM3State ScaleByScheduleState ScaleByTrustRatioState ScaleByZoomLinesearchState ScaleState Schedule
            ShouldSkipUpdateFunction SnapshotState TraceState TransformInitFn TransformUpdateExtraArgsFn
            TransformUpdateFn Updates WrappedSchedule ZeroNansState ZoomLinesearchInfo adabelief adadelta adafactor
            adagrad adam adamax adamaxw adamw adan adaptive_grad_clip add_decayed_weights add_noise amsgrad apply_every
            apply_if_finite apply_updates bias_correction centralize chain clip clip_by_block_rms clip_by_global_norm
            conditionally_mask conditionally_transform constant_schedule control_delta_method control_variates_jacobians
            convex_kl_divergence cosine_decay_schedule cosine_distance cosine_onecycle_schedule cosine_similarity
            ctc_loss ctc_loss_with_forward_probs differentially_private_aggregate dpsgd ema exponential_decay flatten
            freeze fromage generalized_kl_divergence global_norm hinge_loss huber_loss identity incremental_update
            init_empty_state inject_hyperparams inject_stateful_hyperparams join_schedules keep_params_nonnegative
            kl_divergence l2_loss lamb lars lbfgs linear_onecycle_schedule linear_schedule lion log_cosh lookahead
            masked matrix_inverse_pth_root maybe_update measure_valued_jacobians measure_with_ema microbatch monitor
            moving_avg_baseline multi_normal multi_transform nadam nadamw named_chain nnls noisy_sgd
            normalize_by_update_norm novograd ntxent optimistic_adam optimistic_adam_v2 optimistic_gradient_descent
            partition pathwise_jacobians per_example_global_norm_clip per_example_layer_norm_clip periodic_update
            piecewise_constant_schedule piecewise_interpolate_schedule piecewise_linear_schedule polyak_sgd
            polynomial_schedule power_iteration radam rmsprop rprop safe_increment safe_int32_increment safe_norm
            safe_root_mean_squares safe_softmax_cross_entropy scale scale_by_adadelta scale_by_adam scale_by_adamax
            scale_by_adan scale_by_amsgrad scale_by_backtracking_linesearch scale_by_belief
            scale_by_distance_over_gradients scale_by_factored_rms scale_by_lbfgs scale_by_learning_rate scale_by_lion
            scale_by_novograd scale_by_optimistic_gradient scale_by_param_block_norm scale_by_param_block_rms
            scale_by_polyak scale_by_radam scale_by_rms scale_by_rprop scale_by_rss scale_by_schedule scale_by_sign
            scale_by_sm3 scale_by_stddev scale_by_trust_ratio scale_by_yogi scale_by_zoom_linesearch scale_gradient
            score_function_jacobians selective_transform set_to_zero sgd sgdr_schedule sigmoid_binary_cross_entropy
            sigmoid_focal_loss sign_sgd signum skip_large_updates skip_not_finite sm3 smooth_labels snapshot
            softmax_cross_entropy softmax_cross_entropy_with_integer_labels squared_error stateless
            stateless_with_tree_map trace tree_map_params update_infinity_moment update_moment
            update_moment_per_elem_norm value_and_grad_from_state warmup_constant_schedule warmup_cosine_decay_schedule
            warmup_exponential_decay_schedule with_extra_args_support yogi zero_nans
        """,
        "assignment": """
            base_hungarian_algorithm hungarian_algorithm
        """,
        "contrib": """
            COCOBState DAdaptAdamWState DifferentiallyPrivateAggregateState DoGState DoWGState GaLoreDimensionNumbers
            GaLoreState HutchinsonState MadgradState MechanicState MomoAdamState MomoState MuonDimensionNumbers
            MuonState NormalizeState ProdigyState ReduceLROnPlateauState SAMState ScaleByAdemamixState
            ScaleBySimplifiedAdEMAMixState ScheduleFreeState SophiaState SplitRealAndImaginaryState acprop ademamix
            adopt cocob dadapt_adamw differentially_private_aggregate dog dowg dpsgd galore
            hutchinson_estimator_diag_hessian madgrad mechanize momo momo_adam muon normalize prodigy reduce_on_plateau
            sam scale_by_acprop scale_by_ademamix scale_by_adopt scale_by_cocob scale_by_galore scale_by_madgrad
            scale_by_muon scale_by_simplified_ademamix schedule_free schedule_free_adamw schedule_free_eval_params
            schedule_free_sgd simplified_ademamix sophia split_real_and_imaginary
        """,
        "experimental.aggregating": """
            AccumulateAvgUpdatesState AggregatedUpdates Aggregator AggregatorUpdateFn MaybeAxis
            PerElementMeanAndSumSqDiffGradsState PerElementMeanAndVarianceEMAState PerElementUpdates
            accumulate_avg_updates add_mean_variance_to_opt average_incrementally_updates average_per_element_updates
            get_batch_size_from_per_elt_updates get_per_element_mean_and_sum_sq_diff_grads
            get_unbiased_mean_and_variance_ema process track_per_element_mean_and_variance_with_ema
        """,
        "losses": """
            binary_dice_loss convex_kl_divergence cosine_distance cosine_similarity ctc_loss ctc_loss_with_forward_probs
            dice_loss generalized_kl_divergence hinge_loss huber_loss kl_divergence kl_divergence_with_log_targets
            l2_loss log_cosh make_fenchel_young_loss multiclass_generalized_dice_loss multiclass_hinge_loss
            multiclass_perceptron_loss multiclass_sparsemax_loss ntxent perceptron_loss poly_loss_cross_entropy
            ranking_softmax_loss safe_softmax_cross_entropy sigmoid_binary_cross_entropy sigmoid_focal_loss
            smooth_labels softmax_cross_entropy softmax_cross_entropy_with_integer_labels sparsemax_loss squared_error
            triplet_margin_loss
        """,
        "microbatching": """
            AccumulationType Accumulator micro_grad micro_vmap microbatch reshape_batch_axis
        """,
        "perturbations": """
            Gumbel Normal make_perturbed_fun
        """,
        "projections": """
            projection_box projection_halfspace projection_hypercube projection_hyperplane projection_l1_ball
            projection_l1_sphere projection_l2_ball projection_l2_sphere projection_linf_ball projection_non_negative
            projection_simplex projection_vector
        """,
        "schedules": """
            InjectHyperparamsState InjectStatefulHyperparamsState Schedule StatefulSchedule WrappedSchedule
            constant_schedule cosine_decay_schedule cosine_onecycle_schedule exponential_decay inject_hyperparams
            inject_stateful_hyperparams join_schedules linear_onecycle_schedule linear_schedule
            piecewise_constant_schedule piecewise_interpolate_schedule polynomial_schedule sgdr_schedule
            warmup_constant_schedule warmup_cosine_decay_schedule warmup_exponential_decay_schedule
        """,
        "second_order": """
            fisher_diag hessian_diag hvp
        """,
        "transforms": """
            AddNoiseState ApplyIfFiniteState ConditionFn ConditionallyMaskState ConditionallyTransformState EmaState
            MaskedNode MaskedState MonitorState MultiSteps MultiStepsState NonNegativeParamsState PartitionState
            ShouldSkipUpdateFunction SnapshotState TraceState ZeroNansState adaptive_grad_clip add_decayed_weights
            add_noise apply_if_finite chain clip clip_by_block_rms clip_by_global_norm conditionally_mask
            conditionally_transform ema flatten freeze keep_params_nonnegative masked measure_with_ema monitor
            named_chain partition per_example_global_norm_clip per_example_layer_norm_clip selective_transform
            skip_large_updates skip_not_finite snapshot trace unitwise_clip unitwise_norm zero_nans
        """,
        "tree": """
            add add_scale allclose batch_shape bias_correction cast cast_like clip conj div dtype full_like get
            get_all_with_path map_params max min mul norm ones_like random_like real scale set size split_key_like sub
            sum unwrap_random_key_data update_infinity_moment update_moment update_moment_per_elem_norm vdot where
            zeros_like
        """,
    }.items()
}
NAMES["tree_utils"] = ("NamedTupleKey", *(f"tree_{name}" for name in NAMES["tree"]))
