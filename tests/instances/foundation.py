"""The transforms and optimizers of the foundation, and the containers."""

import jax.numpy as jnp
import optax

import modulax as mx
from modulax import schedules

from ..differences import Difference
from ._instance import ROUNDED, Instance, twins
from ._masks import (
    B1,
    BIASES,
    DECAY,
    FROZEN,
    KERNELS,
    WARMUP,
    Cautious,
    bias_or_rest,
    decaying,
    doubled,
    growing,
    is_huge,
    kind,
    loss,
    matrices,
    momentum_init,
    momentum_update,
    not_bias,
    tied,
)

TRANSFORMS = (
    # --- basic
    Instance("Identity", mx.Identity, optax.identity),
    Instance("SetToZero", mx.SetToZero, optax.set_to_zero),
    twins("Stateless", mx.Stateless, optax.stateless, doubled),
    # --- scaling
    twins("Scale", mx.Scale, optax.scale, -0.5),
    Instance(
        "ScaleBySchedule",
        lambda: mx.ScaleBySchedule(schedules.Linear(1.0, 0.1, 20)),
        lambda: optax.scale_by_schedule(optax.linear_schedule(1.0, 0.1, 20)),
    ),
    Instance(
        "ScaleByPath",
        lambda: mx.ScaleByPath({"*bias": 0.5, "*": 2.0}),
        lambda: optax.partition({"bias": optax.scale(0.5), "rest": optax.scale(2.0)}, bias_or_rest),
    ),
    Instance(
        "ScaleByPath-schedule",
        lambda: mx.ScaleByPath({"*bias": schedules.Linear(1.0, 0.1, 20), "*": 2.0}),
        lambda: optax.partition(
            {"bias": optax.scale_by_schedule(optax.linear_schedule(1.0, 0.1, 20)), "rest": optax.scale(2.0)},
            bias_or_rest,
        ),
    ),
    Instance(
        "ScaleByDepth",
        lambda: mx.ScaleByDepth(0.8, mx.by_path({"*bias": 2, "*": 0})),
        lambda: optax.partition({"bias": optax.scale(0.8**2), "rest": optax.identity()}, bias_or_rest),
    ),
    twins("ScaleBySchedule-number", mx.ScaleBySchedule, optax.scale, 0.3),
    twins("ScaleByLearningRate", mx.ScaleByLearningRate, optax.scale_by_learning_rate, 0.1),
    Instance(
        "ScaleByLearningRate-schedule",
        lambda: mx.ScaleByLearningRate(schedules.CosineDecay(0.1, 20, 0.1)),
        lambda: optax.scale_by_learning_rate(optax.cosine_decay_schedule(0.1, 20, 0.1)),
    ),
    twins("ScaleByLearningRate-ascent", mx.ScaleByLearningRate, optax.scale_by_learning_rate, 0.1, flip_sign=False),
    # --- momentum
    twins("Trace", mx.Trace, optax.trace, 0.8),
    Instance("Trace-nesterov", lambda: mx.Trace(0.8, True), lambda: optax.trace(0.8, nesterov=True)),
    Instance(
        "Trace-float32",
        lambda: mx.Trace(0.8, accumulator_dtype=jnp.float32),
        exemptions=ROUNDED,
    ),
    twins("Ema", mx.Ema, optax.ema, 0.9),
    twins("Ema-biased", mx.Ema, optax.ema, 0.9, debias=False),
    # --- adaptive
    Instance("ScaleByAdam", mx.ScaleByAdam, optax.scale_by_adam),
    twins("ScaleByAdam-nesterov", mx.ScaleByAdam, optax.scale_by_adam, 0.8, 0.95, 1e-6, nesterov=True),
    Instance(
        "ScaleByAdam-eps_root",
        lambda: mx.ScaleByAdam(eps=1e-4, eps_root=1e-6, mu_dtype=jnp.float32),
        exemptions=ROUNDED,
    ),
    Instance("ScaleByRMS", mx.ScaleByRMS, optax.scale_by_rms),
    twins(
        "ScaleByRMS-corrected",
        mx.ScaleByRMS,
        optax.scale_by_rms,
        0.95,
        1e-4,
        0.1,
        eps_in_sqrt=False,
        bias_correction=True,
    ),
    twins("ScaleByStddev", mx.ScaleByStddev, optax.scale_by_stddev, eps=1e-3),
    Instance(
        "ScaleByStddev-corrected",
        # Started at zero, the first variance would be a difference of equals: nothing but rounding.
        lambda: mx.ScaleByStddev(0.9, 1e-2, 0.5, eps_in_sqrt=False, bias_correction=True),
        lambda: optax.scale_by_stddev(0.9, 1e-2, 0.5, eps_in_sqrt=False, bias_correction=True),
    ),
    Instance("ScaleByLion", mx.ScaleByLion, optax.scale_by_lion),
    # --- clipping, regularization
    twins("Clip", mx.Clip, optax.clip, 0.7),
    twins("ClipByGlobalNorm", mx.ClipByGlobalNorm, optax.clip_by_global_norm, 1.5),
    Instance("ClipByGlobalNorm-logged", lambda: mx.ClipByGlobalNorm(1.5, logged=True)),
    twins("AddDecayedWeights", mx.AddDecayedWeights, optax.add_decayed_weights, 0.1),
    Instance("AddDecayedWeights-cautious", lambda: mx.AddDecayedWeights(0.1, cautious=True)),
    twins("AddDecayedWeights-mask", mx.AddDecayedWeights, optax.add_decayed_weights, 0.1, mask=KERNELS),
    # --- containers
    Instance(
        "Chain-runs",
        lambda: mx.Chain(
            mx.Trace(0.5),
            mx.ClipByGlobalNorm(1.0),
            mx.AdamW(0.1, mask=KERNELS),
            mx.Stateless(doubled),
            scale=mx.Scale(0.5),
        ),
        lambda: optax.chain(
            optax.trace(0.5),
            optax.clip_by_global_norm(1.0),
            optax.adamw(0.1, mask=not_bias),
        ),
    ),
    Instance("Chain-empty", mx.Chain, optax.identity),
    Instance(
        "Chain-fused",
        lambda: mx.Chain(mx.Clip(1.0), mx.ScaleByAdam(), mx.AddDecayedWeights(0.01), mx.ScaleByLearningRate(0.1)),
        lambda: optax.chain(
            optax.clip(1.0),
            optax.scale_by_adam(),
            optax.add_decayed_weights(0.01),
            optax.scale(-0.1),
        ),
    ),
    Instance(
        "Masked",
        lambda: mx.Masked(mx.Adam(0.1), KERNELS),
        lambda: optax.masked(optax.adam(0.1), not_bias),
    ),
    Instance(
        "Masked-function",
        lambda: mx.Masked(mx.Trace(0.9), matrices),
        lambda: optax.masked(optax.trace(0.9), matrices),
    ),
    Instance(
        "Freeze",
        lambda: mx.Freeze(BIASES),
        lambda: optax.transforms.freeze(FROZEN),
    ),
    Instance(
        "Partition",
        lambda: mx.Partition(
            {"rest": mx.AdamW(0.1), "bias": mx.SGD(0.2, 0.9)},
            mx.by_path({"*bias": "bias", "*": "rest"}),
        ),
        lambda: optax.partition({"rest": optax.adamw(0.1), "bias": optax.sgd(0.2, 0.9)}, bias_or_rest),
    ),
    Instance(
        "Partition-function",
        lambda: mx.Partition(
            {"other": mx.SetToZero(), "matrix": mx.ClipByGlobalNorm(1.0), "unused": mx.Scale(2.0)},
            kind,
        ),
        lambda: optax.partition({"other": optax.set_to_zero(), "matrix": optax.clip_by_global_norm(1.0)}, kind),
    ),
    Instance(
        "MultiSteps",
        lambda: mx.MultiSteps(mx.AdamW(0.1), 3),
        lambda: optax.MultiSteps(optax.adamw(0.1), 3, accumulator_dtype=jnp.float64),
    ),
    Instance(
        "MultiSteps-schedule",
        lambda: mx.MultiSteps(mx.SGD(0.1, 0.9), growing, should_skip=is_huge),
        lambda: optax.MultiSteps(optax.sgd(0.1, 0.9), growing, accumulator_dtype=jnp.float64),
    ),
    Instance(
        "MultiSteps-sum",
        lambda: mx.MultiSteps(mx.Adam(0.1), 2, use_grad_mean=False),
        lambda: optax.MultiSteps(optax.adam(0.1), 2, use_grad_mean=False, accumulator_dtype=jnp.float64),
    ),
    Instance(
        "Scheduled",
        lambda: mx.Scheduled(
            mx.Chain(
                mx.ScaleByAdam(b1=B1),
                mx.AddDecayedWeights(DECAY),
                mx.ScaleByLearningRate(0.1),
            )
        ),
    ),
    Instance(
        "Injected",
        lambda: mx.Injected(mx.AdamW(0.1, b2=0.99, eps=1e-3)),  # which a dtype of 16 bits holds
        lambda: optax.inject_hyperparams(optax.adamw)(0.1, b2=0.99, eps=1e-3),
    ),
    Instance(
        "FromFactory",
        lambda: mx.FromFactory(tied, learning_rate=0.1, decay=0.5),
        lambda: optax.chain(optax.scale_by_adam(), optax.add_decayed_weights(0.05), optax.scale(-0.1)),
        exemptions={"a_field_of_an_optimizer_is_handed_on": "another function may compute the same"},
    ),
    Instance(
        "Injected-factory",
        lambda: mx.inject_hyperparams(tied)(schedules.Linear(0.1, 0.02, 10), 0.5),
        exemptions={"at_is_the_transform_of_the_next_step": "the number of the last step in the state rules"},
    ),
    Instance(
        "Injected-schedule",
        lambda: mx.Injected(mx.SGD(schedules.Linear(0.1, 0.01, 20), 0.9)),
        lambda: optax.inject_hyperparams(optax.sgd)(optax.linear_schedule(0.1, 0.01, 20), 0.9),
        exemptions={"at_is_the_transform_of_the_next_step": "the number of the last step in the state rules"},
    ),
    Instance(
        "Injected-some",
        lambda: mx.Injected(mx.SGD(Cautious(0.1), 0.9), "momentum", jnp.float32),
        extra=loss,
        exemptions=ROUNDED,
    ),
    # --- adapters
    Instance(
        "FromFunctions",
        lambda: mx.from_functions(momentum_init, momentum_update),
        lambda: optax.sgd(0.05, momentum=0.9),
    ),
    Instance(
        "FromOptax",
        lambda: mx.from_optax(optax.sgd(0.05, momentum=0.9)),
        lambda: optax.sgd(0.05, momentum=0.9),
        exemptions={"pickle_can_save_it": "optax's functions are local ones, which pickle refuses"},
    ),
    # --- optimizers
    twins("SGD", mx.SGD, optax.sgd, 0.05),
    twins("SGD-nesterov", mx.SGD, optax.sgd, 0.05, momentum=0.9, nesterov=True),
    Instance("SGD-schedules", lambda: mx.SGD(decaying, momentum=schedules.Linear(0.5, 0.9, 10))),
    Instance("SGD-stateful", lambda: mx.SGD(Cautious(0.05), momentum=0.9), extra=loss),
    twins("Adam", mx.Adam, optax.adam, 0.05),
    twins("AdamW", mx.AdamW, optax.adamw, 0.05),
    twins("AdamW-mask", mx.AdamW, optax.adamw, 0.05, 0.8, 0.99, weight_decay=0.1, mask=KERNELS, nesterov=True),
    Instance(
        "AdamW-schedule",
        lambda: mx.AdamW(schedules.WarmupCosineDecay(**WARMUP)),
        lambda: optax.adamw(optax.warmup_cosine_decay_schedule(**WARMUP)),
    ),
    twins("NAdam", mx.NAdam, optax.nadam, 0.05),
    twins("NAdamW", mx.NAdamW, optax.nadamw, 0.05, weight_decay=0.01),
    twins("RMSProp", mx.RMSProp, optax.rmsprop, 0.05),
    twins("RMSProp-momentum", mx.RMSProp, optax.rmsprop, 0.05, eps_in_sqrt=False, momentum=0.8, nesterov=True),
    twins("RMSProp-centered", mx.RMSProp, optax.rmsprop, 0.05, initial_scale=0.5, centered=True, bias_correction=True),
    twins("Lion", mx.Lion, optax.lion, 0.05),
    Instance(
        "Lion-mask",
        lambda: mx.Lion(0.05, weight_decay=0.1, mask=KERNELS, mu_dtype=jnp.float32),
    ),
)

_CONFORMANCE = "test_conformance.py"
DIFFERENCES = (
    Difference(
        "States",
        "Modules with named fields; a leaf that is masked out is None; `Partition` holds the states of the groups",
        "tuples; `MaskedNode` for such a leaf; `partition` holds a `MaskedState` for each group",
        "checkpoints and messages need names, which tuples don't have; None is the absent leaf everywhere",
        f"{_CONFORMANCE}::test_states_are_modules_and_masked_leaves_are_none",
        "design, section on trees",
    ),
    Difference(
        "`mu_dtype`, `accumulator_dtype` of complex parameters",
        "a real dtype is a precision: moments stay complex",
        "the imaginary parts are dropped",
        "the moment of a complex gradient is complex",
        f"{_CONFORMANCE}::test_moments_of_complex_gradients_are_complex",
        "follows from the definition",
    ),
    Difference(
        "Python numbers and integers as parameters or gradients",
        "not trained; `init` of nothing else is an error",
        "trained like arrays of floats",
        "in a model they are settings and indices",
        f"{_CONFORMANCE}::test_what_is_no_array_is_not_trained",
        "design, section on numbers",
    ),
    Difference(
        "`init` of shapes (`jax.ShapeDtypeStruct`)",
        "the shapes of the state",
        "zeros, also in a state that should hold a copy of the parameters",
        "what is computed from shapes are shapes",
        f"{_CONFORMANCE}::test_what_is_no_array_is_not_trained",
        "",
    ),
    Difference(
        "Mistakes: options that don't exist, missing extra arguments, updates without parameters",
        "a `ValueError` that says what to write, from the constructor if it can see the mistake",
        "a `TypeError`, a `KeyError`, JAX's error about structures, in `update`; or no error",
        "the message names the argument, and the traceback shows the line to change",
        f"{_CONFORMANCE}::test_mistakes_are_value_errors_where_they_are_made",
        "",
    ),
    Difference(
        "A stateful schedule whose `update` returns another dtype",
        "an error, unless the dtype in `init` can hold the values",
        "the state gets the new dtype, and the next update is compiled again",
        "an update never changes a dtype",
        "test_stateful_schedules.py::test_a_state_that_would_be_cut_to_another_dtype_is_refused",
    ),
    Difference(
        "`schedules.WrappedSchedule`",
        "a function as a schedule of the step",
        "a function as a stateful schedule, whose state is the step",
        "a schedule of the step needs no state",
        f"{_CONFORMANCE}::test_a_wrapped_function_is_a_schedule",
        "",
    ),
    Difference(
        "second moments of low-precision parameters",
        "stored in float32",
        "stored in the dtype of the parameter",
        "bfloat16 cannot hold increments of a thousandth: the moment stalls",
        "test_conformance.py::test_second_moments_do_not_stall",
        "design, section on numbers",
    ),
    Difference(
        "zero gradients in float16",
        "zero updates: arithmetic is done in at least float32",
        "NaN, because eps underflows",
        "a parameter with a zero gradient is valid",
        "test_conformance.py::test_zero_gradients_in_half_precision",
        "optax issues 1754, 1784, 1789",
    ),
    Difference(
        "`ClipByGlobalNorm` with an infinite entry, or with a bound of zero",
        "zeros",
        "NaN",
        "0 / 0 and inf · 0 are never useful",
        "test_conformance.py::test_clipping_makes_no_nan",
        "optax PR 1752",
    ),
    Difference(
        "An empty `Chain`",
        "the identity",
        "an error at `init`",
        "a chain that is built programmatically may be empty",
        "test_conformance.py::test_an_empty_chain_is_the_identity",
        "",
    ),
    Difference(
        "`Partition`, labels that are a Module with `__call__`",
        "a tree of labels",
        "called with the parameters, which fails",
        "models are callable, and a tree of labels often has the structure of a model",
        "test_conformance.py::test_labels_may_be_a_module_that_can_be_called",
        "optax issues 913, 1373",
    ),
    Difference(
        "`MultiSteps` with an infinite gradient",
        "the accumulator is reset for the next batch; the inner transform runs once per batch",
        "the accumulator stays NaN; the inner transform runs on every mini-step",
        "one bad batch must not ruin a run",
        "test_conformance.py::test_multisteps_recovers",
        "optax issues 472, 828",
    ),
    Difference(
        "`MultiSteps` on bfloat16 parameters",
        "the inner transform receives the mean in the accumulator's dtype",
        "the mean is first rounded to the dtype of the gradients",
        "precision accumulated in float32 must not be lost before it is used",
        "test_multisteps.py::test_the_inner_transform_sees_the_accumulators_dtype",
        "follows from the definition",
    ),
    Difference(
        "`Injected` on bfloat16 parameters",
        "hyperparameters keep their dtype",
        "hyperparameters are cast to the dtype of the parameters: 0.999 becomes 1, and Adam's update NaN",
        "hyperparameters are independent of the parameters' dtype",
        "test_conformance.py::test_injected_numbers_keep_their_dtype",
        "optax issue 1414",
    ),
    Difference(
        "`Injected(hyperparam_dtype=...)`",
        "hyperparameters are stored in that dtype, but computed with in JAX's default dtype",
        "powers of a decay are computed in that dtype",
        "the storage dtype must not limit the precision of computations",
        "test_injected.py::test_the_dtype_of_the_numbers_is_not_that_of_the_arithmetic",
        "design, section on numbers",
    ),
    Difference(
        "some schedules, such as `Linear`, under `jax_enable_x64`",
        "computed in float64",
        "computed in float32",
        "as requested by the setting",
        "test_conformance.py::test_schedules_are_as_precise_as_asked_for",
        "design, section on schedules",
    ),
)
