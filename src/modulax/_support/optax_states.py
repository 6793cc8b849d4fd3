"""The fields of optax's states in the order in which they are constructed and unpacked there, by the class here.

`t=count` is a field that is called `count` here.
"""

_FIELDS = """
    AccumulateAvgUpdatesState: micro_step ready avg_grad
    AddNoiseState: count rng_key
    ApplyEveryState: count grad_acc
    ApplyIfFiniteState: notfinite_count last_finite total_notfinite inner_state
    COCOBState: init_particles cumulative_gradients scale subgradients reward
    ConditionallyMaskState: step inner_state
    ConditionallyTransformState: inner_state step
    DAdaptAdamWState: exp_avg exp_avg_sq grad_sum estim_lr numerator_weighted count
    DifferentiallyPrivateAggregateState: rng_key
    DoGState: is_init_step init_params max_dist sum_sq_norm_grads
    DoWGState: init_params weighted_sq_norm_grads estim_sq_dist
    EmaState: count ema
    FactoredState: count v_row v_col v
    GaLoreState: count base_optimizer_state projector
    HutchinsonState: key
    InjectedState: count hyperparams hyperparams_states=schedule_states inner_state
    LookaheadState: fast_state steps_since_sync
    MaskedState: inner_state
    MechanicState: base_optimizer_state count r m v s x0
    MomoAdamState: exp_avg exp_avg_sq barf gamma lb count
    MomoState: exp_avg barf gamma lb count
    MonitorState: measurements measure_states
    MultiStepsState: mini_step gradient_step inner_opt_state acc_grads skip_state
    MuonState: count mu ns_coeffs
    PartitionState: inner_states
    PerElementMeanAndSumSqDiffGradsState: micro_step ready mean_grads sum_sq_diff_grads
    PerElementMeanAndVarianceEMAState: count ema_decay mean_grads_ema variance_grads_ema
    ProdigyState: exp_avg exp_avg_sq grad_sum params0 estim_lr numerator_weighted count
    ReduceLROnPlateauState: scale best_value plateau_count cooldown_count count avg_value
    SAMState: steps_since_sync opt_state adv_state cache
    ScaleByAMSGradState: count mu nu nu_max
    ScaleByAdEMAMixState: count count_m2=count m1 m2 nu
    ScaleByAdadeltaState: e_g e_x
    ScaleByAdamState: count mu nu
    ScaleByAdanState: m v n g t=count
    ScaleByBacktrackingLinesearchState: learning_rate value grad info
    ScaleByBeliefState: count mu nu
    ScaleByLBFGSState: count params updates diff_params_memory diff_updates_memory weights_memory
    ScaleByLionState: count mu
    ScaleByMADGRADState: count grad_sum_sq s x0
    ScaleByNovoGradState: count mu nu
    ScaleByRMSState: nu
    ScaleByRSSState: sum_of_squares
    ScaleByRpropState: step_sizes prev_updates
    ScaleBySM3State: mu nu
    ScaleByScheduleState: count
    ScaleBySimplifiedAdEMAMixState: t=count m n
    ScaleBySophiaState: count mu nu hessian_fn_state
    ScaleByStddevState: mu nu
    ScaleByZoomLinesearchState: learning_rate value grad info
    ScheduleFreeState: b1 weight_sum step_count max_lr base_optimizer_state z
    SnapshotState: measurement
    SplitRealAndImaginaryState: inner_state
    TraceState: trace
    ZeroNaNsState: found_nan
    ZoomLinesearchInfo: num_linesearch_steps decrease_error curvature_error
"""


def _names(fields: str) -> dict[str, str]:
    pairs = [field.partition("=") for field in fields.split()]
    return {theirs: ours or theirs for theirs, _, ours in pairs}


_ROWS = [row.partition(":") for row in _FIELDS.strip().splitlines()]
_NAMES = {name.strip(): _names(fields) for name, _, fields in _ROWS}


def fields_in_optax(cls: type) -> dict[str, str] | None:
    """The names of the fields here by those in optax, in optax's order; None for a state that optax does not have."""
    return _NAMES.get(cls.__name__) if cls.__module__.startswith("modulax.") else None
