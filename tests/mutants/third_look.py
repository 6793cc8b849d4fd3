"""Faults that were planted after the others, again by somebody who had not read the tests."""

from ._mutant import Mutant

MUTANTS = (
    # --- containers: at(), eval_params, parts, reshaping
    Mutant(
        "evaluation-parameters-in-the-dtype-of-the-state",
        "container",
        "_protocol/container.py",
        "return treedef.unflatten([x.astype(p.dtype) for x, p in zip(values, leaves, strict=True)])",
        "return treedef.unflatten(values)",
        ("tests/test_averaging.py -k test_what_is_evaluated_has_the_dtypes",),
    ),
    Mutant(
        "the-loss-of-a-group-is-called-with-the-group-alone",
        "container",
        "_containers/partition.py",
        'group_extra = extra_for(extra, chosen, updates, params, "Partition.update")',
        'group_extra = extra_for(extra, chosen, updates, None, "Partition.update")',
        ("tests/test_containers.py -k test_functions_of_the_parameters_see_all_of_them",),
    ),
    Mutant(
        "a-named-part-replaces-one-of-the-same-class",
        "container",
        "_containers/chain.py",
        "found[_free_name(x, {*found, *named})] = x",
        "found[_free_name(x, set(found))] = x",
        ("tests/test_containers.py -k test_a_name_that_is_given_is_that_of_no_other_part",),
    ),
    Mutant(
        "lookahead-starts-again-from-before-the-step",
        "container",
        "_containers/lookahead.py",
        "fresh = self.fast_optimizer.init(apply_updates(fast, fast_steps))",
        "fresh = self.fast_optimizer.init(fast)",
        ("tests/test_lookahead.py -k test_a_fresh_state_is_one_for_the_parameters",),
    ),
    Mutant(
        "opaque-sam-steps-in-the-dtype-of-its-own-gradients",
        "container",
        "_containers/sam.py",
        "grads = jtu.tree_map(lambda new, g: new.astype(g.dtype), found, updates)",
        "grads = found",
        ("tests/test_containers.py -k test_gradients_of_the_caller_may_be_wider",),
    ),
    Mutant(
        "flattened-examples-without-parameters-are-entries",
        "container",
        "_containers/reshaping.py",
        "axes = len(self.inner.example_axes) if of_updates else 0",
        "axes = 0",
        ("tests/test_reshaping.py -k test_the_gradients_of_examples_are_flattened_each",),
    ),
    # --- checkpoints
    Mutant(
        "a-lenient-restore-keeps-what-has-another-shape",
        "checkpoint",
        "checkpoint/_names.py",
        "        if name in names and place.rest and np.shape(leaf) != np.shape(saved[names[name]]):\n"
        "            found[name] = name  # `check` reports the shape\n",
        "",
        ("tests/test_checkpoint_edges.py -k test_another_shape_under_the_same_name",),
    ),
    Mutant(
        "steps-of-optax-are-those-of-any-count",
        "checkpoint",
        "checkpoint/_foreign.py",
        'if "count" in fields and not fields.keys() & _OTHER_COUNTS]',
        'if "count" in fields]',
        ("tests/test_checkpoint_edges.py -k steps_of_optax",),
    ),
    # --- alignment of differing structures, and owners of a state
    Mutant(
        "leaves-of-another-structure-in-its-own-order",
        "alignment",
        "tree/_leaves.py",
        "return [found[n] for n in wanted]",
        "return list(found.values())",
        ("tests/test_tree_functions.py -k test_the_order_of_the_leaves",),
    ),
    Mutant(
        "a-counter-of-optax-belongs-to-the-only-parameter",
        "describe",
        "tree/_state.py",
        'elif kind == "unknown" and not jnp.issubdtype(x.dtype, jnp.integer):',
        'elif kind == "unknown":',
        ("tests/test_describe.py -k test_arrays_of_optax_belong",),
    ),
    # --- describe
    Mutant(
        "a-rate-of-zero-is-no-rate",
        "describe",
        "_catalog/describe.py",
        'adds_nothing = name == "weight_decay" and text == _ZERO',
        "adds_nothing = text == _ZERO",
        ("tests/test_describe.py -k test_groups_are_the_labels_of_partitions",),
    ),
    # --- NNX
    Mutant(
        "nnx-labels-what-is-not-trained",
        "nnx",
        "nnx/_optimizer.py",
        "in nnx.to_flat_state(nnx.state(model, wrt)):",
        "in nnx.to_flat_state(nnx.state(model)):",
        ("tests/test_nnx.py -k test_groups_by_type_by_path_and_by_predicate",),
    ),
    # --- numbers and schedules
    Mutant(
        "muon-orthogonalizes-with-its-schedules",
        "schedule",
        "_transforms/muon.py",
        "orthogonal = together(rule.owner._orthogonal,",
        "orthogonal = together(self._orthogonal,",
        ("tests/test_muon.py -k test_coefficients_can_be_swept_and_scheduled",),
    ),
    Mutant(
        "boundaries-of-an-interpolation-as-they-are-given",
        "schedule bound",
        "schedules/_pieces.py",
        "changes = dict(sorted((boundaries_and_scales or {}).items()))",
        "changes = dict(boundaries_and_scales or {})",
        ("tests/test_equations_schedules.py -k PiecewiseInterpolate-linear",),
    ),
    Mutant(
        "a-plateau-never-improves-on-infinity",
        "bounds",
        "_transforms/plateau.py",
        "best = jnp.minimum(state.best_value, _nothing_yet())  # a state from optax starts at infinity",
        "best = state.best_value",
        ("tests/test_plateau.py -k test_it_continues_from_the_state_of_optax",),
    ),
    # --- line searches
    Mutant(
        "zoom-stays-where-no-step-was-found",
        "line search bound",
        "_transforms/zoom.py",
        "return jnp.where(last > 0, last, 1)",
        "return last",
        ("tests/test_linesearch.py -k test_a_step_of_zero_is_no_end",),
    ),
    # --- dtypes of moments
    Mutant(
        "dadapt-sums-in-the-dtype-of-the-parameter",
        "moment dtype",
        "_transforms/dadapt.py",
        "grad_sum=wide_zeros(p))",
        "grad_sum=jnp.zeros_like(p))",
        ("tests/test_state_dtypes.py -k test_the_table_is_up_to_date",),
    ),
    # --- functions
    Mutant(
        "an-impossible-outcome-of-a-tiny-target-is-not-a-number",
        "loss",
        "losses/_divergences.py",
        "    p = jnp.where((p == 0) & (difference == jnp.inf), jnp.finfo(p.dtype).tiny, p)\n",
        "",
        ("tests/test_losses_divergences.py -k test_what_is_predicted_to_be_impossible",),
    ),
    Mutant(
        "a-ball-has-no-slope-at-its-center",
        "projection",
        "projections/_spheres.py",
        "factor = jnp.where(length > s, ratio, jnp.ones_like(ratio))",
        "factor = jnp.minimum(ratio, 1)",
        ("tests/test_projections.py -k test_a_point_of_the_ball_stays",),
    ),
    Mutant(
        "a-batch-on-the-last-axis-counted-from-the-end",
        "microbatching",
        "microbatching/_batch_axis.py",
        "    axis = axis % x.ndim\n    n = x.shape[axis] // microbatch_size\n",
        "    n = x.shape[axis] // microbatch_size\n",
        ("tests/test_microbatching.py -k test_an_axis_may_be_counted_from_the_end",),
    ),
    # --- the two of forty that stayed alive when faults were planted again
    Mutant(
        "the-rate-of-torchs-first-group-is-that-of-all",
        "checkpoint",
        "checkpoint/_foreign.py",
        "value = value * np.asarray(-rates[key], value.dtype)",
        'value = value * np.asarray(-state_dict["param_groups"][0]["lr"], value.dtype)',
        ("tests/test_foreign.py -k test_each_group_of_torch",),
    ),
    Mutant(
        "lost-squares-count-for-nothing",
        "function",
        "projections/_length.py",
        "* float(limits.tiny / limits.eps)",
        "* float(limits.tiny)",
        ("tests/test_bounds.py -k test_squares_that_are_lost",),
    ),
)
